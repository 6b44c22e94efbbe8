"""Groups that one equation brings together become one."""

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

MAX_STATEMENTS = 160
MAX_ARRAYS = 40


class Merging(AxisMatching):
    """The other producers of an equation move into the group that it has joined."""

    def merge_others(
        self, equation: Equation, group: Group, producers: Sequence[int]
    ) -> None:
        for number in producers:
            other = self.groups.get(number)
            if other is not None and other is not group and other.open:
                self.merge(equation, other, group)

    def merge(self, equation: Equation, other: Group, group: Group) -> None:
        """Move ``other``, a producer of ``equation``, into ``group``, if it may be."""
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
            return tuple(None if i is None else ids[i] for i in axes)

        maps = dict(group.maps)
        if any(maps.setdefault(v, moved(a)) != moved(a) for v, a in other.maps.items()):
            return
        arrays = self.merged_arrays(other, group, maps, moved)
        if arrays is None:
            return
        both = dict.fromkeys([*other.equations, *group.equations])
        equations = self.in_program_order(list(both))
        stages = self.restaged(equations)
        if other.reduced and self.is_flat(group):
            whole = [v for v, axes in maps.items() if self.is_full(axes, group)]
            if any(stages[v] for v in whole):
                return
        group.equations, group.maps, group.stages = equations, maps, stages
        group.arrays = arrays
        group.operands.update((v, moved(a)) for v, a in other.operands.items())
        group.crossing |= other.crossing
        for var in other.maps:
            if self.made_in.get(var) == other.number:
                self.made_in[var] = group.number
        for numbers in self.read_in.values():
            if other.number in numbers:
                numbers[:] = [group.number if n == other.number else n for n in numbers]
        self.absorb(other, group)

    def merged_arrays(
        self,
        other: Group,
        group: Group,
        maps: dict[Var, AxisIds],
        moved: Callable[[AxisIds], AxisIds],
    ) -> dict[Var, AxisIds] | None:
        """The arrays that both read; None if one is computed there at another index."""
        arrays = dict(group.arrays)
        for atom, axes in other.arrays.items():
            if arrays.setdefault(atom, moved(axes)) != moved(axes):
                group.crossing.add(atom)
        for atom, axes in list(arrays.items()):
            read = self.reads[atom]
            if read.base not in maps:
                continue
            crosses = atom in group.crossing or atom in other.crossing
            if not crosses and reads_in_place(read, maps[read.base], axes):
                del arrays[atom]
            elif self.made_in.get(read.base) in (group.number, other.number):
                return None
        return arrays

    def restaged(self, equations: Sequence[Equation]) -> dict[Var, int]:
        """The stages of members that are ``equations``, in order."""
        stages: dict[Var, int] = {}
        for equation in equations:
            before = [
                stages.get(self.reads[a].base, 0)
                for a in equation.inputs
                if isinstance(a, Var)
            ]
            stage = max(before, default=0) + is_reduction(equation)
            stages.update(dict.fromkeys(equation.outputs, stage))
        return stages

    def correspondence(
        self, equation: Equation, other: Group, group: Group
    ) -> dict[int, int] | None:
        """Which axis of ``group`` each axis of ``other`` is, seen from ``equation``."""
        own = group.maps[equation.outputs[0]]
        if is_reduction(equation):
            return None
        if other.reduced:
            return self.same_reduction(equation, other, group)
        if not self.is_full(own, group):
            return None
        for atom in equation.inputs:
            if not isinstance(atom, Var):
                continue
            read = self.reads[atom]
            theirs = other.maps.get(read.base)
            if theirs is None:
                continue
            if read.base.type.shape != equation.outputs[0].type.shape:
                return None
            if not read.is_identity:
                return None
            pairs = {
                a: b
                for a, b in zip(theirs, own, strict=True)
                if a is not None and b is not None
            }
            if len(pairs) != sum(n != 1 for n in other.extents):
                return None
            spare = [i for i in range(len(group.extents)) if i not in pairs.values()]
            for axis, extent in enumerate(other.extents):
                if axis not in pairs:
                    match = next((i for i in spare if group.extents[i] == extent), None)
                    if match is None:
                        return None
                    spare.remove(match)
                    pairs[axis] = match
            return pairs
        return None

    def same_reduction(
        self, equation: Equation, other: Group, group: Group
    ) -> dict[int, int] | None:
        """The identity, if both reduce one domain alike and ``equation`` sees it so."""
        if (other.extents, other.reduced) != (group.extents, group.reduced):
            return None
        own = group.maps[equation.outputs[0]]
        for atom in equation.inputs:
            if isinstance(atom, Var):
                read = self.reads[atom]
                theirs = other.maps.get(read.base)
                if theirs is not None and not reads_in_place(read, theirs, own):
                    return None
        return {i: i for i in range(len(group.extents))}
