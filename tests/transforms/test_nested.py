"""Transformations of transformations, against closed forms and finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn.transforms import grad, jvp, value_and_grad, vjp, vmap

Array = np.ndarray[Any, Any]
X = np.array([0.3, -0.7, 1.9])


def difference(function: Callable[..., Any], x: Array, direction: Array) -> Any:
    step = 1e-6
    ahead, behind = function(x + step * direction), function(x - step * direction)
    return (np.asarray(ahead) - np.asarray(behind)) / (2 * step)


# Derivatives of derivatives.


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_repeated_grad_of_sine_is_the_shifted_sine(order: int) -> None:
    function = anp.sin
    for _ in range(order):
        function = grad(function)
    expected = math.sin(0.3 + order * math.pi / 2)
    assert function(0.3) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_repeated_jvp_of_a_power(order: int) -> None:
    def derivative(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda x: jvp(function, (x,), (1.0,))[1]

    function: Callable[[Any], Any] = lambda x: x**5  # noqa: E731
    for _ in range(order):
        function = derivative(function)
    expected = math.perm(5, order) * 1.3 ** (5 - order)
    assert function(1.3) == pytest.approx(expected, rel=1e-13)


def rosenbrock(x: Any) -> Any:
    return anp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def hessian_of_rosenbrock(x: Array) -> Array:
    n = len(x)
    h = np.zeros((n, n))
    for k in range(n - 1):
        h[k, k] += 1200 * x[k] ** 2 - 400 * x[k + 1] + 2
        h[k + 1, k + 1] += 200
        h[k, k + 1] = h[k + 1, k] = -400 * x[k]
    return h


def forward_over_reverse(f: Callable[[Any], Any], x: Any) -> Any:
    return vmap(lambda d: jvp(grad(f), (x,), (d,))[1])(np.eye(len(x)))


def reverse_over_reverse(f: Callable[[Any], Any], x: Any) -> Any:
    return vmap(lambda d: grad(lambda y: anp.sum(grad(f)(y) * d))(x))(np.eye(len(x)))


def reverse_over_forward(f: Callable[[Any], Any], x: Any) -> Any:
    return vmap(lambda d: grad(lambda y: jvp(f, (y,), (d,))[1])(x))(np.eye(len(x)))


def forward_over_forward(f: Callable[[Any], Any], x: Any) -> Any:
    def second(d: Any, e: Any) -> Any:
        return jvp(lambda y: jvp(f, (y,), (d,))[1], (x,), (e,))[1]

    rows = vmap(vmap(second, in_axes=(None, 0)), in_axes=(0, None))
    return rows(np.eye(len(x)), np.eye(len(x)))


def pulled_back(f: Callable[[Any], Any], x: Any) -> Any:
    _, pull_back = vjp(grad(f), x)
    return vmap(pull_back)(np.eye(len(x)))[0]


@pytest.mark.parametrize(
    "hessian",
    [
        forward_over_reverse,
        reverse_over_reverse,
        reverse_over_forward,
        forward_over_forward,
        pulled_back,
    ],
)
def test_the_hessian_in_every_composition(hessian: Callable[..., Any]) -> None:
    np.testing.assert_allclose(
        hessian(rosenbrock, X), hessian_of_rosenbrock(X), rtol=1e-12, atol=1e-12
    )


def energy(x: Any, w: Any) -> Any:
    hidden = anp.tanh(w @ x)
    return anp.sum(anp.log(1.0 + anp.exp(hidden)) * anp.cos(x))


W = np.array([[0.2, -0.4, 1.0], [0.5, 0.1, -0.3], [-1.2, 0.8, 0.7]])
XS = np.stack([X, -X, 2 * X, X**2])


def test_vmap_of_grad_is_a_loop_of_grad() -> None:
    mapped = vmap(grad(energy, argnums=(0, 1)), in_axes=(0, None))(XS, W)
    loop = [grad(energy, argnums=(0, 1))(x, W) for x in XS]
    for position in (0, 1):
        want = np.stack([g[position] for g in loop])
        np.testing.assert_allclose(mapped[position], want, rtol=1e-13, atol=1e-15)


def test_grad_of_vmap_is_a_sum_of_grads() -> None:
    def total(w: Any) -> Any:
        return anp.sum(vmap(energy, in_axes=(0, None))(XS, w))

    want = sum(grad(energy, argnums=1)(x, W) for x in XS)
    np.testing.assert_allclose(grad(total)(W), want, rtol=1e-13)


def test_jvp_of_vjp() -> None:
    d = np.array([1.0, -0.5, 0.25])

    def pulled(x: Any) -> Any:
        value, pull_back = vjp(lambda y: anp.exp(anp.sin(y)), x)
        return pull_back(value)[0]

    # exp(sin x) pulled back along itself: exp(2 sin x) cos x.
    value, tangent = jvp(pulled, (X,), (d,))
    want = np.exp(2 * np.sin(X)) * np.cos(X)
    slope = np.exp(2 * np.sin(X)) * (2 * np.cos(X) ** 2 - np.sin(X))
    np.testing.assert_allclose(value, want, rtol=1e-14)
    np.testing.assert_allclose(tangent, slope * d, rtol=1e-13)


THREE_DEEP = {
    "grad of grad of grad": grad(grad(grad(lambda x: x**4 * anp.sin(x)))),
    "vmap of grad of vmap": lambda x: anp.sum(
        vmap(lambda s: grad(lambda y: anp.sum(vmap(anp.sin)(y * x * s)))(s))(x)
    ),
    "grad of vmap of grad": lambda x: grad(
        lambda s: anp.sum(vmap(grad(lambda y: anp.sin(y * s)))(anp.ones(3) * x))
    )(x),
    "jvp of grad of jvp": lambda x: jvp(
        grad(lambda y: jvp(lambda z: anp.exp(z * y), (y,), (2.0,))[1]), (x,), (1.0,)
    )[1],
    "vjp of jvp of grad": lambda x: vjp(
        lambda y: jvp(grad(lambda z: anp.sin(z) * z**3), (y,), (y,))[1], x
    )[1](1.0)[0],
    "vmap of vmap of grad": lambda x: anp.sum(
        vmap(vmap(grad(lambda y: anp.tanh(y * x))), 1)(np.arange(6.0).reshape(2, 3))
    ),
}


@pytest.mark.parametrize("name", [n for n in THREE_DEEP if n != "vmap of grad of vmap"])
def test_three_deep_transformations_differentiate(name: str) -> None:
    function = THREE_DEEP[name]
    x, d = np.array(0.7), np.array(1.0)
    np.testing.assert_allclose(
        grad(function)(x), difference(function, x, d), rtol=1e-7, atol=1e-8
    )
    np.testing.assert_allclose(
        jvp(function, (x,), (d,))[1], grad(function)(x), rtol=1e-12
    )


def test_vmap_of_grad_of_vmap() -> None:
    function = THREE_DEEP["vmap of grad of vmap"]
    # The sum over s in x of the derivative by s of sum(sin(s x s)).
    want = sum(np.sum(np.cos(s * X * s) * X * s) for s in X)
    np.testing.assert_allclose(function(X), want, rtol=1e-13)


# Perturbation confusion: a derivative must not see the inner one's perturbation.


def test_the_classic_of_siskind_and_pearlmutter() -> None:
    # d/dx (x * d/dy (x + y)) = 1 wherever it is taken (2008, section 3).
    def forward(f: Callable[[Any], Any], x: Any) -> Any:
        return jvp(f, (x,), (1.0,))[1]

    def reverse(f: Callable[[Any], Any], x: Any) -> Any:
        return grad(f)(x)

    def slope(inner: Callable[..., Any]) -> Callable[[Any], Any]:
        return lambda x: x * inner(lambda y: x + y, 1.0)

    for outer in (forward, reverse):
        for inner in (forward, reverse):
            assert outer(slope(inner), 1.0) == 1.0


def test_a_closed_over_tracer_is_not_differentiated_by_the_inner_grad() -> None:
    def f(x: Any) -> Any:
        return grad(lambda y: anp.sin(x) * y**2)(2.0 * x)

    # d/dx (4 x sin x).
    want = 4 * math.sin(0.6) + 4 * 0.6 * math.cos(0.6)
    assert grad(f)(0.6) == pytest.approx(want, rel=1e-14)


def test_inner_and_outer_variables_of_one_name_stay_apart() -> None:
    def f(x: Any) -> Any:
        def g(y: Any) -> Any:
            return x * grad(lambda x: x**3 * y)(y)

        return grad(g)(x)

    # g(y) = x * 3 y^2 * y = 3 x y^3; g'(x) = 9 x^3; f' = 27 x^2.
    assert grad(f)(1.5) == pytest.approx(27 * 1.5**2, rel=1e-14)


def test_a_mapped_tracer_closed_over_by_an_inner_map() -> None:
    def f(x: Any) -> Any:
        return vmap(lambda y: x * y + x)(np.array([1.0, 10.0]))

    np.testing.assert_array_equal(
        vmap(f)(np.array([1.0, 2.0, 3.0])), [[2, 11], [4, 22], [6, 33]]
    )


def test_an_inner_map_of_an_unmapped_value_next_to_a_closed_over_mapped_one() -> None:
    w = np.array([1.0, 2.0])
    outer = vmap(lambda a: grad(lambda b: anp.sum(vmap(lambda c: a * b * c)(w)))(a))
    np.testing.assert_array_equal(outer(np.array([1.0, 5.0])), [3.0, 15.0])


# Where nothing, or only a part, varies.


def test_constants_have_a_gradient_of_zero() -> None:
    np.testing.assert_array_equal(grad(lambda x: 3.0)(X), np.zeros(3))
    np.testing.assert_array_equal(grad(lambda x: anp.sum(anp.floor(x)))(X), np.zeros(3))
    assert grad(lambda x, y: y * 2.0)(1.0, 2.0) == 0.0
    value, tangent = jvp(lambda x: np.ones(2), (X,), (X,))
    np.testing.assert_array_equal(value, [1.0, 1.0])
    np.testing.assert_array_equal(tangent, [0.0, 0.0])


def test_an_argument_may_be_used_many_times_or_returned() -> None:
    value, gradient = value_and_grad(lambda x: x)(2.0)
    assert (value, gradient) == (2.0, 1.0)
    assert grad(lambda x: x + x + x * x)(2.0) == 6.0
    np.testing.assert_array_equal(vmap(lambda x, y: y, (0, None))(X, 1.0), np.ones(3))


def test_integer_outputs_have_no_tangent() -> None:
    (_, count), (_, tangent) = jvp(
        lambda x: (x * 2.0, anp.argmax(x)), (X,), (np.ones(3),)
    )
    assert count == 2
    assert tangent == 0
    assert np.asarray(tangent).dtype == np.asarray(count).dtype


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_gradients_have_the_dtype_of_their_argument(dtype: Any) -> None:
    x = X.astype(dtype)
    value, gradient = value_and_grad(lambda v: anp.sum(anp.sin(v) * 2.0))(x)
    assert value.dtype == gradient.dtype == dtype
    np.testing.assert_allclose(gradient, 2 * np.cos(X), rtol=3e-3)
