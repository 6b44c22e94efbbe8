"""Cuts long sums into blocks in the compute dtype, with totals in a wider one.

A sum of n terms, one after the other, is off by up to n * eps relative to the sum of
their absolute values. So a long sum is cut: terms are added up in blocks, and each
block's sum is added to a total in float64 (complex128). The error is that of one block,
and of rounding the total once. Blocks follow from shapes and strides alone; so do bits.

A block of a row is long, as a vectorised loop adds it up in 64 accumulators at once; it
is short where a loop cannot be vectorised. A block of columns has few rows: each column
has one accumulator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from arrayfn import dtypes
from arrayfn.dtypes import DType, short_name
from arrayfn.lowering.kernel_ir import Load, Nest, Reduce, Store

ROW_BLOCK: Final = 4096  # contiguous elements
STRIDED_BLOCK: Final = 256  # strided elements, or elements at computed indices
RUNNING_BLOCK: Final = 64  # elements of a running sum
COLUMN_BLOCK: Final = 64  # rows of a block of columns
CHUNK_ROWS: Final = 128  # rows that are added up into partial results, without blocks

_WIDE: Final = {
    dtypes.float32: dtypes.float64,
    dtypes.float64: dtypes.float64,
    dtypes.complex64: dtypes.complex128,
    dtypes.complex128: dtypes.complex128,
}


def is_sum(s: Reduce) -> bool:
    """Return whether ``s`` adds up floats or complex numbers in any order."""
    return s.function.startswith("accumulate_add_") and s.result.dtype in _WIDE


def is_running_sum(s: Reduce) -> bool:
    """Return whether ``s`` is a running sum, in order, of a dtype that has a wider one.

    Every sum of it is stored, as in a cumulative sum.
    """
    dtype = s.result.dtype
    return s.function.startswith("add_") and _WIDE.get(dtype, dtype) != dtype


def total_dtype(s: Reduce) -> DType:
    """Return the dtype of the totals of the sum ``s``: float64 or complex128."""
    return _WIDE[s.result.dtype]


def widening(s: Reduce) -> tuple[str, str] | None:
    """Return the functions that convert ``s`` to the dtype of its totals and back.

    For example ``("convert_f32_f64", "convert_f64_f32")``; None if the dtypes are
    equal.
    """
    narrow, wide = short_name(s.result.dtype), short_name(total_dtype(s))
    if narrow == wide:
        return None
    return f"convert_{narrow}_{wide}", f"convert_{wide}_{narrow}"


def row_block(nest: Nest, reduced: Sequence[int]) -> int:
    """Return the number of elements in a block of a row over the axes ``reduced``.

    Blocks of running sums, and of elements that are not contiguous, are shorter.
    """
    if any(isinstance(s, Reduce) and is_running_sum(s) for s in nest.statements):
        return RUNNING_BLOCK
    inner = reduced[-1]
    for s in nest.statements:
        if isinstance(s, (Load, Store)):
            is_strided = nest.operands[s.operand].strides[inner] not in (0, 1)
            if s.level == "element" and (is_strided or s.indices):
                return STRIDED_BLOCK
    return ROW_BLOCK


def cut(nest: Nest, reduced: Sequence[int], block: int) -> tuple[int, int] | None:
    """Return how to cut a sum over the axes ``reduced``: ``(axis, indices per block)``.

    A block has that many indices of the axis, and all of the axes inside of it: at most
    about ``block`` elements. None if all of the sum fits in a block.
    """
    inside = 1  # elements at one index of ``axis``
    for axis in reversed(reduced):
        extent = nest.axes[axis].extent
        if inside * extent > block:
            return axis, max(1, block // inside)
        inside *= extent
    return None


def chunk_rows(
    nest: Nest, rows: Sequence[int], size: int, reduces: Iterable[Reduce]
) -> int:
    """Return how many indices of the first of the axes ``rows`` a chunk has.

    It is ``size``, or fewer if one of ``reduces`` is a sum: a chunk adds up at most
    ``CHUNK_ROWS`` terms one after the other. ``reduces`` are the reductions whose
    partial results are stored for each column.
    """
    if not any(map(is_sum, reduces)):
        return size
    per_index = nest.size_along(rows[1:])
    return max(1, min(size, CHUNK_ROWS // max(1, per_index)))
