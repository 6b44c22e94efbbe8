"""Kernels of long rows with prefetching: persistent blocks loop over rows.

While a block computes a row in registers, bulk asynchronous copies bring the next rows
to its shared memory. Operands that are the same for all rows stay there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from arrayfn import dtypes
from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.dynamic_rows import NUMBER_BYTES, SLOTS, DynamicRowScheduler
from arrayfn.lowering.cuda.stage_plan import StagePlan, plan_stages
from arrayfn.lowering.cuda.vocabulary import SHARED_LINE
from arrayfn.lowering.kernel_ir import Load, Value


@dataclass
class PipelinePrinter(DynamicRowScheduler):
    """The blocks of a cluster share a row: each has slices of it."""

    shared_lines: list[str] = field(default_factory=list[str])
    awaited: bool = False  # whether what is the same for all rows has been

    def body(self) -> None:
        kept, schedule = self.kept_axes, self.schedule
        self.items = schedule.clusters * schedule.cluster
        self.flag_words = 2
        self.make_shared()
        self.begin_rows_ahead()
        self.line("iteration = i64(0)")
        self.line("item = start")
        self.member = self.thread
        before = len(self.lines)
        with self.open(f"while item < {self.rows}:"):
            self.take_row()
            variables = self.decompose("item", kept)
            self.hoist_offsets(variables)
            self.stages(variables, self.thread)
            self.line("iteration = iteration + 1")
            # The thread that fetched the row has waited for it, before a barrier.
            self.line(f"item = numbers[{self.slot_of('iteration')}]")
        with self.open(f"if {self.takes}:"):
            clusters = self.integer("clusters", schedule.clusters)
            self.line(f"end_work_queue(flag_buffer, 1, {clusters})")
        self.lines[before:before] = self.shared_lines

    def make_shared(self) -> None:
        """Lay out shared memory: mbarriers, numbers of rows, and slots for rows.

        There is an mbarrier for each row in shared memory and one for what is the same
        for all rows, one for each exchange, and one for each row's number. What other
        blocks send is in cache lines of its own.
        """
        schedule, first = self.schedule, self.first_rows
        if schedule.cluster > 1:
            self.share_row(schedule.cluster, schedule.threads)
        else:
            self.line("member = thread_index()")
            self.line("start = block_index()")
        if self.is_ragged:
            self.line("size = i64(0)")
            with self.open_slices():
                self.line("size = size + count")
        mbarriers: dict[str, Sequence[int | None]] = {}
        mbarriers["mbarriers"] = [None] * (schedule.ahead + bool(schedule.held))
        if schedule.cluster > 1:
            self.exchanged = "exchanged"
            sizes = [self.exchanged_bytes(k) for k in self.exchanged_stages()]
            mbarriers[self.exchanged] = sizes if len(sizes) > 1 else sizes * 2
            # The first rows are assigned statically: their numbers are not sent.
            mbarriers["numbered"] = [*[0] * first, *[NUMBER_BYTES] * (SLOTS - first)]
        self.make_mbarriers(**mbarriers)
        count = SHARED_LINE // NUMBER_BYTES
        self.line(f"numbers = shared_i64({count})")
        part = schedule.tiles * schedule.slice
        self.dynamic_shared_arrays(schedule.fetched, schedule.ahead * part)
        for operand in schedule.held:
            self.dynamic_shared_arrays([operand], part - self.spared_of(operand))

    def shared_array(self, value: Value, suffix: str, count: int) -> None:
        """The array is one for all rows: it is declared before the first.

        It is whole lines. What blocks of a cluster send each other, the mbarriers that
        count it and what a block uses meanwhile share none: softmax of rows of 131072
        took up to 20 us more where they did.
        """
        line = SHARED_LINE // value.dtype.itemsize
        count = -(-count // line) * line
        shared = f"shared_{short_name(value.dtype)}"
        name = f"{self.name_of(value)}_{suffix}"
        self.shared_lines.append(f"    {name} = {shared}({count})")

    def begin_rows_ahead(self) -> None:
        """Begin to copy the first rows, which are assigned to the cluster.

        Nothing is waited for before memory is asked for them, which comes before what
        is the same for all rows: that is needed later.
        """
        schedule = self.schedule
        clusters = self.integer("clusters", schedule.clusters)
        if schedule.cluster > 1:
            self.line("cluster_arrive()")
        self.line("griddepcontrol_wait()")
        # The blocks fill the card: those of the next kernel find room as these end.
        self.line("griddepcontrol_launch_dependents()")
        with self.open("if member == 0:"):
            self.line("following = start")
            for iteration in range(self.first_rows):
                self.line(f"numbers[{iteration}] = following")
                if iteration < schedule.ahead:
                    self.fetch_row("following", str(iteration))
                    self.line(f"following = following + {clusters}")
            if schedule.held:
                self.fetch_held()
        self.load_spared()
        # Who takes rows goes on from the last of these.
        self.line(f"following = start + {clusters} * {schedule.ahead}")
        meet = "cluster_wait" if schedule.cluster > 1 else "barrier"
        self.line(f"{meet}()")

    # What is the same for all rows.

    def fetch_held(self) -> None:
        """Begin to copy what is the same for all rows."""
        schedule, mbarrier = self.schedule, str(self.schedule.ahead)
        size = self.nest.operands[schedule.held[0]].dtype.itemsize
        spared = self.spared_of(schedule.held[0]) * size
        self.mbarrier_expect_all(schedule.held, self.size, mbarrier, less=spared)
        for operand in schedule.held:
            first = schedule.spared if self.spared_of(operand) else 0
            with self.open_slices(first):
                place = f"(vector - {first})" if first else "vector"
                at, place = self.index(operand, {}), f"{place} * {schedule.slice}"
                self.fetch_slice(operand, at, place, mbarrier)

    def spared_of(self, operand: int) -> int:
        """The elements of the block's part of it that are in threads' registers."""
        schedule = self.schedule
        if operand != next(iter(schedule.held), None):
            return 0
        return schedule.spared * schedule.slice

    def spared_name(self, operand: int) -> str:
        return f"{self.tile_name(operand).removesuffix('tile')}spared"

    def load_spared(self) -> None:
        """Load the vectors that stay in registers."""
        schedule = self.schedule
        if not schedule.spared:
            return
        operand, lanes = schedule.held[0], schedule.lanes
        name = self.vector_name(operand, lanes)
        load, registers = f"load_{name}", self.spared_name(operand)
        dtype = self.stored_name(self.nest.operands[operand].dtype)
        self.registers(registers, dtype, lanes * schedule.spared)
        with self.open(f"for vector in range({schedule.spared}):"):
            number = f"vector * {schedule.threads_per_row} + {self.thread}"
            self.line(f"first = ({number}) * {lanes}")
            at = self.index(operand, {self.reduced_axes[0]: "first"})
            source = f"{self.pointer(operand)}, {at}"
            self.line(f"{load}({source}, {registers}, vector * {lanes})")

    def is_at_hand(self, operand: int) -> bool | None:
        return operand in self.schedule.held

    def await_beside(self) -> None:
        """The first iteration waits, in the first stage that needs it."""
        if not self.awaited:
            with self.open("if iteration == 0:"):
                mbarrier = self.schedule.ahead
                self.line(f"mbarrier_wait(mbarriers, {mbarrier}, 0)")
        self.awaited = True

    def load_beside(self, operand: int) -> None:
        schedule, lanes = self.schedule, self.schedule.lanes
        load = f"load_{self.vector_name(operand, lanes)}"
        source, tile = self.shared_name(operand), self.tile_name(operand)
        spared, threads, own = self.spared_of(operand), schedule.threads, "member"
        if self.again:
            own = f"remainder({self.again}, {threads})"
        place = f"(vector * {threads} + {own})" if schedule.tiles > 1 else own
        place = f"{place} * {lanes}"
        if not spared:
            self.line(f"{load}({source}, {place}, {tile}, 0)")
            return
        each = f"for lane in range({lanes}):"
        with self.open(f"if vector < {schedule.spared}:"), self.open(each):
            kept = f"{self.spared_name(operand)}[vector * {lanes} + lane]"
            self.line(f"{tile}[lane] = {kept}")
        with self.open("else:"):
            self.line(f"{load}({source}, {place} - {spared}, {tile}, 0)")

    # An iteration's row.

    def take_row(self) -> None:
        """Wait for this iteration's row, and load it into registers."""
        schedule = self.schedule
        ahead = schedule.ahead
        phase = "iteration"
        if ahead > 1:
            phase = f"quotient(iteration, {ahead})"
        mbarrier, parity = self.ring("iteration"), f"remainder({phase}, 2)"
        self.line(f"mbarrier_wait(mbarriers, {mbarrier}, {parity})")
        lanes, count = schedule.lanes, schedule.lanes * schedule.tiles
        for operand in schedule.fetched:
            is_wide = operand in self.wide_rows
            self.declare_tiles([operand], lanes if is_wide else count)
            if is_wide:
                self.registers(self.wide_name(operand), "f32", count)
        with self.open_row():
            if schedule.tiles == 1:
                self.line("vector = 0")
            place = f"{self.place_in(mbarrier)} + member * {lanes}"
            for operand in schedule.fetched:
                is_wide = operand in self.wide_rows
                load = f"load_{self.vector_name(operand, lanes)}"
                tile, slot = self.tile_name(operand), self.slot("")
                taken = f"{tile}, {'0' if is_wide else slot}"
                self.line(f"{load}({self.shared_name(operand)}, {place}, {taken})")
                if is_wide:
                    dtype = short_name(self.nest.operands[operand].dtype)
                    widen = f"widen_{dtype}x{lanes}"
                    self.line(f"{widen}({tile}, 0, {self.wide_name(operand)}, {slot})")
        self.has_chores = True
        if self.merges:
            # Two stages are computed before the warps meet to exchange something.
            self.line("barrier()")
            self.do_chores()

    @cached_property
    def wide_rows(self) -> frozenset[int]:
        """The fp16 and bf16 rows that a thread keeps in float32: they are read again.

        A result that takes the place of the row has its registers, too. Maxima and
        minima are taken of 16-bit values.
        """
        schedule, operands = self.schedule, self.nest.operands
        if not schedule.widened or schedule.lanes == 1:
            return frozenset()
        read = [
            {s.operand for s in body if isinstance(s, Load)}
            for body in self.plan.bodies
            if not self.has_extremes_alone(body)
        ]
        return frozenset(
            k
            for k in schedule.fetched
            if operands[k].dtype in dtypes.HALF_PRECISION
            and not operands[k].written
            and sum(k in loads for loads in read) > 1
        )

    def wide_name(self, operand: int) -> str:
        return f"{self.tile_name(operand).removesuffix('tile')}wide"

    def is_pair_of_halves(self, s: Load) -> bool:
        return s.operand not in self.wide_rows and super().is_pair_of_halves(s)

    def widen_halves(self, operands: Sequence[int]) -> None:
        for operand in self.wide_rows.intersection(operands):
            self.staged[operand] = f"{self.wide_name(operand)}[{self.slot('lane')}]"
            self.widened.add(operand)
        super().widen_halves([k for k in operands if k not in self.wide_rows])

    # What the stages ask.

    @cached_property
    def plan(self) -> StagePlan:
        """A multiprocessor's one block waits for its arithmetic: none is done again."""
        return plan_stages(self.nest, keep=True, merges=self.merges, keep_half_exp=True)

    # Exchanges.

    def warps_have_met(self) -> None:
        self.do_chores()

    def loads_are_begun(self) -> None:
        """mbarriers are initialized before the first row."""

    def begin_exchanges(self) -> None:
        """The blocks pass a barrier before the first row."""

    def place_of_warps(self, warps: int) -> tuple[str, int]:
        """Double-buffered where this is a row's only barrier: reads overlap writes."""
        if len(self.exchanged_stages()) > 1:
            return super().place_of_warps(warps)
        return f"remainder(iteration, 2) * {warps} + ", 2 * warps

    def exchange_of_iteration(self, number: int) -> tuple[str, str, str]:
        """An mbarrier begins its next phase after another exchange of all blocks.

        Where there is only one for each row, two mbarriers and slots alternate.
        """
        if len(self.exchanged_stages()) > 1:
            return str(number), "remainder(iteration, 2)", ""
        half = "quotient(iteration, 2)"
        iteration = "remainder(iteration, 2)"
        return iteration, f"remainder({half}, 2)", f"{iteration} * {self.parts} + "

    def end_exchange(self, stage: int, mbarrier: str) -> None:
        """Say how many bytes the mbarrier's next phase expects."""
        with self.open("if member == 0:"):
            size = self.exchanged_bytes(stage)
            self.line(f"mbarrier_expect_tx({self.exchanged}, {mbarrier}, {size})")
