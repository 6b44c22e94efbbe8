"""Softmax under SciPy's name: over all axes by default."""

from __future__ import annotations

from arrayfn import nn
from arrayfn.numpy._operands import Array, ArrayLike, Axis


def softmax(x: ArrayLike, axis: Axis = None) -> Array:
    """Return exp(x) / sum(exp(x)) over ``axis`` (None: all), without overflow."""
    return nn.softmax(x, axis)


def log_softmax(x: ArrayLike, axis: Axis = None) -> Array:
    """Return the logarithm of ``softmax``, accurate even if ``softmax`` underflows."""
    return nn.log_softmax(x, axis)
