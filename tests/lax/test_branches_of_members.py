"""Branches and loops whose members each go their own way: derivatives and results."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.errors import ShapeError

X = np.array([0.0, 1e-4, 4.0])


def guarded_root(x):
    return lax.cond(x < 1e-3, lambda y: 1e-3 + 0.0 * y, anp.sqrt, x)


def guarded_root_of_a_closure(x):
    return lax.cond(x < 1e-3, lambda _: 1e-3, lambda _: anp.sqrt(x), ())


def switched(x):
    which = anp.where(x < 1e-3, 0, 2)
    return lax.switch(which, [lambda y: 1e-3 + 0 * y, anp.log, anp.sqrt], x)


@pytest.mark.parametrize(
    "function", [guarded_root, guarded_root_of_a_closure, switched]
)
@pytest.mark.parametrize("transform", [lambda f: f, af.jit], ids=["eager", "jit"])
def test_a_branch_that_is_not_chosen_has_no_derivative(function, transform):
    total = transform(af.grad(lambda x: af.vmap(function)(x).sum()))
    np.testing.assert_array_equal(total(X), [0.0, 0.0, 0.25])
    each = transform(af.vmap(af.grad(function)))
    np.testing.assert_array_equal(each(X), [0.0, 0.0, 0.25])
    forward = transform(lambda x: af.jvp(af.vmap(function), (x,), (anp.ones(3),))[1])
    np.testing.assert_array_equal(forward(X), [0.0, 0.0, 0.25])


def test_what_all_members_share_has_no_derivative_by_a_branch_not_chosen():
    def total(w, x):
        def one(x):
            return lax.cond(x < 1e-3, lambda _: 0.0, lambda _: anp.sqrt(w * x), ())

        return af.vmap(one)(x).sum()

    for transform in (lambda f: f, af.jit):
        found = transform(af.grad(total))(9.0, np.array([0.0, 4.0]))
        np.testing.assert_allclose(found, 1 / 3, 1e-15)  # sqrt(4 / w) / 2


def test_members_that_have_stopped_have_no_derivative_by_the_body():
    def halved(x):
        return lax.while_loop(lambda y: y > 1.0, lambda y: anp.sqrt(y - 1.0) * 0.5, x)

    x = np.array([1.0, 0.5, 5.0])
    for transform in (lambda f: f, af.jit):
        found = transform(af.grad(lambda x: af.vmap(halved)(x).sum()))(x)
        np.testing.assert_allclose(found, [1.0, 1.0, 0.125], 1e-15)


def test_the_guard_of_branches_costs_nothing_once_derivatives_are_taken():
    lowered = af.jit(af.vmap(guarded_root)).lower(X)
    assert "stop_gradient" not in lowered.compiled_program.text
    assert lowered.compiled_program.text.count(" select(") == 1


def test_what_each_branch_returns_as_it_came_does_not_vary():
    def choose(x, y):
        return lax.cond(x < 3, lambda x, y: (x * 2, y), lambda x, y: (x * 3, y), x, y)

    doubled, same = af.vmap(choose, in_axes=(0, None), out_axes=(0, None))(
        np.arange(4.0), 7.0
    )
    np.testing.assert_array_equal(doubled, [0.0, 2.0, 4.0, 9.0])
    assert same == 7.0
    assert same.shape == ()


def test_what_calls_and_loops_of_branches_pass_on_does_not_vary():
    def scanned(x, y):
        return lax.scan(lambda y, _: (y, None), y, None, length=2)[0]

    def repeated(x, y):
        return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + x, s[1]), (x, y))[1]

    def swapped(x, y):
        _, b = lax.scan(lambda c, _: (c[::-1], None), (x, y), None, length=2)[0]
        return b

    inner = af.jit(lambda x, y: lax.cond(x < 1, scanned, repeated, x, y))

    def choose(function):
        return lambda x, y: lax.cond(x < 2, scanned, function, x, y)

    x = np.arange(1.0, 5.0)
    for function in (repeated, inner):
        same = af.vmap(choose(function), (0, None), None)(x, 7.0)
        assert (same, same.shape) == (7.0, ())
    varying = af.vmap(choose(swapped), (0, None))(x, 7.0)
    np.testing.assert_array_equal(varying, np.full(4, 7.0))
    with pytest.raises(ShapeError, match="it varies"):
        af.vmap(choose(swapped), (0, None), None)(x, 7.0)


def test_what_a_body_carries_as_it_came_does_not_vary():
    def count(x, y):
        return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + s[1], s[1]), (x, y))

    last, step = af.vmap(count, in_axes=(0, None), out_axes=(0, None))(
        np.arange(4.0), 2.0
    )
    np.testing.assert_array_equal(last, [4.0, 3.0, 4.0, 3.0])
    assert step == 2.0
    assert step.shape == ()
