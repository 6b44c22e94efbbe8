"""Kernels of running values along rows whose parts are fetched ahead.

Blocks stay, and take the parts of rows in turns. A part is copied to shared memory
while others are computed. In its turn a block sums it up, and posts what it comes to;
two turns later it finds what is before the part, which has been posted by then, and
scans it. So no block waits for another, and memory is read once.

Who takes a part before another block takes the next one posts it without waiting for
anything that comes later, so it does not matter how many blocks run at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from arrayfn.lowering.cuda.scan_parts import PartsPrinter
from arrayfn.lowering.cuda.schedule import ScanPipeline
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import Load, Reduce, Store

BEHIND: Final = 2
"""Turns from when a part is summed up to when it is scanned."""


@dataclass
class ScanPipelinePrinter(PartsPrinter[ScanPipeline]):
    """A block has three parts at a time: ``newest``, ``second``, ``oldest``.

    The first is summed up, the last scanned. Their numbers, what is before the warp in
    the part (``ahead``) and before its vectors (``sums``) move on from turn to turn.
    """

    counter: str = ""  # where parts are counted that were taken

    def body(self) -> None:
        store, slots = self.read_nest(), self.schedule.slots
        self.items = self.schedule.blocks
        words = max(1, self.reduce.result.dtype.itemsize // 4)
        places = words * (self.all_parts + self.rows * self.groups)
        self.board_words, self.has_begin = 2 + places, True
        self.line(f"thread = {self.use_device('thread_index')}()")
        self.begin_lanes("thread")
        count = self.integer("tiles", self.all_parts)
        self.counter = self.integer("counter", 1 + places)
        loads, stores, moved = self.declare()
        self.begin_parts(count)
        remainder, least = self.use_device("remainder"), self.use("min_i64")
        ends = f"{least}({least}(newest, second), oldest)"
        self.open(f"while {ends} < {count}:")
        # A part is taken late, to be summed up soon after, but is known in time.
        self.open("if thread == 0 and takes > 0:")
        take = self.use_device("take")
        self.line(f"taken = {take}(board, {self.counter}, 1)")
        self.close()
        self.open(f"if newest < {count}:")
        self.sum_newest(loads, moved)
        self.close()
        self.line(f"{self.use_device('barrier')}()")
        self.open(f"if newest < {count}:")
        self.scan_totals()
        self.post("newest", self.total, "thread")
        self.close()
        if self.groups:
            self.sum_group(count)
        # The oldest part leaves the place that the next one is fetched to.
        self.line(f"ring = {remainder}(turn + {slots - BEHIND}, {slots})")
        self.open(f"if oldest < {count}:")
        self.scan_oldest(loads, store, moved, stores)
        self.close()
        self.line(f"{self.use_device('barrier')}()")
        self.open("if thread == 0:")
        self.take_next(count)
        self.close()
        if slots - BEHIND == 1:
            self.line(f"{self.use_device('barrier')}()")
        self.move_on()
        self.line("turn = turn + 1")
        self.line(f"newest = numbers[{remainder}(turn, {slots})]")
        self.close()

    def declare(self) -> tuple[list[int], list[int], tuple[int, ...]]:
        """Memory of the thread and of the block."""
        schedule, total = self.schedule, self.total
        statements, lanes = self.nest.statements, schedule.lanes
        loads = self.vectors(statements, Load, lanes)
        stores = self.vectors(statements, Store, lanes)
        moved = tuple(dict.fromkeys((*loads, *stores)))
        self.declare_tiles(moved, lanes * schedule.tiles)
        for suffix in ("sums", "second", "oldest"):
            self.registers(f"{total}_{suffix}", self.dtype, schedule.tiles)
        for suffix in ("warps", "found", *(("group",) if self.groups else ())):
            self.shared_array(self.reduce, suffix, self.warps)
        slots, offset = schedule.slots, 0
        self.line(f"numbers = {self.use_device('shared_i64')}({slots})")
        self.line(f"signals = {self.use_device('signals_i64')}({slots})")
        for operand in schedule.fetched:
            dtype = self.nest.operands[operand].dtype
            arena = self.use_device(f"arena_{self.stored_name(dtype)}")
            size = slots * self.at_a_time
            self.line(f"{self.arena_name(operand)} = {arena}({offset}, {size})")
            offset += size * dtype.itemsize
        return loads, stores, moved

    # Turns.

    def begin_parts(self, count: str) -> None:
        """Have the first parts fetched; there are none yet that were summed up."""
        slots, take = self.schedule.slots, self.use_device("take")
        self.open("if thread == 0:")
        self.open(f"for slot in range({slots}):")
        self.line(f"{self.use_device('signal_init')}(signals, slot)")
        self.close()
        # One at a time: neighbouring parts are other blocks', as they are later on.
        self.open(f"for slot in range({slots - BEHIND}):")
        self.line(f"taken = {take}(board, {self.counter}, 1)")
        self.line("numbers[slot] = taken")
        self.open(f"if taken < {count}:")
        self.fetch_part("slot")
        self.close()
        self.close()
        self.line(f"{self.use_device('open_board')}(board)")
        self.close()
        self.line(f"{self.use_device('barrier')}()")
        self.line("newest = numbers[0]")
        self.line(f"second = {count}")
        self.line(f"oldest = {count}")
        for name in ("ahead", "ahead_second", "ahead_oldest"):
            self.line(f"{name} = {self.constant(self.reduce.identity)}")
        self.line(f"turn = {self.use('i64')}(0)")
        self.line(f"takes = {self.use('i64')}(1)")

    def sum_newest(self, loads: Sequence[int], moved: Sequence[int]) -> None:
        """What is before each vector in its warp, and what the warp has."""
        slots = self.schedule.slots
        remainder, quotient = self.use_device("remainder"), self.use_device("quotient")
        self.line(f"ring = {remainder}(turn, {slots})")
        parity = f"{remainder}({quotient}(turn, {slots}), 2)"
        self.line(f"{self.use_device('await_signal')}(signals, ring, {parity})")
        self.line("tile = newest")
        variables = self.begin_part()
        self.load_all(loads, variables)
        self.open(f"for vector in range({self.schedule.tiles}):")
        self.line(f"{self.total}_sums[vector] = {self.constant(self.reduce.identity)}")
        self.close()
        depth = self.open_vectors()
        self.line(f"{self.total} = {self.constant(self.reduce.identity)}")
        self.run_along(moved, variables)
        self.close_elements()
        self.line(f"{self.total}_sums[vector] = {self.total}")
        self.close_all(depth)
        self.scan_warps()
        self.leave_total("warps")

    def scan_oldest(
        self,
        loads: Sequence[int],
        store: Store,
        moved: Sequence[int],
        stores: Sequence[int],
    ) -> None:
        """Store the values of the oldest part."""
        self.line("tile = oldest")
        variables = self.begin_part()
        self.find_before()
        self.line(f"before = {self.combined('before', 'ahead_oldest')}")
        self.load_all(loads, variables)
        depth = self.open_vectors()
        start = self.combined("before", f"{self.total}_oldest[vector]")
        self.line(f"{self.total} = {start}")
        at = self.run_along(moved, variables)
        self.emit(store, at)
        self.close_elements()
        if stores:
            to = {**variables, self.inner: "first"}
            self.store_vector(stores[0], self.schedule.lanes, to, self.first_slot)
        self.close_all(depth)

    def run_along(
        self, moved: Sequence[int], variables: dict[int, str]
    ) -> dict[int, str]:
        """Open the loop over a vector's elements, and combine each with the total."""
        at = self.open_elements(variables, moved)
        for s in self.nest.statements:
            if isinstance(s, Reduce):
                self.accumulate(s)
            elif not isinstance(s, Store):
                self.emit(s, at)
        return at

    def take_next(self, count: str) -> None:
        """Have the part fetched that was taken, if there is one."""
        self.line("numbers[ring] = taken")
        self.open(f"if taken < {count}:")
        self.fetch_part("ring")
        self.close()
        self.open(f"if taken >= {count} and takes > 0:")
        blocks = self.integer("blocks", self.items)
        close = self.use_device("close_board")
        self.line(f"{close}(board, {self.counter}, {blocks})")
        self.line(f"takes = {self.use('i64')}(0)")
        self.close()

    def move_on(self) -> None:
        """The newest part becomes the second one, and that the oldest."""
        total = self.total
        self.open(f"for vector in range({self.schedule.tiles}):")
        self.line(f"{total}_oldest[vector] = {total}_second[vector]")
        self.line(f"{total}_second[vector] = {total}_sums[vector]")
        self.close()
        self.line("ahead_oldest = ahead_second")
        self.line("ahead_second = ahead")
        self.line("oldest = second")
        self.line("second = newest")

    def sum_group(self, count: str) -> None:
        """Post what the parts of a group come to, if it ends with the second part.

        The last warp does: the others look for what is before the oldest one already.
        """
        group, parts = self.group, self.integer("parts", self.schedule.parts)
        quotient, remainder = self.use_device("quotient"), self.use_device("remainder")
        self.line("tile = second")
        self.line(f"part = {self.remainder('tile', parts, self.all_parts + 1)}")
        own = f"warp == {self.warps - 1} and tile < {count}"
        self.open(f"if {own} and {remainder}(part + 1, {group}) == 0:")
        self.line(f"before = {self.constant(self.reduce.identity)}")
        self.open(f"for item in range({group // WARP}):")
        posted = self.use_device(f"posted_{self.dtype}")
        other = f"{posted}(board, tile - {group - 1} + item * {WARP} + lane)"
        self.line(f"before = {self.combined('before', other)}")
        self.close()
        self.combine_lanes("before", WARP)
        row = self.quotient("tile", parts, self.all_parts)
        number = f"{row} * {self.groups_of_row} + {quotient}(part, {group})"
        self.line(f"number = {count} + {number}")
        self.post("number", "before")
        self.close()

    # Shared memory.

    def arena_name(self, operand: int) -> str:
        return self.tile_name(operand).removesuffix("tile") + "ahead"

    def fetch_part(self, slot: str) -> None:
        """Begin to copy the part ``taken`` to a slot."""
        self.line("tile = taken")
        variables = {**self.begin_part(), self.inner: "begin"}
        size = str(self.at_a_time)
        if self.nest.axes[self.inner].extent % self.at_a_time:
            rest = f"{self.extent(self.inner)} - begin"
            self.line(f"size = {self.use('min_i64')}({size}, {rest})")
            size = "size"
        fetched = self.schedule.fetched
        width = sum(self.nest.operands[k].dtype.itemsize for k in fetched)
        expect = self.use_device("expect")
        self.line(f"{expect}(signals, {slot}, {size} * {width})")
        for operand in fetched:
            dtype = self.nest.operands[operand].dtype
            fetch = self.use_device(f"fetch_{self.stored_name(dtype)}")
            source = f"{self.pointer(operand)}, {self.index(operand, variables)}"
            target = f"{self.arena_name(operand)}, {slot} * {self.at_a_time}"
            self.line(f"{fetch}({source}, {target}, {size}, signals, {slot})")

    def open_vectors(self) -> int:
        """Open the loop over a thread's vectors, each at ``place`` of its part."""
        schedule, depth = self.schedule, 1
        self.open(f"for vector in range({schedule.tiles}):")
        text = f"((warp * {schedule.tiles} + vector) * {WARP} + lane)"
        self.line(f"place = {text} * {schedule.lanes}")
        self.line("first = begin + place")
        if self.nest.axes[self.inner].extent % self.at_a_time:
            self.open(f"if first < {self.extent(self.inner)}:")
            depth += 1
        return depth

    def load_vector(
        self, operand: int, lanes: int, variables: dict[int, str], place: str
    ) -> None:
        if operand not in self.schedule.fetched:
            super().load_vector(operand, lanes, variables, place)
            return
        load = self.use_device(f"load_{self.vector_name(operand, lanes)}")
        source = f"{self.arena_name(operand)}, ring * {self.at_a_time} + place"
        self.line(f"{load}({source}, {self.tile_name(operand)}, {place})")
