"""Matches the axes of values with the axes of a group's domain."""

from __future__ import annotations

from collections.abc import Mapping

from arrayfn.ir import Atom, Equation, Var
from arrayfn.lowering.fusion.groups import AxisIds, Group, is_reduction
from arrayfn.lowering.fusion.recomputation import Recomputation
from arrayfn.passes.reads import Read


class AxisMatching(Recomputation):
    """Finds the domain axes that an equation's values have in a group."""

    def output_ids(self, equation: Equation, group: Group) -> AxisIds | None:
        """Return the domain axes of an elementwise equation's output in ``group``.

        They follow from those of operands that the group computes. None if the equation
        cannot join the group.
        """
        shape = equation.outputs[0].type.shape
        known: list[int | None] = [None] * len(shape)
        matched = False
        for atom in equation.inputs:
            if not isinstance(atom, Var):
                continue
            read = self.reads[atom]
            ids = group.domain_axes.get(read.base)
            if ids is None:
                continue
            self.match_axes(read, ids, shape, known, group)
            matched = True
        if not matched and group.equations:
            # A sibling: its domain is the group's own, axis by axis.
            return tuple(range(len(shape))) if shape == group.extents else None
        return self.fill(shape, known, group)

    def operand_ids(
        self, operand: Atom, shape: tuple[int, ...], group: Group
    ) -> AxisIds | None:
        """Return the domain axes of a reduction's operand, whose extents are ``shape``.

        If the group computes the operand's base, the axes follow from those of the
        base. Else the reduction may join as a sibling: the group reads the operand over
        its whole domain, or it has the operand's domain and reads an array from which
        the operand is recomputed. None if the reduction cannot join ``group``.
        """
        known: list[int | None] = [None] * len(shape)
        if isinstance(operand, Var):
            read = self.reads[operand]
            ids = group.domain_axes.get(read.base)
            if ids is not None:
                self.match_axes(read, ids, shape, known, group)
                return self.fill(shape, known, group)
            if group.equations:
                known_ids = group.arrays.get(operand)
                if known_ids is not None and self.is_full(known_ids, group):
                    return known_ids
                shares = self.clone_arrays(read.base) or ()
                if shape == group.extents and any(v in group.arrays for v in shares):
                    return tuple(range(len(shape)))
                return None
        elif group.equations:
            return None
        return tuple(range(len(shape)))

    def match_axes(
        self,
        read: Read,
        ids: AxisIds,
        shape: tuple[int, ...],
        matches: list[int | None],
        group: Group,
    ) -> None:
        """Set ``matches`` to the domain axes of a value that is read out of a base.

        ``read`` says how the value's axes index the base, ``ids`` are the base's domain
        axes, and ``shape`` the value's extents. An axis of the value gets the domain
        axis of the base's axis that it indexes, if value, base and domain have the same
        extent there. Others stay None; for example, a base that is recomputed for a
        slice is longer than the domain. ``may_read`` refuses reads that would be wrong.
        """
        for axis_map, domain_axis, extent in zip(
            read.axes, ids, read.base.type.shape, strict=True
        ):
            axis = axis_map.axis
            if extent == 1 or axis is None or domain_axis is None:
                continue
            if shape[axis] == extent == group.extents[domain_axis]:
                matches[axis] = domain_axis

    def fill(
        self, shape: tuple[int, ...], known: list[int | None], group: Group
    ) -> AxisIds | None:
        """Assign free domain axes of equal extent, in order, to the Nones of ``known``.

        ``shape`` has the extents of the value's axes. None if an axis has no match, or
        if two axes have the same one.
        """
        used = {i for i in known if i is not None}
        if len(used) != sum(i is not None for i in known):
            return None
        free = [i for i in range(len(group.extents)) if i not in used]
        for axis, extent in enumerate(shape):
            if known[axis] is not None or extent == 1:
                continue
            choice = next((i for i in free if group.extents[i] == extent), None)
            if choice is None:
                return None
            free.remove(choice)
            known[axis] = choice
        return tuple(known)

    def stage(self, equation: Equation, stages: Mapping[Var, int]) -> int:
        """Return the stage of ``equation``: the number of a pass over reduced axes.

        ``stages`` has those of the values that its group computes. The result of a
        reduction is available from the stage after its operand's.
        """
        operands = [a for a in equation.inputs if isinstance(a, Var)]
        operand_stages = [stages.get(self.reads[a].base, 0) for a in operands]
        return max(operand_stages, default=0) + is_reduction(equation)

    def level_fits(self, equation: Equation, ids: AxisIds, group: Group) -> bool:
        """Whether ``group`` can compute a value over the domain axes ``ids``.

        It must vary over the whole domain, or over exactly the kept axes. What needs
        the result of a reduction to one value is put into another kernel, so that both
        can run on all threads.
        """
        if self.is_full(ids, group):
            flat = group.reduced and self.is_flat(group)
            return not (flat and self.stage(equation, group.stages) > 0)
        if not group.reduced:
            return False
        varying = {i for i in ids if i is not None}
        kept_axes = {i for i in group.kept if group.extents[i] != 1}
        return varying == kept_axes

    def can_reduce(self, group: Group) -> bool:
        """Whether all values of ``group`` so far vary over the whole domain.

        A first reduction may then join it.
        """
        return all(self.is_full(ids, group) for ids in group.domain_axes.values())
