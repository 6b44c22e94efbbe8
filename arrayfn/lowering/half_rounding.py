"""Rounds half-precision values where something else than their arithmetic reads them.

Kernels compute float16 and bfloat16 in float32, and between the equations of one kernel
a number keeps float32's precision and range. It is rounded where it is stored, and
where a function reads it that has another dtype as its result (a conversion, a
comparison, its bits) or that jumps (a floor, a remainder), also through functions whose
result is one of their operands (a maximum, an absolute value). Then all of its readers
get the rounded value. ``docs/decisions`` says what rounding every result costs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from arrayfn.dtypes import DType, float32, short_name
from arrayfn.lowering.kernel_ir import (
    Compute,
    Reduce,
    Statement,
    Value,
    uses,
)

EXACT: Final = frozenset(
    {
        "identity",
        "neg",
        "abs",
        "sign",
        "max",
        "min",
        "clamp",
        "select",
        "copysign",
        "floor",
        "ceil",
        "trunc",
        "round",
        "accumulate_max",
        "accumulate_min",
        "convert_f16",
        "convert_bf16",
    }
)
"""Functions whose result is an operand, or a number that half precision has."""

JUMPS: Final = frozenset(
    {
        "floor",
        "ceil",
        "trunc",
        "round",
        "sign",
        "floor_divide",  # the primitive
        "floordiv",  # its function in kernels
        "remainder",
        "fmod",
    }
)
"""Functions that jump: an operand that is not rounded may lie on the other side."""


def is_exact(function: str) -> bool:
    """Whether ``function`` of half-precision operands has a half-precision result."""
    kind = function.rpartition("_")[0]
    return kind in EXACT or kind.startswith("round_")


def with_rounding(
    statements: Sequence[Statement], half_dtypes: Mapping[str, DType]
) -> list[Statement]:
    """``statements``, with roundings of the values that need them.

    ``half_dtypes`` has the dtype that the Program gives each half-precision value.
    """
    seen: set[str] = set()
    for s in reversed(statements):
        if isinstance(s, (Compute, Reduce)) and _reads_rounded(s, seen):
            seen.update(value.name for value in uses(s))
    made: list[Statement] = []
    for s in statements:
        dtype = None
        if isinstance(s, (Compute, Reduce)):
            dtype = half_dtypes.get(s.result.name)
        if (
            not isinstance(s, (Compute, Reduce))
            or dtype is None
            or is_exact(s.function)
            or s.result.name not in seen
        ):
            made.append(s)
            continue
        wide = Value(f"{s.result.name}_wide", float32, half=True)
        made.append(replace(s, result=wide))
        level = "outer" if isinstance(s, Reduce) else s.level
        stage = s.stage + 1 if isinstance(s, Reduce) else s.stage
        function = f"round_f32_{short_name(dtype)}"
        made.append(Compute(s.result, function, (wide,), level, stage, 1, s.source))
    return made


def _reads_rounded(s: Compute | Reduce, seen: Collection[str]) -> bool:
    """Whether the operands of ``s`` must be rounded if the values in ``seen`` must be.

    A function whose result is one of its operands passes that on.
    """
    if s.result.name in seen and is_exact(s.function):
        return True
    if isinstance(s, Reduce):
        return False
    is_jump = s.function.rpartition("_")[0] in JUMPS
    return not s.result.half or is_jump or s.function.startswith("round_")
