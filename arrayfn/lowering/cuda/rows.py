"""Kernels whose innermost axis is reduced: a team of threads has a row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.schedule import Pipeline, Rows
from arrayfn.lowering.cuda.stages import StagedPrinter
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import Reduce

R = TypeVar("R", Rows, Pipeline)


@dataclass
class RowsPrinter(StagedPrinter[R]):
    """Threads of a team combine what they have by shuffles, warps in shared memory."""

    def body(self) -> None:
        nest, kept, schedule = self.nest, self.kept_axes, self.schedule
        rows = math.prod(nest.axes[k].extent for k in kept)
        thread = f"{self.use_device('thread_index')}()"
        block = f"{self.use_device('block_index')}()"
        per_block = schedule.threads // schedule.team
        if per_block > 1:
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
        if rows % per_block:
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
        """Combine what the threads of a row have: lanes, then warps."""
        schedule = self.schedule
        self.shuffles(reduces, min(schedule.team, WARP))
        warps = schedule.team // WARP
        if warps > 1 and reduces:
            self.combine_warps(reduces, warps, "thread")

    def combine_warps(self, reduces: Sequence[Reduce], warps: int, thread: str) -> None:
        """Each warp leaves what it has in shared memory, from where all combine it."""
        for s in reduces:
            self.shared_array(s, "warps", warps)
        self.open(f"if {self.use_device('remainder')}({thread}, {WARP}) == 0:")
        warp = f"{self.use_device('quotient')}({thread}, {WARP})"
        for s in reduces:
            name = self.name_of(s.result)
            self.line(f"{name}_warps[{warp}] = {name}")
        self.close()
        self.line(f"{self.use_device('barrier')}()")
        for s in reduces:
            name = self.name_of(s.result)
            place = f"{self.use_device('remainder')}({thread}, {warps})"
            self.line(f"{name} = {name}_warps[{place}]")
        self.shuffles(reduces, warps)
