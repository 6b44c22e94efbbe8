"""Eigenvalues and singular values through cuSOLVER, column-major.

Small matrices of a batch are one call. Nothing waits for the GPU except what cuSOLVER
computes partly on the host: the general eigenvalue problem and the polar decomposition.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from arrayfn.backends.cuda.libraries.calls import Call
from arrayfn.backends.cuda.libraries.dense import (
    NONE,
    SOLVER,
    Element,
    Workspaces,
    each_matrix,
    jacobi_params,
    solver_params,
    workspace_elements,
    workspaces_of,
)
from arrayfn.backends.cuda.libraries.workspaces import workspace

_UPPER: Final = 1
_BATCH: Final = "cusolverDnXsyevBatched"
_WHOLE_ARRAYS: Final = {"a": 0, "w": 0, "status": 0}
"""The arrays of a call that computes all matrices at once."""
_MAX_CAPTURED: Final = 512  # rows up to which the batched routine does not wait
_MAX_SHARED: Final = 64 << 20  # bytes of a workspace, that graphs keep
_MAX_SINGLE: Final = 512
"""Rows up to which the batched routine is faster for one float32 matrix, too."""


def eigh(dtype: str, integers: Mapping[str, int]) -> Call:
    """Prepare syevd or heevd of each matrix, in place, with eigenvalues and a status.

    ``integers`` are ``n``, ``matrices``, and ``vectors``: whether eigenvectors replace
    the matrices. ``dtype`` is a short name ("f32").
    """
    n, matrices, vectors = (integers[k] for k in ("n", "matrices", "vectors"))
    element = Element(dtype)
    is_batch = matrices > 1 or (dtype == "f32" and n <= _MAX_SINGLE)
    if is_batch and SOLVER.has(_BATCH):
        return _eigh_batched(element, n, matrices, vectors)
    stem = "heevd" if element.is_complex else "syevd"
    function = f"cusolverDn{element.letter}{stem}"
    elements = workspace_elements(function, vectors, _UPPER, n, NONE, n, NONE)

    def arguments(work: Any, a: Any, w: Any, info: Any) -> tuple[Any, ...]:
        return vectors, _UPPER, n, a, n, w, work, elements, info

    sizes = {"a": n * n * element.size, "w": n * element.real_size, "status": 4}
    workspaces = Workspaces(elements * element.size)
    return each_matrix(SOLVER, function, matrices, sizes, arguments, workspaces)


def _eigh_batched(element: Element, n: int, matrices: int, vectors: int) -> Call:
    """Prepare one call for all matrices; it can be captured unless they are large.

    Each has ``n`` rows; ``vectors`` is 1 if eigenvectors are asked for. The call is
    some hundreds of kernels, which take the host up to three times as long to enqueue
    as they take the GPU.
    """
    extent, count = ctypes.c_int64(n), ctypes.c_int64(matrices)
    kind, real = element.type, element.real_type

    def arrays(a: Any, w: Any) -> tuple[Any, ...]:
        return vectors, _UPPER, extent, kind, a, extent, real, w, kind

    def arguments(work: Any, a: Any, w: Any, info: Any) -> tuple[Any, ...]:
        leading = solver_params(), *arrays(a, w), *workspaces.arguments(work)
        return *leading, info, count

    workspaces = workspaces_of(_BATCH, *arrays(NONE, NONE), last=(count,))
    waits = (
        n > _MAX_CAPTURED or workspaces.synchronizes or workspaces.nbytes > _MAX_SHARED
    )
    if not waits:
        workspaces.shared = workspace(workspaces.nbytes)
    return each_matrix(
        SOLVER,
        _BATCH,
        1,
        _WHOLE_ARRAYS,
        arguments,
        workspaces,
        capturable=not waits,
    )


def eigh_jacobi(dtype: str, integers: Mapping[str, int]) -> Call:
    """Prepare syevjBatched or heevjBatched: as ``eigh``, for small matrices.

    ``integers`` and ``dtype`` are those of ``eigh``.
    """
    n, matrices, vectors = (integers[k] for k in ("n", "matrices", "vectors"))
    element = Element(dtype)
    stem = "heevjBatched" if element.is_complex else "syevjBatched"
    function = f"cusolverDn{element.letter}{stem}"
    last = jacobi_params("Syevj"), matrices
    elements = workspace_elements(
        function, vectors, _UPPER, n, NONE, n, NONE, last=last
    )

    def arguments(work: Any, a: Any, w: Any, info: Any) -> tuple[Any, ...]:
        return vectors, _UPPER, n, a, n, w, work, elements, info, *last

    workspaces = Workspaces(elements * element.size)
    return each_matrix(SOLVER, function, 1, _WHOLE_ARRAYS, arguments, workspaces)


def eig(with_vectors: bool, dtype: str, integers: Mapping[str, int]) -> Call:
    """Prepare geev of each matrix, which is overwritten: complex eigenvalues.

    With ``with_vectors`` also right eigenvectors. Those of real matrices are real: of a
    conjugate pair, real and imaginary part. ``integers`` are ``n`` and ``matrices``;
    ``dtype`` is a short name ("f32").
    """
    n, matrices, function = integers["n"], integers["matrices"], "cusolverDnXgeev"
    element, extent = Element(dtype), ctypes.c_int64(n)
    kind, whole = element.type, element.complex_type

    def arrays(a: Any, w: Any, v: Any) -> tuple[Any, ...]:
        values = 0, int(with_vectors), extent, kind, a, extent, whole, w
        return *values, kind, NONE, extent, kind, v, extent, kind

    def arguments(
        work: Any, a: Any, w: Any, info: Any, v: Any = NONE
    ) -> tuple[Any, ...]:
        """The arguments of geev, at these addresses."""
        return solver_params(), *arrays(a, w, v), *workspaces.arguments(work), info

    workspaces = workspaces_of(function, *arrays(NONE, NONE, NONE))
    matrix = n * n * element.size
    sizes = {"a": matrix, "w": n * element.complex_size, "status": 4}
    if with_vectors:
        sizes["v"] = matrix
    return each_matrix(SOLVER, function, matrices, sizes, arguments, workspaces)


class _Svd:
    """The arguments of an SVD, and the bytes of each matrix of its arrays."""

    def __init__(self, dtype: str, integers: Mapping[str, int]) -> None:
        self.element = element = Element(dtype)
        self.rows, self.columns = m, n = integers["rows"], integers["columns"]
        self.matrices = integers["matrices"]
        self.full, self.vectors = integers["full"], integers["vectors"]
        small = min(m, n)
        left, right = (k if self.full else small for k in (m, n))
        numbers = m * n, m * left, n * right
        a, u, v = (k * element.size for k in numbers)
        s = small * element.real_size
        self.sizes = {"a": a, "s": s, "status": 4, "u": u, "v": v}

    def call(
        self,
        function: str,
        head: Sequence[int],
        matrices: int,
        last: tuple[Any, ...] = (),
    ) -> Call:
        """Prepare a call of a Jacobi SVD, whose arguments begin with ``head``.

        ``last`` follows its parameters. The function takes one matrix, and is called
        for each of ``matrices``.
        """
        function = f"cusolverDn{self.element.letter}{function}"
        m, n = self.rows, self.columns
        last = jacobi_params("Gesvdj"), *last

        def arrays(a: Any, s: Any, u: Any, v: Any) -> tuple[Any, ...]:
            return *head, m, n, a, m, s, u, m, v, n

        def arguments(
            work: Any, a: Any, s: Any, info: Any, u: Any, v: Any
        ) -> tuple[Any, ...]:
            """The function's arguments, at these addresses."""
            return *arrays(a, s, u, v), work, elements, info, *last

        elements = workspace_elements(
            function, *arrays(NONE, NONE, NONE, NONE), last=last
        )
        workspaces = Workspaces(elements * self.element.size)
        sizes = self.sizes
        return each_matrix(SOLVER, function, matrices, sizes, arguments, workspaces)


