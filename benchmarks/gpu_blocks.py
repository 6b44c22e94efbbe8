"""Attention and transformer blocks that ``benchmarks.gpu`` measures."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import nn


def attention(
    xp: Any,
    q: Any,
    k: Any,
    v: Any,
    *bias: Any,
    causal: bool = False,
    left: int | None = None,
    by: str = "cudnn",
) -> Any:
    """Attention of heads [B, T, N, H]: cuDNN's, by either library, or JAX's ``by`` XLA.

    ``left`` is how far before a query the keys begin that it attends to.
    """
    window = None if left is None else (left, 0)
    if xp is anp:
        return nn.dot_product_attention(
            q, k, v, *bias, is_causal=causal, local_window_size=window
        )
    return jax.nn.dot_product_attention(
        q, k, v, *bias, is_causal=causal, local_window_size=window, implementation=by
    )


def attention_gradient(xp: Any, *arrays: Any, **options: Any) -> Any:
    """The gradient of attention by all arrays but the last one, its cotangent."""
    *given, g = arrays
    value_and_grad = af.value_and_grad if xp is anp else jax.value_and_grad

    def total(*given: Any) -> Any:
        out = attention(xp, *given, **options)
        return xp.sum(out.astype(np.float32) * g.astype(np.float32))

    return value_and_grad(total, argnums=tuple(range(len(given))))(*given)[1]


def transformer(xp: Any, *arrays: Any, heads: int) -> Any:
    """The mean square error of causal transformer blocks, in bfloat16."""
    *parameters, x, target = arrays
    B, T, D = x.shape
    for k in range(0, len(parameters), 4):
        qkv, out, up, down = parameters[k : k + 4]
        parts = (_normalised(xp, x) @ qkv).reshape(B, T, 3, heads, D // heads)
        q, k_, v = (parts[:, :, j] for j in range(3))
        x = x + attention(xp, q, k_, v, causal=True).reshape(B, T, D) @ out
        x = x + xp.maximum(_normalised(xp, x) @ up, 0) @ down
    return xp.mean((x.astype(np.float32) - target.astype(np.float32)) ** 2)


def _normalised(xp: Any, x: Any) -> Any:
    wide = x.astype(np.float32)
    d = wide - xp.mean(wide, axis=-1, keepdims=True)
    variance = xp.mean(d * d, axis=-1, keepdims=True)
    return (d / xp.sqrt(variance + 1e-5)).astype(x.dtype)
