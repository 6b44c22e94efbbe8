"""Why equations are in different units: fusion again, with a record of refusals.

In: a Program as the passes left it. Out: for each equation, why it did not join the
unit that makes one of its operands. Lowering does not need this; who asks why kernels
are apart does.
"""

from __future__ import annotations

from typing_extensions import override

from arrayfn.ir import Equation, Program, Var
from arrayfn.lowering.fusion.fuser import CLONE_COST, Fuser
from arrayfn.lowering.fusion.groups import Group, is_fusible
from arrayfn.lowering.fusion.merging import MAX_ARRAYS, MAX_STATEMENTS
from arrayfn.primitives.base import (
    Contraction,
    Control,
    Library,
    Reduction,
    primitive_of,
)

Refusals = dict[tuple[Equation, Equation], str]
"""Reasons, by the equation that makes a value and the one that uses it."""


def refusals(program: Program) -> Refusals:
    """Return why equations of ``program`` are not fused with what they use."""
    fuser = _Recording(program)
    fuser.run()
    return fuser.refused


class _Recording(Fuser):
    """Records why an equation does not join the group of an operand."""

    def __init__(self, program: Program) -> None:
        super().__init__(program, chains=(), clone_cost=CLONE_COST, short=0)
        self.refused: Refusals = {}

    @override
    def assign(self, equation: Equation) -> None:
        """Assign ``equation``, and record why it joins no group of a producer."""
        reasons: list[tuple[Equation, str]] = []
        for base in self.bases(equation):
            number = self.producer_group.get(base)
            if number is not None and base in self.definitions:
                why = self.why_apart(equation, self.groups[number])
                reasons.append((self.definitions[base], why))
        super().assign(equation)
        for maker, why in reasons:
            if why:
                self.refused[maker, equation] = why

    def why_apart(self, equation: Equation, group: Group) -> str:
        """Return why ``equation`` cannot join ``group``; "" if it can.

        It repeats the checks of ``join`` in the same order.
        """
        if not group.open:
            return why_single(group.equations[0]) or "its kernel was complete by then"
        if len(group.equations) >= MAX_STATEMENTS or len(group.arrays) >= MAX_ARRAYS:
            return (
                f"one kernel has at most {MAX_STATEMENTS} equations and {MAX_ARRAYS} "
                "arrays"
            )
        primitive = primitive_of(equation)
        if isinstance(primitive.kernel, Reduction):
            return self.why_not_reduced(equation, group)
        ids = self.output_ids(equation, group)
        if ids is None:
            return f"it is over other axes than the kernel's, {list(group.extents)}"
        if not self.level_fits(equation, ids, group):
            if self.is_full(ids, group):
                return "it needs a total, which all threads must have added up before"
            return "it is over some of the kernel's axes only"
        if not self.may_read(equation, group, ids):
            return "it reads other elements of what the kernel writes than its own"
        return ""

    def why_not_reduced(self, equation: Equation, group: Group) -> str:
        """Return why the reduction ``equation`` cannot join ``group``.

        Empty if it can.
        """
        (operand,) = equation.inputs
        if not isinstance(operand, Var):
            return "it reduces a constant"
        ids = self.operand_ids(operand, operand.type.shape, group)
        if ids is None or not self.is_full(ids, group):
            return f"it is over other axes than the kernel's, {list(group.extents)}"
        axes = (ids[axis] for axis in equation.params["axes"])
        reduced = frozenset(i for i in axes if i is not None)
        if group.reduced and group.reduced != reduced:
            return "the kernel reduces other axes"
        if not group.reduced and not self.can_reduce(group):
            return "the kernel has values over some of its axes only"
        if not self.may_read(equation, group, ids):
            return "it reads other elements of what the kernel writes than its own"
        return ""


def why_single(equation: Equation) -> str:
    """Return why ``equation`` is never fused with others; empty if it may be."""
    primitive = primitive_of(equation)
    if isinstance(primitive.kernel, (Contraction, Library)):
        return f"a library computes {primitive.name}"
    if isinstance(primitive.kernel, Control):
        return f"{primitive.name} is a loop or branch of the plan"
    return "" if is_fusible(equation) else f"{primitive.name} has a kernel of its own"
