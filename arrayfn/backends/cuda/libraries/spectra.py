"""Eigenvalues and singular values through cuSOLVER, column-major.

Small matrices of a batch are one call. Nothing waits for the GPU but what cuSOLVER does
partly on the host: the general eigenvalue problem and the polar decomposition.
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
_CAPTURED: Final = 512  # rows up to which the batched routine does not wait
_MAX_SHARED: Final = 64 << 20  # bytes of a workspace, that graphs keep
_ALONE: Final = 512
"""Up to so many rows it is the faster routine for one matrix in float32, too."""


def _call(
    names: Sequence[str],
    function: str,
    matrices: int,
    steps: Sequence[int],
    arguments: Callable[..., tuple[Any, ...]],
    workspaces: Workspaces,
    *,
    capturable: bool = False,
) -> Call:
    """A call of ``function`` for each of ``matrices``, see ``each_matrix``.

    ``names`` are its arrays, ``steps`` the bytes from one matrix to the next in each.
    ``arguments`` makes the function's arguments of the workspace and the addresses.
    """
    batch = function, matrices, steps, arguments, workspaces
    return Call(each_matrix(SOLVER, *batch), tuple(names), capturable)


def eigh(dtype: str, integers: Mapping[str, int]) -> Call:
    """syevd or heevd of each matrix, in place, its eigenvalues and a status.

    ``integers`` are ``n``, ``matrices``, and ``vectors``: whether eigenvectors replace
    the matrices. ``dtype`` is a short name ("f32").
    """
    n, matrices, vectors = (integers[k] for k in ("n", "matrices", "vectors"))
    element = Element(dtype)
    is_batch = matrices > 1 or (dtype == "f32" and n <= _ALONE)
    if is_batch and SOLVER.has(_BATCH):
        return _eigh_batched(element, n, matrices, vectors)
    stem = "heevd" if element.is_complex else "syevd"
    function = f"cusolverDn{element.letter}{stem}"
    elements = workspace_elements(function, vectors, _UPPER, n, NONE, n, NONE)

    def arguments(work: Any, a: Any, w: Any, info: Any) -> tuple[Any, ...]:
        return vectors, _UPPER, n, a, n, w, work, elements, info

    steps = n * n * element.size, n * element.real_size, 4
    workspaces = Workspaces(elements * element.size)
    return _call(("a", "w", "status"), function, matrices, steps, arguments, workspaces)


def _eigh_batched(element: Element, n: int, matrices: int, vectors: int) -> Call:
    """All matrices by one call: of matrices that are not large, a part of a graph.

    Each has ``n`` rows; ``vectors`` is 1 if eigenvectors are wanted. The call is some
    hundreds of kernels, which take the host up to three times as long to enqueue as
    they take the GPU.
    """
    extent, count = ctypes.c_int64(n), ctypes.c_int64(matrices)
    kind, real = element.type, element.real_type

    def arrays(a: Any, w: Any) -> tuple[Any, ...]:
        return vectors, _UPPER, extent, kind, a, extent, real, w, kind

    def arguments(work: Any, a: Any, w: Any, info: Any) -> tuple[Any, ...]:
        leading = solver_params(), *arrays(a, w), *workspaces.arguments(work)
        return *leading, info, count

    workspaces = workspaces_of(_BATCH, *arrays(NONE, NONE), last=(count,))
    waits = n > _CAPTURED or workspaces.synchronizes or workspaces.nbytes > _MAX_SHARED
    if not waits:
        workspaces.shared = workspace(workspaces.nbytes)
    batch = _BATCH, 1, (0, 0, 0), arguments, workspaces
    return _call(("a", "w", "status"), *batch, capturable=not waits)


def eigh_jacobi(dtype: str, integers: Mapping[str, int]) -> Call:
    """syevjBatched or heevjBatched: as ``eigh``, of small matrices.

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

    batch = function, 1, (0, 0, 0), arguments, Workspaces(elements * element.size)
    return _call(("a", "w", "status"), *batch)


def eig(with_vectors: bool, dtype: str, integers: Mapping[str, int]) -> Call:
    """geev of each matrix, which is lost: complex eigenvalues; right eigenvectors.

    Eigenvectors are computed if ``with_vectors``. Those of real matrices are real: of a
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
    names, steps = ["a", "w", "status"], [matrix, n * element.complex_size, 4]
    if with_vectors:
        names, steps = [*names, "v"], [*steps, matrix]
    return _call(names, function, matrices, steps, arguments, workspaces)


class _Svd:
    """The numbers of a call, and the bytes of each matrix of its arrays."""

    names = ("a", "s", "status", "u", "v")

    def __init__(self, dtype: str, integers: Mapping[str, int]) -> None:
        self.element = element = Element(dtype)
        self.rows, self.columns = m, n = integers["rows"], integers["columns"]
        self.matrices = integers["matrices"]
        self.full, self.vectors = integers["full"], integers["vectors"]
        small = min(m, n)
        left, right = (k if self.full else small for k in (m, n))
        numbers = m * n, m * left, n * right
        a, u, v = (k * element.size for k in numbers)
        self.steps = a, small * element.real_size, 4, u, v

    def call(
        self,
        function: str,
        head: Sequence[int],
        matrices: int,
        last: tuple[Any, ...] = (),
    ) -> Call:
        """A call of a function of Jacobi's method, whose arguments begin with ``head``.

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
        return _call(self.names, function, matrices, self.steps, arguments, workspaces)


def svd_jacobi(dtype: str, integers: Mapping[str, int]) -> Call:
    """gesvdj of each matrix, which is overwritten: U, singular values, and V.

    ``integers`` are those of ``_Svd``; ``dtype`` is a short name ("f32").
    """
    p = _Svd(dtype, integers)
    return p.call("gesvdj", (p.vectors, 1 - p.full), p.matrices)


def svd_batched(dtype: str, integers: Mapping[str, int]) -> Call:
    """gesvdjBatched of matrices of up to 32 rows and columns: square U and V.

    ``integers`` are those of ``_Svd``; ``dtype`` is a short name ("f32").
    """
    p = _Svd(dtype, integers)
    return p.call("gesvdjBatched", (p.vectors,), 1, last=(p.matrices,))


def svd_polar(dtype: str, integers: Mapping[str, int]) -> Call:
    """gesvdp of each matrix, which is lost: by its polar decomposition.

    ``integers`` are those of ``_Svd``; ``dtype`` is a short name ("f32").

    Nakatsukasa and Higham, Stable and efficient spectral divide and conquer algorithms
    for the symmetric eigenvalue decomposition and the SVD, 2013.
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
    return _call(p.names, function, p.matrices, p.steps, arguments, workspaces)


SPECTRA: Final[dict[str, Callable[[str, Mapping[str, int]], Call]]] = {
    "syevd": eigh,
    "syevjbatched": eigh_jacobi,
    "geev": partial(eig, True),
    "geevvalues": partial(eig, False),
    "gesvdj": svd_jacobi,
    "gesvdjbatched": svd_batched,
    "gesvdp": svd_polar,
}
"""Providers by the first elements of their names."""
