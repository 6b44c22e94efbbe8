"""Kernels whose innermost axis is reduced: a work item is a row, or a chunk of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Final

from typing_extensions import override

from arrayfn.lowering.cpu.schedule import CPU, chunk_size, grain_of
from arrayfn.lowering.cpu.stages import StagedPrinter
from arrayfn.lowering.cpu.sums import chunk_rows, cut, is_running_sum, is_sum, row_block
from arrayfn.lowering.kernel_ir import Compute, Reduce
from arrayfn.records import frozen, record

STRIP: Final = 256  # elements of a row that are computed while as many are prefetched


@frozen
class Blocks:
    """How the reductions ``sums`` are cut: into blocks of ``size`` indices of ``axis``.

    Each block's sum is added to a total in a wider dtype.
    """

    sums: Sequence[Reduce]
    axis: int
    size: int


@record
class BlockedRowsPrinter(StagedPrinter):
    """The base of printers of kernels whose innermost axis is reduced.

    Sums of long rows are cut into blocks. The sum of a row is printed as ::

        a_total = f64(0)
        for near in range(0, n1, 4096):
            a = f32(0)
            for i1 in range(near, min_i64(near + 4096, n1)):
                x = x_in[row + i1]
                a = accumulate_add_f32(a, x)
            a_total = a_total + convert_f32_f64(a)
        a = convert_f64_f32(a_total)

    ``within`` maps a running sum's name to the variable with its sum in the block.
    """

    within: dict[str, str] = field(default_factory=dict[str, str])

    def blocks(self, stage: int, strip: int = 0) -> Blocks | None:
        """Return how the sums of ``stage`` are cut into blocks; None if they are not.

        If there is a loop over strips of ``strip`` elements, each strip is a block.
        """
        reduced = self.reduced_axes
        sums = [s for s in self.row_reductions(stage) if is_sum(s) or is_running_sum(s)]
        if not sums or not reduced:
            return None
        axis_and_size = cut(self.nest, reduced, row_block(self.nest, reduced))
        if axis_and_size is None:
            return None
        axis, size = axis_and_size
        return Blocks(sums, axis, strip or size)

    def begin_sums(self, stage: int, blocks: Blocks | None) -> None:
        """Print the first values of the reductions of ``stage``: their identities.

        For sums that are cut into ``blocks``, the totals get them, in their dtype.
        """
        for s in self.row_reductions(stage):
            if blocks is not None and s in blocks.sums:
                self.line(f"{self.total_of(s)} = {self.total_identity(s)}")
                if is_running_sum(s):
                    self.within[s.result.name] = f"{self.name_of(s.result)}_within"
            else:
                self.line(f"{self.name_of(s.result)} = {self.constant(s.identity)}")

    def open_blocks(self, first: str, last: str, size: int) -> str:
        """Print the start of a loop over blocks of ``size`` indices.

        ``first`` and ``last`` are the texts of the whole range's bounds. Returns the
        text of the bounds of the loop over a block.
        """
        self.open(f"for near in range({first}, {last}, {size}):")
        return f"near, {self.use('min_i64')}(near + {size}, {last})"

    def begin_block(self, blocks: Blocks) -> None:
        """Print the first values of the sums of a block: their identities.

        For a running sum, the total so far is also converted to the sum's dtype.
        """
        for s in blocks.sums:
            self.line(f"{self.in_block(s)} = {self.constant(s.identity)}")
            if is_running_sum(s):
                total = self.from_total(s, self.total_of(s))
                self.line(f"{self.name_of(s.result)}_earlier = {total}")

    def in_block(self, s: Reduce) -> str:
        """Return the variable with the sum ``s`` in the current block."""
        return self.within.get(s.result.name, self.name_of(s.result))

    @override
    def accumulate(self, s: Reduce) -> None:
        """Print the addition of a term to the reduction ``s``.

        A running sum that is cut into blocks is the sum before the block plus the sum
        within it: ``a_within = a_within + x`` and ``a = a_earlier + a_within``.
        """
        within = self.within.get(s.result.name)
        if within is None:
            super().accumulate(s)
            return
        name, term = self.name_of(s.result), self.scalar(s.argument)
        total = self.expression(s.function, [within, term])
        self.line(f"{within} = {total}", s.source)
        total = self.expression(s.function, [f"{name}_earlier", within])
        self.line(f"{name} = {total}")

    def close_loops(self, blocks: Blocks | None, *, stripped: bool = False) -> None:
        """Print the ends of the loops over the reduced axes.

        At the end of a block, its sums are added to the totals. After all loops, the
        totals are converted to the sums' dtypes. ``stripped`` says that there is a loop
        over strips, which is to be closed too if its strips are not blocks.
        """
        for axis in reversed(self.reduced_axes):
            self.close()
            if blocks is not None and blocks.axis == axis:
                for s in blocks.sums:
                    total = self.total_of(s)
                    value = self.plus(s, total, self.in_block(s))
                    self.line(f"{total} = {value}")
                self.close()
            elif stripped:
                self.close()
        for s in blocks.sums if blocks is not None else ():
            if is_running_sum(s):
                continue
            value = self.from_total(s, self.total_of(s))
            self.line(f"{self.name_of(s.result)} = {value}")


@record
class RowsPrinter(BlockedRowsPrinter):
    """Prints reductions along rows: a work item is one row, computed in stages.

    A row has the elements at one index of the kept axes. A softmax is printed as
    follows; the second stage prefetches the next row, strip by strip::

        for i0 in range(begin, end):
            row = i0 * n1
            a = F32_NEG_INF
            for i1 in range(n1):
                x = x_in[row + i1]
                a = accumulate_max_f32(a, x)
            e = f32(0)
            for near in range(0, n1, 256):
                prefetch_row(x_in, row + n1 + near, 256)
                for i1 in range(near, min_i64(near + 256, n1)):
                    x = x_in[row + i1]
                    c = x - a
                    d = exp_f32(c)
                    d_row[i1] = d
                    e = accumulate_add_f32(e, d)
            for i1 in range(n1):
                d = d_row[i1]
                g = div_f32(d, e)
                g_out[row + i1] = g
    """

    @override
    def body(self) -> None:
        """Print a loop over rows, and in it the stages of a row."""
        kept, length = self.kept_axes, self.nest.row_length
        self.plan_stages()
        self.choose_storage(length)
        self.items = self.nest.rows
        self.grain = grain_of(self.nest, length)
        if len(kept) == 1:
            self.open(f"for i{kept[0]} in range(begin, end):")
            variables = {kept[0]: f"i{kept[0]}"}
        else:
            self.open("for item in range(begin, end):")
            variables = self.decompose("item", kept)
        self.row(variables)
        self.close()

    def row(self, variables: dict[int, str]) -> None:
        """Print all stages of one row.

        ``variables`` has the text of the index along each kept axis.
        """
        self.hoist_offsets(variables)
        prefetching = self.prefetch_stage()
        for stage in range(max(self.nest.stages, self.last_outer_stage() + 1)):
            for s in self.outer_statements(stage):
                self.emit(s, variables)
            if stage >= self.nest.stages or not self.stage_bodies[stage]:
                continue
            self.row_stage(stage, variables, prefetches=stage == prefetching)

    def row_stage(
        self, stage: int, variables: dict[int, str], prefetches: bool
    ) -> None:
        """Print one pass over the row: the statements of ``stage``.

        ``variables`` has the text of the index along each kept axis. With
        ``prefetches``, the pass runs in strips, and each strip begins with a prefetch
        of the same strip of the next row.
        """
        reduced = self.reduced_axes
        blocks = self.blocks(stage, STRIP if prefetches else 0)
        self.begin_sums(stage, blocks)
        inner_variables = dict(variables)
        for axis in reduced:
            bounds = self.extent(axis)
            if prefetches:
                bounds = self.open_strips()
            elif blocks is not None and blocks.axis == axis:
                bounds = self.open_blocks("0", bounds, blocks.size)
            if blocks is not None and blocks.axis == axis:
                self.begin_block(blocks)
            self.open(f"for i{axis} in range({bounds}):")
            inner_variables[axis] = f"i{axis}"
        self.stage_loop_body(stage, inner_variables, self.row_index())
        self.close_loops(blocks, stripped=prefetches)

    def prefetch_stage(self) -> int | None:
        """Return the stage that prefetches the next row, or None for no prefetch.

        It is the most expensive stage, so that the row arrives during the computation.
        The first stage is left out: it waits for memory itself, while later stages read
        the cache.
        """
        if len(self.reduced_axes) != 1 or not self.kept_axes or self.nest.stages == 1:
            return None
        if not self.prefetched_operands():
            return None
        return max(range(1, self.nest.stages), key=self.cost_of_stage)

    def cost_of_stage(self, stage: int) -> int:
        """Return the cost of the stage's computations for an element.

        The unit is that of ``Compute.cost``, relative to an addition. Values that are
        stored between stages count only in the stage that computes them.
        """
        return sum(
            s.cost
            for s in self.stage_bodies[stage]
            if isinstance(s, Compute)
            and (
                s.result.name not in self.stored_in
                or self.first_stage[s.result.name] == stage
            )
        )

    def prefetched_operands(self) -> list[int]:
        """Return the operands to prefetch: read, contiguous along a row, not broadcast.

        A broadcast operand is the same for all rows, so it is in the cache.
        """
        (axis,), last = self.reduced_axes, self.kept_axes[-1]
        return [
            k
            for k, operand in enumerate(self.nest.operands)
            if not operand.written
            and operand.strides[axis] == 1
            and operand.strides[last]
        ]

    def open_strips(self) -> str:
        """Print the start of a loop over strips of a row, with prefetches.

        Each strip begins with the prefetch of the same strip of the next row. Returns
        the text of the bounds of the loop over a strip.
        """
        (axis,), last = self.reduced_axes, self.kept_axes[-1]
        n, min_i64 = self.extent(axis), self.use("min_i64")
        self.open(f"for near in range(0, {n}, {STRIP}):")
        for k in self.prefetched_operands():
            offset = self.offsets.get(k, "0")
            begin = f"{offset} + {self.stride(k, last)} + near"
            self.line(
                f"{self.use('prefetch_row')}({self.pointer(k)}, {begin}, {STRIP})"
            )
        return f"near, {min_i64}(near + {STRIP}, {n})"


@record
class RowTotalsPrinter(RowsPrinter):
    """Prints rows with totals over the rows: a work item is a chunk of rows.

    A total has an element for each element of a row: the sum over all rows. The kernel
    stores each chunk's totals as partial results. Around the rows of ``RowsPrinter``,
    this class prints ::

        for item in range(begin, end):
            first = item * chunk
            last = min_i64(first + chunk, n0)
            for i1 in range(n1):
                t_part[item * n1 + i1] = f32(0)
            for i0 in range(first, last):
                ...
    """

    @override
    def body(self) -> None:
        """Print a loop over chunks: identities of the totals, then the rows."""
        (kept,), (reduced,) = self.kept_axes, self.reduced_axes
        rows, length = self.nest.axes[kept].extent, self.nest.axes[reduced].extent
        self.plan_stages()
        self.choose_storage(length)
        size = chunk_size(rows, min(CPU.column_block, max(1, length)))
        totals = [partial.reduce for partial in self.partials]
        size = chunk_rows(self.nest, [kept], size, totals)
        self.items = -(-rows // size)
        self.grain = grain_of(self.nest, size * length)
        chunk, n = self.integer("chunk", size), self.extent(reduced)
        self.open("for item in range(begin, end):")
        self.line(f"first = item * {chunk}")
        last = f"{self.use('min_i64')}(first + {chunk}, {self.extent(kept)})"
        self.line(f"last = {last}")
        self.open(f"for i{reduced} in range({n}):")
        for k, partial in enumerate(self.partials):
            identity = self.constant(partial.reduce.identity)
            self.line(f"{self.total(k)} = {self.narrow_partial(partial, identity)}")
        self.close()
        self.open(f"for i{kept} in range(first, last):")
        self.row({kept: f"i{kept}"})
        self.close()
        self.close()

    def total(self, k: int) -> str:
        """Return the text of partial result ``k`` for the row's current element."""
        (reduced,) = self.reduced_axes
        return f"{self.partial_name(k)}[item * {self.extent(reduced)} + i{reduced}]"

    @override
    def accumulate(self, s: Reduce) -> None:
        """Print the addition of a term to ``s``; a total over rows is in memory."""
        if not s.across:
            super().accumulate(s)
            return
        names = [p.reduce.result.name for p in self.partials]
        k = names.index(s.result.name)
        self.add_to_partial(k, s, self.total(k))


