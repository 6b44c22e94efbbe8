"""checkpoint: the same derivatives, from less memory."""

from __future__ import annotations

import numpy as np
import pytest

from arrayfn import checkpoint_policies as policies
from arrayfn import lax
from arrayfn.ad_checkpoint import checkpoint, checkpoint_name, remat
from arrayfn.compilation.jit import jit
from arrayfn.transforms import grad, hessian, jvp, linearize, make_program, vmap

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 4))
W = RNG.standard_normal((6, 4, 4)) * 0.5


def block(x, ws):
    for w in ws:
        x = np.sin(checkpoint_name(np.tanh(x @ w), "activation")) + x
    return x


def loss(wrap):
    inner = wrap(block)

    def f(w, x):
        for k in range(0, len(w), 2):
            x = inner(x, w[k : k + 2])
        return (x**2).sum()

    return f


PLAIN = loss(lambda f: f)
POLICIES = {
    "default": None,
    "nothing": policies.nothing_saveable,
    "everything": policies.everything_saveable,
    "dots": policies.dots_saveable,
    "plain dots": policies.dots_with_no_batch_dims_saveable,
    "names": policies.save_only_these_names("activation"),
    "other names": policies.save_any_names_but_these("activation"),
    "all but names": policies.save_anything_except_these_names("activation"),
    "both": policies.save_from_both_policies(
        policies.dots_saveable, policies.save_only_these_names("activation")
    ),
}


def names(program):
    return [e.primitive.name for e in program.equations]


@pytest.mark.parametrize("name", POLICIES)
def test_values_and_derivatives_are_those_of_the_function(name):
    f = loss(lambda g: checkpoint(g, policy=POLICIES[name]))
    expected = grad(PLAIN)(W, X)
    assert f(W, X) == PLAIN(W, X)
    np.testing.assert_allclose(grad(f)(W, X), expected, rtol=1e-12)
    np.testing.assert_allclose(jit(grad(f))(W, X), expected, rtol=1e-11)
    direction = RNG.standard_normal(W.shape)
    along = (direction, np.zeros_like(X))
    np.testing.assert_allclose(
        jvp(f, (W, X), along)[1], np.sum(expected * direction), rtol=1e-10
    )
    np.testing.assert_allclose(
        linearize(f, W, X)[1](*along), np.sum(expected * direction), rtol=1e-10
    )
    stacked = np.stack([X, X / 2])
    mapped = vmap(grad(f), (None, 0))
    np.testing.assert_allclose(
        jit(mapped)(W, stacked)[1], grad(PLAIN)(W, X / 2), rtol=1e-11
    )


@pytest.mark.parametrize("policy", [None, policies.dots_saveable])
def test_second_and_third_derivatives(policy):
    def f(x):
        inner = checkpoint(lambda y: np.sin(y * y) * y, policy=policy)
        return inner(inner(x)).sum()

    def plain(x):
        def inner(y):
            return np.sin(y * y) * y

        return inner(inner(x)).sum()

    x = X[0]
    np.testing.assert_allclose(hessian(f)(x), hessian(plain)(x), rtol=1e-11)
    np.testing.assert_allclose(jit(hessian(f))(x), hessian(plain)(x), rtol=1e-11)

    def third(f):
        return grad(grad(grad(lambda t: f(t * x))))

    assert jit(third(f))(0.3) == pytest.approx(third(plain)(0.3), rel=1e-10)


def test_nested_three_deep_and_closed_over_values():
    def f(w):
        @checkpoint
        def outer(x):
            @checkpoint
            def middle(y):
                return checkpoint(lambda z: np.sin(z * w))(y) * w

            return middle(x) + middle(x * w)

        return outer(X[0]).sum()

    def plain(w):
        def middle(y):
            return np.sin(y * w) * w

        return (middle(X[0]) + middle(X[0] * w)).sum()

    assert grad(f)(0.7) == pytest.approx(grad(plain)(0.7), rel=1e-13)
    assert jit(grad(grad(f)))(0.7) == pytest.approx(grad(grad(plain))(0.7), rel=1e-12)


