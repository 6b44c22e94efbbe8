"""Eigenvalues and eigenvectors of Hermitian and general matrices.

Derivatives: Giles, An extended collection of matrix derivative results (2008), section
3.1; of normalised eigenvectors, Boeddeker et al., On the computation of complex-valued
gradients with application to statistically optimum beamforming (2017), section 4.2.
If eigenvalues are equal, the derivatives of their eigenvectors are not finite.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Atom
from arrayfn.primitives import complex_numbers, conversion, discrete
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import linalg_matrices as m
from arrayfn.primitives.base import (
    Array,
    Atoms,
    JvpWithOutputs,
    Sample,
    Tangents,
    Tolerance,
    WithTangents,
)
from arrayfn.primitives.linalg_lu import solve
from arrayfn.primitives.reductions import argmax, reduce_sum
from arrayfn.primitives.rules import (
    jvp_alone,
)


def _values(x: ArrayType, dtype: Any) -> ArrayType:
    """Return the type of the eigenvalues of the matrices of ``x``, of ``dtype``."""
    return ArrayType(x.shape[:-1], dtype)


def _filled(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an array of NaN, the result for matrices that are not finite."""
    return np.full(shape, np.nan, dtype)


def differences(w: Atom) -> Atom:
    """Emit matrices with ``1 / (w_j - w_i)`` at [i, j], and zeros on the diagonal.

    ``w`` has the eigenvalues along the last axis.
    """
    n = w.type.shape[-1]
    gaps = e.sub(m.as_row(w, n), m.as_column(w, n))
    # On the diagonal: 1 / (0 + 1) - 1 = 0.
    unit = m.identity(gaps.type)
    return e.sub(e.reciprocal(e.add(gaps, unit)), unit)


# eigh


def _eigh_types(x: ArrayType) -> tuple[ArrayType, ArrayType]:
    """Type rule: the conjugated eigenvectors as rows (V^H); real eigenvalues."""
    m.check_square("eigh", x)
    return x.with_shape(x.shape), _values(x, dtypes.real_of(x.dtype))


def _eigh_reference(x: Array) -> tuple[Array, Array]:
    """Compute ``np.linalg.eigh`` of each matrix.

    Returns (V^H, eigenvalues), NaN where NumPy fails or a number is not finite.
    """
    vectors = _filled(x.shape, x.dtype)
    values = _filled(x.shape[:-1], dtypes.real_of(x.dtype))
    flat = values.reshape(len(m.each(x)), x.shape[-1])
    for vh, w, matrix in zip(m.each(vectors), flat, m.each(x), strict=True):
        # For some matrices with a NaN, LAPACK returns zeros as eigenvalues.
        if len(matrix) > 1 and not np.isfinite(np.tril(matrix)).all():
            continue
        try:
            w[...], v = np.linalg.eigh(matrix)
            vh[...] = v.conj().T
        except np.linalg.LinAlgError:
            continue
    return vectors, values


def _rotated(t: Atom, vh: Atom) -> Atom:
    """Emit V^H dA V, where ``t`` is dA, of which the lower triangle is read.

    ``vh`` is V^H.
    """
    return m.multiply(m.multiply(vh, m.hermitian(t)), m.adjoint(vh))


def _eigh_jvp(x: Atom, vh: Atom, w: Atom, t: Atom) -> list[Atom | None]:
    """The jvp rule: dw = diag(X) and dV = V (F * X), where X = V^H dA V.

    F_ij = 1 / (w_j - w_i), and 0 on the diagonal. The output is V^H, so the tangent is
    (F * X)^H V^H.
    """
    inner = _rotated(t, vh)
    factor = conversion.as_dtype(differences(w), inner.type.dtype)
    rotation = m.adjoint(e.mul(factor, inner))
    return [m.multiply(rotation, vh), m.real_part(m.diagonal(inner))]


def _symmetric_samples() -> Iterable[Sample]:
    """Yield real matrices, whose lower triangle is read, for the table tests."""
    for position, dtype in enumerate(m.DTYPES[:2]):
        x = m.random_matrices(dtype, (3, 3), 271 + position)
        yield Sample((x,), {})
    x = m.random_matrices(dtypes.float32, (2, 4, 4), 273)
    yield Sample((x,), {}, differentiate=())


def _values_samples() -> Iterable[Sample]:
    """Yield the symmetric samples, and complex ones.

    Eigenvalues have no arbitrary phase as complex eigenvectors do, so tests can compare
    them.
    """
    yield from _symmetric_samples()
    for position, dtype in enumerate(m.DTYPES[2:]):
        yield Sample((m.random_matrices(dtype, (3, 3), 275 + position),), {})


