"""Loops, branches and small batches that ``benchmarks.gpu`` measures.

Functions of an array module, as in ``gpu_cases``, which use its library's ``lax``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax


def lax_of(xp: Any) -> Any:
    """The ``lax`` that goes with an array module."""
    return lax if xp is anp else jax.lax


def power(xp: Any, matrix: Any, vector: Any) -> Any:
    """200 steps of the power iteration."""

    def step(state: Any) -> Any:
        k, v = state
        w = matrix @ v
        return k + 1, w / xp.sqrt(xp.sum(w * w))

    return lax_of(xp).while_loop(lambda s: s[0] < 200, step, (0, vector))[1]


def heat(xp: Any, x: Any) -> Any:
    """200 steps of diffusion, with an end that depends on a value."""

    def step(state: Any) -> Any:
        k, x = state
        around = xp.roll(x, 1, 0) + xp.roll(x, -1, 0)
        around = around + xp.roll(x, 1, 1) + xp.roll(x, -1, 1)
        return k + 1, x + 0.1 * (around - 4 * x)

    def goes_on(state: Any) -> Any:
        return (state[0] < 200) & (state[1][0, 0] < 1e9)

    return lax_of(xp).while_loop(goes_on, step, (0, x))[1]


def switching(xp: Any, x: Any) -> Any:
    """200 times one of three branches."""
    branches = (lambda x: x * 0.5 + 1, lambda x: x @ x * 1e-3, lambda x: x.T)

    def step(state: Any) -> Any:
        k, x = state
        return k + 1, lax_of(xp).switch(k % 3, branches, x)

    return lax_of(xp).while_loop(lambda s: s[0] < 200, step, (0, x))[1]


def mandelbrot(xp: Any, real: Any, imaginary: Any) -> Any:
    """How many of 100 steps each point stays near 0."""

    def step(_: Any, state: Any) -> Any:
        x, y, count = state
        inside = x * x + y * y < 4
        following = x * x - y * y + real, 2 * x * y + imaginary
        x, y = (xp.where(inside, a, b) for a, b in zip(following, (x, y), strict=True))
        return x, y, count + xp.where(inside, 1.0, 0.0).astype(np.float32)

    start = real, imaginary, 0 * real
    return lax_of(xp).fori_loop(0, 100, step, start)[2]


def kepler(xp: Any, mean: Any, slope: Any) -> Any:
    """Kepler's equation by Newton's method, mapped: each element until it is near."""

    def solve(mean: Any, slope: Any) -> Any:
        def step(state: Any) -> Any:
            x, _ = state
            d = (x - 0.9 * xp.sin(x) - mean) / (1.5 + abs(slope) - 0.9 * xp.cos(x))
            return x - d, d

        far = lambda state: xp.abs(state[1]) > 1e-5  # noqa: E731
        return lax_of(xp).while_loop(far, step, (mean, xp.ones_like(mean)))[0]

    return (af.vmap if xp is anp else jax.vmap)(solve)(mean, slope)


def recurrent(xp: Any, x: Any, h: Any, u: Any, w: Any) -> Any:
    """A recurrent network: the states of all steps."""

    def step(h: Any, given: Any) -> Any:
        h = xp.tanh(given @ w / 11 + h @ u / 11)
        return h, h

    return lax_of(xp).scan(step, h, x)[1]


def gated(xp: Any, x: Any, h: Any, u: Any, w: Any) -> Any:
    """A network of gated recurrent units: the states of all steps."""
    n = h.shape[1]

    def sigmoid(z: Any) -> Any:
        return 1 / (1 + xp.exp(-z))

    def step(h: Any, given: Any) -> Any:
        a, c = given @ w / 11, h @ u / 11
        update = sigmoid(a[:, :n] + c[:, :n])
        reset = sigmoid(a[:, n : 2 * n] + c[:, n : 2 * n])
        h = (1 - update) * h + update * xp.tanh(a[:, 2 * n :] + reset * c[:, 2 * n :])
        return h, h

    return lax_of(xp).scan(step, h, x)[1]


def layers(xp: Any, x: Any, *weights: Any) -> Any:
    """Dense layers."""
    for w in weights:
        x = xp.tanh(x @ w / 11)
    return x


def layers_loss(xp: Any, *arrays: Any) -> Any:
    """How far dense layers are from a target."""
    *weights, x, target = arrays
    return xp.mean((layers(xp, x, *weights) - target) ** 2)


def reductions(xp: Any, x: Any) -> Any:
    """Reductions of a small array, each of which needs the last."""
    for _ in range(4):
        y = xp.exp(x - xp.max(x))
        z = y / xp.sum(y, axis=0)
        x = z * xp.mean(z * x) + x
    return x


LOOPS: tuple[tuple[str, Callable[..., Any], tuple[tuple[int, ...], ...]], ...] = (
    ("power 256", power, ((256, 256), (256,))),
    ("heat 512", heat, ((512, 512),)),
    ("switch 128", switching, ((128, 128),)),
    ("mandelbrot 1M", mandelbrot, ((1024, 1024), (1024, 1024))),
    ("kepler 1M", kepler, ((1 << 20,), (1 << 20,))),
    ("rnn 8x128", recurrent, ((128, 8, 128), (8, 128), (128, 128), (128, 128))),
    ("rnn of 5000", recurrent, ((5000, 8, 128), (8, 128), (128, 128), (128, 128))),
)
"""Names, functions and the shapes of their arrays."""

SMALL: tuple[tuple[str, Callable[..., Any], tuple[tuple[int, ...], ...]], ...] = (
    ("rnn 8x128", recurrent, ((128, 8, 128), (8, 128), (128, 128), (128, 128))),
    ("gru 8x128", gated, ((128, 8, 128), (8, 128), (128, 384), (128, 384))),
    ("layers 16x128", layers, ((16, 128), (128, 128), (128, 128), (128, 128))),
    ("reductions", reductions, ((64, 256),)),
)
"""The same, for ``mode="persistent"``."""
