"""Distributions against SciPy's: values, compiled values, and derivatives."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
import scipy.stats as st

import arrayfn as af
from arrayfn import random
from arrayfn.errors import ArgumentError, ShapeError
from arrayfn.scipy import stats

RNG = np.random.default_rng(3)
X = np.concatenate([RNG.normal(0, 3, 40), [0.0, 1.0, -1.0, 35.0, -35.0]])
P = np.concatenate([RNG.uniform(0, 1, 20), [0.0, 1.0, 1e-12, -0.5, 2.0]])
K = np.concatenate([np.arange(-2.0, 14.0), [0.5, 40.0]])
LOCATED = {"loc": 0.7, "scale": 1.9}

# Distribution: shape parameters, and options.
CONTINUOUS = {
    "norm": ((), LOCATED),
    "uniform": ((), LOCATED),
    "expon": ((), LOCATED),
    "gamma": ((2.3,), LOCATED),
    "chi2": ((3.5,), LOCATED),
    "beta": ((1.3, 2.7), {"loc": -4.0, "scale": 9.0}),
    "t": ((2.5,), LOCATED),
    "cauchy": ((), LOCATED),
    "laplace": ((), LOCATED),
    "logistic": ((), LOCATED),
    "gumbel_r": ((), LOCATED),
    "gumbel_l": ((), LOCATED),
    "pareto": ((1.7,), LOCATED),
    "truncnorm": ((-1.2, 2.5), LOCATED),
    "gennorm": ((1.5,), {}),
    "vonmises": ((2.0,), {}),
    "wrapcauchy": ((0.4,), {}),
}
DISCRETE = {
    "poisson": (4.2,),
    "bernoulli": (0.3,),
    "binom": (11, 0.35),
    "geom": (0.3,),
    "nbinom": (3.5, 0.4),
    "betabinom": (10, 1.5, 2.5),
}
QUANTILES = ("ppf", "isf")
FUNCTIONS = [
    (name, function) for name in CONTINUOUS for function in getattr(stats, name).__all__
]


@pytest.mark.parametrize(("name", "function"), FUNCTIONS)
def test_continuous_distributions_are_those_of_scipy(name, function):
    shapes, options = CONTINUOUS[name]
    x = P if function in QUANTILES else X
    with np.errstate(all="ignore"):
        expected = getattr(getattr(st, name), function)(x, *shapes, **options)
    result = getattr(getattr(stats, name), function)(x, *shapes, **options)
    np.testing.assert_allclose(result, expected, rtol=2e-12, atol=1e-14)


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_distributions_are_those_of_scipy(name):
    shapes = DISCRETE[name]
    module = getattr(stats, name)
    for function in set(module.__all__) - {"entropy", "ppf"}:
        with np.errstate(all="ignore"):
            expected = getattr(getattr(st, name), function)(K, *shapes)
        result = getattr(module, function)(K, *shapes)
        np.testing.assert_allclose(
            result, expected, rtol=1e-12, atol=1e-15, err_msg=function
        )


@pytest.mark.parametrize("name", [*CONTINUOUS, *DISCRETE])
def test_invalid_parameters_give_nan_as_in_scipy(name):
    """Each parameter in turn is invalid, or on the border of what is valid."""
    shapes, options = CONTINUOUS.get(name) or (DISCRETE[name], {})
    module, of_scipy = getattr(stats, name), getattr(st, name)
    given = dict(zip((of_scipy.shapes or "").split(", "), shapes, strict=False))
    given |= dict.fromkeys(options.keys() & {"scale"}, 1.0)
    x = np.array([-1.0, 0.0, 0.25, 1.0, 2.0])
    for function in set(module.__all__) - {"entropy"}:
        q = x if function not in QUANTILES else np.array([0.0, 0.25, 0.75])
        for parameter in given:
            for number in (-1.0, 0.0, 1.0, 2.5, math.nan):
                arguments = given | {parameter: number}
                with np.errstate(all="ignore"):
                    expected = getattr(of_scipy, function)(q, **arguments)
                result = getattr(module, function)(q, **arguments)
                np.testing.assert_allclose(
                    result, expected, 1e-9, 1e-14, err_msg=f"{function} {arguments}"
                )


EDGES = np.array([-math.inf, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, math.inf, math.nan])
SHAPES = {
    "bernoulli": [(0.0,), (0.3,), (1.0,)],
    "binom": [(0, 0.3), (5, 0.0), (5, 0.3), (5, 1.0)],
    "geom": [(0.3,), (1.0,)],
    "truncnorm": [(-1.0, 2.0), (-math.inf, 0.5), (0.0, math.inf)],
    "t": [(2.5,), (math.inf,)],
}


@pytest.mark.parametrize("loc", [0.0, 1.0, math.inf, math.nan])
@pytest.mark.parametrize("name", [*CONTINUOUS, *DISCRETE])
def test_edges_are_those_of_scipy(name, loc):
    module, of_scipy = getattr(stats, name), getattr(st, name)
    default = CONTINUOUS[name][0] if name in CONTINUOUS else DISCRETE[name]
    for function in set(module.__all__) - {"entropy"}:
        takes_loc = "loc" in inspect.signature(getattr(module, function)).parameters
        for shapes in SHAPES.get(name, [default]):
            arguments = (EDGES, *shapes, *([loc] if takes_loc else []))
            with np.errstate(all="ignore"):
                expected = getattr(of_scipy, function)(*arguments)
            result = getattr(module, function)(*arguments)
            np.testing.assert_allclose(
                result, expected, 1e-9, 1e-14, err_msg=f"{function}{arguments[1:]}"
            )


def test_quantiles_of_bernoulli_and_the_entropy_of_poisson():
    expected = st.bernoulli.ppf(P, 0.3)
    np.testing.assert_array_equal(stats.bernoulli.ppf(P, 0.3), expected)
    mu = np.array([0.0, 0.5, 7.0, 60.0, 99.9, 100.1, 400.0])
    expected = [_entropy(m) for m in mu]
    np.testing.assert_allclose(stats.poisson.entropy(mu), expected, atol=3e-9)


def _entropy(mean):
    mass = st.poisson(mean).logpmf(np.arange(2000))
    mass = mass[np.isfinite(mass)]
    return -(np.exp(mass) * mass).sum()


def test_compiled_densities_are_the_same():
    def densities(x, k):
        both = {
            name: getattr(stats, name).logpdf(x, *shapes, **options)
            for name, (shapes, options) in CONTINUOUS.items()
        }
        return both | {
            name: getattr(stats, name).logpmf(k, *shapes)
            for name, shapes in DISCRETE.items()
        }

    expected = densities(X, K)
    for name, result in af.jit(densities)(X, K).items():
        np.testing.assert_allclose(result, expected[name], 1e-12, 1e-14, err_msg=name)


INSIDE = {"uniform": 1.1, "wrapcauchy": 2.0}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_the_slope_of_a_distribution_function_is_its_density(name):
    shapes, options = CONTINUOUS[name]
    module = getattr(stats, name)
    x = np.array([INSIDE.get(name, 2.9), INSIDE.get(name, 3.3) * 1.01])
    density = module.pdf(x, *shapes, **options)
    if "cdf" in module.__all__:
        slope = af.grad(lambda x: module.cdf(x, *shapes, **options).sum())(x)
        np.testing.assert_allclose(slope, density, rtol=1e-9)
    step = 1e-6
    for k in range(1 + len(shapes)):
        arguments = [x, *[np.full(2, s) for s in shapes]]

        def total(y, k=k, arguments=arguments):
            given = [*arguments[:k], y, *arguments[k + 1 :]]
            return module.logpdf(*given, **options).sum()

        slope = af.grad(total)(arguments[k]).sum()
        difference = total(arguments[k] + step) - total(arguments[k] - step)
        np.testing.assert_allclose(slope, difference / (2 * step), 1e-6, 1e-8)


def test_gradients_by_the_parameters_of_discrete_distributions():
    for name, shapes in DISCRETE.items():
        module = getattr(stats, name)
        p = shapes[-1]
        k = np.array([1.0, 2.0]) if name != "bernoulli" else np.array([0.0, 1.0])

        def total(p, module=module, shapes=shapes, k=k):
            return module.logpmf(k, *shapes[:-1], p).sum()

        slope = af.grad(total)(p)
        difference = (total(p + 1e-6) - total(p - 1e-6)) / 2e-6
        np.testing.assert_allclose(slope, difference, rtol=1e-7, err_msg=name)


def test_tails_keep_their_accuracy():
    x = np.array([-30.0, -8.0, 8.0, 30.0])
    np.testing.assert_allclose(stats.norm.logsf(x), st.norm.logsf(x), rtol=1e-14)
    np.testing.assert_allclose(stats.cauchy.cdf(x * 1e9), st.cauchy.cdf(x * 1e9), 1e-13)
    np.testing.assert_allclose(stats.t.sf(x * 1e3, 3.0), st.t.sf(x * 1e3, 3.0), 1e-11)
    far = stats.truncnorm.logpdf(9.5, 9.0, 10.0)
    np.testing.assert_allclose(far, st.truncnorm.logpdf(9.5, 9.0, 10.0), rtol=1e-12)


def test_infinite_bounds_and_degrees_of_freedom_are_limits():
    a, b = np.array([-np.inf, -1.0, -np.inf]), np.array([0.0, np.inf, np.inf])
    np.testing.assert_array_equal(stats.truncnorm.cdf(-np.inf, a, b), [0, 0, 0])
    np.testing.assert_array_equal(stats.truncnorm.sf(np.inf, a, b), [0, 0, 0])
    x = np.array([-np.inf, -3.0, 0.5])
    for name in ("pdf", "logpdf"):
        result = getattr(stats.t, name)(x, np.inf, 0.5, 2.0)
        expected = getattr(st.norm, name)(x, 0.5, 2.0)
        np.testing.assert_allclose(result, expected, rtol=1e-15)
    slope = af.grad(lambda x: stats.t.logpdf(x, np.inf, 0.5, 2.0))(1.5)
    np.testing.assert_allclose(slope, -0.25, rtol=1e-15)


def test_probabilities_of_numbers_below_an_ulp_of_1():
    x, b = np.array([1e-300, 1e-20]), np.array([1e-3, 2.5])
    result = stats.beta.sf(x, 1e-3, b)
    np.testing.assert_allclose(result, st.beta.sf(x, 1e-3, b), rtol=1e-12)
    result = stats.binom.cdf(2, 10**12, 3e-12)  # nearly Poisson's distribution
    np.testing.assert_allclose(result, st.poisson.cdf(2, 3.0), rtol=1e-11)


def test_multivariate_normal():
    a = RNG.standard_normal((3, 3))
    cov, mean = a @ a.T + np.eye(3), RNG.standard_normal(3)
    x = RNG.standard_normal((5, 3))
    expected = st.multivariate_normal.logpdf(x, mean, cov)
    result = stats.multivariate_normal.logpdf(x, mean, cov)
    np.testing.assert_allclose(result, expected, rtol=1e-12)
    result = af.jit(stats.multivariate_normal.pdf)(x[0], mean, cov)
    np.testing.assert_allclose(result, np.exp(expected[0]), rtol=1e-12)
    plain = stats.multivariate_normal.logpdf(x, 0.5, 2.0)
    expected = st.multivariate_normal.logpdf(x, np.full(3, 0.5), 2.0 * np.eye(3))
    np.testing.assert_allclose(plain, expected, rtol=1e-12)
    gradient = af.grad(lambda c: stats.multivariate_normal.logpdf(x, mean, c).sum())(
        cov
    )
    direction = np.eye(3)
    step = 1e-6
    ahead, behind = (
        st.multivariate_normal.logpdf(x, mean, cov + h * direction).sum()
        for h in (step, -step)
    )
    slope = (gradient * direction).sum()
    np.testing.assert_allclose(slope, (ahead - behind) / (2 * step), rtol=1e-6)


def test_dirichlet_and_multinomial():
    alpha = np.array([0.7, 2.0, 3.5])
    x = st.dirichlet.rvs(alpha, 4, random_state=1).T
    expected = st.dirichlet.logpdf(x, alpha)
    np.testing.assert_allclose(stats.dirichlet.logpdf(x, alpha), expected, rtol=1e-12)
    shorter = stats.dirichlet.logpdf(x[:-1, 0], alpha)
    np.testing.assert_allclose(shorter, expected[0], rtol=1e-12)
    assert stats.dirichlet.logpdf(np.array([0.5, 0.6, 0.1]), alpha) == -math.inf
    with pytest.raises(ShapeError, match="dirichlet"):
        stats.dirichlet.logpdf(np.ones(5), alpha)
    counts, p = np.array([[2, 1, 4], [0, 7, 0], [1, 1, 1]]), np.array([0.2, 0.3, 0.5])
    expected = st.multinomial.logpmf(counts, 7, p)
    result = stats.multinomial.logpmf(counts, 7, p)
    np.testing.assert_allclose(result, expected, rtol=1e-12)


def test_mode():
    a = RNG.integers(0, 4, (5, 6))
    for axis in (0, 1, None):
        for keepdims in (False, True):
            expected = st.mode(a, axis=axis, keepdims=keepdims)
            result = stats.mode(a, axis, keepdims=keepdims)
            np.testing.assert_array_equal(result.mode, expected.mode)
            np.testing.assert_array_equal(result.count, expected.count)


@pytest.mark.parametrize("method", ["average", "min", "max", "dense", "ordinal"])
def test_rankdata(method):
    a = RNG.integers(0, 5, (4, 7))
    for axis in (None, 0, 1):
        expected = st.rankdata(a, method, axis=axis)
        result = stats.rankdata(a, method, axis=axis)
        np.testing.assert_array_equal(result, expected)
    compiled = af.jit(lambda a: stats.rankdata(a, method, axis=1))(a)
    np.testing.assert_array_equal(compiled, st.rankdata(a, method, axis=1))


def test_sem_and_what_is_refused():
    a = RNG.standard_normal((4, 7))
    for axis in (0, 1, None):
        np.testing.assert_allclose(stats.sem(a, axis), st.sem(a, axis), rtol=1e-13)
    with pytest.raises(ArgumentError, match="ordinal"):
        stats.rankdata(a, "mean")


@pytest.mark.parametrize("method", [None, "silverman", 0.4])
def test_gaussian_kde(method):
    for dataset in (RNG.standard_normal(30), RNG.standard_normal((2, 30))):
        weights = RNG.uniform(0.5, 2, 30)
        ours = stats.gaussian_kde(dataset, method, weights)
        scipys = st.gaussian_kde(dataset, method, weights)
        at = RNG.standard_normal(np.atleast_2d(dataset).shape)[:, :9]
        np.testing.assert_allclose(ours(at), scipys(at), rtol=1e-11)
        np.testing.assert_allclose(ours.logpdf(at), scipys.logpdf(at), rtol=1e-11)
        d = at.shape[0]
        mean, cov = np.full(d, 0.3), 0.5 * np.eye(d)
        np.testing.assert_allclose(
            ours.integrate_gaussian(mean, cov), scipys.integrate_gaussian(mean, cov)
        )
        np.testing.assert_allclose(
            ours.integrate_kde(ours), scipys.integrate_kde(scipys)
        )
        compiled = af.jit(lambda data, x: stats.gaussian_kde(data, method).pdf(x))
        expected = st.gaussian_kde(dataset, method).pdf(at)
        np.testing.assert_allclose(compiled(dataset, at), expected, rtol=1e-11)
    one = stats.gaussian_kde(RNG.standard_normal(40))
    expected = st.gaussian_kde(one.dataset).integrate_box_1d(-1, 0.5)
    np.testing.assert_allclose(one.integrate_box_1d(-1.0, 0.5), expected, rtol=1e-11)
    with pytest.raises(ShapeError, match=r"two points or more, not \(2, 1\)"):
        stats.gaussian_kde(np.ones((2, 1)))
    sample = one.resample(random.key(0), 3000)
    assert sample.shape == (1, 3000)
    spread = np.sqrt(one.covariance[0, 0])
    mixture = st.norm.cdf((np.sort(sample[0])[:, None] - one.dataset) / spread).mean(-1)
    assert st.kstest(mixture, "uniform").pvalue > 1e-3
