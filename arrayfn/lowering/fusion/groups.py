"""Groups of equations under construction, and the order that they must run in."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field
from typing import Final

from arrayfn.ir import Atom, Equation, Program, Var
from arrayfn.passes.aliasing import overwritten
from arrayfn.passes.reads import Read, affine_view, resolve_reads
from arrayfn.primitives import views
from arrayfn.primitives.base import (
    Convert,
    Reduction,
    Scalar,
    Template,
    View,
    primitive_of,
)
from arrayfn.records import record

MAX_RECOMPUTED_COST: Final = 5
"""The cost of an operation, in additions, up to which it is recomputed."""
MOVED_EQUATIONS: Final = 32
"""The equations of a value up to which its one reader computes it, at any cost."""

AxisIds = tuple[int | None, ...]
"""For each axis of a value, the axis of the domain that it varies along."""


@record
class Group:
    """A unit under construction: it takes equations while it is ``open``.

    ``extents`` are those of the domain, ``reduced`` the domain axes that its reductions
    run over. ``domain_axes`` and ``stages`` are those of each value that the group
    computes; ``arrays`` are the arrays it loads, with the domain axes of each.
    """

    number: int
    open: bool
    extents: tuple[int, ...] = ()
    reduced: frozenset[int] = frozenset()
    equations: list[Equation] = field(default_factory=list)
    domain_axes: dict[Var, AxisIds] = field(default_factory=dict)
    stages: dict[Var, int] = field(default_factory=dict)
    arrays: dict[Var, AxisIds] = field(default_factory=dict)
    # The domain axes of what each reduction reduces, by the reduction's result.
    operands: dict[Var, AxisIds] = field(default_factory=dict)
    crossing: set[Var] = field(default_factory=set)  # arrays read along several axes
    ancestors: int = 0  # bit set of the groups it needs, directly or not
    needs: set[int] = field(default_factory=set)  # groups it needs directly
    needed_by: set[int] = field(default_factory=set)  # and those that need it

    @property
    def kept(self) -> frozenset[int]:
        """The domain axes that are not reduced."""
        return frozenset(range(len(self.extents))) - self.reduced


class Groups:
    """The groups of a Program under construction, the arrays of each, and their order.

    Attributes:
        reached_limit: whether a group was refused more equations.
        chains: runs of elementwise equations that get a group each (see ``fuse``), by
            the last equation of each.
        chained: all equations of ``chains``.
        reads: the array and index map behind each Var.
        position: the number of each equation in the Program.
        groups: the groups by number.
        definitions: the equation that makes each Var.
        outputs: the Program's outputs.
        clone_cost: the cost up to which a value is recomputed, not stored.
        short: the number of elements up to which a reduction to one value is in a
            group with what reads that value: one thread or block computes both.
        piece_starts: equations at which all groups are closed (see ``repetition``).
        producer_group: the number of the group that makes an array.
        reader_groups: the numbers of the groups that read an array.
        sources: iotas and constants, which each group computes for itself.
        changed: arrays that some equation writes over.
        moved: values that their reader computes, if it is in another group.
        values_of_bytes: values computed elementwise from arrays of bytes only.
        clonable: the answers of ``Recomputation.clone_arrays``.
        views_of: the bases that share the memory of a base (``same_memory``).
        kept: arrays that are in memory in any case, since a library reads them.
        count: the number of the next group.
        closed: how many groups, from the first, take no more equations.
        last_effect: the last group with an effect, which later ones must follow.
    """

    def __init__(
        self,
        program: Program,
        chains: Iterable[Sequence[Equation]],
        clone_cost: int,
        short: int,
        piece_starts: AbstractSet[Equation] | None = None,
    ) -> None:
        """Begin without groups; the arguments are attributes of the class."""
        self.program = program
        self.clone_cost = clone_cost
        self.short = short
        self.piece_starts = piece_starts
        self.reached_limit = False
        self.chains = {chain[-1]: chain for chain in chains}
        self.chained = {eq for chain in self.chains.values() for eq in chain}
        self.reads = resolve_reads(program)
        self.position = {eq: k for k, eq in enumerate(program.equations)}
        self.groups: dict[int, Group] = {}
        self.producer_group: dict[Var, int] = {}
        self.reader_groups: dict[Var, list[int]] = {}
        self.sources: dict[Var, Equation] = {}
        self.definitions = program.definitions()
        self.values_of_bytes = _values_of_bytes(program)
        self.outputs = {a for a in program.outputs if isinstance(a, Var)}
        self.clonable: dict[Var, list[Var] | None] = {}
        self.views_of = self.same_memory()
        self.changed = {
            view
            for eq in program.equations
            for number in overwritten(eq)
            if isinstance(atom := eq.inputs[number], Var)
            for view in self.views_of[self.reads[atom].base]
        }
        self.kept = {
            self.reads[atom].base
            for eq in program.equations
            if affine_view(eq) is None and not is_fusible(eq)
            for atom in eq.inputs
            if isinstance(atom, Var)
        }
        self.moved = self.moved_values()
        self.count = 0
        self.closed = 0
        self.last_effect: Group | None = None

    def new_group(self, *, is_open: bool) -> Group:
        """Begin a group; only one that ``is_open`` takes equations later."""
        group = Group(self.count, is_open)
        self.groups[group.number] = group
        self.count += 1
        return group

    def close_groups(self) -> None:
        """Close all groups: later equations join none of them.

        Groups with numbers below ``closed`` are closed already.
        """
        for number in range(self.closed, self.count):
            if number in self.groups:
                self.groups[number].open = False
        self.closed = self.count

    def record(self, group: Group, equation: Equation) -> None:
        """Record ``equation`` in ``group``, and the arrays that it makes and reads."""
        for var in equation.outputs:
            self.producer_group[var] = group.number
        arrays = [self.reads[atom].base for atom in group.arrays]
        for base in [*self.bases(equation), *arrays]:
            number = self.producer_group.get(base)
            if number != group.number:
                self.reader_groups.setdefault(base, []).append(group.number)
                # What is computed again here need not be there yet: it may be later.
                if number is not None and (
                    base not in group.domain_axes or base in arrays
                ):
                    self.order(self.groups[number], group)

    def moved_values(self) -> set[Var]:
        """Return values that their only reader should compute instead of loading them.

        They are computed from small arrays only, by at most ``MOVED_EQUATIONS``
        equations. One equation reads them, and reads no element twice.
        """
        counts: dict[Var, int] = {}  # of the equations that compute a value
        for equation in self.program.equations:
            if len(equation.outputs) != 1 or not is_fusible(equation):
                continue
            (output,) = equation.outputs
            count = 1
            for base in self.bases(equation):
                count += (
                    0 if is_small(base, output) else counts.get(base, MOVED_EQUATIONS)
                )
            if count <= MOVED_EQUATIONS and not is_reduction(equation):
                counts[output] = count
        if not counts:
            return set()
        readers: Counter[Var] = Counter()
        for equation in self.program.equations:
            if affine_view(equation) is None:
                readers.update(set(self.bases(equation)).intersection(counts))
                for atom in equation.inputs:
                    # A broadcast reads elements twice, a slice not all: no single use.
                    if isinstance(atom, Var) and atom.type.size != (
                        self.reads[atom].base.type.size
                    ):
                        readers[self.reads[atom].base] += 2
        return {var for var in counts if readers[var] == 1}

    def same_memory(self) -> dict[Var, list[Var]]:
        """Return for each base array of a read all base arrays that share its memory.

        A view that is not affine, as a reshape that splits or merges axes, is a base of
        its own.
        """
        aliases_of: dict[Var, list[Var]] = {}
        for read in self.reads.values():
            aliases_of.setdefault(read.base, [read.base])
        for equation in self.program.equations:
            primitive = primitive_of(equation)
            operand = equation.inputs[0] if equation.inputs else None
            if (
                isinstance(primitive.kernel, View)
                and isinstance(operand, Var)
                and affine_view(equation) is None
                and not is_fusible(equation)
            ):
                (view,) = equation.outputs
                aliases = aliases_of[self.reads[operand].base]
                aliases.append(view)
                aliases_of[view] = aliases
        return aliases_of

    def order_after_readers(self, group: Group, equation: Equation) -> None:
        """Order ``group`` after the readers of what ``equation`` writes over."""
        for number in overwritten(equation):
            atom = equation.inputs[number]
            assert isinstance(atom, Var)
            for view in self.views_of[self.reads[atom].base]:
                for reader in self.reader_groups.get(view, ()):
                    if reader != group.number:
                        self.order(self.groups[reader], group)

    def order(self, first: Group, second: Group) -> None:
        """Record that ``second`` must run after ``first``.

        All groups after ``second`` get ``first`` and its ancestors as ancestors.
        """
        # ``ancestors`` is a bit set of groups' numbers.
        if second.ancestors >> first.number & 1:
            return
        second.needs.add(first.number)
        first.needed_by.add(second.number)
        earlier = first.ancestors | 1 << first.number
        for group in self.later(second):
            group.ancestors |= earlier

    def later(self, first: Group) -> list[Group]:
        """Return ``first`` and the groups that depend on it, directly or indirectly."""
        later_groups = {first.number: first}
        pending = [first]
        while pending:
            for number in pending.pop().needed_by:
                if number not in later_groups:
                    later_groups[number] = self.groups[number]
                    pending.append(self.groups[number])
        return list(later_groups.values())

    def is_between(self, first: Group, second: Group) -> bool:
        """Whether some group must run after ``first`` and before ``second``.

        The two cannot become one group then: it would run before and after that one.
        """
        return any(
            second.ancestors >> number & 1
            for number in first.needed_by
            if number != second.number
        )

    def absorb(self, other: Group, group: Group) -> None:
        """Replace ``other`` by ``group`` in the order of groups, and delete it.

        ``group`` gets the groups that ``other`` needs, and those that need it.
        """
        bit, own = 1 << other.number, 1 << group.number
        merged_numbers = {other.number, group.number}
        group.ancestors = (group.ancestors | other.ancestors) & ~(bit | own)
        for number in other.needs - merged_numbers:
            self.groups[number].needed_by.discard(other.number)
            self.groups[number].needed_by.add(group.number)
        for number in other.needed_by - merged_numbers:
            self.groups[number].needs.discard(other.number)
            self.groups[number].needs.add(group.number)
        group.needs = (group.needs | other.needs) - merged_numbers
        group.needed_by = (group.needed_by | other.needed_by) - merged_numbers
        for later in self.later(group)[1:]:
            later.ancestors = (later.ancestors & ~bit) | group.ancestors | own
        del self.groups[other.number]

    def bases(self, equation: Equation) -> list[Var]:
        """Return the arrays that the operands of ``equation`` are views of."""
        return [self.reads[a].base for a in equation.inputs if isinstance(a, Var)]

    def in_program_order(self, equations: list[Equation]) -> list[Equation]:
        """Sort ``equations`` by their positions in the Program."""
        return sorted(equations, key=self.position.__getitem__)

    def sorted_groups(self) -> list[Group]:
        """Return the groups in topological order, those with few ancestors first.

        A collective comes right after what it needs, and what needs its result after
        all that does not: so other steps can hide it.
        """
        groups = sorted(self.groups.values(), key=lambda g: g.number)
        groups.sort(key=lambda g: g.ancestors.bit_count())
        collectives = 0
        for group in groups:
            primitive = primitive_of(group.equations[0])
            collectives |= primitive.is_collective << group.number
        if not collectives:
            return groups
        # Collectives first, and last what needs their results.
        groups.sort(key=lambda g: g.ancestors & collectives != 0)
        groups.sort(key=lambda g: not collectives >> g.number & 1)
        waiting = {g.number: g for g in groups}
        order: list[Group] = []
        done = 0
        while waiting:
            # The first group all of whose ancestors are done.
            group = next(g for g in waiting.values() if not g.ancestors & ~done)
            order.append(waiting.pop(group.number))
            done |= 1 << group.number
        return order

    def is_full(self, ids: Sequence[int | None], group: Group) -> bool:
        """Whether a value over the domain axes ``ids`` varies over the whole domain.

        Axes of extent 1 do not count.
        """
        varying = {i for i in ids if i is not None}
        return all(i in varying or n == 1 for i, n in enumerate(group.extents))

    def is_flat(self, group: Group) -> bool:
        """Whether the group's reductions give one value each, of many elements.

        Few elements, which one thread adds up, do not count.
        """
        if math.prod(group.extents) <= self.short:
            return False
        return math.prod(group.extents[i] for i in group.kept) == 1


def is_fusible(equation: Equation) -> bool:
    """Whether ``equation`` is elementwise, a copy, an iota, or a reduction."""
    primitive = primitive_of(equation)
    form = primitive.kernel
    if isinstance(form, Template):
        return form.name == "iota"
    if isinstance(form, View):
        # A broadcast literal, or a copy.
        return primitive is views.relayout or not isinstance(equation.inputs[0], Var)
    return isinstance(form, (Scalar, Convert, Reduction))


def reads_in_place(read: Read, base_ids: AxisIds, ids: AxisIds) -> bool:
    """Whether a value reads its base at the index at which the base is computed.

    ``x + 1`` and ``x.T + 1`` do, over the axes (0, 1) and (1, 0); ``x[::-1] + 1`` does
    not. The value varies over the domain axes ``ids``; its base, computed in the same
    group, over ``base_ids``. ``read`` says which elements of the base it reads.
    """
    axes = zip(read.axes, base_ids, read.base.type.shape, strict=True)
    return all(
        extent == 1
        or (
            m.axis is not None
            and (m.scale, m.offset) == (1, 0)
            and ids[m.axis] == base_axis
        )
        for m, base_axis, extent in axes
    )


def moved_ids(read: Read, ids: AxisIds) -> AxisIds:
    """Return the domain axes of a read's base, whose reader has the axes ``ids``."""
    return tuple(None if m.axis is None else ids[m.axis] for m in read.axes)


