"""Groups of equations under construction, and the order that they must run in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from arrayfn.ir import Equation, Program, Var
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

AxisIds = tuple[int | None, ...]
"""For each axis of a value, the axis of the domain that it varies along."""


@dataclass
class Group:
    """A unit under construction. ``open`` groups can take equations."""

    number: int
    open: bool
    extents: tuple[int, ...] = ()
    reduced: frozenset[int] = frozenset()
    equations: list[Equation] = field(default_factory=list)
    maps: dict[Var, AxisIds] = field(default_factory=dict)
    stages: dict[Var, int] = field(default_factory=dict)
    arrays: dict[Var, AxisIds] = field(default_factory=dict)
    # The domain axes of what each reduction reduces, by the reduction's result.
    operands: dict[Var, AxisIds] = field(default_factory=dict)
    crossing: set[Var] = field(default_factory=set)  # arrays read along several axes
    before: int = 0  # bit set of the groups it needs, directly or not
    needs: set[int] = field(default_factory=set)  # groups it needs directly
    needed_by: set[int] = field(default_factory=set)  # and those that need it

    @property
    def kept(self) -> frozenset[int]:
        return frozenset(range(len(self.extents))) - self.reduced


class Groups:
    """The groups of a Program so far, what each makes and reads, and their order.

    ``chains`` are equations that a group of their own is for. What may be computed
    again costs up to ``clone_cost``; a row of up to ``short`` elements is one thread's,
    or one block's. No group goes on at the equations ``cuts``. ``made_in`` and
    ``read_in`` say which groups make and read an array; ``sources`` are made where they
    are used; ``changed`` are arrays that some equation writes over.
    """

    def __init__(
        self,
        program: Program,
        chains: Iterable[Sequence[Equation]],
        clone_cost: int,
        short: int,
        cuts: AbstractSet[Equation] | None = None,
    ) -> None:
        self.program = program
        self.clone_cost = clone_cost
        self.short = short
        self.cuts = cuts
        self.reached_limit = False  # whether a group was refused more equations
        self.chains = {chain[-1]: chain for chain in chains}
        self.chained = {eq for chain in self.chains.values() for eq in chain}
        self.reads = resolve_reads(program)
        self.position = {eq: k for k, eq in enumerate(program.equations)}
        self.groups: dict[int, Group] = {}
        self.made_in: dict[Var, int] = {}
        self.read_in: dict[Var, list[int]] = {}
        self.sources: dict[Var, Equation] = {}
        self.makers = {v: eq for eq in program.equations for v in eq.outputs}
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
        # What is in memory in any case: a library reads it.
        self.kept = {
            self.reads[atom].base
            for eq in program.equations
            if affine_view(eq) is None and not is_fusible(eq)
            for atom in eq.inputs
            if isinstance(atom, Var)
        }
        self.count = 0
        self.closed = 0  # how many groups, from the first, take no more equations
        self.last_effect: Group | None = None

    def new_group(self, equation: Equation, *, is_open: bool) -> Group:
        group = Group(self.count, is_open)
        self.groups[group.number] = group
        self.count += 1
        return group

    def close_groups(self) -> None:
        """Close all groups: later equations join none of them."""
        for number in range(self.closed, self.count):
            if number in self.groups:
                self.groups[number].open = False
        self.closed = self.count

    def note(self, group: Group, equation: Equation) -> None:
        """Record ``equation`` in ``group``, and the arrays that it makes and reads."""
        for var in equation.outputs:
            self.made_in[var] = group.number
        arrays = [self.reads[atom].base for atom in group.arrays]
        for base in [*self.bases(equation), *arrays]:
            number = self.made_in.get(base)
            if number != group.number:
                self.read_in.setdefault(base, []).append(group.number)
                # What is computed again here need not be there yet: it may be later.
                if number is not None and (base not in group.maps or base in arrays):
                    self.order(self.groups[number], group)

    def same_memory(self) -> dict[Var, list[Var]]:
        """For each base of a read, the bases that lie in the same memory.

        A view that is not affine, as a reshape that splits or merges axes, is a base of
        its own.
        """
        found: dict[Var, list[Var]] = {}
        for read in self.reads.values():
            found.setdefault(read.base, [read.base])
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
                together = found[self.reads[operand].base]
                together.append(view)
                found[view] = together
        return found

    def note_overwritten(self, group: Group, equation: Equation) -> None:
        """Order the readers of an array before ``equation``, which writes over it."""
        for number in overwritten(equation):
            atom = equation.inputs[number]
            assert isinstance(atom, Var)
            for view in self.views_of[self.reads[atom].base]:
                for reader in self.read_in.get(view, ()):
                    if reader != group.number:
                        self.order(self.groups[reader], group)

    def order(self, first: Group, second: Group) -> None:
        """Order ``second`` after ``first``."""
        if second.before >> first.number & 1:
            return
        second.needs.add(first.number)
        first.needed_by.add(second.number)
        earlier = first.before | 1 << first.number
        for group in self.later(second):
            group.before |= earlier

    def later(self, first: Group) -> list[Group]:
        """``first`` and the groups that depend on it, directly or not."""
        found = {first.number: first}
        pending = [first]
        while pending:
            for number in pending.pop().needed_by:
                if number not in found:
                    found[number] = self.groups[number]
                    pending.append(self.groups[number])
        return list(found.values())

    def is_between(self, first: Group, second: Group) -> bool:
        """Whether some group depends on ``first`` and ``second`` depends on it."""
        return any(
            second.before >> number & 1
            for number in first.needed_by
            if number != second.number
        )

    def absorb(self, other: Group, group: Group) -> None:
        """Move the equations of ``other`` into ``group``."""
        bit, own = 1 << other.number, 1 << group.number
        both = {other.number, group.number}
        group.before = (group.before | other.before) & ~(bit | own)
        for number in other.needs - both:
            self.groups[number].needed_by.discard(other.number)
            self.groups[number].needed_by.add(group.number)
        for number in other.needed_by - both:
            self.groups[number].needs.discard(other.number)
            self.groups[number].needs.add(group.number)
        group.needs = (group.needs | other.needs) - both
        group.needed_by = (group.needed_by | other.needed_by) - both
        for later in self.later(group)[1:]:
            later.before = (later.before & ~bit) | group.before | own
        del self.groups[other.number]

    def bases(self, equation: Equation) -> list[Var]:
        return [self.reads[a].base for a in equation.inputs if isinstance(a, Var)]

    def in_program_order(self, equations: list[Equation]) -> list[Equation]:
        return sorted(equations, key=self.position.__getitem__)

    def sorted_groups(self) -> list[Group]:
        """The groups in topological order, otherwise as they were begun."""
        groups = sorted(self.groups.values(), key=lambda g: g.number)
        return sorted(groups, key=lambda g: g.before.bit_count())

    def is_full(self, ids: Sequence[int | None], group: Group) -> bool:
        have = {i for i in ids if i is not None}
        return all(i in have or n == 1 for i, n in enumerate(group.extents))

    def is_flat(self, group: Group) -> bool:
        """Whether the group's reductions give one value each, of many elements."""
        if math.prod(group.extents) <= self.short:
            return False
        return math.prod(group.extents[i] for i in group.kept) == 1


