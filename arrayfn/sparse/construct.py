"""Sparse matrices of diagonals, of blocks, and Kronecker products.

The results have no more entries than they need, except where blocks have some to spare.
Values may be traced, and so may the positions of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array
from arrayfn.sparse.array import SparseArray
from arrayfn.sparse.formats import COO
from arrayfn.sparse.structure import index_dtype
from arrayfn.transforms import leaf_type


def issparse(x: Any) -> bool:
    """Return whether ``x`` is a sparse matrix of this library.

    >>> issparse(eye_array(3)), issparse(np.eye(3))
    (True, False)
    """
    return isinstance(x, SparseArray)


def eye_array(
    m: int, n: int | None = None, *, k: int = 0, dtype: Any = float, format: str = "csr"
) -> Any:
    """Return a sparse matrix (m, n) with ones on its k-th diagonal; n is m by default.

    Diagonals with k > 0 are above the main one. ``format`` is "csr", "csc" or "coo".

    >>> eye_array(2, 3, k=1)
    CSR f64[2,3], 2 entries (33.3 %)
      . 1 .
      . . 1
    """
    columns = m if n is None else n
    length = max(0, min(m + min(k, 0), columns - max(k, 0)))
    ones = np.ones(length, dtypes.canonical(dtype))
    return diags_array([ones], offsets=[k], shape=(m, columns), format=format)


def diags_array(
    diagonals: Any,
    /,
    *,
    offsets: int | Sequence[int] = 0,
    shape: tuple[int, int] | None = None,
    format: str = "csr",
    dtype: Any = None,
) -> Any:
    """Return a sparse matrix with the given ``diagonals`` and zeros elsewhere.

    Args:
        diagonals: a vector for each offset, as long as its diagonal or of length 1. A
            single offset takes one vector.
        offsets: the number k of each diagonal. Diagonals with k > 0 are above the main
            one.
        shape: (m, n). By default the matrix is square, and as large as the first
            diagonal needs.
        format: "csr", "csc" or "coo".
        dtype: by default the dtype that the diagonals promote to.

    Raises ShapeError for a diagonal of another length.

    >>> diags_array([1.0, [-2.0, -2.0]], offsets=[1, 0], shape=(2, 2))
    CSR f64[2,2], 3 entries (75 %)
      -2  1
       . -2
    """
    if isinstance(offsets, int):
        return diags_array(
            [diagonals], offsets=[offsets], shape=shape, format=format, dtype=dtype
        )
    vectors = [anp.atleast_1d(x) for x in diagonals]
    if len(vectors) != len(offsets):
        raise ArgumentError(
            f"diags_array: there are {len(vectors)} diagonals and {len(offsets)} "
            "offsets",
            user_location(),
        )
    if shape is None:
        side = leaf_type(vectors[0]).shape[0] + abs(offsets[0]) if vectors else 0
        shape = (side, side)
    common = ops.common_dtype("diags_array", vectors) if vectors else dtypes.float64
    dtype = common if dtype is None else dtypes.canonical(dtype)
    index = index_dtype(*shape)
    parts: list[tuple[Array, Any, Any]] = []
    for k, vector in zip(offsets, vectors, strict=True):
        length = max(0, min(shape[0] + min(k, 0), shape[1] - max(k, 0)))
        given_length = leaf_type(vector).shape[0]
        if given_length not in (1, length):
            raise ShapeError(
                f"diags_array: diagonal {k} of a matrix {shape} has {length} elements, "
                f"not {given_length}",
                user_location(),
            )
        along = np.arange(length, dtype=index)
        data = anp.broadcast_to(anp.astype(vector, dtype), (length,))
        # For k = 1, entry 0 is in row 0 and column 1; for k = -1, in row 1 and column
        # 0.
        parts.append((data, along + max(-k, 0), along + max(k, 0)))
    return _joined(parts, shape, dtype).asformat(format)


def block_array(blocks: Sequence[Sequence[Any]], *, format: str = "coo") -> Any:
    """Return a sparse matrix of blocks: sparse or dense matrices, or None for zeros.

    Raises ShapeError for blocks that do not fit together, and ArgumentError for a row
    or column of blocks that are all None.

    >>> block_array([[eye_array(2), None], [None, np.ones((1, 1))]], format="csr")
    CSR f64[3,3], 3 entries (33.3 %)
      1 . .
      . 1 .
      . . 1
    """
    rows = [[None if x is None else _as_sparse(x) for x in row] for row in blocks]
    heights = [_extent("row", k, row, 0) for k, row in enumerate(rows)]
    columns = [list(column) for column in zip(*rows, strict=True)]
    widths = [_extent("column", k, column, 1) for k, column in enumerate(columns)]
    # The first row and the first column of each block, and the ends.
    down, across = (np.cumsum([0, *sizes]).tolist() for sizes in (heights, widths))
    present = [(i, j, x) for i, row in enumerate(rows) for j, x in enumerate(row) if x]
    dtype = ops.common_dtype("block_array", [x.data for _, _, x in present])
    parts: list[tuple[Array, Any, Any]] = []
    for i, j, x in present:
        row, column = x.positions
        parts.append((x.data, row + down[i], column + across[j]))
    shape = (down[-1], across[-1])
    return _joined(parts, shape, dtype).asformat(format)


def vstack(blocks: Sequence[Any], format: str | None = None) -> Any:
    """Stack matrices below each other.

    ``format`` is by default that of the first matrix.

    >>> vstack([eye_array(1), eye_array(1)]).toarray()
    array([[1.],
           [1.]])
    """
    stacked = block_array([[x] for x in blocks])
    return stacked.asformat(format or getattr(blocks[0], "format", "coo"))


def hstack(blocks: Sequence[Any], format: str | None = None) -> Any:
    """Stack matrices side by side.

    ``format`` is by default that of the first matrix.

    >>> hstack([eye_array(1), eye_array(1)]).toarray()
    array([[1., 1.]])
    """
    stacked = block_array([list(blocks)])
    return stacked.asformat(format or getattr(blocks[0], "format", "coo"))


def kron(A: Any, B: Any, format: str = "coo") -> Any:
    """Return the Kronecker product, which has the blocks ``A[i, j] * B``.

    Entry (i, j) of A and entry (k, l) of B, (p, q), give entry (i p + k, j q + l).

    >>> kron(eye_array(2), np.array([[1.0, 2.0]])).toarray()
    array([[1., 2., 0., 0.],
           [0., 0., 1., 2.]])
    """
    a, b = _as_sparse(A), _as_sparse(B)
    shape = (a.shape[0] * b.shape[0], a.shape[1] * b.shape[1])
    index = index_dtype(*shape)
    places = [
        anp.ravel(anp.astype(mine, index)[:, None] * extent + anp.astype(theirs, index))
        for mine, theirs, extent in zip(a.positions, b.positions, b.shape, strict=True)
    ]
    data = anp.ravel(a.data[:, None] * b.data)
    return COO((data, (places[0], places[1])), shape).asformat(format)


def _as_sparse(x: Any) -> COO:
    """Convert a sparse or dense matrix to ``COO``."""
    return x.tocoo() if isinstance(x, SparseArray) else COO(x)


def _extent(what: str, number: int, blocks: Sequence[COO | None], axis: int) -> int:
    """Return the extent that the blocks of one row or column share along ``axis``.

    ``what`` ("row" or "column") and ``number`` name it in errors: ArgumentError if all
    blocks are None, and ShapeError if their extents differ.
    """
    extents = {x.shape[axis] for x in blocks if x is not None}
    if not extents:
        raise ArgumentError(
            f"block_array: {what} {number} has no block; give one, which may be empty",
            user_location(),
        )
    if len(extents) > 1:
        raise ShapeError(
            f"block_array: {what} {number} has blocks of extents {sorted(extents)}",
            user_location(),
        )
    return extents.pop()


def _joined(
    parts: Sequence[tuple[Array, Any, Any]], shape: tuple[int, int], dtype: Any
) -> COO:
    """Return one COO matrix, of ``dtype``, with all entries of ``parts``.

    A part is a tuple of entries, their rows and their columns.
    """
    if not parts:
        nothing = np.zeros(0, np.int32)
        return COO((np.zeros(0, dtype), (nothing, nothing)), shape)
    data, rows, columns = (
        part[0] if len(part) == 1 else _concatenated(part)
        for part in zip(*parts, strict=True)
    )
    return COO((anp.astype(data, dtype), (rows, columns)), shape)


def _concatenated(parts: Sequence[Any]) -> Array:
    """Concatenate arrays, with NumPy if all are NumPy's, also inside a trace.

    NumPy arrays of positions thus stay known.
    """
    if all(isinstance(x, np.ndarray) for x in parts):
        return np.concatenate(parts)
    return anp.concatenate(parts)
