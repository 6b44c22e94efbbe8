"""What is Hermitian is read in one triangle, which ``lower`` names, as in SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg as theirs

import arrayfn as af
from arrayfn.scipy import linalg as ours

RNG = np.random.default_rng(7)


def of_one_triangle(lower: bool, dtype: type) -> Any:
    """A positive definite matrix whose other triangle holds what must not be read."""
    a = RNG.normal(size=(4, 4)).astype(dtype)
    if dtype is complex:
        a = a + 1j * RNG.normal(size=(4, 4))
    a = a @ a.conj().T + np.eye(4)
    other = np.triu_indices(4, 1) if lower else np.tril_indices(4, -1)
    a[other] = 77.0
    return a


BOTH = pytest.mark.parametrize("lower", [True, False])
DTYPES = pytest.mark.parametrize("dtype", [float, complex])


@BOTH
@DTYPES
def test_cholesky_reads_one_triangle(lower: bool, dtype: type) -> None:
    a = of_one_triangle(lower, dtype)
    want = theirs.cholesky(a, lower=lower)
    np.testing.assert_allclose(ours.cholesky(a, lower=lower), want, 1e-12, 1e-12)
    factor, said = ours.cho_factor(a, lower)
    assert said is lower
    np.testing.assert_allclose(factor, want, 1e-12, 1e-12)


@BOTH
@DTYPES
@pytest.mark.parametrize("kind", ["pos", "sym", "her"])
def test_solve_reads_one_triangle(kind: str, lower: bool, dtype: type) -> None:
    a, b = of_one_triangle(lower, dtype), RNG.normal(size=4)
    want = theirs.solve(a, b, lower=lower, assume_a=kind)
    have = af.jit(lambda a, b: ours.solve(a, b, lower=lower, assume_a=kind))(a, b)
    np.testing.assert_allclose(have, want, 1e-10, 1e-10)


@BOTH
@DTYPES
def test_eigenvalues_are_of_one_triangle(lower: bool, dtype: type) -> None:
    a, b = of_one_triangle(lower, dtype), of_one_triangle(lower, dtype)
    want = theirs.eigvalsh(a, lower=lower)
    np.testing.assert_allclose(ours.eigvalsh(a, lower=lower), want, 1e-11)
    np.testing.assert_allclose(ours.eigh(a, lower=lower)[0], want, 1e-11)
    want = theirs.eigvalsh(a, b, lower=lower)
    np.testing.assert_allclose(ours.eigvalsh(a, b, lower=lower), want, 1e-9)


def test_the_gradient_of_cholesky_is_that_of_one_triangle() -> None:
    a = of_one_triangle(True, float)
    gradient = af.grad(lambda a: (ours.cholesky(a, lower=True) ** 3).sum())(a)
    np.testing.assert_array_equal(gradient[np.triu_indices(4, 1)], 0.0)
    direction, step = RNG.normal(size=(4, 4)), 1e-6

    def along(t: float) -> float:
        return (np.linalg.cholesky(a + t * direction) ** 3).sum()

    slope = (along(step) - along(-step)) / (2 * step)
    np.testing.assert_allclose((gradient * direction).sum(), slope, 1e-6)


@BOTH
@pytest.mark.parametrize("shape", [(4,), (4, 3), (2, 4, 3)])
def test_cho_solve_takes_a_batch(shape: tuple[int, ...], lower: bool) -> None:
    a = of_one_triangle(lower, float)
    a, b = np.stack([a, 2 * a]), RNG.normal(size=shape)
    want = theirs.cho_solve((theirs.cho_factor(a, lower)[0], lower), b)
    have = ours.cho_solve(ours.cho_factor(a, lower), b)
    np.testing.assert_allclose(have, want, 1e-10, 1e-10)
