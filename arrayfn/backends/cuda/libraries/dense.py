"""The base of cuSOLVER and cuBLAS calls: handles, workspaces, batches of matrices."""

from __future__ import annotations

import ctypes
import sys
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.libraries.calls import Call
from arrayfn.backends.cuda.libraries.shared import Library
from arrayfn.backends.cuda.libraries.workspaces import Workspace
from arrayfn.dtypes import BY_SHORT_NAME, complex_of, real_of
from arrayfn.errors import BackendError
from arrayfn.lowering.cuda.solvers.factorizations import BATCHED

LETTERS: Final = {"f32": "S", "f64": "D", "c64": "C", "c128": "Z"}
TYPES: Final = {
    np.dtype(t): k for t, k in (("f4", 0), ("f8", 1), ("c8", 4), ("c16", 5))
}
"""The cudaDataType of each dtype."""
NONE: Final = ctypes.c_void_p()
"""A null pointer, for optional arguments and for queries."""
_TABLES: Final = 8
"""Most tables of addresses that ``PointerTables`` keeps."""

SOLVER: Final = Library(
    *("cuSOLVER", "cusolver", "a factorization"),
    *("cusolverDnCreate", "cusolverDnSetStream"),
)
BLAS: Final = Library(
    *("cuBLAS", "cublas", "a triangular system"),
    *("cublasCreate_v2", "cublasSetStream_v2"),
)


def solver_params() -> ctypes.c_void_p:
    """Return default parameters for those cuSOLVER functions that take any dtype.

    It is the cusolverDnParams_t of this thread's GPU.
    """
    return SOLVER.per_gpu_object("cusolverDnCreateParams")


def jacobi_params(name: str) -> ctypes.c_void_p:
    """Return default parameters of a Jacobi method; ``name`` is "Gesvdj" or "Syevj"."""
    return SOLVER.per_gpu_object(f"cusolverDnCreate{name}Info")


class Workspaces:
    """The workspaces of a cuSOLVER call: on the GPU, and on the host if it needs one.

    ``nbytes`` are those on the GPU, ``host`` those on the host. The memory on the GPU
    is allocated for each run, unless a ``shared`` workspace is set.
    """

    def __init__(
        self, nbytes: int, host: int = 0, shared: Workspace | None = None
    ) -> None:
        self.nbytes = nbytes
        self.shared = shared
        self._host_bytes = host
        self._host = ctypes.create_string_buffer(host) if host else None

    @contextmanager
    def allocated(self) -> Generator[ctypes.c_void_p]:
        """Yield the workspace on the GPU, for work enqueued in the ``with`` block.

        It is freed in stream order: the memory may be reused only after that work.
        """
        if self.shared is not None:
            yield ctypes.c_void_p(self.shared.pointer)
            return
        pointer = device().allocate(max(1, self.nbytes))
        try:
            yield ctypes.c_void_p(pointer)
        finally:
            device().free(pointer)

    def arguments(self, pointer: ctypes.c_void_p) -> tuple[Any, ...]:
        """Return both workspaces as arguments: pointer and size, pointer and size.

        The workspace on the GPU is at ``pointer``.
        """
        host = ctypes.cast(self._host, ctypes.c_void_p) if self._host else NONE
        sizes = ctypes.c_size_t(self.nbytes), ctypes.c_size_t(self._host_bytes)
        return pointer, sizes[0], host, sizes[1]

    @property
    def synchronizes(self) -> bool:
        """Whether each run must end before the next, as it uses memory on the host."""
        return bool(self._host_bytes)

    def release(self) -> None:
        """Wait for the GPU if the run that was enqueued uses memory on the host."""
        if self.synchronizes:
            device().synchronize()


def workspace_elements(
    function: str, *arguments: Any, last: tuple[Any, ...] = ()
) -> int:
    """Return how many elements of workspace ``function`` of cuSOLVER needs.

    Calls its query, ``<function>_bufferSize``, with ``arguments``, a pointer to the
    number, and ``last``.
    """
    count = ctypes.c_int()
    call_arguments = SOLVER.handle, *arguments, ctypes.byref(count), *last
    SOLVER.call(f"{function}_bufferSize", *call_arguments)
    return count.value


