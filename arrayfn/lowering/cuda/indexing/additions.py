"""Atomic additions to many targets, by ranges of targets that fit into the L2 cache.

Each range of the operand is copied to the result, and updates are added to it while it
is in the cache. If the whole operand were copied first, most of it would leave the
cache, and each addition would read and write memory once more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from arrayfn.ir import Equation, Var
from arrayfn.lowering.cuda.indexing.scatter_form import Scatter
from arrayfn.lowering.kernel_ir import Nest
from arrayfn.lowering.templates.indexing import atomic_scatter_add
from arrayfn.lowering.templates.nest_builder import Names, NestBuilder, StridedArray
from arrayfn.passes.reads import Reads
from arrayfn.records import frozen

RANGE_BYTES: Final = 1 << 25  # bytes of a range
_MIN_UPDATES: Final = 1 << 16  # updates that are worth more launches


@frozen
class Ranges:
    """The first index of each range of targets, and the end of the last range."""

    bounds: tuple[int, ...]


def ranges_of(s: Scatter) -> Ranges | None:
    """Cut a scatter's targets into ranges; None if they fit into the cache at once.

    None also if updates are few, or so many that reading them for each range takes
    longer, or if a window can reach into another range.
    """
    target = s.operand
    nbytes = target.size * target.dtype.itemsize
    count = -(-nbytes // RANGE_BYTES)
    # Bytes of an update, with its index.
    update_bytes = 4 + s.width * target.dtype.itemsize
    if count < 2 or s.count < _MIN_UPDATES or count * s.count * update_bytes > nbytes:
        return None
    extent = target.shape[0]
    # The first index must say which range it is in, without a window that reaches out.
    if s.windows.indexed_axes[:1] != (0,) or 0 in s.windows.batch[0] or extent < count:
        return None
    if s.windows.sizes(target.ndim, s.updates.shape)[0] != 1:
        return None
    return Ranges(tuple(extent * k // count for k in range(count + 1)))


def add_by_ranges(
    ranges: Ranges,
    equation: Equation,
    reads: Reads,
    names: Names,
    operand: Var,
) -> Iterator[Nest]:
    """Yield the nests for each range: its copy from ``operand``, then the additions.

    Args:
        ranges: The ranges of the result's first axis.
        equation: The scatter.
        reads: Where each operand lies.
        names: What to call arrays.
        operand: The array whose elements are added to.
    """
    result = equation.outputs[0]
    dtype, inner = result.type.dtype, math.prod(result.type.shape[1:])
    for begin, end in pairwise(ranges.bounds):
        b = NestBuilder(equation, names)
        source, target = (
            StridedArray(array, dtype, (1,), begin * inner)
            for array in (operand, result)
        )
        b.move(operand, source, target)
        yield b.nest(((end - begin) * inner,), "a range of the targets")
        yield from atomic_scatter_add(
            equation, reads, names, index_range=(begin, end - 1)
        )
