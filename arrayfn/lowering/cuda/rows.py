"""Kernels whose innermost axis is reduced: a team of threads has a row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.schedule import Rows
from arrayfn.lowering.cuda.stages import StagedPrinter
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import Reduce


@dataclass
class RowsPrinter(StagedPrinter[Rows]):
    """Threads of a team combine what they have by shuffles, warps in shared memory.

    The blocks of a cluster do so in the shared memory of one another.
    """

    met: bool = False  # whether the blocks of the cluster are known to run

    def body(self) -> None:
        nest, kept, schedule = self.nest, self.kept_axes, self.schedule
        rows = math.prod(nest.axes[k].extent for k in kept)
        thread = f"{self.use_device('thread_index')}()"
        block = f"{self.use_device('block_index')}()"
        per_block = schedule.threads // schedule.team
        if schedule.cluster > 1:
            self.items = rows * schedule.cluster
            self.line(f"{self.use_device('cluster_arrive')}()")
            rank = self.remainder(block, str(schedule.cluster), self.items)
            self.line(f"rank = {rank}")
            self.line(f"thread = rank * {schedule.threads} + {thread}")
            item = self.quotient(block, str(schedule.cluster), self.items)
            item = item if kept else ""
        elif per_block > 1:
            self.items = -(-rows // per_block)
            team, turn = schedule.team, thread
            if team > 1:
                rest = f"{self.use_device('remainder')}({thread}, {team})"
                self.line(f"thread = {rest}")
                turn = f"{self.use_device('quotient')}({thread}, {team})"
            item = f"{block} * {per_block} + {turn}" if kept else turn
        else:
            self.items = rows
            self.line(f"thread = {thread}")
            item = block if kept else ""
        if schedule.cluster == 1 and rows % per_block:
            self.live = "live"
            count = self.extent_of(kept, "rows") if kept else "1"
            self.line(f"item = {item}")
            self.line(f"live = item < {count}")
            item = f"{self.use('min_i64')}(item, {count} - 1)"
        variables = self.decompose(item, kept)
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
        """Combine what the threads of a row have: lanes, warps, blocks of a cluster."""
        schedule = self.schedule
        self.shuffles(reduces, min(schedule.team, WARP))
        warps = min(schedule.team, schedule.threads) // WARP
        if not reduces:
            return
        if warps > 1:
            self.combine_warps(reduces, warps)
        if schedule.cluster > 1:
            self.combine_blocks(reduces, schedule.cluster)

    def combine_warps(self, reduces: Sequence[Reduce], warps: int) -> None:
        own = f"{self.use_device('thread_index')}()" if self.in_cluster else "thread"
        for s in reduces:
            self.shared_array(s, "warps", warps)
        self.open(f"if {self.use_device('remainder')}(thread, {WARP}) == 0:")
        warp = f"{self.use_device('quotient')}({own}, {WARP})"
        for s in reduces:
            name = self.name_of(s.result)
            self.line(f"{name}_warps[{warp}] = {name}")
        self.close()
        self.line(f"{self.use_device('barrier')}()")
        for s in reduces:
            name = self.name_of(s.result)
            place = f"{self.use_device('remainder')}(thread, {warps})"
            self.line(f"{name} = {name}_warps[{place}]")
        self.shuffles(reduces, warps)

    @property
    def in_cluster(self) -> bool:
        """Whether the blocks of a cluster share a row."""
        return self.schedule.cluster > 1

    def combine_blocks(self, reduces: Sequence[Reduce], cluster: int) -> None:
        """Each block puts what it has into the shared memory of all."""
        if not self.met:
            # No block may be written to before it runs.
            self.line(f"{self.use_device('cluster_wait')}()")
            self.met = True
        for s in reduces:
            self.shared_array(s, "blocks", cluster)
        own = f"{self.use_device('thread_index')}()"
        self.open(f"if {own} < {cluster}:")
        for s in reduces:
            name = self.name_of(s.result)
            put = self.use_device(f"put_{short_name(s.result.dtype)}")
            self.line(f"{put}({name}_blocks, rank, {name}, {own})")
        self.close()
        self.line(f"{self.use_device('cluster_arrive')}()")
        self.line(f"{self.use_device('cluster_wait')}()")
        for s in reduces:
            name = self.name_of(s.result)
            self.line(f"{name} = {name}_blocks[0]")
        self.open(f"for other in range(1, {cluster}):")
        for s in reduces:
            name, function = self.name_of(s.result), self.use(s.function)
            self.line(f"{name} = {function}({name}, {name}_blocks[other])")
        self.close()
