"""Where formulas cancel, under- or overflow: errors against mpmath, in eps or ulp."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
import scipy.special as sp
import scipy.stats as scipy_stats

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import random
from arrayfn.scipy import special, stats

RNG = np.random.default_rng(29)
EPS = float(np.finfo(np.float64).eps)
INF, NAN = math.inf, math.nan


def errors(function, formula, *arguments):
    """The relative errors in units of the dtype's eps."""
    got = np.asarray(af.jit(function)(*arguments))
    with mp.workdps(50):
        rows = zip(*arguments, strict=True)
        want = [formula(*(mp.mpf(float(v)) for v in row)) for row in rows]
        relative = [
            abs(mp.mpf(float(g)) - w) / abs(w) for g, w in zip(got, want, strict=True)
        ]
    return float(max(relative)) / float(np.finfo(got.dtype).eps)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logit_near_a_half(dtype):
    x = 0.5 + RNG.normal(size=300) * 10.0 ** RNG.uniform(-6, -1, 300)
    x = np.concatenate([x, RNG.uniform(0.01, 0.99, 300)]).astype(dtype)
    x = x[(x > 0) & (x < 1) & (x != 0.5)]
    assert errors(special.logit, lambda x: mp.log(x / (1 - x)), x) < 3


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_relative_entropy_of_near_numbers(dtype):
    x = RNG.uniform(0.1, 10, 300).astype(dtype)
    y = (x * (1 + 10.0 ** RNG.uniform(-6, -0.3, 300))).astype(dtype)
    x, y = x[x != y], y[x != y]
    assert errors(special.rel_entr, lambda x, y: x * mp.log(x / y), x, y) < 4


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sinc_and_its_derivatives(dtype):
    x = np.concatenate([RNG.uniform(-6, 6, 400), RNG.uniform(-0.4, 0.4, 200)])
    x = x.astype(dtype)

    def formula(x):
        return mp.sin(mp.pi * x) / (mp.pi * x)

    assert errors(anp.sinc, formula, x) < 3
    near = x[400:500]
    slope = af.vmap(af.grad(anp.sinc))
    assert errors(slope, lambda x: mp.diff(formula, x), near) < 16
    whole = np.array([1, -2, 17, 3e38, 1e20], dtype)
    np.testing.assert_array_equal(anp.sinc(whole), np.zeros(5, dtype))


def test_bessel_functions_and_their_derivatives():
    x = RNG.uniform(-25, 25, 80)

    def of_order(n):
        return lambda x: mp.besseli(n, x)

    assert errors(anp.i0, of_order(0), x) < 4
    assert errors(special.i1, of_order(1), x) < 4
    assert errors(af.vmap(af.grad(anp.i0)), of_order(1), x) < 4
    third = af.vmap(af.grad(af.grad(af.grad(anp.i0))))
    exact = lambda x: (3 * mp.besseli(1, x) + mp.besseli(3, x)) / 4  # noqa: E731
    assert errors(third, exact, x[:30]) < 8


def test_derivatives_by_a_concentration_of_0():
    slope = af.grad(lambda kappa: stats.vonmises.logpdf(0.3, kappa))
    np.testing.assert_allclose(slope(0.0), math.cos(0.3), 1e-15)
    np.testing.assert_allclose(slope(1e-9), math.cos(0.3) - 0.5e-9, 1e-12)
    assert af.grad(lambda beta: anp.kaiser(7, beta)[2])(0.0) == 0.0


@pytest.mark.parametrize("function", [special.xlogy, special.xlog1py])
def test_second_derivatives_of_a_product_with_a_logarithm(function):
    y = 2.0 if function is special.xlogy else 1.0
    hessian = af.hessian(lambda v: function(v[0], v[1]))(np.array([0.0, y]))
    np.testing.assert_array_equal(hessian, [[0.0, 0.5], [0.5, 0.0]])


def test_the_incomplete_beta_function_of_large_parameters():
    size = 40

    def formula(a, b, x):
        # DLMF 8.17.8, from the side on which it is small.
        upper = x > a / (a + b)
        if upper:
            a, b, x = b, a, 1 - x
        total = term = mp.mpf(1)
        n = 0
        while term > total * mp.mpf(10) ** -25:
            term *= (a + b + n) / (a + 1 + n) * x
            total += term
            n += 1
        log = a * mp.log(x) + b * mp.log(1 - x) - mp.log(a) - mp.log(mp.beta(a, b))
        return 1 - mp.exp(log) * total if upper else mp.exp(log) * total

    a, b = 10 ** RNG.uniform(2, 4, (2, size))
    mean = a / (a + b)
    x = mean + RNG.uniform(-4, 4, size) * np.sqrt(mean * (1 - mean) / (a + b + 1))
    assert errors(special.betainc, formula, a, b, x) < 60


