"""Prepares eigenvalues and singular values by cuSOLVER, of column-major matrices.

A batch of small matrices is one call. Only functions that cuSOLVER computes partly on
the host wait for the GPU: the general eigenvalue problem and the polar decomposition.

``dtype`` is the short name of the matrices' dtype, as "f32". All functions overwrite
the matrices ``a``, and write an int32 ``status`` for each.
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

_UPPER: Final = 1  # cublasFillMode_t
_BATCH: Final = "cusolverDnXsyevBatched"
_WHOLE_ARRAYS: Final = {"a": 0, "w": 0, "status": 0}
"""``matrix_bytes`` of ``each_matrix`` for one call that computes all matrices."""
_MAX_CAPTURED: Final = 512  # most rows for which the batched routine does not wait
_MAX_SHARED: Final = 64 << 20  # most bytes of a workspace that graphs keep
_MAX_SINGLE: Final = 512
"""Most rows of a single float32 matrix for which the batched routine is faster."""


def eigh(dtype: str, integers: Mapping[str, int]) -> Call:
    """Prepare the eigenvalues ``w`` of each symmetric or Hermitian matrix.

    ``integers`` has the rows ``n`` of a matrix, the number of ``matrices``, and
    ``vectors``: whether eigenvectors replace the matrices. Batches, and small float32
    matrices, are one call of cuSOLVER's batched routine, if this version has it; else
    syevd or heevd is called for each matrix.
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
        """Return the arguments of syevd for a matrix at the address ``a``."""
        return vectors, _UPPER, n, a, n, w, work, elements, info

    sizes = {"a": n * n * element.size, "w": n * element.real_size, "status": 4}
    workspaces = Workspaces(elements * element.size)
    return each_matrix(SOLVER, function, matrices, sizes, arguments, workspaces)


def _eigh_batched(element: Element, n: int, matrices: int, vectors: int) -> Call:
    """Prepare one call of syevBatched for all matrices.

    A matrix has ``n`` rows; ``vectors`` is 1 if eigenvectors are asked for. The call
    can be captured unless the matrices are large. It is some hundreds of kernels, which
    take the host up to three times as long to enqueue as they take the GPU.
    """
    extent, count = ctypes.c_int64(n), ctypes.c_int64(matrices)
    kind, real = element.type, element.real_type

    def arrays(a: Any, w: Any) -> tuple[Any, ...]:
        """Return the arguments that the routine and its query have in common."""
        return vectors, _UPPER, extent, kind, a, extent, real, w, kind

    def arguments(work: Any, a: Any, w: Any, info: Any) -> tuple[Any, ...]:
        """Return the routine's arguments for arrays at these addresses."""
        leading = solver_params(), *arrays(a, w), *workspaces.arguments(work)
        return *leading, info, count

    workspaces = workspaces_of(_BATCH, *arrays(NONE, NONE), last=(count,))
    waits = (
        n > _MAX_CAPTURED or workspaces.synchronizes or workspaces.nbytes > _MAX_SHARED
    )
    if not waits:
        workspaces.shared = workspace(workspaces.nbytes)
    # One call for the arrays as a whole.
    return each_matrix(
        SOLVER,
        _BATCH,
        matrices=1,
        matrix_bytes=_WHOLE_ARRAYS,
        arguments=arguments,
        workspaces=workspaces,
        capturable=not waits,
    )


def eigh_jacobi(dtype: str, integers: Mapping[str, int]) -> Call:
    """Prepare the eigenvalues of small matrices by syevjBatched or heevjBatched.

    ``integers`` and arrays are those of ``eigh``; one call computes all matrices.
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
        """Return the function's arguments for arrays at these addresses."""
        return vectors, _UPPER, n, a, n, w, work, elements, info, *last

    workspaces = Workspaces(elements * element.size)
    # One call for the arrays as a whole.
    return each_matrix(SOLVER, function, 1, _WHOLE_ARRAYS, arguments, workspaces)


def eig(with_vectors: bool, dtype: str, integers: Mapping[str, int]) -> Call:
    """Prepare geev: the complex eigenvalues ``w`` of each matrix.

    With ``with_vectors`` it also computes right eigenvectors ``v``, in the dtype of the
    matrices: for a real matrix, the eigenvectors of a conjugate pair are given by their
    real and their imaginary part, in two columns. ``integers`` has the rows ``n`` of a
    matrix, and the number of ``matrices``.
    """
    n, matrices, function = integers["n"], integers["matrices"], "cusolverDnXgeev"
    element, extent = Element(dtype), ctypes.c_int64(n)
    kind, complex_kind = element.type, element.complex_type

    def arrays(a: Any, w: Any, v: Any) -> tuple[Any, ...]:
        """Return the arguments that geev and its query have in common.

        There are no left eigenvectors: their pointer is null.
        """
        values = 0, int(with_vectors), extent, kind, a, extent, complex_kind, w
        return *values, kind, NONE, extent, kind, v, extent, kind

    def arguments(
        work: Any, a: Any, w: Any, info: Any, v: Any = NONE
    ) -> tuple[Any, ...]:
        """Return the arguments of geev for a matrix at the address ``a``."""
        return solver_params(), *arrays(a, w, v), *workspaces.arguments(work), info

    workspaces = workspaces_of(function, *arrays(NONE, NONE, NONE))
    matrix_bytes = n * n * element.size
    sizes = {"a": matrix_bytes, "w": n * element.complex_size, "status": 4}
    if with_vectors:
        sizes["v"] = matrix_bytes
    return each_matrix(SOLVER, function, matrices, sizes, arguments, workspaces)


