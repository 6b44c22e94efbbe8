"""Prepares factorizations and triangular systems by cuSOLVER and cuBLAS.

Both libraries are column-major: they see a row-major matrix as its transpose, and its
lower triangle as an upper one. A batch of small matrices is one call; for large
matrices there is a call for each. Nothing waits for the GPU: statuses stay there.

``dtype`` is the short name of the matrices' dtype, as "f32".
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from arrayfn.backends.cuda.libraries.calls import Call
from arrayfn.backends.cuda.libraries.dense import (
    BLAS,
    NONE,
    SOLVER,
    Element,
    PointerTables,
    Workspaces,
    each_matrix,
    is_batched,
    workspace_elements,
)

_LEFT: Final = 0  # cublasSideMode_t
_LOWER: Final = 0  # cublasFillMode_t
_UPPER: Final = 1
_MAX_REFLECTED: Final = 128
"""Most rows and columns for which cuBLAS's batched reflections are fast."""


def cholesky(dtype: str, integers: Mapping[str, int]) -> Call:
    """Prepare potrf: the Cholesky factorization of each matrix, in place.

    ``integers`` has the rows ``n`` of a matrix, the number of ``matrices``, and
    ``upper``: whether the upper triangle is read and written. The arrays are ``a``, and
    ``status`` with an int32 for each matrix.
    """
    n, matrices, fill = (integers[name] for name in ("n", "matrices", "upper"))
    element = Element(dtype)
    step = n * n * element.size
    function = f"cusolverDn{element.letter}potrf"
    if is_batched(integers, n):
        tables = PointerTables(matrices)

        def all_at_once(stream: int, a: int, status: int) -> None:
            """Enqueue one call for all matrices."""
            arguments = fill, n, tables.table(a, step), n, ctypes.c_void_p(status)
            run = SOLVER.routine(f"{function}Batched", stream)
            run(*arguments, matrices)

        return Call(all_at_once, ("a", "status"), capturable=False)
    elements = workspace_elements(function, fill, n, NONE, n)

    def arguments(work: Any, a: Any, status: Any) -> tuple[Any, ...]:
        """Return the arguments of potrf for a matrix at the address ``a``."""
        return fill, n, a, n, work, elements, status

    sizes = {"a": step, "status": 4}
    workspaces = Workspaces(elements * element.size)
    return each_matrix(SOLVER, function, matrices, sizes, arguments, workspaces)


def lu(dtype: str, integers: Mapping[str, int]) -> Call:
    """Prepare getrf: the LU factorization of each matrix, in place.

    ``integers`` has the ``rows`` and ``columns`` of a matrix, and the number of
    ``matrices``. The arrays are ``a``, ``pivots`` (the row that each row was swapped
    with, counted from 1), and ``status`` with an int32 for each matrix.
    """
    rows, columns = integers["rows"], integers["columns"]
    matrices, element = integers["matrices"], Element(dtype)
    step = rows * columns * element.size
    if rows == columns and is_batched(integers, rows):
        tables = PointerTables(matrices)

        def all_at_once(stream: int, a: int, pivots: int, status: int) -> None:
            """Enqueue one call for all matrices."""
            swaps, info = map(ctypes.c_void_p, (pivots, status))
            table = tables.table(a, step)
            run = BLAS.routine(f"cublas{element.letter}getrfBatched", stream)
            run(rows, table, rows, swaps, info, matrices)

        return Call(all_at_once, ("a", "pivots", "status"), capturable=False)
    function = f"cusolverDn{element.letter}getrf"
    elements = workspace_elements(function, rows, columns, NONE, rows)

    def arguments(work: Any, a: Any, pivots: Any, status: Any) -> tuple[Any, ...]:
        """Return the arguments of getrf for a matrix at the address ``a``."""
        return rows, columns, a, rows, work, pivots, status

    sizes = {"a": step, "pivots": 4 * min(rows, columns), "status": 4}
    workspaces = Workspaces(elements * element.size)
    return each_matrix(SOLVER, function, matrices, sizes, arguments, workspaces)


