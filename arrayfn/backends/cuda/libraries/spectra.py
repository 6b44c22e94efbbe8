"""Eigenvalues and singular values through cuSOLVER, column-major.

Small matrices of a batch are one call. Nothing waits for the GPU but what cuSOLVER does
partly on the host: the general eigenvalue problem and the polar decomposition.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from arrayfn.backends.cuda.libraries.calls import Call
from arrayfn.backends.cuda.libraries.dense import (
    LETTERS,
    NONE,
    TYPES,
    Batch,
    bytes_of,
    check,
    cusolver,
    is_complex,
    jacobi_params,
    real_size_of,
    scratch,
    size_of,
    solver,
    solver_handle,
    solver_params,
    words_of,
)
from arrayfn.backends.cuda.libraries.workspaces import workspace
from arrayfn.dtypes import BY_SHORT_NAME, complex_of, real_of, short_name

_UPPER: Final = 1
_BATCH: Final = "cusolverDnXsyevBatched"
_CAPTURED: Final = 512  # rows up to which the batched routine does not wait
_MOST_SHARED: Final = 64 << 20  # bytes of a workspace, that graphs keep
_ALONE: Final = 512
"""Up to so many rows it is the faster routine for one matrix in float32, too."""


def eigh(dtype: str, integers: Mapping[str, int], items: int) -> Call:
    """syevd or heevd of each matrix, in place, its eigenvalues and a status."""
    n, matrices, vectors = (integers[k] for k in ("n", "matrices", "vectors"))
    is_batch = matrices > 1 or (dtype == "f32" and n <= _ALONE)
    if is_batch and hasattr(cusolver(), _BATCH):
        return _eigh_batched(dtype, n, matrices, vectors)
    size = size_of(dtype)
    stem = "heevd" if is_complex(dtype) else "syevd"
    function = f"cusolverDn{LETTERS[dtype]}{stem}"
    words = words_of(function, vectors, _UPPER, n, NONE, n, NONE)
    steps = n * n * size, n * real_size_of(dtype), 4
    batch = Batch(matrices)

    def enqueue(stream: int, *arrays: int) -> None:
        run, handle = getattr(cusolver(), function), solver(stream)
        with scratch(words * size) as work:
            for a, w, info in batch.each(*zip(arrays, steps, strict=True)):
                arguments = (vectors, _UPPER, n, a, n, w, work, words, info)
                check("cuSOLVER", run(handle, *arguments))

    return Call(enqueue, ("a", "w", "status"), capturable=False)


def _eigh_batched(dtype: str, n: int, matrices: int, vectors: int) -> Call:
    """All matrices by one call: of matrices that are not large, a part of a graph.

    It is some hundreds of kernels, which take the host up to three times as long to
    enqueue as they take the GPU.
    """
    kind = TYPES[dtype]
    real = TYPES[short_name(real_of(BY_SHORT_NAME[dtype]))]
    extent, count = ctypes.c_int64(n), ctypes.c_int64(matrices)
    shape = (vectors, _UPPER, extent, kind, NONE, extent, real, NONE, kind)
    spaces = bytes_of(_BATCH, *shape, more=(count,))
    names = ("a", "w", "status")

    def run(stream: int, work: ctypes.c_void_p, places: tuple[int, ...]) -> None:
        matrix, values, info = map(ctypes.c_void_p, places)
        arrays = (vectors, _UPPER, extent, kind, matrix, extent, real, values, kind)
        more = (*spaces.arguments(work), info, count)
        called = getattr(cusolver(), _BATCH)
        check("cuSOLVER", called(solver(stream), solver_params(), *arrays, *more))

    def enqueue(stream: int, *places: int) -> None:
        with scratch(spaces.nbytes) as work:
            run(stream, work, places)
            spaces.release()

    if n > _CAPTURED or spaces.waits or spaces.nbytes > _MOST_SHARED:
        return Call(enqueue, names, capturable=False)
    space = workspace(spaces.nbytes)

    def enqueue_shared(stream: int, *places: int) -> None:
        run(stream, ctypes.c_void_p(space.pointer), places)

    return Call(enqueue_shared, names)


def eigh_jacobi(dtype: str, integers: Mapping[str, int], items: int) -> Call:
    """syevjBatched or heevjBatched: as ``eigh``, of small matrices."""
    n, matrices, vectors = (integers[k] for k in ("n", "matrices", "vectors"))
    stem = "heevjBatched" if is_complex(dtype) else "syevjBatched"
    function = f"cusolverDn{LETTERS[dtype]}{stem}"
    last = (jacobi_params("Syevj"), matrices)
    words = _words(function, (vectors, _UPPER, n, NONE, n, NONE), last)
    size = size_of(dtype)

    def enqueue(stream: int, *places: int) -> None:
        run, handle = getattr(cusolver(), function), solver(stream)
        a, w, info = map(ctypes.c_void_p, places)
        with scratch(words * size) as work:
            more = (work, words, info, *last)
            check("cuSOLVER", run(handle, vectors, _UPPER, n, a, n, w, *more))

    return Call(enqueue, ("a", "w", "status"), capturable=False)


def eig(
    with_vectors: bool, dtype: str, integers: Mapping[str, int], items: int
) -> Call:
    """geev of each matrix, which is lost: complex eigenvalues; right eigenvectors.

    Those of real matrices are real: of a conjugate pair, real and imaginary part.
    """
    n, matrices, function = integers["n"], integers["matrices"], "cusolverDnXgeev"
    kind = TYPES[dtype]
    whole = short_name(complex_of(BY_SHORT_NAME[dtype]))
    extent = ctypes.c_int64(n)

    def shape(a: Any, w: Any, v: Any) -> tuple[Any, ...]:
        return (
            *(0, int(with_vectors), extent, kind, a, extent, TYPES[whole], w),
            *(kind, NONE, extent, kind, v, extent, kind),
        )

    spaces = bytes_of(function, *shape(NONE, NONE, NONE))
    size = size_of(dtype)
    steps = (n * n * size, n * size_of(whole), 4)
    batch = Batch(matrices)

    def enqueue(stream: int, *arrays: int) -> None:
        run, handle = getattr(cusolver(), function), solver(stream)
        places = [*zip(arrays, (*steps, steps[0]), strict=False)]
        with scratch(spaces.nbytes) as work:
            for a, w, info, *v in batch.each(*places):
                vectors = v[0] if v else NONE
                arguments = (*shape(a, w, vectors), *spaces.arguments(work), info)
                check("cuSOLVER", run(handle, solver_params(), *arguments))
                spaces.release()

    names = ("a", "w", "status", *(("v",) if with_vectors else ()))
    return Call(enqueue, names, capturable=False)


class _Svd:
    """The numbers of a call, and the bytes of each matrix of its arrays."""

    def __init__(self, dtype: str, integers: Mapping[str, int]) -> None:
        self.rows, self.columns = integers["rows"], integers["columns"]
        self.matrices = integers["matrices"]
        self.full, self.vectors = integers["full"], integers["vectors"]
        small = min(self.rows, self.columns)
        self.size = size_of(dtype)
        left, right = (n if self.full else small for n in (self.rows, self.columns))
        self.steps = (
            self.rows * self.columns * self.size,
            small * real_size_of(dtype),
            4,
            self.rows * left * self.size,
            self.columns * right * self.size,
        )
        self.names = ("a", "s", "status", "u", "v")

    def each(
        self, batch: Batch, arrays: tuple[int, ...]
    ) -> Iterator[list[ctypes.c_void_p]]:
        """[a, s, status, u, v] of each matrix."""
        return batch.each(*zip(arrays, self.steps, strict=True))


def svd_jacobi(dtype: str, integers: Mapping[str, int], items: int) -> Call:
    """gesvdj of each matrix, which is lost: U, singular values, and V."""
    p = _Svd(dtype, integers)
    m, n = p.rows, p.columns
    function = f"cusolverDn{LETTERS[dtype]}gesvdj"
    head = (p.vectors, 1 - p.full, m, n)
    batch = Batch(p.matrices)

    def arrays(a: Any, s: Any, u: Any, v: Any) -> tuple[Any, ...]:
        return (*head, a, m, s, u, m, v, n)

    words = _words(function, arrays(NONE, NONE, NONE, NONE), (jacobi_params("Gesvdj"),))

    def enqueue(stream: int, *places: int) -> None:
        run, handle = getattr(cusolver(), function), solver(stream)
        with scratch(words * p.size) as work:
            for a, s, info, u, v in p.each(batch, places):
                more = (work, words, info, jacobi_params("Gesvdj"))
                check("cuSOLVER", run(handle, *arrays(a, s, u, v), *more))

    return Call(enqueue, p.names, capturable=False)


def svd_batched(dtype: str, integers: Mapping[str, int], items: int) -> Call:
    """gesvdjBatched of matrices of up to 32 rows and columns: square U and V."""
    p = _Svd(dtype, integers)
    m, n = p.rows, p.columns
    function = f"cusolverDn{LETTERS[dtype]}gesvdjBatched"

    def arrays(a: Any, s: Any, u: Any, v: Any) -> tuple[Any, ...]:
        return (p.vectors, m, n, a, m, s, u, m, v, n)

    last = (jacobi_params("Gesvdj"), p.matrices)
    words = _words(function, arrays(NONE, NONE, NONE, NONE), last)

    def enqueue(stream: int, *places: int) -> None:
        run, handle = getattr(cusolver(), function), solver(stream)
        a, s, info, u, v = map(ctypes.c_void_p, places)
        with scratch(words * p.size) as work:
            more = (work, words, info, *last)
            check("cuSOLVER", run(handle, *arrays(a, s, u, v), *more))

    return Call(enqueue, p.names, capturable=False)


def _words(function: str, arrays: tuple[Any, ...], last: tuple[Any, ...]) -> int:
    """As ``words_of``, of a function whose count is not its query's last argument."""
    count = ctypes.c_int()
    query = getattr(cusolver(), f"{function}_bufferSize")
    check("cuSOLVER", query(solver_handle(), *arrays, ctypes.byref(count), *last))
    return count.value


