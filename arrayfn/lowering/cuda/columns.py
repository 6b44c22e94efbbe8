"""Kernels whose innermost axis is kept: a block has 32 neighbouring columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from typing_extensions import override

from arrayfn.lowering.cuda.schedule import Columns
from arrayfn.lowering.cuda.stages import StagedPrinter
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import Reduce
from arrayfn.records import record

MAX_ACCUMULATOR_WORDS: Final = 4  # 32-bit registers for running values


@record
class ColumnsPrinter(StagedPrinter[Columns]):
    """Prints kernels whose blocks reduce 32 neighbouring columns, a lane for each.

    The warps of a block stride over the rows. Each has a partial result of every
    column, which are combined in the order of the warps.
    """

    @override
    def body(self) -> None:
        """Print which column each thread has, then the stages.

        Prints, for 70 columns in the last axis of three:

            lane = remainder(thread_index(), 32)
            part = quotient(thread_index(), 32)
            blocks = (n2 + 31) // 32
            i0 = quotient(block_index(), blocks)
            column = remainder(block_index(), blocks) * 32 + lane
            live = column < n2
            i2 = min_i64(column, n2 - 1)

        ``part`` is the warp's number in its block. Where the last block has fewer than
        32 columns, lanes that are not ``live`` compute the last column again and store
        nothing.
        """
        nest, inner = self.nest, len(self.nest.axes) - 1
        outer = [k for k in self.kept_axes if k != inner]
        width, n = nest.axes[inner].extent, self.extent(inner)
        blocks_across = -(-width // WARP)
        self.items = nest.size_along(outer) * blocks_across
        self.line(f"lane = remainder(thread_index(), {WARP})")
        self.line(f"part = quotient(thread_index(), {WARP})")
        block, indices = "block_index()", dict[int, str]()
        if outer:
            self.line(f"blocks = ({n} + {WARP - 1}) // {WARP}")
            matrix = self.quotient(block, "blocks", self.items)
            block = self.remainder(block, "blocks", self.items)
            indices = self.decompose(matrix, outer)
        column = f"{block} * {WARP} + lane"
        self.live = "live" if width % WARP else ""
        if self.live:
            self.line(f"column = {column}")
            self.line(f"live = column < {n}")
            column = f"min_i64(column, {n} - 1)"
        self.line(f"i{inner} = {column}")
        variables = {**indices, inner: f"i{inner}"}
        self.hoist_offsets(variables)
        self.stages(variables, "part")

    @override
    def accumulator_count(self, reduces: Sequence[Reduce]) -> int:
        """Choose how many partial results a thread has of each of ``reduces``.

        The number is that of ``PartialResultsPrinter``, halved until all of them take
        up at most ``MAX_ACCUMULATOR_WORDS`` registers: two blocks have to fit on a
        multiprocessor.
        """
        count = super().accumulator_count(reduces)
        words = sum(-(-s.result.dtype.itemsize // 4) for s in reduces)
        while count > 1 and words * count > MAX_ACCUMULATOR_WORDS:
            count //= 2
        return count

    @override
    def combine_threads(self, reduces: Sequence[Reduce]) -> None:
        """Combine the partial results of each column, in the order of the warps.

        ``part`` is the thread's warp, and ``lane`` its column in the block.
        Prints, for a sum ``b`` and two warps:

            b_parts = shared_f32(64)
            b_parts[part * 32 + lane] = b
            barrier()
            b = b_parts[lane]
            for other in range(1, 2):
                b = accumulate_add_f32(b, b_parts[other * 32 + lane])
        """
        schedule = self.schedule
        if schedule.threads_per_row == 1 or not reduces:
            return
        for s in reduces:
            self.shared_array(s.result, "parts", WARP * schedule.threads_per_row)
        named = [(self.name_of(s.result), s.function) for s in reduces]
        for name, _ in named:
            self.line(f"{name}_parts[part * {WARP} + lane] = {name}")
        self.line("barrier()")
        for name, _ in named:
            self.line(f"{name} = {name}_parts[lane]")
        with self.open(f"for other in range(1, {schedule.threads_per_row}):"):
            for name, function in named:
                term = f"{name}_parts[other * {WARP} + lane]"
                self.line(f"{name} = {function}({name}, {term})")
