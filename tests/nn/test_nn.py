"""Activations, softmax and its kin, normalisation: against JAX where there is one."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

from arrayfn import nn
from arrayfn.functions import grad, trace_function

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
    np.testing.assert_allclose(nn.gelu(X), 0.5 * X * (1 + np.tanh(cubic)), rtol=1e-14)
    exact = X * scipy.special.ndtr(X)
    np.testing.assert_allclose(nn.gelu(X, approximate=False), exact, rtol=1e-13)


@pytest.mark.parametrize("name", FORMULAS)
def test_gradients_are_finite_at_extreme_values(name):
    gradient = grad(lambda x: (getattr(nn, name)(x) * np.arange(5.0)).sum())(EXTREME)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("name", ["relu", "relu6"])
def test_the_derivative_at_the_corner_is_0(name):
    assert grad(getattr(nn, name))(0.0) == 0.0


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
