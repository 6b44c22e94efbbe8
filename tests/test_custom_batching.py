"""``custom_vmap``: functions with batching rules of their own."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.custom_batching import custom_vmap, sequential_vmap
from arrayfn.errors import ArgumentError, ShapeError

X = np.array([[0.5, -1.0, 2.0], [1.5, 3.0, -2.0]])


@custom_vmap
def product(x, y):
    """Alone it is the product; mapped, its negative sine."""
    return {"product": anp.sin(x) * y}


@product.def_vmap
def product_vmap(axis_size, in_batched, x, y):
    x_batched, y_batched = in_batched
    if x_batched or y_batched:
        assert axis_size == (x if x_batched else y).shape[0]
    return {"product": -anp.sin(x) * y}, {"product": x_batched or y_batched}


def product_of(x, y):
    return product(x, y)["product"]


@pytest.mark.parametrize("wrap", [lambda f: f, af.jit, lambda f: af.jit(af.jit(f))])
@pytest.mark.parametrize("in_axes", [(0, 0), (0, None), (None, 0)])
def test_vmap_uses_the_rule(wrap, in_axes):
    args = [X[0] if axis == 0 else 2.0 for axis in in_axes]
    made = wrap(af.vmap(product_of, in_axes))(*args)
    np.testing.assert_allclose(made, -np.sin(args[0]) * args[1], rtol=1e-15)
    np.testing.assert_allclose(product_of(*args), np.sin(args[0]) * args[1])


def test_vmap_of_vmap_uses_the_rule_and_then_maps_it():
    made = af.jit(af.vmap(af.vmap(product_of, (0, None))))(X, X[:, 0])
    np.testing.assert_allclose(made, -np.sin(X) * X[:, :1], rtol=1e-15)


def test_a_rule_that_calls_the_function_is_mapped_by_itself():
    @custom_vmap
    def f(x):
        return x + 1.0

    @f.def_vmap
    def rule(axis_size, in_batched, x):
        return 2.0 * f(x), True

    np.testing.assert_allclose(af.vmap(f)(X[0]), 2 * (X[0] + 1))
    np.testing.assert_allclose(af.vmap(af.vmap(f))(X), 4 * (X + 1))


def test_derivatives():
    along = af.jvp(product_of, (X[0], X[1]), (X[1], X[0]))[1]
    wanted = np.cos(X[0]) * X[1] * X[1] + np.sin(X[0]) * X[0]
    np.testing.assert_allclose(along, wanted, rtol=1e-15)
    # Forward mode, mapped: the derivative of the rule.
    mapped = af.vmap(lambda x, t: af.jvp(product_of, (x, 3.0), (t, 0.0))[1])
    np.testing.assert_allclose(mapped(X[0], X[1]), -3 * np.cos(X[0]) * X[1])
    mapped = af.vmap(lambda t: af.jvp(product_of, (0.5, 3.0), (t, t))[1])
    wanted = -(3 * np.cos(0.5) + np.sin(0.5)) * X[1]
    np.testing.assert_allclose(mapped(X[1]), wanted, rtol=1e-15)
    # Mapped, then differentiated: the rule's gradient.
    made = af.grad(lambda x: af.vmap(product_of, (0, None))(x, 2.0).sum())(X[0])
    np.testing.assert_allclose(made, -2 * np.cos(X[0]), rtol=1e-15)
    made = af.jit(af.vmap(af.grad(product_of), (0, None)))(X[0], 2.0)
    np.testing.assert_allclose(made, 2 * np.cos(X[0]), rtol=1e-15)


def test_directions_that_are_mapped_without_values_ask_for_no_mapped_value():
    asked = []

    @custom_vmap
    def f(x):
        return anp.sin(x)

    @f.def_vmap
    def rule(axis_size, in_batched, x):
        asked.append((axis_size, in_batched, x.shape))
        return anp.cos(x), in_batched[0]

    np.testing.assert_allclose(af.jacfwd(f)(X[0]), -np.diag(np.sin(X[0])))
    values, slopes = af.vmap(lambda x: af.jvp(f, (x,), (2.0,)))(X[0])
    np.testing.assert_allclose(values, np.cos(X[0]))
    np.testing.assert_allclose(slopes, -2 * np.sin(X[0]))
    assert asked == [(3, [False], (3,)), (3, [False], ())]


def test_a_mapped_operand_without_a_tangent_is_not_mapped_for_the_rule():
    asked = []

    @custom_vmap
    def f(x, y):
        return anp.sin(x) * y

    @f.def_vmap
    def rule(axis_size, in_batched, x, y):
        asked.append((in_batched, x.shape, y.shape))
        return -anp.sin(x) * y, any(in_batched)

    def along_x(x, y, dx):
        return af.jvp(lambda x: f(x, y), (x,), (dx,))

    x, y = X
    for in_axes, args in (
        ((None, 0, None), (0.5, y, 2.0)),
        ((None, 0, 0), (0.5, y, x)),
    ):
        values, slopes = af.vmap(along_x, in_axes)(*args)
        np.testing.assert_allclose(values, -np.sin(0.5) * y)
        np.testing.assert_allclose(slopes, -np.cos(0.5) * y * args[2])
    # JAX's rule gets no mapped operand here, either.
    assert asked == [([False, False], (), ())] * 2
    # x is mapped together with its tangent, and y must then be mapped with it.
    values, slopes = af.vmap(along_x, (0, 0, 0))(x, y, x)
    np.testing.assert_allclose(values, -np.sin(x) * y)
    np.testing.assert_allclose(slopes, -np.cos(x) * x * y)
    assert asked[2:] == [([True, True], (3,), (3,))]


def test_in_loops_and_branches():
    def step(total, x):
        return total + af.vmap(product_of, (0, None))(x, total), None

    def looped(xs):
        return af.lax.scan(step, np.zeros(3)[0], xs)[0]

    def rows(xs):
        return af.lax.map(lambda x: af.vmap(product_of, (0, None))(x, 2.0), xs)

    np.testing.assert_allclose(af.jit(rows)(X), -2 * np.sin(X), rtol=1e-15)
    chosen = af.vmap(
        lambda p, x: af.lax.cond(p, lambda x: product_of(x, 1.0), lambda x: x, x)
    )(np.array([True, False, True]), X[0])
    np.testing.assert_allclose(chosen, np.where([1, 0, 1], -np.sin(X[0]), X[0]))


def test_sequential_vmap_calls_for_each_member():
    seen = []

    @sequential_vmap
    def f(x, y):
        result = af.ShapeDtypeStruct(x.shape, x.dtype)
        return (
            af.pure_callback(lambda x: (seen.append(x.shape), x * 2)[1], result, x) + y
        )

    made = af.vmap(f, (0, None))(X, 1.0)
    np.testing.assert_array_equal(made, 2 * X + 1)
    assert seen == [(3,), (3,)]


def test_errors_name_the_function_and_the_remedy():
    ruleless = custom_vmap(lambda x: x)
    with pytest.raises(ArgumentError, match=r"without a rule; give it one with @"):
        af.vmap(ruleless)(X)

    @custom_vmap
    def f(x):
        return x

    f.def_vmap(lambda size, batched, x: x)
    with pytest.raises(ArgumentError, match="must give a pair"):
        af.vmap(f)(X)
    f.def_vmap(lambda size, batched, x: (x, 1))
    with pytest.raises(ArgumentError, match="out_batched must be a bool"):
        af.vmap(f)(X)
    f.def_vmap(lambda size, batched, x: (x[0], True))
    with pytest.raises(ShapeError, match="batching rule of f"):
        af.vmap(f)(X)

    def closes_over(x):
        g = custom_vmap(lambda y: x * y)
        g.def_vmap(lambda size, batched, y: (y, True))
        return g(2.0) + g(x)

    with pytest.raises(ArgumentError, match="closes over a value that is mapped"):
        af.vmap(closes_over)(X[0])
