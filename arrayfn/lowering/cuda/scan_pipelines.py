"""Scans along long rows by persistent blocks, with prefetching and look-back.

A block claims parts of rows from a work queue and copies them to shared memory while it
computes others. It reduces a part in one iteration and publishes its total. Two
iterations later it reads the totals of earlier parts, which have been published by
then, and scans the part. So blocks hardly wait for each other, and memory is read once.

There is no deadlock, however many blocks run at once. A block publishes its total
before it waits for others, and claims the next part after that; and it only waits for
parts that were claimed before all parts that it has not reduced yet.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from itertools import pairwise
from typing import Final

from typing_extensions import override

from arrayfn.lowering.cuda.printer import AxisIndices
from arrayfn.lowering.cuda.scan_parts import FLAGS_AT_ONCE, PartsPrinter
from arrayfn.lowering.cuda.schedule import ScanPipeline
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.records import record

_OLDER: Final = ("second", "oldest")
"""Names of the parts of a block that were reduced one and two iterations before."""
_BEHIND: Final = len(_OLDER)
"""Iterations from the reduction of a part to its scan."""


@record
class ScanPipelinePrinter(PartsPrinter[ScanPipeline]):
    """Prints a block with three parts at a time: ``newest``, ``second``, ``oldest``.

    The newest part is reduced, the oldest is scanned. For each of the three there is
    its number, a prefix of the warp within the part (``ahead``, ``ahead_second``,
    ``ahead_oldest``) and prefixes of a thread's vectors within the warp (``a_sums``,
    ``a_second``, ``a_oldest`` for ``a = cumsum(x)``). They are passed on from iteration
    to iteration. Further variables:

    * ``numbers`` and ``mbarriers`` (shared memory): the number of the part in each
      slot, and the barrier of the copies to it.
    * ``ring``: the slot that an iteration reads from, or copies to.
    * ``taken``: the part that was claimed last.
    """

    part_counter: str = ""
    """The parameter with the index of the work queue in the flag buffer."""

    @override
    def body(self) -> None:
        """Print the kernel's lines: set-up, and the loop over the parts it claims."""
        self.read_nest()
        words = max(1, self.reduce.result.dtype.itemsize // 4)
        self.items = self.schedule.blocks
        # The flag buffer: the launches' count, a slot for the total of each part and of
        # each group of parts, and the work queue.
        slots_words = words * (self.all_parts + self.rows * self.groups)
        self.flag_words, self.has_begin = 2 + slots_words, True
        self.line("thread = thread_index()")
        self.define_lane_and_warp("thread")
        count = self.part_count
        self.part_counter = self.integer("counter", 1 + slots_words)
        self.declare()
        self.begin_parts()
        # The loop ends when all three numbers are beyond the last part.
        ends = "newest"
        for name in _OLDER:
            ends = f"min_i64({ends}, {name})"
        with self.open(f"while {ends} < {count}:"):
            self.print_iteration()
        with self.open("if thread == 0:"):
            blocks = self.integer("blocks", self.items)
            self.line(f"end_work_queue(flag_buffer, {self.part_counter}, {blocks})")

    def print_iteration(self) -> None:
        """Print an iteration: reduce a part, scan another, begin to copy a third.

        The total of the reduced part is published before the block waits for other
        blocks.
        """
        count, slots = self.part_count, self.schedule.slots
        with self.open(f"if newest < {count}:"):
            self.reduce_newest()
        self.line("barrier()")
        with self.open(f"if newest < {count}:"):
            self.scan_totals()
            self.publish("newest", self.total, "thread")
        if self.groups:
            self.sum_group()
        with self.open(f"if oldest < {count}:"):
            self.line("tile = oldest")
            self.define_part()
            self.sum_predecessors()
        # A part is claimed only now: claimed before the wait for predecessors, it would
        # make other blocks wait as long as this block does.
        self.line("taken = i64(0)")
        with self.open("if thread == 0:"):
            self.claim_part()
        # The oldest part leaves the slot that the next one is copied to.
        self.line(f"ring = remainder(iteration + {slots - _BEHIND}, {slots})")
        with self.open(f"if oldest < {count}:"):
            self.scan_oldest()
        self.line("barrier()")
        with self.open("if thread == 0:"):
            self.copy_part("ring")
        if slots - _BEHIND == 1:
            # The next iteration already reads the number that was just stored.
            self.line("barrier()")
        self.age_parts()
        self.line("iteration = iteration + 1")
        self.line(f"newest = numbers[remainder(iteration, {slots})]")

    @override
    def declare(self) -> None:
        """Declare registers and shared memory.

        The class describes them. Besides, ``a_totals`` are registers for totals that
        are read, and ``a_found`` and ``a_group`` shared arrays for ``combine_block``.
        """
        schedule, total = self.schedule, self.total
        self.declare_tiles(self.in_registers, schedule.lanes * schedule.tiles)
        for name in ("sums", *_OLDER):
            self.registers(f"{total}_{name}", self.dtype, schedule.tiles)
        self.registers(f"{total}_totals", self.dtype, FLAGS_AT_ONCE)
        for suffix in ("warps", "found", *(("group",) if self.groups else ())):
            self.shared_array(self.reduce.result, suffix, self.warps)
        slots = schedule.slots
        self.line(f"numbers = shared_i64({slots})")
        self.line(f"mbarriers = mbarriers_i64({slots})")
        self.dynamic_shared_arrays(schedule.row_operands, slots * self.tile_elements)

    # Iterations.

    def begin_parts(self) -> None:
        """Begin to copy the first parts, before any is reduced.

        Where there is no part, its number is the count of all parts.
        """
        slots = self.schedule.slots
        with self.open("if thread == 0:"):
            # Parts are claimed one at a time, so that neighbours go to other blocks.
            self.claim_part()
            self.line("begin_work_queue(flag_buffer)")
            self.line(f"mbarrier_init(mbarriers, {slots})")
            self.line("fence_mbarrier_init()")
            # The other slots are free until the first part is the oldest.
            for slot in range(slots - _BEHIND):
                if slot:
                    self.claim_part()
                self.copy_part(str(slot))
        self.line("barrier()")
        self.line("newest = numbers[0]")
        self.line(f"ahead = {self.identity}")
        for name in _OLDER:
            self.line(f"{name} = {self.part_count}")
            self.line(f"ahead_{name} = {self.identity}")
        self.line("iteration = i64(0)")

    def reduce_newest(self) -> None:
        """Reduce the newest part: the warp's total, and the prefixes of its vectors."""
        slots = self.schedule.slots
        self.line(f"ring = remainder(iteration, {slots})")
        parity = f"remainder(quotient(iteration, {slots}), 2)"
        self.line(f"mbarrier_wait(mbarriers, ring, {parity})")
        self.line("tile = newest")
        self.begin_part()
        self.load_all()
        with self.open_vector_sums():
            pass  # running values are computed when the part is scanned
        self.scan_warps()
        self.store_warp_total("warps")

    def scan_oldest(self) -> None:
        """Store the running values of the oldest part.

        ``before`` is the total of the parts before it. Prints, besides its elements'
        loads:

            tile = oldest
            before = add_f32(before, ahead_oldest)
            for vector in range(4):
                a = add_f32(before, a_oldest[vector])
                for slot in range(4):
                    x = x_tile[vector * 4 + slot]
                    a = add_f32(a, x)
                    a_tile[vector * 4 + slot] = a
                store_f32x4(a_out, row + first, a_tile, vector * 4)
        """
        self.line("tile = oldest")
        self.begin_part()
        self.line(f"before = {self.combined('before', 'ahead_oldest')}")
        self.load_all()
        with self.open_vectors():
            prefix = self.combined("before", f"{self.total}_oldest[vector]")
            self.line(f"{self.total} = {prefix}")
            with self.open_accumulation() as indices:
                self.emit(self.result_store, indices)
            if self.stores:
                self.store_result_vector()

    def claim_part(self) -> None:
        """Set ``taken`` to the next part of the work queue."""
        self.line(f"taken = next_work_item(flag_buffer, {self.part_counter}, 1)")

    def age_parts(self) -> None:
        """Make the newest part the second, and the second the oldest.

        Prints, for the sum ``a`` of two vectors a thread:

            for vector in range(2):
                a_oldest[vector] = a_second[vector]
                a_second[vector] = a_sums[vector]
            ahead_oldest = ahead_second
            ahead_second = ahead
            oldest = second
            second = newest
        """
        total = self.total
        with self.open(f"for vector in range({self.schedule.tiles}):"):
            for newer, older in _from_oldest("sums", *_OLDER):
                self.line(f"{total}_{older}[vector] = {total}_{newer}[vector]")
        aheads = ("ahead", *(f"ahead_{name}" for name in _OLDER))
        for names in (aheads, ("newest", *_OLDER)):
            for newer, older in _from_oldest(*names):
                self.line(f"{older} = {newer}")

    @override
    def sum_group(self) -> None:
        """Publish the total of a group of parts, if the part ``second`` is its last.

        That part was reduced one iteration before. ``second`` is the count of all parts
        if there is none.
        """
        parts = self.parts
        self.line("tile = second")
        self.line(f"part = {self.remainder('tile', parts, self.all_parts + 1)}")
        with self.open(f"if tile < {self.part_count} and {self.ends_group}:"):
            self.publish_group()

    # Shared memory.

    def copy_part(self, slot: str) -> None:
        """Begin to copy the part ``taken``, if there is one, to the slot ``slot``.

        Prints, besides the copies and the lines of ``begin_part``, for a last part that
        may be shorter than 4096 elements:

            numbers[0] = taken
            if taken < tiles:
                tile = taken
                size = min_i64(4096, n1 - begin)
        """
        self.line(f"numbers[{slot}] = taken")
        with self.open(f"if taken < {self.part_count}:"):
            self.line("tile = taken")
            self.begin_part()
            size = str(self.tile_elements)
            if self.nest.axes[self.inner].extent % self.tile_elements:
                rest = f"{self.extent(self.inner)} - begin"
                self.line(f"size = min_i64({size}, {rest})")
                size = "size"
            target = f"{slot} * {self.tile_elements}"
            self.expect_bytes(self.schedule.row_operands, size, slot)
            for operand in self.schedule.row_operands:
                source = self.index(operand, {**self.row, self.inner: "begin"})
                self.bulk_copy(operand, source, target, size, slot)

    @contextmanager
    def open_vectors(self) -> Generator[None]:
        """Open the loop over a thread's vectors, each at ``place`` of its part.

        ``first`` is its index in the row, in which the part begins at ``begin``.
        """
        schedule = self.schedule
        with self.open(f"for vector in range({schedule.tiles}):"):
            text = f"((warp * {schedule.tiles} + vector) * {WARP} + lane)"
            self.line(f"place = {text} * {schedule.lanes}")
            self.line("first = begin + place")
            with self.open_if(self.vector_exists):
                yield

    @override
    def load_vector(
        self, operand: int, lanes: int, variables: AxisIndices, register: str
    ) -> None:
        """Load a vector as in ``CudaPrinter``, or from shared memory if it is there.

        The ``row_operands`` of the schedule are copied to shared memory. The kernel's
        ``ring`` is the slot of the part, and ``place`` the vector's index in the part.
        """
        if operand not in self.schedule.row_operands:
            super().load_vector(operand, lanes, variables, register)
            return
        load = f"load_{self.vector_name(operand, lanes)}"
        source = f"{self.shared_name(operand)}, ring * {self.tile_elements} + place"
        self.line(f"{load}({source}, {self.tile_name(operand)}, {register})")


def _from_oldest(*names: str) -> list[tuple[str, str]]:
    """Return the pairs of successive ``names``, the last pair first.

    ("sums", "second", "oldest") gives ("second", "oldest"), then ("sums", "second"):
    each name is read before it is overwritten.
    """
    return list(reversed(list(pairwise(names))))
