"""Rows that pass through shared memory: which slices a block copies, and where to.

A slice is one vector for each thread of a block. The slices of a cluster's blocks
interleave, so that the blocks move along the row together.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from arrayfn.lowering.cuda.merged_rows import MergedRowsPrinter
from arrayfn.lowering.cuda.schedule import Pipeline


@dataclass
class SlicesPrinter(MergedRowsPrinter[Pipeline]):
    """Prints copies of rows; ``fetch_row`` begins the copy of an iteration's row."""

    @property
    def rows(self) -> str:
        """How many there are."""
        return self.extent_of(self.kept_axes, "rows") if self.kept_axes else "1"

    @property
    def thread(self) -> str:
        """The name of what tells the threads of a row apart."""
        return "thread" if self.schedule.cluster > 1 else "member"

    @property
    def is_ragged(self) -> bool:
        """Whether some threads have fewer vectors of a row than others."""
        return not self.schedule.is_full(self.row_elements())

    @property
    def size(self) -> str:
        """How many elements the block has of a row."""
        whole = self.schedule.tiles * self.schedule.slice
        return "size" if self.is_ragged else str(whole)

    @contextmanager
    def open_slices(self, first: int = 0) -> Generator[None]:
        """Open the loop over the block's slices, from the ``first`` on.

        Each has ``count`` elements, from ``begin`` on; some block's last one has none.
        """
        schedule, slice_ = self.schedule, self.schedule.slice
        span = f"{first}, {schedule.tiles}" if first else str(schedule.tiles)
        with self.open(f"for vector in range({span}):"):
            number = f"(vector * {schedule.cluster} + rank)"
            number = number if schedule.cluster > 1 else "vector"
            self.line(f"begin = {number} * {slice_}")
            if self.is_ragged:
                rest = f"{self.extent(self.reduced_axes[0])} - begin"
                self.line(f"count = min_i64({slice_}, {rest})")
            with self.open_if("count > 0" if self.is_ragged else ""):
                yield

    def fetch_slice(self, operand: int, at: str, place: str, mbarrier: str) -> None:
        """Begin to copy the current slice of what begins ``at`` an index."""
        at = "begin" if at == "0" else f"{at} + begin"
        count = "count" if self.is_ragged else str(self.schedule.slice)
        self.fetch(operand, at, place, count, mbarrier)

    def shared_name(self, operand: int) -> str:
        name = super().shared_name(operand)
        is_held = operand in self.schedule.held
        return f"{name.removesuffix('ahead')}held" if is_held else name

    def fetch_row(self, number: str, iteration: str) -> None:
        """Begin to copy the row ``number``, if there is one, for ``iteration``."""
        schedule, own = self.schedule, (self.offsets, self.offset_axes)
        self.offsets, self.offset_axes = {}, frozenset()
        with self.open(f"if {number} < {self.rows}:"):
            variables = self.decompose(number, self.kept_axes, "j")
            mbarrier = self.ring(iteration)
            self.mbarrier_expect_all(schedule.fetched, self.size, mbarrier)
            with self.open_slices():
                for operand in schedule.fetched:
                    at = self.index(operand, variables)
                    self.fetch_slice(operand, at, self.place_in(mbarrier), mbarrier)
        self.offsets, self.offset_axes = own

    def ring(self, iteration: str) -> str:
        """The mbarrier of an iteration's row, which is the number of its place, too."""
        ahead = self.schedule.ahead
        if ahead == 1 or iteration == "0":
            return "0"
        if not iteration.isdigit():
            self.line(f"ring = remainder({iteration}, {ahead})")
        return iteration if iteration.isdigit() else "ring"

    def place_in(self, ring: str) -> str:
        """The place of the current slice, of the row whose place is ``ring``."""
        slice_, tiles = self.schedule.slice, self.schedule.tiles
        if ring == "0":
            return f"vector * {slice_}"
        return f"({ring} * {tiles} + vector) * {slice_}"
