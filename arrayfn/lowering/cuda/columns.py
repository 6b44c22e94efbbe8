"""Kernels whose innermost axis is kept: a block has 32 neighbouring columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from arrayfn.lowering.cuda.schedule import Columns
from arrayfn.lowering.cuda.stages import StagedPrinter
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import Reduce

MAX_ACCUMULATOR_WORDS: Final = 4  # 32-bit registers for running values


@dataclass
class ColumnsPrinter(StagedPrinter[Columns]):
    """Prints kernels whose blocks have 32 columns each, a lane for a column.

    A block's warps stride over the rows. Their partial results are combined in the
    order of the warps.
    """

    @override
    def body(self) -> None:
        """Print which column each thread has, then the stages.

        Defines ``lane``, ``part`` (the warp's number in its block) and the indices
        along kept axes. Where the last block has fewer than 32 columns, ``live`` says
        whether a lane has one; the others recompute the last column and store nothing.
        """
        nest, inner = self.nest, len(self.nest.axes) - 1
        outer = [k for k in self.kept_axes if k != inner]
        width = nest.axes[inner].extent
        blocks = -(-width // WARP)
        self.items = math.prod(nest.axes[k].extent for k in outer) * blocks
        n = self.extent(inner)
        block = "block_index()"
        self.line(f"lane = remainder(thread_index(), {WARP})")
        self.line(f"part = quotient(thread_index(), {WARP})")
        if outer:
            self.line(f"blocks = ({n} + {WARP - 1}) // {WARP}")
            start = self.remainder(block, "blocks", self.items)
            variables = self.decompose(
                self.quotient(block, "blocks", self.items), outer
            )
        else:
            start, variables = block, {}
        self.live = "live" if width % WARP else ""
        if self.live:
            self.line(f"column = {start} * {WARP} + lane")
            self.line(f"live = column < {n}")
            self.line(f"i{inner} = min_i64(column, {n} - 1)")
        else:
            self.line(f"i{inner} = {start} * {WARP} + lane")
        variables[inner] = f"i{inner}"
        self.hoist_offsets(variables)
        self.stages(variables, "part")

    @override
    def accumulators_of(self, reduces: Sequence[Reduce]) -> int:
        """How many partial results a thread keeps of each of these reductions.

        As in other kernels, but halved until all take up ``MAX_ACCUMULATOR_WORDS``
        registers at most: two blocks have to fit on a multiprocessor.
        """
        count = super().accumulators_of(reduces)
        words = sum(-(-s.result.dtype.itemsize // 4) for s in reduces)
        while count > 1 and words * count > MAX_ACCUMULATOR_WORDS:
            count //= 2
        return count

    @override
    def combine_threads(self, reduces: Sequence[Reduce]) -> None:
        """Combine the warps' partial results of each column, in warp order."""
        schedule = self.schedule
        if schedule.threads_per_row == 1 or not reduces:
            return
        for s in reduces:
            self.shared_array(s.result, "parts", WARP * schedule.threads_per_row)
        for s in reduces:
            name = self.name_of(s.result)
            self.line(f"{name}_parts[part * {WARP} + lane] = {name}")
        self.line("barrier()")
        for s in reduces:
            name = self.name_of(s.result)
            self.line(f"{name} = {name}_parts[lane]")
        with self.open(f"for other in range(1, {schedule.threads_per_row}):"):
            for s in reduces:
                name = self.name_of(s.result)
                term = f"{name}_parts[other * {WARP} + lane]"
                self.line(f"{name} = {s.function}({name}, {term})")
