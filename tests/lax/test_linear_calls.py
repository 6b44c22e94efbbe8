"""linear_call: what it computes, every derivative, and which transpose is used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn import lax, tree
from arrayfn.compilation.jit import jit
from arrayfn.errors import ArgumentError, ShapeError
from arrayfn.transforms import grad, hessian, jacfwd, vmap

RNG = np.random.default_rng(5)
M = RNG.normal(size=(3, 4))
X = RNG.normal(size=4)


def product(m: Any, x: Any) -> Any:
    return lax.linear_call(
        lambda m, x: anp.sin(m) @ x, lambda m, y: anp.sin(m).T @ y, m, x
    )


def direct(m: Any, x: Any) -> Any:
    return anp.sin(m) @ x


def cubes(f: Any) -> Any:
    return lambda m, x: (f(m, x) ** 3).sum()


def assert_close(have: Any, want: Any) -> None:
    for ours, theirs in zip(tree.leaves(have), tree.leaves(want), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("wrap", [lambda f: f, jit])
def test_derivatives_of_all_orders_are_those_of_the_function(wrap: Any) -> None:
    assert_close(wrap(product)(M, X), direct(M, X))
    for derived in (
        lambda f: jacfwd(f, (0, 1)),
        lambda f: grad(cubes(f), (0, 1)),
        lambda f: hessian(cubes(f), (0, 1)),
    ):
        assert_close(wrap(derived(product))(M, X), derived(direct)(M, X))


@pytest.mark.parametrize(("m", "x"), [(0, None), (None, 0), (0, 0)])
def test_mapping_of_either_argument_and_of_gradients(m: Any, x: Any) -> None:
    ms = M if m is None else np.stack([M, 2 * M])
    xs = X if x is None else np.stack([X, X + 1])
    for derived in (lambda f: f, lambda f: grad(cubes(f), (0, 1))):
        have, want = (vmap(derived(f), (m, x))(ms, xs) for f in (product, direct))
        assert_close(have, want)


def test_reverse_mode_calls_the_transpose_that_is_given() -> None:
    def doubled(x: Any) -> Any:
        return lax.linear_call(lambda _, x: 2.0 * x, lambda _, y: 7.0 * y, (), x).sum()

    assert_close(grad(doubled)(X), np.full(4, 7.0))


def test_a_transpose_of_another_form_is_refused() -> None:
    def wrong(transpose: Any) -> Any:
        f = lambda x: lax.linear_call(lambda _, x: x, transpose, (), x).sum()  # noqa: E731
        return grad(f)(X)

    with pytest.raises(ArgumentError, match="gives the structure"):
        wrong(lambda _, y: (y, y))
    with pytest.raises(ShapeError, match="linear_call: results of the transpose"):
        wrong(lambda _, y: y[:2])
