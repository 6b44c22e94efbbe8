"""Distributions drawn by rejection or inversion in loops, and those made of them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special as sp
import scipy.stats as st

import arrayfn as af
from arrayfn import random
from arrayfn.errors import ArgumentError, ShapeError

KEY = random.key(23)
N = 4000
LEVEL = 1e-3

CONTINUOUS = {
    "gamma of 0.05": (lambda k, s, d: random.gamma(k, 0.05, s, d), st.gamma(0.05)),
    "gamma of 1": (lambda k, s, d: random.gamma(k, 1.0, s, d), st.gamma(1)),
    "gamma of 300": (lambda k, s, d: random.gamma(k, 300.0, s, d), st.gamma(300)),
    "loggamma": (
        lambda k, s, d: random.loggamma(k, 0.7, s, d),
        st.loggamma(0.7),
    ),
    "beta": (lambda k, s, d: random.beta(k, 0.3, 2.0, s, d), st.beta(0.3, 2)),
    "t": (lambda k, s, d: random.t(k, 3.0, s, d), st.t(3)),
    "chisquare": (lambda k, s, d: random.chisquare(k, 3.0, s, d), st.chi2(3)),
    "f": (lambda k, s, d: random.f(k, 3.0, 7.0, s, d), st.f(3, 7)),
    "generalized_normal": (
        lambda k, s, d: random.generalized_normal(k, 1.5, s, d),
        st.gennorm(1.5),
    ),
    "dirichlet": (
        lambda k, s, d: random.dirichlet(k, np.array([0.3, 1.0, 2.0]), s, d)[..., 0],
        st.beta(0.3, 3),
    ),
    "ball": (
        lambda k, s, d: (
            np.linalg.norm(random.ball(k, 3, shape=s, dtype=d), axis=-1) ** 3
        ),
        st.uniform(),
    ),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_samples_have_their_distribution(name):
    draw, distribution = CONTINUOUS[name]
    for dtype in (np.float32, np.float64):
        sample = draw(KEY, (N,), dtype)
        assert sample.dtype == dtype
        assert st.kstest(sample, distribution.cdf).pvalue > LEVEL


def chi_square(sample, distribution):
    """The p-value of counts near the mean, and of all others together."""
    mean, spread = distribution.mean(), distribution.std()
    values = np.arange(max(0, int(mean - 4 * spread)), int(mean + 4 * spread) + 1)
    observed = np.array([(sample == v).sum() for v in values])
    expected = distribution.pmf(values) * sample.size
    frequent = expected > 5
    observed = np.append(observed[frequent], sample.size - observed[frequent].sum())
    expected = np.append(expected[frequent], sample.size - expected[frequent].sum())
    if expected[-1] < 1e-6:
        assert observed[-1] == 0
        observed, expected = observed[:-1], expected[:-1]
    return st.chisquare(observed, expected).pvalue


@pytest.mark.parametrize("mean", [0.01, 3.0, 9.99, 10.0, 55.0, 1000.0])
def test_poisson(mean):
    sample = random.poisson(KEY, mean, (N,))
    assert sample.dtype == np.int64
    assert chi_square(sample, st.poisson(mean)) > LEVEL


@pytest.mark.parametrize(
    ("n", "p"), [(1, 0.5), (20, 0.75), (100, 0.02), (100, 0.4), (100_000, 0.7)]
)
def test_binomial(n, p):
    sample = random.binomial(KEY, n, p, (N,))
    assert sample.dtype == np.float64
    assert sample.min() >= 0
    assert sample.max() <= n
    assert chi_square(sample, st.binom(n, p)) > LEVEL


def test_what_has_no_counts():
    rates = np.array([-1.0, np.nan, 0.0])
    assert random.poisson(KEY, rates).tolist() == [-1, -1, 0]
    n, p = np.array([-1, 3, 5, 0, 5]), np.array([0.5, 1.5, 0.0, 0.4, 1.0])
    np.testing.assert_array_equal(random.binomial(KEY, n, p), [np.nan, np.nan, 0, 0, 5])
    shapes = np.array([-1.0, 0.0, np.nan, 2.0])
    assert np.isnan(random.gamma(KEY, shapes)).tolist() == [True, True, True, False]


def test_multinomial_adds_up_and_has_the_margins_of_binomials():
    p = np.array([0.1, 0.2, 0.0, 0.7])
    sample = random.multinomial(KEY, 10, p, shape=(N, 4))
    np.testing.assert_array_equal(sample.sum(-1), 10)
    for k in (0, 1, 3):
        assert chi_square(sample[:, k], st.binom(10, p[k])) > LEVEL
    np.testing.assert_array_equal(sample[:, 2], 0)


@pytest.mark.parametrize("method", ["cholesky", "eigh", "svd"])
def test_multivariate_normal(method):
    mean, cov = np.array([1.0, -2.0]), np.array([[2.0, 0.6], [0.6, 1.0]])
    sample = random.multivariate_normal(KEY, mean, cov, (N,), method=method)
    whitened = np.linalg.solve(np.linalg.cholesky(cov), (sample - mean).T)
    for row in whitened:
        assert st.kstest(row, st.norm().cdf).pvalue > LEVEL
    assert abs(np.corrcoef(whitened)[0, 1]) < 0.05
    with pytest.raises(ArgumentError, match="cholesky"):
        random.multivariate_normal(KEY, mean, cov, method="lu")
    with pytest.raises(ShapeError, match="covariance"):
        random.multivariate_normal(KEY, mean, cov[:1])


def test_orthogonal_matrices():
    q = random.orthogonal(KEY, 4, (50,))
    np.testing.assert_allclose(
        q.mT @ q, np.broadcast_to(np.eye(4), q.shape), atol=1e-14
    )
    assert abs(np.trace(q, axis1=1, axis2=2).mean()) < 0.5
    wide = random.orthogonal(KEY, 2, m=5)
    np.testing.assert_allclose(wide @ wide.T, np.eye(2), atol=1e-14)
    unitary = random.orthogonal(KEY, 3, dtype=np.complex128)
    np.testing.assert_allclose(unitary.conj().T @ unitary, np.eye(3), atol=1e-14)


def test_without_replacement_nothing_comes_twice():
    drawn = random.choice(KEY, 10, (10,), replace=False)
    assert sorted(drawn.tolist()) == list(range(10))
    p = np.array([0.5, 0.0, 0.3, 0.2])
    drawn = random.choice(KEY, 4, (3,), replace=False, p=p)
    assert sorted(drawn.tolist()) == [0, 2, 3]
    chosen = random.categorical(KEY, np.zeros((5, 3)), shape=(3, 5), replace=False)
    np.testing.assert_array_equal(np.sort(chosen, 0), np.tile(np.arange(3)[:, None], 5))
    first = np.array(
        [
            random.choice(k, 3, (1,), replace=False, p=np.array([0.2, 0.3, 0.5]))[0]
            for k in random.split(KEY, 300)
        ]
    )
    assert st.chisquare(np.bincount(first), [60, 90, 150]).pvalue > LEVEL


def test_gamma_samples_move_along_their_quantile():
    a = np.array([0.3, 2.0, 40.0])
    sample = random.gamma(KEY, a)
    quantile = sp.gammainc(a, sample)
    step = 1e-6 * a
    expected = (
        sp.gammaincinv(a + step, quantile) - sp.gammaincinv(a - step, quantile)
    ) / (2 * step)
    total = af.grad(lambda a: random.gamma(KEY, a).sum())
    np.testing.assert_allclose(total(a), expected, rtol=1e-6)
    np.testing.assert_allclose(af.jit(total)(a), expected, rtol=1e-6)
    tiny = af.grad(lambda a: random.loggamma(KEY, a).sum())(np.array([1e-4]))
    # There x = (u gamma(a + 1))**(1 / a).
    log = random.loggamma(KEY, np.array([1e-4]))
    np.testing.assert_allclose(tiny, (sp.digamma(1.0001) - log) / 1e-4, rtol=1e-9)


def test_they_map_and_compile():
    keys, a = random.split(KEY, 3), np.array([0.3, 2.0, 40.0])
    mapped = af.jit(af.vmap(lambda k, a: random.gamma(k, a, (2,))))(keys, a)
    alone = np.stack([random.gamma(k, x, (2,)) for k, x in zip(keys, a, strict=True)])
    np.testing.assert_allclose(mapped, alone, rtol=1e-12)
    counts = af.jit(lambda key: random.poisson(key, a * 10))(KEY)
    np.testing.assert_array_equal(counts, random.poisson(KEY, a * 10))
