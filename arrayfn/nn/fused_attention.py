"""Attention as operators: what cuDNN computes on a GPU, forward and backward.

``attention`` is the semantics of the plain case, without bias or mask, for float16 and
bfloat16; ``attention_gradient`` its cotangents, from the logarithms of the softmax's
denominators (Dao et al., FlashAttention, 2022). Elsewhere than on a GPU their bodies
run. Forward mode goes through neither.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import Any, Final

import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.custom import custom_vjp
from arrayfn.ir import ArrayType
from arrayfn.numpy._operands import Array
from arrayfn.operators import operator

_CUDNN: Final = "arrayfn.backends.cuda.libraries.cudnn"  # imported on a GPU
_WIDE: Final = dtypes.float32


@operator(name="attention", static_argnames=("scale", "is_causal"))
def attention(
    q: Array, k: Array, v: Array, scale: float, is_causal: bool
) -> tuple[Array, Array]:
    """The attention of q [B, T, N, H] to k and v [B, S, K, H], and [B, N, T] logsumexp.

    K divides N; the logarithms are float32.
    """
    logits = _logits(q, k, scale, is_causal)
    most = anp.max(logits, axis=-1, keepdims=True)
    weights = anp.exp(anp.subtract(logits, most))
    total = anp.sum(weights, axis=-1, keepdims=True)
    mixed = _over_keys(anp.astype(anp.divide(weights, total), q.dtype), v)
    logarithms = anp.squeeze(anp.add(most, anp.log(total)), -1)
    B, T, N, _ = q.shape
    heads = anp.reshape(anp.transpose(logarithms, (0, 1, 3, 2)), (B, N, T))
    return anp.reshape(anp.astype(mixed, q.dtype), q.shape), heads


@operator(name="attention_gradient", static_argnames=("scale", "is_causal"))
def attention_gradient(
    q: Array,
    k: Array,
    v: Array,
    result: Array,
    logarithms: Array,
    cotangent: Array,
    scale: float,
    is_causal: bool,
) -> tuple[Array, Array, Array]:
    """The cotangents of q, k and v, given that of ``attention``'s result."""
    B, T, N, H = q.shape
    K = k.shape[2]
    grouped = anp.reshape(logarithms, (B, K, N // K, T))
    known = anp.expand_dims(anp.transpose(grouped, (0, 1, 3, 2)), -1)
    weights = anp.exp(anp.subtract(_logits(q, k, scale, is_causal), known))
    shape = (B, T, K, N // K, H)
    g, out, wide_q = (
        anp.reshape(anp.astype(x, _WIDE), shape) for x in (cotangent, result, q)
    )
    wide_k, wide_v = (anp.astype(x, _WIDE) for x in (k, v))
    # [B, K, T, G, S], from [B, T, K, G, H] and [B, S, K, H]
    by_weights = lax.dot_general(g, wide_v, (((4,), (3,)), ((0, 2), (0, 2))))
    mean = anp.sum(anp.multiply(g, out), axis=-1, keepdims=True)
    mean = anp.transpose(mean, (0, 2, 1, 3, 4))
    by_logits = anp.multiply(weights, anp.subtract(by_weights, mean))
    by_logits = anp.multiply(by_logits, scale)
    dq = anp.reshape(_over_keys(by_logits, wide_k), q.shape)
    over_queries = (((2, 3), (1, 3)), ((0, 1), (0, 2)))
    dk = lax.dot_general(by_logits, wide_q, over_queries)
    dv = lax.dot_general(weights, g, over_queries)
    dk, dv = (anp.transpose(x, (0, 2, 1, 3)) for x in (dk, dv))
    return (
        anp.astype(dq, q.dtype),
        anp.astype(dk, k.dtype),
        anp.astype(dv, v.dtype),
    )


def _logits(q: Array, k: Array, scale: float, is_causal: bool) -> Array:
    """Scaled products of queries and keys in float32, [B, K, T, G, S]."""
    B, T, N, H = q.shape
    S, K = k.shape[1:3]
    grouped = anp.reshape(q, (B, T, K, N // K, H))
    logits = lax.dot_general(
        grouped, k, (((4,), (3,)), ((0, 2), (0, 2))), preferred_element_type=_WIDE
    )
    logits = anp.multiply(logits, scale)
    if not is_causal:
        return logits
    shape = (T, 1, S)
    t, s = (lax.broadcasted_iota(dtypes.int32, shape, axis) for axis in (0, 2))
    return anp.where(anp.less_equal(s, t), logits, -anp.inf)


def _over_keys(weights: Array, v: Array) -> Array:
    """Sums of v [B, S, K, H] by weights [B, K, T, G, S], [B, T, K, G, H]."""
    mixed = lax.dot_general(weights, v, (((4,), (1,)), ((0, 1), (0, 2))))
    return anp.transpose(mixed, (0, 2, 1, 3, 4))


def _differentiable(q: Array, k: Array, v: Array, scale: float, causal: bool) -> Array:
    return attention(q, k, v, scale=scale, is_causal=causal)[0]


def _ahead(q: Array, k: Array, v: Array, scale: float, causal: bool) -> Any:
    result, logarithms = attention(q, k, v, scale=scale, is_causal=causal)
    return result, (q, k, v, result, logarithms)


def _back(scale: float, causal: bool, residuals: Any, cotangent: Array) -> Any:
    return attention_gradient(*residuals, cotangent, scale=scale, is_causal=causal)


fused_attention = custom_vjp(_differentiable, nondiff_argnums=(3, 4))
"""``attention(q, k, v, scale, is_causal)`` without the logarithms, with gradients."""

fused_attention.defvjp(_ahead, _back)


# cuDNN.


@cache
def _has_cudnn() -> bool:
    return importlib.util.find_spec("cudnn") is not None


def _suits_cudnn(q: ArrayType, k: ArrayType, *others: ArrayType, **static: Any) -> bool:
    """Heads of up to 128 elements, whole vectors of them, and something to do."""
    head = q.shape[-1]
    return (
        q.dtype in dtypes.HALVES
        and head % 8 == 0
        and head <= 128
        and bool(q.size and k.size)
        and _has_cudnn()
    )


def _lies_in_vectors(type: ArrayType, offset: int) -> bool:
    """Whether all rows of heads begin at whole vectors of 128 bits."""
    if type.ndim != 4:
        return False
    strides = type.layout.strides(type.shape)
    places = (offset, *strides[:-1])
    in_vectors = all(k >= 0 and k * type.dtype.itemsize % 16 == 0 for k in places)
    return strides[-1] == 1 and in_vectors


@attention.kernel("cuda", when=_suits_cudnn, prepared=True, views=_lies_in_vectors)
def cudnn_attention(*types: ArrayType, scale: float, is_causal: bool) -> Any:
    """cuDNN's scaled dot-product attention, for these types."""
    return importlib.import_module(_CUDNN).attention(*types, scale, is_causal)


@attention_gradient.kernel(
    "cuda", when=_suits_cudnn, prepared=True, views=_lies_in_vectors
)
def cudnn_attention_gradient(*types: ArrayType, scale: float, is_causal: bool) -> Any:
    """cuDNN's gradient of it, for these types."""
    return importlib.import_module(_CUDNN).attention_gradient(*types, scale, is_causal)


__all__ = ["attention", "attention_gradient", "fused_attention"]
