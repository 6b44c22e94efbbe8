"""What calls of cuSOLVER and cuBLAS share: handles, workspaces, batches of matrices."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import numpy as np

from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.libraries.shared import open_library
from arrayfn.dtypes import BY_SHORT_NAME, real_of
from arrayfn.errors import BackendError
from arrayfn.lowering.cuda.solvers.factorizations import BATCHED

LETTERS: Final = {"f32": "S", "f64": "D", "c64": "C", "c128": "Z"}
TYPES: Final = {"f32": 0, "f64": 1, "c64": 4, "c128": 5}
"""cudaDataType of a dtype."""
NONE: Final = ctypes.c_void_p()
_TABLES: Final = 8


@cache
def cusolver() -> Any:
    """cuSOLVER, opened once."""
    return open_library("cusolver", "a factorization", "nvidia-cusolver")


@cache
def cublas() -> Any:
    """cuBLAS, opened once."""
    return open_library("cublas", "a triangular system", "nvidia-cublas")


def check(library: str, status: int) -> None:
    """Raise BackendError unless ``status`` is success."""
    if status:
        raise BackendError(f"{library} says: error {status}")


def _made(library: Any, name: str, create: str) -> ctypes.c_void_p:
    device().enter()
    handle = ctypes.c_void_p()
    check(name, getattr(library, create)(ctypes.byref(handle)))
    return handle


@cache
def solver_handle() -> ctypes.c_void_p:
    """cuSOLVER's handle."""
    return _made(cusolver(), "cuSOLVER", "cusolverDnCreate")


@cache
def solver_params() -> ctypes.c_void_p:
    """The parameters of cuSOLVER's functions of all dtypes: as they are."""
    return _made(cusolver(), "cuSOLVER", "cusolverDnCreateParams")


@cache
def jacobi_params(name: str) -> ctypes.c_void_p:
    """The parameters of Jacobi's method, Gesvdj or Syevj: as they are."""
    return _made(cusolver(), "cuSOLVER", f"cusolverDnCreate{name}Info")


@cache
def blas_handle() -> ctypes.c_void_p:
    """cuBLAS's handle."""
    return _made(cublas(), "cuBLAS", "cublasCreate_v2")


def solver(stream: int) -> ctypes.c_void_p:
    """cuSOLVER's handle, which enqueues on ``stream``."""
    device().enter()
    handle = solver_handle()
    check("cuSOLVER", cusolver().cusolverDnSetStream(handle, ctypes.c_void_p(stream)))
    return handle


def blas(stream: int) -> ctypes.c_void_p:
    """cuBLAS's handle, which enqueues on ``stream``."""
    device().enter()
    handle = blas_handle()
    check("cuBLAS", cublas().cublasSetStream_v2(handle, ctypes.c_void_p(stream)))
    return handle


@contextmanager
def scratch(nbytes: int) -> Generator[ctypes.c_void_p]:
    """Memory for what is enqueued meanwhile."""
    pointer = device().allocate(max(1, nbytes))
    try:
        yield ctypes.c_void_p(pointer)
    finally:
        device().free(pointer)


def words_of(function: str, *arguments: Any) -> int:
    """The elements of workspace that a function of cuSOLVER asks for."""
    count = ctypes.c_int()
    query = getattr(cusolver(), f"{function}_bufferSize")
    check("cuSOLVER", query(solver_handle(), *arguments, ctypes.byref(count)))
    return count.value


def bytes_of(function: str, *arguments: Any, more: tuple[Any, ...] = ()) -> Spaces:
    """The workspaces that a function of cuSOLVER of all dtypes asks for."""
    sizes = ctypes.c_size_t(), ctypes.c_size_t()
    query = getattr(cusolver(), f"{function}_bufferSize", None)
    if query is None:
        raise BackendError(
            f"this cuSOLVER has no {function}: pip install --upgrade nvidia-cusolver"
        )
    places = (ctypes.byref(size) for size in sizes)
    handle, params = solver_handle(), solver_params()
    check("cuSOLVER", query(handle, params, *arguments, *places, *more))
    return Spaces(sizes[0].value, sizes[1].value)


class Spaces:
    """Bytes on the GPU, for each run anew; memory on the host, for all runs."""

    def __init__(self, nbytes: int, host: int) -> None:
        self.nbytes = nbytes
        self._host_bytes = host
        self._host = ctypes.create_string_buffer(host) if host else None

    def arguments(self, pointer: ctypes.c_void_p) -> tuple[Any, ...]:
        """Both, as arguments, with those on the GPU at ``pointer``."""
        host = ctypes.cast(self._host, ctypes.c_void_p) if self._host else NONE
        sizes = ctypes.c_size_t(self.nbytes), ctypes.c_size_t(self._host_bytes)
        return pointer, sizes[0], host, sizes[1]

    @property
    def waits(self) -> bool:
        """Whether a run is waited for: it has memory on the host."""
        return bool(self._host_bytes)

    def release(self) -> None:
        """Wait until the run has done with the memory on the host, if it has any."""
        if self.waits:
            device().synchronize()


class Batch:
    """The matrices of arrays: one after the other, or all by a table on the GPU."""

    def __init__(self, matrices: int) -> None:
        self.matrices = matrices
        self._tables: OrderedDict[tuple[int, int], int] = OrderedDict()

    def each(self, *arrays: tuple[int, int]) -> Iterator[list[ctypes.c_void_p]]:
        """The addresses of each matrix: of arrays with the bytes of one matrix."""
        for number in range(self.matrices):
            yield [ctypes.c_void_p(at + number * step) for at, step in arrays]

    def table(self, address: int, step: int) -> ctypes.c_void_p:
        """A table of the addresses of all matrices, on the GPU.

        Arrays lie at a few addresses in rotation, whose tables are kept.
        """
        key = address, step
        known = self._tables.get(key)
        if known is None:
            if len(self._tables) >= _TABLES:
                device().free(self._tables.popitem(last=False)[1])
            host = address + step * np.arange(self.matrices, dtype=np.int64)
            known = device().allocate(host.nbytes)
            device().copy_in(known, host.ctypes.data, host.nbytes)
            self._tables[key] = known
        else:
            self._tables.move_to_end(key)
        return ctypes.c_void_p(known)

    def __del__(self) -> None:
        for pointer in self._tables.values():
            device().free(pointer)


def is_batched(integers: Mapping[str, int], *extents: int) -> bool:
    """Whether a call of all matrices is faster than a call for each."""
    matrices = integers["matrices"]
    return matrices > 1 and max(extents) <= BATCHED * matrices


def size_of(dtype: str) -> int:
    """The bytes of an element."""
    return BY_SHORT_NAME[dtype].itemsize


def real_size_of(dtype: str) -> int:
    """The bytes of the real part of an element."""
    return real_of(BY_SHORT_NAME[dtype]).itemsize


def is_complex(dtype: str) -> bool:
    """Whether it is a complex dtype."""
    return BY_SHORT_NAME[dtype].kind == "c"
