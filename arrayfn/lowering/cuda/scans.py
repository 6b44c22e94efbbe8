"""Kernels of scans: a group of threads shares a row, or loops along it.

The warps of a row group have neighbouring parts of the row, as vectors. Each thread
scans its own elements, the lanes of a warp scan the threads' totals, then the warps of
a block and the blocks of a cluster scan theirs. Longer rows are in parts: see
``scan_parts``.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import field
from typing import Final, TypeVar

from typing_extensions import override

from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.printer import AxisIndices, CudaPrinter
from arrayfn.lowering.cuda.schedule import Scan
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import Load, Reduce, Store
from arrayfn.records import record

_LOG2_WARP: Final = WARP.bit_length() - 1


S = TypeVar("S", bound=Scan)


@record
class ScanPrinter(CudaPrinter[S]):
    """Prints the kernel of a scan: of a reduction whose running value is stored.

    Prefixes are exclusive: that of an element is the total of the elements before it.
    The kernel of ``a = cumsum(x)`` has these variables, which methods below define:

    * ``x_tile`` and ``a_tile``: registers for a thread's vectors of elements.
    * ``a_scanned``: running values of each vector, one for each element.
    * ``a_sums``: the total of each vector, later the vector's prefix in its warp.
    * ``a``: a running value, or the total of a warp, of a block or of the row.
    * ``a_warps`` (shared memory): the totals of a block's warps.
    * ``ahead``: the prefix of the warp in its block, later in the row.
    * ``a_carried``: the total of the earlier iterations of a loop along the row.
    """

    reduce: Reduce = field(init=False)  # whose running value is stored
    result_store: Store = field(init=False)  # of the running value
    total: str = ""  # the name of the running value: ``a`` above
    dtype: str = ""  # the short name of the running value's dtype
    inner: int = 0  # the axis that is scanned
    loads: list[int] = field(default_factory=list[int])  # operands loaded as vectors
    stores: list[int] = field(default_factory=list[int])  # those stored as vectors
    row: AxisIndices = field(default_factory=dict[int, str])
    """The row's index along each kept axis, as variables."""
    has_begin: bool = False  # whether vectors are counted from ``begin`` on

    @override
    def body(self) -> None:
        """Print the kernel's lines: load, scan threads, warps and blocks, store."""
        self.read_nest()
        schedule = self.schedule
        n, step = self.extent(self.inner), self.tile_elements
        # Rows that are longer than what the threads have at a time are scanned in a
        # loop.
        loops = self.nest.axes[self.inner].extent > step
        self.has_begin = loops
        if schedule.cluster > 1:
            self.row = self.begin_cluster(schedule.cluster, schedule.threads)
            size = self.reduce.result.dtype.itemsize
            # Each block sends its total to all blocks of the cluster.
            self.make_mbarriers(mbarriers=[schedule.cluster * size])
            self.line("cluster_arrive()")
        else:
            self.row = self.begin_rows(schedule.threads, schedule.threads_per_row)
        self.hoist_offsets(self.row)
        self.define_lane_and_warp("member" if schedule.cluster > 1 else "thread")
        self.declare()
        if schedule.cluster > 1:
            self.shared_array(self.reduce.result, "sent", schedule.cluster)
        if self.warps > 1:
            self.shared_array(self.reduce.result, "warps", self.warps)
        if schedule.cluster > 1:
            self.line("cluster_wait()")
        if loops:
            self.line(f"{self.total}_carried = {self.identity}")
        span = f"for begin in range(0, {n}, {step}):"
        with self.open(span) if loops else nullcontext():
            self.load_all()
            self.scan_threads()
            self.scan_warps()
            self.scan_blocks(loops)
            self.store_all()
            if loops and self.warps > 1:
                self.line("barrier()")

    def read_nest(self) -> None:
        """Set the fields: the nest's reduction, its store, its vector operands."""
        statements, lanes = self.nest.statements, self.schedule.lanes
        (self.reduce,) = (s for s in statements if isinstance(s, Reduce))
        (self.result_store,) = (s for s in statements if isinstance(s, Store))
        self.total = self.name_of(self.reduce.result)
        self.dtype = short_name(self.reduce.result.dtype)
        self.inner = len(self.nest.axes) - 1
        self.loads = self.vectors(statements, Load, lanes)
        self.stores = self.vectors(statements, Store, lanes)

    @property
    def tile_elements(self) -> int:
        """Elements that a row group computes at a time."""
        schedule = self.schedule
        return schedule.threads_per_row * schedule.lanes * schedule.tiles

    @property
    def warps(self) -> int:
        """The warps of a block that share a row."""
        return min(self.schedule.threads_per_row, self.schedule.threads) // WARP

    @property
    def in_registers(self) -> tuple[int, ...]:
        """The operands that are loaded or stored as vectors, without repetition."""
        return tuple(dict.fromkeys((*self.loads, *self.stores)))

    def define_lane_and_warp(self, thread: str) -> None:
        """Define ``lane``, a thread's number in its warp, and ``warp``, the warp's.

        The argument ``thread`` is the variable with the thread's number in its block.
        Warps are numbered in their row group: the kernel's variable of the name
        ``thread`` is the thread's number there.
        """
        self.line(f"lane = remainder({thread}, {WARP})")
        self.line(f"warp = quotient(thread, {WARP})")

    def declare(self) -> None:
        """Declare a thread's registers: ``a_scanned``, ``a_sums`` and tiles."""
        count = self.schedule.lanes * self.schedule.tiles
        self.registers(f"{self.total}_scanned", self.dtype, count)
        self.registers(f"{self.total}_sums", self.dtype, self.schedule.tiles)
        self.declare_tiles(self.in_registers, count)

    # Expressions.

    @property
    def identity(self) -> str:
        """The expression of the reduction's identity, such as ``f32(0)``."""
        return self.constant(self.reduce.identity)

    def combined(self, x: str, y: str) -> str:
        """Return the expression that combines ``x`` and ``y``: ``add_f32(x, y)``."""
        return f"{self.reduce.function}({x}, {y})"

    def shuffled(self, mode: str, value: str, lanes: str) -> str:
        """Return the expression of another lane's ``value``: ``shuffle_up_f32(a, 1)``.

        ``mode`` is ``up``, ``from`` or ``xor``; ``lanes`` selects the lane.
        """
        return f"shuffle_{mode}_{self.dtype}({value}, {lanes})"

    @property
    def first_slot(self) -> str:
        """The index of a vector's first element in its thread's registers."""
        lanes = self.schedule.lanes
        return f"vector * {lanes}" if lanes > 1 else "vector"

    @property
    def slot(self) -> str:
        """The index of an element in its thread's registers."""
        return f"{self.first_slot} + slot" if self.schedule.lanes > 1 else "vector"

    @property
    def vector_exists(self) -> str:
        """The condition that the current vector is in the row; empty if all are."""
        n = self.extent(self.inner)
        ragged = self.nest.axes[self.inner].extent % self.tile_elements
        return f"first < {n}" if ragged else ""

    # Vectors and their elements.

    @contextmanager
    def open_vectors(self) -> Generator[None]:
        """Open the loop over a thread's vectors.

        Prints, for four vectors of four elements, some of which may be beyond the row:

            for vector in range(4):
                first = ((warp * 4 + vector) * 32 + lane) * 4
                if first < n1:
        """
        lanes, tiles = self.schedule.lanes, self.schedule.tiles
        with self.open(f"for vector in range({tiles}):"):
            text = f"(warp * {tiles} + vector) * {WARP} + lane"
            text = f"({text}) * {lanes}" if lanes > 1 else text
            text = f"begin + {text}" if self.has_begin else text
            self.line(f"first = {text}")
            with self.open_if(self.vector_exists):
                yield

    @contextmanager
    def open_elements(self) -> Generator[AxisIndices]:
        """Open the loop over a vector's elements; yield an element's indices.

        Inside it, statements access the registers of ``in_registers``, not memory.
        """
        lanes, index = self.schedule.lanes, f"i{self.inner}"
        if lanes == 1:
            yield {**self.row, self.inner: "first"}
            return
        with self.open(f"for slot in range({lanes}):"):
            self.staged = {
                k: f"{self.tile_name(k)}[{self.slot}]" for k in self.in_registers
            }
            if self.uses_index(self.nest.statements, self.inner):
                self.line(f"{index} = first + slot")
            yield {**self.row, self.inner: index}
        self.staged = {}

    @contextmanager
    def open_accumulation(self) -> Generator[AxisIndices]:
        """Open the loop over a vector's elements, and combine each with the total.

        Yields an element's indices. Prints, for the sum of four elements:

            for slot in range(4):
                x = x_tile[vector * 4 + slot]
                a = add_f32(a, x)
        """
        with self.open_elements() as indices:
            for s in self.nest.statements:
                if isinstance(s, Reduce):
                    self.accumulate(s)
                elif not isinstance(s, Store):
                    self.emit(s, indices)
            yield indices

    def load_all(self) -> None:
        """Load all vectors, so that all loads are in flight before one is used."""
        if not self.loads:
            return
        first = {**self.row, self.inner: "first"}
        with self.open_vectors():
            for operand in self.loads:
                self.load_vector(operand, self.schedule.lanes, first, self.first_slot)

    def store_all(self) -> None:
        """Store each element combined with its prefix in the row.

        Prints, for vectors of four elements:

            for vector in range(4):
                first = ((warp * 4 + vector) * 32 + lane) * 4
                other = add_f32(ahead, a_sums[vector])
                for slot in range(4):
                    a = add_f32(other, a_scanned[vector * 4 + slot])
                    a_tile[vector * 4 + slot] = a
                store_f32x4(a_out, row + first, a_tile, vector * 4)
        """
        total = self.total
        with self.open_vectors():
            self.line(f"other = {self.combined('ahead', f'{total}_sums[vector]')}")
            with self.open_elements() as indices:
                scanned = f"{total}_scanned[{self.slot}]"
                self.line(f"{total} = {self.combined('other', scanned)}")
                with self.open_if("" if self.stores else self.live):
                    self.emit(self.result_store, indices)
            if self.stores:
                with self.open_if(self.live):
                    self.store_result_vector()

    def store_result_vector(self) -> None:
        """Store the current vector of results from its registers."""
        first = {**self.row, self.inner: "first"}
        (operand,) = self.stores
        self.store_vector(operand, self.schedule.lanes, first, self.first_slot)

    # Threads, warps and blocks.

    def scan_threads(self) -> None:
        """Scan the elements of each vector into ``a_scanned``, totals into ``a_sums``.

        Prints, besides the loops of ``open_vectors`` and ``open_accumulation``:

            for vector in range(4):
                a_sums[vector] = f32(0)
            for vector in range(4):
                a = f32(0)
                for slot in range(4):
                    a = add_f32(a, x)
                    a_scanned[vector * 4 + slot] = a
                a_sums[vector] = a
        """
        with self.open_vector_sums():
            self.line(f"{self.total}_scanned[{self.slot}] = {self.total}")

    @contextmanager
    def open_vector_sums(self) -> Generator[None]:
        """Open the loop over the vectors' elements; set ``a_sums`` to vectors' totals.

        Vectors beyond the end of the row have the identity as their total. The lines
        that the caller prints inside see the running value of the vector.
        """
        total, identity = self.total, self.identity
        with self.open(f"for vector in range({self.schedule.tiles}):"):
            self.line(f"{total}_sums[vector] = {identity}")
        with self.open_vectors():
            self.line(f"{total} = {identity}")
            with self.open_accumulation():
                yield
            self.line(f"{total}_sums[vector] = {total}")

    def scan_warps(self) -> None:
        """Scan the totals of a warp's vectors, in the order of the row.

        Vectors with the same number ``vector`` are neighbours in the 32 lanes. The
        lanes scan their totals by shuffles. Then each lane adds the totals of the
        vectors with lower numbers. ``a_sums`` become the vectors' prefixes in the warp,
        and ``a`` the warp's total.
        """
        total, sums = self.total, f"{self.total}_sums[vector]"
        tiles, identity = self.schedule.tiles, self.identity
        self.print_lines(f"""
            for step in range({_LOG2_WARP}):
                for vector in range({tiles}):
                    other = {self.shuffled("up", sums, "1 << step")}
                    if lane >= 1 << step:
                        {sums} = {self.combined("other", sums)}
            {total} = {identity}
            for vector in range({tiles}):
                other = {self.shuffled("up", sums, "1")}
                if lane == 0:
                    other = {identity}
                whole = {self.shuffled("from", sums, str(WARP - 1))}
                {sums} = {self.combined(total, "other")}
                {total} = {self.combined(total, "whole")}
            """)

    def scan_blocks(self, loops: bool) -> None:
        """Set ``ahead`` to the prefix of the warp's elements in the row.

        With ``loops`` it includes the earlier iterations of a loop along the row.
        ``scan_totals`` (or ``scan_cluster``) sets ``ahead`` within the iteration, and
        ``a`` to the iteration's total, which is added to what is carried on.
        """
        total = self.total
        if self.warps > 1:
            self.store_warp_total("warps")
            self.line("barrier()")
        self.scan_totals()
        if self.schedule.cluster > 1:
            self.scan_cluster()
        if loops:
            carried = f"{total}_carried"
            self.line(f"ahead = {self.combined(carried, 'ahead')}")
            self.line(f"{carried} = {self.combined(carried, total)}")

    @property
    def warp_of_block(self) -> str:
        """The expression of the warp's number in its block."""
        if self.schedule.cluster == 1:
            return "warp"
        return f"remainder(warp, {self.warps})"

    def store_warp_total(self, suffix: str) -> None:
        """Store the warp's total in the shared array with ``suffix``."""
        with self.open("if lane == 0:"):
            self.line(f"{self.total}_{suffix}[{self.warp_of_block}] = {self.total}")

    def scan_totals(self) -> None:
        """Scan the totals of a block's warps.

        Each warp scans all of them, one in each lane. ``ahead`` becomes the warp's
        prefix in its block, ``a`` the total of the block.
        """
        total, warps, number = self.total, self.warps, self.warp_of_block
        self.line(f"ahead = {self.identity}")
        if warps == 1:
            return
        self.print_lines(f"""
            other = {total}_warps[remainder(lane, {warps})]
            for step in range({warps.bit_length() - 1}):
                whole = {self.shuffled("up", "other", "1 << step")}
                if remainder(lane, {warps}) >= 1 << step:
                    other = {self.combined("whole", "other")}
            {total} = {self.shuffled("from", "other", str(warps - 1))}
            other = {self.shuffled("from", "other", f"max_i64({number} - 1, 0)")}
            if {number} > 0:
                ahead = other
            """)

    def scan_cluster(self) -> None:
        """Send the block's total to all blocks of the cluster, and scan all totals.

        ``ahead`` becomes the warp's prefix in the cluster, ``a`` the cluster's total.
        """
        total, cluster, identity = self.total, self.schedule.cluster, self.identity
        send = f"dsmem_store_{self.dtype}"
        self.print_lines(f"""
            if member < {cluster}:
                {send}({total}_sent, rank, {total}, member, mbarriers, 0)
            mbarrier_wait(mbarriers, 0, 0)
            {total} = {identity}
            for part in range({cluster}):
                if part == rank:
                    ahead = {self.combined(total, "ahead")}
                {total} = {self.combined(total, f"{total}_sent[part]")}
            """)