eigh = m.matrix_primitive(
    "eigh",
    types=_eigh_types,
    reference=_eigh_reference,
    jvp=jvp_alone(_eigh_jvp),
    samples=_symmetric_samples,
    tolerance=Tolerance(float32=5e-5, float64=1e-13),
    in_place=True,
    doc="The eigenvectors of Hermitian matrices as the rows of V^H, and the "
    "eigenvalues in ascending order. The lower triangle is read.",
)


def _eigvalsh_types(x: ArrayType) -> ArrayType:
    """Type rule: the real eigenvalues of each square matrix."""
    m.check_square("eigvalsh", x)
    return _values(x, dtypes.real_of(x.dtype))


def _eigvalsh_jvp(primals: Atoms, tangents: Tangents) -> WithTangents:
    """The jvp rule: the eigenvalues by ``eigh``, and dw = diag(V^H dA V)."""
    vh, w = eigh(*primals)
    (t,) = tangents
    assert t is not None
    return [w], [m.real_part(m.diagonal(_rotated(t, vh)))]


eigvalsh = m.matrix_primitive(
    "eigvalsh",
    types=_eigvalsh_types,
    reference=lambda x: _eigh_reference(x)[1],
    jvp=JvpWithOutputs(_eigvalsh_jvp),
    samples=_values_samples,
    tolerance=Tolerance(float32=5e-5, float64=1e-13),
    doc="The eigenvalues of Hermitian matrices in ascending order. The lower triangle "
    "is read.",
)


# eig


def _eig_types(x: ArrayType) -> tuple[ArrayType, ArrayType]:
    """Type rule: the eigenvectors as rows, and the eigenvalues; both are complex."""
    m.check_square("eig", x)
    dtype = dtypes.complex_of(x.dtype)
    return ArrayType(x.shape, dtype), _values(x, dtype)


def _eig_reference(x: Array) -> tuple[Array, Array]:
    """Compute LAPACK's geev of each matrix; ``x`` has the transposes.

    Eigenvectors (as rows) and eigenvalues are NaN where geev fails, or where a number
    is not finite.
    """
    dtype = dtypes.complex_of(x.dtype)
    vectors, values = _filled(x.shape, dtype), _filled(x.shape[:-1], dtype)
    flat = values.reshape(len(m.each(x)), x.shape[-1])
    # In x's own dtype, as kernels do; otherwise vectors may have other signs.
    geev = m.lapack("geev", x.dtype)
    for vt, w, matrix in zip(m.each(vectors), flat, m.each(x), strict=True):
        if not np.isfinite(matrix).all():
            continue
        scale = _scale(matrix)
        # Of complex matrices there is one array of eigenvalues; of real ones there are
        # two, the real and the imaginary parts, and the vectors are packed.
        *eigenvalue_parts, _, v, failed = geev(matrix.T / scale, compute_vl=0)
        if failed:
            continue
        w[...] = (
            eigenvalue_parts[0]
            if len(eigenvalue_parts) == 1
            else eigenvalue_parts[0] + 1j * eigenvalue_parts[1]
        )
        w *= scale
        vt[...] = (
            v if len(eigenvalue_parts) == 1 else _unpacked(v, eigenvalue_parts[1])
        ).T
    return vectors, values


def _scale(matrix: Array) -> Any:
    """Return the power of two to divide ``matrix`` by before geev.

    Without this, geev itself scales matrices with very large or small elements. Returns
    1 if the largest element is of moderate size, else a power of two near it.
    """
    magnitude = np.abs(matrix).max(initial=0)
    limits = np.finfo(magnitude.dtype)
    exponent = max(int(np.frexp(magnitude)[1]), limits.minexp + 1) - 1
    needs_no_scale = not magnitude or abs(exponent) <= limits.maxexp // 4
    return magnitude.dtype.type(1 if needs_no_scale else np.ldexp(1.0, exponent))


def _unpacked(packed: Array, imaginary: Array) -> Array:
    """Convert the vectors that geev returns for real matrices to complex vectors.

    ``imaginary`` are the imaginary parts of the eigenvalues. For a conjugate pair k, k
    + 1, columns k and k + 1 of ``packed`` are the real and imaginary part of vector k.
    """
    vectors = packed.astype(dtypes.complex_of(packed.dtype))
    for k in np.flatnonzero(imaginary > 0):
        vectors[:, k] = packed[:, k] + 1j * packed[:, k + 1]
        vectors[:, k + 1] = vectors[:, k].conj()
    return vectors


