"""Kernels of long rows that are fetched ahead: blocks go from row to row.

While a block computes a row, which it has in registers, copies of the next ones run to
its shared memory. What is the same for all rows stays there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.rows import RowsPrinter
from arrayfn.lowering.cuda.schedule import Pipeline
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import Value


@dataclass
class PipelinePrinter(RowsPrinter[Pipeline]):
    """A cluster of blocks has a row, each block a part of it."""

    shared_lines: list[str] = field(default_factory=list[str])

    def body(self) -> None:
        kept, schedule = self.kept_axes, self.schedule
        cluster, slots = schedule.cluster, schedule.slots
        self.items = schedule.clusters * cluster
        n = self.extent(self.reduced_axes[0])
        part = self.integer("part", schedule.part)
        if cluster > 1:
            self.share_row(cluster, schedule.threads)
            self.line(f"begin = rank * {part}")
            self.line(f"size = {self.use('min_i64')}({part}, {n} - begin)")
            sizes = list(map(self.exchanged_bytes, self.exchanged_stages()))
            self.make_signals(sizes if len(sizes) > 1 else sizes * 2, slots + 1)
        else:
            self.line(f"member = {self.use_device('thread_index')}()")
            self.line(f"start = {self.use_device('block_index')}()")
            self.line(f"signals = {self.use_device('signals_i64')}({slots + 1})")
        self.arenas()
        self.open("if member == 0:")
        self.open(f"for slot in range({slots + 1}):")
        self.line(f"{self.use_device('signal_init')}(signals, slot)")
        self.close()
        self.close()
        if cluster > 1:
            self.line(f"{self.use_device('cluster_arrive')}()")
            self.line(f"{self.use_device('cluster_wait')}()")
        else:
            self.line(f"{self.use_device('barrier')}()")
        count = self.extent_of(kept, "rows") if kept else "1"
        clusters = self.integer("clusters", schedule.clusters)
        self.open("if member == 0:")
        if schedule.held:
            self.fetch(schedule.held, {}, str(slots), "")
        self.open(f"for slot in range({slots}):")
        self.line(f"other = start + slot * {clusters}")
        self.fetch_row(count, "slot")
        self.close()
        self.close()
        if schedule.held:
            wait = self.use_device("await_signal")
            self.line(f"{wait}(signals, {slots}, 0)")
        self.line(f"turn = {self.use('i64')}(0)")
        before = len(self.lines)
        self.open(f"for item in range(start, {count}, {clusters}):")
        self.take_row(count, clusters)
        variables = self.decompose("item", kept)
        self.hoist_offsets(variables)
        self.stages(variables, "thread" if cluster > 1 else "member")
        self.line("turn = turn + 1")
        self.close()
        self.lines[before:before] = self.shared_lines

    # Shared memory.

    def shared_array(self, value: Value, suffix: str, count: int) -> None:
        """The array is one for all rows: it is declared before the first."""
        shared = self.use_device(f"shared_{short_name(value.dtype)}")
        name = f"{self.name_of(value)}_{suffix}"
        self.shared_lines.append(f"    {name} = {shared}({count})")

    def arena_name(self, operand: int) -> str:
        suffix = "held" if operand in self.schedule.held else "ahead"
        return self.tile_name(operand).removesuffix("tile") + suffix

    def arenas(self) -> None:
        """Names for the parts of the block's shared memory."""
        schedule, offset = self.schedule, 0
        for operand in (*schedule.fetched, *schedule.held):
            dtype = self.nest.operands[operand].dtype
            places = schedule.slots if operand in schedule.fetched else 1
            count = places * schedule.part
            arena = self.use_device(f"arena_{self.stored_name(dtype)}")
            self.line(f"{self.arena_name(operand)} = {arena}({offset}, {count})")
            offset += count * dtype.itemsize

    def fetch(
        self,
        operands: Sequence[int],
        variables: dict[int, str],
        signal: str,
        place: str,
    ) -> None:
        """Begin to copy this block's part of ``operands`` to shared memory."""
        size = "size" if self.schedule.cluster > 1 else self.extent_of_row()
        width = sum(self.nest.operands[k].dtype.itemsize for k in operands)
        expect = self.use_device("expect")
        self.line(f"{expect}(signals, {signal}, {size} * {width})")
        for operand in operands:
            dtype = self.nest.operands[operand].dtype
            fetch = self.use_device(f"fetch_{self.stored_name(dtype)}")
            at = self.index(operand, variables)
            if self.schedule.cluster > 1:
                at = "begin" if at == "0" else f"{at} + begin"
            target = f"{self.arena_name(operand)}, {place or 0}"
            source = f"{self.pointer(operand)}, {at}"
            self.line(f"{fetch}({source}, {target}, {size}, signals, {signal})")

    def extent_of_row(self) -> str:
        return self.extent(self.reduced_axes[0])

    def fetch_row(self, rows: str, slot: str) -> None:
        """Begin to copy the row ``other``, if there is one, to a slot."""
        self.offsets, self.offset_axes = {}, frozenset()
        self.open(f"if other < {rows}:")
        variables = self.decompose("other", self.kept_axes)
        self.fetch(self.schedule.fetched, variables, slot, f"{slot} * part")
        self.close()

    def take_row(self, rows: str, clusters: str) -> None:
        """Take this turn's row into registers, and have another one fetched."""
        schedule, slots = self.schedule, self.schedule.slots
        wait = self.use_device("await_signal")
        slot = "0"
        if slots > 1:
            self.line(f"slot = {self.use_device('remainder')}(turn, {slots})")
            slot = "slot"
            turns = f"{self.use_device('quotient')}(turn, {slots})"
        else:
            turns = "turn"
        parity = f"{self.use_device('remainder')}({turns}, 2)"
        self.line(f"{wait}(signals, {slot}, {parity})")
        self.declare_tiles(schedule.fetched, schedule.lanes * schedule.tiles)
        _, depth = self.open_row({}, "member")
        at = "place" if slots == 1 else "slot * part + place"
        for operand in schedule.fetched:
            load = self.use_device(f"load_{self.vector_name(operand, schedule.lanes)}")
            tile = f"{self.tile_name(operand)}, {self.slot('')}"
            self.line(f"{load}({self.arena_name(operand)}, {at}, {tile})")
        self.close_all(depth)
        self.line(f"{self.use_device('barrier')}()")
        self.open("if member == 0:")
        ahead = clusters if slots == 1 else f"{slots} * {clusters}"
        self.line(f"other = item + {ahead}")
        self.fetch_row(rows, slot)
        self.close()

    # What the stages ask.

    def is_at_hand(self, operand: int) -> bool | None:
        return operand in self.schedule.held

    def load_beside(self, operand: int) -> None:
        load = self.use_device(f"load_{self.vector_name(operand, self.schedule.lanes)}")
        source = f"{self.arena_name(operand)}, place"
        self.line(f"{load}({source}, {self.tile_name(operand)}, 0)")

    def thread_of(self, member: str) -> str:
        return "member"

    def open_row(
        self, variables: dict[int, str], member: str
    ) -> tuple[dict[int, str], int]:
        """Open the loop over a thread's vectors of the block's part."""
        schedule, (axis,) = self.schedule, self.reduced_axes
        lanes, threads, depth = schedule.lanes, schedule.threads, 0
        text = own = self.again or "member"
        if schedule.tiles > 1:
            self.open(f"for vector in range({schedule.tiles}):")
            depth += 1
            text = f"(vector * {threads} + {own})"
        self.line(f"place = {text} * {lanes}")
        length = self.nest.axes[axis].extent
        if length != schedule.cluster * lanes * threads * schedule.tiles:
            size = "size" if schedule.cluster > 1 else self.extent_of_row()
            self.open(f"if place < {size}:")
            depth += 1
        if schedule.cluster == 1:
            return {**variables, axis: "place"}, depth
        self.line("first = begin + place")
        return {**variables, axis: "first"}, depth

    # Exchanges.

    def loads_are_begun(self) -> None:
        """Signals are made before the first row."""

    def begin_exchanges(self) -> None:
        """Blocks have met before the first row."""

    def exchange_of_turn(self, number: int) -> tuple[str, str, str]:
        """A signal has its next turn when all have had another exchange between.

        Where there is only one for each row, two signals and places are used by turns.
        """
        remainder, first = self.use_device("remainder"), self.schedule.slots + 1
        if len(self.exchanged_stages()) > 1:
            return str(first + number), f"{remainder}(turn, 2)", ""
        count = self.schedule.team // WARP
        half = f"{self.use_device('quotient')}(turn, 2)"
        turn = f"{remainder}(turn, 2)"
        return f"{first} + {turn}", f"{remainder}({half}, 2)", f"{turn} * {count} + "

    def end_exchange(self, stage: int, signal: str) -> None:
        """Say what the signal's next turn will bring."""
        self.open("if member == 0:")
        size = self.exchanged_bytes(stage)
        self.line(f"{self.use_device('expect')}(signals, {signal}, {size})")
        self.close()
