"""Taylor mode beside nested directional derivatives, and what it costs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn import lax, nn
from arrayfn.compilation.jit import jit
from arrayfn.errors import ArgumentError, DifferentiationError
from arrayfn.transforms import grad, jet, jvp, make_program, vmap

X = np.array([0.3, 0.7, 1.2])
SERIES = [
    np.array([1.0, 0.5, -0.2]),
    np.array([0.1, 0.2, 0.3]),
    np.array([-0.4, 0.0, 1.0]),
]
W = np.random.default_rng(0).normal(size=(3, 3))
FUNCTIONS = {
    "sin": anp.sin,
    "quotient": lambda x: anp.exp(x) * anp.cos(x) / (1 + x * x),
    "power": lambda x: x**2.5 + anp.sqrt(x) + x**3,
    "logarithm": lambda x: anp.log(x) + anp.log1p(x),
    "matrix": lambda x: anp.tanh(W @ x) @ W,
    "layer": lambda x: nn.softmax(nn.gelu(W @ x)),
    "branches": lambda x: anp.where(x > 0.5, x * x, anp.cos(x)).max(),
    "cond": lambda x: lax.cond(x[0] > 0, lambda x: x * x, lambda x: x, x),
    "loop": lambda x: lax.scan(lambda c, a: (anp.sin(c) * a, c), x.sum(), x),
    "system": lambda x: anp.linalg.solve(W + anp.diag(x), x),
    "norm": anp.linalg.norm,
    "gradient": grad(lambda y: (y**3).sum()),
    "captured": lambda x: anp.cumsum(x * SERIES[0])[::-1],
}


def nested(function: Any) -> list[Any]:
    """The derivatives along the curve, each the jvp of the one before."""

    def along(t: Any) -> Any:
        terms = enumerate(SERIES, 1)
        return function(X + sum(s * t**k / math.factorial(k) for k, s in terms))

    def slope(f: Any) -> Any:
        return lambda t: jvp(f, (t,), (1.0,))[1]

    made, f = [], along
    for _ in SERIES:
        f = slope(f)
        made.append(f(0.0))
    return made


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_are_those_of_nested_jvps(name: str) -> None:
    function = FUNCTIONS[name]
    value, terms = jet(function, (X,), (SERIES,))
    want = nested(function)
    if name == "loop":
        assert [len(part) for part in terms] == [3, 3]
        value, terms, want = value[0], terms[0], [w[0] for w in want]
        function = lambda x, f=function: f(x)[0]  # noqa: E731
    np.testing.assert_allclose(value, function(X), rtol=1e-12)
    for have, wanted in zip(terms, want, strict=True):
        assert np.isfinite(wanted).all()
        np.testing.assert_allclose(have, wanted, rtol=1e-11, atol=1e-12)


def test_two_arguments_pytrees_and_integers() -> None:
    def f(p: Any, n: Any) -> Any:
        return {"product": p["a"] * p["b"] * n, "n": n}

    p = {"a": np.array(2.0), "b": np.array(3.0)}
    one, none = {"a": 1.0, "b": 1.0}, {"a": 0.0, "b": 0.0}
    value, terms = jet(f, (p, 2), ([one, none], [0, 0]))
    assert value["product"] == 12.0
    assert [float(x) for x in terms["product"]] == [10.0, 4.0]


def test_jet_is_traced_mapped_and_differentiated() -> None:
    def third(x: Any) -> Any:
        return jet(anp.sin, (x,), ([1.0, 0.0, 0.0],))[1][2]

    np.testing.assert_allclose(jit(third)(0.3), -np.cos(0.3))
    np.testing.assert_allclose(vmap(third)(X), -np.cos(X))
    np.testing.assert_allclose(grad(third)(0.3), np.sin(0.3))


def test_the_cost_does_not_double_with_each_order() -> None:
    def equations(order: int) -> int:
        series = [1.0, *[0.0] * (order - 1)]
        wave = lambda x: anp.sin(x) * anp.exp(x)  # noqa: E731
        made = make_program(lambda x: jet(wave, (x,), (series,))[1])(1.0)
        return len(made.equations)

    assert equations(8) < 8 * equations(4)


def test_what_has_no_series_is_refused() -> None:
    with pytest.raises(ArgumentError, match="as many series, all of one length"):
        jet(anp.sin, (1.0,), ([1.0], [1.0]))
    with pytest.raises(ArgumentError, match="has the structure"):
        jet(anp.sin, (1.0,), ([(1.0,)],))
    with pytest.raises(DifferentiationError, match="nextafter"):
        jet(lambda x: anp.nextafter(x, 2.0), (1.0,), ([1.0],))
