"""linearize, linear_transpose, and the aux values of jvp and vjp."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.compilation.jit import jit
from arrayfn.errors import ArgumentError, DifferentiationError
from arrayfn.transforms import (
    ShapeDtypeStruct,
    grad,
    jvp,
    linear_transpose,
    linearize,
    make_program,
    vjp,
    vmap,
)

X = np.array([0.5, -1.0, 2.0])


def test_linearize_gives_the_value_and_the_derivative_as_a_function():
    value, forward = linearize(lambda p: {"y": np.sin(p["x"]) * p["x"]}, {"x": X})
    np.testing.assert_array_equal(value["y"], np.sin(X) * X)
    for direction in (np.ones(3), X):
        expected = jvp(lambda x: np.sin(x) * x, (X,), (direction,))[1]
        np.testing.assert_array_equal(forward({"x": direction})["y"], expected)


def test_linearize_computes_what_is_known_once():
    seen = []

    def f(x):
        seen.append(1)
        return np.exp(x) * x

    _, forward = linearize(f, X)
    forward(X)
    forward(np.ones(3))
    assert len(seen) == 1
    program = make_program(forward)(X)
    assert "exp" not in [e.primitive.name for e in program.equations]


def test_linearize_inside_jit_grad_and_vmap():
    def squared_slope(x):
        return linearize(np.sin, x)[1](x) ** 2

    def expected(x):
        return (np.cos(x) * x) ** 2

    np.testing.assert_allclose(jit(squared_slope)(X), expected(X), rtol=1e-14)
    np.testing.assert_allclose(vmap(squared_slope)(X), expected(X), rtol=1e-14)
    slope = 2 * np.cos(0.5) * 0.5 * (np.cos(0.5) - np.sin(0.5) * 0.5)
    assert grad(squared_slope)(0.5) == pytest.approx(slope, rel=1e-14)


def test_linearize_with_aux_and_integer_arguments():
    value, forward, aux = linearize(lambda x, n: (x * n, n + 1), X, 3, has_aux=True)
    assert (value.tolist(), aux) == ((3 * X).tolist(), 4)
    assert forward(np.ones(3), 0).tolist() == [3.0] * 3
    with pytest.raises(ArgumentError, match="linearize: tangents have the structure"):
        forward(np.ones(3))


def test_aux_of_jvp_and_vjp():
    value, tangent, aux = jvp(lambda x: (x**2, {"x": x}), (3.0,), (1.0,), has_aux=True)
    assert (value, tangent, aux) == (9.0, 6.0, {"x": 3.0})
    value, pull_back, aux = vjp(lambda x: (x**2, {"x": x}), 3.0, has_aux=True)
    assert (value, pull_back(1.0), aux) == (9.0, (6.0,), {"x": 3.0})


def test_the_transpose_has_the_inner_product_of_the_function():
    rng = np.random.default_rng(0)
    w = rng.standard_normal((4, 3))

    def f(x, y):
        return {"a": w @ x + y[:, 1], "b": np.cumsum(x)[::-1]}

    x, y = rng.standard_normal(3), rng.standard_normal((4, 2))
    a, b = rng.standard_normal(4), rng.standard_normal(3)
    types = ShapeDtypeStruct((3,), np.float64), ShapeDtypeStruct((4, 2), np.float64)
    to_x, to_y = linear_transpose(f, *types)({"a": a, "b": b})
    out = f(x, y)
    assert np.sum(out["a"] * a) + np.sum(out["b"] * b) == pytest.approx(
        np.sum(to_x * x) + np.sum(to_y * y), rel=1e-13
    )


def test_the_transpose_may_close_over_traced_values():
    def f(w):
        return linear_transpose(lambda x: w * x, X)(X)[0].sum()

    assert grad(f)(np.ones(3)).tolist() == X.tolist()
    assert jit(f)(2 * X) == np.sum(2 * X * X)


def test_the_transpose_of_what_is_not_linear_is_refused():
    with pytest.raises(DifferentiationError, match="mul would need the value of an"):
        linear_transpose(lambda x: x * x, X)(X)
    with pytest.raises(DifferentiationError, match="sin is not linear"):
        linear_transpose(np.sin, X)(X)


SQUARE = np.eye(3) + 0.25
PRODUCTS = {
    "div": lambda x: SQUARE / x,
    "dot_general": lambda x: x @ x,
    "conv_general": lambda x: anp.convolve(x[0], x[1]),
    "triangular_solve": lambda x: af.lax.linalg.triangular_solve(x, SQUARE),
    "solve": lambda x: anp.linalg.solve(x, SQUARE),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_the_transpose_in_an_operand_whose_value_it_needs_is_refused(name):
    with pytest.raises(DifferentiationError, match=f"{name} would need the value of"):
        linear_transpose(PRODUCTS[name], SQUARE)(PRODUCTS[name](SQUARE))
