"""Which bytes of a plan's buffers have been written, as its steps run.

Temporaries share one arena: a write to one of them destroys those that overlap with it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import field

from arrayfn.ir import ArrayType
from arrayfn.lowering.plan import BufferAllocation
from arrayfn.lowering.verify.intervals import NOTHING, Intervals
from arrayfn.records import record

Span = tuple[int, int]
"""The first byte and the one after the last, counted from the first element."""


def span_of(type: ArrayType) -> Span:
    """Return the Span of bytes of an array of ``type``.

    It begins below 0 if strides are negative.
    """
    low, count = type.span()
    return low * type.dtype.itemsize, (low + count) * type.dtype.itemsize


@record
class Coverage:
    """Which bytes of each buffer have been written, at a point of the plan.

    Attributes:
        buffers: the plan's buffers.
        surely: the bytes that are written in every run, by number of the buffer.
        perhaps: the bytes that may be written, a superset of ``surely``.
        owners: ``(offset, number)`` of the temporaries whose contents are in the arena,
            sorted; they do not overlap.
    """

    buffers: Sequence[BufferAllocation]
    surely: dict[int, Intervals] = field(default_factory=dict[int, Intervals])
    perhaps: dict[int, Intervals] = field(default_factory=dict[int, Intervals])
    owners: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def begin(self) -> None:
        """Set the state at the start of a call: inputs and constants are written.

        An output in the memory of a donated input counts as written too.
        """
        for number, b in enumerate(self.buffers):
            if b.kind in ("input", "constant") or b.donor is not None:
                self.write(number, Intervals.one(*span_of(b.type)))

    def assign(self, other: Coverage) -> None:
        """Replace this state by that of ``other``."""
        self.surely, self.perhaps = other.surely, other.perhaps
        self.owners = other.owners

    def copy(self) -> Coverage:
        """Return a copy that can be changed without changing this state."""
        return Coverage(
            self.buffers, dict(self.surely), dict(self.perhaps), list(self.owners)
        )

    def write(self, number: int, intervals: Intervals, *, surely: bool = True) -> None:
        """Record that the bytes ``intervals`` of buffer ``number`` are written.

        If they are not written ``surely``, they are added only to ``perhaps``. Writing
        a temporary destroys the contents of temporaries that overlap with it.
        """
        if not intervals:
            return
        self._claim_arena(number)
        before = self.perhaps.get(number, NOTHING)
        self.perhaps[number] = before.joined(intervals)
        if surely:
            self.surely[number] = self.surely.get(number, NOTHING).joined(intervals)

    def _claim_arena(self, number: int) -> None:
        """Make temporary ``number`` the owner of its part of the arena.

        Other temporaries that overlap with it lose their contents. Does nothing for
        other buffers.
        """
        b = self.buffers[number]
        if b.kind != "temporary":
            return
        owners = self.owners
        k = bisect_left(owners, (b.offset, number))
        if k < len(owners) and owners[k] == (b.offset, number):
            return
        # Owners first..last - 1 overlap with [b.offset, b.offset + b.nbytes).
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
        """Return the end of a temporary, an entry of ``owners``, in the arena."""
        return owner[0] + self.buffers[owner[1]].nbytes

    def merged(self, other: Coverage) -> Coverage:
        """Return the state after two branches, which end in this state and ``other``.

        Bytes are surely written if they are in both states, and perhaps written if they
        are in one. A temporary that one branch has overwritten is not surely written.
        """
        both_ways = self.copy()
        surely = {
            k: common
            for k, intervals in self.surely.items()
            if (common := intervals.common(other.surely.get(k, NOTHING)))
        }
        both_ways.surely = surely
        for number, intervals in other.perhaps.items():
            both_ways.perhaps[number] = both_ways.perhaps.get(number, NOTHING).joined(
                intervals
            )
        if both_ways.owners != other.owners:
            own_owners, other_owners = set(self.owners), set(other.owners)
            for _, number in own_owners ^ other_owners:
                both_ways.surely.pop(number, None)
            both_ways.owners = sorted(own_owners & other_owners)
        return both_ways

    def overlap(self, first: int, second: int) -> bool:
        """Whether the buffers with these numbers have memory in common.

        Temporaries may overlap in the arena, and an output may have the memory of a
        donated input.
        """
        x, y = self.buffers[first], self.buffers[second]
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
