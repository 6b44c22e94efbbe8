"""How a nest becomes work items on a CPU, and how large they are.

Work items are independent, and their results do not depend on the threads that run
them. There are three shapes of kernel:

* elementwise: an item is a block of the innermost axis (an element, if there is only
  that axis);
* rows: the innermost axis is reduced; an item is one row, that is, one index of the
  kept axes;
* columns: the innermost axis is kept; an item is a block of columns.

A reduction in one stage with few results is split first: partial results of fixed
chunks, then a combination of them. Chunks depend on the shape alone.
"""

from __future__ import annotations

import math
from typing import Final, Literal

from arrayfn.lowering.cpu import machine
from arrayfn.lowering.kernel_ir import Compute, Nest, is_outer
from arrayfn.records import frozen

Shape = Literal["elementwise", "rows", "columns"]


@frozen(slots=True)
class CpuConfig:
    """The numbers by which schedules are chosen, for any CPU."""

    block: int = 4096  # elements of the innermost axis in one item
    short: int = 64  # with fewer inner elements, an item takes several rows of them
    tile: int = 64  # the most rows and columns of a tile of transposed operands
    tile_bytes: int = 1 << 15  # of a tile, which is to stay in a core's L1 cache
    untiled: int = 1024  # elements of a batch's matrix that stays cached without tiles
    column_block: int = 512  # the most columns in one item
    min_columns: int = 64  # the fewest columns in one item, if there are as many
    chunk: int = 16384  # elements of a chunk of a split reduction
    far_bytes: int = 1 << 24  # results larger than this are written past the caches
    item_ns: float = 0.5  # nanoseconds of a statement of cost 4 on one element
    chunk_ns: float = 12_000.0  # nanoseconds of work worth giving to a thread
    keep_cost: int = 4  # a value that costs more is kept for later stages


CPU: Final = CpuConfig()


def shape_of(nest: Nest) -> Shape:
    """Return the shape of the kernel of ``nest``: elementwise, rows or columns."""
    if not any(axis.reduced for axis in nest.axes):
        return "rows" if nest.reductions else "elementwise"
    return "rows" if nest.axes[-1].reduced else "columns"


def is_split(nest: Nest) -> bool:
    """Return whether ``nest`` is split into two kernels: partial results, their sum.

    A reduction of one stage is split if it gives one value, or if its innermost axis is
    kept. The extents do not matter, even if they make a single chunk: so the same two
    kernels serve every shape, and no other shape compiles new ones.
    """
    if nest.stages > 1 or not any(axis.reduced for axis in nest.axes):
        return False
    if nest.is_in_order:
        return False
    if shape_of(nest) == "columns":
        return True
    return all(axis.reduced for axis in nest.axes)


def crossing_axis(nest: Nest) -> int | None:
    """Return an axis along which an operand is contiguous, unlike along the innermost.

    None if there is none. An elementwise nest with such an operand, such as ``x +
    y.T``, runs in tiles, so that a cache line is used up while it is cached. Batches of
    small matrices need no tiles, because a whole matrix stays in the cache. (So does a
    single small one, but it shares the kernel of larger ones.)
    """
    if nest.has_computed_indices:
        return None
    inner = len(nest.axes) - 1
    # In a batch, matrices of up to ``CPU.untiled`` elements are not tiled.
    min_extent = CPU.untiled // max(1, nest.axes[inner].extent) + 1 if inner > 1 else 0
    for operand in nest.operands:
        for axis in range(inner):
            if nest.axes[axis].extent < min_extent:
                continue
            if abs(operand.strides[axis]) == 1 and abs(operand.strides[inner]) > 1:
                return axis
    return None


def tile_of(nest: Nest) -> int:
    """Return the rows (and columns) of a square tile: fewer for large elements."""
    widest = max(operand.dtype.itemsize for operand in nest.operands)
    tile = CPU.tile
    while tile * tile * widest > CPU.tile_bytes:
        tile //= 2
    return tile


def work_per_element(nest: Nest) -> float:
    """Return an estimate of the nanoseconds that one element of ``nest`` takes."""
    cost = sum(
        s.cost if isinstance(s, Compute) else 1
        for s in nest.statements
        if not is_outer(s)
    )
    return max(1, cost) * CPU.item_ns / 4


def grain_of(nest: Nest, elements_per_item: int) -> int:
    """Return the smallest number of work items worth giving to a thread.

    An item has ``elements_per_item`` elements.
    """
    item = max(1.0, work_per_element(nest) * elements_per_item)
    return max(1, math.ceil(CPU.chunk_ns / item))


def columns_per_item(nest: Nest, blocks: int, width: int, height: int) -> int:
    """Return the number of columns in a work item.

    It is ``CPU.column_block``, halved while there would be fewer items than cores and
    half of the columns would still be worth a thread. Columns are independent, so
    results have the same bits for any number.

    Args:
        nest: the nest, whose innermost axis is the columns.
        blocks: the number of indices of the axes outside.
        width: the number of columns.
        height: the number of elements that are reduced in a column.
    """
    size = CPU.column_block
    while (
        size > CPU.min_columns
        and blocks * math.ceil(width / size) < machine.cores()
        and grain_of(nest, min(width, size // 2) * height) == 1
    ):
        size //= 2
    return size


def chunk_size(extent: int, per_index: int) -> int:
    """Return how many indices of the first reduced axis form a chunk.

    ``extent`` is the axis's extent, the most. ``per_index`` is the number of elements
    at one index. A chunk has about ``CPU.chunk`` elements.
    """
    return max(1, min(max(1, extent), CPU.chunk // max(1, per_index)))
