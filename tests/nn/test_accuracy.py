"""Activations in their tails, against mpmath: errors in ulp of the result."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest

import arrayfn as af
from arrayfn import nn
from arrayfn.scipy import special

RNG = np.random.default_rng(5)


def normal(x):
    return mp.erfc(-x / mp.sqrt(2)) / 2


def gelu_by_tanh(x):
    cubic = mp.sqrt(2 / mp.pi) * (x + mp.mpf("0.044715") * x**3)
    return x / (1 + mp.exp(-2 * cubic))


def ulp(got, want):
    """The greatest distance in units of the last place of the true results."""
    unit = np.spacing(np.abs(want.astype(got.dtype))).astype(np.float64)
    return float(np.max(np.abs(got.astype(np.longdouble) - want) / unit))


# Function, formula, float32's range of x, float64's, and the bound in ulp.
CASES = {
    "ndtr": (special.ndtr, normal, (-13, 8), (-37, 8), 1.6),
    "gelu": (
        lambda x: nn.gelu(x, approximate=False),
        lambda x: x * normal(x),
        (-12.5, 8),
        (-37, 8),
        2.5,
    ),
    # The exponent is rounded: its size counts.
    "gelu by tanh": (nn.gelu, gelu_by_tanh, (-5, 8), (-5, 8), 60),
    "silu": (nn.silu, lambda x: x / (1 + mp.exp(-x)), (-87, 90), (-700, 700), 2.5),
    "mish": (
        nn.mish,
        lambda x: x * mp.tanh(mp.log1p(mp.exp(x))),
        (-86, 90),
        (-700, 700),
        3.5,
    ),
    "squareplus": (
        nn.squareplus,
        lambda x: (x + mp.sqrt(x * x + 4)) / 2,
        (-1e5, 1e5),
        (-1e9, 1e9),
        2.5,
    ),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CASES)
def test_tails_are_accurate(name, dtype):
    function, formula, *ranges, bound = CASES[name]
    low, high = ranges[dtype is np.float64]
    x = np.concatenate([RNG.uniform(low, high, 800), RNG.uniform(-3, 3, 300)])
    x = x.astype(dtype)
    with mp.workdps(60):
        want = np.array([np.longdouble(str(formula(mp.mpf(float(v))))) for v in x])
    assert ulp(af.jit(function)(x), want) < bound


@pytest.mark.parametrize("name", ["gelu by tanh", "mish", "squareplus", "gelu"])
def test_derivatives_are_those_of_the_formula(name):
    function, formula, *_ = CASES[name]
    x = RNG.uniform(-6, 6, 40)
    with mp.workdps(40):
        want = [float(mp.diff(formula, mp.mpf(float(v)))) for v in x]
    np.testing.assert_allclose(af.vmap(af.grad(function))(x), want, 1e-12)


def test_squareplus_neither_overflows_nor_cancels():
    x = np.array([-11355.0, 1e30, -np.inf, np.inf, 0.0], np.float32)
    expected = [8.8066929e-05, 1e30, 0.0, np.inf, 1.0]
    np.testing.assert_allclose(nn.squareplus(x), expected, 1e-6)
    slopes = af.vmap(af.grad(nn.squareplus))(x)
    np.testing.assert_allclose(slopes, [7.7557e-09, 1.0, 0.0, 1.0, 0.5], 1e-4)


def test_mish_of_float16_does_not_overflow():
    x = np.array([-5.0, 5.0, 11.0, 200.0], np.float16)
    np.testing.assert_allclose(nn.mish(x), [-0.03357, 5.0, 11.0, 200.0], 2e-3)
