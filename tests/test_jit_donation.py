"""Donated arguments: their memory is the result's, and the result is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.errors import ArgumentError
from arrayfn.lowering.plan import kernel_calls

RNG = np.random.default_rng(23)
X, Y = RNG.standard_normal((2, 40, 40))


def update(x: Any, y: Any) -> Any:
    return x - 0.5 * y


donating = af.jit(update, donate_argnums=0)


def test_the_result_is_written_over_the_donated_array() -> None:
    x, y = X.copy(), Y.copy()
    got = donating(x, y)
    assert got is x
    assert np.array_equal(got, update(X, Y))
    assert np.array_equal(y, Y)


def test_leaves_of_a_donated_tree_are_all_donated() -> None:
    def descend(p: Any, slope: Any) -> Any:
        return af.tree.map(lambda p, g: p - 0.1 * g, p, slope)

    p = {"w": X.copy(), "b": [Y[0].copy()]}
    got = af.jit(descend, donate_argnums=0)(p, {"w": Y, "b": [X[0]]})
    assert np.array_equal(got["w"], X - 0.1 * Y)
    assert np.array_equal(got["b"][0], Y[0] - 0.1 * X[0])
    assert got["w"] is p["w"]
    assert got["b"][0] is p["b"][0]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x @ y,
        lambda x, y: x.T + y,
        lambda x, y: x[::-1] - x,
        lambda x, y: x - anp.sum(x, axis=0),
        lambda x, y: x / anp.sum(anp.exp(x), axis=1, keepdims=True),
        lambda x, y: (x + y, anp.sum(x * y), x * 2),
        lambda x, y: anp.cumsum(x, axis=1) + anp.tanh(x) @ y,
        lambda x, y: (x, x),
        lambda x, y: y + 1,
    ],
    ids=[
        "product",
        "turned",
        "reversed",
        "columns",
        "rows",
        "several",
        "scan",
        "itself",
        "unused",
    ],
)
def test_what_is_still_needed_is_not_written_over(
    function: Callable[..., Any],
) -> None:
    got = af.tree.leaves(af.jit(function, donate_argnums=0)(X.copy(), Y))
    want = af.tree.leaves(af.jit(function)(X, Y))
    for have, value in zip(got, want, strict=True):
        assert have.tobytes() == value.tobytes()
    assert len({id(x) for x in got}) == len(got)


@pytest.mark.parametrize(
    "lay",
    [np.asfortranarray, lambda x: np.pad(x, 1)[1:-1, 1:-1], lambda x: x[::-1, ::-1]],
    ids=["F", "padded", "backwards"],
)
def test_donated_arrays_may_lie_in_any_way(lay: Callable[[Any], Any]) -> None:
    x = lay(X.copy())
    got = donating(x, Y)
    assert np.array_equal(got, update(lay(X.copy()), Y))
    assert got.flags.c_contiguous
    assert got.flags.writeable


def test_a_read_only_array_that_would_be_overwritten_is_refused() -> None:
    x = X.copy()
    x.flags.writeable = False
    with pytest.raises(ArgumentError, match=r"argument 0 is donated, but is read-only"):
        donating(x, Y)
    assert np.array_equal(x, X)


@pytest.mark.parametrize(
    "other",
    [
        lambda x: x,
        lambda x: x.T,
        lambda x: x[::-1],
    ],
    ids=["same", "turned", "reversed"],
)
def test_an_argument_may_overlap_a_donated_one(other: Callable[[Any], Any]) -> None:
    x = X.copy()
    assert np.array_equal(donating(x, other(x)), update(X, other(X)))


def test_an_array_may_be_donated_twice() -> None:
    both = af.jit(lambda x, y: (x + y, x - y), donate_argnums=(0, 1))
    x = X.copy()
    total, difference = both(x, x)
    assert np.array_equal(total, 2 * X)
    assert np.array_equal(difference, np.zeros_like(X))


@pytest.mark.parametrize("number", [2.0, np.float32(2), np.array(2.0)])
def test_numbers_among_donated_arguments_are_only_read(number: Any) -> None:
    assert af.jit(lambda x: x + 1, donate_argnums=0)(number) == 3


def test_inside_a_trace_nothing_is_overwritten() -> None:
    inner = af.jit(lambda x: x * 2, donate_argnums=0)
    x = X.copy()
    doubled, same = af.jit(lambda x: (inner(x), x))(x)
    assert np.array_equal(doubled, 2 * X)
    assert np.array_equal(same, X)
    assert np.array_equal(x, X)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.at[3].set(1.0),
        lambda x: x.at[3].set(1.0).at[5, 2].add(x.dtype.type(2.0)),
        lambda x: lax.fori_loop(0, 7, lambda i, x: x.at[i].multiply(0.5), x),
        lambda x: lax.while_loop(
            lambda s: s[1] < 7, lambda s: (s[0].at[s[1]].set(s[1]), s[1] + 1), (x, 0)
        )[0],
        lambda x: lax.cond(x[0, 0] > 0, lambda x: x.at[0].set(0.0), lambda x: x, x),
    ],
    ids=["update", "updates", "fori_loop", "while_loop", "cond"],
)
def test_a_donated_array_is_updated_without_a_copy(
    function: Callable[..., Any],
) -> None:
    x = X.copy()
    jitted = af.jit(function, donate_argnums=0)
    plan = jitted.lower(x).plan
    assert all(call.items < x.size for call in kernel_calls(plan.steps))
    assert plan.arena < x.nbytes
    got = jitted(x)
    assert got is x
    np.testing.assert_array_equal(got, af.jit(function, device="reference")(X))


def test_a_donated_array_that_is_read_after_its_update_is_copied() -> None:
    def function(x: Any) -> Any:
        y = x.at[0].set(1.0)
        return y, x + y

    x = X.copy()
    got = af.jit(function, donate_argnums=0)(x)
    y = X.copy()
    y[0] = 1.0
    np.testing.assert_array_equal(got[0], y)
    np.testing.assert_array_equal(got[1], X + y)


def test_a_donated_array_in_columns_is_right() -> None:
    x = np.asfortranarray(X)
    got = af.jit(lambda x: x.at[3].set(1.0), donate_argnums=0)(x)
    want = X.copy()
    want[3] = 1.0
    np.testing.assert_array_equal(got, want)


def test_donated_arguments_are_named_and_counted_without_static_ones():
    x, y = np.ones(3), np.ones((2, 3))

    def f(k, x, y):
        return k * x + y

    by_name = af.jit(f, static_argnums=0, donate_argnames="y")
    assert by_name.lower(2, x, y).donated == {1}
    assert by_name.lower(2, x, y=y).donated == {1}
    by_number = af.jit(f, static_argnums=0, donate_argnums=1)
    assert by_number.lower(2, x, y).donated == {0}
    tree_of_two = af.jit(lambda t, u: t["a"] + t["b"] + u, donate_argnames=["t"])
    assert tree_of_two.lower({"a": x, "b": x}, x).donated == {0, 1}
    with pytest.raises(ArgumentError, match="donate_argnames names 'z'"):
        af.jit(f, donate_argnames="z")
