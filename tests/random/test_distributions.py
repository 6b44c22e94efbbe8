"""Samples have the distributions that they are of: Kolmogorov-Smirnov, moments."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats as st

import arrayfn as af
from arrayfn import random
from arrayfn.errors import ArgumentError, AxisError, ShapeError

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
    with pytest.raises(ArgumentError, match="without replacement"):
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


TAILS = [
    (8.0, np.inf),
    (30.0, 40.0),
    (5.0, 6.0),
    (1.01, np.inf),
    (-np.inf, -3.0),
    (-40.0, -29.5),
]


@pytest.mark.parametrize(("low", "high"), TAILS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_truncated_normal_is_right_in_the_tails(low, high, dtype):
    draw = af.jit(lambda key: random.truncated_normal(key, low, high, (N,), dtype))
    sample = draw(KEY)
    assert (sample > low).all()
    assert (sample < high).all()
    assert len(np.unique(sample)) > 0.8 * N
    assert st.kstest(sample, st.truncnorm(low, high).cdf).pvalue > LEVEL


def test_truncated_normal_takes_tails_and_middles_at_once():
    low = np.array([8.0, -1.0, -9.0], np.float32)
    high = np.array([9.0, 1.0, -8.0], np.float32)
    sample = random.truncated_normal(KEY, low, high, (N, 3))
    for k, mean in enumerate([8.1199, 0.0, -8.1199]):
        assert abs(sample[:, k].mean() - mean) < 0.05


@pytest.mark.parametrize("high", [np.inf, 4.0])
def test_truncated_normal_has_derivatives_in_the_tails(high):
    def drawn(low):
        return random.truncated_normal(KEY, low, high, (8,))

    slope = af.jvp(drawn, (3.0,), (1.0,))[1]
    want = (drawn(3.0 + 1e-6) - drawn(3.0 - 1e-6)) / 2e-6
    np.testing.assert_allclose(slope, want, 1e-6)


def test_uniform_spans_more_than_the_greatest_number():
    sample = random.uniform(KEY, (N,), np.float32, -3e38, 3e38)
    assert st.kstest(sample / 3e38, st.uniform(-1, 2).cdf).pvalue > LEVEL
    ends = np.float32(-3e38), np.float32(3e38)
    traced = af.jit(lambda a, b: random.uniform(KEY, (N,), np.float32, a, b))(*ends)
    np.testing.assert_array_equal(traced, sample)


def test_poisson_of_infinity_is_the_greatest_integer():
    sample = random.poisson(KEY, np.inf, (5,))
    assert (sample == np.iinfo(np.int64).max).all()


@pytest.mark.parametrize("dtype", [np.float16, af.numpy.bfloat16])
@pytest.mark.parametrize(
    "name", ["normal", "exponential", "laplace", "logistic", "gumbel", "cauchy"]
)
def test_halves_are_rounded_from_float32(name, dtype):
    draw = getattr(random, name)
    sample = draw(KEY, (N,), dtype)
    assert sample.dtype == dtype
    np.testing.assert_array_equal(sample, draw(KEY, (N,), np.float32).astype(dtype))


def test_truncated_normal_halves_lie_within_the_bounds():
    for low, high in ((-2.0, 2.0), (2.0, 3.0)):
        sample = random.truncated_normal(KEY, low, high, (N,), np.float16)
        assert sample.dtype == np.float16
        assert low <= sample.min() < sample.max() <= high


def test_bfloat16_normal_numbers_have_tails():
    sample = random.normal(KEY, (200_000,), af.numpy.bfloat16).astype(float)
    assert sample.max() > 3.8
    assert sample.min() < -3.8
    assert abs(sample.std() - 1) < 0.01


def test_categorical_broadcasts_logits_to_its_shape():
    logits = np.log(np.array([[[0.5, 0.5, 1e-9]], [[1e-9, 1e-9, 1.0]]]))
    drawn = random.categorical(KEY, logits, shape=(5, 2, 400))
    assert drawn.shape == (5, 2, 400)
    assert (drawn[:, 1] == 2).all()
    assert abs(drawn[:, 0].mean() - 0.5) < 0.05
    with pytest.raises(ShapeError, match="does not end with"):
        random.categorical(KEY, logits, shape=(3, 400))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_truncated_normal_leaves_out_its_bounds_in_narrow_dtypes(dtype):
    x = random.truncated_normal(KEY, -0.3, 0.3, (10_000,), dtype)
    low, high = (x.dtype.type(bound) for bound in (-0.3, 0.3))
    assert low < x.min() < -0.29
    assert 0.29 < x.max() < high


def test_permutation_of_a_number_has_one_axis():
    with pytest.raises(AxisError, match="axis 3 is out of bounds"):
        random.permutation(KEY, 10, axis=3)
