"""Rounds halves that are read by anything but arithmetic of halves.

Kernels compute on halves in float32, and between the equations of one kernel a number
keeps float32's precision and range. It is rounded where it is stored, and where it is
read by what gives no half (a conversion, a comparison, its bits) or jumps (a floor, a
remainder), also through what gives one of its operands (a maximum, an absolute value).
Then all that reads it has the half. (``docs/decisions`` has what rounding every result
costs.)
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
"""Functions whose result is one of their operands, or a number that halves have."""


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
    """Whether ``function`` of halves gives a half, or has rounded to one."""
    kind = function.rpartition("_")[0]
    return kind in EXACT or kind.startswith("round_")


def with_rounding(
    statements: Sequence[Statement], halves: Mapping[str, DType]
) -> list[Statement]:
    """``statements``, with those of the values in ``halves`` rounded that must be.

    ``halves`` has the dtype that the Program gives each of them.
    """
    seen: set[str] = set()
    for s in reversed(statements):
        if isinstance(s, (Compute, Reduce)) and _reads_halves(s, seen):
            seen.update(value.name for value in uses(s))
    made: list[Statement] = []
    for s in statements:
        dtype = halves.get(s.result.name) if isinstance(s, (Compute, Reduce)) else None
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


def _reads_halves(s: Compute | Reduce, seen: Collection[str]) -> bool:
    """Whether the operands of ``s`` are halves if those in ``seen`` are to be.

    A function that gives one of its operands gives a half only of halves.
    """
    if s.result.name in seen and is_exact(s.function):
        return True
    if isinstance(s, Reduce):
        return False
    is_jump = s.function.rpartition("_")[0] in JUMPS
    return not s.result.half or is_jump or s.function.startswith("round_")
