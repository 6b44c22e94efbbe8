"""Parameters of transformations: integers, static arguments by name."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn as af
from arrayfn.errors import ArgumentError, DifferentiationError


def test_gradients_by_integers_are_zero_where_they_are_allowed():
    def f(x, i):
        return (x * i["n"]).sum()

    x, i = np.ones(2), {"n": np.arange(2), "unused": True}
    for transformed in (af.grad, lambda *a, **k: af.jit(af.grad(*a, **k))):
        by_x, by_i = transformed(f, argnums=(0, 1), allow_int=True)(x, i)
        assert by_x.tolist() == [0.0, 1.0]
        assert (by_i["n"].tolist(), by_i["unused"].tolist()) == ([0.0, 0.0], 0.0)
        assert by_i["n"].dtype == np.float64
    jacobian = af.jacrev(lambda k, x: k * x, allow_int=True)(np.arange(2), x)
    assert jacobian.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    with pytest.raises(DifferentiationError, match="have derivatives"):
        af.grad(f, argnums=1)(x, i)


def test_static_arguments_of_rules_and_checkpoints_are_named():
    def power(x, k):
        return x**k

    rule = af.custom_jvp(power, nondiff_argnames="k")

    @rule.defjvp
    def power_jvp(k, primals, tangents):
        return power(*primals, k), 7.0 * tangents[0]

    assert float(af.grad(rule)(2.0, k=3)) == 7.0
    with pytest.raises(ArgumentError, match="nondiff_argnames names 'n', but power"):
        af.custom_vjp(power, nondiff_argnames=["n"])

    @af.checkpoint(static_argnames="mode")
    def wave(x, mode):
        return np.sin(x) if mode == "sine" else np.cos(x)

    assert float(af.grad(lambda x: wave(x, mode="sine"))(0.0)) == 1.0
    assert float(af.grad(lambda x: wave(x, "cosine"))(0.0)) == 0.0
