"""Kernels of scans: a group of threads shares a row, or loops along it.

The warps of a row group have neighbouring parts of the row, as vectors: each thread
scans its own, the lanes of a warp the totals of these, then the warps of a block and
the blocks of a cluster. Longer rows are in parts: see ``scan_parts``.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

from typing_extensions import override

from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.printer import AxisIndices, CudaPrinter
from arrayfn.lowering.cuda.schedule import Scan
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import Load, Reduce, Store

_STEPS = WARP.bit_length() - 1


S = TypeVar("S", bound=Scan)


@dataclass
class ScanPrinter(CudaPrinter[S]):
    """Prints the kernel of one reduction that is stored as it goes along a row."""

    reduce: Reduce = field(init=False)
    total: str = ""
    dtype: str = ""
    inner: int = 0
    has_begin: bool = False  # whether vectors are counted from ``begin`` on

    @override
    def body(self) -> None:
        """Print the kernel's lines: load, scan threads, warps and blocks, store."""
        store = self.read_nest()
        nest, schedule = self.nest, self.schedule
        n, step = self.extent(self.inner), self.tile_elements
        loops = nest.axes[self.inner].extent > step
        self.has_begin = loops
        if schedule.cluster > 1:
            variables = self.begin_cluster(schedule.cluster, schedule.threads)
            size = self.reduce.result.dtype.itemsize
            self.make_mbarriers(mbarriers=[schedule.cluster * size])
            self.line("cluster_arrive()")
        else:
            variables = self.begin_rows(schedule.threads, schedule.threads_per_row)
        self.hoist_offsets(variables)
        self.begin_lanes("member" if schedule.cluster > 1 else "thread")
        loads, stores, moved = self.declare()
        if schedule.cluster > 1:
            shared = f"shared_{self.dtype}"
            self.line(f"{self.total}_sent = {shared}({schedule.cluster})")
        if self.warps > 1:
            self.shared_array(self.reduce.result, "warps", self.warps)
        if schedule.cluster > 1:
            self.line("cluster_wait()")
        if loops:
            self.line(f"{self.total}_carried = {self.constant(self.reduce.identity)}")
        span = f"for begin in range(0, {n}, {step}):"
        with self.open(span) if loops else nullcontext():
            self.load_all(loads, variables)
            self.scan_threads(moved, variables)
            self.scan_warps()
            self.scan_blocks(loops)
            self.store_all(store, moved, stores, variables)
            if loops and self.warps > 1:
                self.line("barrier()")

    def read_nest(self) -> Store:
        """Note the nest's one reduction; return its one store, of the running value."""
        statements = self.nest.statements
        (self.reduce,) = (s for s in statements if isinstance(s, Reduce))
        (store,) = (s for s in statements if isinstance(s, Store))
        self.total = self.name_of(self.reduce.result)
        self.dtype = short_name(self.reduce.result.dtype)
        self.inner = len(self.nest.axes) - 1
        return store

    @property
    def tile_elements(self) -> int:
        """Elements that a row group has at a time."""
        schedule = self.schedule
        return schedule.threads_per_row * schedule.lanes * schedule.tiles

    def begin_lanes(self, thread: str) -> None:
        """Define ``lane`` and ``warp``; ``thread`` is the number in the block."""
        self.line(f"lane = remainder({thread}, {WARP})")
        self.line(f"warp = quotient(thread, {WARP})")

    def declare(self) -> tuple[list[int], list[int], tuple[int, ...]]:
        """Declare a thread's registers: scanned values, totals of vectors, tiles.

        Returns the operands that are loaded in vectors, those that are stored in
        vectors, and both without repetition: these have tiles.
        """
        schedule, nest = self.schedule, self.nest
        count = schedule.lanes * schedule.tiles
        self.registers(f"{self.total}_scanned", self.dtype, count)
        self.registers(f"{self.total}_sums", self.dtype, schedule.tiles)
        loads = self.vectors(nest.statements, Load, schedule.lanes)
        stores = self.vectors(nest.statements, Store, schedule.lanes)
        moved = tuple(dict.fromkeys((*loads, *stores)))
        self.declare_tiles(moved, count)
        return loads, stores, moved

    # Vectors and their elements.

    @property
    def warps(self) -> int:
        """The warps of a block that share a row."""
        return min(self.schedule.threads_per_row, self.schedule.threads) // WARP

    @contextmanager
    def open_vectors(self) -> Generator[None]:
        """Open the loop over a thread's vectors, of which ``first`` is the start."""
        lanes, tiles = self.schedule.lanes, self.schedule.tiles
        with self.open(f"for vector in range({tiles}):"):
            text = f"(warp * {tiles} + vector) * {WARP} + lane"
            text = f"({text}) * {lanes}" if lanes > 1 else text
            text = f"begin + {text}" if self.has_begin else text
            self.line(f"first = {text}")
            with self.open_if(self.exists):
                yield

    @property
    def exists(self) -> str:
        """The condition that the row has the current vector, if some have fewer."""
        n = self.extent(self.inner)
        ragged = self.nest.axes[self.inner].extent % self.tile_elements
        return f"first < {n}" if ragged else ""

    @contextmanager
    def open_elements(
        self, variables: AxisIndices, moved: Sequence[int]
    ) -> Generator[AxisIndices]:
        """Open the loop over a vector's elements; yield an element's indices.

        ``variables`` are the row's indices. Elements of the operands ``moved`` are in
        registers.
        """
        lanes, index = self.schedule.lanes, f"i{self.inner}"
        if lanes == 1:
            yield {**variables, self.inner: "first"}
            return
        with self.open(f"for slot in range({lanes}):"):
            self.staged = {k: f"{self.tile_name(k)}[{self.slot}]" for k in moved}
            if self.uses_index(self.nest.statements, self.inner):
                self.line(f"{index} = first + slot")
            yield {**variables, self.inner: index}
        self.staged = {}

    @property
    def slot(self) -> str:
        """The index of an element in its thread's registers."""
        lanes = self.schedule.lanes
        return f"vector * {lanes} + slot" if lanes > 1 else "vector"

    def load_all(self, loads: Sequence[int], variables: AxisIndices) -> None:
        """Load all vectors of ``loads``, before the first is waited for.

        ``variables`` are the row's indices.
        """
        if not loads:
            return
        at = {**variables, self.inner: "first"}
        with self.open_vectors():
            for operand in loads:
                self.load_vector(operand, self.schedule.lanes, at, self.first_slot)

    @property
    def first_slot(self) -> str:
        """The index of a vector's first element in its thread's registers."""
        lanes = self.schedule.lanes
        return f"vector * {lanes}" if lanes > 1 else "vector"

    def scan_threads(self, moved: Sequence[int], variables: AxisIndices) -> None:
        """Scan the elements of each vector; ``sums`` become the vectors' totals.

        ``moved`` are the operands in registers, ``variables`` the row's indices.
        """
        total, identity = self.total, self.constant(self.reduce.identity)
        with self.open(f"for vector in range({self.schedule.tiles}):"):
            self.line(f"{total}_sums[vector] = {identity}")
        with self.open_vectors():
            self.line(f"{total} = {identity}")
            with self.open_accumulation(moved, variables):
                self.line(f"{total}_scanned[{self.slot}] = {total}")
            self.line(f"{total}_sums[vector] = {total}")

    @contextmanager
    def open_accumulation(
        self, moved: Sequence[int], variables: AxisIndices
    ) -> Generator[AxisIndices]:
        """Open the loop over a vector's elements, and combine each with the total.

        Yields an element's indices. ``moved`` and ``variables`` are as in
        ``open_elements``.
        """
        with self.open_elements(variables, moved) as at:
            for s in self.nest.statements:
                if isinstance(s, Reduce):
                    self.accumulate(s)
                elif not isinstance(s, Store):
                    self.emit(s, at)
            yield at

    def combined(self, x: str, y: str) -> str:
        """The expression that combines the values ``x`` and ``y`` by the reduction."""
        return f"{self.reduce.function}({x}, {y})"

    def shuffled(self, mode: str, value: str, lanes: str) -> str:
        """The expression of another lane's ``value``, by the function ``shuffle_MODE``.

        ``mode`` and ``lanes``, which selects the lane, are as in the vocabulary.
        """
        function = f"shuffle_{mode}_{self.dtype}"
        return f"{function}({value}, {lanes})"

    def scan_warps(self) -> None:
        """Scan the totals of a warp's vectors, in the order of the row.

        ``sums`` become the vectors' prefixes in the warp, and ``total`` the warp's
        total.
        """
        total, sums = self.total, f"{self.total}_sums[vector]"
        identity = self.constant(self.reduce.identity)
        each = f"for vector in range({self.schedule.tiles}):"
        with self.open(f"for step in range({_STEPS}):"), self.open(each):
            self.line(f"other = {self.shuffled('up', sums, '1 << step')}")
            with self.open("if lane >= 1 << step:"):
                self.line(f"{sums} = {self.combined('other', sums)}")
        self.line(f"{total} = {identity}")
        with self.open(f"for vector in range({self.schedule.tiles}):"):
            self.line(f"other = {self.shuffled('up', sums, '1')}")
            with self.open("if lane == 0:"):
                self.line(f"other = {identity}")
            self.line(f"whole = {self.shuffled('from', sums, str(WARP - 1))}")
            self.line(f"{sums} = {self.combined(total, 'other')}")
            self.line(f"{total} = {self.combined(total, 'whole')}")

    def scan_blocks(self, loops: bool) -> None:
        """Set ``ahead`` to the prefix of the warp's elements in the row.

        ``loops`` says that a loop goes along the row: its earlier iterations count,
        too.
        """
        total = self.total
        if self.warps > 1:
            self.store_warp_total("warps")
            self.line("barrier()")
        self.scan_totals()
        if self.schedule.cluster > 1:
            self.exchange()
        if loops:
            self.line(f"ahead = {self.combined(f'{total}_carried', 'ahead')}")
            carried = self.combined(f"{total}_carried", total)
            self.line(f"{total}_carried = {carried}")

    @property
    def warp_of_block(self) -> str:
        """The expression of the warp's number in its block."""
        if self.schedule.cluster == 1:
            return "warp"
        return f"remainder(warp, {self.warps})"

    def store_warp_total(self, suffix: str) -> None:
        """Put the warp's total into the shared array with ``suffix``."""
        with self.open("if lane == 0:"):
            self.line(f"{self.total}_{suffix}[{self.warp_of_block}] = {self.total}")

    def scan_totals(self) -> None:
        """Scan the totals of a block's warps.

        ``ahead`` becomes the warp's prefix in its block, ``total`` the total of the
        block.
        """
        total, warps, number = self.total, self.warps, self.warp_of_block
        self.line(f"ahead = {self.constant(self.reduce.identity)}")
        if warps == 1:
            return
        self.line(f"other = {total}_warps[remainder(lane, {warps})]")
        with self.open(f"for step in range({warps.bit_length() - 1}):"):
            self.line(f"whole = {self.shuffled('up', 'other', '1 << step')}")
            with self.open(f"if remainder(lane, {warps}) >= 1 << step:"):
                self.line(f"other = {self.combined('whole', 'other')}")
        self.line(f"{total} = {self.shuffled('from', 'other', str(warps - 1))}")
        before = f"max_i64({number} - 1, 0)"
        self.line(f"other = {self.shuffled('from', 'other', before)}")
        with self.open(f"if {number} > 0:"):
            self.line("ahead = other")

    def exchange(self) -> None:
        """Send the block's total to all blocks of the cluster, and scan theirs."""
        total, cluster = self.total, self.schedule.cluster
        with self.open(f"if member < {cluster}:"):
            send = f"dsmem_store_{self.dtype}"
            self.line(f"{send}({total}_sent, rank, {total}, member, mbarriers, 0)")
        self.line("mbarrier_wait(mbarriers, 0, 0)")
        self.line(f"{total} = {self.constant(self.reduce.identity)}")
        with self.open(f"for part in range({cluster}):"):
            with self.open("if part == rank:"):
                self.line(f"ahead = {self.combined(total, 'ahead')}")
            self.line(f"{total} = {self.combined(total, f'{total}_sent[part]')}")

    def store_all(
        self,
        store: Store,
        moved: Sequence[int],
        stores: Sequence[int],
        variables: AxisIndices,
    ) -> None:
        """Store each element combined with its prefix in the row.

        Args:
            store: The statement that stores the running value.
            moved: The operands that have registers.
            stores: The operand that is stored as vectors, if it is.
            variables: The row's indices.
        """
        total = self.total
        with self.open_vectors():
            self.line(f"other = {self.combined('ahead', f'{total}_sums[vector]')}")
            with self.open_elements(variables, moved) as at:
                scanned = f"{total}_scanned[{self.slot}]"
                self.line(f"{total} = {self.combined('other', scanned)}")
                with self.open_if("" if stores else self.live):
                    self.emit(store, at)
            if stores:
                to = {**variables, self.inner: "first"}
                with self.open_if(self.live):
                    lanes = self.schedule.lanes
                    self.store_vector(stores[0], lanes, to, self.first_slot)
