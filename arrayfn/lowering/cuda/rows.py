"""Kernels whose innermost axis is reduced: a row group of threads shares a row.

A *part* of a row is what a warp or, in a cluster, a block reduces of it. The threads of
a part combine their values first; then the parts exchange theirs through shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from typing_extensions import override

from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.schedule import Pipeline, Rows
from arrayfn.lowering.cuda.stages import StagedPrinter
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import Reduce, Value
from arrayfn.records import frozen, record

R = TypeVar("R", Rows, Pipeline)


@frozen
class Exchanged:
    """Where shared memory has the values that the parts of a row have exchanged.

    The values of ``x`` are in the shared array ``x_suffix``, an element for each part.
    Each lane of a warp reads one of them, and shuffles combine them.

    Args:
        count: How many parts there are.
        suffix: ``warps`` or ``sent``, which ends the arrays' names.
        lane_part: The expression of the part whose values this lane reads, such as
            ``remainder(member, 8)``.
        offset: What goes before an index into the arrays. Empty, or, where they are
            double-buffered, the beginning of this row's buffer and `` + ``.
        elements: Elements of the row in each part, rounded down. It is only read where
            all parts have as many (see ``row_merges``).
    """

    count: int
    suffix: str
    lane_part: str
    offset: str
    elements: int

    def of(self, name: str) -> str:
        """Return the expression of value ``name`` of this lane's part.

        For example ``b_sent[remainder(member, 8)]``.
        """
        return f"{name}_{self.suffix}[{self.offset}{self.lane_part}]"


@record
class RowsPrinter(StagedPrinter[R]):
    """Prints kernels in which a row group reduces each row.

    The lanes of a warp combine their values by shuffles, the warps of a block in shared
    memory. Blocks of a cluster store their values in each other's shared memory.
    """

    exchanges: int = 0
    """The number of exchanges between a cluster's blocks that have been printed."""
    exchanged: str = "mbarriers"
    """The array of mbarriers that count the bytes of these exchanges."""

    @override
    def body(self) -> None:
        """Print which row each thread has, then the stages."""
        schedule = self.schedule
        if schedule.cluster > 1:
            variables = self.begin_cluster(schedule.cluster, schedule.threads)
            if not schedule.register_resident:
                self.init_exchange_mbarriers()
        else:
            variables = self.begin_rows(schedule.threads, schedule.threads_per_row)
        self.hoist_offsets(variables)
        self.stages(variables, "thread")

    # Warps.

    def shuffles(self, reduces: Sequence[Reduce], lanes: int) -> None:
        """Combine the values of ``lanes`` neighbouring lanes by a shuffle butterfly.

        Each lane gets the result. Prints, for a maximum ``a`` over 8 lanes (a power of
        two):

            for step in range(3):
                a = accumulate_max_f32(a, shuffle_xor_f32(a, 4 >> step))
        """
        if lanes == 1 or not reduces:
            return
        with self.open(f"for step in range({lanes.bit_length() - 1}):"):
            for s in reduces:
                name = self.name_of(s.result)
                shuffle = f"shuffle_xor_{short_name(s.result.dtype)}"
                other = f"{shuffle}({name}, {lanes // 2} >> step)"
                self.line(f"{name} = {s.function}({name}, {other})")

    @override
    def combine_threads(self, reduces: Sequence[Reduce]) -> None:
        """Combine a row group's partial results of ``reduces``, a stage's reductions.

        Prints, for a sum ``a`` by 8 warps (by one warp or less: only the first two
        lines):

            for step in range(5):
                a = accumulate_add_f32(a, shuffle_xor_f32(a, 16 >> step))
            a_warps = shared_f32(8)
            if remainder(thread, 32) == 0:
                a_warps[quotient(thread, 32)] = a
            barrier()
            a = a_warps[remainder(thread, 8)]
            for step in range(3):
                a = accumulate_add_f32(a, shuffle_xor_f32(a, 4 >> step))
        """
        if not reduces:
            return
        self.combine_part(reduces)
        if self.schedule.threads_per_row > WARP:
            texts = {s.result: self.name_of(s.result) for s in reduces}
            self.combine_parts(reduces, self.exchange(reduces[0].stage, texts))

    @property
    def parts(self) -> int:
        """How many parts a row has: blocks of a cluster, or warps of a block."""
        schedule = self.schedule
        cluster, warps = schedule.cluster, schedule.threads_per_row // WARP
        return cluster if cluster > 1 else warps

    def combine_part(self, reduces: Sequence[Reduce]) -> None:
        """Combine the values within each part: a warp or, in a cluster, a block.

        In a cluster only the first warp gets the block's values. It sends them to the
        other blocks, and no other warp does, because mbarriers count arriving values
        one by one.
        """
        self.combine_warp(reduces)
        if self.combines_in_block and reduces:
            texts = {s.result: self.name_of(s.result) for s in reduces}
            parts = self.exchange_warps(texts)
            with self.open(f"if member < {WARP}:"):
                self.combine_parts(reduces, parts)

    def combine_warp(self, reduces: Sequence[Reduce]) -> None:
        """Combine the values of the threads of a warp that share a row."""
        self.shuffles(reduces, min(self.schedule.threads_per_row, WARP))

    @property
    def combines_in_block(self) -> bool:
        """Whether a block combines its warps' values before it sends them to others."""
        return self.schedule.cluster > 1 and self.schedule.threads > WARP

    def exchange(self, stage: int, texts: Mapping[Value, str]) -> Exchanged:
        """Print the exchange of values between all parts of the row, after ``stage``.

        Returns where the parts' values are afterwards.

        Args:
            stage: The stage whose results are exchanged.
            texts: The expression of each value in a part.
        """
        if self.schedule.cluster > 1:
            return self.exchange_blocks(stage, texts)
        return self.exchange_warps(texts)

    def exchange_warps(self, texts: Mapping[Value, str]) -> Exchanged:
        """Exchange values between the warps of a block, in shared memory.

        Prints, for a value ``h`` of 8 warps:

            h_warps = shared_f32(8)
            if remainder(thread, 32) == 0:
                h_warps[quotient(thread, 32)] = h
            barrier()

        ``texts`` has the expression of each value, here ``h``.
        """
        schedule = self.schedule
        # In a cluster the warps of one block exchange, not those of a row.
        thread, threads = self.member, schedule.threads_per_row
        if schedule.cluster > 1:
            thread, threads = "member", schedule.threads
        warps = threads // WARP
        offset, count = self.warp_slots(warps)
        for value in texts:
            self.shared_array(value, "warps", count)
        with self.open(f"if remainder({thread}, {WARP}) == 0:"):
            warp = f"quotient({thread}, {WARP})"
            for value, text in texts.items():
                self.line(f"{self.name_of(value)}_warps[{offset}{warp}] = {text}")
        self.line("barrier()")
        self.after_warp_barrier()
        lane_part = f"remainder({thread}, {warps})"
        elements = self.row_elements() // (warps * schedule.cluster)
        return Exchanged(warps, "warps", lane_part, offset, elements)

    def warp_slots(self, warps: int) -> tuple[str, int]:
        """Return the offset of the warps' values in shared arrays, and the length.

        The offset is as in ``Exchanged``: empty here, as a row uses the whole array.
        The length of the arrays is in elements, for ``warps`` warps.
        """
        return "", warps

    def after_warp_barrier(self) -> None:
        """Print what single threads do between an exchange's barrier and its loads.

        Nothing here; a pipeline's producers have some work.
        """

    def combine_parts(self, reduces: Sequence[Reduce], parts: Exchanged) -> None:
        """Combine the exchanged values of all ``parts``, redundantly in every warp.

        Prints, for a sum ``g`` of a cluster's four blocks:

            g = g_sent[remainder(member, 4)]
            for step in range(2):
                g = accumulate_add_f32(g, shuffle_xor_f32(g, 2 >> step))
        """
        for s in reduces:
            name = self.name_of(s.result)
            self.line(f"{name} = {parts.of(name)}")
        self.shuffles(reduces, parts.count)

    # Clusters.

    @override
    def after_first_loads(self) -> None:
        """Initialize a cluster's mbarriers while the loads of its row are in flight."""
        if self.schedule.cluster > 1 and self.schedule.register_resident:
            self.init_exchange_mbarriers()

    def init_exchange_mbarriers(self) -> None:
        """Declare a cluster's mbarriers, one for each exchange; arrive at its barrier.

        Prints, for one exchange of two float32 between 8 blocks:

            mbarriers = mbarriers_i64(1)
            if member == 0:
                mbarrier_init(mbarriers, 1)
                fence_mbarrier_init()
                mbarrier_expect_tx(mbarriers, 0, 64)
            cluster_arrive()
        """
        sizes = [self.exchanged_bytes(stage) for stage in self.exchanged_stages()]
        self.make_mbarriers(mbarriers=sizes)
        self.line("cluster_arrive()")

    def exchanged_values(self, stage: int) -> Sequence[Value]:
        """Return the values that parts exchange after ``stage``."""
        return [s.result for s in self.row_reductions(stage)]

    def exchanged_stages(self) -> list[int]:
        """Return the stages after which parts exchange values."""
        return [k for k in range(self.nest.stages) if self.exchanged_values(k)]

    def exchanged_bytes(self, stage: int) -> int:
        """Return the bytes that each block of a cluster receives after ``stage``."""
        size = sum(value.dtype.itemsize for value in self.exchanged_values(stage))
        return size * self.parts

    def exchange_slot(self, number: int) -> tuple[str, str, str]:
        """Return the mbarrier, its parity and the offset of exchange ``number``.

        ``number`` counts the exchanges of a row between the blocks of a cluster.
        Returns three expressions: the index of the mbarrier, the parity to wait for,
        and an offset as in ``Exchanged``. Here ``("0", "0", "")``: a cluster has one
        row, and an mbarrier for each exchange.
        """
        return str(number), "0", ""

    def exchange_blocks(self, stage: int, texts: Mapping[Value, str]) -> Exchanged:
        """Exchange values between the blocks of a cluster; each block gets all of them.

        Prints, for the first value ``g`` of 8 blocks (thread k of each block sends to
        block k):

            g_sent = shared_f32(8)
            cluster_wait()
            if member < 8:
                dsmem_store_f32(g_sent, rank, g, member, mbarriers, 0)
            mbarrier_wait(mbarriers, 0, 0)

        Args:
            stage: The stage whose results are exchanged.
            texts: The expression of each value, here ``g``.
        """
        cluster = self.schedule.cluster
        mbarrier, parity, offset = self.exchange_slot(self.exchanges)
        self.exchanges += 1
        for value in texts:
            # An offset means that there are two buffers.
            self.shared_array(value, "sent", cluster * (2 if offset else 1))
        if self.exchanges == 1:
            self.before_first_exchange()
        with self.open(f"if member < {cluster}:"):
            for value, text in texts.items():
                store = f"dsmem_store_{short_name(value.dtype)}"
                sent = f"{self.name_of(value)}_sent, {offset}rank, {text}"
                self.line(f"{store}({sent}, member, {self.exchanged}, {mbarrier})")
        self.line(f"mbarrier_wait({self.exchanged}, {mbarrier}, {parity})")
        self.after_exchange(stage, mbarrier)
        lane_part = f"remainder(member, {cluster})"
        elements = self.row_elements() // cluster
        return Exchanged(cluster, "sent", lane_part, offset, elements)

    def before_first_exchange(self) -> None:
        """Wait until the other blocks have initialized their mbarriers."""
        self.line("cluster_wait()")

    def after_exchange(self, stage: int, mbarrier: str) -> None:
        """Prepare ``mbarrier`` for the next row: nothing here, as there is one row.

        A pipeline announces the bytes of the next row's exchange after ``stage``.
        """