def svd_jacobi(dtype: str, integers: Mapping[str, int]) -> Call:
    """Prepare gesvdj of each matrix, which is overwritten: U, singular values, V.

    ``integers`` are those of ``_Svd``; ``dtype`` is a short name ("f32").
    """
    p = _Svd(dtype, integers)
    return p.call("gesvdj", (p.vectors, 1 - p.full), p.matrices)


def svd_batched(dtype: str, integers: Mapping[str, int]) -> Call:
    """Prepare gesvdjBatched for matrices of up to 32 rows and columns: square U and V.

    ``integers`` are those of ``_Svd``; ``dtype`` is a short name ("f32").
    """
    p = _Svd(dtype, integers)
    return p.call("gesvdjBatched", (p.vectors,), 1, last=(p.matrices,))


def svd_polar(dtype: str, integers: Mapping[str, int]) -> Call:
    """Prepare gesvdp, the polar decomposition, of each matrix, which is overwritten.

    ``integers`` are those of ``_Svd``; ``dtype`` is a short name ("f32"). Nakatsukasa
    and Higham, "Stable and efficient spectral divide and conquer algorithms for the
    symmetric eigenvalue decomposition and the SVD", 2013.
    """
    p, function = _Svd(dtype, integers), "cusolverDnXgesvdp"
    m, n = ctypes.c_int64(p.rows), ctypes.c_int64(p.columns)
    kind, real = p.element.type, p.element.real_type

    def arrays(a: Any, s: Any, u: Any, v: Any) -> tuple[Any, ...]:
        shape = (p.vectors, 1 - p.full, m, n)
        return (*shape, kind, a, m, real, s, kind, u, m, kind, v, n, kind)

    def arguments(
        work: Any, a: Any, s: Any, info: Any, u: Any, v: Any
    ) -> tuple[Any, ...]:
        """The arguments of gesvdp, at these addresses."""
        leading = solver_params(), *arrays(a, s, u, v), *workspaces.arguments(work)
        return *leading, info, ctypes.byref(perturbation)

    perturbation = ctypes.c_double()
    workspaces = workspaces_of(function, *arrays(NONE, NONE, NONE, NONE))
    return each_matrix(SOLVER, function, p.matrices, p.sizes, arguments, workspaces)


SPECTRA: Final[dict[str, Callable[[str, Mapping[str, int]], Call]]] = {
    "syevd": eigh,
    "syevjbatched": eigh_jacobi,
    "geev": partial(eig, True),
    "geevvalues": partial(eig, False),
    "gesvdj": svd_jacobi,
    "gesvdjbatched": svd_batched,
    "gesvdp": svd_polar,
}
"""The provider by the first word of its name."""
