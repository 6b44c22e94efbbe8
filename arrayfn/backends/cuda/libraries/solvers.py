"""Factorizations and triangular systems through cuSOLVER and cuBLAS.

Both are column-major: a row-major matrix is its transpose to them, and its lower
triangle an upper one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import numpy as np

from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.libraries.calls import Call
from arrayfn.backends.cuda.libraries.shared import open_library
from arrayfn.dtypes import BY_SHORT_NAME, real_of
from arrayfn.errors import BackendError

_LETTERS: Final = {"f32": "S", "f64": "D", "c64": "C", "c128": "Z"}
_UPPER: Final = 1


@cache
def _cusolver() -> Any:
    return open_library("cusolver", "a factorization", "nvidia-cusolver")


@cache
def _cublas() -> Any:
    return open_library("cublas", "a triangular system", "nvidia-cublas")


def _check(library: str, status: int) -> None:
    if status:
        raise BackendError(f"{library} says: error {status}")


def _handle(library: Any, name: str, create: str) -> ctypes.c_void_p:
    device().enter()
    handle = ctypes.c_void_p()
    _check(name, getattr(library, create)(ctypes.byref(handle)))
    return handle


@cache
def _solver_handle() -> ctypes.c_void_p:
    return _handle(_cusolver(), "cuSOLVER", "cusolverDnCreate")


@cache
def _blas_handle() -> ctypes.c_void_p:
    return _handle(_cublas(), "cuBLAS", "cublasCreate_v2")


class _Workspace:
    """Memory that the runs of a call share in turn."""

    def __init__(self, nbytes: int) -> None:
        self.pointer = ctypes.c_void_p(device().allocate(max(1, nbytes)))

    def __del__(self) -> None:
        device().free(self.pointer.value or 0)


def _workspace(function: str, size: int, *arguments: Any) -> tuple[_Workspace, int]:
    """The workspace that a function of cuSOLVER asks for, and its elements."""
    count = ctypes.c_int()
    query = getattr(_cusolver(), f"{function}_bufferSize")
    _check("cuSOLVER", query(_solver_handle(), *arguments, ctypes.byref(count)))
    return _Workspace(count.value * size), count.value


def _each(
    integers: Mapping[str, int], steps: tuple[int, ...]
) -> Callable[..., list[list[ctypes.c_void_p]]]:
    """The addresses of each matrix, given those of the arrays of all."""

    def addresses(*arrays: int) -> list[list[ctypes.c_void_p]]:
        return [
            [ctypes.c_void_p(a + k * s) for a, s in zip(arrays, steps, strict=True)]
            for k in range(integers["matrices"])
        ]

    return addresses


def cholesky(dtype: str, integers: Mapping[str, int], items: int) -> Call:
    """potrf of each matrix, in place, and a status for each."""
    n, size = integers["n"], BY_SHORT_NAME[dtype].itemsize
    function = f"cusolverDn{_LETTERS[dtype]}potrf"
    none = ctypes.c_void_p()
    work, words = _workspace(function, size, _UPPER, n, none, n)
    run = getattr(_cusolver(), function)
    each = _each(integers, (n * n * size, 4))

    def enqueue(stream: int, a: int, status: int) -> None:
        device().enter()
        handle = _solver_handle()
        _cusolver().cusolverDnSetStream(handle, ctypes.c_void_p(stream))
        for matrix, info in each(a, status):
            _check(
                "cuSOLVER", run(handle, _UPPER, n, matrix, n, work.pointer, words, info)
            )

    return Call(enqueue, ("a", "status"), capturable=False)


def eigh(dtype: str, integers: Mapping[str, int], items: int) -> Call:
    """syevd or heevd of each matrix, in place, and its eigenvalues."""
    n, kind = integers["n"], BY_SHORT_NAME[dtype]
    size = kind.itemsize
    stem = "heevd" if kind.kind == "c" else "syevd"
    function = f"cusolverDn{_LETTERS[dtype]}{stem}"
    none, vectors = ctypes.c_void_p(), 1
    work, words = _workspace(function, size, vectors, _UPPER, n, none, n, none)
    status = _Workspace(4)
    run = getattr(_cusolver(), function)
    each = _each(integers, (n * n * size, n * real_of(kind).itemsize))

    def enqueue(stream: int, a: int, w: int) -> None:
        device().enter()
        handle = _solver_handle()
        _cusolver().cusolverDnSetStream(handle, ctypes.c_void_p(stream))
        for matrix, values in each(a, w):
            arguments = (vectors, _UPPER, n, matrix, n, values, work.pointer, words)
            _check("cuSOLVER", run(handle, *arguments, status.pointer))

    return Call(enqueue, ("a", "w"), capturable=False)


def triangular(dtype: str, integers: Mapping[str, int], items: int) -> Call:
    """trsm over the right-hand sides of each matrix, which are transposes here."""
    p, kind = integers, BY_SHORT_NAME[dtype]
    rows, columns = p["rows"], p["columns"]
    n = rows if p["left"] else columns
    size = kind.itemsize
    run = getattr(_cublas(), f"cublas{_LETTERS[dtype]}trsm_v2")
    one = np.ones((), kind)
    alpha = ctypes.c_void_p(one.ctypes.data)
    # Its lower triangle is the transpose's upper one: side, triangle, operation, unit.
    options = (p["left"], _UPPER if p["lower"] else 0, p["transpose"], p["unit"])
    each = _each(p, (n * n * size, rows * columns * size))

    def enqueue(stream: int, a: int, b: int) -> None:
        device().enter()
        handle = _blas_handle()
        _cublas().cublasSetStream_v2(handle, ctypes.c_void_p(stream))
        for matrix, sides in each(a, b):
            _check(
                "cuBLAS",
                run(
                    *(handle, *options, columns, rows),
                    *(alpha, matrix, n, sides, columns),
                ),
            )
        assert one.size  # alive as long as this function

    return Call(enqueue, ("a", "b"), capturable=False)
