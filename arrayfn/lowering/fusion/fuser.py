"""The fuser: places each equation of a Program in a group, and finishes the groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from typing_extensions import override

from arrayfn.ir import Equation, Program, Var
from arrayfn.lowering.fusion.groups import (
    AxisIds,
    Group,
    domain_of,
    is_fusible,
    is_reduction,
    moved_ids,
    reads_in_place,
)
from arrayfn.lowering.fusion.merging import MAX_ARRAYS, MAX_STATEMENTS, Merging
from arrayfn.lowering.fusion.repetition import piece_starts
from arrayfn.lowering.fusion.units import FusedGroup, SingleUnit, Unit
from arrayfn.passes.reads import affine_view
from arrayfn.primitives.base import Reduction, has_effect, primitive_of

SIBLING_WINDOW = 24  # latest groups in which a sibling is looked for
CLONE_COST = 8  # relative to an addition, as in kernel forms


def fuse(
    program: Program,
    chains: Iterable[Sequence[Equation]] = (),
    clone_cost: int = CLONE_COST,
    short: int = 0,
) -> tuple[Unit, ...]:
    """Fuse the equations of ``program`` into units, in an order in which they can run.

    ``chains`` are runs of elementwise equations, each of which uses the one before it.
    A chain becomes a unit by itself, so that a product can compute it as its epilogue:
    other units read the chain's result, and do not recompute it. A value is recomputed
    rather than stored where that costs up to ``clone_cost``. A reduction of up to
    ``short`` elements to one value shares a unit with what reads that value. If a unit
    would exceed its limits, unrolled loops are cut into equal pieces.
    """
    chains = tuple(chains)
    units = Fuser(program, chains, clone_cost, short).run()
    if units is None:
        starts = piece_starts(program, MAX_STATEMENTS)
        units = Fuser(program, chains, clone_cost, short, starts).run()
    assert units is not None
    return units


def unfused_units(program: Program) -> tuple[Unit, ...]:
    """Return units of one equation each; views are still read through."""
    # No value is recomputed, whatever it costs.
    units = _Unfused(program, chains=(), clone_cost=-1, short=0).run()
    assert units is not None  # no group grows
    return units


class Fuser(Merging):
    """Puts each equation into a group: with its producers, reductions or siblings."""

    def run(self) -> tuple[Unit, ...] | None:
        """Group all equations; return the units.

        None if a group has reached its limits and no cuts are chosen.
        """
        for equation in self.program.equations:
            if self.piece_starts is None and self.reached_limit:
                return None
            if self.piece_starts is not None and equation in self.piece_starts:
                self.close_groups()
            if affine_view(equation) is not None:
                continue
            is_source = not any(isinstance(a, Var) for a in equation.inputs)
            if not is_fusible(equation):
                self.assign_single(equation)
            elif equation in self.chained:
                if equation in self.chains:
                    self.assign_chain(self.chains[equation])
            elif is_source and not is_reduction(equation):
                # Iota and constants are made where they are used.
                self.sources[equation.outputs[0]] = equation
            else:
                self.assign_sources(equation, only_indexed=True)
                self.assign(equation)
        for atom in self.program.outputs:
            if isinstance(atom, Var):
                self.assign_source(self.reads[atom].base)
        return self.finish()

    def assign_single(self, equation: Equation) -> None:
        """Make a closed group of ``equation``, which is lowered by itself.

        It runs after the readers of what it writes over, and after earlier effects.
        """
        self.assign_sources(equation)
        group = self.new_group(is_open=False)
        group.equations.append(equation)
        self.record(group, equation)
        self.order_after_readers(group, equation)
        if has_effect(equation):
            if self.last_effect is not None:
                self.order(self.last_effect, group)
            self.last_effect = group

    def assign_sources(self, equation: Equation, only_indexed: bool = False) -> None:
        """Make groups for iotas and constants among the operands of ``equation``.

        With ``only_indexed``, only for those that are read through a slice or a
        reversal.
        """
        for atom in equation.inputs:
            if isinstance(atom, Var):
                read = self.reads[atom]
                if not (only_indexed and self.is_plain(read)):
                    self.assign_source(read.base)

    def assign_source(self, var: Var) -> None:
        """Make a group for ``var`` if it is an iota or constant without a group."""
        if var in self.sources and var not in self.producer_group:
            self.assign(self.sources[var])

    def assign(self, equation: Equation) -> None:
        """Add ``equation`` to the first group that it fits, or to a new one.

        Groups of its producers are tried first, then those of its siblings.
        """
        domain = domain_of(equation)
        producers = self.producers(equation)
        for number in producers:
            group = self.groups[number]
            if self.join(equation, group):
                self.merge_others(equation, group, producers)
                return
        for number in self.siblings(equation):
            if self.join(equation, self.groups[number]):
                return
        group = self.new_group(is_open=True)
        group.extents = domain
        if not self.join(equation, group):
            # A value that is needed at two indices is computed once and read twice.
            for base in self.bases(equation):
                self.assign_source(base)
                self.clonable[base] = None
            assert self.join(equation, group)

    def assign_chain(self, chain: Sequence[Equation]) -> None:
        """Make a group of ``chain`` that nothing else joins.

        The chain (see ``fuse``) is kept apart so that it can become the epilogue of a
        product. Equations that do not fit into the group are assigned like any others.
        """
        for equation in chain:
            self.assign_sources(equation)
        group = self.new_group(is_open=True)
        group.extents = domain_of(chain[-1])
        for equation in chain:
            if not self.join(equation, group):
                self.assign(equation)
        group.open = False

    def producers(self, equation: Equation) -> list[int]:
        """Return the open groups that compute an operand, the best to join first.

        First come groups whose value cannot be recomputed, then those with reductions,
        then the latest.
        """
        must_store: dict[int, bool] = {}
        for base in self.bases(equation):
            number = self.producer_group.get(base)
            if number is not None and self.groups[number].open:
                stored = self.clone_arrays(base) is None
                must_store[number] = stored or must_store.get(number, False)
        return sorted(
            must_store,
            key=lambda n: (must_store[n], bool(self.groups[n].reduced), n),
            reverse=True,
        )

    def siblings(self, equation: Equation) -> Iterable[int]:
        """Return the numbers of recent open groups that read the same arrays.

        They have the domain of ``equation``. The latest group comes first.
        """
        numbers: set[int] = set()
        bases = self.bases(equation)
        # A base that is recomputed stands for the arrays that this reads.
        for base in list(bases):
            bases += self.clone_arrays(base) or ()
        for base in bases:
            for number in self.reader_groups.get(base, ())[-4:]:  # the latest readers
                group = self.groups.get(number)
                if (
                    group is not None
                    and group.open
                    and number > self.count - SIBLING_WINDOW
                    and group.extents == domain_of(equation)
                ):
                    numbers.add(number)
        return sorted(numbers, reverse=True)

    def join(self, equation: Equation, group: Group) -> bool:
        """Add ``equation`` to ``group``; return False if it does not fit."""
        if len(group.equations) >= MAX_STATEMENTS or len(group.arrays) >= MAX_ARRAYS:
            self.reached_limit = True
            return False
        primitive = primitive_of(equation)
        if isinstance(primitive.kernel, Reduction):
            return self.join_reduction(equation, group)
        ids = self.output_ids(equation, group)
        if ids is None or not self.level_fits(equation, ids, group):
            return False
        if not self.may_read(equation, group, ids):
            return False
        self.add(equation, group, operand_ids=ids, ids=ids)
        return True

    def add(
        self, equation: Equation, group: Group, operand_ids: AxisIds, ids: AxisIds
    ) -> None:
        """Append ``equation`` to ``group``, after values that it needs recomputed.

        ``operand_ids`` and ``ids`` are the domain axes of the equation's operands and
        of its output.
        """
        for atom in equation.inputs:
            if isinstance(atom, Var):
                self.use(atom, group, operand_ids)
        stage = self.stage(equation, group.stages)
        group.equations.append(equation)
        for var in equation.outputs:
            group.domain_axes[var] = ids
            group.stages[var] = stage
        self.record(group, equation)

    def use(self, atom: Var, group: Group, ids: AxisIds) -> None:
        """Make ``group`` load or recompute ``atom``, unless the group computes it.

        ``ids`` are the domain axes over which the group uses ``atom``.
        """
        read = self.reads[atom]
        base = read.base
        if base in group.domain_axes:
            if not reads_in_place(read, group.domain_axes[base], ids):
                self.read_array(atom, group, ids)
            return
        if not self.is_recomputed(read):
            self.read_array(atom, group, ids)
            return
        equation = self.definitions[base]
        base_ids = moved_ids(read, ids)
        for operand in equation.inputs:
            if isinstance(operand, Var):
                self.use(operand, group, base_ids)
        group.equations.append(equation)
        group.domain_axes[base] = base_ids
        group.stages[base] = 0

    def read_array(self, atom: Var, group: Group, ids: AxisIds) -> None:
        """Record that ``group`` reads ``atom`` from memory, over the axes ``ids``."""
        ids = ids if atom.type.shape else ()
        if group.arrays.setdefault(atom, ids) != ids:
            group.crossing.add(atom)

    def join_reduction(self, equation: Equation, group: Group) -> bool:
        """Add a reduction to ``group``; return False if it does not fit.

        It fits if its operand varies over the whole domain, and if the group reduces
        the same axes or none so far. A reduction of a constant, or of no elements, is
        in a group of its own.
        """
        (operand,) = equation.inputs
        axes: tuple[int, ...] = equation.params["axes"]
        empty = not isinstance(operand, Var) or operand.type.size == 0
        if empty and group.equations:
            return False
        ids = self.operand_ids(operand, operand.type.shape, group)
        if ids is None or not self.is_full(ids, group):
            return False
        reduced = frozenset(i for axis in axes if (i := ids[axis]) is not None)
        if group.reduced and group.reduced != reduced:
            return False
        if not group.reduced and not self.can_reduce(group):
            return False
        if not self.may_read(equation, group, ids):
            return False
        if not reduced:
            # Only axes of extent 1: the value itself, without those axes.
            reduced = group.reduced
        group.reduced = reduced
        group.operands[equation.outputs[0]] = ids
        kept_ids = tuple(i for axis, i in enumerate(ids) if axis not in axes)
        self.add(equation, group, operand_ids=ids, ids=kept_ids)
        return True

    def finish(self) -> tuple[Unit, ...]:
        """Order all groups and remove values that nothing reads; return the units."""
        needed: set[Var] = set(self.outputs)
        units: list[Unit] = []
        for group in reversed(self.sorted_groups()):
            if not group.open and not group.domain_axes:  # made by ``assign_single``
                (equation,) = group.equations
                needed.update(self.bases(equation))
                units.append(SingleUnit(equation))
                continue
            outputs = tuple(
                v
                for v in group.domain_axes
                if v in needed and self.producer_group.get(v) == group.number
            )
            if not outputs:
                continue
            self.prune(group, outputs)
            needed.update(self.reads[atom].base for atom in group.arrays)
            units.append(
                FusedGroup(
                    tuple(group.equations),
                    extents=group.extents,
                    reduced=group.reduced,
                    domain_axes=group.domain_axes,
                    operands=group.operands,
                    outputs=outputs,
                    reason=_reason(group),
                )
            )
        return tuple(reversed(units))

    def prune(self, group: Group, outputs: Sequence[Var]) -> None:
        """Remove equations of ``group`` that its ``outputs`` do not depend on.

        ``outputs`` are the values that other groups, or the caller, read.
        """
        live: set[Var] = set(outputs)
        live_equations: list[Equation] = []
        for equation in reversed(group.equations):
            if any(v in live for v in equation.outputs):
                live_equations.append(equation)
                live.update(self.bases(equation))
        group.equations = live_equations[::-1]
        group.arrays = {
            atom: ids
            for atom, ids in group.arrays.items()
            if self.reads[atom].base in live
        }
        has_reduction = any(is_reduction(eq) for eq in group.equations)
        if not has_reduction:
            group.reduced = frozenset()


class _Unfused(Fuser):
    """Puts each equation into a group of its own."""

    @override
    def assign(self, equation: Equation) -> None:
        """Make a group of ``equation`` that nothing else joins."""
        self.assign_sources(equation)
        group = self.new_group(is_open=True)
        group.extents = domain_of(equation)
        assert self.join(equation, group)
        group.open = False


def _reason(group: Group) -> str:
    """Return a sentence about the fusion of ``group``, which its kernel shows."""
    names = ", ".join(eq.primitive.name for eq in group.equations)
    if not group.reduced:
        return f"one pass over {list(group.extents)}: {names}"
    axes = ", ".join(str(group.extents[i]) for i in sorted(group.reduced))
    return f"reductions over the same axes (extents {axes}): {names}"
