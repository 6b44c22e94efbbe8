"""Kernels whose innermost axis is reduced: a group of threads shares a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from typing_extensions import override

from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.schedule import Pipeline, Rows
from arrayfn.lowering.cuda.stages import StagedPrinter
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import Reduce, Value

R = TypeVar("R", Rows, Pipeline)


@dataclass(frozen=True)
class Exchanged:
    """Where shared memory has the values that the parts of a row have exchanged.

    A part is a warp's share of the row or, in a cluster, a block's. A value named ``x``
    in the kernel is in the shared array ``x_suffix``, an element for each part.

    Args:
        count: How many parts there are.
        suffix: ``warps`` or ``sent``, which ends the arrays' names.
        lane_part: The kernel's expression of the part whose values this lane reads.
        offset: What goes before an index into the arrays: empty, or ``begin + `` where
            they are double-buffered.
        elements: Elements of the row in each part, if all have as many.
    """

    count: int
    suffix: str
    lane_part: str
    offset: str
    elements: int

    def of(self, name: str) -> str:
        """The expression of value ``name`` of the part that this lane reads."""
        return f"{name}_{self.suffix}[{self.offset}{self.lane_part}]"


@dataclass
class RowsPrinter(StagedPrinter[R]):
    """Prints kernels in which a group of threads reduces a row.

    The lanes of a warp combine their values by shuffles, the warps of a block in shared
    memory. Blocks of a cluster store their values in each other's shared memory.
    """

    exchanges: int = 0
    """How many exchanges between blocks have been printed."""
    exchanged: str = "mbarriers"
    """The array of the mbarriers that count the bytes of these."""

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
        """Combine the values of ``lanes`` neighbouring lanes, a power of two.

        Each lane gets the result: a butterfly of ``shuffle_xor``. Nothing for one lane.
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
        """Combine the lanes of each warp, then the warps or the cluster's blocks.

        ``reduces`` are the reductions of one stage.
        """
        if not reduces:
            return
        self.combine_part(reduces)
        if self.schedule.threads_per_row > WARP:
            texts = {s.result: self.name_of(s.result) for s in reduces}
            self.combine_parts(reduces, self.exchange(reduces[0].stage, texts))

    @property
    def parts(self) -> int:
        """How many parts exchange a row's values: warps or, in a cluster, blocks."""
        schedule = self.schedule
        cluster, warps = schedule.cluster, schedule.threads_per_row // WARP
        return cluster if cluster > 1 else warps

    def combine_part(self, reduces: Sequence[Reduce]) -> None:
        """Combine the values within each part: a warp or, in a cluster, a block.

        In a cluster only the first warp gets the block's values, and sends them: a
        block that receives them counts arrivals one by one, so there should be few.
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
        """Give the values of each part to all parts of the row, after ``stage``.

        ``texts`` has the expression of each value. The result says where the values are
        then.
        """
        if self.schedule.cluster > 1:
            return self.exchange_blocks(stage, texts)
        return self.exchange_warps(texts)

    def exchange_warps(self, texts: Mapping[Value, str]) -> Exchanged:
        """Store each warp's values in shared memory, and print a barrier of the block.

        ``texts`` has the expression of each value.
        """
        in_cluster = self.schedule.cluster > 1
        thread = "member" if in_cluster else self.member
        warps = (
            self.schedule.threads if in_cluster else self.schedule.threads_per_row
        ) // WARP
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
        elements = self.row_elements() // (warps * self.schedule.cluster)
        return Exchanged(warps, "warps", lane_part, offset, elements)

    def warp_slots(self, warps: int) -> tuple[str, int]:
        """The offset of an exchange between ``warps`` warps, and its array's length.

        The offset is as in ``Exchanged``; the length is in elements.
        """
        return "", warps

    def after_warp_barrier(self) -> None:
        """Print what single threads do between an exchange's barrier and its reads."""

    def combine_parts(self, reduces: Sequence[Reduce], parts: Exchanged) -> None:
        """Combine the values of all ``parts``, in each warp by itself."""
        for s in reduces:
            name = self.name_of(s.result)
            self.line(f"{name} = {parts.of(name)}")
        self.shuffles(reduces, parts.count)

    # Clusters.

    @override
    def after_first_loads(self) -> None:
        """Initialize a cluster's mbarriers while the loads of its row are under way."""
        if self.schedule.cluster > 1 and self.schedule.register_resident:
            self.init_exchange_mbarriers()

    def init_exchange_mbarriers(self) -> None:
        """Declare this block's mbarriers, and arrive at the cluster's barrier."""
        sizes = [self.exchanged_bytes(stage) for stage in self.exchanged_stages()]
        self.make_mbarriers(mbarriers=sizes)
        self.line("cluster_arrive()")

    def exchanged_values(self, stage: int) -> Sequence[Value]:
        """The values that parts exchange after ``stage``."""
        return [s.result for s in self.reduces(stage)]

    def exchanged_stages(self) -> list[int]:
        """The stages after which parts exchange values."""
        return [k for k in range(self.nest.stages) if self.exchanged_values(k)]

    def exchanged_bytes(self, stage: int) -> int:
        """Bytes that each block of a cluster receives after ``stage``."""
        size = sum(value.dtype.itemsize for value in self.exchanged_values(stage))
        return size * self.parts

    def exchange_slot(self, number: int) -> tuple[str, str, str]:
        """Where the exchange ``number`` of a row (0, 1, ...) takes place in a cluster.

        Returns expressions: the index of its mbarrier, the parity to wait for, and an
        offset as in ``Exchanged``.
        """
        return str(number), "0", ""

    def exchange_blocks(self, stage: int, texts: Mapping[Value, str]) -> Exchanged:
        """Store the block's values in the shared memory of all blocks of the cluster.

        The first threads send the values to one block each; all wait at the mbarrier.
        ``texts`` has the expression of each value.
        """
        cluster = self.schedule.cluster
        mbarrier, parity, offset = self.exchange_slot(self.exchanges)
        self.exchanges += 1
        for value in texts:
            self.shared_array(value, "sent", cluster * (2 if offset else 1))
        if self.exchanges == 1:
            self.before_first_exchange()
        with self.open(f"if member < {cluster}:"):
            for value, text in texts.items():
                send = f"dsmem_store_{short_name(value.dtype)}"
                sent = f"{self.name_of(value)}_sent, {offset}rank, {text}"
                self.line(f"{send}({sent}, member, {self.exchanged}, {mbarrier})")
        self.line(f"mbarrier_wait({self.exchanged}, {mbarrier}, {parity})")
        self.after_exchange(stage, mbarrier)
        lane_part = f"remainder(member, {cluster})"
        elements = self.row_elements() // cluster
        return Exchanged(cluster, "sent", lane_part, offset, elements)

    def before_first_exchange(self) -> None:
        """Wait until the other blocks have initialized their mbarriers."""
        self.line("cluster_wait()")

    def after_exchange(self, stage: int, mbarrier: str) -> None:
        """Prepare ``mbarrier`` for another row: not needed, a block has one."""
