"""Arrays and functions that tests of kernels for a GPU share."""

from __future__ import annotations

from typing import Any

import numpy as np

import arrayfn.numpy as anp


def random(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray[Any, Any]:
    """Normal numbers, of a deviation of 3."""
    values = np.random.default_rng(seed).standard_normal(shape) * 3
    return values.astype(dtype)


def softmax(x: Any) -> Any:
    """Softmax along rows."""
    e = anp.exp(x - anp.max(x, axis=-1, keepdims=True))
    return e / anp.sum(e, axis=-1, keepdims=True)


def layernorm(x: Any, scale: Any) -> Any:
    """Layer normalisation of rows."""
    d = x - anp.mean(x, axis=-1, keepdims=True)
    variance = anp.mean(d * d, axis=-1, keepdims=True)
    return d / anp.sqrt(variance + 1e-5) * scale
