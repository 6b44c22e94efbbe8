"""grad, value_and_grad, jvp, vjp, vmap: values, structures, nesting, threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn import nn
from arrayfn.compilation.jit import jit
from arrayfn.scipy import special
from arrayfn.transforms import grad, jvp, value_and_grad, vjp, vmap

RNG = np.random.default_rng(0)
X = RNG.uniform(0.2, 0.9, (3, 4))
W = RNG.standard_normal((4, 4))
STEP = 1e-6

# Differentiable everywhere near X.
FORMULAS = {
    "products": lambda x: (x @ W).T @ x,
    "quotient": lambda x: x / (1 + x[::-1]),
    "powers": lambda x: x**3 + x**-2 + x**0.5 + x**1.7 + 2**x + x ** x[::-1],
    "exponentials": lambda x: np.exp(x) + np.exp2(x) + np.expm1(x) * np.log1p(x),
    "logarithms": lambda x: (
        np.log(x) * np.log2(x) + np.log10(x) + np.logaddexp(x, 2 * x)
    ),
    "trigonometry": lambda x: np.sin(x) * np.cos(x) + np.tan(x) + np.arctan2(x, x[0]),
    "inverses": lambda x: np.arcsin(x) + np.arccos(x) * np.arctan(x),
    "hyperbolic": lambda x: np.sinh(x) * np.cosh(x) + np.tanh(x),
    "hyperbolic inverses": lambda x: np.arcsinh(x) * np.arccosh(x + 1) + np.arctanh(x),
    "roots": lambda x: np.sqrt(x) * np.cbrt(x) + np.hypot(x, x[::-1]),
    "special": lambda x: special.erf(x) * special.erfc(x) + special.erfinv(x),
    "gamma": lambda x: special.gammaln(x) + special.xlogy(x, x),
    "normal": lambda x: special.ndtr(x) * special.logit(x) + special.ndtri(x),
    "extrema": lambda x: np.maximum(x, x[::-1, ::-1] + 0.01) * x.max(0) - x.min(),
    "choices": lambda x: np.where(x > 0.5, x**2, np.sin(x)) + np.clip(x, 0.3, 0.8),
    "statistics": lambda x: x.mean(1) * x.var(1) + x.std(1, ddof=1) + x.prod(1),
    "sums": lambda x: np.cumsum(x, 1) * np.cumprod(x, 1) + x.sum(0),
    "rearrangement": lambda x: np.roll(x, 1, 0) * np.flip(x) + np.tril(x) * x.min(),
    "joining": lambda x: np.concatenate([x, x.T @ x], 0) * np.tile(x, (7, 1))[:7],
    "padding": lambda x: np.pad(x, 1, mode="reflect") * np.pad(x, 1) * np.sum(x),
    "indexing": lambda x: x[np.array([0, 2, 0])][:, ::-1] * x[1, None, 1:2],
    "updates": lambda x: anp.at(x)[np.array([0, 2])].multiply(x[:2]) * x,
    "einsum": lambda x: np.einsum("ij,kj,kl->il", x, x, x),
    "softmax": lambda x: nn.softmax(x, 1) * nn.log_softmax(x, 0) + nn.logsumexp(x),
    "normalization": lambda x: nn.layer_norm(x, x[0], x[1]) * nn.rms_norm(x),
    "activations": lambda x: nn.gelu(x - 0.5) + nn.silu(x) * nn.softplus(x) + nn.elu(x),
    "complex": lambda x: np.abs(np.exp(1j * x) * (x + 2j)) + np.angle(x + 1j * x**2),
}


def scalar(function):
    """``function`` weighted and summed, the same each time."""

    def total(x):
        y = function(x)
        return (y * np.random.default_rng(1).standard_normal(y.shape)).sum()

    return total


def slope(function, x, direction):
    """The directional derivative, by central differences."""
    ahead, behind = function(x + STEP * direction), function(x - STEP * direction)
    return (ahead - behind) / (2 * STEP)


@pytest.mark.parametrize("name", FORMULAS)
def test_derivatives_agree_with_differences_to_second_order(name):
    f = scalar(FORMULAS[name])
    direction = RNG.standard_normal(X.shape)
    expected = slope(f, X, direction)
    gradient = grad(f)(X)
    assert gradient.shape == X.shape
    assert np.sum(gradient * direction) == pytest.approx(expected, rel=2e-7, abs=1e-8)
    value, tangent = jvp(f, (X,), (direction,))
    assert value == pytest.approx(f(X), rel=1e-14)
    assert tangent == pytest.approx(np.sum(gradient * direction), rel=1e-11)

    def along(x):
        return (grad(f)(x) * direction).sum()

    other = RNG.standard_normal(X.shape)
    second = np.sum(grad(along)(X) * other)
    assert second == pytest.approx(slope(along, X, other), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", FORMULAS)
def test_mapping_is_a_loop(name):
    f = scalar(FORMULAS[name])
    xs = np.stack([X, X + 0.05, X[::-1]])
    np.testing.assert_allclose(vmap(f)(xs), [f(x) for x in xs], rtol=1e-12)
    np.testing.assert_allclose(
        vmap(grad(f))(xs), [grad(f)(x) for x in xs], rtol=1e-11, atol=1e-12
    )


def square(x):
    return x * x


def test_python_numbers_are_arguments():
    result = grad(square)(3.0)
    assert isinstance(result, np.ndarray)
    assert (result.shape, result.dtype, float(result)) == ((), np.float64, 6.0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_gradients_have_the_dtype_of_the_argument(dtype):
    x = np.array([1.0, 2.0], dtype)
    assert grad(lambda x: (x * 2.5).sum())(x).dtype == dtype
    assert grad(lambda x: (x * np.float64(2.5)).sum())(x).dtype == dtype


def test_gradients_of_complex_arguments_follow_jax():
    assert grad(lambda z: (z * z.conj()).real)(1 + 2j) == 2 - 4j
    expected = -3.0518977991518 - 2.0327230070196656j
    assert grad(lambda z: np.sin(z).imag)(1 + 2j) == pytest.approx(expected, rel=1e-14)


def test_gradients_have_the_structure_of_the_argument():
    params = {"w": [np.ones(2), np.array(3.0)], "b": (2.0, None)}

    def f(p, x):
        return (p["w"][0] * p["w"][1] * x).sum() + p["b"][0]

    value, gradient = value_and_grad(f)(params, np.array([1.0, 2.0]))
    assert value == 11.0
    assert gradient["w"][0].tolist() == [3.0, 6.0]
    assert gradient["w"][1].tolist() == 3.0
    assert gradient["b"][0].tolist() == 1.0
    assert gradient["b"][1] is None


def test_gradients_come_in_the_order_of_argnums():
    def f(x, y):
        return y * np.sum(x * x)

    x = np.array([1.0, 3.0])
    for argnums in ((1, 0), (-1, 0), (1, 0, 1)):
        by_y, by_x, *rest = grad(f, argnums)(x, 2.0)
        assert (float(by_y), by_x.tolist()) == (10.0, [4.0, 12.0])
        assert [float(y) for y in rest] == [10.0] * (len(argnums) - 2)


def test_argnums_may_be_several_or_negative():
    def f(x, y, z):
        return x * y * z

    assert grad(f, argnums=(0, 2))(2.0, 3.0, 4.0) == (12.0, 6.0)
    assert grad(f, argnums=-1)(2.0, 3.0, 4.0) == 6.0
    assert grad(f, argnums=[-2])(2.0, 3.0, 4.0) == (8.0,)
    assert grad(f)(2.0, y=3.0, z=4.0) == 12.0


def test_aux_comes_back_as_it_is_structured():
    def f(x):
        return (x**2).sum(), {"double": 2 * x, "n": 7}

    (value, aux), gradient = value_and_grad(f, has_aux=True)(np.array([1.0, 2.0]))
    assert value == 5.0
    assert aux["double"].tolist() == [2.0, 4.0]
    assert aux["n"] == 7
    assert gradient.tolist() == [2.0, 4.0]
    assert grad(f, has_aux=True)(np.ones(1))[1]["n"] == 7


def test_what_does_not_vary_has_a_gradient_of_zeros():
    assert grad(lambda x: 5.0)(np.ones(2)).tolist() == [0.0, 0.0]
    assert grad(lambda x: np.floor(x).sum())(np.ones(2)).tolist() == [0.0, 0.0]


def test_a_gradient_that_is_an_argument_does_not_alias_it():
    w = np.ones(3)
    result = grad(lambda x: (x * w).sum())(np.zeros(3))
    result[:] = 9
    assert w.tolist() == [1.0, 1.0, 1.0]


def test_no_perturbation_confusion():
    # Siskind and Pearlmutter, 2005: the inner derivative is 1 whatever x is.
    assert grad(lambda x: x * grad(lambda y: x + y)(1.0))(5.0) == 1.0
    assert grad(lambda x: grad(lambda y: x * y)(2.0) * x)(3.0) == 6.0


def test_derivatives_by_values_closed_over():
    def outer(w):
        inner = vmap(grad(lambda y: (w * y**2).sum()))
        return inner(np.ones((2, 3))).sum()

    assert grad(outer)(np.ones(3)).tolist() == [4.0, 4.0, 4.0]


def test_third_derivatives():
    assert grad(grad(grad(lambda x: x**4)))(2.0) == 48.0


def test_jvp_of_pytrees():
    def f(p):
        return {"y": p[0] * p[1]["k"]}

    value, tangent = jvp(f, ((2.0, {"k": 3.0}),), ((1.0, {"k": 10.0}),))
    assert (value, tangent) == ({"y": 6.0}, {"y": 23.0})


def test_vjp_gives_one_cotangent_for_each_argument():
    value, pull_back = vjp(lambda x, n, y: (x * y * n, x + y), 2.0, 3, 5.0)
    assert value == (30.0, 7.0)
    assert pull_back((1.0, 10.0)) == (25.0, 0.0, 16.0)
    assert pull_back((0.0, 1.0)) == (1.0, 0.0, 1.0)


def test_vjp_inside_jit_and_grad():
    def f(x):
        _, pull_back = vjp(np.sin, x)
        return pull_back(np.cos(x))[0]

    assert jit(f)(0.5) == pytest.approx(np.cos(0.5) ** 2, rel=1e-15)
    assert grad(f)(0.5) == pytest.approx(-np.sin(1.0), rel=1e-14)


AXES = [
    (0, 0, (2, 3), (2, 3)),
    ((0, None), 0, (2, 3), (3,)),
    ((1, 0), 0, (3, 2), (2, 3)),
    ((None, -1), 0, (3,), (3, 2)),
    ((0, 0), 1, (2, 3), (2, 3)),
    ((0, 0), -1, (2, 3), (2, 3)),
]


@pytest.mark.parametrize(("in_axes", "out_axes", "x", "y"), AXES)
def test_axes_of_mapping(in_axes, out_axes, x, y):
    x, y = RNG.standard_normal(x), RNG.standard_normal(y)
    first, second = in_axes if isinstance(in_axes, tuple) else (in_axes, in_axes)
    expected = np.stack(
        [
            np.sin(x if first is None else np.take(x, k, first))
            * (y if second is None else np.take(y, k, second))
            for k in range(2)
        ],
        axis=out_axes,
    )
    result = vmap(lambda x, y: np.sin(x) * y, in_axes, out_axes)(x, y)
    np.testing.assert_allclose(result, expected, rtol=1e-15)
    assert result.flags.c_contiguous


def test_mapping_over_pytrees_with_prefixes():
    p = {"a": np.arange(3.0), "b": np.ones(2)}
    f = vmap(
        lambda p, q: {"s": p["a"] + p["b"], "q": q},
        in_axes=({"a": 0, "b": None}, None),
        out_axes={"s": 1, "q": None},
    )
    result = f(p, 7.0)
    assert result["s"].tolist() == [[1.0, 2.0, 3.0]] * 2
    assert result["q"] == 7.0


def test_keyword_arguments_are_mapped_along_axis_0():
    f = vmap(lambda x, y: x + 2 * y)
    assert f(np.arange(2.0), y=np.array([10.0, 20.0])).tolist() == [20.0, 41.0]


def test_mapping_of_what_does_not_vary_repeats_it():
    assert vmap(lambda x: 1.0)(np.zeros(3)).tolist() == [1.0, 1.0, 1.0]


def test_nested_mappings():
    x, y = np.arange(3.0), np.arange(4.0)
    outer = vmap(vmap(lambda a, b: a * b, (None, 0)), (0, None))
    np.testing.assert_array_equal(outer(x, y), np.outer(x, y))


def test_threads_trace_apart():
    results: dict[int, float] = {}

    def work(k):
        f = grad(lambda x: (x ** float(k)).sum())
        results[k] = [float(f(np.array([2.0]))[0]) for _ in range(5)][-1]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {k: pytest.approx(k * 2.0 ** (k - 1)) for k in range(1, 9)}