def workspaces_of(
    function: str, *arguments: Any, last: tuple[Any, ...] = ()
) -> Workspaces:
    """Return the workspaces that a function of cuSOLVER for any dtype needs.

    Calls its query, ``<function>_bufferSize``, with default parameters, ``arguments``,
    pointers to the sizes on GPU and host, and ``last``. Raises BackendError if this
    version of cuSOLVER lacks the function.
    """
    query = f"{function}_bufferSize"
    if not SOLVER.has(query):
        raise BackendError(
            f"this cuSOLVER has no {function}: pip install --upgrade nvidia-cusolver"
        )
    sizes = ctypes.c_size_t(), ctypes.c_size_t()
    call_arguments = SOLVER.handle, solver_params(), *arguments
    SOLVER.call(query, *call_arguments, *map(ctypes.byref, sizes), *last)
    return Workspaces(sizes[0].value, sizes[1].value)


def each_matrix(
    library: Library,
    function: str,
    matrices: int,
    matrix_bytes: Mapping[str, int],
    arguments: Callable[..., tuple[Any, ...]],
    workspaces: Workspaces | None = None,
    *,
    capturable: bool = False,
) -> Call:
    """Prepare ``matrices`` calls of ``function``, one for each matrix of the arrays.

    ``matrix_bytes`` maps the name of each array to the bytes from one matrix to the
    next in it. ``arguments(*addresses)`` makes the function's arguments from the
    addresses of one matrix in all arrays; with ``workspaces`` it is
    ``arguments(work, *addresses)``, where ``work`` is the workspace's address.
    ``capturable`` says whether a stream capture can include the calls.
    """

    def enqueue(stream: int, *addresses: int) -> None:
        """Enqueue the function for one matrix after the other."""
        run = library.routine(function, stream)
        # For each array, the addresses of all its matrices.
        arrays = [
            [ctypes.c_void_p(at + number * step) for number in range(matrices)]
            for at, step in zip(addresses, matrix_bytes.values(), strict=True)
        ]
        if workspaces is None:
            for matrix in zip(*arrays, strict=True):
                run(*arguments(*matrix))
            return
        with workspaces.allocated() as work:
            for matrix in zip(*arrays, strict=True):
                run(*arguments(work, *matrix))
                # The next matrix uses the same memory on the host.
                workspaces.release()

    return Call(enqueue, tuple(matrix_bytes), capturable)


class PointerTables:
    """Makes tables of the addresses of all matrices of an array, on the GPU.

    cuBLAS's batched functions take such tables. ``matrices`` is the number of matrices.
    """

    def __init__(self, matrices: int) -> None:
        self.matrices = matrices
        # The address of each table by (address, step) of its array, the one that was
        # used last at the end.
        self._tables: OrderedDict[tuple[int, int], int] = OrderedDict()

    def table(self, address: int, step: int) -> ctypes.c_void_p:
        """Return the table of the addresses of all matrices of an array, on the GPU.

        The array's ``self.matrices`` matrices begin at ``address``, and are ``step``
        bytes apart. The tables used last are cached, since an array is at a few
        addresses in rotation.
        """
        key = address, step
        known = self._tables.get(key)
        if known is None:
            if len(self._tables) >= _TABLES:
                _, oldest = self._tables.popitem(last=False)
                device().free(oldest)
            matrices = address + step * np.arange(self.matrices, dtype=np.int64)
            known = device().allocate(matrices.nbytes)
            device().copy_in(known, matrices.ctypes.data, matrices.nbytes)
            self._tables[key] = known
        else:
            self._tables.move_to_end(key)
        return ctypes.c_void_p(known)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            for pointer in self._tables.values():
                device().free(pointer)


def is_batched(integers: Mapping[str, int], *extents: int) -> bool:
    """Whether one call for all matrices is faster than a call for each.

    ``integers`` has the number of ``matrices``, and ``extents`` are a matrix's.
    """
    matrices = integers["matrices"]
    return matrices > 1 and max(extents) <= BATCHED * matrices


class Element:
    """The dtype of a call's matrices: sizes in bytes, and cuSOLVER's constants.

    ``name`` is the dtype's short name ("f32"), and ``letter`` its letter in names of
    functions ("S"). ``real_...`` and ``complex_...`` are of the real and the complex
    dtype of the same precision. A ``type`` is a cudaDataType.
    """

    def __init__(self, name: str) -> None:
        """Look up the constants of the dtype with the short name ``name``."""
        dtype = BY_SHORT_NAME[name]
        real, complex_dtype = real_of(dtype), complex_of(dtype)
        self.letter = LETTERS[name]
        self.dtype = dtype
        self.is_complex = dtype.kind == "c"
        self.size, self.real_size = dtype.itemsize, real.itemsize
        self.complex_size = complex_dtype.itemsize
        self.type, self.real_type = TYPES[dtype], TYPES[real]
        self.complex_type = TYPES[complex_dtype]
