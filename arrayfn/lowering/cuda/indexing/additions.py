"""Additions to many targets in whatever order they come: by ranges of targets.

A range is copied, and what belongs there is added while it is in the GPU's cache; all
at once, most targets would come from memory once more, and go there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from arrayfn.ir import Equation, Var
from arrayfn.lowering.cuda.indexing.scatter_form import Scatter
from arrayfn.lowering.kernel_ir import Nest
from arrayfn.lowering.templates.indexing import atomic_scatter_add
from arrayfn.lowering.templates.nest_builder import NestBuilder, StridedArray
from arrayfn.passes.reads import Reads

_NEAR: Final = 1 << 25  # bytes of a range
_MIN_UPDATES: Final = 1 << 16  # updates that are worth more launches


@dataclass(frozen=True)
class Ranges:
    """Where ranges of targets begin, by their first index, and where the last ends."""

    bounds: tuple[int, ...]


def ranges_of(s: Scatter) -> Ranges | None:
    """The ranges of a scatter's targets, if there are many, and fewer updates."""
    target = s.operand
    nbytes = target.size * target.dtype.itemsize
    count = -(-nbytes // _NEAR)
    each = 4 + s.width * target.dtype.itemsize  # bytes of an update, with its index
    if count < 2 or s.count < _MIN_UPDATES or count * s.count * each > nbytes:
        return None
    extent = target.shape[0]
    # The first index must say which range it is in, without a window that reaches out.
    if s.windows.indexed_axes[:1] != (0,) or 0 in s.windows.batch[0] or extent < count:
        return None
    if s.windows.sizes(target.ndim, s.updates.shape)[0] != 1:
        return None
    return Ranges(tuple(extent * k // count for k in range(count + 1)))


def in_ranges(
    ranges: Ranges,
    equation: Equation,
    reads: Reads,
    names: Mapping[Var, str],
    operand: Var,
) -> Iterator[Nest]:
    """Each range copied from ``operand``, and added to."""
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
        yield from atomic_scatter_add(equation, reads, names, (begin, end - 1))
