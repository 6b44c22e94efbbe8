"""Calls of compiled functions that have been called with such arguments before."""

import numpy as np
import pytest

import arrayfn as af

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def slow(monkeypatch):
    """How often a call took the long way."""
    counted = []
    whole = af.jit(lambda x: x).__class__._call

    def call(self, args, kwargs):
        counted.append(args)
        return whole(self, args, kwargs)

    monkeypatch.setattr(af.jit(lambda x: x).__class__, "_call", call)
    return counted


def test_pytrees_of_the_same_structure_take_the_short_way(slow):
    @af.jit
    def step(parameters, x, *, rate):
        return {k: v - rate * x for k, v in parameters.items()}, x.sum()

    parameters = {"a": X, "b": X + 1}
    for _ in range(3):
        moved, total = step(parameters, X, rate=0.5)
        np.testing.assert_array_equal(moved["b"], X + 1 - X / 2)
        assert total == 15
    assert len(slow) == 1
    moved, _ = step({"a": X}, X, rate=0.5)
    assert list(moved) == ["a"]
    assert len(slow) == 2


def test_other_types_are_compiled_anew(slow):
    double = af.jit(lambda pair: (pair[0] * 2, {"y": pair[1]}))
    for x in (X, X.astype(np.float64), X[:1], X):
        first, named = double((x, 1.5))
        assert first.dtype == x.dtype
        np.testing.assert_array_equal(first, x * 2)
        assert named["y"] == 1.5
    assert len(slow) == 4


def test_traced_leaves_are_inlined(slow):
    sums = af.jit(lambda tree: {"s": (tree["x"] ** 2).sum()})
    sums({"x": X})
    gradient = af.grad(lambda x: sums({"x": x})["s"])(X)
    np.testing.assert_array_equal(gradient, 2 * X)
