"""Which bytes of a plan's buffers have been written, as its steps run.

Temporaries lie in one arena: who is written to owns that part of it, and what another
had there is gone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from arrayfn.ir import ArrayType
from arrayfn.lowering.plan import BufferAllocation
from arrayfn.lowering.verify.intervals import NOTHING, Intervals

Span = tuple[int, int]
"""The first byte and the one after the last, from an array's first element on."""


def span_of(type: ArrayType) -> Span:
    """Where the elements of an array of ``type`` lie."""
    low, count = type.span()
    return low * type.dtype.itemsize, (low + count) * type.dtype.itemsize


@dataclass
class Coverage:
    """What is ``surely`` written of each buffer, and what ``perhaps`` is, or more.

    ``owners`` are temporaries, by where they begin in the arena.
    """

    buffers: Sequence[BufferAllocation]
    surely: dict[int, Intervals] = field(default_factory=dict[int, Intervals])
    perhaps: dict[int, Intervals] = field(default_factory=dict[int, Intervals])
    owners: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def begin(self) -> None:
        """As a call of the plan begins: inputs and constants are there."""
        for number, b in enumerate(self.buffers):
            if b.kind in ("input", "constant") or b.donor is not None:
                self.write(number, Intervals.one(*span_of(b.type)))

    def become(self, other: Coverage) -> None:
        """Have what ``other`` has."""
        self.surely, self.perhaps = other.surely, other.perhaps
        self.owners = other.owners

    def copy(self) -> Coverage:
        """The same, to be changed."""
        return Coverage(
            self.buffers, dict(self.surely), dict(self.perhaps), list(self.owners)
        )

    def write(self, number: int, intervals: Intervals, *, surely: bool = True) -> None:
        """Note that ``intervals`` of a buffer are written."""
        if not intervals:
            return
        self._own(number)
        whole = self.perhaps.get(number, NOTHING)
        self.perhaps[number] = whole.joined(intervals)
        if surely:
            self.surely[number] = self.surely.get(number, NOTHING).joined(intervals)

    def _own(self, number: int) -> None:
        b = self.buffers[number]
        if b.kind != "temporary":
            return
        owners = self.owners
        k = bisect_left(owners, (b.offset, number))
        if k < len(owners) and owners[k] == (b.offset, number):
            return
        first = k
        while first and self._end(owners[first - 1]) > b.offset:
            first -= 1
        last = k
        while last < len(owners) and owners[last][0] < b.offset + b.nbytes:
            last += 1
        for _, other in owners[first:last]:
            self.surely.pop(other, None)
            self.perhaps.pop(other, None)
        owners[first:last] = [(b.offset, number)]

    def _end(self, owner: tuple[int, int]) -> int:
        return owner[0] + self.buffers[owner[1]].nbytes

    def met(self, other: Coverage) -> Coverage:
        """What is written in either of two ways that the plan may have come."""
        made = self.copy()
        surely = {
            k: both
            for k, intervals in self.surely.items()
            if (both := intervals.common(other.surely.get(k, NOTHING)))
        }
        made.surely = surely
        for number, intervals in other.perhaps.items():
            made.perhaps[number] = made.perhaps.get(number, NOTHING).joined(intervals)
        if made.owners != other.owners:
            # What either way wrote over is gone.
            ours, theirs = set(self.owners), set(other.owners)
            for _, number in ours ^ theirs:
                made.surely.pop(number, None)
            made.owners = sorted(ours & theirs)
        return made

    def overlap(self, one: int, other: int) -> bool:
        """Whether two buffers have memory in common."""
        x, y = self.buffers[one], self.buffers[other]
        if x.kind == y.kind == "temporary":
            return (
                x.offset < y.offset + y.nbytes
                and y.offset < x.offset + x.nbytes
                and bool(x.nbytes and y.nbytes)
            )
        for a, b in ((x, y), (y, x)):
            if a.kind == "output" and b.kind == "input" and a.donor == b.index:
                return bool(a.nbytes)
        return False
