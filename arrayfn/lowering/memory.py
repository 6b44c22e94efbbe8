"""The memory plan: offsets in one arena for all temporaries, by their lifetimes."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from arrayfn.records import frozen

ALIGNMENT = 64  # bytes, a cache line and a vector
MAX_OVERLAPS: Final = 300_000
"""Pairs of overlapping lifetimes up to which the largest are placed first."""


@frozen(slots=True)
class Lifetime:
    """A need for ``nbytes`` of memory from step ``first`` to ``last``, inclusive."""

    nbytes: int
    first: int
    last: int

    @property
    def size(self) -> int:
        """The bytes of the arena that it takes, aligned."""
        return -(-self.nbytes // ALIGNMENT) * ALIGNMENT


def lay_out(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Choose an offset in the arena for each lifetime; also return the arena's size.

    Greedy by size: the largest first, each at the lowest offset that no overlapping
    lifetime uses (Pisarchyk and Lee, Efficient Memory Management for
    Deep Neural Net Inference, 2020, section 5.2). Where very many overlap they
    get the first gap that fits, in the order in which they begin.

    >>> lay_out([Lifetime(64, 0, 1), Lifetime(64, 1, 2), Lifetime(64, 2, 3)])
    ([0, 64, 0], 128)
    """
    overlaps = _overlaps(lifetimes)
    if overlaps is None:
        return _first_fit(lifetimes)
    order = sorted(range(len(lifetimes)), key=lambda k: (-lifetimes[k].nbytes, k))
    offsets = [-1] * len(lifetimes)
    size = 0
    for k in order:
        size_needed = lifetimes[k].size
        occupied = sorted(
            (offsets[j], offsets[j] + lifetimes[j].size)
            for j in overlaps[k]
            if offsets[j] >= 0
        )
        offset = 0
        for begin, end in occupied:
            if offset + size_needed <= begin:
                break
            offset = max(offset, end)
        offsets[k] = offset
        size = max(size, offset + size_needed)
    return offsets, size


def _in_order(lifetimes: Sequence[Lifetime]) -> list[int]:
    """Return the indices of lifetimes, sorted by first step, then larger ones first."""
    keys = [(x.first, -x.nbytes, k) for k, x in enumerate(lifetimes)]
    return [k for _, _, k in sorted(keys)]


def _overlaps(lifetimes: Sequence[Lifetime]) -> list[list[int]] | None:
    """Return for each lifetime the indices of those that overlap it in time.

    None if there are more than ``MAX_OVERLAPS`` pairs.
    """
    overlaps: list[list[int]] = [[] for _ in lifetimes]
    living: list[tuple[int, int]] = []  # a heap of (last step, number)
    count = 0
    for k in _in_order(lifetimes):
        lifetime = lifetimes[k]
        while living and living[0][0] < lifetime.first:
            heapq.heappop(living)
        count += len(living)
        if count > MAX_OVERLAPS:
            return None
        for _, j in living:
            overlaps[k].append(j)
            overlaps[j].append(k)
        heapq.heappush(living, (lifetime.last, k))
    return overlaps


def _first_fit(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Choose offsets by first fit, in order of first steps; also return the size.

    Each lifetime gets the first gap that is large enough. Without one it is put at the
    end of the arena, which grows; a gap that reaches the end is used as a part of it.
    """
    offsets = [0] * len(lifetimes)
    living: list[tuple[int, int]] = []  # a heap of (last step, number)
    gaps: list[tuple[int, int]] = []  # (begin, end) of free bytes, in ascending order
    size = 0
    for k in _in_order(lifetimes):
        lifetime = lifetimes[k]
        while living and living[0][0] < lifetime.first:
            _, ended = heapq.heappop(living)
            _add_gap(gaps, offsets[ended], offsets[ended] + lifetimes[ended].size)
        heapq.heappush(living, (lifetime.last, k))
        for number, (begin, end) in enumerate(gaps):
            if end - begin >= lifetime.size:
                gaps[number : number + 1] = (
                    [(begin + lifetime.size, end)]
                    if begin + lifetime.size < end
                    else []
                )
                offsets[k] = begin
                break
        else:
            begin = gaps.pop()[0] if gaps and gaps[-1][1] == size else size
            offsets[k] = begin
            size = begin + lifetime.size
    return offsets, size


def _add_gap(gaps: list[tuple[int, int]], begin: int, end: int) -> None:
    """Add the bytes from ``begin`` to ``end`` to the free ``gaps``.

    Gaps are ordered, and merged where they touch.
    """
    if begin == end:
        return
    index = bisect_left(gaps, (begin, end))
    if index < len(gaps) and gaps[index][0] == end:
        end = gaps.pop(index)[1]
    if index and gaps[index - 1][1] == begin:
        index -= 1
        begin = gaps.pop(index)[0]
    gaps.insert(index, (begin, end))
