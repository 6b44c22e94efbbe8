"""Fusion: which equations are computed together, in one pass over one domain.

A group iterates over a *domain* of axes. A member's value varies either over the whole
domain, or (after a reduction) over the axes that are kept. Producers join their
consumers, reductions over the same axes share a group, and so do siblings that read the
same arrays; views are read through. Library calls and templates are units of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from arrayfn.ir import Atom, Equation, Program, Var
from arrayfn.passes.aliasing import overwritten
from arrayfn.passes.reads import Read, affine_view, resolve_reads
from arrayfn.primitives import views
from arrayfn.primitives.base import (
    Convert,
    Primitive,
    Reduction,
    Scalar,
    Template,
    View,
    has_effect,
)

AxisIds = tuple[int | None, ...]
MAX_STATEMENTS = 160
MAX_ARRAYS = 40
SIBLING_WINDOW = 24
CLONE_COST = 8  # what may be computed again rather than stored and read back
CLONE_ARRAYS = 2  # full-size arrays it may be computed from


@dataclass(frozen=True)
class FusedGroup:
    """Equations computed together.

    ``extents`` are the domain's axes, ``reduced`` those that its reductions run over;
    ``maps`` gives each member value its domain axes. ``outputs`` are the member values
    that something outside needs.
    """

    equations: tuple[Equation, ...]
    extents: tuple[int, ...]
    reduced: frozenset[int]
    maps: dict[Var, AxisIds]
    outputs: tuple[Var, ...]
    reason: str


@dataclass(frozen=True)
class SingleUnit:
    """An equation that is lowered by itself: a template, a library call, an alias."""

    equation: Equation


Unit = FusedGroup | SingleUnit


@dataclass
class _Group:
    """A unit under construction. ``open`` groups can take equations."""

    number: int
    open: bool
    extents: tuple[int, ...] = ()
    reduced: frozenset[int] = frozenset()
    equations: list[Equation] = field(default_factory=list)
    maps: dict[Var, AxisIds] = field(default_factory=dict)
    stages: dict[Var, int] = field(default_factory=dict)
    arrays: dict[Var, AxisIds] = field(default_factory=dict)
    crossing: set[Var] = field(default_factory=set)  # arrays read along several axes
    before: int = 0  # bit set of the groups it needs
    after: int = 0  # bit set of the groups that need it

    @property
    def kept(self) -> frozenset[int]:
        return frozenset(range(len(self.extents))) - self.reduced


def is_fusible(equation: Equation) -> bool:
    """Whether ``equation`` is elementwise, a copy, a count, or a reduction."""
    row = equation.primitive
    assert isinstance(row, Primitive)
    form = row.kernel
    if isinstance(form, Template):
        return form.name == "iota"
    if isinstance(form, View):
        # A broadcast literal, or a copy.
        return row is views.relayout or not isinstance(equation.inputs[0], Var)
    return isinstance(form, (Scalar, Convert, Reduction))


def fuse(program: Program) -> tuple[Unit, ...]:
    """The units of ``program``, in an order in which they can run."""
    return _Fuser(program).run()


class _Fuser:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.reads = resolve_reads(program)
        self.position = {eq: k for k, eq in enumerate(program.equations)}
        self.groups: dict[int, _Group] = {}
        self.made_in: dict[Var, int] = {}
        self.read_in: dict[Var, list[int]] = {}
        self.sources: dict[Var, Equation] = {}
        self.makers = {v: eq for eq in program.equations for v in eq.outputs}
        self.outputs = {a for a in program.outputs if isinstance(a, Var)}
        self.clonable: dict[Var, list[Var] | None] = {}
        self.changed = {
            self.reads[atom].base
            for eq in program.equations
            for number in overwritten(eq)
            if isinstance(atom := eq.inputs[number], Var)
        }
        self.count = 0
        self.last_effect: _Group | None = None

    def run(self) -> tuple[Unit, ...]:
        for equation in self.program.equations:
            if affine_view(equation) is not None:
                continue
            if not is_fusible(equation):
                self.place_sources(equation)
                group = self.new_group(equation, is_open=False)
                group.equations.append(equation)
                self.note(group, equation)
                self.note_overwritten(group, equation)
                if has_effect(equation):
                    if self.last_effect is not None:
                        self.order(self.last_effect, group)
                    self.last_effect = group
                continue
            if not any(isinstance(a, Var) for a in equation.inputs):
                # Iota and constants are made where they are used.
                self.sources[equation.outputs[0]] = equation
                continue
            self.place_sources(equation, only_odd=True)
            self.place(equation)
        for atom in self.program.outputs:
            if isinstance(atom, Var):
                self.place_source(self.reads[atom].base)
        return self.finish()

    def place_sources(self, equation: Equation, only_odd: bool = False) -> None:
        """Make arrays of the sources among the operands (those not read plainly)."""
        for atom in equation.inputs:
            if isinstance(atom, Var):
                read = self.reads[atom]
                if not (only_odd and self.is_plain(read)):
                    self.place_source(read.base)

    def place_source(self, var: Var) -> None:
        if var in self.sources and var not in self.made_in:
            self.place(self.sources[var])

    # Groups and their order.

    def new_group(self, equation: Equation, *, is_open: bool) -> _Group:
        group = _Group(self.count, is_open)
        self.groups[group.number] = group
        self.count += 1
        return group

    def note(self, group: _Group, equation: Equation) -> None:
        """Record that ``equation`` is now in ``group``: what it makes and needs."""
        for var in equation.outputs:
            self.made_in[var] = group.number
        bases = self.bases(equation)
        bases += [self.reads[atom].base for atom in group.arrays]
        for base in bases:
            number = self.made_in.get(base)
            if number != group.number:
                self.read_in.setdefault(base, []).append(group.number)
                if number is not None:
                    self.order(self.groups[number], group)

    def note_overwritten(self, group: _Group, equation: Equation) -> None:
        """Have whatever reads an array run before ``equation`` writes over it."""
        for number in overwritten(equation):
            atom = equation.inputs[number]
            assert isinstance(atom, Var)
            for reader in self.read_in.get(self.reads[atom].base, ()):
                if reader != group.number:
                    self.order(self.groups[reader], group)

    def order(self, first: _Group, second: _Group) -> None:
        if second.before >> first.number & 1:
            return
        earlier = first.before | 1 << first.number
        later = second.after | 1 << second.number
        for number in _bits(earlier):
            self.groups[number].after |= later
        for number in _bits(later):
            self.groups[number].before |= earlier

    def bases(self, equation: Equation) -> list[Var]:
        return [self.reads[a].base for a in equation.inputs if isinstance(a, Var)]

    def may_read(self, equation: Equation, group: _Group, ids: AxisIds) -> bool:
        """Whether ``equation``, in ``group``, would find what it reads from memory.

        Not so what the group makes itself, or a unit after it, or nobody yet. What is
        read at the place where it is computed, or computed again, is not from memory.
        """
        taken: dict[Var, AxisIds] = {}
        for atom in equation.inputs:
            if not isinstance(atom, Var):
                continue
            for array in self.arrays_read(atom, group, ids, taken):
                number = self.made_in.get(array)
                if number is None and array in self.sources:
                    return False
                if number == group.number:
                    return False
                if (
                    number is not None
                    and self.groups[number].before >> group.number & 1
                ):
                    return False
        return True

    def arrays_read(
        self, atom: Var, group: _Group, ids: AxisIds, taken: dict[Var, AxisIds]
    ) -> Iterable[Var]:
        """What ``take`` would make ``group`` read; ``taken`` is computed again."""
        read = self.reads[atom]
        base = read.base
        here = group.maps.get(base, taken.get(base))
        if here is not None:
            if not reads_in_place(read, here, ids):
                yield base
        elif not self.is_computed_again(read):
            yield base
        else:
            base_ids = _moved(read, ids)
            for operand in self.makers[base].inputs:
                if isinstance(operand, Var):
                    yield from self.arrays_read(operand, group, base_ids, taken)
            taken[base] = base_ids

    # Placing an equation.

    def place(self, equation: Equation) -> None:
        domain = _domain(equation)
        producers = self.producers(equation)
        for number in producers:
            group = self.groups[number]
            if self.join(equation, group):
                self.merge_others(equation, group, producers)
                return
        for number in self.siblings(equation):
            if self.join(equation, self.groups[number]):
                return
        group = self.new_group(equation, is_open=True)
        group.extents = domain
        if not self.join(equation, group):
            # What is needed at two places is computed once, and read at both.
            for base in self.bases(equation):
                self.place_source(base)
                self.clonable[base] = None
            assert self.join(equation, group)

    def producers(self, equation: Equation) -> list[int]:
        """The open groups that make an operand, the most binding first.

        First those whose value could not be had otherwise, then reductions, then those
        begun last.
        """
        binding: dict[int, bool] = {}
        for base in self.bases(equation):
            number = self.made_in.get(base)
            if number is not None and self.groups[number].open:
                needed = self.clone_arrays(base) is None
                binding[number] = needed or binding.get(number, False)
        return sorted(
            binding,
            key=lambda n: (binding[n], bool(self.groups[n].reduced), n),
            reverse=True,
        )

    def siblings(self, equation: Equation) -> Iterable[int]:
        """Recent open groups of the same domain that read what ``equation`` reads."""
        found: set[int] = set()
        bases = self.bases(equation)
        for base in list(bases):
            bases += self.clone_arrays(base) or ()
        for base in bases:
            for number in self.read_in.get(base, ())[-4:]:
                group = self.groups.get(number)
                if (
                    group is not None
                    and group.open
                    and number > self.count - SIBLING_WINDOW
                    and group.extents == _domain(equation)
                ):
                    found.add(number)
        return sorted(found, reverse=True)

    def join(self, equation: Equation, group: _Group) -> bool:
        if len(group.equations) >= MAX_STATEMENTS or len(group.arrays) >= MAX_ARRAYS:
            return False
        row = equation.primitive
        assert isinstance(row, Primitive)
        if isinstance(row.kernel, Reduction):
            return self.join_reduction(equation, group)
        ids = self.output_ids(equation, group)
        if ids is None or not self.level_fits(equation, ids, group):
            return False
        if not self.may_read(equation, group, ids):
            return False
        self.add(equation, group, ids, ids)
        return True

    def add(
        self, equation: Equation, group: _Group, operand_ids: AxisIds, ids: AxisIds
    ) -> None:
        for atom in equation.inputs:
            if isinstance(atom, Var):
                self.take(atom, group, operand_ids)
        stage = self.stage(equation, group)
        group.equations.append(equation)
        for var in equation.outputs:
            group.maps[var] = ids
            group.stages[var] = stage
        self.note(group, equation)

    def take(self, atom: Var, group: _Group, ids: AxisIds) -> None:
        """Have ``atom``, made elsewhere, in ``group``: read, or computed again."""
        read = self.reads[atom]
        base = read.base
        if base in group.maps:
            if not reads_in_place(read, group.maps[base], ids):
                self.read_array(atom, group, ids)
            return
        if not self.is_computed_again(read):
            self.read_array(atom, group, ids)
            return
        equation = self.makers[base]
        base_ids = _moved(read, ids)
        for operand in equation.inputs:
            if isinstance(operand, Var):
                self.take(operand, group, base_ids)
        group.equations.append(equation)
        group.maps[base] = base_ids
        group.stages[base] = 0

    def is_computed_again(self, read: Read) -> bool:
        """Whether a group that does not have the base of ``read`` computes it again."""
        if read.base in self.sources and read.base not in self.made_in:
            return True
        return self.is_plain(read) and self.clone_arrays(read.base) is not None

    def read_array(self, atom: Var, group: _Group, ids: AxisIds) -> None:
        """Note that ``group`` reads ``atom``, over the axes ``ids``, from memory."""
        ids = ids if atom.type.shape else ()
        if group.arrays.setdefault(atom, ids) != ids:
            group.crossing.add(atom)

    def is_plain(self, read: Read) -> bool:
        """Whether ``read`` only permutes and repeats axes."""
        return all(
            m.scale == 1 and m.offset == 0 and (m.axis is not None or n == 1)
            for m, n in zip(read.axes, read.base.type.shape, strict=True)
        )

    def clone_arrays(self, base: Var) -> list[Var] | None:
        """The arrays from which ``base`` is cheaply computed again; None if it is not.

        They are arrays that exist in any case, or small ones (results of reductions).
        """
        if base not in self.clonable:
            self.clonable[base] = self.find_clone(base)
        return self.clonable[base]

    def find_clone(self, base: Var) -> list[Var] | None:
        if base in self.outputs or self.made_in.get(base) is None:
            return None
        cost, arrays, pending = 0, dict[Var, None](), [base]
        seen: set[Var] = set()
        while pending:
            var = pending.pop()
            if var in seen:
                continue
            seen.add(var)
            if var in self.sources and var not in self.made_in:
                continue
            maker = self.makers.get(var)
            price = _price(maker) if maker is not None else None
            small = var.type.size * 8 <= base.type.size
            if var is not base and (small or price is None or var in self.outputs):
                exists = (
                    small
                    or maker is None
                    or var in self.outputs
                    or not is_fusible(maker)
                )
                if not exists or var in self.changed:
                    return None
                arrays[var] = None
                continue
            if price is None or maker is None:
                return None
            cost += price
            full = sum(v.type.size * 8 > base.type.size for v in arrays)
            if cost > CLONE_COST or full > CLONE_ARRAYS:
                return None
            for atom in maker.inputs:
                if isinstance(atom, Var):
                    if not self.is_plain(self.reads[atom]):
                        return None
                    pending.append(self.reads[atom].base)
        full = sum(v.type.size * 8 > base.type.size for v in arrays)
        return list(arrays) if full <= CLONE_ARRAYS else None

    def stage(self, equation: Equation, group: _Group) -> int:
        """Which pass over the reduced axes ``equation`` belongs to, counting from 0.

        A reduction's result is there from the stage after its operand's.
        """
        before = [
            group.stages.get(self.reads[a].base, 0)
            for a in equation.inputs
            if isinstance(a, Var)
        ]
        row = equation.primitive
        assert isinstance(row, Primitive)
        return max(before, default=0) + isinstance(row.kernel, Reduction)

    def join_reduction(self, equation: Equation, group: _Group) -> bool:
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
        if not group.reduced and not self.can_reduce(group, reduced):
            return False
        if not self.may_read(equation, group, ids):
            return False
        if not reduced:
            # Only axes of extent 1: the value itself, without those axes.
            reduced = group.reduced
        group.reduced = reduced
        kept = tuple(i for axis, i in enumerate(ids) if axis not in axes)
        self.add(equation, group, ids, kept)
        return True

    def can_reduce(self, group: _Group, reduced: frozenset[int]) -> bool:
        """Members so far vary over the whole domain, or would over what is kept."""
        return all(self.is_full(ids, group) for ids in group.maps.values())

    def is_full(self, ids: Sequence[int | None], group: _Group) -> bool:
        have = {i for i in ids if i is not None}
        return all(i in have or n == 1 for i, n in enumerate(group.extents))

    def level_fits(self, equation: Equation, ids: AxisIds, group: _Group) -> bool:
        """Whether values over axes ``ids`` belong to ``group``: all of it, or the kept.

        What needs the result of a reduction to one value is a kernel of its own, so
        that both can run over all threads.
        """
        if self.is_full(ids, group):
            flat = group.reduced and self.is_flat(group)
            return not (flat and self.stage(equation, group) > 0)
        if not group.reduced:
            return False
        have = {i for i in ids if i is not None}
        kept = {i for i in group.kept if group.extents[i] != 1}
        return have == kept

    def output_ids(self, equation: Equation, group: _Group) -> AxisIds | None:
        """The domain axes of an elementwise equation's output, if it can join."""
        shape = equation.outputs[0].type.shape
        known: list[int | None] = [None] * len(shape)
        bound = False
        for atom in equation.inputs:
            if not isinstance(atom, Var):
                continue
            read = self.reads[atom]
            ids = group.maps.get(read.base)
            if ids is None:
                continue
            if not self.match(read, ids, atom, shape, known):
                return None
            bound = True
        if not bound and group.equations:
            # A sibling: its domain is the group's own, axis by axis.
            return tuple(range(len(shape))) if shape == group.extents else None
        return self.fill(shape, known, group)

    def operand_ids(
        self, operand: Atom, shape: tuple[int, ...], group: _Group
    ) -> AxisIds | None:
        """The domain axes that a reduction's operand varies over."""
        known: list[int | None] = [None] * len(shape)
        if isinstance(operand, Var):
            read = self.reads[operand]
            ids = group.maps.get(read.base)
            if ids is not None:
                if not self.match(read, ids, operand, shape, known):
                    return None
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

    def match(
        self,
        read: Read,
        ids: AxisIds,
        atom: Var,
        shape: tuple[int, ...],
        known: list[int | None],
    ) -> bool:
        """Bind output axes so that ``atom`` reads its base where it is computed."""
        if not atom.type.shape and shape:
            return all(i is None for i in ids) or not ids
        for axis_map, domain_axis, extent in zip(
            read.axes, ids, read.base.type.shape, strict=True
        ):
            if extent == 1:
                continue
            axis = axis_map.axis
            if axis is None or axis_map.scale != 1 or axis_map.offset != 0:
                return False
            if shape[axis] != extent or known[axis] not in (None, domain_axis):
                return False
            known[axis] = domain_axis
        return True

    def fill(
        self, shape: tuple[int, ...], known: list[int | None], group: _Group
    ) -> AxisIds | None:
        """Give the axes not bound yet the domain axes that are left, in order."""
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

    # Merging the producers of one equation.

    def merge_others(
        self, equation: Equation, group: _Group, producers: Sequence[int]
    ) -> None:
        for number in producers:
            other = self.groups.get(number)
            if other is not None and other is not group and other.open:
                self.merge(equation, other, group)

    def merge(self, equation: Equation, other: _Group, group: _Group) -> None:
        """Move ``other``, a producer of ``equation``, into ``group``, if it may be."""
        if (
            len(other.equations) + len(group.equations) > MAX_STATEMENTS
            or len(other.arrays) + len(group.arrays) > MAX_ARRAYS
            or other.after & group.before
            or group.after & other.before
        ):
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
        other: _Group,
        group: _Group,
        maps: dict[Var, AxisIds],
        moved: Callable[[AxisIds], AxisIds],
    ) -> dict[Var, AxisIds] | None:
        """The arrays that both read; None if one is computed there at another place."""
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
            stage = max(before, default=0) + _is_reduction(equation)
            stages.update(dict.fromkeys(equation.outputs, stage))
        return stages

    def is_flat(self, group: _Group) -> bool:
        """Whether the group's reductions give one value each."""
        return math.prod(group.extents[i] for i in group.kept) == 1

    def absorb(self, other: _Group, group: _Group) -> None:
        bit, own = 1 << other.number, 1 << group.number
        before = (group.before | other.before) & ~(bit | own)
        after = (group.after | other.after) & ~(bit | own)
        group.before, group.after = before, after
        for number in _bits(before):
            g = self.groups[number]
            g.after = (g.after & ~bit) | after | own
        for number in _bits(after):
            g = self.groups[number]
            g.before = (g.before & ~bit) | before | own
        del self.groups[other.number]

    def in_program_order(self, equations: list[Equation]) -> list[Equation]:
        return sorted(equations, key=self.position.__getitem__)

    def correspondence(
        self, equation: Equation, other: _Group, group: _Group
    ) -> dict[int, int] | None:
        """Which axis of ``group`` each axis of ``other`` is, seen from ``equation``."""
        own = group.maps[equation.outputs[0]]
        if _is_reduction(equation):
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
        self, equation: Equation, other: _Group, group: _Group
    ) -> dict[int, int] | None:
        """The identity, if both reduce one domain alike and ``equation`` sees it so."""
        if (other.extents, other.reduced) != (group.extents, group.reduced):
            return None
        own = group.maps[equation.outputs[0]]
        for atom in equation.inputs:
            if isinstance(atom, Var):
                theirs = other.maps.get(self.reads[atom].base)
                if theirs is not None and not self.agrees(atom, theirs, own, group):
                    return None
        return {i: i for i in range(len(group.extents))}

    def agrees(self, atom: Var, theirs: AxisIds, own: AxisIds, group: _Group) -> bool:
        """Whether ``atom`` reads its base where the group's axes are its own."""
        known: list[int | None] = list(own)
        read = self.reads[atom]
        shape = tuple(1 if i is None else group.extents[i] for i in own)
        return self.match(read, theirs, atom, shape, known) and tuple(known) == own

    # Finishing.

    def finish(self) -> tuple[Unit, ...]:
        needed: set[Var] = set(self.outputs)
        units: list[Unit] = []
        for group in reversed(self.sorted_groups()):
            if not group.open:
                (equation,) = group.equations
                needed.update(self.bases(equation))
                units.append(SingleUnit(equation))
                continue
            outputs = tuple(
                v
                for v in group.maps
                if v in needed and self.made_in.get(v) == group.number
            )
            if not outputs:
                continue
            self.prune(group, outputs)
            needed.update(self.reads[atom].base for atom in group.arrays)
            units.append(
                FusedGroup(
                    tuple(group.equations),
                    group.extents,
                    group.reduced,
                    group.maps,
                    outputs,
                    _reason(group),
                )
            )
        return tuple(reversed(units))

    def prune(self, group: _Group, outputs: Sequence[Var]) -> None:
        """Leave in ``group`` only what ``outputs`` need."""
        live: set[Var] = set(outputs)
        kept: list[Equation] = []
        for equation in reversed(group.equations):
            if any(v in live for v in equation.outputs):
                kept.append(equation)
                live.update(self.bases(equation))
        group.equations = kept[::-1]
        group.arrays = {
            atom: ids
            for atom, ids in group.arrays.items()
            if self.reads[atom].base in live
        }
        has_reduction = any(_is_reduction(eq) for eq in group.equations)
        if not has_reduction:
            group.reduced = frozenset()

    def sorted_groups(self) -> list[_Group]:
        """The groups in an order of dependency, otherwise as they were begun."""
        groups = sorted(self.groups.values(), key=lambda g: g.number)
        return sorted(groups, key=lambda g: g.before.bit_count())


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


