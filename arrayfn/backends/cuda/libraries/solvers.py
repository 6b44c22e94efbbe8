"""Factors and triangular systems through cuSOLVER and cuBLAS.

Both are column-major: a row-major matrix is its transpose to them, and its lower
triangle an upper one. A batch of small matrices is one call, one of large matrices a
call for each. Nothing waits for the GPU: statuses stay there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Final

import numpy as np

from arrayfn.backends.cuda.libraries.calls import Call
from arrayfn.backends.cuda.libraries.dense import (
    LETTERS,
    NONE,
    Batch,
    blas,
    check,
    cublas,
    cusolver,
    is_batched,
    scratch,
    size_of,
    solver,
    words_of,
)
from arrayfn.dtypes import BY_SHORT_NAME

_LEFT: Final = 0
_LOWER: Final = 0
_UPPER: Final = 1
_MOST_REFLECTED: Final = 128
"""cuBLAS's batched reflections are fast up to this many rows and columns."""


def cholesky(dtype: str, integers: Mapping[str, int], items: int) -> Call:
    """potrf of each matrix, in place, and a status for each."""
    n, matrices, fill = (integers[name] for name in ("n", "matrices", "upper"))
    size = size_of(dtype)
    step = n * n * size
    function = f"cusolverDn{LETTERS[dtype]}potrf"
    batch = Batch(matrices)

    def all_at_once(stream: int, a: int, status: int) -> None:
        run = getattr(cusolver(), f"{function}Batched")
        table, info = batch.table(a, step), ctypes.c_void_p(status)
        check("cuSOLVER", run(solver(stream), fill, n, table, n, info, matrices))

    def one_by_one(stream: int, a: int, status: int) -> None:
        run, handle = getattr(cusolver(), function), solver(stream)
        with scratch(words * size) as work:
            for x, info in batch.each((a, step), (status, 4)):
                check("cuSOLVER", run(handle, fill, n, x, n, work, words, info))

    if is_batched(integers, n):
        return Call(all_at_once, ("a", "status"), capturable=False)
    words = words_of(function, fill, n, NONE, n)
    return Call(one_by_one, ("a", "status"), capturable=False)


def lu(dtype: str, integers: Mapping[str, int], items: int) -> Call:
    """getrf of each matrix, in place: pivots that count from 1, and a status."""
    rows, columns = integers["rows"], integers["columns"]
    matrices, size = integers["matrices"], size_of(dtype)
    step = rows * columns * size
    batch = Batch(matrices)
    function = f"cusolverDn{LETTERS[dtype]}getrf"

    def all_at_once(stream: int, a: int, pivots: int, status: int) -> None:
        run = getattr(cublas(), f"cublas{LETTERS[dtype]}getrfBatched")
        table, swaps, info = (
            batch.table(a, step),
            *map(ctypes.c_void_p, (pivots, status)),
        )
        handle = blas(stream)
        check("cuBLAS", run(handle, rows, table, rows, swaps, info, matrices))

    def one_by_one(stream: int, a: int, pivots: int, status: int) -> None:
        run, handle = getattr(cusolver(), function), solver(stream)
        arrays = (a, step), (pivots, 4 * min(rows, columns)), (status, 4)
        with scratch(words * size) as work:
            for x, swaps, info in batch.each(*arrays):
                check(
                    "cuSOLVER", run(handle, rows, columns, x, rows, work, swaps, info)
                )

    names = ("a", "pivots", "status")
    if rows == columns and is_batched(integers, rows):
        return Call(all_at_once, names, capturable=False)
    words = words_of(function, rows, columns, NONE, rows)
    return Call(one_by_one, names, capturable=False)


def reflections(dtype: str, integers: Mapping[str, int], items: int) -> Call:
    """geqrf of each matrix, in place, and the scales of its reflections."""
    rows, columns = integers["rows"], integers["columns"]
    matrices, size = integers["matrices"], size_of(dtype)
    steps = rows * columns * size, min(rows, columns) * size
    batch = Batch(matrices)
    function = f"cusolverDn{LETTERS[dtype]}geqrf"

    def all_at_once(stream: int, a: int, tau: int, status: int) -> None:
        run = getattr(cublas(), f"cublas{LETTERS[dtype]}geqrfBatched")
        tables = batch.table(a, steps[0]), batch.table(tau, steps[1])
        info = ctypes.c_int()  # of the arguments, and on the host
        check(
            "cuBLAS",
            run(
                *(blas(stream), rows, columns, tables[0], rows, tables[1]),
                *(ctypes.byref(info), matrices),
            ),
        )

    def one_by_one(stream: int, a: int, tau: int, status: int) -> None:
        run, handle = getattr(cusolver(), function), solver(stream)
        arrays = (a, steps[0]), (tau, steps[1]), (status, 4)
        with scratch(words * size) as work:
            for x, scales, info in batch.each(*arrays):
                check(
                    "cuSOLVER",
                    run(handle, rows, columns, x, rows, scales, work, words, info),
                )

    names = ("a", "tau", "status")
    if max(rows, columns) <= min(_MOST_REFLECTED, 4 * matrices):
        return Call(all_at_once, names, capturable=False)
    words = words_of(function, rows, columns, NONE, rows)
    return Call(one_by_one, names, capturable=False)


def triangular(dtype: str, integers: Mapping[str, int], items: int) -> Call:
    """trsm of each matrix by columns, a lower triangle, over sides by columns."""
    n, sides = integers["n"], integers["sides"]
    size = size_of(dtype)
    function = f"cublas{LETTERS[dtype]}trsm_v2"
    one = np.ones((), BY_SHORT_NAME[dtype])
    batch = Batch(integers["matrices"])

    def one_by_one(stream: int, a: int, b: int) -> None:
        run, handle = getattr(cublas(), function), blas(stream)
        alpha = ctypes.c_void_p(one.ctypes.data)
        for matrix, columns in batch.each((a, n * n * size), (b, n * sides * size)):
            options = _LEFT, _LOWER, 0, integers["unit"]
            arguments = (n, sides, alpha, matrix, n, columns, n)
            check("cuBLAS", run(handle, *options, *arguments))

    return Call(one_by_one, ("a", "b"), capturable=False)


def small_triangular(dtype: str, integers: Mapping[str, int], items: int) -> Call:
    """trsm of all matrices at once, over sides that are transposes here."""
    p = integers
    rows, columns, matrices = p["rows"], p["columns"], p["matrices"]
    n = rows if p["left"] else columns
    size = size_of(dtype)
    function = f"cublas{LETTERS[dtype]}trsmBatched"
    one = np.ones((), BY_SHORT_NAME[dtype])
    # Its lower triangle is the transpose's upper one: side, triangle, operation, unit.
    triangle = _UPPER if p["lower"] else _LOWER
    options = (p["left"], triangle, p["transpose"], p["unit"])
    steps = n * n * size, rows * columns * size
    batch = Batch(matrices)

    def all_at_once(stream: int, a: int, b: int) -> None:
        handle, alpha = blas(stream), ctypes.c_void_p(one.ctypes.data)
        tables = batch.table(a, steps[0]), batch.table(b, steps[1])
        arguments = (columns, rows, alpha, tables[0], n, tables[1], columns, matrices)
        check("cuBLAS", getattr(cublas(), function)(handle, *options, *arguments))

    return Call(all_at_once, ("a", "b"), capturable=False)