@record
class PartialRowsPrinter(BlockedRowsPrinter):
    """Prints the first half of a split reduction to one value.

    A work item is a chunk of the first axis. It reduces its chunk, in blocks, and
    stores the partial result: ``a_part[item] = a``.
    """

    @override
    def body(self) -> None:
        """Print a loop over chunks, which stores each chunk's partial results."""
        reduced = self.reduced_axes
        first, inner_axes = reduced[0], reduced[1:]
        inner = self.nest.size_along(inner_axes)
        size = chunk_size(self.nest.axes[first].extent, inner)
        self.plan_stages()
        self.items = -(-self.nest.axes[first].extent // size)
        self.grain = grain_of(self.nest, size * inner)
        name = self.integer("chunk", size)
        self.open("for item in range(begin, end):")
        self.line(f"start = item * {name}")
        self.line(f"stop = {self.use('min_i64')}(start + {name}, {self.extent(first)})")
        for s in self.outer_statements(0):
            self.emit(s, {})
        blocks = self.blocks(0)
        self.begin_sums(0, blocks)
        variables = {}
        for axis in reduced:
            begin, end = (
                ("start", "stop") if axis == first else ("0", self.extent(axis))
            )
            bounds = f"{begin}, {end}" if axis == first else end
            if blocks is not None and blocks.axis == axis:
                bounds = self.open_blocks(begin, end, blocks.size)
                self.begin_block(blocks)
            self.open(f"for i{axis} in range({bounds}):")
            variables[axis] = f"i{axis}"
        # A single stage keeps nothing for later ones, so there are no scratch arrays.
        self.stage_loop_body(0, variables, row_index="0")
        self.close_loops(blocks)
        for k, partial in enumerate(self.partials):
            value = self.narrow_partial(partial, self.name_of(partial.reduce.result))
            self.line(f"{self.partial_name(k)}[item] = {value}")
        self.close()
