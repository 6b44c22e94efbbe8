"""Compiled and jitted functions, called in functions that Numba compiles."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from numba.core.errors import TypingError

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.errors import ArgumentError

X = np.linspace(0.0, 1.0, 6).reshape(2, 3)
W = np.cos(np.arange(9.0)).reshape(3, 3)


@af.jit
def layer(x, w, scale):
    return anp.tanh(x @ w) * scale, x.sum()


STEP = layer.lower(X, W, 2.0).compile()


@numba.njit
def steps(x, w, count):
    total = 0.0
    for _ in range(count):
        x, sum_of_x = STEP(x, w, 0.5)
        total += sum_of_x
    return x, total


def test_a_compiled_function_is_called_natively_with_the_same_bits():
    x, total = X, 0.0
    for _ in range(5):
        x, sum_of_x = layer(x, W, 0.5)
        total += sum_of_x
    have, sum_of_all = steps(X, W, 5)
    np.testing.assert_array_equal(have, x)
    assert sum_of_all == total


def test_arguments_that_are_not_contiguous_are_copied():
    wide = np.zeros((2, 6))
    wide[:, ::2] = X
    np.testing.assert_array_equal(steps(wide[:, ::2], W, 2)[0], steps(X, W, 2)[0])


def test_calls_without_the_gil_and_on_threads():
    @numba.njit(parallel=True, nogil=True)
    def sums(xs, w):
        out = np.zeros(len(xs))
        for k in numba.prange(len(xs)):
            out[k] = STEP(xs[k], w, 0.5)[1]
        return out

    xs = np.random.default_rng(0).normal(size=(4000, 2, 3))
    for _ in range(20):
        np.testing.assert_allclose(sums(xs, W), xs.sum((1, 2)), atol=1e-12)


@af.jit
def shifted_exponential(x):
    return anp.exp(x) + 1


def test_a_jitted_function_takes_any_shape_and_numbers():
    @numba.njit
    def both(x, y):
        return shifted_exponential(x) * 2, shifted_exponential(y)

    matrix, number = both(X, 3.0)
    np.testing.assert_allclose(matrix, 2 * (np.exp(X) + 1), rtol=1e-15)
    assert number == pytest.approx(np.exp(3) + 1, rel=1e-15)
    assert both(X[0], 3.0)[0].shape == (3,)


def test_a_jitted_function_may_be_passed_as_an_argument():
    @numba.njit
    def applied(f, x):
        return f(f(x))

    have = applied(shifted_exponential, X)
    np.testing.assert_allclose(have, np.exp(np.exp(X) + 1) + 1, rtol=1e-15)


def test_what_numba_cannot_know_is_known_after_a_call():
    @af.jit
    def pairs(x):
        return x.reshape(3, 2)

    def caller():
        @numba.njit
        def called(x):
            return pairs(x)

        return called

    with pytest.raises(TypingError, match="call it once on such arrays first"):
        caller()(np.ones(6))
    pairs(np.ones(6))
    np.testing.assert_array_equal(caller()(np.ones(6)), np.ones((3, 2)))


@af.jit
def in_a_dict(x):
    return {"x": x}


def compiled_for_dicts():
    whole = in_a_dict.lower(X).compile()
    return numba.njit(lambda x: whole(x)["x"])(X)


def calling_python():
    f = af.jit(lambda x: af.pure_callback(np.sin, x, x)).lower(X).compile()
    return numba.njit(lambda x: f(x) + 1)(X)


MISTAKES = {
    "dtype": (
        lambda: steps(X.astype(np.float32), W, 1),
        TypingError,
        r"argument 0 of layer must be f64\[2,3\], not array\(float32, 2d, C\)",
    ),
    "shape": (
        lambda: steps(W, W, 1),
        ValueError,
        r"argument 0 of layer must be f64\[2,3\]",
    ),
    "container": (
        compiled_for_dicts,
        ArgumentError,
        "this one takes or returns other containers",
    ),
    "callback": (calling_python, ArgumentError, "or calls Python; call the jitted"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name):
    call, error, message = MISTAKES[name]
    with pytest.raises(error, match=message):
        call()
