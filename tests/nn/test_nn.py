"""Activations, softmax and its kin, normalisation: against JAX where there is one."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import scipy.special

import arrayfn as af
from arrayfn import nn
from arrayfn.errors import ShapeError
from arrayfn.transforms import grad, trace_function

X = np.random.default_rng(0).standard_normal((4, 5)) * 3
W = np.random.default_rng(1).standard_normal((4, 5))
EXTREME = np.array([-1e4, -100.0, 0.0, 100.0, 1e4])

FORMULAS = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "celu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "selu": lambda x: (
        1.0507009873554805
        * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0)))
    ),
    "sigmoid": scipy.special.expit,
    "log_sigmoid": scipy.special.log_expit,
    "silu": lambda x: x * scipy.special.expit(x),
    "softplus": lambda x: np.logaddexp(x, 0),
    "soft_sign": lambda x: x / (1 + abs(x)),
    "hard_tanh": lambda x: np.clip(x, -1, 1),
    "hard_sigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hard_swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "tanh": np.tanh,
    "softmax": lambda x: scipy.special.softmax(x, -1),
    "log_softmax": lambda x: scipy.special.log_softmax(x, -1),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_values_are_the_formulas(name):
    for x in (X, EXTREME):
        np.testing.assert_allclose(getattr(nn, name)(x), FORMULAS[name](x), rtol=1e-14)


def test_gelu_in_both_forms():
    cubic = np.sqrt(2 / np.pi) * (X + 0.044715 * X**3)
    np.testing.assert_allclose(nn.gelu(X), X * scipy.special.expit(2 * cubic), 1e-13)
    exact = X * scipy.special.ndtr(X)
    np.testing.assert_allclose(nn.gelu(X, approximate=False), exact, rtol=1e-13)


@pytest.mark.parametrize("name", FORMULAS)
def test_gradients_are_finite_at_extreme_values(name):
    gradient = grad(lambda x: (getattr(nn, name)(x) * np.arange(5.0)).sum())(EXTREME)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("name", ["relu", "relu6"])
def test_the_derivative_at_the_corner_is_0(name):
    assert grad(getattr(nn, name))(0.0) == 0.0
    assert grad(nn.relu6)(6.0) == 0.0


def test_nan_passes_through_relu():
    assert np.isnan(nn.relu(np.nan))


@pytest.mark.parametrize("axis", [0, -1, (0, 1), None])
def test_logsumexp(axis):
    expected = scipy.special.logsumexp(X, axis)
    np.testing.assert_allclose(nn.logsumexp(X, axis), expected, rtol=1e-14)
    kept = nn.logsumexp(X, axis, keepdims=True)
    expected = scipy.special.logsumexp(X, axis, keepdims=True)
    np.testing.assert_allclose(kept, expected, rtol=1e-14)


def test_logsumexp_of_infinities():
    nothing = np.full(3, -np.inf)
    assert nn.logsumexp(nothing) == -np.inf
    assert grad(nn.logsumexp)(nothing).tolist() == [0.0, 0.0, 0.0]
    assert nn.logsumexp(np.array([np.inf, 1.0])) == np.inf


def test_the_gradient_of_softmax_uses_its_value_and_no_division_by_squares():
    program = trace_function(
        grad(lambda x: (nn.softmax(x) * W).sum()), (X,), {}, abstract=True
    ).program
    names = [equation.primitive.name for equation in program.equations]
    assert names.count("exp") == 1
    assert names.count("div") == 1
    assert "square" not in names


def test_the_gradient_of_cross_entropy_is_softmax_less_the_label():
    labels = nn.one_hot(np.array([1, 0, 3, 4]), 5)
    result = grad(lambda x: -(nn.log_softmax(x) * labels).sum())(X)
    expected = scipy.special.softmax(X, -1) - labels
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("axis", [-1, 0])
def test_one_hot(axis):
    labels = np.array([[2, 0, -1], [1, 3, 2]])
    expected = (np.arange(3) == labels[..., None]).astype(np.float32)
    result = nn.one_hot(labels, 3, dtype=np.float32, axis=axis)
    np.testing.assert_array_equal(result, np.moveaxis(expected, -1, axis))
    assert result.dtype == np.float32


def test_normalisation():
    centred = X - X.mean(-1, keepdims=True)
    standard = centred / np.sqrt(X.var(-1, keepdims=True) + 1e-5)
    scale, bias = np.arange(5.0), np.ones(5)
    np.testing.assert_allclose(nn.standardize(X), standard, rtol=1e-13)
    np.testing.assert_allclose(
        nn.layer_norm(X, scale, bias), standard * scale + bias, rtol=1e-12
    )
    size = np.sqrt((X**2).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(nn.rms_norm(X, scale), X / size * scale, rtol=1e-13)
    given = nn.standardize(X, mean=1.0, variance=4.0, epsilon=0.0)
    np.testing.assert_allclose(given, (X - 1) / 2, rtol=1e-15)


def test_halves_are_normalised_in_float32():
    x = (X * 3e3).astype(np.float16)  # the squares overflow float16
    result = nn.standardize(x)
    assert result.dtype == np.float16
    expected = nn.standardize(x.astype(np.float64))
    np.testing.assert_allclose(result.astype(float), expected, rtol=2e-3, atol=1e-3)


def test_glu_and_its_kin():
    first, second = X[:, :2], X[:, 2:4]
    expected = first * scipy.special.expit(second)
    np.testing.assert_allclose(nn.glu(X[:, :4]), expected, rtol=1e-14)
    np.testing.assert_allclose(nn.mish(X), X * np.tanh(np.logaddexp(X, 0)), rtol=1e-13)
    np.testing.assert_allclose(
        nn.squareplus(X, 2.0), (X + np.sqrt(X**2 + 2)) / 2, rtol=1e-13
    )
    within = np.clip(X + 1, 0, None) ** 2 / 4
    np.testing.assert_allclose(nn.sparse_plus(X), np.where(X >= 1, X, within))
    np.testing.assert_allclose(nn.sparse_sigmoid(X), np.clip(X + 1, 0, 2) / 2)
    slopes = grad(lambda x: nn.sparse_plus(x).sum())(X)
    np.testing.assert_allclose(slopes, nn.sparse_sigmoid(X), atol=1e-15)
    assert nn.hard_silu is nn.hard_swish
    np.testing.assert_array_equal(nn.identity(X), X)


def test_log1mexp_is_accurate_at_both_ends():
    x = np.array([1e-12, 0.5, 0.7, 40.0])
    with mpmath.workdps(40):
        expected = [float(mpmath.log(1 - mpmath.exp(-mpmath.mpf(v)))) for v in x]
    np.testing.assert_allclose(nn.log1mexp(x), expected, rtol=1e-14)
    slopes = grad(lambda v: nn.log1mexp(v).sum())(x)
    np.testing.assert_allclose(slopes, 1 / np.expm1(x), rtol=1e-14)


def test_softmax_of_a_part():
    where = np.array([True, False, True, True, False])
    part = scipy.special.softmax(X[:, where], -1)
    for function, expected, outside in (
        (nn.softmax, part, 0.0),
        (nn.log_softmax, np.log(part), -np.inf),
    ):
        result = function(X, where=where)
        np.testing.assert_allclose(result[:, where], expected, rtol=1e-13)
        np.testing.assert_array_equal(result[:, ~where], outside)
    nothing = np.zeros(5, bool)
    np.testing.assert_array_equal(nn.softmax(X, where=nothing), 0.0)
    gradient = grad(lambda x: (nn.softmax(x, where=nothing) * W).sum())(X)
    np.testing.assert_array_equal(gradient, 0.0)
    gradient = grad(lambda x: (nn.softmax(x, where=where) * W).sum())(X)
    np.testing.assert_array_equal(gradient[:, ~where], 0.0)


def test_logsumexp_with_weights_signs_and_parts():
    b = W[0]
    value, sign = nn.logsumexp(X, -1, b, return_sign=True)
    expected, signs = scipy.special.logsumexp(X, -1, b=b, return_sign=True)
    np.testing.assert_allclose(value, expected, rtol=1e-13)
    np.testing.assert_array_equal(sign, signs)
    where = np.array([True, False, True, True, False])
    part = scipy.special.logsumexp(X[:, where], -1)
    np.testing.assert_allclose(nn.logsumexp(X, -1, where=where), part, rtol=1e-13)
    mean = nn.logmeanexp(X, -1, where=where)
    np.testing.assert_allclose(mean, part - np.log(3), rtol=1e-13)
    gradient = grad(lambda x: nn.logsumexp(x, b=np.abs(b)).sum())(X)
    weighted = np.abs(b) * np.exp(X)
    np.testing.assert_allclose(gradient, weighted / weighted.sum(), rtol=1e-12)


def test_group_norm_and_batch_norm():
    x = np.random.default_rng(3).standard_normal((2, 3, 6))
    scale, bias = np.arange(6.0), np.ones(6)
    groups = x.reshape(2, 3, 2, 3)
    mean = groups.mean((1, 3), keepdims=True)
    spread = np.sqrt(groups.var((1, 3), keepdims=True) + 1e-5)
    expected = ((groups - mean) / spread).reshape(x.shape) * scale + bias
    np.testing.assert_allclose(nn.group_norm(x, 2, scale, bias), expected, rtol=1e-11)
    with pytest.raises(ShapeError, match="divisible"):
        nn.group_norm(x, 4)
    y, (mean, variance) = nn.batch_norm(
        x, np.zeros(6), np.ones(6), scale, bias, training=True
    )
    own_mean, own_variance = x.mean((0, 1)), x.var((0, 1))
    expected = (x - own_mean) / np.sqrt(own_variance + 1e-5) * scale + bias
    np.testing.assert_allclose(y, expected, rtol=1e-11)
    np.testing.assert_allclose(mean, 0.1 * own_mean, rtol=1e-12)
    np.testing.assert_allclose(variance, 0.9 + 0.1 * own_variance, rtol=1e-12)
    y, kept = nn.batch_norm(x, own_mean, own_variance, scale, bias, training=False)
    np.testing.assert_allclose(y, expected, rtol=1e-11)
    np.testing.assert_array_equal(kept[0], own_mean)


def test_standardize_of_a_part():
    where = np.array([True, False, True, True, False])
    part = X[:, where]
    mean, variance = part.mean(-1, keepdims=True), part.var(-1, keepdims=True)
    expected = (X - mean) / np.sqrt(variance + 1e-5)
    np.testing.assert_allclose(nn.standardize(X, where=where), expected, rtol=1e-12)


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_a_sigmoid_is_subnormal_before_it_is_zero(device: str) -> None:
    x = np.array([-739.0, -745.5, -720.0, 0.0, -np.inf, np.inf, np.nan])
    have = af.jit(nn.sigmoid, device=device)(x)
    want = [np.exp(-739.0), 0.0, np.exp(-720.0), 0.5, 0.0, 1.0, np.nan]
    np.testing.assert_allclose(have, want, rtol=0, atol=2e-323)
