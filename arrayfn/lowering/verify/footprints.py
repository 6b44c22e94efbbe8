"""The elements that one call of a kernel accesses, by argument, and what is wrong.

In: a kernel, its integer arguments, and how many items it does. Out: a *footprint*,
which says nothing of the buffers behind the arguments. Equal kernels called alike have
one, so it is kept.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np

from arrayfn.dtypes import BY_SHORT_NAME
from arrayfn.lowering.plan import Kernel, Parameter
from arrayfn.lowering.verify.interpreter import Access, Interpreted, Interpreter
from arrayfn.lowering.verify.intervals import (
    NOTHING,
    Intervals,
    are_disjoint,
    extremes,
    first_conflict,
    intervals_of,
    is_disjoint,
    is_exact,
    pairs_of,
    same_elements,
)
from arrayfn.lowering.verify.numbers import (
    BLOCK,
    ITEM,
    THREAD,
    Array,
    Lanes,
    Memory,
    Number,
    State,
    TooManyLanesError,
    UnknownTextError,
    Value,
)
from arrayfn.lowering.verify.phases import phases_of

_KEPT: Final = 4096
_MARK: Final = re.compile(r"#.*?\s(\S+:\d+)\s*$")
_FAULTS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What the analysis of a text that it cannot handle may raise."""
_BETWEEN_BLOCKS: Final = (
    "grid_barrier",
    "publish",
    "cluster_wait",
    "next_work_item(",
    "fence",
)
"""Functions by which blocks hand on what they wrote."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The first and the last element that a line accesses.

    If it is not ``exact``, it may access less: that depends on data. The index of a
    vector is ``residue`` more than a multiple of ``lanes``; None: of nothing.
    """

    line: int
    low: int
    high: int
    exact: bool
    lanes: int = 1
    residue: int | None = 0


@dataclass
class Part:
    """What is done with one argument: loads or stores."""

    reaches: list[Reach] = field(default_factory=list[Reach])
    intervals: Intervals = NOTHING
    whole: bool = True
    """Whether ``intervals`` are exactly what is accessed; else it may differ."""


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a kernel: at which line, and in words."""

    line: int
    text: str


@dataclass
class Footprint:
    """All that a call accesses, by the numbers of arguments."""

    loads: dict[int, Part] = field(default_factory=dict[int, Part])
    stores: dict[int, Part] = field(default_factory=dict[int, Part])
    adds: dict[int, Part] = field(default_factory=dict[int, Part])
    findings: list[Finding] = field(default_factory=list[Finding])
    unproved: list[Finding] = field(default_factory=list[Finding])
    partly: bool = False
    """Whether there may be more: some of the text was not understood."""
    broken_off: bool = False
    """Whether the analysis failed, which need not be for the text's sake."""


Shared = tuple[tuple[int, int], ...]
"""Arguments in one buffer: their numbers, and their bytes from the first one on."""

_KNOWN: Final[OrderedDict[object, Footprint]] = OrderedDict()


def footprint(
    kernel: Kernel,
    integers: Sequence[int],
    items: int,
    own: frozenset[str],
    shared: Sequence[Shared] = (),
) -> Footprint:
    """What ``items`` items of ``kernel`` do with these integer arguments.

    Each thread has memory of its own for the arguments ``own``. The arguments of each
    of ``shared`` lie in one buffer.
    """
    numbers = tuple(k for k, p in enumerate(kernel.parameters) if p.name in own)
    shared = tuple(shared)
    key = kernel.key, tuple(integers), items, kernel.threads, numbers, shared
    known = _KNOWN.get(key)
    if known is None:
        known = _Footprints(kernel, integers, items, own, shared).made()
        if not known.findings and not known.broken_off:
            _KNOWN[key] = known
            if len(_KNOWN) > _KEPT:
                _KNOWN.popitem(last=False)
    return known


def user_line(kernel: Kernel, line: int) -> str:
    """The user's line that a kernel's line is marked with, or the next that is."""
    lines = kernel.source.splitlines()
    for text in (*lines[line - 1 :], *reversed(lines[: line - 1])):
        found = _MARK.search(text)
        if found is not None:
            return found[1]
    return ""


