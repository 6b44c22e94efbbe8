"""Kernels that factor small matrices, emulated, and on a GPU."""

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.backends.cuda import missing_here, missing_packages
from arrayfn.backends.cuda.code import kernel_ptx
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.lax import linalg as lax_linalg
from arrayfn.lowering.cuda.solvers import cholesky, jacobi
from arrayfn.lowering.plan import LibraryKernel
from arrayfn.primitives.table import TABLE
from arrayfn.tracing import apply
from tests.lowered_on_gpu import lowered

needs_compiler = pytest.mark.skipif(bool(missing_packages()), reason=missing_packages())

needs_gpu = pytest.mark.skipif(bool(missing_here()), reason=missing_here())
F32, F64 = np.float32, np.float64


def run(function, x):
    compiled = lowered(function, x)
    assert not any(isinstance(k, LibraryKernel) for k in compiled.kernels)
    return run_plan(compiled, [x])


def eigh(x):
    return tuple(anp.linalg.eigh(x))


def symmetric(*shape, dtype=F64, seed=0):
    x = np.random.default_rng(seed).standard_normal(shape)
    return (x + x.swapaxes(-1, -2)).astype(dtype)


def positive(*shape, dtype=F64, seed=0):
    x = np.random.default_rng(seed).standard_normal(shape)
    return (x @ x.swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1])).astype(dtype)


def assert_eigenvectors(x, values, vectors, bound=8):
    """Within ``bound`` times n eps of the norm, orthogonal, and in ascending order."""
    n, eps = x.shape[-1], np.finfo(x.dtype).eps
    wide, v, w = x.astype(F64), vectors.astype(F64), values.astype(F64)
    most = bound * n * eps
    norm = np.abs(wide).sum(-1).max()
    assert np.abs(wide @ v - v * w[..., None, :]).max() <= most * norm
    assert np.abs(v.swapaxes(-1, -2) @ v - np.eye(n)).max() <= most
    assert np.abs(w - np.linalg.eigvalsh(wide)).max() <= most * norm
    assert (np.diff(values) >= 0).all()


@pytest.mark.parametrize(("n", "dtype"), [(1, F64), (3, F32), (8, F64), (9, F64)])
def test_cholesky_factors_of_small_matrices_are_a_kernels(n, dtype):
    x = positive(2, n, n, dtype=dtype)
    (factor,) = run(anp.linalg.cholesky, x)
    bound = 4 * n * np.finfo(dtype).eps
    np.testing.assert_allclose(factor, np.linalg.cholesky(x), bound, bound)
    assert not np.triu(factor, 1).any()


def test_a_matrix_without_a_factor_is_nan_and_its_neighbours_are_not():
    x = positive(4, 5, 5)
    x[0, 3, 3] = -1
    x[2, 4, 1] = np.nan
    (factor,) = run(anp.linalg.cholesky, x)
    assert np.isnan(factor[[0, 2]]).all()
    np.testing.assert_allclose(factor[[1, 3]], np.linalg.cholesky(x[[1, 3]]))


@pytest.mark.parametrize("n", [1, 2, 5])
def test_eigenvectors_of_small_matrices_are_a_kernels(n):
    x = symmetric(2, n, n)
    values, vectors = run(eigh, x)
    assert_eigenvectors(x, values, vectors)
    (alone,) = run(anp.linalg.eigvalsh, x)
    assert alone.tobytes() == values.tobytes()


def test_float32_has_eigenvectors_of_its_own_precision():
    x = symmetric(4, 4, dtype=F32)
    values, vectors = run(eigh, x)
    assert values.dtype == vectors.dtype == F32
    assert_eigenvectors(x, values, vectors)


def test_several_warps_agree_when_all_columns_are_orthogonal():
    x = np.diag(np.arange(9.0, 0, -1))
    x[1, 0] = x[0, 1] = x[7, 4] = x[4, 7] = 0.5
    values, vectors = run(eigh, x)
    assert_eigenvectors(x, values, vectors)


@pytest.mark.parametrize(
    "x",
    [
        np.zeros((4, 4)),
        np.eye(4),
        np.ones((4, 4)) * 1e-200,
        symmetric(4, 4) * 1e200,
        np.kron(np.eye(2), [[0.0, 2.0], [2.0, 0.0]]),
    ],
    ids=["zeros", "equal", "tiny", "huge", "opposite"],
)
def test_eigenvalues_that_are_equal_opposite_or_of_any_size(x):
    values, vectors = run(eigh, x)
    norm = np.abs(x).max() or 1.0
    assert_eigenvectors(x / norm, values / norm, vectors)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_no_eigenvalues_are_nan(wrong):
    x = np.stack([np.eye(3), np.eye(3)])
    x[0, 2, 1] = wrong
    values, vectors = run(eigh, x)
    assert np.isnan(values[0]).all()
    assert np.isnan(vectors[0]).all()
    np.testing.assert_array_equal(values[1], 1)


def svd(x):
    return tuple(anp.linalg.svd(x))


def assert_decomposed(x, u, s, vh):
    eps, k = np.finfo(x.dtype).eps, min(x.shape)
    norm = np.abs(x).max() or 1.0
    assert np.abs((u[:, :k] * s) @ vh[:k] - x).max() <= 50 * eps * norm
    for side in (u, vh.T):
        gram = side.T @ side
        assert np.abs(gram - np.eye(len(gram))).max() <= 50 * eps
    assert (np.diff(s) <= 0).all()
    np.testing.assert_allclose(
        s, np.linalg.svd(x, compute_uv=False), atol=50 * eps * norm
    )


