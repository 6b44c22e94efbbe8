"""Captured weights, folded: the same results up to rounding, with fewer steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.errors import ArgumentError

RNG = np.random.default_rng(9)
W = RNG.standard_normal((6, 4))
MEAN, VAR, GAMMA, BETA = RNG.uniform(0.5, 2, (4, 4))
KERNEL = RNG.standard_normal((4, 3, 3, 3))
X = RNG.standard_normal((5, 6))
IMAGE = RNG.standard_normal((2, 3, 8, 8))


def normalized(y: Any, shape: tuple[int, ...]) -> Any:
    mean, var, gamma, beta = (v.reshape(shape) for v in (MEAN, VAR, GAMMA, BETA))
    return (y - mean) / anp.sqrt(var + 1e-5) * gamma + beta


def dense(x: Any) -> Any:
    return anp.maximum(normalized(x @ W + BETA, (4,)), 0)


def convolved(x: Any) -> Any:
    y = lax.conv_general_dilated(x, KERNEL, (1, 1), "SAME")
    return normalized(y, (1, 4, 1, 1))


@pytest.mark.parametrize(("function", "x"), [(dense, X), (convolved, IMAGE)])
def test_batch_normalisation_goes_into_weights(function: Any, x: Any) -> None:
    lowered = af.jit(function).lower(x)
    frozen = lowered.freeze("scales")
    np.testing.assert_allclose(
        frozen.compile()(x), lowered.compile()(x), rtol=1e-12, atol=1e-12
    )
    assert "folded into the weights of" in "\n".join(frozen.notes)
    names = [q.primitive.name for q in frozen.program.equations]
    assert "mul" not in names
    assert "div" not in names
    assert names.count("add") == 1


def test_jit_freezes() -> None:
    function = af.jit(dense, freeze="scales")
    np.testing.assert_allclose(function(X), dense(X), rtol=1e-12, atol=1e-12)
    assert function.lower(X).notes == af.jit(dense).lower(X).freeze("scales").notes
    assert af.jit(dense, freeze=True).lower(X).notes == function.lower(X).notes
    with pytest.raises(ArgumentError, match="freeze has no recipe 'fp4'"):
        af.jit(dense, freeze=["fp4"])


def test_without_a_recipe_constants_are_computed() -> None:
    lowered = af.jit(lambda x: x @ anp.linalg.inv(W.T @ W) + anp.exp(BETA)).lower(
        X[:, :4]
    )
    frozen = lowered.freeze()
    assert [q.primitive.name for q in frozen.program.equations] == [
        "dot_general",
        "broadcast_in_dim",
        "add",
    ]
    np.testing.assert_allclose(
        frozen.compile()(X[:, :4]), lowered.compile()(X[:, :4]), rtol=1e-9
    )
    assert [note.split(": ")[0] for note in frozen.notes] == ["f64[4,4]", "f64[4]"]


def test_what_is_read_elsewhere_or_varies_is_not_folded() -> None:
    def function(x: Any) -> Any:
        y = x @ W
        return y * GAMMA + y, (x @ W) * X[:, :4], (x @ W) * x[:, :4]

    lowered = af.jit(function).lower(X)
    frozen = lowered.freeze("scales")
    assert not any("folded" in note for note in frozen.notes)
    for have, want in zip(frozen.compile()(X), function(X), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-12)
    with pytest.raises(ArgumentError, match="freeze has no recipe 'fp4'"):
        lowered.freeze("fp4")
