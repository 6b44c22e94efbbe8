"""Kernels whose innermost axis is kept: a work item is a block of columns."""

from __future__ import annotations

import math
from collections.abc import Sequence

from typing_extensions import override

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.lowering.cpu.elementwise import BlockPrinter
from arrayfn.lowering.cpu.schedule import (
    CPU,
    chunk_size,
    columns_per_item,
    grain_of,
)
from arrayfn.lowering.cpu.stages import StagedPrinter
from arrayfn.lowering.cpu.sums import (
    COLUMN_BLOCK,
    chunk_rows,
    cut,
    is_running_sum,
    is_sum,
    total_dtype,
)
from arrayfn.lowering.kernel_ir import Compute, Count, Load, Reduce, Value, uses
from arrayfn.lowering.kernel_printer import KernelPrinter, ScratchRow
from arrayfn.records import record


@record
class PartialColumnsPrinter(StagedPrinter):
    """Prints the first half of a split reduction of columns.

    A work item is a chunk of rows of a block of columns. It stores a partial result for
    each of its columns. The sum of the columns of ``x`` is printed as ::

        for item in range(begin, end):
            blocks = (n1 + block - 1) // block
            chunks = (n0 + chunk - 1) // chunk
            start = item % blocks * block
            stop = min_i64(start + block, n1)
            part = item // blocks
            first = part % chunks * chunk
            last = min_i64(first + chunk, n0)
            for i1 in range(start, stop):
                a_part[part * n1 + i1] = f32(0)
            for i0 in range(first, last):
                for i1 in range(start, stop):
                    x = x_in[i0 * n1 + i1]
                    a_part[part * n1 + i1] = accumulate_add_f32(a_part[...], x)
    """

    @override
    def body(self) -> None:
        """Print a loop over items, in it loops over the chunk's rows and columns.

        Partial results are accumulated in memory, one for each column.
        """
        outer, reduced, inner = _column_axes(self)
        self.plan_stages()
        variables = self.open_chunks(outer, reduced, inner)
        column = f"i{inner}"
        self.open(f"for {column} in range(start, stop):")
        for k, partial in enumerate(self.partials):
            identity = self.constant(partial.reduce.identity)
            element = self.partial_element(k, inner)
            self.line(f"{element} = {self.narrow_partial(partial, identity)}")
        self.close()
        for axis in reduced:
            bounds = "first, last" if axis == reduced[0] else self.extent(axis)
            self.open(f"for i{axis} in range({bounds}):")
            variables[axis] = f"i{axis}"
        self.open(f"for {column} in range(start, stop):")
        variables[inner] = column
        for s in self.outer_statements(0):
            if isinstance(s, (Load, Compute, Count)):
                self.emit(s, variables)
        for s in self.stage_bodies[0]:
            if isinstance(s, Reduce):
                k = [p.reduce for p in self.partials].index(s)
                self.add_to_partial(k, s, self.partial_element(k, inner))
            else:
                self.emit(s, variables)
        for _ in range(len(reduced) + 2):  # loops over columns, rows and items
            self.close()

    def open_chunks(
        self, outer: Sequence[int], reduced: Sequence[int], inner: int
    ) -> dict[int, str]:
        """Print the start of the loop over items; return each outer axis's index text.

        An item has the rows from ``first`` to ``last`` of the first of the axes
        ``reduced``, and the columns from ``start`` to ``stop`` of the axis ``inner``.
        Its number is ``(outer index * chunks + chunk) * blocks + block``, and ``part``
        is the number without the block. Also sets ``items`` and ``grain``.
        """
        axes = self.nest.axes
        rows, width = axes[reduced[0]].extent, axes[inner].extent
        per_row = math.prod(axes[k].extent for k in reduced[1:])
        width_of_block = min(CPU.column_block, max(1, width))
        size = chunk_size(rows, per_row * width_of_block)
        sums = [partial.reduce for partial in self.partials]
        size = chunk_rows(self.nest, reduced, size, sums)
        chunks, blocks = -(-rows // size), -(-width // CPU.column_block)
        self.items = math.prod(axes[k].extent for k in outer) * chunks * blocks
        self.grain = grain_of(self.nest, size * per_row * width_of_block)
        n, chunk = self.extent(inner), self.integer("chunk", size)
        block = self.integer("block", CPU.column_block)
        min_i64 = self.use("min_i64")
        self.open("for item in range(begin, end):")
        self.line(f"blocks = ({n} + {block} - 1) // {block}")
        self.line(f"chunks = ({self.extent(reduced[0])} + {chunk} - 1) // {chunk}")
        self.line(f"start = item % blocks * {block}")
        self.line(f"stop = {min_i64}(start + {block}, {n})")
        self.line("part = item // blocks")
        self.line(f"first = part % chunks * {chunk}")
        self.line(f"last = {min_i64}(first + {chunk}, {self.extent(reduced[0])})")
        return self.decompose("part // chunks", outer)

    def partial_element(self, k: int, inner: int) -> str:
        """Return the text of partial result ``k`` of the current column.

        ``inner`` is the axis of columns: ``a_part[part * n1 + i1]``.
        """
        return f"{self.partial_name(k)}[part * {self.extent(inner)} + i{inner}]"


@record
class ColumnsPrinter(StagedPrinter, BlockPrinter):
    """Prints whole reductions of columns: an item has all stages of a block of columns.

    ``x / sum(x, axis=0)`` is printed as follows, with the sum cut into blocks of 64
    rows, whose sums are added to a total in float64::

        for item in range(begin, end):
            blocks = (n1 + block - 1) // block
            start = item % blocks * block
            stop = min_i64(start + block, n1)
            for i1 in range(start, stop):
                a_total[i1 - start] = f64(0)
            for near in range(0, n0, 64):
                for i1 in range(start, stop):
                    a_columns[i1 - start] = f32(0)
                for i0 in range(near, min_i64(near + 64, n0)):
                    for i1 in range(start, stop):
                        x = x_in[i0 * n1 + i1]
                        a_columns[i1 - start] = accumulate_add_f32(a_columns[...], x)
                for i1 in range(start, stop):
                    a_total[i1 - start] = a_total[...] + convert_f32_f64(a_columns[...])
            for i1 in range(start, stop):
                a_columns[i1 - start] = convert_f64_f32(a_total[i1 - start])
            for i0 in range(n0):
                for i1 in range(start, stop):
                    x = x_in[i0 * n1 + i1]
                    a = a_columns[i1 - start]
                    c = div_f32(x, a)
                    c_out[i0 * n1 + i1] = c
    """

    @override
    def body(self) -> None:
        """Print a loop over blocks of columns, and in it two loops for each stage.

        The first runs the statements that a column has once, the second those that each
        of its elements has. A stage may lack either.
        """
        outer, reduced, inner = _column_axes(self)
        width = self.nest.axes[inner].extent
        height = self.nest.row_length
        # A value that is kept for later stages would need scratch memory for all
        # elements of the column block. So values are computed again.
        self.plan_stages(keep=False)
        blocks = self.nest.size_along(outer)
        size = columns_per_item(self.nest, blocks, width, height)
        variables = self.open_blocks(outer, inner, size)
        self.grain = grain_of(self.nest, min(width, size) * height)
        column = f"i{inner}"
        for stage in range(max(self.nest.stages, self.last_outer_stage() + 1)):
            if self.outer_statements(stage):
                self.open(f"for {column} in range(start, stop):")
                self.column_statements(stage, {**variables, inner: column}, column)
                self.close()
            if stage >= self.nest.stages or not self.stage_bodies[stage]:
                continue
            self.column_stage(stage, variables, reduced, inner)
        self.close()

    def column_row(self, value: Value) -> str:
        """Return the scratch array with an outer value for each column of the block.

        The first call allocates it.
        """
        return self.scratch_row(f"{self.name_of(value)}_columns", value.dtype)

    def scratch_row(self, name: str, dtype: DType) -> str:
        """Allocate the scratch array ``name``, if it is not there, and return ``name``.

        It has an element for each column of a block.
        """
        if all(row.name != name for row in self.scratch):
            self.scratch.append(ScratchRow(name, dtype, CPU.column_block))
        return name

    def column_total(self, s: Reduce, column: str) -> str:
        """Return the text of the element with the total of sum ``s`` for ``column``."""
        return f"{self.scratch_row(self.total_of(s), total_dtype(s))}[{column} - start]"

    def column_value(self, value: Value, column: str) -> str:
        """Return the text that reads the outer value ``value`` of ``column``."""
        text = f"{self.column_row(value)}[{column} - start]"
        return self.widen(dtypes.bool_, text) if value.dtype == dtypes.bool_ else text

    def column_set(self, value: Value, column: str, text: str) -> None:
        """Print the store of ``text`` as the outer value ``value`` of ``column``.

        It goes to scratch memory; a bool is stored as a byte.
        """
        if value.dtype == dtypes.bool_:
            text = self.narrow(dtypes.bool_, text)
        self.line(f"{self.column_row(value)}[{column} - start] = {text}")

    def column_statements(
        self, stage: int, variables: dict[int, str], column: str
    ) -> None:
        """Print the statements of ``stage`` that run once for each column.

        ``variables`` has the text of the index along each axis, and ``column`` that of
        the column. Results are stored for later stages.
        """
        in_variables: set[str] = set()
        for s in self.outer_statements(stage):
            for value in uses(s):
                self.fetch(value, in_variables, variables, column)
            self.emit(s, variables)
            if isinstance(s, (Load, Compute, Count)):
                in_variables.add(s.result.name)
                if isinstance(s, Compute):
                    self.column_set(s.result, column, self.name_of(s.result))

    def fetch(
        self,
        value: Value,
        in_variables: set[str],
        variables: dict[int, str],
        column: str,
    ) -> None:
        """Print the assignment of an outer value to its variable, unless it has one.

        A value of an earlier stage is read from scratch memory; loads and counts are
        repeated. Nothing is printed for an element's value. ``in_variables`` are the
        names of values that are in variables already; ``value`` is added to it.
        ``variables`` has the text of the index along each axis, ``column`` that of the
        column.
        """
        if value.name in in_variables:
            return
        s = self.producers[value.name]
        if isinstance(s, Reduce) or (isinstance(s, Compute) and s.level == "outer"):
            self.line(f"{self.name_of(value)} = {self.column_value(value, column)}")
        elif isinstance(s, (Load, Count)) and s.level == "outer":
            self.emit(s, variables)
        else:
            return
        in_variables.add(value.name)

    def column_stage(
        self, stage: int, variables: dict[int, str], reduced: list[int], inner: int
    ) -> None:
        """Print one pass over the rows of the block, with the reductions of ``stage``.

        Long sums are cut into blocks of rows, whose sums are added to totals.
        ``variables`` has the text of the index along each outer axis; ``reduced`` are
        the axes of rows and ``inner`` that of columns.
        """
        column = f"i{inner}"
        reduces = self.row_reductions(stage)
        sums = [s for s in reduces if is_sum(s) or is_running_sum(s)]
        blocks = cut(self.nest, reduced, COLUMN_BLOCK) if sums else None
        sums = sums if blocks is not None else []
        self.begin_reductions(reduces, sums, column)
        inner_variables = dict(variables)
        for axis in reduced:
            bounds = self.extent(axis)
            if blocks is not None and blocks[0] == axis:
                bounds = self.open_row_blocks(bounds, blocks[1], sums, column)
            self.open(f"for i{axis} in range({bounds}):")
            inner_variables[axis] = f"i{axis}"
        self.open(f"for {column} in range(start, stop):")
        inner_variables[inner] = column
        self.column_elements(stage, inner_variables, sums, column)
        self.close()
        for axis in reversed(reduced):
            self.close()
            if blocks is not None and blocks[0] == axis:
                self.close_row_blocks(sums, column)
        self.end_sums([s for s in sums if is_sum(s)], column)

    def begin_reductions(
        self, reduces: Sequence[Reduce], sums: Sequence[Reduce], column: str
    ) -> None:
        """Print a loop over ``column`` that sets ``reduces`` to their identities.

        For reductions among ``sums``, which are cut into blocks, it sets the totals
        instead.
        """
        if not reduces:
            return
        self.open(f"for {column} in range(start, stop):")
        for s in reduces:
            if s in sums:
                total = self.column_total(s, column)
                self.line(f"{total} = {self.total_identity(s)}")
            else:
                self.column_set(s.result, column, self.constant(s.identity))
        self.close()

    def column_elements(
        self,
        stage: int,
        variables: dict[int, str],
        sums: Sequence[Reduce],
        column: str,
    ) -> None:
        """Print the statements of ``stage`` for one element, with its reductions.

        Reductions are in scratch memory. Running sums among ``sums``, which are cut
        into blocks, are also variables. ``variables`` has the text of the index along
        each axis, ``column`` that of the column.
        """
        in_variables: set[str] = set()
        for s in self.stage_bodies[stage]:
            for value in uses(s):
                self.fetch(value, in_variables, variables, column)
            if isinstance(s, Reduce) and s in sums and is_running_sum(s):
                self.column_run(s, column)
                in_variables.add(s.result.name)
            elif isinstance(s, Reduce):
                so_far = self.column_value(s.result, column)
                total = f"{self.use(s.function)}({so_far}, {self.scalar(s.argument)})"
                self.column_set(s.result, column, total)
            else:
                self.emit(s, variables)

    def end_sums(self, sums: Sequence[Reduce], column: str) -> None:
        """Print a loop over ``column`` that converts totals to the sums' dtypes."""
        if not sums:
            return
        self.open(f"for {column} in range(start, stop):")
        for s in sums:
            value = self.from_total(s, self.column_total(s, column))
            self.column_set(s.result, column, value)
        self.close()

    def column_run(self, s: Reduce, column: str) -> None:
        """Print the addition of a term to the running sum ``s`` of ``column``.

        The running sum is the total before the block of rows, plus the sum within the
        block::

            a_within[i1 - start] = a_within[i1 - start] + x
            a = a_earlier[i1 - start] + a_within[i1 - start]
        """
        within, earlier = self.column_parts(s, column)
        total = self.expression(s.function, [within, self.scalar(s.argument)])
        self.line(f"{within} = {total}", s.source)
        total = self.expression(s.function, [earlier, within])
        self.line(f"{self.name_of(s.result)} = {total}")

    def column_parts(self, s: Reduce, column: str) -> tuple[str, str]:
        """Return the texts of two scratch elements for the running sum ``s``.

        The first has the sum within this block of rows for ``column``, the second the
        sum before the block.
        """
        name, dtype = self.name_of(s.result), s.result.dtype
        within, earlier = (
            f"{self.scratch_row(f'{name}_{part}', dtype)}[{column} - start]"
            for part in ("within", "earlier")
        )
        return within, earlier

    def open_row_blocks(
        self, last: str, size: int, sums: Sequence[Reduce], column: str
    ) -> str:
        """Print the start of a loop over blocks of ``size`` rows.

        In it, a loop over ``column`` sets the sums of the block to their identities.
        ``last`` is the text of the number of rows. Returns the text of the bounds of
        the loop over the block's rows.
        """
        self.open(f"for near in range(0, {last}, {size}):")
        self.open(f"for {column} in range(start, stop):")
        for s in sums:
            if is_running_sum(s):
                within, earlier = self.column_parts(s, column)
                self.line(f"{within} = {self.constant(s.identity)}")
                total = self.from_total(s, self.column_total(s, column))
                self.line(f"{earlier} = {total}")
            else:
                self.column_set(s.result, column, self.constant(s.identity))
        self.close()
        return f"near, {self.use('min_i64')}(near + {size}, {last})"

    def close_row_blocks(self, sums: Sequence[Reduce], column: str) -> None:
        """Print the addition of a block's sums to their totals, and end its loop."""
        self.open(f"for {column} in range(start, stop):")
        for s in sums:
            total = self.column_total(s, column)
            block_sum = (
                self.column_parts(s, column)[0]
                if is_running_sum(s)
                else self.column_value(s.result, column)
            )
            value = self.plus(s, total, block_sum)
            self.line(f"{total} = {value}")
        self.close()
        self.close()


def _column_axes(printer: KernelPrinter) -> tuple[list[int], list[int], int]:
    """Return the kept axes without the innermost, the reduced axes, the innermost."""
    inner = len(printer.nest.axes) - 1
    return [k for k in printer.kept_axes if k != inner], printer.reduced_axes, inner
