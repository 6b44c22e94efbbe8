"""Products of sparse matrices and dense arrays.

``matmul`` is one linear equation, whose transpose is the product with the transposed
matrix. The operator ``sparse_product`` computes both: in a plan for a CPU by loops over
the entries (``lowering.libraries.sparse``); outside of a trace by SciPy; small ones,
other dtypes, mapped ones and those on a GPU by kernels that gather, multiply and add.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.compilation.operators import operator
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array
from arrayfn.tracing import device_of, is_staged
from arrayfn.transforms import leaf_type

Indices = tuple[Array, Array]
Shape = tuple[int, int]

TRANSPOSED: Final = {"csr": "csc", "csc": "csr", "coo": "coo"}
"""{format of a matrix: format of the transpose, which has the same arrays}"""

# The dtypes of products that SciPy computes.
_SCIPYS: Final = (
    dtypes.float32,
    dtypes.float64,
    dtypes.complex64,
    dtypes.complex128,
)


def transposed(format: str, indices: Indices) -> tuple[str, Indices]:
    """Return the format and indices of the transpose; its data are the same."""
    first, second = indices
    return TRANSPOSED[format], (second, first) if format == "coo" else indices


def expanded(pointers: Any, count: int) -> Array:
    """Return the row number of each of ``count`` entries, from CSR row pointers.

    Entries behind the end of the last row get the number of rows, which is outside.

    >>> expanded(np.array([0, 2, 2, 3]), 4)
    array([0, 0, 2, 3])
    """
    rows = leaf_type(pointers).shape[0] - 1
    if isinstance(pointers, np.ndarray):
        lengths = np.diff(pointers)
        inside = np.repeat(np.arange(rows, dtype=pointers.dtype), lengths)[:count]
        return np.pad(inside, (0, count - len(inside)), constant_values=rows)
    # Count the rows that end at each entry; the sum of the counts is the row.
    ends = anp.zeros(count + 1, pointers.dtype)
    ends = anp.at(ends)[pointers[1:]].add(1, mode="drop")
    return anp.cumsum(ends, dtype=pointers.dtype)[:count]


def coordinates(format: str, indices: Indices, count: int) -> Indices:
    """Return the row and the column of each of ``count`` entries.

    ``indices`` are the position arrays of the ``format``, "csr", "csc" or "coo".
    """
    if format == "coo":
        return indices
    across, pointers = indices
    along = expanded(pointers, count)
    return (along, across) if format == "csr" else (across, along)


def inside(positions: Array, extent: int) -> Array:
    """Replace negative ``positions`` by ``extent``, so that they are outside too.

    Otherwise NumPy's indexing would count them from the end.
    """
    return anp.where(positions < 0, extent, positions)


def matmul(format: str, data: Array, indices: Indices, shape: Shape, x: Array) -> Array:
    """Multiply a sparse matrix (m, n) by x, (n,) or (n, k).

    ``data`` and ``indices`` are the arrays of the ``format``. Raises ShapeError for
    other shapes of x.
    """
    type = ops.type_of_operand("matmul", x)
    if type.ndim not in (1, 2) or type.shape[0] != shape[1]:
        raise ShapeError(
            f"matmul: a sparse matrix {shape} multiplies vectors ({shape[1]},) and "
            f"matrices ({shape[1]}, k), not {type}",
            user_location(),
        )
    (data, x), _, dtype = ops.promoted("matmul", (data, x))
    operands = (data, *indices, x)
    # Known arrays on the host: compute at once, by SciPy if it has the dtype.
    if not is_staged(operands) and not device_of(operands):
        if dtype in _SCIPYS:
            return in_scipy(format, data, *indices, shape) @ x
        return sparse_product.function(data, indices, x, format, shape)
    if dtype not in dtypes.INEXACT:
        return sparse_product(data, indices, x, format=format, shape=shape)

    def forward(matrix: Any, x: Array) -> Array:
        """Multiply by the matrix."""
        data, indices = matrix
        return sparse_product(data, indices, x, format=format, shape=shape)

    def backward(matrix: Any, y: Array) -> Array:
        """Multiply by the transposed matrix: the transpose for reverse mode."""
        data, indices = matrix
        transposed_format, transposed_indices = transposed(format, indices)
        transposed_shape = shape[1], shape[0]
        return sparse_product(
            data,
            transposed_indices,
            y,
            format=transposed_format,
            shape=transposed_shape,
        )

    return lax.linear_call(forward, backward, (data, indices), x)


@operator(static_argnames=("format", "shape"))
def sparse_product(
    data: Array, indices: Indices, x: Array, format: str, shape: Shape
) -> Array:
    """Multiply a sparse matrix, of ``data`` and ``indices``, by x, (n,) or (n, k).

    The arrays are those of the ``format``, and ``shape`` is (m, n). Entries whose row
    or column is outside of the matrix count as 0.
    """
    rows, columns = coordinates(format, indices, data.shape[0])
    # Gather x at the columns, multiply by the entries, and add up at the rows.
    across = inside(columns, shape[1])
    terms = anp.at(x)[across].get(mode="fill", fill_value=0)
    terms = (data if x.ndim == 1 else data[:, None]) * terms
    zeros = anp.zeros((shape[0], *x.shape[1:]), terms.dtype)
    return anp.at(zeros)[inside(rows, shape[0])].add(terms, mode="drop")


def in_scipy(
    format: str, data: Array, first: Array, second: Array, shape: Shape
) -> Any:
    """Return SciPy's matrix of NumPy arrays, without the entries outside of ``shape``.

    ``data``, ``first`` and ``second`` are the entries and their position arrays in
    ``format``: rows and columns ("coo"), or indices and pointers. If entries are
    outside, the result is SciPy's COO. Raises ArgumentError for pointers that do not
    ascend.
    """
    from scipy import sparse

    if format == "coo":
        bounds = ((first, shape[0]), (second, shape[1]))
    else:
        # Columns (axis 1) of CSR, rows (axis 0) of CSC.
        extent = shape[format == "csr"]
        bounds = ((first, extent),)
        ends = int(second[0]), int(second[-1])
        if ends[0] != 0 or ends[1] > len(data) or (np.diff(second) < 0).any():
            raise ArgumentError(
                f"indptr of a {format.upper()} matrix ascends from 0 to at most "
                f"{len(data)}, the number of entries; it goes from {ends[0]} to "
                f"{ends[1]}{'' if ends[1] > len(data) else ' in another order'}"
            )
    if all(_are_within(*bound) for bound in bounds):
        given = (first, second) if format == "coo" else None
        arrays = (data, given) if given else (data, first, second)
        return getattr(sparse, f"{format}_array")(arrays, shape=shape)
    rows, columns = coordinates(format, (first, second), len(data))
    is_inside = (rows >= 0) & (rows < shape[0]) & (columns >= 0) & (columns < shape[1])
    return sparse.coo_array(
        (data[is_inside], (rows[is_inside], columns[is_inside])), shape=shape
    )


def _are_within(positions: Array, extent: int) -> bool:
    """Return whether all positions are from 0 to ``extent`` - 1."""
    if not len(positions):
        return True
    # Negative numbers are the largest ones of the unsigned type.
    unsigned = positions.view(f"u{positions.itemsize}")
    return bool(unsigned.max() < extent)