def test_exponential_integrals():
    n = RNG.integers(0, 20, 120).astype(float)
    x = 10 ** RNG.uniform(-3, 2, 120)
    assert errors(special.expn, lambda n, x: mp.expint(int(n), x), n, x) < 8
    assert errors(special.exp1, mp.e1, x) < 8
    assert special.exp1(np.zeros(0)).shape == (0,)


def test_gamma_of_tiny_negative_numbers():
    x = np.array([-1e-155, -1e-300, -1e-308, 1e-300])
    np.testing.assert_array_equal(special.gamma(x), 1 / x)
    assert special.gamma(-5e-309) == -INF


def test_higher_derivatives_of_the_gamma_function_at_whole_numbers():
    third = af.grad(af.grad(af.grad(special.gammaln)))
    for x in (1.0, 2.0, 5.0):
        np.testing.assert_allclose(third(x), float(mp.polygamma(2, x)), 1e-12)


@pytest.mark.parametrize(
    "arguments",
    [
        *((0.0, 1.0, 0.5), (1.0, 0.0, 0.5), (0.0, 0.0, 0.5), (INF, 1.0, 0.5)),
        *((1.0, INF, 0.5), (INF, INF, 0.5), (0.0, 1.0, 0.0), (1.0, 0.0, 1.0)),
        *((INF, 1.0, 1.0), (1.0, INF, 0.0), (0.0, INF, 0.5), (INF, 0.0, 0.5)),
        *((-1.0, 1.0, 0.5), (2.0, 3.0, -0.1), (2.0, 3.0, 1.1), (NAN, 1.0, 0.5)),
    ],
)
def test_the_incomplete_beta_function_at_its_limits(arguments):
    np.testing.assert_array_equal(special.betainc(*arguments), sp.betainc(*arguments))


def test_other_values_at_edges():
    assert special.comb(0.0, 0.0, repetition=True) == 1.0
    assert special.comb(0.0, 3.0, repetition=True) == 0.0
    np.testing.assert_array_equal(special.sici(-INF), sp.sici(-INF))
    x = np.array([[1.0, NAN, 2.0], [3.0, 1.0, 2.0]])
    expected = scipy_stats.rankdata(x, axis=1)
    np.testing.assert_array_equal(stats.rankdata(x, axis=1), expected)
    assert stats.poisson.entropy(2.0, np.zeros(3)).shape == (3,)
    assert np.isfinite(af.grad(stats.poisson.entropy)(2.0))
    assert random.binomial(random.key(0), INF, 0.5) == INF
    assert random.binomial(random.key(0), INF, 0.0) == 0.0


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *(("beta", (0.5, -1.0, 2.0)), ("beta", (2.0, 2.0, -1.0))),
        *(("beta", (0.5, 1.0, 2.0, 0.0, -1.0)), ("beta", (NAN, 1.0, 2.0))),
        *(("truncnorm", (0.5, 2.0, 1.0)), ("truncnorm", (0.5, -1.0, 1.0, 0.0, -1.0))),
        *(("gamma", (0.5, -1.0)), ("gamma", (-0.5, 1.0, 0.0, -1.0))),
        *(("chi2", (0.5, -1.0)), ("pareto", (1.5, -1.0)), ("vonmises", (0.5, -1.0))),
        *((name, (0.5, 0.0, -1.0)) for name in ("norm", "expon", "uniform", "cauchy")),
        *((name, (0.5, 0.0, -1.0)) for name in ("laplace", "logistic")),
        *(("binom", (1, -3, 0.5)), ("binom", (1, 3, 1.5)), ("geom", (1, 0.0))),
        *(("geom", (1, 1.5)), ("bernoulli", (1, 1.5))),
    ],
)
def test_invalid_parameters_of_distributions_give_nan(name, arguments):
    distribution = getattr(stats, name)
    names = ("logpdf", "pdf", "cdf", "logcdf", "sf", "logsf", "ppf", "logpmf", "pmf")
    checked = [n for n in names if hasattr(distribution, n)]
    for function in checked:
        assert np.isnan(getattr(distribution, function)(*arguments)), function
    assert checked
