"""Kernels whose innermost axis is reduced: a team of threads has a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.merged_rows import MergedRowsPrinter, Parts
from arrayfn.lowering.cuda.schedule import Pipeline, Rows
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import Reduce, Value

R = TypeVar("R", Rows, Pipeline)


@dataclass
class RowsPrinter(MergedRowsPrinter[R]):
    """Threads of a team combine what they have by shuffles, warps in shared memory.

    Blocks of a cluster send what they have to each other.
    """

    exchanges: int = 0  # of the cluster, that are printed already

    def body(self) -> None:
        schedule = self.schedule
        if schedule.cluster > 1:
            variables = self.begin_cluster(schedule.cluster, schedule.threads)
            if not schedule.whole:
                self.open_exchanges()
        else:
            variables = self.begin_rows(schedule.threads, schedule.team)
        self.hoist_offsets(variables)
        self.stages(variables, "thread")

    # Trees.

    def shuffles(self, reduces: Sequence[Reduce], team: int) -> None:
        """Each of ``team`` neighbouring lanes gets the combination of all."""
        if team == 1 or not reduces:
            return
        self.open(f"for step in range({team.bit_length() - 1}):")
        for s in reduces:
            name = self.name_of(s.result)
            shuffle = self.use_device(f"shuffle_xor_{short_name(s.result.dtype)}")
            other = f"{shuffle}({name}, {team // 2} >> step)"
            self.line(f"{name} = {self.use(s.function)}({name}, {other})")
        self.close()

    def tree(self, reduces: Sequence[Reduce]) -> None:
        """Combine what the threads of a row have: lanes, then warps."""
        if not reduces:
            return
        self.combine_own(reduces)
        if self.schedule.team > WARP:
            results = [s.result for s in reduces]
            self.combine_parts(reduces, self.exchange(reduces[0].stage, results))

    @property
    def parts(self) -> int:
        """How many parts of a row are exchanged: its warps, or blocks of a cluster."""
        schedule = self.schedule
        return schedule.cluster if schedule.cluster > 1 else schedule.team // WARP

    def combine_own(self, reduces: Sequence[Reduce]) -> None:
        """Combine what the threads of a warp have; of a cluster, those of a block.

        A block counts what arrives one after the other: there should be little.
        """
        self.shuffles(reduces, min(self.schedule.team, WARP))
        warps = self.schedule.threads // WARP
        if self.schedule.cluster > 1 and warps > 1 and reduces:
            texts = {s.result: self.name_of(s.result) for s in reduces}
            parts = self.exchange_warps(warps, texts)
            # The first warp sends what they come to. It alone needs it, unless the
            # next stage is taken about it.
            sent = all(m.stage != reduces[0].stage for m in self.merges)
            if sent:
                self.open(f"if member < {WARP}:")
            self.combine_parts(reduces, parts)
            if sent:
                self.close()

    def exchange(
        self, stage: int, values: Sequence[Value], own: frozenset[Value] = frozenset()
    ) -> Parts:
        texts = {v: self.name_of(v) for v in values}
        texts |= {v: f"{self.name_of(v)}_part" for v in own}
        if self.schedule.cluster > 1:
            return self.exchange_blocks(stage, values, texts)
        return self.exchange_warps(self.parts, texts)

    def exchange_warps(self, warps: int, texts: Mapping[Value, str]) -> Parts:
        """Each warp leaves what it has in shared memory, from where all combine it."""
        thread = "member" if self.schedule.cluster > 1 else self.thread_of("thread")
        for value in texts:
            self.shared_array(value, "warps", warps)
        self.open(f"if {self.use_device('remainder')}({thread}, {WARP}) == 0:")
        warp = f"{self.use_device('quotient')}({thread}, {WARP})"
        for value, text in texts.items():
            self.line(f"{self.name_of(value)}_warps[{warp}] = {text}")
        self.close()
        self.line(f"{self.use_device('barrier')}()")
        place = f"{self.use_device('remainder')}({thread}, {warps})"
        return Parts(warps, "warps", place)

    def combine_parts(self, reduces: Sequence[Reduce], parts: Parts) -> None:
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
        """Make this block's signals, and tell the other blocks so."""
        self.make_signals(map(self.exchanged_bytes, self.exchanged_stages()))
        self.line(f"{self.use_device('cluster_arrive')}()")

    def exchanged_stages(self) -> list[int]:
        """The stages after which the blocks of a cluster exchange something."""
        return [k for k in range(self.nest.stages) if self.sent_after(k)]

    def exchanged_bytes(self, stage: int) -> int:
        """How much is sent to each block after ``stage``."""
        size = sum(value.dtype.itemsize for value in self.sent_after(stage))
        return size * self.parts

    def exchange_of_turn(self, number: int) -> tuple[str, str, str]:
        """Signal, parity and place of this turn's exchange."""
        return str(number), "0", ""

    def exchange_blocks(
        self, stage: int, values: Sequence[Value], texts: Mapping[Value, str]
    ) -> Parts:
        """The first warp sends what the block has to all, where each combines it."""
        cluster = self.schedule.cluster
        signal, parity, place = self.exchange_of_turn(self.exchanges)
        self.exchanges += 1
        for value in values:
            self.shared_array(value, "sent", cluster * (2 if place else 1))
        if self.exchanges == 1:
            self.begin_exchanges()
        self.open(f"if member < {cluster}:")
        for value in values:
            send = self.use_device(f"send_{short_name(value.dtype)}")
            sent = f"{self.name_of(value)}_sent, {place}rank, {texts[value]}"
            self.line(f"{send}({sent}, member, signals, {signal})")
        self.close()
        self.line(f"{self.use_device('await_signal')}(signals, {signal}, {parity})")
        self.end_exchange(stage, signal)
        own = f"{self.use_device('remainder')}(member, {cluster})"
        return Parts(cluster, "sent", own, place)

    def begin_exchanges(self) -> None:
        """Before the first: the other blocks' signals are made."""
        self.line(f"{self.use_device('cluster_wait')}()")

    def end_exchange(self, stage: int, signal: str) -> None:
        """After an exchange, that of a block's only row."""
