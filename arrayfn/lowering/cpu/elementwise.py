"""Elementwise kernels: blocks of the innermost axis, or tiles of two axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from typing_extensions import override

from arrayfn.lowering.cpu.schedule import CPU, crossing_axis, grain_of, tile_of
from arrayfn.lowering.kernel_ir import Load
from arrayfn.lowering.kernel_printer import KernelPrinter, ScratchRow
from arrayfn.records import record


@record
class BlockPrinter(KernelPrinter):
    """The base of printers whose work items are blocks of the innermost axis."""

    def open_blocks(
        self, outer: Sequence[int], inner: int, size: int, rows: int = 1
    ) -> dict[int, str]:
        """Print the start of the loop over items; return each outer axis's index text.

        Also sets ``items`` and ``grain``. For one outer axis it prints ::

            for item in range(begin, end):
                blocks = (n1 + block - 1) // block
                start = item % blocks * block
                stop = min_i64(start + block, n1)
                i0 = item // blocks

        Args:
            outer: the axes outside of the blocks.
            inner: the axis that is cut into blocks.
            size: the indices of ``inner`` in a block: from ``start`` to ``stop``.
            rows: if above 1, it is equal to ``size``, and the last outer axis is cut
                too: an item has that many of its indices, from ``first`` to ``last``.
        """
        extents = [self.nest.axes[k].extent for k in outer]
        if rows > 1:
            extents[-1] = -(-extents[-1] // rows)
        extent = self.nest.axes[inner].extent
        self.items = math.prod(extents) * -(-extent // size)
        self.grain = grain_of(self.nest, min(size, max(1, extent)) * rows)
        self.open("for item in range(begin, end):")
        n = self.extent(inner)
        name = self.integer("block", size)
        self.line(f"blocks = (n{inner} + {name} - 1) // {name}")
        self.line(f"start = item % blocks * {name}")
        self.line(f"stop = {self.use('min_i64')}(start + {name}, {n})")
        if rows == 1:
            return self.decompose("item // blocks", outer)
        last = self.extent(outer[-1])
        self.line("tile = item // blocks")
        self.line(f"tiles = ({last} + {name} - 1) // {name}")
        self.line(f"first = tile % tiles * {name}")
        self.line(f"last = {self.use('min_i64')}(first + {name}, {last})")
        return self.decompose("tile // tiles", outer[:-1])


@record
class ElementwisePrinter(BlockPrinter):
    """Prints kernels without reduced axes."""

    @override
    def body(self) -> None:
        """Print the kernel: a nest of one axis by elements, others by tiles or blocks.

        Tiles are for nests with an operand that is contiguous along another axis than
        the innermost one.
        """
        axes = self.nest.axes
        body = self.nest.statements
        if len(axes) <= 1:
            self.items = axes[0].extent if axes else 1
            self.grain = grain_of(self.nest, 1)
            self.open("for i0 in range(begin, end):")
            for s in body:
                self.emit(s, {0: "i0"} if axes else {})
            self.close()
            return
        inner = len(axes) - 1
        crossing = crossing_axis(self.nest)
        if crossing is not None:
            self.tiles(crossing, inner)
            return
        self.blocks()

    def blocks(self) -> None:
        """Print items that are blocks of one axis, with all axes inside of it.

        The axis is the innermost one, or one outside of short inner axes: each item
        begins with divisions, whose cost should be spread over enough elements.
        """
        axes = self.nest.axes
        first, inner_elements = len(axes) - 1, 1
        while first > 1 and axes[first].extent * inner_elements < CPU.short:
            inner_elements *= axes[first].extent
            first -= 1
        size = max(1, CPU.block // max(1, inner_elements))
        variables = self.open_blocks(list(range(first)), first, size)
        elements = min(size, max(1, axes[first].extent)) * max(1, inner_elements)
        self.grain = grain_of(self.nest, elements)
        self.hoist_offsets(variables)
        for axis in range(first, len(axes)):
            bounds = "start, stop" if axis == first else self.extent(axis)
            self.open(f"for i{axis} in range({bounds}):")
            variables[axis] = f"i{axis}"
        for s in self.nest.statements:
            self.emit(s, variables)
        for _ in range(first, len(axes) + 1):  # loops over the axes and over items
            self.close()

    def tiles(self, crossing: int, inner: int) -> None:
        """Print items that are square tiles of the axes ``crossing`` and ``inner``.

        An operand that is contiguous along ``crossing`` is first copied, line by line,
        into a transposed tile of scratch memory; the tile of the next item is
        prefetched meanwhile. Results are stored by whole rows of the tile. ``x + y.T``
        is printed as follows, inside the loop over items::

            for i1 in range(start, stop):
                prefetch_row(y_in, first + (i1 + block) * y_in_s1, block)
                for i0 in range(first, last):
                    y_in_tile[(i0 - first) * block + i1 - start] = y_in[...]
            for i0 in range(first, last):
                prefetch_row(x_in, i0 * n1 + (start + block), block)
                for i1 in range(start, stop):
                    x = x_in[i0 * n1 + i1]
                    y = y_in_tile[(i0 - first) * block + i1 - start]
                    b = x + y
                    b_out_row[i1 - start] = b
                store_row(b_out, i0 * n1 + start, b_out_row, stop - start, far)
        """
        outer = [k for k in range(inner) if k != crossing]
        tile = tile_of(self.nest)
        variables = self.open_blocks([*outer, crossing], inner, tile, tile)
        self.hoist_offsets({k: variables[k] for k in outer})
        variables_here = {**variables, crossing: f"i{crossing}", inner: f"i{inner}"}
        crossed = self.crossed_operands(crossing, inner)
        for operand in crossed:
            self.transpose_tile(operand, crossing, inner, variables_here)
        self.open(f"for i{crossing} in range(first, last):")
        for operand, array in enumerate(self.nest.operands):
            if (
                operand not in crossed
                and not array.written
                and array.strides[inner] == 1
            ):
                self.prefetch(operand, {**variables_here, inner: "(start + block)"})
        rows = self.tile_rows(inner)
        self.open(f"for i{inner} in range(start, stop):")
        for s in self.nest.statements:
            self.emit(s, variables_here)
        self.close()
        for operand, scratch_row in rows.items():
            index = self.index(operand, {**variables_here, inner: "start"})
            arguments = (
                f"{self.pointer(operand)}, {index}, {scratch_row}, stop - start, far"
            )
            self.line(f"{self.use('store_row')}({arguments})")
        self.close()
        self.close()

    def transpose_tile(
        self, operand: int, crossing: int, inner: int, variables: dict[int, str]
    ) -> None:
        """Print a copy of the tile of ``operand``, transposed, to scratch memory.

        Later loads of the operand read the copy (``staged``). ``variables`` has the
        text of the index along each axis.
        """
        tile = f"{self.pointer(operand)}_tile"
        dtype = self.nest.operands[operand].dtype
        self.scratch.append(ScratchRow(tile, dtype, tile_of(self.nest) ** 2))
        element = f"{tile}[(i{crossing} - first) * block + i{inner} - start]"
        source = self.element_at(operand, variables)
        self.open(f"for i{inner} in range(start, stop):")
        self.prefetch(
            operand, {**variables, crossing: "first", inner: f"(i{inner} + block)"}
        )
        self.open(f"for i{crossing} in range(first, last):")
        self.line(f"{element} = {source}")
        self.close()
        self.close()
        self.staged[operand] = element

    def tile_rows(self, inner: int) -> dict[int, str]:
        """Allocate a scratch row for each result that is contiguous along ``inner``.

        Returns the rows' names by operand number. Elements are computed into the row
        (``staged``), which is stored when it is complete. The parameter ``far`` of the
        kernel is 1 if the results are larger than the caches.
        """
        rows: dict[int, str] = {}
        written = [(k, o) for k, o in enumerate(self.nest.operands) if o.written]
        read = {s.operand for s in self.nest.statements if isinstance(s, Load)}
        for operand, array in written:
            # A result that overwrites an operand must be stored at once.
            if array.strides[inner] == 1 and operand not in read:
                row = rows[operand] = f"{self.pointer(operand)}_row"
                self.scratch.append(ScratchRow(row, array.dtype, tile_of(self.nest)))
                self.staged[operand] = f"{row}[i{inner} - start]"
        if rows:
            size = sum(array.array.type.nbytes for _, array in written)
            self.integer("far", int(size > CPU.far_bytes))
        return rows

    def prefetch(self, operand: int, variables: dict[int, str]) -> None:
        """Print the prefetch of ``block`` elements of ``operand``.

        They begin at the index that ``variables`` gives along each axis, as text.
        """
        begin = f"{self.pointer(operand)}, {self.index(operand, variables)}"
        self.line(f"{self.use('prefetch_row')}({begin}, block)")

    def crossed_operands(self, crossing: int, inner: int) -> list[int]:
        """Return the operands that are contiguous along ``crossing``, not ``inner``.

        Results are left out.
        """
        return [
            k
            for k, operand in enumerate(self.nest.operands)
            if not operand.written
            and abs(operand.strides[crossing]) == 1
            and abs(operand.strides[inner]) > 1
        ]
