"""Kernels of long rows with prefetching: persistent blocks loop over rows.

While a block computes a row in registers, bulk asynchronous copies bring the next rows
to its shared memory, to one of ``prefetch_rows`` row buffers. Broadcast operands, which
are the same for all rows (weights), stay there. An mbarrier for each row buffer, and
one for all broadcast operands, says when copies have arrived.

    (shared memory, first copies)
    iteration = i64(0)
    item = start
    while item < n0:
        (wait for the row, load it into registers; the producers' part)
        (the stages)
        iteration = iteration + 1
        item = numbers[remainder(iteration, 8)]
    if thread == 64:
        end_work_queue(flag_buffer, 1, clusters)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import cached_property

from typing_extensions import override

from arrayfn import dtypes
from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.dynamic_rows import (
    ROW_NUMBER_BYTES,
    ROW_NUMBER_SLOTS,
    DynamicRowScheduler,
)
from arrayfn.lowering.cuda.stage_plan import StagePlan, plan_stages
from arrayfn.lowering.cuda.stages import Memory
from arrayfn.lowering.cuda.vocabulary import SHARED_LINE
from arrayfn.lowering.kernel_ir import Load, Value
from arrayfn.records import record


@record
class PipelinePrinter(DynamicRowScheduler):
    """Prints a kernel whose clusters loop over rows; blocks share a row by slices."""

    shared_declarations: list[str] = field(default_factory=list[str])
    """Lines that allocate shared memory; they go before the loop."""
    broadcast_wait_printed: bool = False
    """Whether the wait for the broadcast operands has been printed."""

    @override
    def body(self) -> None:
        """Print the kernel's lines: set-up, loop over rows, end of the work queue.

        See the module's docstring for them. Declarations of shared memory that stages
        ask for are moved before the loop.
        """
        kept, schedule = self.kept_axes, self.schedule
        self.items = schedule.clusters * schedule.cluster
        self.flag_words = 2  # the launches' count, and the work queue
        self.lay_out_shared_memory()
        self.prefetch_first_rows()
        self.line("iteration = i64(0)")
        self.line("item = start")
        self.member = self.thread
        loop_start = len(self.lines)
        with self.open(f"while item < {self.rows}:"):
            self.load_row()
            variables = self.decompose("item", kept)
            self.hoist_offsets(variables)
            self.stages(variables, self.thread)
            self.line("iteration = iteration + 1")
            # The next row's number has arrived: the producer has waited for it, and the
            # block has passed a barrier since.
            self.line(f"item = numbers[{self.slot_of('iteration')}]")
        with self.open(f"if {self.row_claim_condition}:"):
            clusters = self.integer("clusters", schedule.clusters)
            self.line(f"end_work_queue(flag_buffer, 1, {clusters})")
        self.lines[loop_start:loop_start] = self.shared_declarations

    def lay_out_shared_memory(self) -> None:
        """Declare mbarriers, numbers of rows, row buffers and broadcast operands.

        Prints, for blocks without clusters, one row operand with two buffers and a
        broadcast operand:

            member = thread_index()
            start = block_index()
            mbarriers = mbarriers_i64(3)
            if member == 0:
                mbarrier_init(mbarriers, 3)
                fence_mbarrier_init()
            numbers = shared_i64(16)
            x_shared = dynamic_shared_f32(0, 32768)
            w_shared = dynamic_shared_f32(131072, 16384)

        ``mbarriers`` has one for each row buffer, and then one for the broadcast
        operands. In a cluster ``exchanged`` has one for each exchange, two if there is
        only one, and ``numbered`` one for each row number. In ragged rows ``size`` is
        the number of elements that this block has.
        """
        schedule, first = self.schedule, self.static_rows
        if schedule.cluster > 1:
            self.name_cluster_threads(schedule.cluster, schedule.threads)
        else:
            self.line("member = thread_index()")
            self.line("start = block_index()")
        if self.is_ragged:
            self.line("size = i64(0)")
            with self.open_slices():
                self.line("size = size + count")
        copies = schedule.prefetch_rows + (1 if schedule.broadcast_operands else 0)
        # The bytes that mbarriers expect first, by array; None if copies announce them.
        mbarriers: dict[str, Sequence[int | None]] = {"mbarriers": [None] * copies}
        if schedule.cluster > 1:
            self.exchanged = "exchanged"
            sizes = [self.exchanged_bytes(k) for k in self.exchanged_stages()]
            # With only one exchange a row, two mbarriers alternate.
            mbarriers[self.exchanged] = sizes if len(sizes) > 1 else sizes * 2
            # The first rows are assigned statically: their numbers are not sent.
            mbarriers["numbered"] = [
                *[0] * first,
                *[ROW_NUMBER_BYTES] * (ROW_NUMBER_SLOTS - first),
            ]
        self.make_mbarriers(**mbarriers)
        # The array gets a line of its own, more than its 8 slots need: see
        # ``shared_array``.
        count = SHARED_LINE // ROW_NUMBER_BYTES
        self.line(f"numbers = shared_i64({count})")
        part = schedule.tiles * schedule.slice
        self.dynamic_shared_arrays(schedule.row_operands, schedule.prefetch_rows * part)
        for operand in schedule.broadcast_operands:
            self.dynamic_shared_arrays(
                [operand], part - self.register_elements(operand)
            )

    @override
    def shared_array(self, value: Value, suffix: str, count: int) -> None:
        """Declare ``a_warps = shared_f32(32)`` before the loop over rows.

        The array is for value ``a``. Its size is a multiple of a line, at least
        ``count`` elements. What blocks of a cluster send each other, the mbarriers that
        count it and what a block uses meanwhile must not share a line: softmax of rows
        of 131072 took up to 20 us more where they did.
        """
        line = SHARED_LINE // value.dtype.itemsize
        count = -(-count // line) * line
        shared = f"shared_{short_name(value.dtype)}"
        name = f"{self.name_of(value)}_{suffix}"
        self.shared_declarations.append(f"    {name} = {shared}({count})")

    def prefetch_first_rows(self) -> None:
        """Begin to copy the cluster's first rows, then the broadcast operands.

        Prints, for one row buffer and clusters:

            cluster_arrive()
            griddepcontrol_wait()
            griddepcontrol_launch_dependents()
            if member == 0:
                following = start
                numbers[0] = following
                (copy_row of row following)
                following = following + clusters
                numbers[1] = following
            following = start + clusters * 1
            cluster_wait()

        The rows come first because they are needed first. ``following``, the last of
        these rows, is set in all threads. The barrier of the block or cluster comes
        last: after it mbarriers are initialized.
        """
        schedule = self.schedule
        clusters = self.integer("clusters", schedule.clusters)
        if schedule.cluster > 1:
            self.line("cluster_arrive()")
        self.line("griddepcontrol_wait()")
        # The blocks fill the GPU: blocks of the next kernel start as these end.
        self.line("griddepcontrol_launch_dependents()")
        with self.open("if member == 0:"):
            self.line("following = start")
            for iteration in range(self.static_rows):
                self.line(f"numbers[{iteration}] = following")
                if iteration < schedule.prefetch_rows:
                    self.copy_row("following", str(iteration))
                    self.line(f"following = following + {clusters}")
            if schedule.broadcast_operands:
                self.copy_broadcasts()
        self.load_register_tiles()
        # The thread that claims rows goes on from the last of these.
        self.line(f"following = start + {clusters} * {schedule.prefetch_rows}")
        wait = "cluster_wait" if schedule.cluster > 1 else "barrier"
        self.line(f"{wait}()")

    # Broadcast operands.

    def copy_broadcasts(self) -> None:
        """Begin to copy the block's slices of the broadcast operands.

        Prints, for 8 slices of 2048 float32 in a cluster of 4 blocks:

            mbarrier_expect_tx(mbarriers, 2, 16384 * 4)
            for vector in range(8):
                begin = (vector * 4 + rank) * 2048
                bulk_copy_f32(w_in, begin, w_shared, vector * 2048, 2048, mbarriers, 2)

        Slices that threads have in registers are left out.
        """
        schedule, mbarrier = self.schedule, str(self.schedule.prefetch_rows)
        size = self.nest.operands[schedule.broadcast_operands[0]].dtype.itemsize
        less = self.register_elements(schedule.broadcast_operands[0]) * size
        self.expect_bytes(schedule.broadcast_operands, self.size, mbarrier, less=less)
        for operand in schedule.broadcast_operands:
            first = self.register_elements(operand) // schedule.slice
            with self.open_slices(first):
                number = f"(vector - {first})" if first else "vector"
                row, target = self.index(operand, {}), f"{number} * {schedule.slice}"
                self.copy_slice(operand, row, target, mbarrier)

    def register_elements(self, operand: int) -> int:
        """How many elements of a broadcast operand a block's threads keep in registers.

        0 for all but the first broadcast operand.
        """
        schedule = self.schedule
        if operand != next(iter(schedule.broadcast_operands), None):
            return 0
        return schedule.broadcast_register_tiles * schedule.slice

    def register_name(self, operand: int) -> str:
        """Return ``w_registers``: the registers that hold elements of operand ``w``."""
        return f"{self.array_name(operand)}_registers"

    def load_register_tiles(self) -> None:
        """Load the vectors of the first broadcast operand that stay in registers.

        Prints, for four vectors of each of 512 threads:

            w_registers = registers_f32(16)
            for vector in range(4):
                first = (vector * 512 + member) * 4
                load_f32x4(w_in, first, w_registers, vector * 4)
        """
        schedule = self.schedule
        if not schedule.broadcast_register_tiles:
            return
        operand, lanes = schedule.broadcast_operands[0], schedule.lanes
        name = self.vector_name(operand, lanes)
        load, registers = f"load_{name}", self.register_name(operand)
        dtype = self.stored_name(self.nest.operands[operand].dtype)
        self.registers(registers, dtype, lanes * schedule.broadcast_register_tiles)
        with self.open(f"for vector in range({schedule.broadcast_register_tiles}):"):
            number = f"vector * {schedule.threads_per_row} + {self.thread}"
            self.line(f"first = ({number}) * {lanes}")
            at = self.index(operand, {self.reduced_axes[0]: "first"})
            source = f"{self.pointer(operand)}, {at}"
            self.line(f"{load}({source}, {registers}, vector * {lanes})")

    @override
    def memory_of(self, operand: int) -> Memory:
        """Return REGISTERS for row operands, and SHARED for broadcast operands."""
        is_broadcast = operand in self.schedule.broadcast_operands
        return Memory.SHARED if is_broadcast else Memory.REGISTERS

    @override
    def wait_for_shared_operands(self) -> None:
        """Wait for the broadcast operands, in the first stage that needs them.

        Prints: ``if iteration == 0:`` and ``mbarrier_wait(mbarriers, 2, 0)``.
        """
        if not self.broadcast_wait_printed:
            with self.open("if iteration == 0:"):
                mbarrier = self.schedule.prefetch_rows
                self.line(f"mbarrier_wait(mbarriers, {mbarrier}, 0)")
        self.broadcast_wait_printed = True

    @override
    def load_shared_vector(self, operand: int) -> None:
        """Load the current vector of a broadcast operand into its tile.

        Prints, for blocks of 512 threads:

            load_f32x4(w_shared, (vector * 512 + member) * 4, w_tile, 0)

        If the first four vectors are in registers, the tile is a copy of those:

            if vector < 4:
                for lane in range(4):
                    w_tile[lane] = w_registers[vector * 4 + lane]
            else:
                load_f32x4(w_shared, (vector * 512 + member) * 4 - 8192, w_tile, 0)
        """
        schedule, lanes = self.schedule, self.schedule.lanes
        load = f"load_{self.vector_name(operand, lanes)}"
        source, tile = self.shared_name(operand), self.tile_name(operand)
        in_registers, threads = self.register_elements(operand), schedule.threads
        member = "member"
        if self.recompute_thread:
            member = f"remainder({self.recompute_thread}, {threads})"
        number = f"(vector * {threads} + {member})" if schedule.tiles > 1 else member
        at = f"{number} * {lanes}"
        if not in_registers:
            self.line(f"{load}({source}, {at}, {tile}, 0)")
            return
        test = f"if vector < {schedule.broadcast_register_tiles}:"
        with self.open(test), self.open(f"for lane in range({lanes}):"):
            kept = f"{self.register_name(operand)}[vector * {lanes} + lane]"
            self.line(f"{tile}[lane] = {kept}")
        with self.open("else:"):
            self.line(f"{load}({source}, {at} - {in_registers}, {tile}, 0)")

    # An iteration's row.

    def load_row(self) -> None:
        """Wait for this iteration's row, and load it from its buffer into registers.

        Prints, for two row buffers of 5 slices of 2048 elements:

            ring = remainder(iteration, 2)
            mbarrier_wait(mbarriers, ring, remainder(quotient(iteration, 2), 2))
            x_tile = registers_f32(20)
            for vector in range(5):
                first = (vector * 512 + member) * 4
                load_f32x4(x_shared, (ring * 5 + vector) * 2048 + ..., x_tile, ...)

        Rows that are kept in float32 are converted here, too.
        """
        schedule = self.schedule
        slots = schedule.prefetch_rows
        phase = f"quotient(iteration, {slots})" if slots > 1 else "iteration"
        slot, parity = self.row_slot("iteration"), f"remainder({phase}, 2)"
        self.line(f"mbarrier_wait(mbarriers, {slot}, {parity})")
        lanes, count = schedule.lanes, schedule.lanes * schedule.tiles
        for operand in schedule.row_operands:
            is_float32 = operand in self.float32_rows
            self.declare_tiles([operand], lanes if is_float32 else count)
            if is_float32:
                self.registers(self.float32_name(operand), "f32", count)
        with self.open_vectors():
            if schedule.tiles == 1:
                # ``slice_offset`` uses the variable, but there is no loop to define it.
                self.line("vector = 0")
            source = f"{self.slice_offset(slot)} + member * {lanes}"
            for operand in schedule.row_operands:
                is_float32 = operand in self.float32_rows
                load = f"load_{self.vector_name(operand, lanes)}"
                tile, register = self.tile_name(operand), self.slot("")
                target = f"{tile}, {'0' if is_float32 else register}"
                self.line(f"{load}({self.shared_name(operand)}, {source}, {target})")
                if is_float32:
                    dtype = short_name(self.nest.operands[operand].dtype)
                    target = f"{self.float32_name(operand)}, {register}"
                    self.line(f"widen_{dtype}x{lanes}({tile}, 0, {target})")
        self.producers_pending = True
        if self.merges:
            # The producers usually follow the barrier of the first exchange. With
            # merged stages that comes late, after two stages.
            self.line("barrier()")
            self.print_producers()

    @cached_property
    def float32_rows(self) -> frozenset[int]:
        """The fp16 and bf16 row operands that a thread converts to float32 and keeps.

        These are the operands that several stages read. Stages that only take maxima or
        minima do not count, as they compute in 16 bits. Rows that are overwritten are
        left out: the result needs registers of the stored dtype.
        """
        schedule, operands = self.schedule, self.nest.operands
        if not schedule.keeps_float32 or schedule.lanes == 1:
            return frozenset()
        read = [
            {s.operand for s in body if isinstance(s, Load)}
            for body in self.plan.bodies
            if not self.only_takes_extremes(body)
        ]
        return frozenset(
            k
            for k in schedule.row_operands
            if operands[k].dtype in dtypes.HALF_PRECISION
            and not operands[k].written
            and sum(k in loads for loads in read) > 1
        )

    def float32_name(self, operand: int) -> str:
        """Return ``x_wide``: the registers that hold row operand ``x`` in float32."""
        return f"{self.array_name(operand)}_wide"

    @override
    def is_half_vector(self, s: Load) -> bool:
        """Return whether ``s`` loads 16-bit vectors; rows kept in float32 are not."""
        return s.operand not in self.float32_rows and super().is_half_vector(s)

    @override
    def widen_vectors(self, operands: Sequence[int]) -> None:
        """Read float32 rows from their registers; convert the vectors of others."""
        for operand in self.float32_rows.intersection(operands):
            self.staged[operand] = f"{self.float32_name(operand)}[{self.slot('lane')}]"
            self.widened.add(operand)
        super().widen_vectors([k for k in operands if k not in self.float32_rows])

    @cached_property
    def plan(self) -> StagePlan:
        """The usual plan, but fp16 exponentials are kept instead of computed again.

        There is one block a multiprocessor, so no other block hides the time of
        computing them.
        """
        return plan_stages(self.nest, keep=True, merges=self.merges, keep_half_exp=True)

    # Exchanges.

    @override
    def after_warp_barrier(self) -> None:
        """Print the producers' lines: after this barrier the row's buffer is free."""
        self.print_producers()

    @override
    def after_first_loads(self) -> None:
        """Print nothing: mbarriers are initialized before the first row."""

    @override
    def before_first_exchange(self) -> None:
        """Print nothing: a cluster's blocks met before the first row."""

    @override
    def warp_slots(self, warps: int) -> tuple[str, int]:
        """Return the offset of the warps' values in shared arrays, and the length.

        Where a row has only one exchange, the arrays are double-buffered: its one
        barrier does not keep warps from writing the next row's results while others
        still read this row's. For 16 warps: ``"remainder(iteration, 2) * 16 + "`` and
        32. Otherwise as in ``RowsPrinter``.
        """
        if len(self.exchanged_stages()) > 1:
            return super().warp_slots(warps)
        return f"remainder(iteration, 2) * {warps} + ", 2 * warps

    @override
    def exchange_slot(self, number: int) -> tuple[str, str, str]:
        """Return the mbarrier, its parity and the offset of exchange ``number``.

        With several exchanges a row, each has its mbarrier, and a phase each row: all
        blocks have passed another exchange before the next phase begins. Where a row
        has only one exchange, two mbarriers and two buffers alternate instead.
        """
        if len(self.exchanged_stages()) > 1:
            return str(number), "remainder(iteration, 2)", ""
        slot, parity = "remainder(iteration, 2)", "remainder(quotient(iteration, 2), 2)"
        return slot, parity, f"{slot} * {self.parts} + "

    @override
    def after_exchange(self, stage: int, mbarrier: str) -> None:
        """Have ``mbarrier`` expect the bytes of the next row's exchange.

        Prints, after the exchange that follows ``stage``:

            if member == 0:
                mbarrier_expect_tx(exchanged, 0, 64)
        """
        with self.open("if member == 0:"):
            size = self.exchanged_bytes(stage)
            self.line(f"mbarrier_expect_tx({self.exchanged}, {mbarrier}, {size})")
