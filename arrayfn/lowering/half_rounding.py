"""Rounds half-precision values where something other than their arithmetic reads them.

Kernels compute float16 and bfloat16 in float32, and between the equations of one kernel
a number keeps float32's precision and range. It is rounded where it is stored, where a
function of another result dtype reads it (a conversion, a comparison, its bits), and
where a function with jumps reads it (a floor, a remainder). The same holds through
functions whose result is one of their operands (a maximum, an absolute value). All
readers of a rounded value get the rounded one. ``docs/decisions`` says what rounding
every result costs.
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
    """Whether ``function`` of half-precision operands has a half-precision result.

    If it does, rounding its operands also rounds its result. ``function`` has its dtype
    suffix, as ``max_f32``.
    """
    name = function.rpartition("_")[0]
    return name in EXACT or name.startswith("round_")


def with_rounding(
    statements: Sequence[Statement], half_dtypes: Mapping[str, DType]
) -> list[Statement]:
    """Insert roundings of the values that need them into ``statements``.

    ``b = exp_f32(a); c = floor_f32(b)`` of bf16 values becomes ``b_wide = exp_f32(a); b
    = round_f32_bf16(b_wide); c = floor_f32(b)``. ``half_dtypes`` has the dtype in the
    Program of each half-precision value.
    """
    rounded: set[str] = set()
    for s in reversed(statements):
        if isinstance(s, (Compute, Reduce)) and _reads_rounded(s, rounded):
            rounded.update(value.name for value in uses(s))
    with_roundings: list[Statement] = []
    for s in statements:
        if (
            isinstance(s, (Compute, Reduce))
            and s.result.name in half_dtypes
            and s.result.name in rounded
            and not is_exact(s.function)
        ):
            with_roundings += _rounded(s, half_dtypes[s.result.name])
        else:
            with_roundings.append(s)
    return with_roundings


def _rounded(s: Compute | Reduce, dtype: DType) -> list[Statement]:
    """Return ``s`` with an unrounded result, and a statement that rounds that."""
    # The result of a reduction is available once a row, in the next stage.
    unrounded = Value(f"{s.result.name}_wide", float32, half=True)
    level = "outer" if isinstance(s, Reduce) else s.level
    stage = s.stage + 1 if isinstance(s, Reduce) else s.stage
    function = f"round_f32_{short_name(dtype)}"
    rounding = Compute(s.result, function, (unrounded,), level, stage, 1, s.source)
    return [replace(s, result=unrounded), rounding]


def _reads_rounded(s: Compute | Reduce, rounded: Collection[str]) -> bool:
    """Whether the operands of ``s`` must be rounded for its result to be right.

    They must if ``s`` is exact in half precision and its result is among ``rounded``,
    the names of values that must be rounded. They also must if the result is not a
    half-precision value (a conversion, a comparison), or if the function jumps, so that
    a small change of an operand can change the result much.
    """
    if s.result.name in rounded and is_exact(s.function):
        return True
    if isinstance(s, Reduce):
        return False
    is_jump = s.function.rpartition("_")[0] in JUMPS
    return not s.result.half or is_jump or s.function.startswith("round_")
