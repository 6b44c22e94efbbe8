"""Samples have the distributions that they are of: Kolmogorov-Smirnov, moments."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats as st

import arrayfn as af
from arrayfn import random
from arrayfn.errors import ShapeError

KEY = random.key(17)
N = 4000
# One in a thousand true samples would fail, but the key is fixed.
LEVEL = 1e-3

CONTINUOUS = {
    "uniform": (random.uniform, st.uniform()),
    "uniform of a range": (
        lambda k, s, d: random.uniform(k, s, d, -2.0, 3.0),
        st.uniform(-2, 5),
    ),
    "normal": (random.normal, st.norm()),
    "truncated_normal": (
        lambda k, s, d: random.truncated_normal(k, -1.0, 2.0, s, d),
        st.truncnorm(-1, 2),
    ),
    "exponential": (random.exponential, st.expon()),
    "laplace": (random.laplace, st.laplace()),
    "logistic": (random.logistic, st.logistic()),
    "gumbel": (random.gumbel, st.gumbel_r()),
    "gumbel of many bits": (
        lambda k, s, d: random.gumbel(k, s, d, mode="high"),
        st.gumbel_r(),
    ),
    "cauchy": (random.cauchy, st.cauchy()),
    "lognormal": (lambda k, s, d: random.lognormal(k, 0.5, s, d), st.lognorm(0.5)),
    "maxwell": (random.maxwell, st.maxwell()),
    "pareto": (lambda k, s, d: random.pareto(k, 2.5, s, d), st.pareto(2.5)),
    "rayleigh": (lambda k, s, d: random.rayleigh(k, 2.0, s, d), st.rayleigh(scale=2)),
    "weibull_min": (
        lambda k, s, d: random.weibull_min(k, 2.0, 1.5, s, d),
        st.weibull_min(1.5, scale=2),
    ),
    "triangular": (
        lambda k, s, d: random.triangular(k, -1.0, 0.5, 3.0, s, d),
        st.triang(0.375, -1, 4),
    ),
    "wald": (lambda k, s, d: random.wald(k, 2.0, s, d), st.invgauss(2.0)),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_samples_have_their_distribution(name):
    draw, distribution = CONTINUOUS[name]
    for dtype in (np.float32, np.float64):
        sample = draw(KEY, (N // 2, 2), dtype)
        assert sample.dtype == dtype
        assert sample.shape == (N // 2, 2)
        assert st.kstest(sample.ravel(), distribution.cdf).pvalue > LEVEL


def test_all_distributions_compile_to_what_they_are_uncompiled():
    draws = {name: draw for name, (draw, _) in CONTINUOUS.items()}
    compiled = af.jit(
        lambda key: {name: draw(key, (64,), np.float64) for name, draw in draws.items()}
    )(KEY)
    for name, draw in draws.items():
        want = draw(KEY, (64,), np.float64)
        np.testing.assert_allclose(compiled[name], want, 1e-11, 1e-13, err_msg=name)


def test_normal_complex_numbers_have_variance_one():
    sample = random.normal(KEY, (N,), np.complex64)
    assert sample.dtype == np.complex64
    np.testing.assert_allclose(np.mean(np.abs(sample) ** 2), 1.0, atol=0.05)
    scaled = sample.real * np.sqrt(2)
    assert st.kstest(scaled, st.norm().cdf).pvalue > LEVEL


def test_double_sided_maxwell_has_the_shape_of_its_parameters_last():
    sample = random.double_sided_maxwell(KEY, np.zeros(3), 2.0, (N,))
    assert sample.shape == (N, 3)
    assert st.kstest(np.abs(sample[:, 1]) / 2, st.maxwell().cdf).pvalue > LEVEL
    assert abs(np.mean(sample > 0) - 0.5) < 0.02


@pytest.mark.parametrize("mode", ["low", "high"])
def test_bernoulli(mode):
    p = np.array([0.0, 0.3, 1.0])
    sample = random.bernoulli(KEY, p, (N, 3), mode)
    assert sample.dtype == np.bool_
    means = sample.mean(0)
    assert means[0] == 0.0
    assert means[2] == 1.0
    assert abs(means[1] - 0.3) < 0.03


def test_rademacher():
    sample = random.rademacher(KEY, (N,), np.int8)
    assert sample.dtype == np.int8
    assert set(np.unique(sample)) == {-1, 1}
    assert abs(sample.mean()) < 0.06


def counts(sample, size):
    return np.bincount(np.ravel(sample), minlength=size)


def test_geometric():
    sample = random.geometric(KEY, 0.3, (N,))
    expected = st.geom(0.3).pmf(np.arange(1, 8)) * N
    observed = counts(sample, 8)[1:8]
    assert st.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > (
        LEVEL
    )


def test_randint_is_uniform():
    observed = counts(random.randint(KEY, (N,), 0, 7), 7)
    assert st.chisquare(observed).pvalue > LEVEL


P = np.array([0.1, 0.2, 0.3, 0.4])


def test_categorical_has_the_probabilities_of_the_softmax():
    sample = random.categorical(KEY, np.log(P) + 3.0, shape=(N,))
    assert sample.dtype == np.int64
    assert st.chisquare(counts(sample, 4), P * N).pvalue > LEVEL
    columns = random.categorical(KEY, np.log(P)[:, None] * np.ones(3), axis=0)
    assert columns.shape == (3,)
    with pytest.raises(ShapeError, match="end with"):
        random.categorical(KEY, np.zeros((2, 3)), shape=(4, 3))


def test_choice_has_the_probabilities_given():
    elements = np.array([10, 20, 30, 40])
    drawn = random.choice(KEY, elements, (N,), p=P)
    assert st.chisquare(counts(drawn // 10 - 1, 4), P * N).pvalue > LEVEL
    rows = random.choice(KEY, np.arange(12).reshape(3, 4), (5,), axis=1)
    assert rows.shape == (3, 5)
    assert random.choice(KEY, 4, (2, 3)).shape == (2, 3)
    with pytest.raises(ValueError, match="without replacement"):
        random.choice(KEY, 4, (5,), replace=False)
    with pytest.raises(ShapeError, match="one probability"):
        random.choice(KEY, 4, (5,), p=P[:3])


def test_samples_are_differentiated_by_their_parameters():
    def mean(draw):
        return lambda parameter: draw(parameter).mean()

    scale = af.grad(mean(lambda s: random.rayleigh(KEY, s, (N,))))(2.0)
    drawn = random.rayleigh(KEY, 2.0, (N,))
    np.testing.assert_allclose(scale, drawn.mean() / 2, rtol=1e-12)
    for draw in (
        lambda x: random.truncated_normal(KEY, -1.0, x, (64,)),
        lambda x: random.triangular(KEY, 0.0, x, 3.0, (64,)),
        lambda x: random.pareto(KEY, x, (64,)),
        lambda x: random.weibull_min(KEY, 1.0, x, (64,)),
        lambda x: random.lognormal(KEY, x, (64,)),
        lambda x: random.uniform(KEY, (64,), maxval=x),
        lambda x: random.wald(KEY, x, (64,)),
    ):
        step = 1e-5
        difference = (mean(draw)(1.5 + step) - mean(draw)(1.5 - step)) / (2 * step)
        np.testing.assert_allclose(af.grad(mean(draw))(1.5), difference, rtol=1e-6)
