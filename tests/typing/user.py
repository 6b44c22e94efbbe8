"""A user's file: type checkers are strict about it, and know what arrayfn gives."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax

Params = dict[str, af.Array]


def predict(params: Params, x: af.Array) -> af.Array:
    hidden = anp.tanh(x @ params["w"] + params["b"])
    return anp.sum(hidden * params["v"], axis=-1)


def loss(params: Params, x: af.Array, y: af.Array, *, scale: float = 1.0) -> af.Array:
    error = predict(params, x) - y
    return scale * anp.mean(anp.square(error))


def with_aux(params: Params, x: af.Array) -> tuple[af.Array, int]:
    return anp.sum(predict(params, x)), 3


@af.jit
def step(params: Params, x: af.Array, y: af.Array) -> tuple[af.Array, Params]:
    value, gradient = af.value_and_grad(loss)(params, x, y, scale=0.5)
    return value, {k: p - 0.1 * gradient[k] for k, p in params.items()}


@af.jit(checks=True, static_argnames="count")
def element(x: af.Array, count: int) -> af.Array:
    def add(k: af.Array, total: af.Array) -> af.Array:
        return total + x[k]

    total: af.Array = lax.fori_loop(0, count, add, anp.zeros(()))
    return total


class Model:
    scale = 2.0

    @af.jit(static_argnums=0)
    def double(self, x: af.Array) -> af.Array:
        return self.scale * x


@af.custom_jvp
def softplus(x: af.Array) -> af.Array:
    return anp.log1p(anp.exp(x))


@softplus.defjvp
def softplus_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    return softplus(x), t / (1 + anp.exp(-x))


@af.custom_vmap
def norm(x: af.Array) -> af.Array:
    return anp.sqrt(anp.sum(x * x))


@norm.def_vmap
def norm_vmap(size: int, in_batched: list[bool], x: af.Array) -> tuple[af.Array, bool]:
    return anp.sqrt(anp.sum(x * x, axis=1)), True


@af.checkpoint(policy=af.checkpoint_policies.dots_saveable)
def block(x: af.Array) -> af.Array:
    return anp.sin(anp.cos(x))


def exponential(x: af.Array) -> af.Array:
    return anp.exp(x)


def main() -> None:
    x, y = np.ones((4, 3)), np.ones(4)
    params: Params = {"w": np.ones((3, 2)), "b": np.zeros(2), "v": np.ones(2)}

    assert_type(anp.exp(x), "np.ndarray[Any, Any]")
    assert_type(anp.add.reduce(x), "np.ndarray[Any, Any]")
    assert_type(anp.concatenate([x, x]), "np.ndarray[Any, Any]")
    value, params = step(params, x, y)
    assert_type(value, "np.ndarray[Any, Any]")
    assert_type(params, "dict[str, np.ndarray[Any, Any]]")
    assert_type(step.lower(params, x, y), af.Lowered)
    assert_type(step.lower(params, x, y).program, af.Program)
    assert_type(step.lower(params, x, y).plan, af.Plan)
    assert_type(step.lower(params, x, y).compile(), af.Compiled)
    assert_type(element(x[0], count=2), "np.ndarray[Any, Any]")
    assert_type(Model().double(x), "np.ndarray[Any, Any]")

    assert_type(af.grad(loss)(params, x, y), "dict[str, np.ndarray[Any, Any]]")
    assert_type(
        af.grad(with_aux, has_aux=True)(params, x),
        "tuple[dict[str, np.ndarray[Any, Any]], int]",
    )
    assert_type(af.vmap(norm)(x), "np.ndarray[Any, Any]")
    assert_type(af.jit(af.vmap(predict, (None, 0)))(params, x), "np.ndarray[Any, Any]")
    assert_type(softplus(x), "np.ndarray[Any, Any]")
    assert_type(block(x), "np.ndarray[Any, Any]")
    out, pull_back = af.vjp(exponential, x)
    assert_type(out, "np.ndarray[Any, Any]")
    pull_back(out)
    af.check(anp.all(out > 0), "{out} is not positive", out=out)
    ref = af.new_ref(x)
    ref[...] += 1.0
    with af.debug_nans():
        assert_type(exponential(x), "np.ndarray[Any, Any]")


if __name__ == "__main__":
    main()
