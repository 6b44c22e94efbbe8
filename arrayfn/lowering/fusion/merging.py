"""Merges the groups of an equation's producers into the group it has joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from arrayfn.ir import Equation, Var
from arrayfn.lowering.fusion.axes import AxisMatching
from arrayfn.lowering.fusion.groups import (
    AxisIds,
    Group,
    is_reduction,
    reads_in_place,
)

MAX_STATEMENTS = 160  # of a group, so that its kernel compiles quickly
MAX_ARRAYS = 40  # that a group reads or writes, each a kernel argument


class Merging(AxisMatching):
    """Merges groups that compute operands of the same equation."""

    def merge_others(
        self, equation: Equation, group: Group, producers: Sequence[int]
    ) -> None:
        """Merge the groups numbered ``producers`` into ``group``, where they fit.

        They compute operands of ``equation``, which has just joined ``group``.
        """
        for number in producers:
            other = self.groups.get(number)
            if other is not None and other is not group and other.open:
                self.merge(equation, other, group)

    def merge(self, equation: Equation, other: Group, group: Group) -> None:
        """Move the equations of ``other`` into ``group``, if that is allowed.

        ``equation``, a member of ``group``, reads a value of ``other``. It is allowed
        if no group must run between the two, their axes correspond, and the merged
        group computes and loads each value at one index.
        """
        if (
            len(other.equations) + len(group.equations) > MAX_STATEMENTS
            or len(other.arrays) + len(group.arrays) > MAX_ARRAYS
        ):
            self.reached_limit = True
            return
        if self.is_between(other, group) or self.is_between(group, other):
            return
        ids = self.correspondence(equation, other, group)
        if ids is None:
            return

        def moved(axes: AxisIds) -> AxisIds:
            """Return domain axes of ``other`` as axes of ``group``."""
            return tuple(None if i is None else ids[i] for i in axes)

        domain_axes = dict(group.domain_axes)
        if any(
            domain_axes.setdefault(v, moved(axes)) != moved(axes)
            for v, axes in other.domain_axes.items()
        ):
            return
        arrays = self.merged_arrays(other, group, domain_axes, moved)
        if arrays is None:
            return
        members = dict.fromkeys([*other.equations, *group.equations])
        equations = self.in_program_order(list(members))
        stages = self.stages_of(equations)
        # What needs the total of a flat reduction gets another kernel: ``level_fits``.
        if other.reduced and self.is_flat(group):
            element_values = [
                v for v, axes in domain_axes.items() if self.is_full(axes, group)
            ]
            if any(stages[v] for v in element_values):
                return
        group.equations, group.stages = equations, stages
        group.domain_axes, group.arrays = domain_axes, arrays
        group.operands.update((v, moved(a)) for v, a in other.operands.items())
        group.crossing |= other.crossing
        for var in other.domain_axes:
            if self.producer_group.get(var) == other.number:
                self.producer_group[var] = group.number
        for numbers in self.reader_groups.values():
            if other.number in numbers:
                numbers[:] = [group.number if n == other.number else n for n in numbers]
        self.absorb(other, group)

    def merged_arrays(
        self,
        other: Group,
        group: Group,
        domain_axes: dict[Var, AxisIds],
        moved: Callable[[AxisIds], AxisIds],
    ) -> dict[Var, AxisIds] | None:
        """Return the arrays that the merged group loads, with their domain axes.

        None if one of them is computed in the group, but at another index.
        ``domain_axes`` are those of all values, and ``moved`` turns axes of ``other``
        into those of ``group``. An array that the two groups load over different axes
        is added to ``group.crossing``.
        """
        arrays = dict(group.arrays)
        for atom, axes in other.arrays.items():
            if arrays.setdefault(atom, moved(axes)) != moved(axes):
                group.crossing.add(atom)
        # What one group computes at the index at which the other loads it is no load.
        for atom, axes in list(arrays.items()):
            read = self.reads[atom]
            if read.base not in domain_axes:
                continue
            crosses = atom in group.crossing or atom in other.crossing
            if not crosses and reads_in_place(read, domain_axes[read.base], axes):
                del arrays[atom]
            elif self.producer_group.get(read.base) in (group.number, other.number):
                return None
        return arrays

    def stages_of(self, equations: Sequence[Equation]) -> dict[Var, int]:
        """Return the stage of each value that ``equations``, in order, compute.

        A stage is one pass over the reduced axes, from 0.
        """
        stages: dict[Var, int] = {}
        for equation in equations:
            stage = self.stage(equation, stages)
            stages.update(dict.fromkeys(equation.outputs, stage))
        return stages

    def correspondence(
        self, equation: Equation, other: Group, group: Group
    ) -> dict[int, int] | None:
        """Return the axis of ``group`` for each axis of ``other``, or None.

        ``equation``, a member of ``group``, reads a value of ``other``, which relates
        their axes. None if it reads a slice or a transpose, or if an axis has no match.
        """
        own = group.domain_axes[equation.outputs[0]]
        if is_reduction(equation):
            return None
        if other.reduced:
            return self.same_reduction(equation, other, group)
        if not self.is_full(own, group):
            return None
        # The value of ``other`` has the shape of the equation's, so axis k of one is
        # axis k of the other.
        for atom in equation.inputs:
            if not isinstance(atom, Var):
                continue
            read = self.reads[atom]
            theirs = other.domain_axes.get(read.base)
            if theirs is None:
                continue
            is_same_shape = read.base.type.shape == equation.outputs[0].type.shape
            if not is_same_shape or not read.is_identity:
                return None
            pairs = {
                a: b
                for a, b in zip(theirs, own, strict=True)
                if a is not None and b is not None
            }
            if len(pairs) != sum(n != 1 for n in other.extents):
                return None
            return self.with_free_axes(pairs, other, group)
        return None

    def with_free_axes(
        self, pairs: dict[int, int], other: Group, group: Group
    ) -> dict[int, int] | None:
        """Extend ``pairs`` to all axes of ``other``: map them to axes of ``group``.

        An axis that ``pairs`` lacks gets the first free axis of ``group`` with the same
        extent. None if there is none.
        """
        free = [i for i in range(len(group.extents)) if i not in pairs.values()]
        for axis, extent in enumerate(other.extents):
            if axis not in pairs:
                match = next((i for i in free if group.extents[i] == extent), None)
                if match is None:
                    return None
                free.remove(match)
                pairs[axis] = match
        return pairs

    def same_reduction(
        self, equation: Equation, other: Group, group: Group
    ) -> dict[int, int] | None:
        """Return the identity map of axes, if both groups reduce the same domain alike.

        None if they do not, or if ``equation`` reads ``other`` at another index.
        """
        if (other.extents, other.reduced) != (group.extents, group.reduced):
            return None
        own = group.domain_axes[equation.outputs[0]]
        for atom in equation.inputs:
            if isinstance(atom, Var):
                read = self.reads[atom]
                theirs = other.domain_axes.get(read.base)
                if theirs is not None and not reads_in_place(read, theirs, own):
                    return None
        return {i: i for i in range(len(group.extents))}
