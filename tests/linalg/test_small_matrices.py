"""Small matrices, which the CPU factors four at a time, one in each lane."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn as af
from arrayfn.scipy import linalg as sl

DTYPES = [np.float32, np.float64]
SIZES = [1, 2, 3, 5, 8, 15, 16, 17, 32, 33]


def random(dtype: Any, *shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def bound(dtype: Any) -> float:
    return 2e-4 if dtype == np.float32 else 1e-11


def close(have: Any, want: Any) -> None:
    assert have.dtype == want.dtype
    scale = max(1.0, float(np.abs(want).max(initial=0.0)))
    assert np.abs(have - want).max(initial=0.0) / scale < bound(want.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_factors_of_a_batch_that_is_not_of_fours(dtype: Any, n: int) -> None:
    x = random(dtype, 7, n, n)
    positive = x @ x.swapaxes(-1, -2) + np.eye(n, dtype=dtype)
    close(af.jit(af.linalg.cholesky)(positive), np.linalg.cholesky(positive))
    lu, pivots = af.jit(sl.lu_factor)(x)
    lower, upper = np.tril(lu, -1) + np.eye(n, dtype=dtype), np.triu(lu)
    product = lower @ upper
    for matrix, swaps in zip(product, pivots, strict=True):
        for row in reversed(range(n)):
            matrix[[row, swaps[row]]] = matrix[[swaps[row], row]]
    close(product, x)
    assert np.abs(lower).max() <= 1
    q, r = af.jit(af.linalg.qr)(x)
    close(q @ r, x)
    close(q.swapaxes(-1, -2) @ q, np.broadcast_to(np.eye(n, dtype=dtype), x.shape))
    assert not np.tril(r, -1).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sides", [1, 3])
@pytest.mark.parametrize("n", [3, 16])
def test_systems_with_each_triangle(dtype: Any, n: int, sides: int) -> None:
    a, b = random(dtype, 5, n, n) + 4 * np.eye(n, dtype=dtype), random(dtype, n, sides)
    b = np.broadcast_to(b, (5, n, sides))
    close(af.jit(af.linalg.solve)(a, b), np.linalg.solve(a, b))
    for lower in (False, True):
        for trans in (0, 1):
            for unit in (False, True):
                triangle = (np.tril if lower else np.triu)(a)
                if unit:
                    k = np.arange(n)
                    triangle = triangle / 16
                    triangle[:, k, k] = 1
                want = np.linalg.solve(
                    triangle.swapaxes(1, 2) if trans else triangle, b
                )
                have = af.jit(
                    lambda a, b, lower=lower, trans=trans, unit=unit: (
                        sl.solve_triangular(
                            a, b, trans=trans, lower=lower, unit_diagonal=unit
                        )
                    )
                )(triangle, b)
                close(have, want)


@pytest.mark.parametrize("shape", [(6, 3), (3, 6), (16, 2), (1, 5)])
def test_matrices_that_are_not_square(shape: tuple[int, int]) -> None:
    x = random(np.float64, 6, *shape)
    for mode in ("reduced", "complete"):
        q, r = af.jit(lambda x, mode=mode: af.linalg.qr(x, mode=mode))(x)
        want_q, want_r = np.linalg.qr(x, mode=mode)
        close(q, want_q)
        close(r, want_r)
    p, lower, upper = af.jit(sl.lu)(x)
    close(p @ lower @ upper, x)


def test_a_matrix_that_is_not_positive_definite_is_nan_and_its_neighbours_are_not() -> (
    None
):
    x = np.tile(np.array([[4.0, 2.0], [2.0, 5.0]]), (6, 1, 1))
    x[1] = -x[1]
    x[4, 1, 1] = np.nan
    factors = af.jit(lambda x: af.linalg.cholesky(x, symmetrize_input=False))(x)
    assert np.isnan(factors[[1, 4]]).all()
    assert np.array_equal(factors[[0, 2, 3, 5]], np.tile([[2.0, 0], [1, 2]], (4, 1, 1)))


def test_only_the_lower_triangle_is_read() -> None:
    x = np.array([[[4.0, np.nan], [2.0, 5.0]]])
    factor = af.jit(lambda x: af.linalg.cholesky(x, symmetrize_input=False))(x)
    assert np.array_equal(factor, [[[2.0, 0.0], [1.0, 2.0]]])


def test_reflections_of_very_large_and_very_small_columns_are_orthonormal() -> None:
    x = random(np.float64, 9, 4, 4)
    x[1] *= 1e200
    x[3, :, 0] *= 1e-170
    x[5] = 0
    x[6, 1:, 0] = 0
    x[8] *= 1e-250
    q, r = af.jit(af.linalg.qr)(x)
    close(q.swapaxes(-1, -2) @ q, np.broadcast_to(np.eye(4), x.shape))
    scales = np.abs(x).max((1, 2))
    scales[5] = 1
    close((q @ r) / scales[:, None, None], x / scales[:, None, None])
    assert np.allclose((q @ r)[3, :, 0], x[3, :, 0], rtol=1e-12, atol=0)


def test_the_bits_of_a_matrix_do_not_depend_on_its_place() -> None:
    x = random(np.float32, 4, 6, 6)
    order = [2, 0, 3, 1, 1, 2, 0]
    for function in (af.linalg.qr, sl.lu_factor, af.linalg.inv):
        given = af.jit(function)(x)
        moved = af.jit(function)(x[order])
        for a, b in zip(af.tree.leaves(given), af.tree.leaves(moved), strict=True):
            assert a[order].tobytes() == b.tobytes()


def test_a_singular_matrix_has_factors() -> None:
    x = np.array([[[0.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 2.0]]])
    lu, pivots = af.jit(sl.lu_factor)(x)
    assert np.array_equal(lu[0], np.zeros((2, 2)))
    assert np.array_equal(lu[1], [[0.0, 1.0], [0.0, 2.0]])
    assert pivots.shape == (2, 2)
