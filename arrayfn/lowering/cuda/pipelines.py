"""Kernels of long rows that are fetched ahead: blocks go from row to row.

While a block computes a row, which it has in registers, a copy of the next one runs to
its shared memory. What is the same for all rows stays there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.merged_rows import Parts
from arrayfn.lowering.cuda.rows import RowsPrinter
from arrayfn.lowering.cuda.schedule import Pipeline
from arrayfn.lowering.cuda.stage_plan import StagePlan, plan_stages
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import Value

ROW: Final = 0  # the signal of a row that is fetched
HELD: Final = 1  # that of what is the same for all rows
EXCHANGES: Final = 2  # the first one of the cluster's exchanges
PLACES: Final = 4  # of rows' numbers: three are known at a time
NUMBER_BYTES: Final = 8  # of a row's number, as it is told


@dataclass
class PipelinePrinter(RowsPrinter[Pipeline]):
    """A cluster of blocks has a row, each block a part of it."""

    shared_lines: list[str] = field(default_factory=list[str])
    told: int = 0  # the first signal of those that tell rows
    awaited: bool = False  # whether what is the same for all rows has been
    chores: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    """What one thread does for the rows to come while the others wait."""

    def body(self) -> None:
        kept, schedule = self.kept_axes, self.schedule
        self.items = schedule.clusters * schedule.cluster
        self.board_words = 2
        self.make_shared()
        rows = self.extent_of(kept, "rows") if kept else "1"
        self.begin_rows_ahead()
        self.line(f"turn = {self.use('i64')}(0)")
        self.line("item = start")
        before = len(self.lines)
        self.open(f"while item < {rows}:")
        self.take_row(rows)
        variables = self.decompose("item", kept)
        self.hoist_offsets(variables)
        self.stages(variables, "thread" if schedule.cluster > 1 else "member")
        self.line("turn = turn + 1")
        # It was told before a barrier: who had the row fetched has waited for it.
        self.line(f"item = numbers[{self.place_of('turn')}]")
        self.close()
        self.open(f"if {self.takes}:")
        clusters = self.integer("clusters", schedule.clusters)
        self.line(f"{self.use_device('close_board')}(board, 1, {clusters})")
        self.close()
        self.lines[before:before] = self.shared_lines

    def make_shared(self) -> None:
        """Make what is in shared memory: signals, numbers of rows, a place for one."""
        schedule = self.schedule
        part, sizes = self.integer("part", schedule.part), list[int]()
        if schedule.cluster > 1:
            n = self.extent_of_row()
            self.share_row(schedule.cluster, schedule.threads)
            self.line(f"begin = rank * {part}")
            self.line(f"size = {self.use('min_i64')}({part}, {n} - begin)")
            sizes = list(map(self.exchanged_bytes, self.exchanged_stages()))
            sizes = sizes if len(sizes) > 1 else sizes * 2
            self.told = EXCHANGES + len(sizes)
            # The first row is nobody's to tell.
            sizes += [0, *[NUMBER_BYTES] * (PLACES - 1)]
        else:
            self.line(f"member = {self.use_device('thread_index')}()")
            self.line(f"start = {self.use_device('block_index')}()")
        self.make_signals(sizes, EXCHANGES)
        self.line(f"numbers = {self.use_device('shared_i64')}({PLACES})")
        self.arenas((*schedule.fetched, *schedule.held), schedule.part)

    # Shared memory.

    def shared_array(self, value: Value, suffix: str, count: int) -> None:
        """The array is one for all rows: it is declared before the first."""
        shared = self.use_device(f"shared_{short_name(value.dtype)}")
        name = f"{self.name_of(value)}_{suffix}"
        self.shared_lines.append(f"    {name} = {shared}({count})")

    def arena_name(self, operand: int) -> str:
        name = super().arena_name(operand)
        is_held = operand in self.schedule.held
        return f"{name.removesuffix('ahead')}held" if is_held else name

    def fetch(
        self, operands: Sequence[int], variables: dict[int, str], signal: int
    ) -> None:
        """Begin to copy this block's part of ``operands`` to shared memory."""
        shared = self.schedule.cluster > 1

        def at(operand: int) -> str:
            index = self.index(operand, variables)
            if not shared:
                return index
            return "begin" if index == "0" else f"{index} + begin"

        size = "size" if shared else self.extent_of_row()
        self.fetch_all(operands, at, "0", size, str(signal))

    def extent_of_row(self) -> str:
        return self.extent(self.reduced_axes[0])

    def fetch_row(self, rows: str) -> None:
        """Begin to copy the row ``other``, if there is one."""
        own = self.offsets, self.offset_axes
        self.offsets, self.offset_axes = {}, frozenset()
        self.open(f"if other < {rows}:")
        variables = self.decompose("other", self.kept_axes, "j")
        self.fetch(self.schedule.fetched, variables, ROW)
        self.close()
        self.offsets, self.offset_axes = own

    def take_row(self, rows: str) -> None:
        """Take this turn's row into registers, and have another one fetched.

        Its place is free when all have met. They do for the first exchange, if there is
        another one in the row, before which nobody writes what the others still read.
        """
        schedule = self.schedule
        parity = f"{self.use_device('remainder')}(turn, 2)"
        self.line(f"{self.use_device('await_signal')}(signals, {ROW}, {parity})")
        self.declare_tiles(schedule.fetched, schedule.lanes * schedule.tiles)
        _, depth = self.open_row({}, "member")
        for operand in schedule.fetched:
            load = self.use_device(f"load_{self.vector_name(operand, schedule.lanes)}")
            tile = f"{self.tile_name(operand)}, {self.slot('')}"
            self.line(f"{load}({self.arena_name(operand)}, place, {tile})")
        self.close_all(depth)
        fetch = partial(self.fetch_following, rows)
        self.chores = [fetch, self.tell_following]
        if len(self.exchanged_stages()) < 2:
            self.line(f"{self.use_device('barrier')}()")
            self.chores.pop(0)()

    # Which rows. Blocks take them as they come to them; of a cluster the first one
    # does, and tells the others. What is computed in turn t has the number in place
    # t % 4. It is told a turn before it is fetched, and the last one is no row.

    @property
    def takes(self) -> str:
        """Which thread takes rows for the block, or the cluster."""
        name = "member" if self.schedule.cluster == 1 else "thread"
        return f"{name} == {self.idle}"

    @property
    def idle(self) -> int:
        """The thread with chores: not of the warp that the others wait for."""
        return WARP if self.schedule.threads > WARP else 0

    def place_of(self, turn: str) -> str:
        return f"{self.use_device('remainder')}({turn}, {PLACES})"

    def await_told(self, turn: str) -> None:
        """Wait until it is told what is to be computed in ``turn``."""
        if self.schedule.cluster == 1:
            return
        turns = f"{self.use_device('quotient')}({turn}, {PLACES})"
        parity = f"{self.use_device('remainder')}({turns}, 2)"
        signal = f"{self.told} + {self.place_of(turn)}"
        self.line(f"{self.use_device('await_signal')}(signals, {signal}, {parity})")

    def tell(self, turn: str) -> None:
        """Tell the block, or all of the cluster, which row is ``following``.

        The first rows are taken by nobody. That they were is added here, where the
        number has come from memory: whoever adds it where it takes it waits for it.
        """
        cluster, place = self.schedule.cluster, self.place_of(turn)
        clusters = self.integer("clusters", self.schedule.clusters)
        if cluster == 1:
            self.line(f"numbers[{place}] = following + {clusters}")
            return
        self.line(f"following = following + {clusters}")
        self.open(f"for peer in range({cluster}):")
        send, signal = self.use_device("send_i64"), f"{self.told} + {place}"
        self.line(f"{send}(numbers, {place}, following, peer, signals, {signal})")
        self.close()

    def begin_rows_ahead(self) -> None:
        """Have the first row fetched, which is the block's own number; take another.

        Nothing is waited for before memory is asked for the row, which comes before
        what is the same for all rows: that is needed later.
        """
        schedule = self.schedule
        if schedule.cluster > 1:
            self.line(f"{self.use_device('cluster_arrive')}()")
        self.line(f"{self.use_device('await_kernels')}()")
        # The blocks fill the card: those of the next kernel find room as these end.
        self.line(f"{self.use_device('release_kernels')}()")
        self.open("if member == 0:")
        self.fetch(schedule.fetched, self.decompose("start", self.kept_axes), ROW)
        if schedule.held:
            self.fetch(schedule.held, {}, HELD)
        self.line("numbers[0] = start")
        self.close()
        if schedule.cluster > 1:
            self.line(f"{self.use_device('cluster_wait')}()")
        self.open(f"if {self.takes}:")
        self.line(f"following = {self.use_device('take')}(board, 1, 1)")
        self.tell("1")
        self.close()
        if schedule.cluster == 1:
            self.line(f"{self.use_device('barrier')}()")

    def fetch_following(self, rows: str) -> None:
        """Have the row of the next turn fetched, and take another one.

        That this turn has a row is asked although it does: ptxas then gives each wait
        a first try of its own, and layernorm of long rows takes a tenth less time.
        """
        this, following = self.place_of("turn"), self.place_of("turn + 1")
        self.open(f"if member == {self.idle}:")
        self.open(f"if numbers[{this}] < {rows}:")
        self.await_told("turn + 1")
        self.line(f"other = numbers[{following}]")
        self.fetch_row(rows)
        self.close()
        self.open("else:")
        self.line(f"numbers[{following}] = {rows}")
        self.close()
        if self.schedule.cluster > 1:
            # All of the block know what this turn computes.
            expect = self.use_device("expect")
            self.line(f"{expect}(signals, {self.told} + {this}, {NUMBER_BYTES})")
        self.close()
        self.open(f"if {self.takes}:")
        self.line(f"following = {self.use_device('take')}(board, 1, 1)")
        self.close()

    def tell_following(self) -> None:
        """Tell the row that has been taken meanwhile, if the one before it is one."""
        rows = self.extent_of(self.kept_axes, "rows") if self.kept_axes else "1"
        last = self.place_of("turn + 1")
        self.open(f"if {self.takes} and numbers[{last}] < {rows}:")
        self.tell("turn + 2")
        self.close()

    # What the stages ask.

    def plan(self) -> StagePlan:
        """A multiprocessor's one block waits for its arithmetic: none is done again."""
        return plan_stages(self.nest, keep=True, merges=self.merges, halves=True)

    def is_at_hand(self, operand: int) -> bool | None:
        return operand in self.schedule.held

    def await_beside(self) -> None:
        """The first turn waits, in the first stage that needs it."""
        if not self.awaited:
            self.open("if turn == 0:")
            self.line(f"{self.use_device('await_signal')}(signals, {HELD}, 0)")
            self.close()
        self.awaited = True

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

    def exchange(
        self, stage: int, values: Sequence[Value], own: frozenset[Value] = frozenset()
    ) -> Parts:
        # The warps have met. The first one sends what they have, if there are blocks.
        if self.schedule.cluster > 1:
            self.do_chore()
        parts = super().exchange(stage, values, own)
        if self.schedule.cluster == 1:
            self.do_chore()
        return parts

    def do_chore(self) -> None:
        if self.chores:
            self.chores.pop(0)()

    def loads_are_begun(self) -> None:
        """Signals are made before the first row."""

    def begin_exchanges(self) -> None:
        """Blocks have met before the first row."""

    def exchange_of_turn(self, number: int) -> tuple[str, str, str]:
        """A signal has its next turn when all have had another exchange between.

        Where there is only one for each row, two signals and places are used by turns.
        """
        remainder, first = self.use_device("remainder"), EXCHANGES
        if len(self.exchanged_stages()) > 1:
            return str(first + number), f"{remainder}(turn, 2)", ""
        half = f"{self.use_device('quotient')}(turn, 2)"
        turn = f"{remainder}(turn, 2)"
        return (
            f"{first} + {turn}",
            f"{remainder}({half}, 2)",
            f"{turn} * {self.parts} + ",
        )

    def end_exchange(self, stage: int, signal: str) -> None:
        """Say what the signal's next turn will bring."""
        self.open("if member == 0:")
        size = self.exchanged_bytes(stage)
        self.line(f"{self.use_device('expect')}(signals, {signal}, {size})")
        self.close()
