"""Extents, axes, bounds and counts may be whole numbers of any class.

Functions are called with NumPy's integers, members of an ``IntEnum``, and extents of
arrays that ``vmap`` has made, and give what they give of Python's ``int``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax, nn

X = np.arange(24.0).reshape(2, 3, 4)


class Number(enum.IntEnum):
    ZERO = 0
    ONE = 1
    TWO = 2
    THREE = 3
    FOUR = 4


class Whole(int):
    """Not int itself."""


KINDS: dict[str, Callable[[int], Any]] = {
    "int64": np.int64,
    "int32": np.int32,
    "enum": Number,
    "subclass": Whole,
}

CALLS: dict[str, Callable[..., Any]] = {
    "zeros": lambda x, n: anp.zeros((n(2), n(3))) + x[0, 0, 0],
    "full": lambda x, n: anp.full(n(3), x[0, 0, 1]),
    "arange": lambda x, n: anp.arange(n(1), n(4)) * x[0, 0, 1],
    "linspace": lambda x, n: anp.linspace(0.0, 1.0, n(3)) + x[0, 0, 0],
    "eye": lambda x, n: anp.eye(n(3), n(4), n(1)) * x[0, 0, 1],
    "reshape": lambda x, n: x.reshape(n(3), 8),
    "sum": lambda x, n: anp.sum(x, axis=(n(0), n(1))),
    "method": lambda x, n: x.sum(n(1)),
    "slice": lambda x, n: x[n(1) :, : n(2)],
    "item": lambda x, n: x[n(1), ..., n(2)],
    "transpose": lambda x, n: anp.transpose(x, (n(2), n(0), n(1))),
    "moveaxis": lambda x, n: anp.moveaxis(x, n(0), n(2)),
    "expand_dims": lambda x, n: anp.expand_dims(x, n(1)),
    "concatenate": lambda x, n: anp.concatenate([x, x], n(1)),
    "stack": lambda x, n: anp.stack([x, x], n(1)),
    "split": lambda x, n: anp.split(x, n(2), n(2)),
    "split at": lambda x, n: anp.split(x, [n(1)], axis=n(2)),
    "broadcast_to": lambda x, n: anp.broadcast_to(x, (n(4), n(2), 3, 4)),
    "roll": lambda x, n: anp.roll(x, n(1), n(2)),
    "repeat": lambda x, n: anp.repeat(x, n(2), n(1)),
    "tile": lambda x, n: anp.tile(x, (n(1), n(2), n(1))),
    "pad": lambda x, n: anp.pad(x, ((n(1), n(0)), (n(0), n(0)), (n(2), n(2)))),
    "diagonal": lambda x, n: anp.diagonal(x[0], n(1)),
    "trace": lambda x, n: anp.trace(x[0], n(1)),
    "tril": lambda x, n: anp.tril(x, n(1)),
    "argmax": lambda x, n: anp.argmax(x, n(2)),
    "cumsum": lambda x, n: anp.cumsum(x, n(1)),
    "take": lambda x, n: anp.take(x, n(1), axis=n(2)),
    "var": lambda x, n: anp.var(x, axis=n(2), ddof=n(1)),
    "gradient": lambda x, n: anp.gradient(x, axis=n(2)),
    "insert": lambda x, n: anp.insert(x, n(1), 5.0, axis=n(2)),
    "delete": lambda x, n: anp.delete(x, n(1), axis=n(2)),
    "power": lambda x, n: x ** n(2),
    "product": lambda x, n: n(3) * x - n(1),
    "comparison": lambda x, n: anp.where(x > n(1), x, n(2)),
    "clip": lambda x, n: anp.clip(x, n(1), n(3)),
    "at": lambda x, n: anp.at(x)[n(1)].set(n(3)),
    "tensordot": lambda x, n: anp.tensordot(x, x.T, n(1)),
    "norm": lambda x, n: anp.linalg.norm(x, n(2), axis=n(1)),
    "matrix_power": lambda x, n: anp.linalg.matrix_power(x[0, :, :3], n(2)),
    "fft": lambda x, n: anp.fft.fft(x, n=n(4), axis=n(2)),
    "nonzero": lambda x, n: anp.nonzero(x, size=n(3)),
    "slice_in_dim": lambda x, n: lax.slice_in_dim(x, n(1), n(3), axis=n(2)),
    "lax.slice": lambda x, n: lax.slice(x, (n(0), n(1), n(0)), (n(2), n(3), n(4))),
    "broadcast_in_dim": lambda x, n: lax.broadcast_in_dim(
        x, (n(2), n(2), n(3), n(4)), (n(1), n(2), n(3))
    ),
    "lax.transpose": lambda x, n: lax.transpose(x, (n(2), n(1), n(0))),
    "lax.rev": lambda x, n: lax.rev(x, (n(2),)),
    "lax.pad": lambda x, n: lax.pad(x, 0.0, ((n(1), n(1), n(0)),) * 3),
    "dynamic_slice": lambda x, n: lax.dynamic_slice(
        x, (n(0), n(1), n(0)), (n(1), n(2), n(3))
    ),
    "dynamic_update_slice": lambda x, n: lax.dynamic_update_slice(
        x, x[:1, :1, :1], (n(1), n(1), n(1))
    ),
    "top_k": lambda x, n: lax.top_k(x, n(2)),
    "dot_general": lambda x, n: lax.dot_general(
        x, x, (((n(2),), (n(2),)), ((0,), (0,)))
    ),
    "reduce_window": lambda x, n: lax.reduce_window(
        x, 0.0, lax.add, (n(1), n(2), n(2)), (n(1), n(1), n(1)), "VALID"
    ),
    "conv": lambda x, n: lax.conv_general_dilated(
        x[None], np.ones((1, 2, 2, 2)), (n(1), n(2)), "SAME"
    ),
    "fori_loop": lambda x, n: lax.fori_loop(n(0), n(3), lambda i, c: c + i, x[0, 0, 1]),
    "scan": lambda x, n: lax.scan(
        lambda c, _: (c + 1.0, c), x[0, 0, 1], None, length=n(3)
    ),
    "switch": lambda x, n: lax.switch(n(1), [lambda y: y, lambda y: 2 * y], x),
    "cond": lambda x, n: lax.cond(n(1), lambda y: y, lambda y: -y, x),
    "vmap": lambda x, n: af.vmap(lambda a: a * 2, in_axes=n(2), out_axes=n(1))(x),
    "axis_size": lambda x, n: af.vmap(lambda: x[0, 0, 1], axis_size=n(3))(),
    "one_hot": lambda x, n: nn.one_hot(anp.arange(2), n(3)) * x[0, 0, 1],
    "softmax": lambda x, n: nn.softmax(x, axis=n(2)),
    "segment_sum": lambda x, n: af.ops.segment_sum(
        x[0, 0, :3], np.array([0, 1, 1]), num_segments=n(3)
    ),
    "normal": lambda x, n: af.random.normal(af.random.key(n(0)), (n(3),)) * x[0, 0, 1],
    "grad": lambda x, n: af.grad(lambda a, b: (a * b).sum(), argnums=n(1))(x, 2 * x),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CALLS)
def test_whole_numbers_of_any_class(name: str, kind: str) -> None:
    call, number = CALLS[name], KINDS[kind]
    for run in (lambda f: f(X), lambda f: af.jit(f)(X)):
        have = run(lambda x: call(x, number))
        want = run(lambda x: call(x, int))
        assert af.tree.structure(have) == af.tree.structure(want)
        for a, b in zip(af.tree.leaves(have), af.tree.leaves(want), strict=True):
            assert a.shape == b.shape
            assert all(type(extent) is int for extent in a.shape)
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", KINDS)
def test_params_of_programs_are_python_numbers(kind: str) -> None:
    number = KINDS[kind]
    program = af.make_program(
        lambda x: lax.slice_in_dim(x, number(1), number(3), axis=number(2))
    )(X)
    assert "start=(0,0,1), limit=(2,3,3)" in str(program)


def pairs(r):
    """The squared differences of all pairs, an array whose extents vmap made."""
    return af.vmap(lambda a: (a - r) ** 2)(r)


def test_the_extent_of_a_mapped_axis_is_an_int() -> None:
    seen: list[Any] = []

    @af.jit
    def f(r):
        seen.extend(pairs(r).shape)
        return pairs(r).sum() / pairs(r).shape[0]

    r = np.array([0.0, 1.0, 3.0])
    assert f(r) == 2 * (1 + 9 + 4) / 3
    assert [type(n) for n in seen] == [int, int]


def test_mapped_arrays_index_and_are_indexed() -> None:
    t = np.array([2.0, 0.0, 1.0])
    rows = af.jit(lambda t: af.vmap(lambda a: a * anp.ones(2))(t)[anp.argsort(t)])(t)
    np.testing.assert_array_equal(rows, np.repeat([[0.0], [1.0], [2.0]], 2, axis=1))
    i, j = af.jit(lambda r: anp.nonzero(pairs(r) > 0, size=3))(t)
    np.testing.assert_array_equal([i, j], [[0, 0, 1], [1, 2, 0]])


def test_the_extent_of_a_hessian_is_one() -> None:
    def cubes(x):
        return (x**3).sum()

    x = np.array([1.0, 2.0])
    step = af.jit(
        lambda x: af.hessian(cubes)(x) + anp.eye(af.hessian(cubes)(x).shape[0])
    )
    np.testing.assert_array_equal(step(x), [[7.0, 0.0], [0.0, 13.0]])


def test_concatenation_of_mapped_arrays_inside_a_map() -> None:
    x = np.arange(6.0).reshape(2, 3)
    found = af.jit(
        af.vmap(lambda a: anp.concatenate([a, af.vmap(lambda b: 2 * b)(a)]))
    )(x)
    np.testing.assert_array_equal(found, np.concatenate([x, 2 * x], axis=1))
