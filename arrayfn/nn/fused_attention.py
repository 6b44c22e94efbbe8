"""Attention as operators: one kernel each on a GPU, forward and backward.

``attention`` is the semantics for float16 and bfloat16; ``attention_gradient`` computes
its cotangents from the logarithms of the softmax's denominators (Dao et al.,
FlashAttention, 2022). Backends register kernels for both (``backends.cuda.attention``);
where none applies the bodies here run. Forward mode always runs the bodies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.compilation.operators import operator
from arrayfn.numpy._operands import Array
from arrayfn.transforms.custom import custom_vjp

Window = tuple[int | None, int | None]
Terms = Mapping[str, Array]

_WIDE: Final = dtypes.float32
_STATIC: Final = ("scale", "window", "given")


@operator(name="nn.attention", static_argnames=_STATIC, shardable=True)
def attention(
    q: Array,
    k: Array,
    v: Array,
    terms: Terms,
    scale: float,
    window: Window,
    given: tuple[str, ...],
) -> tuple[Array, Array]:
    """The attention of q [B, T, N, H] to k and v [B, S, K, H], and [B, N, T] logsumexp.

    K divides N; the logarithms are float32. ``given`` names the ``terms`` in order:
    "bias" and "mask" (bool) broadcast to [B, N, T, S], and "query_lengths" and
    "key_lengths" are int32 [B]. Query t attends to keys from t - window[0] to
    t + window[1]; None is no limit. If all logits are -inf the result is 0.
    """
    logits = _logits(q, k, terms, scale, window)
    most = anp.max(logits, axis=-1, keepdims=True)
    most = anp.where(anp.equal(most, -anp.inf), 0, most)
    weights = anp.exp(anp.subtract(logits, most))
    total = anp.sum(weights, axis=-1, keepdims=True)
    weights = anp.divide(weights, anp.where(anp.equal(total, 0), 1, total))
    mixed = _over_keys(anp.astype(weights, q.dtype), v)
    logarithms = anp.squeeze(anp.add(most, anp.log(total)), -1)
    B, T, N, _ = q.shape
    heads = anp.reshape(anp.transpose(logarithms, (0, 1, 3, 2)), (B, N, T))
    return anp.reshape(anp.astype(mixed, q.dtype), q.shape), heads


@operator(name="nn.attention_gradient", static_argnames=_STATIC, shardable=True)
def attention_gradient(
    q: Array,
    k: Array,
    v: Array,
    terms: Terms,
    result: Array,
    logarithms: Array,
    cotangent: Array,
    scale: float,
    window: Window,
    given: tuple[str, ...],
) -> tuple[Array, Array, Array]:
    """The cotangents of q, k and v from the cotangent of ``attention``'s result."""
    weights, by_logits = _weights_and_gradient(
        q, k, v, terms, result, logarithms, cotangent, scale, window
    )
    by_logits = anp.multiply(by_logits, scale)
    wide_q, g = (_grouped_heads(x, k.shape[2]) for x in (q, cotangent))
    dq = anp.reshape(_over_keys(by_logits, anp.astype(k, _WIDE)), q.shape)
    over_queries = (((2, 3), (1, 3)), ((0, 1), (0, 2)))
    dk = lax.dot_general(by_logits, wide_q, over_queries)
    dv = lax.dot_general(weights, g, over_queries)
    dk, dv = (anp.transpose(x, (0, 2, 1, 3)) for x in (dk, dv))
    return (
        anp.astype(dq, q.dtype),
        anp.astype(dk, k.dtype),
        anp.astype(dv, v.dtype),
    )


def where_to_attend(
    B: int, T: int, S: int, window: Window, terms: Mapping[str, Any]
) -> Array | None:
    """The mask of window and lengths, which broadcasts to [B, K, T, G, S], or None."""
    t, s = (lax.broadcasted_iota(dtypes.int32, (T, 1, S), axis) for axis in (0, 2))
    left, right = window
    parts: list[Any] = []
    if left is not None:
        parts.append(anp.less_equal(t, anp.add(s, left)))
    if right is not None:
        parts.append(anp.less_equal(s, anp.add(t, right)))
    for place, name in ((t, "query_lengths"), (s, "key_lengths")):
        if name in terms:
            parts.append(anp.less(place, anp.reshape(terms[name], (B, 1, 1, 1, 1))))
    if not parts:
        return None
    whole = parts[0]
    for part in parts[1:]:
        whole = anp.logical_and(whole, part)
    return whole


def grouped(x: Array, K: int, G: int) -> Array:
    """x, of four axes like [B, N, T, S], in the order [B, K, T, G, S]."""
    split = (1, 1) if x.shape[1] == 1 else (K, G)
    return anp.transpose(
        anp.reshape(x, (x.shape[0], *split, *x.shape[2:])), (0, 1, 3, 2, 4)
    )


