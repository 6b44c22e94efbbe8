"""Recognises layouts that BLAS reads as matrices: unit stride, leading dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from arrayfn.ir import ArrayType, Var
from arrayfn.passes.reads import Read
from arrayfn.records import frozen

WORD: Final = 4
"""The alignment in bytes of the rows of int8 matrices."""


@frozen(slots=True)
class Matrix:
    """An operand of a product as BLAS takes it.

    Its first element is ``offset`` elements into the array ``base``. ``leading`` is the
    leading dimension, and ``batch_stride`` the distance of the matrices of a batch,
    both in elements. Element (i, j) is at ``offset + i * leading + j``, or at
    ``offset + j * leading + i`` if the matrix is stored ``transposed``.
    """

    base: Var
    offset: int
    leading: int
    transposed: bool
    batch_stride: int


def as_matrix(
    type: ArrayType,
    read: Read,
    batch: Sequence[int],
    rows: Sequence[int],
    columns: Sequence[int],
) -> Matrix | None:
    """Describe an operand as a (batched) matrix of the axes ``rows`` and ``columns``.

    ``type`` is the operand's type, ``read`` says how it is read from memory, and
    ``batch`` are its other axes. None if BLAS cannot read it without a copy: one of the
    two strides must be 1, and rows of int8 must begin at multiples of 4 bytes.
    """
    base = read.base.type
    base_strides = base.layout.strides(base.shape)
    strides = read.strides(base_strides, type.ndim)
    # For each group of axes ``(extent, stride)``, or None if no one stride fits.
    groups = [_merged(type.shape, strides, axes) for axes in (batch, rows, columns)]
    merged = [group for group in groups if group is not None and group[1] >= 0]
    if len(merged) < len(groups):
        return None
    (_, batch_stride), (m, row_stride), (n, column_stride) = merged
    offset = read.offset(base_strides)
    if (column_stride == 1 or n == 1) and (row_stride >= n or m == 1):
        transposed, leading = False, row_stride if m > 1 else n
    elif (row_stride == 1 or m == 1) and (column_stride >= m or n == 1):
        transposed, leading = True, column_stride if n > 1 else m
    else:
        return None
    matrix = Matrix(
        read.base,
        offset,
        max(leading, 1),
        transposed=transposed,
        batch_stride=batch_stride,
    )
    if type.dtype.itemsize > 1 or not type.size:
        return matrix
    offsets = (matrix.leading, matrix.offset, matrix.batch_stride)
    return matrix if all(offset % WORD == 0 for offset in offsets) else None


def _merged(
    shape: Sequence[int], strides: Sequence[int], axes: Sequence[int]
) -> tuple[int, int] | None:
    """Return ``(extent, stride)`` of ``axes`` as one axis; None if no one stride fits.

    >>> _merged((4, 3, 5), (15, 5, 1), (0, 1)), _merged((4, 3, 5), (20, 5, 1), (0, 1))
    ((12, 5), None)
    """
    extent, stride = 1, 0
    for axis in reversed(axes):
        n = shape[axis]
        if n == 1:
            continue
        if extent == 1:
            extent, stride = n, strides[axis]
        elif strides[axis] == extent * stride:
            extent *= n
        else:
            return None
    return extent, stride
