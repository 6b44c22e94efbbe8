"""Pooling beside torch's and by hand, with its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn as af
from arrayfn import nn
from arrayfn.errors import ArgumentError

torch = pytest.importorskip("torch")
X = np.random.default_rng(3).standard_normal((2, 7, 9, 3)).astype(np.float32)


def channels_first(x: Any) -> Any:
    return torch.tensor(np.moveaxis(x, -1, 1), requires_grad=True)


def channels_last(x: Any) -> Any:
    return np.moveaxis(x.detach().numpy(), 1, -1)


@pytest.mark.parametrize("kind", ["max", "avg", "avg without padding"])
def test_pools_and_their_gradients_are_those_of_torch(kind: str) -> None:
    pads = ((1, 1), (1, 1))
    include = kind == "avg"
    given = channels_first(X)
    if kind == "max":
        want = torch.nn.functional.max_pool2d(given, (3, 2), (2, 2), (1, 1))
    else:
        want = torch.nn.functional.avg_pool2d(
            given, (3, 2), (2, 2), (1, 1), count_include_pad=include
        )

    def pool(x: Any) -> Any:
        if kind == "max":
            return nn.max_pool(x, (3, 2), (2, 2), pads)
        return nn.avg_pool(x, (3, 2), (2, 2), pads, include)

    @af.jit
    def with_gradient(x: Any) -> Any:
        out, pull = af.vjp(pool, x)
        return out, pull(out)[0]

    have, gradient = with_gradient(X)
    np.testing.assert_allclose(have, channels_last(want), 1e-5, 1e-6)
    want.backward(want.detach())
    np.testing.assert_allclose(gradient, channels_last(given.grad), 1e-5, 1e-6)


def test_min_pool_is_max_pool_of_the_opposite() -> None:
    have = nn.min_pool(X, (2, 2), padding="SAME")
    np.testing.assert_array_equal(have, -nn.max_pool(-X, (2, 2), padding="SAME"))


def test_pools_of_integers() -> None:
    x = np.arange(6).reshape(1, 6, 1)
    assert nn.max_pool(x, (2,), (2,)).dtype == x.dtype
    assert nn.avg_pool(x, (2,), (2,)).dtype == np.float64


def test_a_window_of_too_many_axes_is_refused() -> None:
    with pytest.raises(ArgumentError, match="windows for the spatial axes"):
        nn.max_pool(np.zeros((4, 3)), (2, 2))