def reflections(dtype: str, integers: Mapping[str, int]) -> Call:
    """Prepare geqrf: the QR factorization of each matrix, in place.

    ``integers`` has the ``rows`` and ``columns`` of a matrix, and the number of
    ``matrices``. The arrays are ``a``, ``tau`` (the scale of each Householder
    reflection), and ``status`` with an int32 for each matrix, which the batched call
    does not write.
    """
    rows, columns = integers["rows"], integers["columns"]
    matrices, element = integers["matrices"], Element(dtype)
    sizes = {
        "a": rows * columns * element.size,
        "tau": min(rows, columns) * element.size,
        "status": 4,
    }
    if max(rows, columns) <= min(_MAX_REFLECTED, 4 * matrices):
        tables = PointerTables(matrices)

        def all_at_once(stream: int, a: int, tau: int, status: int) -> None:
            """Enqueue one call for all matrices."""
            a_table, tau_table = (
                tables.table(a, sizes["a"]),
                tables.table(tau, sizes["tau"]),
            )
            info = ctypes.byref(ctypes.c_int())  # on the host: are arguments valid?
            run = BLAS.routine(f"cublas{element.letter}geqrfBatched", stream)
            run(rows, columns, a_table, rows, tau_table, info, matrices)

        return Call(all_at_once, tuple(sizes), capturable=False)
    function = f"cusolverDn{element.letter}geqrf"
    elements = workspace_elements(function, rows, columns, NONE, rows)

    def arguments(work: Any, a: Any, tau: Any, status: Any) -> tuple[Any, ...]:
        """Return the arguments of geqrf for a matrix at the address ``a``."""
        return rows, columns, a, rows, tau, work, elements, status

    workspaces = Workspaces(elements * element.size)
    return each_matrix(SOLVER, function, matrices, sizes, arguments, workspaces)


def triangular(dtype: str, integers: Mapping[str, int]) -> Call:
    """Prepare trsm: solve ``A X = B`` for each lower triangular A; X overwrites B.

    ``integers`` has the rows ``n`` of A, the columns ``sides`` of B, the number of
    ``matrices``, and ``unit``: whether the diagonal counts as ones. A and B are
    column-major.
    """
    n, sides, element = integers["n"], integers["sides"], Element(dtype)
    one = np.ones((), element.dtype)
    options = _LEFT, _LOWER, 0, integers["unit"], n, sides

    def arguments(a: Any, b: Any) -> tuple[Any, ...]:
        """Return the arguments of trsm for matrices at the addresses ``a``, ``b``."""
        return *options, ctypes.c_void_p(one.ctypes.data), a, n, b, n

    sizes = {"a": n * n * element.size, "b": n * sides * element.size}
    function = f"cublas{element.letter}trsm_v2"
    return each_matrix(BLAS, function, integers["matrices"], sizes, arguments)


def small_triangular(dtype: str, integers: Mapping[str, int]) -> Call:
    """Prepare one call of trsm for all matrices, which are row-major.

    It solves ``op(A) X = B`` if ``left``, else ``X op(A) = B``; X overwrites B.
    ``integers`` has the ``rows`` and ``columns`` of B, the number of ``matrices``, and
    options: ``left``; ``lower``, whether A is lower triangular; ``unit``, whether its
    diagonal counts as ones; ``transpose``, 1 if op transposes and 2 if it conjugates
    too.
    """
    p, element = integers, Element(dtype)
    rows, columns, matrices = p["rows"], p["columns"], p["matrices"]
    n = rows if p["left"] else columns  # of A
    function = f"cublas{element.letter}trsmBatched"
    one = np.ones((), element.dtype)
    # cuBLAS sees the transposes: a lower triangle is an upper one, A on the left is on
    # the right (side 1), and columns are rows. The operation on A is the same.
    triangle = _UPPER if p["lower"] else _LOWER
    options = p["left"], triangle, p["transpose"], p["unit"], columns, rows
    # Bytes from one matrix to the next.
    a_step, b_step = n * n * element.size, rows * columns * element.size
    tables = PointerTables(matrices)

    def all_at_once(stream: int, a: int, b: int) -> None:
        """Enqueue one call for all matrices."""
        run, alpha = BLAS.routine(function, stream), ctypes.c_void_p(one.ctypes.data)
        a_table, b_table = tables.table(a, a_step), tables.table(b, b_step)
        # ``n`` and ``columns`` are the leading dimensions.
        run(*options, alpha, a_table, n, b_table, columns, matrices)

    return Call(all_at_once, ("a", "b"), capturable=False)
