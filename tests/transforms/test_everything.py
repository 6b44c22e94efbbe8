"""Transformations of transformations of transformations, against polynomials.

The functions are elementwise polynomials, and each transformation takes such a function
to another one, which is known: the derivative, or the sum of values at x and 2 x, say.
"""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from numpy.polynomial import Polynomial

import arrayfn.numpy as anp
from arrayfn import debug, lax
from arrayfn.ad_checkpoint import checkpoint
from arrayfn.checkpoint_policies import dots_saveable
from arrayfn.compilation.jit import jit
from arrayfn.transforms import (
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linear_transpose,
    linearize,
    vjp,
    vmap,
)
from arrayfn.transforms.custom import custom_jvp

X = np.array([0.5, -1.25, 2.0])
ONE = Polynomial([0.0, 1.0])
TWICE = Polynomial([0.0, 2.0])


def base(x):
    return x**4 * 0.25 - x * x * x + 2.0 * x


BASE = Polynomial([0.0, 2.0, 0.0, -1.0, 0.25])


def slope(p):
    return p.deriv()


def along_x(p):
    return p.deriv() * ONE


def at_both(p):
    return p + p(TWICE)


def same(p):
    return p


def transposed(f):
    def g(x):
        return linear_transpose(lambda t: jvp(f, (x,), (t,))[1], x)(x)[0]

    return g


def with_own_rule(f):
    def g(x):
        inner = custom_jvp(f)
        inner.defjvp(lambda p, t: (inner(*p), jvp(f, p, t)[1]))
        return inner(x)

    return g


def scanned(f):
    def g(x):
        def step(total, k):
            return total + f(k * x), k

        return lax.scan(step, 0.0 * x, np.array([1.0, 2.0]))[0]

    return g


def looped(f):
    def g(x):
        def more(state):
            return state[0] < 2

        def step(state):
            return state[0] + 1, state[1] + f(x)

        return lax.while_loop(more, step, (0, 0.0 * x))[1]

    return g


def branching(f):
    return lambda x: lax.cond(anp.sum(x) > 100.0, lambda y: -f(y), f, x)


def watched(f):
    def g(x):
        debug.callback(lambda y: None, x)
        return f(x)

    return g


TRANSFORMATIONS = {
    "grad": (lambda f: grad(lambda x: f(x).sum()), slope),
    "jvp": (lambda f: lambda x: jvp(f, (x,), (x,))[1], along_x),
    "vjp": (lambda f: lambda x: vjp(f, x)[1](x)[0], along_x),
    "linearize": (lambda f: lambda x: linearize(f, x)[1](x), along_x),
    "linear_transpose": (transposed, along_x),
    "jacfwd": (lambda f: lambda x: jacfwd(f)(x).sum(0), slope),
    "jacrev": (lambda f: lambda x: jacrev(f)(x).sum(0), slope),
    "hessian": (
        lambda f: lambda x: hessian(lambda y: f(y).sum())(x).sum(0),
        lambda p: p.deriv(2),
    ),
    "vmap": (lambda f: lambda x: vmap(f)(anp.stack([x, 2 * x])).sum(0), at_both),
    "psum": (
        lambda f: (
            lambda x: vmap(lambda k: lax.psum(f(k * x), "i"), axis_name="i")(
                np.array([1.0, 2.0])
            )[1]
        ),
        at_both,
    ),
    "checkpoint": (checkpoint, same),
    "checkpoint by policy": (lambda f: checkpoint(f, policy=dots_saveable), same),
    "jit": (jit, same),
    "custom_jvp": (with_own_rule, same),
    "scan": (scanned, at_both),
    "while_loop": (looped, lambda p: 2 * p),
    "cond": (branching, same),
    "debug.callback": (watched, same),
}


def nested(names):
    """The function that the transformations make, the last one outside; the truth."""
    f, p = base, BASE
    for name in names:
        transform, of_polynomial = TRANSFORMATIONS[name]
        f, p = transform(f), of_polynomial(p)
    return f, p


def check(names, wrap):
    f, p = nested(names)
    result = wrap(f)(X)
    scale = 1 + np.abs(p(X)).max()
    assert np.shape(result) == X.shape
    np.testing.assert_allclose(result, p(X), rtol=1e-10, atol=1e-11 * scale)


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_each_alone_and_compiled(name):
    check([name], lambda f: f)
    check([name], jit)


@pytest.mark.parametrize("outer", TRANSFORMATIONS)
def test_each_of_each(outer):
    for inner in TRANSFORMATIONS:
        check([inner, outer], lambda f: f)


TRIPLES = random.Random(0).sample(
    list(itertools.product(TRANSFORMATIONS, repeat=3)), 72
)


@pytest.mark.parametrize("part", range(12))
def test_three_deep(part):
    for names in TRIPLES[part::12]:
        check(names, lambda f: f)


@pytest.mark.parametrize("part", range(6))
def test_three_deep_compiled(part):
    for names in TRIPLES[part::24]:
        check(names, jit)


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_each_may_be_mapped_and_differentiated(name):
    f, p = nested([name])
    stacked = np.stack([X, -X])
    np.testing.assert_allclose(vmap(f)(stacked), p(stacked), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(
        jit(vmap(f, in_axes=1, out_axes=1))(stacked.T), p(stacked.T), 1e-11, 1e-12
    )
    second = hessian(lambda x: f(x).sum())(X)
    np.testing.assert_allclose(second, np.diag(p.deriv(2)(X)), rtol=1e-10, atol=1e-10)
