"""The memory plan: temporaries laid into one arena by their lifetimes."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ALIGNMENT = 64
MOST_MEETINGS: Final = 300_000
"""Pairs of lifetimes that meet, up to which those are placed by their size."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """``nbytes`` needed from step ``first`` to step ``last``, both included."""

    nbytes: int
    first: int
    last: int

    @property
    def size(self) -> int:
        """The bytes that it takes in the arena, aligned."""
        return -(-self.nbytes // ALIGNMENT) * ALIGNMENT


def lay_out(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """An offset for each lifetime, and the size of the arena.

    Greedy by size: the largest first, each at the lowest offset where nothing that
    lives at the same time lies (Pisarchyk and Lee, Efficient Memory Management for
    Deep Neural Net Inference, 2020, section 5.2). Where very many live at the same time
    they are placed as they come, and their memory is reused when they have gone.

    >>> lay_out([Lifetime(64, 0, 1), Lifetime(64, 1, 2), Lifetime(64, 2, 3)])
    ([0, 64, 0], 128)
    """
    meetings = _meetings(lifetimes)
    if meetings is None:
        return _as_they_come(lifetimes)
    order = sorted(range(len(lifetimes)), key=lambda k: (-lifetimes[k].nbytes, k))
    offsets = [-1] * len(lifetimes)
    size = 0
    for k in order:
        need = lifetimes[k].size
        taken = sorted(
            (offsets[j], offsets[j] + lifetimes[j].size)
            for j in meetings[k]
            if offsets[j] >= 0
        )
        offset = 0
        for begin, end in taken:
            if offset + need <= begin:
                break
            offset = max(offset, end)
        offsets[k] = offset
        size = max(size, offset + need)
    return offsets, size


def _in_order(lifetimes: Sequence[Lifetime]) -> list[int]:
    """The lifetimes' numbers by their first step, the larger of equals first."""
    keys = [(x.first, -x.nbytes, k) for k, x in enumerate(lifetimes)]
    return [k for _, _, k in sorted(keys)]


def _meetings(lifetimes: Sequence[Lifetime]) -> list[list[int]] | None:
    """The lifetimes that overlap with each; None if they are very many."""
    meetings: list[list[int]] = [[] for _ in lifetimes]
    living: list[tuple[int, int]] = []
    count = 0
    for k in _in_order(lifetimes):
        own = lifetimes[k]
        while living and living[0][0] < own.first:
            heapq.heappop(living)
        count += len(living)
        if count > MOST_MEETINGS:
            return None
        for _, j in living:
            meetings[k].append(j)
            meetings[j].append(k)
        heapq.heappush(living, (own.last, k))
    return meetings


def _as_they_come(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Offsets by first fit, in the order in which lifetimes begin."""
    offsets = [0] * len(lifetimes)
    living: list[tuple[int, int]] = []
    gaps: list[tuple[int, int]] = []  # from, to: ordered, apart
    size = 0
    for k in _in_order(lifetimes):
        own = lifetimes[k]
        while living and living[0][0] < own.first:
            _, gone = heapq.heappop(living)
            _give_back(gaps, offsets[gone], offsets[gone] + lifetimes[gone].size)
        heapq.heappush(living, (own.last, k))
        for number, (begin, end) in enumerate(gaps):
            if end - begin >= own.size:
                gaps[number : number + 1] = (
                    [(begin + own.size, end)] if begin + own.size < end else []
                )
                offsets[k] = begin
                break
        else:
            begin = gaps.pop()[0] if gaps and gaps[-1][1] == size else size
            offsets[k] = begin
            size = begin + own.size
    return offsets, size


def _give_back(gaps: list[tuple[int, int]], begin: int, end: int) -> None:
    """Add a gap, joined with its neighbours."""
    if begin == end:
        return
    place = bisect_left(gaps, (begin, end))
    if place < len(gaps) and gaps[place][0] == end:
        end = gaps.pop(place)[1]
    if place and gaps[place - 1][1] == begin:
        place -= 1
        begin = gaps.pop(place)[0]
    gaps.insert(place, (begin, end))