def _eig_jvp(x: Atom, vt: Atom, w: Atom, t: Atom) -> list[Atom | None]:
    """The jvp rule: dw = diag(X) and dV = V (F * X) - V diag(r), where X = V^-1 dA V.

    F is ``differences(w)``. The complex number r_k is such that vector k keeps its
    norm, and its largest element stays real. ``x``, ``vt`` and ``t`` are the transposes
    of A, V and dA.
    """
    inner = _similar(t, vt)
    unnormalised = m.multiply(m.transpose_matrices(e.mul(differences(w), inner)), vt)
    n = w.type.shape[-1]
    axes = (vt.type.ndim - 1,)
    norm_change = reduce_sum(
        m.real_part(e.mul(m.conjugate(vt), unnormalised)), axes=axes
    )
    size = reduce_sum(m.real_part(e.mul(m.conjugate(vt), vt)), axes=axes)
    norm_change = e.div(norm_change, size)
    argmax_row = argmax(
        complex_numbers.complex_abs(vt), axis=axes[0], dtype=dtypes.int32
    )
    _, column = m.positions(vt.type.shape)
    is_largest = discrete.eq(column, m.as_column(argmax_row, n))
    zero = m.constant(0, vt)
    real_one = m.real_part(reduce_sum(e.select(is_largest, vt, zero), axes=axes))
    turning = complex_numbers.imag(
        reduce_sum(e.select(is_largest, unnormalised, zero), axes=axes)
    )
    # r: the real part restores the norm, the imaginary part the phase.
    rate = complex_numbers.make_complex(norm_change, e.div(turning, real_one))
    return [e.sub(unnormalised, e.mul(m.as_column(rate, n), vt)), m.diagonal(inner)]


def _similar(t: Atom, vt: Atom) -> Atom:
    """Emit V^-1 dA V, where ``t`` and ``vt`` are the transposes of dA and V."""
    v = m.transpose_matrices(vt)
    change = m.multiply(m.transpose_matrices(conversion.as_dtype(t, vt.type.dtype)), v)
    return solve(change, v, transpose=False, conjugate=False)


def _eigvals_samples() -> Iterable[Sample]:
    """Yield matrices with well-conditioned eigenvalues, for the table tests."""
    # Real positive matrices have real eigenvalues. NumPy computes in double precision,
    # which can change the phase and the order of the vectors of other matrices.
    for dtype in m.DTYPES[:2]:
        yield Sample((m.random_matrices(dtype, (2, 2), 281, low=0.5),), {})
    for position, dtype in enumerate(m.DTYPES[2:]):
        yield Sample((m.random_matrices(dtype, (3, 3), 282 + position),), {})
    yield Sample((m.random_matrices(dtypes.float64, (2, 4, 4), 286),), {})


def _eig_samples() -> Iterable[Sample]:
    """Yield the samples of eigvals; without derivatives if vectors are not unique."""
    # The vectors of conjugate pairs, which the real 4x4 sample has, may have either
    # sign.
    for sample in _eigvals_samples():
        pairs = sample.inputs[0].shape[-1] == 4
        yield Sample(sample.inputs, {}, differentiate=() if pairs else None)


eig = m.matrix_primitive(
    "eig",
    types=_eig_types,
    reference=_eig_reference,
    jvp=jvp_alone(_eig_jvp),
    samples=_eig_samples,
    tolerance=Tolerance(float32=2e-4, float64=1e-12),
    doc="The eigenvectors of square matrices as rows, and the eigenvalues, all "
    "complex. The operand is column-major: it is the transposed matrices.",
)


def _eigvals_types(x: ArrayType) -> ArrayType:
    """Type rule: the complex eigenvalues of each square matrix."""
    m.check_square("eigvals", x)
    return _values(x, dtypes.complex_of(x.dtype))


def _eigvals_jvp(primals: Atoms, tangents: Tangents) -> WithTangents:
    """The jvp rule: the eigenvalues by ``eig``, and dw = diag(V^-1 dA V)."""
    vt, w = eig(*primals)
    (t,) = tangents
    assert t is not None
    return [w], [m.diagonal(_similar(t, vt))]


eigvals = m.matrix_primitive(
    "eigvals",
    types=_eigvals_types,
    reference=lambda x: _eig_reference(x)[1],
    jvp=JvpWithOutputs(_eigvals_jvp),
    samples=_eigvals_samples,
    tolerance=Tolerance(float32=2e-4, float64=1e-12),
    doc="The eigenvalues of square matrices, complex. The operand is column-major: it "
    "is the transposed matrices.",
)