def is_fusible(equation: Equation) -> bool:
    """Whether ``equation`` is elementwise, a copy, a count, or a reduction."""
    primitive = primitive_of(equation)
    form = primitive.kernel
    if isinstance(form, Template):
        return form.name == "iota"
    if isinstance(form, View):
        # A broadcast literal, or a copy.
        return primitive is views.relayout or not isinstance(equation.inputs[0], Var)
    return isinstance(form, (Scalar, Convert, Reduction))


def reads_in_place(read: Read, base_ids: AxisIds, ids: AxisIds) -> bool:
    """Whether a value over the axes ``ids`` reads its base where the base is computed.

    The base, computed in the same group, varies over ``base_ids``.
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
    """The axes along which the base varies if its reader varies along ``ids``."""
    return tuple(None if m.axis is None else ids[m.axis] for m in read.axes)


def domain_of(equation: Equation) -> tuple[int, ...]:
    """The extents of the domain of ``equation``: a reduction's are its operand's."""
    primitive = primitive_of(equation)
    if isinstance(primitive.kernel, Reduction):
        return equation.inputs[0].type.shape
    return equation.outputs[0].type.shape


def is_reduction(equation: Equation) -> bool:
    """Whether ``equation`` reduces axes."""
    return isinstance(primitive_of(equation).kernel, Reduction)


def price_of(equation: Equation) -> int | None:
    """The cost of recomputing an elementwise equation; None if it must not be."""
    primitive = primitive_of(equation)
    if isinstance(primitive.kernel, Convert):
        return 1
    if isinstance(primitive.kernel, Scalar) and primitive.kernel.cost <= 5:
        return primitive.kernel.cost
    return None