def _values_of_bytes(program: Program) -> set[Var]:
    """Return inputs and constants with 1-byte elements, and values computed from them.

    Small arrays, which may be broadcast, do not count.
    """
    arrays = (*program.inputs, *program.constants)
    byte_values = {v for v in arrays if v.type.dtype.itemsize == 1}
    broadcast: set[Atom] = set()
    for equation in program.equations if byte_values else ():
        if isinstance(primitive_of(equation).kernel, (Scalar, Convert, View)):
            size = equation.outputs[0].type.size
            large = [a for a in equation.inputs if a.type.size * 8 > size]
            large = [a for a in large if a not in broadcast]
            if not large:
                broadcast.update(equation.outputs)
            elif all(a in byte_values for a in large):
                byte_values.update(equation.outputs)
    return byte_values


def domain_of(equation: Equation) -> tuple[int, ...]:
    """Return the extents of the domain of ``equation``: a reduction's operand's."""
    primitive = primitive_of(equation)
    if isinstance(primitive.kernel, Reduction):
        return equation.inputs[0].type.shape
    return equation.outputs[0].type.shape


def is_reduction(equation: Equation) -> bool:
    """Whether ``equation`` reduces axes."""
    return isinstance(primitive_of(equation).kernel, Reduction)


def is_small(var: Var, value: Var) -> bool:
    """Whether what ``value`` reads of ``var`` counts little beside ``value``."""
    return var.type.size * 8 <= value.type.size


def recompute_cost(equation: Equation, most: float = MAX_RECOMPUTED_COST) -> int | None:
    """Return the cost of recomputing an elementwise equation.

    None if it exceeds ``most``.
    """
    kernel = primitive_of(equation).kernel
    if isinstance(kernel, Convert):
        return 1
    if isinstance(kernel, Scalar) and kernel.cost <= most:
        return kernel.cost
    return None