class _Footprints:
    def __init__(
        self,
        kernel: Kernel,
        integers: Sequence[int],
        items: int,
        own: frozenset[str],
        shared: Sequence[Shared],
    ) -> None:
        self.kernel = kernel
        self.own_names = own
        self.shared = shared
        self.integers = integers
        self.items = items
        self.found = Footprint()
        self.accesses: list[Access] = []

    def made(self) -> Footprint:
        if not self.items:
            return self.found
        try:
            interpreted = self.interpreted(sampled=False)
            self.collect(interpreted, sampled=False)
        except TooManyLanesError:
            self.note(0, "there are too many items; some of them were looked at")
            try:
                interpreted = self.interpreted(sampled=True)
                self.collect(interpreted, sampled=True)
            except (TooManyLanesError, UnknownTextError, *_FAULTS) as error:
                self.not_understood(error)
        except (UnknownTextError, SyntaxError, *_FAULTS) as error:
            self.not_understood(error)
        return self.found

    def not_understood(self, error: Exception) -> None:
        """Note that the analysis came to no end: nothing is proved, or wrong."""
        self.found.partly = True
        self.found.broken_off = isinstance(error, _FAULTS)
        name = "" if isinstance(error, UnknownTextError) else type(error).__name__
        self.note(0, f"not understood: {name}{': ' if name else ''}{error}")

    def note(self, line: int, text: str) -> None:
        self.found.unproved.append(Finding(line, text))

    def interpreted(self, *, sampled: bool) -> Interpreted:
        kernel = self.kernel
        integers = iter(self.integers)
        state = State(1, {}, {})
        for parameter in kernel.parameters:
            value: Value
            if parameter.kind == "i64":
                value = Number(next(integers))
            else:
                kind = parameter.kind.removesuffix("*")
                value = Memory(parameter.name, kind, Number(0))
            state.variables[parameter.name] = value
        begin: Lanes = 0
        end: Lanes = self.items
        if sampled:
            size = min(2, self.items)
            begin = np.unique([0, self.items // 2, self.items - size])
            end, state.count = begin + size, begin.size
        if kernel.threads:
            block = state.counted(begin, end - 1)
            thread = Number(0)
            if kernel.threads > 1:
                thread = state.counted(0, kernel.threads - 1, thread=True)
            state.variables[BLOCK], state.variables[THREAD] = block, thread
            state.variables[ITEM] = block.times(kernel.threads).plus(thread)
        else:
            state.variables["begin"], state.variables["end"] = (
                Number(begin),
                Number(end),
            )
        return Interpreter(kernel.source, kernel.name, state).run()

    def collect(self, interpreted: Interpreted, *, sampled: bool) -> None:
        self.found.partly = sampled or bool(interpreted.unknown)
        for line, text in interpreted.unknown.items():
            self.note(line, text)
        for barrier in interpreted.barriers:
            if barrier.surely:
                text = "not all threads of a block come to this barrier"
                self.found.findings.append(Finding(barrier.line, text))
            else:
                self.note(
                    barrier.line,
                    "perhaps not all threads come to this barrier",
                )
        numbers = {p.name: k for k, p in enumerate(self.kernel.parameters)}
        accessed: dict[str, list[Access]] = {}
        for access in interpreted.accesses:
            if access.memory.size is not None:
                self.own(access)
                continue
            name = access.memory.name
            parts = {
                "load": self.found.loads,
                "store": self.found.stores,
                "add": self.found.adds,
            }[access.kind]
            part = parts.setdefault(numbers[name], Part())
            add_access(part, access, known=not sampled)
            if access.kind != "add":
                accessed.setdefault(name, []).append(access)
        self.accesses = [a for accesses in accessed.values() for a in accesses]
        for name, accesses in self.by_buffer(accessed).items():
            stores = [a for a in accesses if a.kind == "store"]
            if not stores or name in self.own_names:
                continue
            if sampled:
                self.note(stores[0].line, "whether elements are written once")
            else:
                self.once(name, stores, [a for a in accesses if a.kind == "load"])

    def by_buffer(self, accessed: dict[str, list[Access]]) -> dict[str, list[Access]]:
        """The accesses of arguments in one buffer as those of one argument."""
        alone = dict(accessed)
        for group in self.shared:
            members = [(self.kernel.parameters[k], offset) for k, offset in group]
            members = [(p, offset) for p, offset in members if p.name in accessed]
            if not any(a.kind == "store" for p, _ in members for a in accessed[p.name]):
                continue
            if len(members) == 1:
                continue
            # In elements, if all have the same.
            sizes = {_itemsize(p) for p, _ in members}
            unit = max(sizes)
            first = min(offset for _, offset in members)
            if len(sizes) > 1 or any((o - first) % unit for _, o in members):
                unit = 1
            every: list[Access] = []
            for p, offset in members:
                size, begin = _itemsize(p) // unit, Number((offset - first) // unit)
                every += [
                    replace(a, at=a.at.times(size).plus(begin), width=a.width * size)
                    for a in alone.pop(p.name)
                ]
            names = [p.name for p, _ in members]
            alone[" and ".join(names) + ", of one buffer"] = every
        return alone

    def own(self, access: Access) -> None:
        """Check an access of an array that a block, or a thread, has for itself."""
        low, high = extremes(access)
        size = access.memory.size
        assert size is not None
        limit = size.base if isinstance(size.base, int) else int(size.base.min())
        if size.terms or not 0 <= low <= high < limit:
            text = (
                f"elements {low} to {high} of {access.memory.name}, which has {limit}"
            )
            if is_exact(access) and not size.terms:
                self.found.findings.append(Finding(access.line, text))
            else:
                self.note(access.line, text)

    def once(
        self, name: str, stores: Sequence[Access], loads: Sequence[Access]
    ) -> None:
        """Check that no two items, or threads, write the same element.

        Nor does one read what another writes, but for threads of a block.
        """
        kernel = self.kernel
        several = kernel.threads > 1 or self.items > 1
        if not several:
            return
        for access in stores:
            if access.item is None:
                self.note(access.line, f"which item writes {name}")
                return
            if not is_disjoint(access, access.item):
                self.one_by_one(name, [access], by_thread=True)
        if kernel.threads and any(w in kernel.source for w in _BETWEEN_BLOCKS):
            self.note(stores[0].line, f"the order in which blocks write {name}")
            return
        accesses = [*stores, *loads]
        by = [(a, a.item) for a in accesses if a.item is not None]
        if len(by) == len(accesses) and are_disjoint(by):
            return
        if self.items > 1:
            self.between(name, accesses, by_thread=False)
        if kernel.threads > 1:
            phases = phases_of(kernel.source, kernel.name).of_line
            for phase in sorted(set(phases.values())):
                here = [a for a in accesses if phases.get(a.line, phase) == phase]
                self.within(name, here)

    def within(self, name: str, accesses: Sequence[Access]) -> None:
        """Check accesses of a phase with each other, by threads of a block.

        Threads without a row of their own load that of another, which may write over
        it: what a thread loads through the argument of a store counts only if it stores
        something itself.
        """
        stores = [a for a in accesses if a.kind == "store"]
        if stores:
            self.between(name, stores, by_thread=True)
        for argument in dict.fromkeys(a.memory.name for a in stores):
            own = [a for a in stores if a.memory.name == argument]
            loads = [a for a in accesses if a.kind == "load"]
            others = [a for a in loads if a.memory.name != argument]
            self.between(name, [*own, *others], by_thread=True)
            same = [a for a in loads if a.memory.name == argument]
            if same and self.storing is not None:
                self.between(name, [*own, *same], by_thread=True, by=self.storing)

    @cached_property
    def storing(self) -> Array | None:
        """The threads that store something; None if they are not known."""
        found: list[Array] = []
        for access in self.accesses:
            if access.kind == "store":
                pairs = None if access.item is None else pairs_of(access, access.item)
                if pairs is None:
                    return None
                found.append(np.unique(pairs[1]))
        return np.unique(np.concatenate(found))

    def between(
        self,
        name: str,
        accesses: Sequence[Access],
        *,
        by_thread: bool,
        by: Array | None = None,
    ) -> None:
        """Check accesses with each other, the first of which is a store.

        Of items of a CPU, blocks of a GPU, or threads: of all, or those in ``by``.
        """
        first = accesses[0]
        who = [a.item if by_thread else self.who(a) for a in accesses]
        mine = who[0]
        rest = [
            x
            for x, theirs in zip(accesses[1:], who[1:], strict=True)
            if theirs is None
            or mine is None
            or not same_elements(first, x, mine, theirs)
        ]
        if mine is None or not rest:
            return
        sets = [intervals_of(x) for x in (first, *rest)]
        if not any(s is None for s in sets) and not any(
            s is not None and t is not None and bool(s.common(t))
            for k, s in enumerate(sets)
            for t in sets[:k]
        ):
            return
        known = [(a, b) for a, b in zip(accesses, who, strict=True) if b is not None]
        if len(known) == len(accesses) and are_disjoint(known):
            return
        self.one_by_one(name, accesses, by_thread=by_thread, by=by)

    def may_be_ordered(self, accesses: Sequence[Access]) -> bool:
        """Whether a barrier may stand between threads of a block on one phase."""
        phases = phases_of(self.kernel.source, self.kernel.name)
        return "warp_barrier" in self.kernel.source or any(
            a.line not in phases.of_line or a.line in phases.repeated for a in accesses
        )

    def who(self, access: Access) -> Number | None:
        return access.block if self.kernel.threads else access.item

    def one_by_one(
        self,
        name: str,
        accesses: Iterable[Access],
        *,
        by_thread: bool,
        by: Array | None = None,
    ) -> None:
        """Look at each element that is accessed."""
        accesses = list(accesses)
        found = []
        line = accesses[0].line
        for access in accesses:
            who = access.item if by_thread else self.who(access)
            pairs = None if who is None else pairs_of(access, who)
            if pairs is None:
                self.note(line, f"whether two write the same element of {name}")
                return
            if by is not None:
                kept = np.isin(pairs[1], by)
                pairs = pairs[0][kept], pairs[1][kept]
            found.append(pairs)
        stored = [p for p, a in zip(found, accesses, strict=True) if a.kind == "store"]
        clash = first_conflict(stored)
        if clash is None and len(stored) < len(found):
            written = np.unique(np.concatenate([at for at, _ in stored]))
            kept = [
                (at[m], who[m])
                for at, who in found
                if (m := np.isin(at, written)).any()
            ]
            clash = first_conflict(kept)
        if clash is None:
            return
        at, one, other = clash
        threads = self.kernel.threads
        noun = "threads" if threads and by_thread else "blocks" if threads else "items"
        text = (
            f"{noun} {one} and {other} both access element {at} of {name}, and write it"
        )
        exact = all(is_exact(a) for a in accesses)
        within = threads and by_thread and one // threads == other // threads
        if exact and not (within and self.may_be_ordered(accesses)):
            self.found.findings.append(Finding(line, text))
        else:
            self.note(line, text)


def part_of(accesses: Iterable[Access]) -> Part:
    """The elements of one argument in ``accesses``."""
    part = Part()
    for access in accesses:
        add_access(part, access)
    return part


def add_access(part: Part, access: Access, *, known: bool = True) -> None:
    """Add ``access`` to ``part``: its elements one by one, if they are ``known``."""
    low, high = extremes(access)
    exact = is_exact(access)
    lanes, residue = access.width if access.aligned else 1, 0
    if lanes > 1:
        residue = _residue(access.at, lanes)
    part.reaches.append(Reach(access.line, low, high, exact, lanes, residue))
    intervals = intervals_of(access) if exact and known else None
    if intervals is None:
        part.whole = False
    else:
        part.intervals = part.intervals.joined(intervals)


def _itemsize(parameter: Parameter) -> int:
    return BY_SHORT_NAME[parameter.kind.removesuffix("*")].itemsize


def _residue(x: Number, lanes: int) -> int | None:
    """What is left of ``x`` divided by ``lanes``; None if that differs."""
    if any(c % lanes for c in x.terms.values()):
        return None
    rests = np.unique(np.asarray(x.base) % lanes)
    return int(rests[0]) if rests.size == 1 else None
