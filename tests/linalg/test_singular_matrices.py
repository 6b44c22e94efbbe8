"""Determinants' derivatives of any rank, and roots of singular matrices."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.scipy import linalg

RNG = np.random.default_rng(23)
det = anp.linalg.det


def cofactors(x):
    n = len(x)
    return np.array(
        [
            [
                (-1) ** (i + j) * np.linalg.det(np.delete(np.delete(x, i, 0), j, 1))
                for j in range(n)
            ]
            for i in range(n)
        ]
    )


@pytest.mark.parametrize("n", [2, 3, 4, 6])
def test_the_gradient_of_det_is_the_matrix_of_cofactors_at_any_rank(n):
    gradient = af.grad(det)
    for rank in range(n + 1):
        for x in (
            RNG.normal(size=(n, rank)) @ RNG.normal(size=(rank, n)),
            1.0 * RNG.integers(-2, 3, (n, rank)) @ RNG.integers(-2, 3, (rank, n)),
        ):
            want = cofactors(x)
            size = max(1.0, np.abs(want).max())
            t = RNG.normal(size=(n, n))
            np.testing.assert_allclose(gradient(x), want, 0, 1e-12 * size)
            np.testing.assert_allclose(af.jit(gradient)(x), want, 0, 1e-12 * size)
            forward = af.jvp(det, (x,), (t,))[1]
            np.testing.assert_allclose(forward, (want * t).sum(), 0, 1e-11 * size)


def test_a_pivot_of_zero_before_the_last():
    x = np.array([[0.0, 1, 2, 3], [0, 4, 5, 6], [0, 7, 8, 10], [0, 1, 0, 1]])
    np.testing.assert_allclose(af.grad(det)(x), cofactors(x), 0, 1e-12)
    batch = np.stack([np.eye(4), np.zeros((4, 4)), x])
    want = np.stack([cofactors(a) for a in batch])
    got = af.jit(af.vmap(af.grad(det)))(batch)
    np.testing.assert_allclose(got, want, 0, 1e-12)
    got = af.grad(lambda a: anp.sum(det(a)))(batch)
    np.testing.assert_allclose(got, want, 0, 1e-12)


def test_the_second_derivative_of_det():
    of_two = af.hessian(det)(np.zeros((2, 2))).reshape(4, 4)
    np.testing.assert_array_equal(
        of_two, [[0, 0, 0, 1], [0, 0, -1, 0], [0, -1, 0, 0], [1, 0, 0, 0]]
    )
    assert not af.hessian(det)(np.zeros((3, 3))).any()
    x, t = RNG.normal(size=(2, 4, 4))
    along = af.jvp(af.grad(det), (x,), (t,))[1]
    step = 1e-5
    difference = cofactors(x + step * t) - cofactors(x - step * t)
    np.testing.assert_allclose(along, difference / (2 * step), 1e-7, 1e-7)


@pytest.mark.parametrize("n", [3, 4])
def test_det_in_a_branch_is_differentiated_twice(n):
    def chosen(x):
        return lax.cond(x[0, 0] > -10.0, det, anp.sum, x)

    x = RNG.normal(size=(n, n))
    np.testing.assert_allclose(af.hessian(chosen)(x), af.hessian(det)(x), 1e-12, 1e-12)


@pytest.mark.parametrize(
    "a",
    [
        np.zeros((3, 3)),
        np.ones((4, 4)),
        np.diag([1.0, 0.0, 0.0]),
        np.diag([1.0, 1e-20, 0.0, 0.0]),
        np.array([[1.0, 5.0], [0.0, 0.0]]),
        np.array([[4.0, 1.0, 2.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]),
    ],
)
def test_the_root_of_a_singular_matrix(a):
    for root in (linalg.sqrtm(a), af.jit(linalg.sqrtm)(a)):
        np.testing.assert_allclose(root @ root, a, 0, 1e-14)


def test_a_matrix_without_a_root_gives_nan():
    assert np.isnan(linalg.sqrtm(np.array([[0.0, 1.0], [0.0, 0.0]]))).any()