class _Svd:
    """The parameters of an SVD, and the bytes of one matrix in each of its arrays.

    The arrays are the matrices ``a`` (rows x columns), their singular values ``s``,
    ``status``, and ``u`` and ``v``, whose columns are singular vectors.
    """

    def __init__(self, dtype: str, integers: Mapping[str, int]) -> None:
        """Read the ``integers`` of a call.

        They are ``rows``, ``columns``, the number of ``matrices``, and two flags:
        ``vectors``, whether U and V are computed, and ``full``, whether both are
        square.
        """
        self.element = element = Element(dtype)
        self.rows, self.columns = m, n = integers["rows"], integers["columns"]
        self.matrices = integers["matrices"]
        self.full, self.vectors = integers["full"], integers["vectors"]
        small = min(m, n)
        left, right = (k if self.full else small for k in (m, n))
        a, u, v = (k * element.size for k in (m * n, m * left, n * right))
        s = small * element.real_size
        self.sizes = {"a": a, "s": s, "status": 4, "u": u, "v": v}

    def call(
        self,
        function: str,
        head: Sequence[int],
        matrices: int,
        last: tuple[Any, ...] = (),
    ) -> Call:
        """Prepare ``matrices`` calls of a Jacobi SVD, such as "gesvdj".

        The function's arguments are ``head``, then extents and arrays, workspace and
        status, the method's parameters, and ``last``. A batched function is called
        once.
        """
        function = f"cusolverDn{self.element.letter}{function}"
        m, n = self.rows, self.columns
        last = jacobi_params("Gesvdj"), *last

        def arrays(a: Any, s: Any, u: Any, v: Any) -> tuple[Any, ...]:
            """Return the arguments that the function and its query have in common."""
            return *head, m, n, a, m, s, u, m, v, n

        def arguments(
            work: Any, a: Any, s: Any, info: Any, u: Any, v: Any
        ) -> tuple[Any, ...]:
            """Return the function's arguments for arrays at these addresses.

            The workspace at ``work`` has ``elements``; ``last`` are its last arguments.
            """
            return *arrays(a, s, u, v), work, elements, info, *last

        elements = workspace_elements(
            function, *arrays(NONE, NONE, NONE, NONE), last=last
        )
        workspaces = Workspaces(elements * self.element.size)
        sizes = self.sizes
        return each_matrix(SOLVER, function, matrices, sizes, arguments, workspaces)


def svd_jacobi(dtype: str, integers: Mapping[str, int]) -> Call:
    """Prepare gesvdj: the SVD of each matrix by Jacobi's method.

    ``integers`` and arrays are those of ``_Svd``.
    """
    p = _Svd(dtype, integers)
    econ = 1 - p.full  # cuSOLVER's flag: U and V are not square
    return p.call("gesvdj", (p.vectors, econ), p.matrices)


def svd_batched(dtype: str, integers: Mapping[str, int]) -> Call:
    """Prepare gesvdjBatched: the SVD of all matrices in one call, with square U and V.

    Matrices have at most 32 rows and columns. ``integers`` and arrays are those of
    ``_Svd``.
    """
    p = _Svd(dtype, integers)
    return p.call("gesvdjBatched", (p.vectors,), 1, last=(p.matrices,))


def svd_polar(dtype: str, integers: Mapping[str, int]) -> Call:
    """Prepare gesvdp: the SVD of each matrix by the polar decomposition.

    ``integers`` and arrays are those of ``_Svd``. The method is that of Nakatsukasa and
    Higham, "Stable and efficient spectral divide and conquer algorithms for the
    symmetric eigenvalue decomposition and the SVD", 2013.
    """
    p, function = _Svd(dtype, integers), "cusolverDnXgesvdp"
    m, n = ctypes.c_int64(p.rows), ctypes.c_int64(p.columns)
    kind, real = p.element.type, p.element.real_type

    def arrays(a: Any, s: Any, u: Any, v: Any) -> tuple[Any, ...]:
        """Return the arguments that gesvdp and its query have in common.

        ``kind`` and ``real`` are the cudaDataTypes of ``a`` and of ``s``. gesvdp
        computes min(m, n) singular vectors if ``econ`` is 1, else all.
        """
        econ = 1 - p.full
        shape = (p.vectors, econ, m, n)
        return (*shape, kind, a, m, real, s, kind, u, m, kind, v, n, kind)

    def arguments(
        work: Any, a: Any, s: Any, info: Any, u: Any, v: Any
    ) -> tuple[Any, ...]:
        """Return the arguments of gesvdp for a matrix at the address ``a``."""
        leading = solver_params(), *arrays(a, s, u, v), *workspaces.arguments(work)
        return *leading, info, ctypes.byref(perturbation)

    perturbation = ctypes.c_double()  # cuSOLVER's estimate of the error, not used
    workspaces = workspaces_of(function, *arrays(NONE, NONE, NONE, NONE))
    return each_matrix(SOLVER, function, p.matrices, p.sizes, arguments, workspaces)


SPECTRA: Final[dict[str, Callable[[str, Mapping[str, int]], Call]]] = {
    "syevd": eigh,
    "syevjbatched": eigh_jacobi,
    "geev": partial(eig, True),  # with eigenvectors
    "geevvalues": partial(eig, False),
    "gesvdj": svd_jacobi,
    "gesvdjbatched": svd_batched,
    "gesvdp": svd_polar,
}
"""The provider of each kind of library kernel: the first word of the kernel's name."""