def svd_polar(dtype: str, integers: Mapping[str, int], items: int) -> Call:
    """gesvdp of each matrix, which is lost: by its polar decomposition.

    Nakatsukasa and Higham, Stable and efficient spectral divide and conquer algorithms
    for the symmetric eigenvalue decomposition and the SVD, 2013.
    """
    p = _Svd(dtype, integers)
    function = "cusolverDnXgesvdp"
    m, n = ctypes.c_int64(p.rows), ctypes.c_int64(p.columns)
    kind = TYPES[dtype]
    real = TYPES[short_name(real_of(BY_SHORT_NAME[dtype]))]
    batch = Batch(p.matrices)

    def arrays(a: Any, s: Any, u: Any, v: Any) -> tuple[Any, ...]:
        shape = (p.vectors, 1 - p.full, m, n)
        return (*shape, kind, a, m, real, s, kind, u, m, kind, v, n, kind)

    spaces = bytes_of(function, *arrays(NONE, NONE, NONE, NONE))

    def enqueue(stream: int, *places: int) -> None:
        run, handle = getattr(cusolver(), function), solver(stream)
        perturbed = ctypes.c_double()
        with scratch(spaces.nbytes) as work:
            for a, s, info, u, v in p.each(batch, places):
                more = (*spaces.arguments(work), info, ctypes.byref(perturbed))
                values = arrays(a, s, u, v)
                check("cuSOLVER", run(handle, solver_params(), *values, *more))
                spaces.release()

    return Call(enqueue, p.names, capturable=False)


SPECTRA: Final[dict[str, Callable[[str, Mapping[str, int], int], Call]]] = {
    "syevd": eigh,
    "syevjbatched": eigh_jacobi,
    "geev": partial(eig, True),
    "geevvalues": partial(eig, False),
    "gesvdj": svd_jacobi,
    "gesvdjbatched": svd_batched,
    "gesvdp": svd_polar,
}
"""Providers by the first words of their names."""
