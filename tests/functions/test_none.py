"""None in arguments and results: a subtree without leaves, under all functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arrayfn as af
from arrayfn import debug, lax

X = np.array([1.0, 2.0, 4.0])
T = {"a": X, "b": None}


def pair(x):
    return x * x, None


CALLS: dict[str, tuple[Callable[[], Any], Any]] = {
    "vmap, result": (lambda: af.vmap(pair)(X), (X * X, None)),
    "vmap, argument": (lambda: af.vmap(lambda x, y: x)(X, None), X),
    "vmap, all": (lambda: af.vmap(lambda x: None)(X), None),
    "vmap, in a tree": (lambda: af.vmap(lambda t: {**t})(T), T),
    "vmap, of a tree": (
        lambda: af.vmap(lambda t: t["a"], in_axes=({"a": 0, "b": None},))(T),
        X,
    ),
    "vmap, axis for none": (
        lambda: af.vmap(lambda t: t["a"], in_axes=({"a": 0, "b": 0},))(T),
        X,
    ),
    "vmap, prefix": (
        lambda: af.vmap(lambda p, y: p[0] + y, in_axes=(0, None))((X, None), 1.0),
        X + 1,
    ),
    "vmap, out_axes": (lambda: af.vmap(pair, out_axes=(0, None))(X), (X * X, None)),
    "vmap, one out_axes": (lambda: af.vmap(pair, out_axes=0)(X), (X * X, None)),
    "vmap, axis_size": (
        lambda: af.vmap(lambda n: 1.0, in_axes=(None,), axis_size=2)(None),
        np.ones(2),
    ),
    "vmap of vmap": (
        lambda: af.vmap(af.vmap(pair))(np.stack([X, X])),
        (np.stack([X, X]) ** 2, None),
    ),
    "jit": (lambda: af.jit(pair)(X), (X * X, None)),
    "jit of vmap": (
        lambda: af.jit(af.vmap(lambda x, y: (x, y), in_axes=(0, None)))(X, None),
        (X, None),
    ),
    "grad": (
        lambda: af.grad(lambda t: t["a"].sum())(T),
        {"a": np.ones(3), "b": None},
    ),
    "jvp": (lambda: af.jvp(pair, (3.0,), (1.0,)), ((9.0, None), (6.0, None))),
    "vjp": (lambda: af.vjp(pair, 3.0)[1]((1.0, None)), (6.0,)),
    "hessian": (
        lambda: af.hessian(lambda t: (t["a"] ** 2).sum())({"a": 3.0, "b": None}),
        {"a": {"a": 2.0, "b": None}, "b": None},
    ),
    "jacrev": (lambda: af.jacrev(pair)(3.0), (6.0, None)),
    "jacfwd": (lambda: af.jacfwd(pair)(3.0), (6.0, None)),
    "checkpoint": (lambda: af.jit(af.checkpoint(pair))(3.0), (9.0, None)),
    "scan": (
        lambda: lax.scan(lambda c, x: (c, pair(x)), None, X),
        (None, (X * X, None)),
    ),
    "map": (lambda: lax.map(pair, X), (X * X, None)),
    "map, in batches": (lambda: lax.map(pair, X, batch_size=2), (X * X, None)),
    "map of nothing": (lambda: lax.map(lambda x: None, X, batch_size=2), None),
    "cond": (lambda: lax.cond(True, pair, pair, 3.0), (9.0, None)),
    "psum": (
        lambda: af.vmap(lambda x: lax.psum((x, None), "i"), axis_name="i")(X),
        (np.full(3, 7.0), None),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_none_is_a_subtree_without_leaves(name: str) -> None:
    call, expected = CALLS[name]
    found = call()
    assert af.tree.structure(found) == af.tree.structure(expected)
    for have, want in zip(af.tree.leaves(found), af.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(have, want)


LOOPS: dict[str, Callable[[], Any]] = {
    "scan": lambda: lax.scan(
        lambda c, i: (debug.print("{}", i), None), None, np.arange(3)
    ),
    "map": lambda: lax.map(lambda i: debug.print("{}", i), np.arange(3)),
    "fori_loop": lambda: lax.fori_loop(0, 3, lambda i, c: debug.print("{}", i), None),
    "vmap": lambda: af.vmap(lambda i: debug.print("{}", i))(np.arange(3)),
}


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("transform", [lambda f: f, af.jit], ids=["eager", "jit"])
def test_loops_without_results_have_their_effects(
    name: str, transform: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    transform(LOOPS[name])()
    assert capsys.readouterr().out.split() == ["0", "1", "2"]
