"""Sparse systems solved directly: by SciPy's SuperLU on a CPU, by cuDSS on a GPU.

The factors of the last few matrices are kept: the systems of derivatives, and others
with the same matrix, need only substitutions.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.caches import forgets
from arrayfn.callbacks import pure_callback
from arrayfn.compilation.operators import operator
from arrayfn.errors import (
    ArgumentError,
    ShapeError,
    user_location,
    warn_of_singular_matrix,
)
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array
from arrayfn.sparse.array import SparseArray
from arrayfn.sparse.products import in_scipy
from arrayfn.transforms import ShapeDtypeStruct, leaf_type

_ORDERINGS: Final = (None, "NATURAL", "MMD_ATA", "MMD_AT_PLUS_A", "COLAMD")
_KEPT: Final = 4  # matrices


class _Factored(NamedTuple):
    """A CSC matrix (data, indices, indptr), SuperLU's ordering, and the factors."""

    arrays: tuple[np.ndarray[Any, Any], ...]
    ordering: str | None
    factors: Any


class Factors:
    """A cache of the LU factors of the last ``kept`` matrices, for this process.

    ``computed`` counts factorizations.
    """

    def __init__(self, kept: int = _KEPT) -> None:
        """Create an empty cache for the last ``kept`` matrices."""
        self.computed = 0
        self._kept: deque[_Factored] = deque(maxlen=kept)
        self._lock = threading.Lock()

    def of(self, arrays: tuple[Any, Any, Any], ordering: str | None) -> Any:
        """Return SuperLU's factors of a CSC matrix (data, indices, indptr).

        They come from the cache if it has an equal matrix with the same ``ordering``.
        Otherwise they are computed, and stored with a copy of the arrays.
        """
        with self._lock:
            for known in self._kept:
                if known.ordering == ordering and all(
                    x.dtype == y.dtype and np.array_equal(x, y)
                    for x, y in zip(known.arrays, arrays, strict=True)
                ):
                    return known.factors
        factors = _superlu(arrays, ordering)
        copies = tuple(np.array(x) for x in arrays)
        with self._lock:
            self.computed += 1
            self._kept.appendleft(_Factored(copies, ordering, factors))
        return factors

    def clear(self) -> None:
        """Forget all factors."""
        with self._lock:
            self._kept.clear()


FACTORS: Final = Factors()
forgets(FACTORS.clear)


def spsolve(A: Any, b: Any, permc_spec: str | None = None) -> Array:
    """Solve A x = b by the LU factors of a sparse matrix.

    The matrix is factored once for a solution and all of its derivatives. The factors
    of the last 4 matrices are kept for later systems with an equal matrix. Derivatives
    with respect to A are those with respect to its stored entries.

    Args:
        A: a sparse matrix (n, n).
        b: right-hand sides (n,) or (n, k), dense.
        permc_spec: the order of columns that keeps factors sparse. It is "NATURAL",
            "MMD_ATA", "MMD_AT_PLUS_A" or "COLAMD" (the default). On a GPU cuDSS chooses
            the order itself.

    Returns:
        x, in the shape of b. A singular matrix gives NaN and a MatrixRankWarning.

    Raises:
        ShapeError: A is not square, or b does not match it.
        BackendError: on a GPU, if cuDSS is missing, or ``permc_spec`` is given.

    Source: Li, An overview of SuperLU (2005).

    >>> from arrayfn.sparse import CSR
    >>> spsolve(CSR(np.array([[2.0, 0.0], [1.0, 4.0]])), np.array([2.0, 9.0]))
    array([1., 2.])
    """
    if not isinstance(A, SparseArray):
        raise ArgumentError(
            f"spsolve takes a sparse matrix, not {type(A).__name__}; make one with "
            "arrayfn.sparse.CSC(A), or use arrayfn.numpy.linalg.solve",
            user_location(),
        )
    if permc_spec not in _ORDERINGS:
        raise ArgumentError(
            f"spsolve: permc_spec must be one of {_ORDERINGS}, not {permc_spec!r}",
            user_location(),
        )
    right = ops.type_of_operand("spsolve", b)
    n = A.shape[0]
    if A.shape[1] != n or right.ndim not in (1, 2) or right.shape[0] != n:
        raise ShapeError(
            f"spsolve: a matrix (n, n) and b (n,) or (n, k), not {A.shape} and {right}",
            user_location(),
        )
    (data, b), _, dtype = ops.promoted("spsolve", (A.data, b))
    if dtype not in dtypes.INEXACT or dtype.itemsize < 4:
        dtype = dtypes.float64
    matrix = A.with_data(anp.astype(data, dtype))
    matrix = matrix.tocsc() if matrix.format == "coo" else matrix
    first, second = matrix.positions
    # The arrays of CSR are those of the transpose in CSC.
    by_rows = matrix.format == "csr"

    def solver(transposed: bool) -> Callable[[Any, Array], Array]:
        """Return a function that solves with the matrix, or its transpose.

        The arrays of CSR are those of the transpose in CSC, so for CSR the request is
        exchanged. ``sparse_solve`` has right-hand sides in rows.
        """
        return lambda _, b: (
            sparse_solve(
                matrix.data,
                first,
                second,
                b.T,
                ordering=permc_spec,
                transposed=transposed != by_rows,
            ).T
        )

    # The product with the matrix is there for derivatives by A.
    return lax.custom_linear_solve(
        lambda x: matrix @ x,
        anp.astype(b, dtype),
        solver(transposed=False),
        solver(transposed=True),
    )