@pytest.mark.parametrize(
    "x",
    [
        np.random.default_rng(0).standard_normal((5, 3)),
        np.random.default_rng(0).standard_normal((2, 4)),
        np.outer([1.0, 2.0, 3.0], [1.0, -1.0, 2.0]),
        np.ones((4, 4)),
        np.zeros((3, 2)),
        np.diag([1.0, 1e-20, 1e20]),
        np.full((2, 2), 1e-200),
    ],
    ids=["tall", "wide", "rank one", "ones", "zeros", "graded", "tiny"],
)
def test_singular_vectors_of_small_matrices_are_a_kernels(x):
    u, s, vh = run(svd, x)
    assert_decomposed(x, u, s, vh)
    (alone,) = run(anp.linalg.svdvals, x)
    np.testing.assert_allclose(alone, s, rtol=1e-14, atol=1e-14 * s.max())


def test_no_singular_values_are_nan():
    x = np.stack([np.eye(2), np.eye(2)])
    x[0, 0, 1] = np.nan
    for result in run(svd, x):
        assert np.isnan(result[0]).all()
        assert np.isfinite(result[1]).all()


def test_only_the_lower_triangle_is_read():
    x = positive(3, 3)
    upper = np.triu(np.full((3, 3), np.nan), 1)
    for name in ("cholesky", "eigvalsh"):
        one, other = (run(lambda x: apply(TABLE[name], x), y) for y in (x, x + upper))  # noqa: B023
        assert np.array_equal(one[0], other[0])


@needs_compiler
def test_rows_and_columns_lie_in_registers():
    small = cholesky.small_factors
    for n in (16, 64):
        x = af.ir.Var(af.ir.ArrayType((n, n), dtypes.float32))
        w = af.ir.Var(af.ir.ArrayType((n,), dtypes.float32))
        for call in (small(x), jacobi.eigenvectors(x, w)):
            ptx = kernel_ptx(call.kernel("small"), (9, 0))
            assert ".local" not in ptx


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("dtype", [F32, F64], ids=["f32", "f64"])
def test_on_a_gpu_small_matrices_have_factors_and_eigenvectors(dtype):
    for count, n in ((1, 1), (5, 7), (300, 16), (3, 17), (40, 33), (2, 64)):
        x = positive(count, n, n, dtype=dtype)
        factor = np.asarray(af.jit(anp.linalg.cholesky, device="cuda")(x))
        bound = 8 * n * np.finfo(dtype).eps
        np.testing.assert_allclose(factor, np.linalg.cholesky(x), bound, bound)
        x = symmetric(count, n, n, dtype=dtype)
        decompose = af.jit(eigh, device="cuda")
        values, vectors = map(np.asarray, decompose(x))
        assert_eigenvectors(x, values, vectors)
        u, s, vh = map(np.asarray, af.jit(svd, device="cuda")(x[:, :, : n // 2 + 1]))
        for one in zip(x[:, :, : n // 2 + 1], u, s, vh, strict=True):
            assert_decomposed(*one)
        again = [np.asarray(y).tobytes() for y in decompose(x)]
        assert again == [values.tobytes(), vectors.tobytes()]


@pytest.mark.parametrize("dtype", [F32, F64, np.complex64])
def test_pivots_do_not_lose_nan(dtype):
    x = np.stack([np.diag([1.0, 2.0, 3.0]).astype(dtype)] * 2)
    x[0, 2, 2] = np.nan
    compiled = lowered(
        lambda x, b: (
            anp.linalg.inv(x),
            anp.linalg.det(x),
            anp.linalg.solve(x, b),
            anp.linalg.solve(anp.matrix_transpose(x), b),
        ),
        x,
        np.ones((3, 2), dtype),
    )
    inverse, determinant, *solutions = run_plan(compiled, [x, np.ones((3, 2), dtype)])
    # LAPACK would find factors that are finite but for the corner.
    for result in (inverse, determinant, *solutions):
        assert np.isnan(result[0]).all()
        assert np.isfinite(result[1]).all()
    np.testing.assert_allclose(inverse[1], np.diag([1, 1 / 2, 1 / 3]), 1e-6)
    assert determinant[1] == 6


def test_factors_hold_nan_where_their_matrix_does():
    x = np.stack([np.eye(3), np.eye(3)])
    x[0, 2, 2] = np.nan
    factors, pivots, order = run_plan(lowered(lax_linalg.lu, x), [x])
    assert np.isnan(factors[0]).all()
    np.testing.assert_array_equal(factors[1], np.eye(3))
    np.testing.assert_array_equal(order[1], [0, 1, 2])
    np.testing.assert_array_equal(pivots[1], [0, 1, 2])


def test_nan_is_looked_for_where_a_matrix_is_moved_anyway():
    x, b = np.ones((9, 4, 4), F32), np.ones((9, 4, 2), F32)
    for function, launches in ((anp.linalg.inv, 9), (anp.linalg.det, 6)):
        assert len(lowered(function, x).plan.steps) == launches
    assert len(lowered(anp.linalg.solve, x, b).plan.steps) == 7


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("n", [1, 4, 40, 300])
@pytest.mark.parametrize("dtype", [F32, F64, np.complex64])
def test_on_a_gpu_pivots_do_not_lose_nan(n, dtype):
    one = np.eye(n, dtype=dtype)
    x = np.stack([one] * 3)
    x[0, n // 2, n - 1] = np.nan
    x[2] = np.nan
    for function in (anp.linalg.inv, lambda x: anp.linalg.solve(x, one)):
        result = np.asarray(af.jit(function, device="cuda")(x))
        assert np.isnan(result[[0, 2]]).all()
        np.testing.assert_array_equal(result[1], one)
    determinants = np.asarray(af.jit(anp.linalg.det, device="cuda")(x))
    assert np.isnan(determinants[[0, 2]]).all()
    assert determinants[1] == 1
