"""Factorizations and triangular systems through cuSOLVER and cuBLAS.

Both are column-major: a row-major matrix is its transpose to them, and its lower
triangle an upper one. A batch of small matrices is one call, one of large matrices a
call for each. Nothing waits for the GPU: statuses stay there.
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

_LEFT: Final = 0
_LOWER: Final = 0
_UPPER: Final = 1
_MAX_REFLECTED: Final = 128
"""Rows and columns, up to which cuBLAS's batched reflections are fast."""


def cholesky(dtype: str, integers: Mapping[str, int]) -> Call:
    """Prepare potrf of each matrix, in place, with a status for each.

    ``integers`` are ``n``, ``matrices``, and ``upper``: whether the upper triangle is
    read. ``dtype`` is a short name ("f32"), here and below.
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
        return fill, n, a, n, work, elements, status

    sizes = {"a": step, "status": 4}
    workspaces = Workspaces(elements * element.size)
    return each_matrix(SOLVER, function, matrices, sizes, arguments, workspaces)


def lu(dtype: str, integers: Mapping[str, int]) -> Call:
    """Prepare getrf of each matrix, in place: pivots count from 1; with a status.

    ``integers`` are ``rows``, ``columns`` and ``matrices``; ``dtype`` is a short name.
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
        return rows, columns, a, rows, work, pivots, status

    sizes = {"a": step, "pivots": 4 * min(rows, columns), "status": 4}
    workspaces = Workspaces(elements * element.size)
    return each_matrix(SOLVER, function, matrices, sizes, arguments, workspaces)


def reflections(dtype: str, integers: Mapping[str, int]) -> Call:
    """Prepare geqrf of each matrix, in place, with the scales of its reflections.

    ``integers`` are ``rows``, ``columns`` and ``matrices``; ``dtype`` is a short name.
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
            tables_of = tables.table(a, sizes["a"]), tables.table(tau, sizes["tau"])
            info = ctypes.byref(ctypes.c_int())  # of the arguments, and on the host
            run = BLAS.routine(f"cublas{element.letter}geqrfBatched", stream)
            run(rows, columns, tables_of[0], rows, tables_of[1], info, matrices)

        return Call(all_at_once, tuple(sizes), capturable=False)
    function = f"cusolverDn{element.letter}geqrf"
    elements = workspace_elements(function, rows, columns, NONE, rows)

    def arguments(work: Any, a: Any, tau: Any, status: Any) -> tuple[Any, ...]:
        return rows, columns, a, rows, tau, work, elements, status

    workspaces = Workspaces(elements * element.size)
    return each_matrix(SOLVER, function, matrices, sizes, arguments, workspaces)


def triangular(dtype: str, integers: Mapping[str, int]) -> Call:
    """Prepare trsm, ``A X = B`` for each lower triangular matrix; X overwrites B.

    ``integers`` are ``n``, ``sides``, ``matrices``, and ``unit``: whether the diagonal
    counts as ones. ``dtype`` is a short name. Matrices are column-major.
    """
    n, sides, element = integers["n"], integers["sides"], Element(dtype)
    one = np.ones((), element.dtype)
    options = _LEFT, _LOWER, 0, integers["unit"], n, sides

    def arguments(a: Any, b: Any) -> tuple[Any, ...]:
        return *options, ctypes.c_void_p(one.ctypes.data), a, n, b, n

    sizes = {"a": n * n * element.size, "b": n * sides * element.size}
    function = f"cublas{element.letter}trsm_v2"
    return each_matrix(BLAS, function, integers["matrices"], sizes, arguments)


def small_triangular(dtype: str, integers: Mapping[str, int]) -> Call:
    """Prepare trsm of all matrices at once, for row-major matrices.

    ``integers`` are ``rows``, ``columns``, ``matrices`` and cuBLAS's options: ``left``,
    ``lower``, ``transpose`` and ``unit``. ``dtype`` is a short name.
    """
    p, element = integers, Element(dtype)
    rows, columns, matrices = p["rows"], p["columns"], p["matrices"]
    n = rows if p["left"] else columns
    function = f"cublas{element.letter}trsmBatched"
    one = np.ones((), element.dtype)
    # Its lower triangle is the transpose's upper one: side, triangle, operation, unit.
    triangle = _UPPER if p["lower"] else _LOWER
    options = p["left"], triangle, p["transpose"], p["unit"], columns, rows
    steps = n * n * element.size, rows * columns * element.size
    tables = PointerTables(matrices)

    def all_at_once(stream: int, a: int, b: int) -> None:
        """Enqueue one call for all matrices."""
        run, alpha = BLAS.routine(function, stream), one.ctypes.data
        pair = tables.table(a, steps[0]), tables.table(b, steps[1])
        sizes = (ctypes.c_void_p(alpha), pair[0], n, pair[1], columns, matrices)
        run(*options, *sizes)

    return Call(all_at_once, ("a", "b"), capturable=False)
