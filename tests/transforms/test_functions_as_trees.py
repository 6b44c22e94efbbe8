"""Pull-backs as trees, and gradients beside arguments that are no arrays."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.errors import ArgumentError, DifferentiationError

X = np.arange(1.0, 4.0)


def test_compiled_code_returns_and_takes_a_pull_back():
    forward = af.jit(lambda x, n: af.vjp(lambda x, n: anp.sin(x) * n, x, n))
    value, pull_back = forward(X, 2)
    np.testing.assert_allclose(value, 2 * np.sin(X))
    to_x, to_n = pull_back(X)
    np.testing.assert_allclose(to_x, 2 * np.cos(X) * X)
    assert to_n == 0
    backward = af.jit(lambda pull_back, ct: pull_back(ct))
    np.testing.assert_allclose(backward(pull_back, X)[0], to_x)
    backward(forward(2 * X, 3)[1], X)
    assert len(backward.signatures()) == 1
    mapped = af.vmap(pull_back)(np.eye(3))[0]
    np.testing.assert_allclose(mapped, np.diag(2 * np.cos(X)))


def test_a_loop_carries_a_pull_back():
    _, pull_back = af.vjp(lambda x: x * x, X)

    def step(carry, _):
        return carry, carry(X)[0]

    _, rows = af.lax.scan(step, pull_back, None, length=2)
    np.testing.assert_allclose(rows, np.stack([2 * X * X] * 2))


def test_grad_beside_arguments_that_are_no_arrays():
    class Options:
        power = 3

    def f(x, how, *, options=None, tree=None):
        assert how == "cubed"
        assert tree["name"] is print
        return anp.sum(tree["scale"] * x**options.power)

    made = af.grad(f)(X, "cubed", options=Options(), tree={"name": print, "scale": 2.0})
    np.testing.assert_allclose(made, 6 * X**2)
    value, gradient = af.jit(
        lambda x: af.value_and_grad(f)(
            x, "cubed", options=Options(), tree={"name": print, "scale": x[0]}
        )
    )(X)
    np.testing.assert_allclose(value, (X**3).sum())
    np.testing.assert_allclose(gradient, 3 * X**2)
    with pytest.raises(ArgumentError, match=r"f: argument 1 is str"):
        af.grad(f, argnums=1)(X, "cubed")
    with pytest.raises((ArgumentError, DifferentiationError), match=r"argument 1"):
        af.grad(lambda x, y: x, argnums=1)(1.0, object())
