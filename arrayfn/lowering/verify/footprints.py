"""What one call of a kernel touches: for each argument the elements, and what is wrong.

In: a kernel, its integer arguments, and how many items it does. Out: a *footprint*,
which says nothing of the buffers behind the arguments. Equal kernels called alike have
one, so it is kept.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from arrayfn.lowering.plan import Kernel
from arrayfn.lowering.verify.interpreter import Access, Interpreted, Interpreter
from arrayfn.lowering.verify.intervals import (
    NOTHING,
    Intervals,
    extremes,
    intervals_of,
    is_exact,
    is_told_apart,
    meets,
    pairs_of,
    same_places,
)
from arrayfn.lowering.verify.numbers import (
    BLOCK,
    ITEM,
    THREAD,
    Lanes,
    Memory,
    Number,
    State,
    TooManyLanesError,
    UnknownTextError,
    Value,
)

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
"""Words by which blocks hand on what they wrote."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The first and the last element that a line touches.

    If it is not ``exact``, it may touch less: that depends on data. A vector's place,
    in elements, is ``residue`` more than a multiple of ``lanes``; None: of nothing.
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
    """All that a call touches, by the numbers of arguments."""

    loads: dict[int, Part] = field(default_factory=dict[int, Part])
    stores: dict[int, Part] = field(default_factory=dict[int, Part])
    adds: dict[int, Part] = field(default_factory=dict[int, Part])
    findings: list[Finding] = field(default_factory=list[Finding])
    unproved: list[Finding] = field(default_factory=list[Finding])
    partly: bool = False
    """Whether more may be touched: some of the text was not understood."""
    broken_off: bool = False
    """Whether the analysis failed, which need not be for the text's sake."""


_KNOWN: Final[OrderedDict[object, Footprint]] = OrderedDict()


def footprint(
    kernel: Kernel, integers: Sequence[int], items: int, own: frozenset[str]
) -> Footprint:
    """What ``items`` items of ``kernel`` do with these integer arguments.

    Each thread has the memory of the arguments ``own`` for itself.
    """
    numbers = [k for k, p in enumerate(kernel.parameters) if p.name in own]
    key = kernel.key, tuple(integers), items, kernel.threads, tuple(numbers)
    known = _KNOWN.get(key)
    if known is None:
        known = _Footprints(kernel, integers, items, own).made()
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
    ) -> None:
        self.kernel = kernel
        self.own_names = own
        self.integers = integers
        self.items = items
        self.found = Footprint()

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
        stores: dict[str, list[Access]] = {}
        loads: dict[str, list[Access]] = {}
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
            touch(part, access, known=not sampled)
            if access.kind != "add":
                of = stores if access.kind == "store" else loads
                of.setdefault(name, []).append(access)
        for name, accesses in stores.items():
            if name in self.own_names:
                continue
            if sampled:
                self.note(accesses[0].line, "whether elements are written once")
            else:
                self.once(name, accesses, loads.get(name, ()))

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
            if not is_told_apart(access, access.item):
                self.one_by_one(name, [access], by_thread=True)
        if kernel.threads and any(w in kernel.source for w in _BETWEEN_BLOCKS):
            self.note(stores[0].line, f"the order in which blocks write {name}")
            return
        if self.items > 1:
            self.between(name, stores, loads)

    def between(
        self, name: str, stores: Sequence[Access], loads: Sequence[Access]
    ) -> None:
        """Check accesses with each other: items of a CPU, blocks of a GPU."""
        first = stores[0]
        mine = self.who(first)
        others = [*stores[1:], *loads]
        rest = [
            x
            for x in others
            if (theirs := self.who(x)) is None
            or mine is None
            or not same_places(first, x, mine, theirs)
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
        self.one_by_one(name, [*stores, *loads], by_thread=False)

    def who(self, access: Access) -> Number | None:
        return access.block if self.kernel.threads else access.item

    def one_by_one(
        self, name: str, accesses: Iterable[Access], *, by_thread: bool
    ) -> None:
        """Look at each element that is touched."""
        accesses = list(accesses)
        found = []
        line = accesses[0].line
        for access in accesses:
            who = access.item if by_thread else self.who(access)
            pairs = None if who is None else pairs_of(access, who)
            if pairs is None:
                self.note(line, f"whether two write the same element of {name}")
                return
            found.append(pairs)
        stored = [p for p, a in zip(found, accesses, strict=True) if a.kind == "store"]
        clash = meets(stored)
        if clash is None and len(stored) < len(found):
            written = np.unique(np.concatenate([at for at, _ in stored]))
            kept = [
                (at[m], who[m])
                for at, who in found
                if (m := np.isin(at, written)).any()
            ]
            clash = meets(kept)
        if clash is None:
            return
        at, one, other = clash
        threads = self.kernel.threads
        noun = "threads" if threads and by_thread else "blocks" if threads else "items"
        text = (
            f"{noun} {one} and {other} both touch element {at} of {name}, and write it"
        )
        exact = all(is_exact(a) for a in accesses)
        within = threads and by_thread and one // threads == other // threads
        if exact and not (within and "barrier()" in self.kernel.source):
            self.found.findings.append(Finding(line, text))
        else:
            self.note(line, text)


def part_of(accesses: Iterable[Access]) -> Part:
    """What ``accesses`` touch of one argument."""
    part = Part()
    for access in accesses:
        touch(part, access)
    return part


def touch(part: Part, access: Access, *, known: bool = True) -> None:
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


def _residue(x: Number, lanes: int) -> int | None:
    """What is left of ``x`` divided by ``lanes``; None if that differs."""
    if any(c % lanes for c in x.terms.values()):
        return None
    rests = np.unique(np.asarray(x.base) % lanes)
    return int(rests[0]) if rests.size == 1 else None