def _moved(read: Read, ids: AxisIds) -> AxisIds:
    """The axes along which the base varies if what reads it does along ``ids``."""
    return tuple(None if m.axis is None else ids[m.axis] for m in read.axes)


def _domain(equation: Equation) -> tuple[int, ...]:
    row = equation.primitive
    assert isinstance(row, Primitive)
    if isinstance(row.kernel, Reduction):
        return equation.inputs[0].type.shape
    return equation.outputs[0].type.shape


def _is_reduction(equation: Equation) -> bool:
    row = equation.primitive
    return isinstance(row, Primitive) and isinstance(row.kernel, Reduction)


def _price(equation: Equation) -> int | None:
    """What an elementwise equation costs to compute again; None if it must not be."""
    row = equation.primitive
    assert isinstance(row, Primitive)
    if isinstance(row.kernel, Convert):
        return 1
    if isinstance(row.kernel, Scalar) and row.kernel.cost <= 5:
        return row.kernel.cost
    return None


def _reason(group: _Group) -> str:
    names = ", ".join(eq.primitive.name for eq in group.equations)
    if not group.reduced:
        return f"one pass over {list(group.extents)}: {names}"
    axes = ", ".join(str(group.extents[i]) for i in sorted(group.reduced))
    return f"reductions over the same axes (extents {axes}): {names}"


def _bits(mask: int) -> Iterable[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