def _logits(q: Array, k: Array, terms: Terms, scale: float, window: Window) -> Array:
    """Logits in float32, [B, K, T, G, S]; -inf for keys that are not attended to.

    ``q`` is [B, T, N, H] and ``k`` [B, S, K, H]; G = N / K heads share a key. The
    products are multiplied by ``scale``.
    """
    (B, T, N, _), (S, K) = q.shape, k.shape[1:3]
    logits = lax.dot_general(
        _split_heads(q, K),
        k,
        (((4,), (3,)), ((0, 2), (0, 2))),
        preferred_element_type=_WIDE,
    )
    logits = anp.multiply(logits, scale)
    if "bias" in terms:
        bias = grouped(terms["bias"], K, N // K)
        logits = anp.add(logits, anp.astype(bias, _WIDE))
    where = where_to_attend(B, T, S, window, terms)
    if "mask" in terms:
        mask = grouped(terms["mask"], K, N // K)
        where = mask if where is None else anp.logical_and(where, mask)
    return logits if where is None else anp.where(where, logits, -anp.inf)


def _weights_and_gradient(
    q: Array,
    k: Array,
    v: Array,
    terms: Terms,
    result: Array,
    logarithms: Array,
    cotangent: Array,
    scale: float,
    window: Window,
) -> tuple[Array, Array]:
    """The recomputed softmax, and the logits' cotangent, both [B, K, T, G, S].

    ``q`` and ``result`` are [B, T, N, H], ``k`` and ``v`` [B, S, K, H], ``logarithms``
    (of the sums of exponentials) [B, N, T]. ``scale`` is that of the logits.
    """
    B, T, N, _ = q.shape
    K = k.shape[2]
    known = anp.reshape(logarithms, (B, K, N // K, T))
    known = anp.expand_dims(anp.transpose(known, (0, 1, 3, 2)), -1)
    known = anp.where(anp.equal(known, -anp.inf), anp.inf, known)
    logits = _logits(q, k, terms, scale, window)
    weights = anp.exp(anp.subtract(logits, known))
    g, out = (_grouped_heads(x, K) for x in (cotangent, result))
    # [B, K, T, G, S], from [B, T, K, G, H] and [B, S, K, H]
    by_weights = lax.dot_general(
        g, anp.astype(v, _WIDE), (((4,), (3,)), ((0, 2), (0, 2)))
    )
    mean = anp.sum(anp.multiply(g, out), axis=-1, keepdims=True)
    mean = anp.transpose(mean, (0, 2, 1, 3, 4))
    return weights, anp.multiply(weights, anp.subtract(by_weights, mean))


def _split_heads(x: Array, K: int) -> Array:
    """x [B, T, N, H] as [B, T, K, G, H]."""
    B, T, N, H = x.shape
    return anp.reshape(x, (B, T, K, N // K, H))


def _grouped_heads(x: Array, K: int) -> Array:
    """``_split_heads`` in float32."""
    return _split_heads(anp.astype(x, _WIDE), K)


def _over_keys(weights: Array, v: Array) -> Array:
    """Sums of v [B, S, K, H] with weights [B, K, T, G, S], as [B, T, K, G, H]."""
    mixed = lax.dot_general(weights, v, (((4,), (1,)), ((0, 1), (0, 2))))
    return anp.transpose(mixed, (0, 2, 1, 3, 4))


@operator(name="nn.attention_bias_gradient", static_argnames=_STATIC, shardable=True)
def attention_bias_gradient(
    q: Array,
    k: Array,
    v: Array,
    terms: Terms,
    result: Array,
    logarithms: Array,
    cotangent: Array,
    scale: float,
    window: Window,
    given: tuple[str, ...],
) -> Array:
    """The cotangent of the bias among ``terms``, in the bias's shape.

    The body needs memory for all logits; kernels do not.
    """
    _, by_logits = _weights_and_gradient(
        q, k, v, terms, result, logarithms, cotangent, scale, window
    )
    B, K, T, G, S = by_logits.shape
    by_bias = anp.reshape(anp.transpose(by_logits, (0, 1, 3, 2, 4)), (B, K * G, T, S))
    bias = terms["bias"]
    shared = tuple(k for k, n in enumerate(bias.shape) if n == 1)
    return anp.astype(anp.sum(by_bias, axis=shared, keepdims=True), bias.dtype)


def _differentiable(*arguments: Any) -> Array:
    return _ahead(*arguments)[0]


def _ahead(
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None,
    others: Terms,
    scale: float,
    window: Window,
) -> Any:
    """The result of attention, and what its gradient needs."""
    terms = dict(others) if bias is None else {**others, "bias": bias}
    given = tuple(sorted(terms))
    made = attention(q, k, v, terms, scale=scale, window=window, given=given)
    return made[0], (q, k, v, terms, *made)


def _back(scale: float, window: Window, residuals: Any, cotangent: Array) -> Any:
    """The cotangents of q, k, v, the bias and the other terms."""
    q, k, v, terms, result, logarithms = residuals
    given = tuple(sorted(terms))
    forward = q, k, v, terms, result, logarithms, cotangent
    made = attention_gradient(*forward, scale, window, given)
    if "bias" not in terms:
        return *made, None, None
    # Dead-code elimination removes it if it is not needed.
    return *made, attention_bias_gradient(*forward, scale, window, given), None


fused_attention = custom_vjp(_differentiable, nondiff_argnums=(5, 6))
"""The result of ``attention`` for (q, k, v, bias, other terms, scale, window)."""

fused_attention.defvjp(_ahead, _back)


__all__ = ["attention", "attention_gradient", "fused_attention"]