@operator(static_argnames=("ordering", "transposed"))
def sparse_solve(
    data: Array,
    indices: Array,
    indptr: Array,
    b: Array,
    ordering: str | None,
    transposed: bool,
) -> Array:
    """Solve a system with a CSC matrix, or with its transpose if ``transposed``.

    The matrix is ``data``, ``indices`` and ``indptr``. ``b`` (n,) or (k, n) is a
    vector, or has a right-hand side in each row, and so has the result. ``ordering`` is
    SuperLU's of columns. The body calls SuperLU on the host.
    """
    type = leaf_type(b)
    return pure_callback(
        partial(_solutions, ordering, transposed),
        ShapeDtypeStruct(type.shape, type.dtype),
        *(data, indices, indptr, b),
        vmap_method="expand_dims",
    )


def _solutions(
    ordering: str | None, transposed: bool, *arrays: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Solve for matrices and right-hand sides with mapped axes in front.

    ``arrays`` are data, indices, indptr and b. With ``transposed`` the systems have the
    transposed matrices. An axis of extent 1 is the same for all members of the map. If
    all share one matrix, their right-hand sides are solved in one call.
    """
    *matrix, b = arrays
    axes = matrix[0].ndim - 1
    trans = "T" if transposed else "N"
    if all(x.shape[:axes] == (1,) * axes for x in matrix):
        data, indices, indptr = (x.reshape(x.shape[axes:]) for x in matrix)
        sides = b.reshape(-1, b.shape[-1]).T
        x = FACTORS.of((data, indices, indptr), ordering).solve(sides, trans)
        return np.ascontiguousarray(x.T).reshape(b.shape)
    lead = np.broadcast_shapes(*(x.shape[:axes] for x in arrays))
    out = np.empty((*lead, *b.shape[axes:]), b.dtype)
    whole = [np.broadcast_to(x, (*lead, *x.shape[axes:])) for x in arrays]
    for member in np.ndindex(lead):
        data, indices, indptr, side = (x[member] for x in whole)
        factors = FACTORS.of((data, indices, indptr), ordering)
        out[member] = factors.solve(np.ascontiguousarray(side.T), trans).T
    return out


class _Singular:
    """A substitute for the factors of a singular matrix."""

    def solve(self, b: Any, turned: str) -> Any:
        """Return NaN in the shape of ``b``; SuperLU's ``turned`` has no effect."""
        return np.full_like(b, np.nan)


def _superlu(arrays: tuple[Any, Any, Any], ordering: str | None) -> Any:
    """Return SuperLU's factors of a CSC matrix.

    A singular matrix gives a warning, and factors whose solutions are NaN.
    """
    from scipy.sparse.linalg import splu

    _, _, indptr = arrays
    n = len(indptr) - 1
    matrix = in_scipy("csc", *arrays, (n, n)).tocsc()
    try:
        return splu(matrix, permc_spec=ordering)
    except RuntimeError as error:
        if "singular" not in str(error):
            raise
        warn_of_singular_matrix()
        return _Singular()


def factorized(A: SparseArray) -> Callable[[Any], Array]:
    """Return a function that solves A x = b for right-hand sides b; see ``spsolve``.

    The function finds the factors of A in the cache of ``spsolve``.

    >>> from arrayfn.sparse import CSR
    >>> solve = factorized(CSR(np.array([[2.0, 0.0], [1.0, 4.0]])))
    >>> solve(np.array([2.0, 9.0]))
    array([1., 2.])
    """
    return lambda b: spsolve(A, b)
