"""Unitary reductions of square matrices to triangular, Hessenberg, tridiagonal form.

As in JAX they have no derivatives. Differentiate eigenvalues, or functions of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from arrayfn import dtypes
from arrayfn.ir import ArrayType
from arrayfn.primitives import linalg_matrices as m
from arrayfn.primitives.base import (
    Array,
    Sample,
    Tolerance,
    not_differentiable,
)


def _for_each_matrix(
    function: Callable[[Array], Sequence[Array]], x: Array, types: Sequence[ArrayType]
) -> tuple[Array, ...]:
    """Apply ``function`` to each matrix, and stack the results.

    ``x`` has the transposes of the matrices; ``function`` is given the matrices,
    column-major. ``types`` are the types of the stacked results. The results of empty
    matrices are zeros.
    """
    outputs = tuple(np.zeros(t.shape, t.dtype) for t in types)
    batch = x.shape[:-2]
    for member in np.ndindex(*batch):
        if x.shape[-1]:
            for output, part in zip(outputs, function(x[member].T), strict=True):
                output[member] = part
    return outputs


# hessenberg


def _hessenberg_types(x: ArrayType) -> tuple[ArrayType, ArrayType]:
    """Type rule: LAPACK's packed result of gehrd, transposed, and the scales (tau)."""
    n = m.check_square("hessenberg", x)
    return x.with_shape(x.shape), x.with_shape((*x.shape[:-2], max(0, n - 1)))


def _hessenberg_reference(x: Array) -> tuple[Array, ...]:
    """Compute LAPACK's gehrd of each matrix. ``x`` and the result have transposes."""

    def reduced(matrix: Array) -> tuple[Array, Array]:
        """Return the packed matrix, transposed, and the scales of the reflections."""
        a, taus, _ = m.lapack("gehrd", x.dtype)(matrix)
        return a.T, taus

    types = _hessenberg_types(ArrayType(x.shape, x.dtype))
    return _for_each_matrix(reduced, x, types)


def _samples() -> Iterable[Sample]:
    """Yield square matrices of each dtype, and a batch, for the table tests."""
    for position, dtype in enumerate(m.DTYPES):
        shape = (2, 4, 4) if position == 1 else (4, 4)
        yield Sample((m.random_matrices(dtype, shape, 311 + position),), {})


hessenberg = m.matrix_primitive(
    "hessenberg",
    types=_hessenberg_types,
    reference=_hessenberg_reference,
    jvp=not_differentiable("the Hessenberg form has no derivative here"),
    samples=_samples,
    tolerance=Tolerance(float32=2e-5, float64=1e-13),
    in_place=True,
    doc="Hessenberg matrices, with the Householder vectors stored below the first "
    "subdiagonal, and the scales of the reflections. All are column-major.",
)


# tridiagonal


def _tridiagonal_types(x: ArrayType) -> tuple[ArrayType, ...]:
    """Type rule: (packed matrices, diagonals, subdiagonals, scales of reflections).

    The packed matrices have the Householder vectors, and are transposed like ``x``.
    """
    n = m.check_square("tridiagonal", x)
    batch, real = x.shape[:-2], dtypes.real_of(x.dtype)
    sides = (*batch, max(0, n - 1))
    return (
        x.with_shape(x.shape),
        ArrayType((*batch, n), real),
        ArrayType(sides, real),
        x.with_shape(sides),
    )


def _tridiagonal_reference(x: Array) -> tuple[Array, ...]:
    """Compute LAPACK's sytrd or hetrd of the lower triangle of each matrix."""

    def reduced(matrix: Array) -> tuple[Array, ...]:
        """Return the Householder vectors, both diagonals and the scales of a matrix."""
        name = "hetrd" if x.dtype.kind == "c" else "sytrd"
        a, d, e, taus, _ = m.lapack(name, x.dtype)(matrix, lower=1)
        return a.T, d, e, taus

    types = _tridiagonal_types(ArrayType(x.shape, x.dtype))
    return _for_each_matrix(reduced, x, types)


tridiagonal = m.matrix_primitive(
    "tridiagonal",
    types=_tridiagonal_types,
    reference=_tridiagonal_reference,
    jvp=not_differentiable("the tridiagonal form has no derivative here"),
    samples=_samples,
    tolerance=Tolerance(float32=2e-5, float64=1e-13),
    in_place=True,
    doc="Hermitian matrices reduced to tridiagonal form, with the Householder vectors "
    "in the lower triangle, which alone is read; diagonals, subdiagonals, and scales "
    "of the reflections. Matrices are column-major.",
)


# schur


def _schur_types(x: ArrayType) -> tuple[ArrayType, ArrayType]:
    """Type rule: the triangular matrices T and the unitary Z, transposed like ``x``."""
    m.check_square("schur", x)
    return x.with_shape(x.shape), x.with_shape(x.shape)


def _schur_reference(x: Array) -> tuple[Array, ...]:
    """Compute LAPACK's gees of each matrix.

    T and Z are NaN where gees fails, or where a number is not finite.
    """

    def reduced(matrix: Array) -> tuple[Array, Array]:
        """Return T and Z of one matrix, transposed."""
        if not np.isfinite(matrix).all():
            nothing = np.full(matrix.shape, np.nan, x.dtype)
            return nothing, nothing
        # SciPy's gees takes a function that selects eigenvalues; it is not called.
        # Of the results, the dimension, the eigenvalues and the workspace are not used.
        t, *_, z, _, info = m.lapack("gees", x.dtype)(lambda *_: None, matrix)
        if info:
            t, z = t * np.nan, z * np.nan
        return t.T, z.T

    return _for_each_matrix(reduced, x, _schur_types(ArrayType(x.shape, x.dtype)))


schur = m.matrix_primitive(
    "schur",
    types=_schur_types,
    reference=_schur_reference,
    jvp=not_differentiable("the Schur form has no derivative here"),
    samples=_samples,
    tolerance=Tolerance(float32=2e-4, float64=1e-12),
    in_place=True,
    doc="Upper triangular matrices T, with blocks of two rows for conjugate "
    "eigenvalues of real matrices, and unitary Z with Z T Z^H the operand. All are "
    "column-major.",
)
