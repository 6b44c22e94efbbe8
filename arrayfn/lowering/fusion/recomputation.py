"""Values that are cheaper to recompute than to store and read back."""

from __future__ import annotations

import math
from collections.abc import Iterable

from arrayfn.ir import Equation, Var
from arrayfn.lowering.fusion.groups import (
    MAX_RECOMPUTED_COST,
    AxisIds,
    Group,
    Groups,
    is_fusible,
    is_small,
    moved_ids,
    reads_in_place,
    recompute_cost,
)
from arrayfn.passes.reads import Read

CLONE_ARRAYS = 2  # full-size arrays that a recomputed value may be computed from


class Recomputation(Groups):
    """Groups that may recompute values of other groups: *clones*."""

    def is_plain(self, read: Read) -> bool:
        """Whether ``read`` only permutes and broadcasts axes: it is no slice."""
        return read.is_identity or all(
            m.scale == 1 and m.offset == 0 and (m.axis is not None or n == 1)
            for m, n in zip(read.axes, read.base.type.shape, strict=True)
        )

    def is_recomputed(self, read: Read) -> bool:
        """Whether a group without the base of ``read`` recomputes it."""
        if read.base in self.sources and read.base not in self.producer_group:
            return True
        return self.is_plain(read) and self.clone_arrays(read.base) is not None

    def clone_arrays(self, base: Var) -> list[Var] | None:
        """Return the arrays from which ``base`` is recomputed; None if it is stored.

        These exist in any case, or are small (results of reductions).
        """
        if base not in self.clonable:
            self.clonable[base] = self.find_clone(base)
        return self.clonable[base]

    def find_clone(self, base: Var) -> list[Var] | None:
        """Return the arrays from which ``base`` would be recomputed.

        None if recomputing costs more than ``clone_cost``, or would read more large
        arrays than storing and loading saves. What is computed only from arrays of
        bytes may cost as much for each byte that it would take in memory. A value that
        is computed from small arrays only and read once may cost anything: it is then
        computed by its reader, and nowhere else.
        """
        if base in self.moved and base not in self.kept:
            return self.walk_back(base, moved=True)
        return self.walk_back(base)

    def walk_back(self, base: Var, *, moved: bool = False) -> list[Var] | None:
        """Walk back from ``base`` to the arrays from which it would be recomputed.

        Values on the way that are small, stored in any case or too costly become such
        arrays; other values are recomputed, too. None if the sum of the costs is above
        ``clone_cost`` (times the bytes of an element for what is computed from bytes),
        if there are too many large arrays, or if a value is sliced. A ``moved`` value
        may cost anything, but may be computed from small arrays only.
        """
        if base in self.outputs or self.producer_group.get(base) is None:
            return None
        times = base.type.dtype.itemsize if base in self.values_of_bytes else 1
        limit = math.inf if moved else times * self.clone_cost
        cost, arrays, pending = 0, list[Var](), [base]
        seen: set[Var] = set()
        while pending:
            var = pending.pop()
            if var in seen:
                continue
            seen.add(var)
            if var is not base and var in self.changed:
                # It may be read from memory, where it is another value by then.
                return None
            if var in self.sources and var not in self.producer_group:
                continue
            var_is_small = is_small(var, base)
            price = self.price(var, moved)
            if var is not base and (
                var_is_small or price is None or var in self.outputs
            ):
                if not var_is_small and not self.is_stored(var):
                    return None
                arrays.append(var)
                continue
            if price is None:
                return None
            cost += price
            if cost > limit or self.large_count(arrays, base) > CLONE_ARRAYS:
                return None
            operands = [
                self.reads[atom]
                for atom in self.definitions[var].inputs
                if isinstance(atom, Var)
            ]
            if not all(map(self.is_plain, operands)):
                return None
            pending += (read.base for read in operands)
        most = 0 if moved else 1 if base in self.kept else CLONE_ARRAYS
        return arrays if self.large_count(arrays, base) <= most else None

    def price(self, var: Var, moved: bool) -> int | None:
        """Return the cost of recomputing ``var`` from its operands.

        None if ``var`` must be read from memory. If it is recomputed for a ``moved``
        value, what only that value reads may cost anything.
        """
        equation = self.definitions.get(var)
        if equation is None or equation in self.chained:
            return None
        limit = math.inf if moved and var in self.moved else MAX_RECOMPUTED_COST
        return recompute_cost(equation, limit)

    def is_stored(self, var: Var) -> bool:
        """Whether ``var`` is in memory in any case."""
        equation = self.definitions.get(var)
        if equation is None or equation in self.chained or var in self.outputs:
            return True
        return not is_fusible(equation)

    def large_count(self, arrays: Iterable[Var], base: Var) -> int:
        """Return how many of ``arrays`` are not small beside ``base``."""
        return sum(not is_small(v, base) for v in arrays)

    def may_read(self, equation: Equation, group: Group, ids: AxisIds) -> bool:
        """Whether the arrays that ``equation`` would load in ``group`` exist by then.

        ``ids`` are the domain axes of its value. An array does not exist yet if the
        group itself, a later unit, or no unit so far computes it. A value that is used
        at the index at which the group computes it, or that is recomputed, is not
        loaded.
        """
        recomputed: dict[Var, AxisIds] = {}
        for atom in equation.inputs:
            if not isinstance(atom, Var):
                continue
            for array in self.arrays_read(atom, group, ids, recomputed):
                number = self.producer_group.get(array)
                if number is None and array in self.sources:
                    return False
                if number == group.number:
                    return False
                # A group that comes after this one, by its bit set of ancestors.
                if (
                    number is not None
                    and self.groups[number].ancestors >> group.number & 1
                ):
                    return False
        return True

    def arrays_read(
        self, atom: Var, group: Group, ids: AxisIds, recomputed: dict[Var, AxisIds]
    ) -> Iterable[Var]:
        """Yield the arrays that ``group`` would load to use ``atom``.

        ``ids`` are the domain axes that it varies over. ``recomputed`` collects the
        values that it would compute again, with their axes.
        """
        read = self.reads[atom]
        base = read.base
        axes_here = group.domain_axes.get(base, recomputed.get(base))
        if axes_here is not None:
            if not reads_in_place(read, axes_here, ids):
                yield base
        elif not self.is_recomputed(read):
            yield base
        else:
            base_ids = moved_ids(read, ids)
            for operand in self.definitions[base].inputs:
                if isinstance(operand, Var):
                    yield from self.arrays_read(operand, group, base_ids, recomputed)
            recomputed[base] = base_ids
