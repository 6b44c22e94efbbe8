"""Replaces reductions over members that an engine lacks by gathers and local ones.

After it: the engine supports every ``all_reduce`` and ``reduce_scatter``.
What members gather is reduced in their order, by kernels of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from arrayfn.ir import Atom, Equation, Program, with_programs
from arrayfn.ir.builder import current_builder, rewritten
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
    program: Program, sizes: Mapping[str, int], is_supported: Callable[[Equation], bool]
) -> Program:
    """Replace reductions that an engine lacks by a gather and a local reduction.

    ``sizes`` has the size of each axis of the mesh; ``is_supported`` says which
    collectives the engine has.
    """

    def inner(body: Program) -> Program:
        """Do the same in a Program inside an equation."""
        return with_member_sums(body, sizes, is_supported)

    def replacement(equation: Equation, operands: list[Atom]) -> list[Atom] | None:
        """Emit a reduction of all members' parts; None leaves ``equation`` as it is.

        Programs inside ``equation`` are rewritten by ``inner``.
        """
        primitive = equation.primitive
        if equation.subprograms():
            params = with_programs(equation.params, inner)
            return list(current_builder().emit(primitive, operands, params))
        if primitive not in (all_reduce, reduce_scatter) or is_supported(equation):
            return None
        (x,), axis = operands, equation.params["axis_name"]
        if primitive is all_reduce:
            parts = all_gather(x, axis_name=axis, members=sizes[axis])
        else:
            parts = all_to_all(x, axis_name=axis, members=sizes[axis])
        reduce = _REDUCTIONS[equation.params.get("op", "sum")]
        return [reduce(parts, axes=(0,))]

    return rewritten(program, replacement)
