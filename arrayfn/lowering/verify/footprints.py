"""The elements that one call of a kernel accesses, by argument.

In: a kernel, its integer arguments, and the number of work items. Out: a *footprint*,
which does not depend on the buffers that the arguments point to. So calls of one kernel
with the same integers share a footprint, and footprints are cached.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
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
from arrayfn.records import frozen, record

_MAX_CACHED: Final = 4096  # footprints
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
"""Exceptions of the analysis when it meets a text that it cannot handle."""
_BETWEEN_BLOCKS: Final = (
    "grid_barrier",
    "publish",
    "cluster_wait",
    "next_work_item(",
    "fence",
)
"""Functions by which blocks publish what they wrote to other blocks."""


@frozen(slots=True)
class Reach:
    """The range of elements that one line of a kernel accesses.

    Attributes:
        line: the line of the kernel.
        low, high: the first and the last element.
        exact: whether the line accesses both ends, whatever the data. If not, it may
            access fewer elements.
        lanes: the number of elements of an aligned vector access; else 1. (These are
            not the lanes of ``numbers``.)
        residue: the first index of the vector modulo ``lanes``; None if that is
            unknown.
    """

    line: int
    low: int
    high: int
    exact: bool
    lanes: int = 1
    residue: int | None = 0


@record
class AccessSet:
    """All loads, all stores, or all atomic additions of one array argument.

    Attributes:
        reaches: the range of each access in the text.
        intervals: elements that are accessed whatever the data.
        is_complete: whether ``intervals`` are all elements that may be accessed.
    """

    reaches: list[Reach] = field(default_factory=list[Reach])
    intervals: Intervals = NOTHING
    is_complete: bool = True


@frozen
class Finding:
    """A fault of a kernel, or a claim not proved: its line (0: the kernel), a text."""

    line: int
    text: str


@record
class Footprint:
    """All accesses of one call, by the number of the argument.

    Attributes:
        loads, stores, adds: plain loads and stores, and atomic additions.
        findings: faults that were proved.
        unproved: claims that could not be proved.
        partly: whether there may be more accesses, because some of the text was not
            understood.
        broken_off: whether the analysis itself failed with an exception.
    """

    loads: dict[int, AccessSet] = field(default_factory=dict[int, AccessSet])
    stores: dict[int, AccessSet] = field(default_factory=dict[int, AccessSet])
    adds: dict[int, AccessSet] = field(default_factory=dict[int, AccessSet])
    findings: list[Finding] = field(default_factory=list[Finding])
    unproved: list[Finding] = field(default_factory=list[Finding])
    partly: bool = False
    broken_off: bool = False


Shared = tuple[tuple[int, int], ...]
"""Arguments in one buffer: their numbers, and their bytes after the first of them."""

_CACHE: Final[OrderedDict[object, Footprint]] = OrderedDict()


def footprint(
    kernel: Kernel,
    integers: Sequence[int],
    items: int,
    private: frozenset[str],
    shared: Sequence[Shared] = (),
) -> Footprint:
    """Compute the elements that one call of ``kernel`` accesses, by argument.

    Footprints without faults are cached; the oldest is dropped first.

    Args:
        kernel: the kernel.
        integers: the values of the integer arguments.
        items: the number of work items.
        private: the names of array arguments that point to memory of each thread's own.
        shared: groups of arguments that lie in one buffer.
    """
    numbers = tuple(k for k, p in enumerate(kernel.parameters) if p.name in private)
    shared = tuple(shared)
    key = kernel.key, tuple(integers), items, kernel.threads, numbers, shared
    cached = _CACHE.get(key)
    if cached is None:
        cached = _Footprints(kernel, integers, items, private, shared).computed()
        if not cached.findings and not cached.broken_off:
            _CACHE[key] = cached
            if len(_CACHE) > _MAX_CACHED:
                _CACHE.popitem(last=False)
    return cached


def user_line(kernel: Kernel, line: int) -> str:
    """Return the user's line, as ``file:line``, for a ``line`` of a kernel.

    It stands in a comment at the end of that line, or else of the next line below that
    has one, or else of the nearest line above. Empty if no line has such a comment.
    """
    lines = kernel.source.splitlines()
    for text in (*lines[line - 1 :], *reversed(lines[: line - 1])):
        mark = _MARK.search(text)
        if mark is not None:
            return mark[1]
    return ""


class _Footprints:
    """Computes the footprint of one call, and checks that no two items conflict.

    Attributes:
        private_names: array arguments that point to memory of each thread's own.
        shared: groups of arguments that lie in one buffer.
        footprint: the footprint so far.
        accesses: all loads and stores of arguments.
    """

    def __init__(
        self,
        kernel: Kernel,
        integers: Sequence[int],
        items: int,
        private: frozenset[str],
        shared: Sequence[Shared],
    ) -> None:
        """Store the arguments of ``footprint``."""
        self.kernel = kernel
        self.private_names = private
        self.shared = shared
        self.integers = integers
        self.items = items
        self.footprint = Footprint()
        self.accesses: list[Access] = []

    def computed(self) -> Footprint:
        """Compute the footprint and return it.

        If there are too many items, only the first, middle and last two are checked.
        If the text is not understood, the footprint says so.
        """
        if not self.items:
            return self.footprint
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
        return self.footprint

    def not_understood(self, error: Exception) -> None:
        """Record that the analysis ended early because of ``error``."""
        self.footprint.partly = True
        self.footprint.broken_off = isinstance(error, _FAULTS)
        name = "" if isinstance(error, UnknownTextError) else type(error).__name__
        self.note(0, f"not understood: {name}{': ' if name else ''}{error}")

    def note(self, line: int, text: str) -> None:
        """Record a claim that is not proved, about a line of the kernel (0: all)."""
        self.footprint.unproved.append(Finding(line, text))

    def find(self, line: int, text: str) -> None:
        """Record a fault that is proved, on a line of the kernel."""
        self.footprint.findings.append(Finding(line, text))

    def interpreted(self, *, sampled: bool) -> Interpreted:
        """Interpret the kernel's text, for all work items or a sample of them.

        Integer parameters have known values. The work item is a symbol: ``begin`` and
        ``end`` are the parameters of a CPU kernel, while for a GPU kernel the items are
        blocks, and block and thread are symbols. A sample has three lanes, of two
        neighbouring items each.
        """
        kernel = self.kernel
        integers = iter(self.integers)
        state = State(count=1, variables={}, bounds={})
        for parameter in kernel.parameters:
            value: Value
            if parameter.kind == "i64":
                value = Number(next(integers))
            else:
                dtype = parameter.kind.removesuffix("*")
                value = Memory(parameter.name, dtype, Number(0))
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
        """Fill in the footprint from ``interpreted``, and check for conflicts.

        If only a sample of items was interpreted, conflicts cannot be excluded: each
        written argument gets a note.
        """
        self.footprint.partly = sampled or bool(interpreted.unknown)
        for line, text in interpreted.unknown.items():
            self.note(line, text)
        for barrier in interpreted.barriers:
            if barrier.surely:
                self.find(
                    barrier.line, "not all threads of a block come to this barrier"
                )
            else:
                self.note(barrier.line, "perhaps not all threads come to this barrier")
        numbers = {p.name: k for k, p in enumerate(self.kernel.parameters)}
        accessed: dict[str, list[Access]] = {}
        for access in interpreted.accesses:
            if access.memory.size is not None:  # shared memory or registers
                self.check_local_array(access)
                continue
            name = access.memory.name
            parts = {
                "load": self.footprint.loads,
                "store": self.footprint.stores,
                "add": self.footprint.adds,
            }[access.kind]
            part = parts.setdefault(numbers[name], AccessSet())
            add_access(part, access, known=not sampled)
            if access.kind != "add":
                accessed.setdefault(name, []).append(access)
        self.accesses = [a for accesses in accessed.values() for a in accesses]
        for name, accesses in self.grouped_by_buffer(accessed).items():
            stores = [a for a in accesses if a.kind == "store"]
            if not stores or name in self.private_names:
                continue
            if sampled:
                self.note(stores[0].line, "whether elements are written once")
            else:
                loads = [a for a in accesses if a.kind == "load"]
                self.check_conflicts(name, stores, loads)

    def grouped_by_buffer(
        self, accessed: dict[str, list[Access]]
    ) -> dict[str, list[Access]]:
        """Return accesses by argument, with arguments in one buffer as one entry.

        ``accessed`` has the accesses by argument. Groups of ``shared`` arguments of
        which one is stored through become one entry, whose indices count elements of
        the buffer, or bytes if the arguments have elements of different sizes.
        """
        by_argument = dict(accessed)
        for group in self.shared:
            members = [(self.kernel.parameters[k], offset) for k, offset in group]
            members = [(p, offset) for p, offset in members if p.name in accessed]
            if not any(a.kind == "store" for p, _ in members for a in accessed[p.name]):
                continue
            if len(members) == 1:
                continue
            # The unit of indices, in bytes: an element, if all arguments have elements
            # of that size, at multiples of it.
            sizes = {_itemsize(p) for p, _ in members}
            unit = max(sizes)
            first = min(offset for _, offset in members)
            if len(sizes) > 1 or any((o - first) % unit for _, o in members):
                unit = 1
            in_buffer: list[Access] = []
            for p, offset in members:
                size, begin = _itemsize(p) // unit, Number((offset - first) // unit)
                in_buffer += [
                    replace(a, at=a.at.times(size).plus(begin), width=a.width * size)
                    for a in by_argument.pop(p.name)
                ]
            names = [p.name for p, _ in members]
            by_argument[" and ".join(names) + ", of one buffer"] = in_buffer
        return by_argument

    def check_local_array(self, access: Access) -> None:
        """Check that an access of shared memory or registers is inside the array."""
        low, high = extremes(access)
        size = access.memory.size
        assert size is not None
        limit = size.base if isinstance(size.base, int) else int(size.base.min())
        if size.terms or not 0 <= low <= high < limit:
            name = access.memory.name
            text = f"elements {low} to {high} of {name}, which has {limit}"
            record = self.find if is_exact(access) and not size.terms else self.note
            record(access.line, text)

    def check_conflicts(
        self, name: str, stores: Sequence[Access], loads: Sequence[Access]
    ) -> None:
        """Check that no two items, or threads, write the same element.

        No item may read what another writes either. Threads of a block may, if a
        barrier separates both accesses. ``name`` is the argument that ``stores`` and
        ``loads`` access. Blocks that exchange data in a kernel are not checked, but
        noted.
        """
        kernel = self.kernel
        if kernel.threads <= 1 and self.items <= 1:
            return
        for access in stores:
            if access.item is None:
                self.note(access.line, f"which item writes {name}")
                return
            if not is_disjoint(access, access.item):
                self.check_elements(name, [access], by_thread=True)
        if kernel.threads and any(w in kernel.source for w in _BETWEEN_BLOCKS):
            self.note(stores[0].line, f"the order in which blocks write {name}")
            return
        accesses = [*stores, *loads]
        items = [(a, a.item) for a in accesses if a.item is not None]
        if len(items) == len(accesses) and are_disjoint(items):
            return
        if self.items > 1:
            self.check_pairs(name, accesses, by_thread=False)
        if kernel.threads > 1:
            phases = phases_of(kernel.source, kernel.name).of_line
            for phase in sorted(set(phases.values())):
                in_phase = [a for a in accesses if phases.get(a.line, phase) == phase]
                self.check_threads(name, in_phase)

    def check_threads(self, name: str, accesses: Sequence[Access]) -> None:
        """Check the accesses of one phase for conflicts between threads of a block.

        A phase consists of lines that no barrier separates. ``accesses`` are all
        accesses of the array ``name`` in it, through one or several arguments.

        In kernels that update rows in place, a surplus thread, which has no row, loads
        the row of another thread while this thread overwrites it. This is allowed,
        because nothing uses the loaded values. So a load through an argument that is
        also stored through counts only for threads that store something.
        """
        stores = [a for a in accesses if a.kind == "store"]
        if stores:
            self.check_pairs(name, stores, by_thread=True)
        for argument in dict.fromkeys(a.memory.name for a in stores):
            argument_stores = [a for a in stores if a.memory.name == argument]
            loads = [a for a in accesses if a.kind == "load"]
            other_loads = [a for a in loads if a.memory.name != argument]
            self.check_pairs(name, [*argument_stores, *other_loads], by_thread=True)
            same_loads = [a for a in loads if a.memory.name == argument]
            if same_loads and self.storing is not None:
                self.check_pairs(
                    name,
                    [*argument_stores, *same_loads],
                    by_thread=True,
                    among=self.storing,
                )

    @cached_property
    def storing(self) -> Array | None:
        """The numbers of the threads that store to any argument; None if unknown."""
        threads: list[Array] = []
        for access in self.accesses:
            if access.kind == "store":
                pairs = None if access.item is None else pairs_of(access, access.item)
                if pairs is None:
                    return None
                threads.append(np.unique(pairs[1]))
        return np.unique(np.concatenate(threads))

    def check_pairs(
        self,
        name: str,
        accesses: Sequence[Access],
        *,
        by_thread: bool,
        among: Array | None = None,
    ) -> None:
        """Check a store, the first of ``accesses``, and the others for conflicts.

        Looks for conflicts between threads if ``by_thread``, else between blocks of a
        GPU or work items of a CPU; with ``among``, only between these threads. Tries
        quick proofs first: the accesses are of the same elements in each thread, their
        sets of elements are disjoint, or their strides keep threads apart. Only then
        compares element by element.
        """
        first = accesses[0]
        who = [a.item if by_thread else self.item_or_block(a) for a in accesses]
        first_item = who[0]
        others = [
            x
            for x, item in zip(accesses[1:], who[1:], strict=True)
            if item is None
            or first_item is None
            or not same_elements(first, x, first_item, item)
        ]
        if first_item is None or not others:
            return
        # Disjoint sets of elements cannot conflict. None is an unknown set.
        sets = [intervals_of(x) for x in (first, *others)]
        if not any(s is None for s in sets) and not any(
            s is not None and t is not None and bool(s.common(t))
            for k, s in enumerate(sets)
            for t in sets[:k]
        ):
            return
        with_items = [
            (a, b) for a, b in zip(accesses, who, strict=True) if b is not None
        ]
        if len(with_items) == len(accesses) and are_disjoint(with_items):
            return
        self.check_elements(name, accesses, by_thread=by_thread, among=among)

    def may_be_ordered(self, accesses: Sequence[Access]) -> bool:
        """Whether barriers may order these accesses of threads of a block after all.

        Phases do not know barriers of a warp, of other functions, or between
        iterations of a loop.
        """
        phases = phases_of(self.kernel.source, self.kernel.name)
        return "warp_barrier" in self.kernel.source or any(
            a.line not in phases.of_line or a.line in phases.repeated for a in accesses
        )

    def item_or_block(self, access: Access) -> Number | None:
        """Return the block of an access on a GPU, the work item on a CPU."""
        return access.block if self.kernel.threads else access.item

    def check_elements(
        self,
        name: str,
        accesses: Iterable[Access],
        *,
        by_thread: bool,
        among: Array | None = None,
    ) -> None:
        """Look for conflicts element by element.

        The arguments are those of ``check_pairs``. A conflict becomes a fault if all
        accesses are exact and no barrier may order them, else a note.
        """
        accesses = list(accesses)
        pairs_by_access = []
        line = accesses[0].line
        for access in accesses:
            owner = access.item if by_thread else self.item_or_block(access)
            pairs = None if owner is None else pairs_of(access, owner)
            if pairs is None:
                self.note(line, f"whether two write the same element of {name}")
                return
            if among is not None:
                is_among = np.isin(pairs[1], among)
                pairs = pairs[0][is_among], pairs[1][is_among]
            pairs_by_access.append(pairs)
        stored = [
            p
            for p, a in zip(pairs_by_access, accesses, strict=True)
            if a.kind == "store"
        ]
        # Two stores first, then a store and a load: pairs of written elements.
        clash = first_conflict(stored)
        if clash is None and len(stored) < len(pairs_by_access):
            written = np.unique(np.concatenate([element for element, _ in stored]))
            to_written = [
                (element[is_written], owner[is_written])
                for element, owner in pairs_by_access
                if (is_written := np.isin(element, written)).any()
            ]
            clash = first_conflict(to_written)
        if clash is None:
            return
        element, first_owner, second_owner = clash
        threads = self.kernel.threads
        noun = "threads" if threads and by_thread else "blocks" if threads else "items"
        text = (
            f"{noun} {first_owner} and {second_owner} both access element {element} "
            f"of {name}, and write it"
        )
        exact = all(is_exact(a) for a in accesses)
        same_block = (
            threads and by_thread and first_owner // threads == second_owner // threads
        )
        is_fault = exact and not (same_block and self.may_be_ordered(accesses))
        (self.find if is_fault else self.note)(line, text)


def access_set_of(accesses: Iterable[Access]) -> AccessSet:
    """Return the AccessSet of all ``accesses``, which are of one argument."""
    part = AccessSet()
    for access in accesses:
        add_access(part, access)
    return part


def add_access(part: AccessSet, access: Access, *, known: bool = True) -> None:
    """Add ``access`` to ``part``: its range, and its elements if it is exact.

    Unless ``known``, or if the elements cannot be enumerated, ``part`` is marked as
    incomplete instead.
    """
    low, high = extremes(access)
    exact = is_exact(access)
    lanes, residue = access.width if access.aligned else 1, 0
    if lanes > 1:
        residue = _residue(access.at, lanes)
    part.reaches.append(Reach(access.line, low, high, exact, lanes, residue))
    intervals = intervals_of(access) if exact and known else None
    if intervals is None:
        part.is_complete = False
    else:
        part.intervals = part.intervals.joined(intervals)


def _itemsize(parameter: Parameter) -> int:
    """Return the size in bytes of the elements that a parameter points to."""
    return BY_SHORT_NAME[parameter.kind.removesuffix("*")].itemsize


def _residue(x: Number, lanes: int) -> int | None:
    """Return ``x`` modulo ``lanes``; None if it is not the same everywhere.

    It can be the same only if each symbol's coefficient is a multiple of ``lanes``.
    """
    if any(c % lanes for c in x.terms.values()):
        return None
    residues = np.unique(np.asarray(x.base) % lanes)
    return int(residues[0]) if residues.size == 1 else None