def deep(wrap, layers=24, group=4):
    """A gradient of ``layers`` layers that is held in memory group by group."""
    inner = wrap(block)

    def f(w, x):
        for k in range(0, layers, group):
            x = inner(x, w[k : k + group])
        return (x**2).sum()

    w = np.zeros((layers, 32, 32), np.float32)
    x = np.zeros((256, 32), np.float32)
    return jit(grad(f)).lower(w, x).plan.arena


def test_less_memory_is_needed_at_once():
    plain = deep(lambda f: f)
    least = deep(checkpoint)
    named = deep(
        lambda f: checkpoint(f, policy=policies.save_only_these_names("activation"))
    )
    merged = deep(lambda f: checkpoint(f, prevent_cse=False))
    array = 256 * 32 * 4
    assert plain > 24 * array  # an activation of each layer, at least
    assert least < 0.45 * plain
    assert least < named < plain
    assert merged > 0.9 * plain


def test_a_loop_keeps_what_its_body_reads_alone():
    def arena(wrap):
        @wrap
        def body(x, w):
            return block(x, [w, w, w, w])

        def f(ws, x):
            return (lax.scan(lambda c, w: (body(c, w), None), x, ws)[0] ** 2).sum()

        w = np.zeros((32, 16, 16), np.float32)
        x = np.zeros((64, 16), np.float32)
        return jit(grad(f)).lower(w, x).plan.arena

    array = 64 * 16 * 4
    plain, again = arena(lambda f: f), arena(checkpoint)
    assert plain > 32 * 4 * array
    assert again < 0.5 * plain


def test_what_is_computed_again_stands_after_the_forward_pass():
    program = make_program(grad(loss(checkpoint)))(W, X)
    calls = [e for e in program.equations if e.primitive.name == "checkpoint"]
    assert len(calls) == 6  # three forward, three backward
    backward = calls[3].params["body"]
    assert "optimization_barrier" in names(backward)
    assert "tanh" in names(backward)
    kept = make_program(
        grad(loss(lambda f: checkpoint(f, policy=policies.everything_saveable)))
    )(W, X)
    last = [e for e in kept.equations if e.primitive.name == "checkpoint"][-1]
    assert "tanh" not in names(last.params["body"])


def test_outside_a_trace_it_is_the_function():
    assert remat is checkpoint
    calls = []
    f = checkpoint(lambda x: calls.append(1) or x, policy=policies.dots_saveable)
    assert f(3.0) == 3.0
    assert calls == [1]
    assert checkpoint_name({"a": 1.0}, "a") == {"a": 1.0}


def test_static_arguments_keywords_and_pytrees():
    @checkpoint(static_argnums=(1,))
    def power(p, n, *, scale):
        return {"y": p["x"] ** n * scale}

    assert grad(lambda x: power({"x": x}, 3, scale=2.0)["y"])(2.0) == 24.0
    assert jit(lambda x: power({"x": x}, 2, scale=x)["y"])(3.0) == 27.0


def test_a_barrier_hides_what_is_equal():
    def f(x):
        first, second = np.sin(x), np.sin(lax.optimization_barrier((x, 1.0))[0])
        return first * second

    lowered = jit(f).lower(X).compiled_program
    assert lowered.text.count("= sin(") == 2
    np.testing.assert_allclose(jit(f)(X), np.sin(X) ** 2, rtol=1e-14)
    np.testing.assert_allclose(vmap(f)(X), np.sin(X) ** 2, rtol=1e-14)
    slope = grad(lambda x: f(x).sum())
    np.testing.assert_allclose(jit(slope)(X), np.sin(2 * X), rtol=1e-13, atol=1e-15)
    assert lax.optimization_barrier({"a": 1})["a"] == 1
