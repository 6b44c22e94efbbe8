"""Scans along long rows by persistent blocks, with prefetching and look-back.

A block claims parts of rows from a work queue and copies them to shared memory while it
computes others. It reduces a part in one iteration and publishes its total. Two
iterations later it reads the totals of earlier parts, which are published by then, and
scans the part. So blocks hardly wait for each other, and memory is read once.

There is no deadlock, however many blocks run at once. A block publishes its total
before it waits for others, and claims the next part after that; and it waits only for
parts that were claimed before all that it has not reduced yet.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final

from typing_extensions import override

from arrayfn.lowering.cuda.printer import AxisIndices
from arrayfn.lowering.cuda.scan_parts import AT_ONCE, PartsPrinter
from arrayfn.lowering.cuda.schedule import ScanPipeline
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import Load, Store

_OLDER: Final = ("second", "oldest")
"""The parts of a block that were reduced in the iterations before."""
_BEHIND: Final = len(_OLDER)


@dataclass
class ScanPipelinePrinter(PartsPrinter[ScanPipeline]):
    """Prints a block with three parts at a time: ``newest``, ``second``, ``oldest``.

    The newest is reduced, the oldest is scanned. Each has a number, a prefix of the
    warp within the part (``ahead``) and prefixes of a thread's vectors within the warp
    (``sums``), which are handed from iteration to iteration.
    """

    counter: str = ""  # index of the work queue in the flag buffer

    @override
    def body(self) -> None:
        """Print the kernel's lines: set-up, and the loop over the parts it claims."""
        store, slots = self.read_nest(), self.schedule.slots
        self.items = self.schedule.blocks
        words = max(1, self.reduce.result.dtype.itemsize // 4)
        # The flag buffer: the launches' count, a slot for the total of each part and of
        # each group of parts, and the work queue.
        slots_words = words * (self.all_parts + self.rows * self.groups)
        self.flag_words, self.has_begin = 2 + slots_words, True
        self.line("thread = thread_index()")
        self.begin_lanes("thread")
        count = self.integer("tiles", self.all_parts)
        self.counter = self.integer("counter", 1 + slots_words)
        loads, stores, moved = self.declare()
        self.begin_parts(count)
        ends = "newest"
        for name in _OLDER:
            ends = f"min_i64({ends}, {name})"
        with self.open(f"while {ends} < {count}:"):
            with self.open(f"if newest < {count}:"):
                self.sum_newest(loads, moved)
            self.line("barrier()")
            with self.open(f"if newest < {count}:"):
                self.scan_totals()
                self.publish("newest", self.total, "thread")
            if self.groups:
                self.sum_group(count)
            with self.open(f"if oldest < {count}:"):
                self.line("tile = oldest")
                self.number_part()
                self.sum_predecessors()
            # Not before: others would wait for the part as long as this block waits.
            self.line("taken = i64(0)")
            with self.open("if thread == 0:"):
                self.claim_part()
            # The oldest part leaves the place that the next one is fetched to.
            self.line(f"ring = remainder(iteration + {slots - _BEHIND}, {slots})")
            with self.open(f"if oldest < {count}:"):
                self.scan_oldest(loads, store, moved, stores)
            self.line("barrier()")
            with self.open("if thread == 0:"):
                self.copy_part("ring", count)
            if slots - _BEHIND == 1:
                self.line("barrier()")
            self.age_parts()
            self.line("iteration = iteration + 1")
            self.line(f"newest = numbers[remainder(iteration, {slots})]")
        with self.open("if thread == 0:"):
            blocks = self.integer("blocks", self.items)
            self.line(f"end_work_queue(flag_buffer, {self.counter}, {blocks})")

    @override
    def declare(self) -> tuple[list[int], list[int], tuple[int, ...]]:
        """Declare registers and shared memory.

        Returns the numbers of the operands that are loaded as vectors, of those that
        are stored, and of both without repetition.
        """
        schedule, total = self.schedule, self.total
        statements, lanes = self.nest.statements, schedule.lanes
        loads = self.vectors(statements, Load, lanes)
        stores = self.vectors(statements, Store, lanes)
        moved = tuple(dict.fromkeys((*loads, *stores)))
        self.declare_tiles(moved, lanes * schedule.tiles)
        for name in ("sums", *_OLDER):
            self.registers(f"{total}_{name}", self.dtype, schedule.tiles)
        self.registers(f"{total}_totals", self.dtype, AT_ONCE)
        for suffix in ("warps", "found", *(("group",) if self.groups else ())):
            self.shared_array(self.reduce.result, suffix, self.warps)
        slots = schedule.slots
        self.line(f"numbers = shared_i64({slots})")
        self.line(f"mbarriers = mbarriers_i64({slots})")
        self.dynamic_shared_arrays(schedule.row_operands, slots * self.tile_elements)
        return loads, stores, moved

    # Iterations.

    def begin_parts(self, count: str) -> None:
        """Begin to copy the first parts; none is reduced yet.

        ``count`` is the number of parts of all rows; a part numbered so stands for
        none.
        """
        slots = self.schedule.slots
        with self.open("if thread == 0:"):
            # One at a time: neighbouring parts are other blocks', as they are later on.
            self.claim_part()
            self.line("begin_work_queue(flag_buffer)")
            self.line(f"mbarrier_init(mbarriers, {slots})")
            self.line("fence_mbarrier_init()")
            for slot in range(slots - _BEHIND):
                if slot:
                    self.claim_part()
                self.copy_part(str(slot), count)
        self.line("barrier()")
        self.line("newest = numbers[0]")
        self.line(f"ahead = {self.constant(self.reduce.identity)}")
        for name in _OLDER:
            self.line(f"{name} = {count}")
            self.line(f"ahead_{name} = {self.constant(self.reduce.identity)}")
        self.line("iteration = i64(0)")

    def sum_newest(self, loads: Sequence[int], moved: Sequence[int]) -> None:
        """Reduce the newest part: the warp's total, and prefixes of its vectors.

        ``loads`` are the operands that are loaded, ``moved`` all that have registers.
        """
        slots = self.schedule.slots
        self.line(f"ring = remainder(iteration, {slots})")
        parity = f"remainder(quotient(iteration, {slots}), 2)"
        self.line(f"mbarrier_wait(mbarriers, ring, {parity})")
        self.line("tile = newest")
        variables = self.begin_part()
        self.load_all(loads, variables)
        with self.open(f"for vector in range({self.schedule.tiles}):"):
            self.line(
                f"{self.total}_sums[vector] = {self.constant(self.reduce.identity)}"
            )
        with self.open_vectors():
            self.line(f"{self.total} = {self.constant(self.reduce.identity)}")
            with self.open_accumulation(moved, variables):
                pass
            self.line(f"{self.total}_sums[vector] = {self.total}")
        self.scan_warps()
        self.store_warp_total("warps")

    def scan_oldest(
        self,
        loads: Sequence[int],
        store: Store,
        moved: Sequence[int],
        stores: Sequence[int],
    ) -> None:
        """Store the running values of the oldest part.

        Args:
            loads: The operands that are loaded as vectors.
            store: The statement that stores the running value.
            moved: The operands that have registers.
            stores: The operand that is stored as vectors, if it is.
        """
        self.line("tile = oldest")
        variables = self.begin_part()
        self.line(f"before = {self.combined('before', 'ahead_oldest')}")
        self.load_all(loads, variables)
        with self.open_vectors():
            start = self.combined("before", f"{self.total}_oldest[vector]")
            self.line(f"{self.total} = {start}")
            with self.open_accumulation(moved, variables) as at:
                self.emit(store, at)
            if stores:
                to = {**variables, self.inner: "first"}
                self.store_vector(stores[0], self.schedule.lanes, to, self.first_slot)

    def claim_part(self) -> None:
        """Set ``taken`` to the next part of the work queue."""
        self.line(f"taken = next_work_item(flag_buffer, {self.counter}, 1)")

    def age_parts(self) -> None:
        """Make the newest part the second, and the second the oldest."""
        total = self.total
        with self.open(f"for vector in range({self.schedule.tiles}):"):
            for before, after in reversed(list(pairwise(("sums", *_OLDER)))):
                self.line(f"{total}_{after}[vector] = {total}_{before}[vector]")
        aheads = ("ahead", *(f"ahead_{name}" for name in _OLDER))
        for names in (aheads, ("newest", *_OLDER)):
            for before, after in reversed(list(pairwise(names))):
                self.line(f"{after} = {before}")

    @override
    def sum_group(self, count: str) -> None:
        """Publish the total of a group of parts, if the part ``second`` is its last.

        That part was reduced in the iteration before. ``count`` is the number of parts
        of all rows.
        """
        parts = self.integer("parts", self.schedule.parts)
        self.line("tile = second")
        self.line(f"part = {self.remainder('tile', parts, self.all_parts + 1)}")
        last = f"remainder(part + 1, {self.group}) == 0"
        with self.open(f"if tile < {count} and {last}:"):
            self.publish_group(count)

    # Shared memory.

    def copy_part(self, slot: str, count: str) -> None:
        """Begin to copy the part ``taken``, if there is one, to the slot ``slot``.

        ``count`` is the number of parts of all rows.
        """
        self.line(f"numbers[{slot}] = taken")
        with self.open(f"if taken < {count}:"):
            self.line("tile = taken")
            variables = {**self.begin_part(), self.inner: "begin"}
            size = str(self.tile_elements)
            if self.nest.axes[self.inner].extent % self.tile_elements:
                rest = f"{self.extent(self.inner)} - begin"
                self.line(f"size = min_i64({size}, {rest})")
                size = "size"
            target = f"{slot} * {self.tile_elements}"
            at = partial(self.index, variables=variables)
            self.bulk_copy_all(self.schedule.row_operands, at, target, size, slot)

    @contextmanager
    def open_vectors(self) -> Generator[None]:
        """Open the loop over a thread's vectors, each at ``place`` of its part."""
        schedule = self.schedule
        with self.open(f"for vector in range({schedule.tiles}):"):
            text = f"((warp * {schedule.tiles} + vector) * {WARP} + lane)"
            self.line(f"place = {text} * {schedule.lanes}")
            self.line("first = begin + place")
            with self.open_if(self.exists):
                yield

    @override
    def load_vector(
        self, operand: int, lanes: int, variables: AxisIndices, register: str
    ) -> None:
        """As in ``CudaPrinter``, but from shared memory if the part is copied there."""
        if operand not in self.schedule.row_operands:
            super().load_vector(operand, lanes, variables, register)
            return
        load = f"load_{self.vector_name(operand, lanes)}"
        source = f"{self.shared_name(operand)}, ring * {self.tile_elements} + place"
        self.line(f"{load}({source}, {self.tile_name(operand)}, {register})")
