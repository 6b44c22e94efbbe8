"""Bulk copies of rows to shared memory, slice by slice.

A slice is one vector for each thread of a block. The slices of a cluster's blocks
interleave, so that the blocks move along the row together. Shared memory has
``prefetch_rows`` slots for rows, which iterations use round-robin; the slices of a slot
are contiguous there.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from arrayfn.lowering.cuda.merged_rows import MergedRowsPrinter
from arrayfn.lowering.cuda.schedule import Pipeline
from arrayfn.records import record


@record
class SlicesPrinter(MergedRowsPrinter[Pipeline]):
    """Prints the bulk copies that bring rows to shared memory."""

    @property
    def rows(self) -> str:
        """The expression of the number of rows."""
        return self.extent_of(self.kept_axes, "rows") if self.kept_axes else "1"

    @property
    def thread(self) -> str:
        """The kernel's variable for a thread's number in its row group."""
        return "thread" if self.schedule.cluster > 1 else "member"

    @property
    def is_ragged(self) -> bool:
        """Whether some threads have fewer vectors of a row than others."""
        return not self.schedule.is_full(self.row_elements())

    @property
    def size(self) -> str:
        """The expression of the number of elements of a row that this block has.

        If some threads have fewer vectors than others, this is the kernel's variable
        ``size``; otherwise it is the same number for all blocks.
        """
        full = self.schedule.tiles * self.schedule.slice
        return "size" if self.is_ragged else str(full)

    @contextmanager
    def open_slices(self, first: int = 0) -> Generator[None]:
        """Open the loop over the block's slices, from the ``first`` on.

        Defines ``vector``, the slice's number, and ``begin``, the index of its first
        element in the row. In ragged rows it also defines ``count``, the slice's
        elements, and skips slices without any. The kernel's ``rank`` is the block's
        number in its cluster.
        """
        schedule, slice_ = self.schedule, self.schedule.slice
        span = f"{first}, {schedule.tiles}" if first else str(schedule.tiles)
        with self.open(f"for vector in range({span}):"):
            # The slices of a row go to the blocks of a cluster round-robin.
            number = f"(vector * {schedule.cluster} + rank)"
            number = number if schedule.cluster > 1 else "vector"
            self.line(f"begin = {number} * {slice_}")
            if self.is_ragged:
                rest = f"{self.extent(self.reduced_axes[0])} - begin"
                self.line(f"count = min_i64({slice_}, {rest})")
            with self.open_if("count > 0" if self.is_ragged else ""):
                yield

    def copy_slice(self, operand: int, row: str, target: str, mbarrier: str) -> None:
        """Begin to copy the current slice of a row of ``operand``.

        Args:
            operand: The operand's number.
            row: The index at which the row begins in global memory.
            target: The index of the slice in the operand's shared array.
            mbarrier: The number of the mbarrier that counts the bytes.
        """
        source = "begin" if row == "0" else f"{row} + begin"
        count = "count" if self.is_ragged else str(self.schedule.slice)
        self.bulk_copy(operand, source, target, count, mbarrier)

    def copy_row(self, number: str, iteration: str) -> None:
        """Begin to copy row ``number``, if there is one, to the slot of ``iteration``.

        Both are expressions. One thread of the block runs this. The slot's mbarrier
        completes when the row has arrived. Indices are printed without the hoisted
        offsets, which belong to the row of the current iteration.
        """
        schedule, hoisted = self.schedule, (self.offsets, self.offset_axes)
        self.offsets, self.offset_axes = {}, frozenset()
        with self.open(f"if {number} < {self.rows}:"):
            variables = self.decompose(number, self.kept_axes, letter="j")
            slot = self.row_slot(iteration)
            self.expect_bytes(schedule.row_operands, self.size, slot)
            with self.open_slices():
                for operand in schedule.row_operands:
                    row = self.index(operand, variables)
                    self.copy_slice(operand, row, self.slice_offset(slot), slot)
        self.offsets, self.offset_axes = hoisted

    def row_slot(self, iteration: str) -> str:
        """Return the expression of the slot for the row of ``iteration``.

        It may print a line that defines ``ring``. The slot's mbarrier has the same
        number.
        """
        slots = self.schedule.prefetch_rows
        if slots == 1 or iteration == "0":
            return "0"
        if not iteration.isdigit():
            self.line(f"ring = remainder({iteration}, {slots})")
        return iteration if iteration.isdigit() else "ring"

    def slice_offset(self, slot: str) -> str:
        """Return the index in shared memory of the current slice of the row in a slot.

        ``slot`` is the expression of the slot's number. ``vector`` is the variable of
        the printed loop.
        """
        slice_, tiles = self.schedule.slice, self.schedule.tiles
        if slot == "0":
            return f"vector * {slice_}"
        return f"({slot} * {tiles} + vector) * {slice_}"
