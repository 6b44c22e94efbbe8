"""Reductions over members that an engine does not do: gathers and local reductions.

After it: every ``all_reduce`` and ``reduce_scatter`` is one that the engine ``does``.
What members gather is reduced in their order, by kernels of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from arrayfn.ir import Atom, Equation, Program
from arrayfn.ir.builder import rewritten
from arrayfn.primitives import reductions
from arrayfn.primitives.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    reduce_scatter,
)

_REDUCTIONS = {
    "sum": reductions.reduce_sum,
    "max": reductions.reduce_max,
    "min": reductions.reduce_min,
}


def with_member_sums(
    program: Program, sizes: Mapping[str, int], does: Callable[[Equation], bool]
) -> Program:
    """``program``, of a mesh with axes of these ``sizes``, as an engine computes it."""

    def replacement(equation: Equation, operands: list[Atom]) -> list[Atom] | None:
        row = equation.primitive
        if row not in (all_reduce, reduce_scatter) or does(equation):
            return None
        (x,), axis = operands, equation.params["axis_name"]
        if row is all_reduce:
            parts = all_gather(x, axis_name=axis, members=sizes[axis])
        else:
            parts = all_to_all(x, axis_name=axis, members=sizes[axis])
        reduce = _REDUCTIONS[equation.params.get("op", "sum")]
        return [reduce(parts, axes=(0,))]

    return rewritten(program, replacement)
