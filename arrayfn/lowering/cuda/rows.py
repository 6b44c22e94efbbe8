"""Kernels whose innermost axis is reduced: a group of threads shares a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.schedule import Pipeline, Rows
from arrayfn.lowering.cuda.stages import StagedPrinter
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import Reduce, Value

R = TypeVar("R", Rows, Pipeline)


@dataclass(frozen=True)
class Parts:
    """Where a block finds what each of a row's ``count`` warps, or blocks, has sent.

    That of a value is in the array ``NAME_suffix``, from ``place`` on. A lane combines
    the part ``own``. Where all have as many, a part is of so many ``elements``.
    """

    count: int
    suffix: str
    own: str
    place: str
    elements: int

    def of(self, name: str, at: str) -> str:
        """The part of the warp, or block, ``at``."""
        return f"{name}_{self.suffix}[{self.place}{at}]"


@dataclass
class RowsPrinter(StagedPrinter[R]):
    """Threads of a group combine their values by shuffles, warps in shared memory.

    Blocks of a cluster send what they have to each other.
    """

    exchanges: int = 0  # of the cluster, that are printed already
    exchanged: str = "mbarriers"  # the name of those that count what the blocks send

    def body(self) -> None:
        schedule = self.schedule
        if schedule.cluster > 1:
            variables = self.begin_cluster(schedule.cluster, schedule.threads)
            if not schedule.whole:
                self.open_exchanges()
        else:
            variables = self.begin_rows(schedule.threads, schedule.threads_per_row)
        self.hoist_offsets(variables)
        self.stages(variables, "thread")

    # Trees.

    def shuffles(self, reduces: Sequence[Reduce], threads_per_row: int) -> None:
        """Each of so many neighbouring lanes gets the combination of all."""
        if threads_per_row == 1 or not reduces:
            return
        with self.open(f"for step in range({threads_per_row.bit_length() - 1}):"):
            for s in reduces:
                name = self.name_of(s.result)
                shuffle = f"shuffle_xor_{short_name(s.result.dtype)}"
                other = f"{shuffle}({name}, {threads_per_row // 2} >> step)"
                self.line(f"{name} = {s.function}({name}, {other})")

    def tree(self, reduces: Sequence[Reduce]) -> None:
        """Combine what the threads of a row have: lanes, then warps."""
        if not reduces:
            return
        self.combine_own(reduces)
        if self.schedule.threads_per_row > WARP:
            texts = {s.result: self.name_of(s.result) for s in reduces}
            self.combine_parts(reduces, self.exchange(reduces[0].stage, texts))

    @property
    def parts(self) -> int:
        """How many parts of a row are exchanged: its warps, or blocks of a cluster."""
        schedule = self.schedule
        cluster, warps = schedule.cluster, schedule.threads_per_row // WARP
        return cluster if cluster > 1 else warps

    def combine_own(self, reduces: Sequence[Reduce]) -> None:
        """Combine what the threads of a warp have; of a cluster, those of a block.

        A block counts what arrives one after the other: there should be little. The
        first warp sends it, and alone combines it.
        """
        self.combine_warp(reduces)
        if self.warps_meet and reduces:
            texts = {s.result: self.name_of(s.result) for s in reduces}
            parts = self.exchange_warps(texts)
            with self.open(f"if member < {WARP}:"):
                self.combine_parts(reduces, parts)

    def combine_warp(self, reduces: Sequence[Reduce]) -> None:
        """Combine the values of a row's threads within each warp."""
        self.shuffles(reduces, min(self.schedule.threads_per_row, WARP))

    @property
    def warps_meet(self) -> bool:
        """Whether the warps of a block combine their values before it sends them."""
        return self.schedule.cluster > 1 and self.schedule.threads > WARP

    def exchange(self, stage: int, texts: Mapping[Value, str]) -> Parts:
        """Give all parts of a row these values of each other, after ``stage``."""
        if self.schedule.cluster > 1:
            return self.exchange_blocks(stage, texts)
        return self.exchange_warps(texts)

    def exchange_warps(self, texts: Mapping[Value, str]) -> Parts:
        """Each warp puts these values into shared memory, from where all read them."""
        of_cluster = self.schedule.cluster > 1
        thread = "member" if of_cluster else self.member
        warps = (
            self.schedule.threads if of_cluster else self.schedule.threads_per_row
        ) // WARP
        first, count = self.place_of_warps(warps)
        for value in texts:
            self.shared_array(value, "warps", count)
        with self.open(f"if remainder({thread}, {WARP}) == 0:"):
            warp = f"quotient({thread}, {WARP})"
            for value, text in texts.items():
                self.line(f"{self.name_of(value)}_warps[{first}{warp}] = {text}")
        self.line("barrier()")
        self.warps_have_met()
        own = f"remainder({thread}, {warps})"
        elements = self.row_elements() // (warps * self.schedule.cluster)
        return Parts(warps, "warps", own, first, elements)

    def place_of_warps(self, warps: int) -> tuple[str, int]:
        """Where what the warps leave begins, and how much the array has."""
        return "", warps

    def warps_have_met(self) -> None:
        """What some do while others go on to exchange what the warps have."""

    def combine_parts(self, reduces: Sequence[Reduce], parts: Parts) -> None:
        """Each warp combines the values of all parts."""
        for s in reduces:
            name = self.name_of(s.result)
            self.line(f"{name} = {parts.of(name, parts.own)}")
        self.shuffles(reduces, parts.count)

    # Clusters.

    def loads_are_begun(self) -> None:
        """A row is on its way: what the cluster needs is made meanwhile."""
        if self.schedule.cluster > 1 and self.schedule.whole:
            self.open_exchanges()

    def open_exchanges(self) -> None:
        """Make this block's mbarriers, and tell the other blocks so."""
        sizes = [self.exchanged_bytes(stage) for stage in self.exchanged_stages()]
        self.make_mbarriers(mbarriers=sizes)
        self.line("cluster_arrive()")

    def sent_after(self, stage: int) -> Sequence[Value]:
        """What is exchanged after ``stage``."""
        return [s.result for s in self.reduces(stage)]

    def exchanged_stages(self) -> list[int]:
        """The stages after which the blocks of a cluster exchange something."""
        return [k for k in range(self.nest.stages) if self.sent_after(k)]

    def exchanged_bytes(self, stage: int) -> int:
        """How much is sent to each block after ``stage``."""
        size = sum(value.dtype.itemsize for value in self.sent_after(stage))
        return size * self.parts

    def exchange_of_iteration(self, number: int) -> tuple[str, str, str]:
        """Signal, parity and place of this iteration's exchange."""
        return str(number), "0", ""

    def exchange_blocks(self, stage: int, texts: Mapping[Value, str]) -> Parts:
        """The first warp sends what the block has to all, where each combines it."""
        cluster = self.schedule.cluster
        mbarrier, parity, place = self.exchange_of_iteration(self.exchanges)
        self.exchanges += 1
        for value in texts:
            self.shared_array(value, "sent", cluster * (2 if place else 1))
        if self.exchanges == 1:
            self.begin_exchanges()
        with self.open(f"if member < {cluster}:"):
            for value, text in texts.items():
                send = f"dsmem_store_{short_name(value.dtype)}"
                sent = f"{self.name_of(value)}_sent, {place}rank, {text}"
                self.line(f"{send}({sent}, member, {self.exchanged}, {mbarrier})")
        self.line(f"mbarrier_wait({self.exchanged}, {mbarrier}, {parity})")
        self.end_exchange(stage, mbarrier)
        own = f"remainder(member, {cluster})"
        return Parts(cluster, "sent", own, place, self.row_elements() // cluster)

    def begin_exchanges(self) -> None:
        """Before the first: the other blocks' mbarriers are made."""
        self.line("cluster_wait()")

    def end_exchange(self, stage: int, mbarrier: str) -> None:
        """After an exchange, that of a block's only row."""
