"""Sets of elements as sorted, disjoint intervals; and which threads access them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from arrayfn.lowering.verify.interpreter import Access
from arrayfn.lowering.verify.numbers import (
    Array,
    Lanes,
    Number,
    Symbol,
    enumerated,
)
from arrayfn.records import frozen

MAX_INTERVALS: Final = 1 << 18
"""The most intervals, or elements, that are computed one by one."""


@frozen(slots=True, eq=False)
class Intervals:
    """A set of integers, as disjoint intervals: from ``starts`` to before ``stops``."""

    starts: Array
    stops: Array

    @staticmethod
    def of(starts: Array, stops: Array) -> Intervals:
        """Return the union of intervals that may overlap and come in any order.

        Sorted by their starts, a run of intervals is merged up to the first that starts
        behind all earlier stops.
        """
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], np.maximum.accumulate(stops[order])
        first = np.ones(starts.size, bool)
        first[1:] = starts[1:] > ends[:-1]
        begins = np.flatnonzero(first)
        last = np.append(begins[1:] - 1, starts.size - 1)
        return Intervals(starts[begins], ends[last]) if starts.size else NOTHING

    @staticmethod
    def one(start: int, stop: int) -> Intervals:
        """Return a single interval, or NOTHING if ``stop <= start``."""
        if stop <= start:
            return NOTHING
        return Intervals(np.array([start]), np.array([stop]))

    def __bool__(self) -> bool:
        """Whether the set has elements."""
        return bool(self.starts.size)

    def scaled(self, size: int, offset: int) -> Intervals:
        """Convert elements to bytes: ``size`` per element, element 0 at ``offset``."""
        return Intervals(self.starts * size + offset, self.stops * size + offset)

    def joined(self, other: Intervals) -> Intervals:
        """Return the union of both sets."""
        if not other:
            return self
        if not self:
            return other
        starts = np.concatenate([self.starts, other.starts])
        return Intervals.of(starts, np.concatenate([self.stops, other.stops]))

    def missing(self, other: Intervals) -> tuple[int, int] | None:
        """Return the first (start, stop) of ``other`` that is not in this set.

        Returns None if ``other`` is a subset.
        """
        if not other:
            return None
        if not self:
            return int(other.starts[0]), int(other.stops[0])
        # The interval of this set that begins last before each interval of the other.
        k = np.searchsorted(self.starts, other.starts, side="right") - 1
        inside = (k >= 0) & (self.stops[k] >= other.stops)
        if inside.all():
            return None
        first = int(np.flatnonzero(~inside)[0])
        run = int(other.starts[first]), int(other.stops[first])
        gaps = self.common(Intervals.one(*run)).gaps(*run)
        return int(gaps.starts[0]), int(gaps.stops[0])

    def common(self, other: Intervals) -> Intervals:
        """Return the intersection of both sets."""
        if not self or not other:
            return NOTHING
        # The complement of the union of complements.
        lowest = min(int(self.starts[0]), int(other.starts[0]))
        highest = max(int(self.stops[-1]), int(other.stops[-1]))
        gaps = self.gaps(lowest, highest).joined(other.gaps(lowest, highest))
        return gaps.gaps(lowest, highest)

    def gaps(self, start: int, stop: int) -> Intervals:
        """Return the elements from ``start`` to before ``stop`` not in this set.

        The set must lie within this range.
        """
        starts = np.concatenate([[start], self.stops])
        stops = np.concatenate([self.starts, [stop]])
        is_gap = stops > starts
        return Intervals(starts[is_gap], stops[is_gap]) if is_gap.any() else NOTHING


NOTHING: Final = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def intervals_of(access: Access) -> Intervals | None:
    """Return the set of elements that ``access`` accesses; None if not known exactly.

    A run of neighbouring elements begins with the access's width. In order of strides,
    dimensions whose stride is at most the run's length make the run longer; each of the
    others multiplies the number of runs. For ``10 i + j`` with 3 values of i and 5 of
    j, there are runs of 5 elements from 0, 10 and 20. Returns None if there are too
    many runs, too.
    """
    low, dims = _dimensions(access)
    if any(not counted for *_, counted in dims):
        return None
    starts = _spread(low, access.count)
    length: Lanes = access.width
    dims.sort(key=lambda d: d[0])
    while dims and np.all(np.asarray(dims[0][0]) <= length):
        stride, extent, _ = dims.pop(0)
        length = length + stride * (extent - 1)
    lengths = _spread(length, access.count)
    for stride, extent, _ in dims:
        if isinstance(extent, int):
            sizes = np.full(starts.size, extent)
        elif starts.size == access.count:
            sizes = _spread(extent, access.count)
        else:
            return None
        if starts.size * int(sizes.max()) > MAX_INTERVALS:
            return None
        run, number = enumerated(sizes)
        starts, lengths = starts[run] + number * stride, lengths[run]
    return Intervals.of(starts, starts + lengths)


def extremes(access: Access) -> tuple[int, int]:
    """Return the first and the last element that ``access`` may access."""
    low, high = access.at.range(access.bounds)
    return int(np.min(low)), int(np.max(high)) + access.width - 1


def is_exact(access: Access) -> bool:
    """Whether all elements of ``access`` are accessed, whatever the data."""
    symbols = access.at.terms
    return access.surely and all(s.counted for s in symbols)


_Dimension = tuple[int, Lanes, bool]
"""A stride in elements, an extent, and whether each of these elements is accessed."""


def _dimensions(access: Access) -> tuple[Lanes, list[_Dimension]]:
    """Return the smallest element, and a dimension for each symbol that varies."""
    low, _ = access.at.range(access.bounds)
    dims: list[_Dimension] = []
    for symbol, c in access.at.terms.items():
        low_index, high_index = access.bounds[symbol]
        n = high_index - low_index + 1
        if np.any(np.asarray(n) > 1):
            dims.append((abs(c), n, symbol.counted))
    return low, dims


def _spread(x: Lanes, count: int) -> Array:
    """Return ``x`` as an array with one number for each of ``count`` lanes."""
    return np.broadcast_to(np.asarray(x, np.int64), (count,))


# Conflicts between threads.


def pairs_of(access: Access, who: Number) -> tuple[Array, Array] | None:
    """Return the pairs (element, thread) of an access, as two arrays.

    ``who`` is the number of the thread, block or work item that makes the access. Both
    numbers are enumerated for all values of the symbols that they depend on. Returns
    None if there are too many pairs.
    """
    symbols = dict.fromkeys([*access.at.terms, *who.terms])
    at, item = (_spread(x.base, access.count) for x in (access.at, who))
    lanes = np.arange(access.count)
    for symbol in symbols:
        if symbol.same:
            continue
        low, high = (_spread(x, access.count)[lanes] for x in access.bounds[symbol])
        sizes = high - low + 1
        total = int(sizes.sum())
        if total * access.width > MAX_INTERVALS:
            return None
        if total == lanes.size and not low.any():
            continue  # the symbol is 0
        index, values = enumerated(sizes)
        values = values + low[index]
        at = at[index] + values * access.at.terms.get(symbol, 0)
        item = item[index] + values * who.terms.get(symbol, 0)
        lanes = lanes[index]
    if access.width > 1:
        at = (at[:, None] + np.arange(access.width)).reshape(-1)
        item = np.repeat(item, access.width)
    return at, item


def is_disjoint(access: Access, who: Number) -> bool:
    """Whether strides show that each element is accessed by only one thread.

    ``who`` is the number of the thread, block or work item. If there are several lanes,
    their ranges of elements must not overlap either. False if this does not show it.
    """
    dims: list[tuple[int, int, bool]] = []
    for symbol in dict.fromkeys([*access.at.terms, *who.terms]):
        if not symbol.same:
            low, high = access.bounds[symbol]
            steps = int(np.max(np.asarray(high) - np.asarray(low)))
            stride = abs(access.at.terms.get(symbol, 0))
            dims.append((stride, steps, symbol in who.terms))
    if not _strides_separate(access.width - 1, dims):
        return False
    if access.count == 1:
        return True
    low, high = (_spread(x, access.count) for x in access.at.range(access.bounds))
    order = np.argsort(low, kind="stable")
    is_apart = low[order][1:] >= np.maximum.accumulate(high[order])[:-1] + access.width
    return bool(is_apart.all())


def _strides_separate(reach: int, dims: Iterable[tuple[int, int, bool]]) -> bool:
    """Whether the strides of an index keep the elements of threads apart.

    Strides are taken in ascending order. A stride that leads to another thread, and
    each larger one, must exceed the last element that smaller strides reach. For ``10 i
    + j`` with 5 values of j, stride 10 exceeds element 4, so threads i are apart.

    Args:
        reach: the last element that is reached without a step.
        dims: (stride, number of steps, whether a step leads to another thread) for each
            dimension.
    """
    only_inner = True
    for stride, steps, leads_to_thread in sorted(dims):
        if not steps:
            continue
        only_inner = only_inner and not leads_to_thread
        if stride <= reach and not only_inner:
            return False
        reach += stride * steps
    return True


def are_disjoint(accesses: Sequence[tuple[Access, Number]]) -> bool:
    """Whether the strides show that no element is accessed by two threads.

    ``accesses`` are pairs of an access and the number of its thread. All accesses must
    depend on the thread in the same way. Then the index of each is a number in a mixed
    radix with the same weights (strides), some of whose digits are the thread; the
    other digits may have different ranges. The strides are tested with the largest
    range of each digit. False if this does not show it.
    """
    first_access, first_number = accesses[0]
    who = dict(first_number.terms)
    same = {s: c for s, c in first_access.at.terms.items() if s.same}
    lows: list[int] = []
    highs: list[int] = []
    # (stride, minimum, maximum) of each digit. The key of a digit of the thread is its
    # symbol; the key of another digit is its stride.
    digits: dict[Symbol | int, tuple[int, int, int]] = {}
    for access, number in accesses:
        if (
            access.count != 1
            or dict(number.terms) != who
            or number.base != first_number.base
            or {s: c for s, c in access.at.terms.items() if s.same} != same
        ):
            return False
        base, steps_by_stride = int(np.min(access.at.base)), dict[int, int]()
        for symbol in dict.fromkeys([*access.at.terms, *who]):
            if symbol in same:
                continue
            stride = access.at.terms.get(symbol, 0)
            first, last = (int(np.min(x)) for x in access.bounds[symbol])
            if symbol not in who:
                # Count the digit from 0 upwards: its smallest value goes to ``base``.
                base += stride * (first if stride > 0 else last)
                steps = steps_by_stride.get(abs(stride), 0) + last - first
                steps_by_stride[abs(stride)] = steps
                continue
            known_stride, low, high = digits.get(symbol, (stride, first, last))
            if known_stride != stride:
                return False
            digits[symbol] = stride, min(low, first), max(high, last)
        for stride, steps in steps_by_stride.items():
            _, _, most = digits.get(stride, (stride, 0, 0))
            digits[stride] = stride, 0, max(most, steps)
        lows.append(base)
        highs.append(base + access.width - 1)
    dims = [
        (abs(stride), high - low, s in who) for s, (stride, low, high) in digits.items()
    ]
    return _strides_separate(max(highs) - min(lows), dims)


def same_elements(x: Access, y: Access, x_number: Number, y_number: Number) -> bool:
    """Whether each thread accesses the same elements in ``x`` and ``y``.

    ``x_number`` and ``y_number`` are the threads of the accesses.
    """
    return (
        x.count == y.count
        and dict(x.at.terms) == dict(y.at.terms)
        and dict(x_number.terms) == dict(y_number.terms)
        and bool(np.all(np.asarray(x.at.base) == np.asarray(y.at.base)))
        and bool(np.all(np.asarray(x_number.base) == np.asarray(y_number.base)))
    )


def first_conflict(pairs: Sequence[tuple[Array, Array]]) -> tuple[int, int, int] | None:
    """Return (element, thread, other thread) of a conflict; None if there is none.

    ``pairs`` are arrays of elements and of the threads that access them. In the sorted
    pairs, a conflict is a pair of neighbours with one element and two threads.
    """
    at = np.concatenate([a for a, _ in pairs])
    who = np.concatenate([b for _, b in pairs])
    order = np.lexsort((who, at))
    at, who = at[order], who[order]
    clash = np.flatnonzero((at[1:] == at[:-1]) & (who[1:] != who[:-1]))
    if not clash.size:
        return None
    k = int(clash[0])
    return int(at[k]), int(who[k]), int(who[k + 1])
