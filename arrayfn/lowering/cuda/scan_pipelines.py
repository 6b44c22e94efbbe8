"""Running values of long rows, of which the next parts are fetched meanwhile.

Blocks that stay take the parts of rows in turns: while one waits for what is before its
part, the next ones are on their way to its shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from arrayfn.lowering.cuda.scans import ScanPrinter
from arrayfn.lowering.cuda.schedule import ScanPipeline
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import Load, Store


@dataclass
class ScanPipelinePrinter(ScanPrinter[ScanPipeline]):
    """One reduction, stored as it goes; parts of rows pass through shared memory."""

    source: str = ""  # the place of a part that is fetched

    def body(self) -> None:
        self.prepare()
        schedule, statements = self.schedule, self.nest.statements
        (store,) = (s for s in statements if isinstance(s, Store))
        self.items, self.has_begin = schedule.blocks, True
        remainder = self.use_device("remainder")
        self.line(f"thread = {self.use_device('thread_index')}()")
        self.line(f"lane = {remainder}(thread, {WARP})")
        self.line(f"warp = {self.use_device('quotient')}(thread, {WARP})")
        loads = self.vectors(statements, Load, schedule.lanes)
        stores = self.vectors(statements, Store, schedule.lanes)
        moved = tuple(dict.fromkeys((*loads, *stores)))
        self.declare_values(moved)
        self.shared_array(self.reduce, "warps", self.warps)
        self.line(f"block = {self.take_ticket()}")
        tiles = self.integer("tiles", self.rows * schedule.parts)
        self.begin_fetches(tiles)
        self.line(f"turn = {self.use('i64')}(0)")
        self.open(f"for tile in range(block, {tiles}, blocks):")
        variables = self.find_part()
        self.hoist_offsets(variables)
        self.line(f"slot_of_turn = {remainder}(turn, {schedule.slots})")
        half = f"{self.use_device('quotient')}(turn, {schedule.slots})"
        await_signal = self.use_device("await_signal")
        self.line(f"{await_signal}(signals, slot_of_turn, {remainder}({half}, 2))")
        self.load_fetched()
        self.scan_threads(moved, variables)
        self.scan_warps()
        self.scan_blocks(goes_on=False)
        # All have passed a barrier since they read what was fetched.
        self.open("if thread == 0:")
        self.line(f"following = tile + {schedule.slots} * blocks")
        self.fetch(tiles, "slot_of_turn")
        self.close()
        self.look_back()
        self.store_all(store, moved, stores, variables)
        self.line("turn = turn + 1")
        self.close()

    @property
    def fetched_name(self) -> str:
        return self.stored_name(self.nest.operands[self.schedule.fetched].dtype)

    def begin_fetches(self, tiles: str) -> None:
        """Signals, and the first parts on their way."""
        schedule, name = self.schedule, self.fetched_name
        arena = self.use_device(f"arena_{name}")
        self.line(f"ring = {arena}(0, {schedule.slots * self.reach})")
        self.line(f"signals = {self.use_device('signals_i64')}({schedule.slots})")
        places = dict.fromkeys(self.kept_axes, "row_of_part")
        places[self.inner] = "first_of_part"
        self.source = self.index(schedule.fetched, places)
        self.open("if thread == 0:")
        self.open(f"for slot in range({schedule.slots}):")
        self.line(f"{self.use_device('signal_init')}(signals, slot)")
        self.line("following = block + slot * blocks")
        self.fetch(tiles, "slot")
        self.close()
        self.close()
        self.line(f"{self.use_device('barrier')}()")

    def fetch(self, tiles: str, slot: str) -> None:
        """Have the part ``following`` of all, if there is one, copied to a slot."""
        schedule, total = self.schedule, self.rows * self.schedule.parts
        n = self.extent(self.inner)
        size = self.nest.operands[schedule.fetched].dtype.itemsize
        self.open(f"if following < {tiles}:")
        part = "following"
        if self.kept_axes:
            parts = self.integer("parts", schedule.parts)
            self.line(f"row_of_part = {self.quotient('following', parts, total)}")
            part = f"(following - row_of_part * {parts})"
        self.line(f"first_of_part = {part} * {self.reach}")
        count = f"{self.use('min_i64')}({n} - first_of_part, {self.reach})"
        self.line(f"size = {count}")
        self.line(f"{self.use_device('expect')}(signals, {slot}, size * {size})")
        fetch = self.use_device(f"fetch_{self.fetched_name}")
        self.line(f"place = {self.source}")
        where = f"{self.pointer(schedule.fetched)}, place, ring, {slot} * {self.reach}"
        self.line(f"{fetch}({where}, size, signals, {slot})")
        self.close()

    def load_fetched(self) -> None:
        """A thread's vectors; behind a row's end there may be anything."""
        schedule, lanes = self.schedule, self.schedule.lanes
        self.open(f"for vector in range({schedule.tiles}):")
        first = f"((warp * {schedule.tiles} + vector) * {WARP} + lane) * {lanes}"
        self.line(f"place = slot_of_turn * {self.reach} + {first}")
        load = self.use_device(f"load_{self.fetched_name}x{lanes}")
        tile = self.tile_name(schedule.fetched)
        self.line(f"{load}(ring, place, {tile}, vector * {lanes})")
        self.close()
