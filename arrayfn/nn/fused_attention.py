"""Attention as operators: one kernel each on a GPU, forward and backward.

``attention`` is the semantics for float16 and bfloat16; ``attention_gradient`` computes
its cotangents from the logarithms of the softmax's denominators (Dao et al.,
FlashAttention, 2022). Backends register kernels for both (``backends.cuda.attention``);
where none applies the bodies here run. Forward mode always runs the bodies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.compilation.operators import operator
from arrayfn.nn.block_masks import iota
from arrayfn.nn.score_programs import scores_at, slopes_at, with_slope
from arrayfn.numpy._operands import Array
from arrayfn.transforms import vjp
from arrayfn.transforms.custom import custom_vjp

Window = tuple[int | None, int | None]
Block = tuple[int, int] | None
Terms = Mapping[str, Array]
Places = tuple[Array, Array, Array, Array]

_WIDE: Final = dtypes.float32
_STATIC: Final = ("scale", "window", "given", "score", "block")


@operator(name="nn.attention", static_argnames=_STATIC, shardable=True)
def attention(
    q: Array,
    k: Array,
    v: Array,
    terms: Terms,
    scale: float,
    window: Window,
    given: tuple[str, ...],
    score: str = "",
    block: Block = None,
) -> tuple[Array, Array]:
    """Compute the attention of q [B, T, N, H] to k and v [B, S, K, H].

    Returns the result, like q, and [B, N, T] the float32 logarithms of the softmax's
    denominators (logsumexp of the logits). K divides N: N / K heads of queries share a
    head of keys. ``given`` names the ``terms`` in order: "bias" and "mask" (bool)
    broadcast to [B, N, T, S], and "query_lengths" and "key_lengths" are int32 [B].
    Query t attends to keys from t - window[0] to t + window[1]; None is no limit. If
    all logits are -inf the result is 0.

    ``score`` is the text of a Program (see ``score_programs``) that each logit goes
    through, with the bias and before the masks; the arrays that it captures are the
    terms "captured_000", "captured_001" and so on. ``block`` has the sizes of a block
    mask's blocks of queries and keys. The mask is part of ``score``; its terms
    "next_keys" and "next_queries" only help to leave out whole blocks (see
    ``BlockMask.following``).
    """
    _, logits = _logits(q, k, terms, scale, window, score)
    largest = anp.max(logits, axis=-1, keepdims=True)
    largest = anp.where(anp.equal(largest, -anp.inf), 0, largest)
    weights = anp.exp(anp.subtract(logits, largest))
    total = anp.sum(weights, axis=-1, keepdims=True)
    weights = anp.divide(weights, anp.where(anp.equal(total, 0), 1, total))
    mixed = _over_keys(anp.astype(weights, q.dtype), v)
    logarithms = anp.squeeze(anp.add(largest, anp.log(total)), -1)
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
    score: str = "",
    block: Block = None,
) -> tuple[Array, Array, Array]:
    """Return the cotangents of q, k and v from the ``cotangent`` of attention's result.

    ``result`` and ``logarithms`` are those of ``attention``, and the other parameters
    too. The Program ``score`` has a second result, its derivative by the logit.
    """
    weights, by_logits = _weights_and_gradient(
        q, k, v, terms, result, logarithms, cotangent, scale, window, score
    )
    by_logits = anp.multiply(by_logits, scale)
    wide_q, g = (_grouped_heads(x, k.shape[2]) for x in (q, cotangent))
    dq = anp.reshape(_over_keys(by_logits, anp.astype(k, _WIDE)), q.shape)
    # [B, K, T, G, S] and [B, T, K, G, H]: contract T and G, with B and K as batch axes.
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
    """Return the mask of the window and the lengths, or None if there are none.

    The mask is bool and broadcasts to [B, K, T, G, S]. Query t attends to key s if t -
    left <= s <= t + right, t < query length and s < key length.
    """
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
    """Reorder x [B, N, T, S] to [B, K, T, G, S], for N = K G heads.

    B, N, T and S may each be 1; for N = 1, K and G are 1 too.
    """
    split = (1, 1) if x.shape[1] == 1 else (K, G)
    return anp.transpose(
        anp.reshape(x, (x.shape[0], *split, *x.shape[2:])), (0, 1, 3, 2, 4)
    )


def grouped_places(B: int, K: int, T: int, G: int, S: int) -> Places:
    """Return the indices of batch, head, query and key in the order [B, K, T, G, S].

    Each is int32 and broadcasts; the head is k G + g.
    """
    head = anp.add(anp.multiply(iota(K, axis=1, rank=5), G), iota(G, axis=3, rank=5))
    return (
        iota(B, axis=0, rank=5),
        head,
        iota(T, axis=2, rank=5),
        iota(S, axis=4, rank=5),
    )


def captured_of(terms: Terms) -> list[str]:
    """Return the names of the terms that a score function captures, in order."""
    return sorted(name for name in terms if name.startswith("captured"))


def _captured(terms: Terms) -> list[Array]:
    """Return the terms that a score function captures, in order."""
    return [terms[name] for name in captured_of(terms)]


def _logits(
    q: Array, k: Array, terms: Terms, scale: float, window: Window, score: str
) -> tuple[Array, Array]:
    """Return float32 logits [B, K, T, G, S] before and after ``score`` and the masks.

    ``q`` is [B, T, N, H] and ``k`` [B, S, K, H]; G = N / K heads share a key. The first
    result is q . k times ``scale``, plus a bias. The second result is -inf for keys
    that are not attended to.
    """
    (B, T, N, _), (S, K) = q.shape, k.shape[1:3]
    # [B, T, K, G, H] and [B, S, K, H]: contract H, with B and K as batch axes.
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
    scores = logits
    if score:
        at = grouped_places(B, K, T, N // K, S)
        scores = scores_at(score, logits, at, _captured(terms))
    return logits, scores if where is None else anp.where(where, scores, -anp.inf)


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
    score: str,
    *,
    of_scores: bool = False,
) -> tuple[Array, Array]:
    """Recompute the softmax, and compute the logits' cotangent, both [B, K, T, G, S].

    ``q``, ``result`` and ``cotangent`` are [B, T, N, H], ``k`` and ``v`` [B, S, K, H],
    and ``logarithms`` (of the sums of exponentials) [B, N, T]. ``scale`` is that of the
    logits. With weights w, the cotangent is w (g . v - g . result), for the cotangent g
    of the result (Dao et al., 2022), times the slope of ``score``. With ``of_scores``,
    the slope is left out: the cotangent is that of the results of ``score``.
    """
    B, T, N, _ = q.shape
    S, K = k.shape[1:3]
    log_sums = anp.reshape(logarithms, (B, K, N // K, T))
    log_sums = anp.expand_dims(anp.transpose(log_sums, (0, 1, 3, 2)), -1)
    # For a query without keys, exp(-inf - inf) gives weights of 0.
    log_sums = anp.where(anp.equal(log_sums, -anp.inf), anp.inf, log_sums)
    logits, scores = _logits(q, k, terms, scale, window, score)
    weights = anp.exp(anp.subtract(scores, log_sums))
    g, out = (_grouped_heads(x, K) for x in (cotangent, result))
    # [B, K, T, G, S], from [B, T, K, G, H] and [B, S, K, H]
    by_weights = lax.dot_general(
        g, anp.astype(v, _WIDE), (((4,), (3,)), ((0, 2), (0, 2)))
    )
    weighted_mean = anp.sum(anp.multiply(g, out), axis=-1, keepdims=True)
    weighted_mean = anp.transpose(weighted_mean, (0, 2, 1, 3, 4))
    by_scores = anp.multiply(weights, anp.subtract(by_weights, weighted_mean))
    if not score or of_scores:
        return weights, by_scores
    at = grouped_places(B, K, T, N // K, S)
    slopes = slopes_at(score, logits, at, _captured(terms))
    # A derivative may be infinite where a key is not attended to.
    by_logits = anp.where(anp.equal(weights, 0), 0, anp.multiply(by_scores, slopes))
    return weights, by_logits


def _split_heads(x: Array, K: int) -> Array:
    """Reshape x [B, T, N, H] to [B, T, K, G, H]."""
    B, T, N, H = x.shape
    return anp.reshape(x, (B, T, K, N // K, H))


def _grouped_heads(x: Array, K: int) -> Array:
    """Reshape x as ``_split_heads`` does, in float32."""
    return _split_heads(anp.astype(x, _WIDE), K)


def _over_keys(weights: Array, v: Array) -> Array:
    """Sum v [B, S, K, H] over keys with weights [B, K, T, G, S], to [B, T, K, G, H]."""
    # Contract S, with B and K as batch axes: [B, K, T, G, H].
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
    score: str = "",
    block: Block = None,
) -> Array:
    """Return the cotangent of the bias among ``terms``, in the bias's shape and dtype.

    The parameters are those of ``attention_gradient``. Axes along which the bias
    broadcasts are summed. The body needs memory for all logits; kernels do not.
    """
    _, by_logits = _weights_and_gradient(
        q, k, v, terms, result, logarithms, cotangent, scale, window, score
    )
    B, K, T, G, S = by_logits.shape
    by_bias = anp.reshape(anp.transpose(by_logits, (0, 1, 3, 2, 4)), (B, K * G, T, S))
    bias = terms["bias"]
    shared = tuple(k for k, n in enumerate(bias.shape) if n == 1)
    return anp.astype(anp.sum(by_bias, axis=shared, keepdims=True), bias.dtype)


def _captured_gradient(
    q: Array,
    k: Array,
    v: Array,
    terms: Terms,
    result: Array,
    logarithms: Array,
    cotangent: Array,
    scale: float,
    window: Window,
    score: str,
) -> dict[str, Array]:
    """Return the cotangents of the floating-point arrays that ``score`` captures.

    The parameters are those of ``attention_gradient``, and the result maps names of
    terms to arrays. Each cotangent is a sum over all scores, and needs memory for all
    of them.
    """
    captured = {name: terms[name] for name in captured_of(terms)}
    varying = [name for name, x in captured.items() if x.dtype in dtypes.FLOATS]
    if not varying:
        return {}
    _, by_scores = _weights_and_gradient(
        *(q, k, v, terms, result, logarithms, cotangent, scale, window, score),
        of_scores=True,
    )
    logits, _ = _logits(q, k, terms, scale, window, "")
    B, K, T, G, S = by_scores.shape
    at = grouped_places(B, K, T, G, S)

    def scores(*arrays: Array) -> Array:
        """Return all scores, as a function of the captured ``arrays`` of floats."""
        all_captured = {**captured, **dict(zip(varying, arrays, strict=True))}
        return scores_at(score, logits, at, [*all_captured.values()])

    _, transposed = vjp(scores, *(captured[name] for name in varying))
    return dict(zip(varying, transposed(by_scores), strict=True))


def _differentiable(*arguments: Any) -> Array:
    """Return the result of attention, without its logarithms."""
    return _ahead(*arguments)[0]


def _ahead(
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None,
    others: Terms,
    scale: float,
    window: Window,
    score: str = "",
    block: Block = None,
) -> Any:
    """Run the forward pass: return the result of attention, and the residuals.

    The parameters are those of ``attention``, with the ``bias`` apart from the
    ``others`` among its terms.
    """
    terms = dict(others) if bias is None else {**others, "bias": bias}
    given = tuple(sorted(terms))
    result, logarithms = attention(q, k, v, terms, scale, window, given, score, block)
    return result, (q, k, v, terms, result, logarithms)


def _back(
    scale: float,
    window: Window,
    score: str,
    block: Block,
    residuals: Any,
    cotangent: Array,
) -> Any:
    """Return the cotangents of q, k, v, the bias and the other terms.

    ``residuals`` are those of ``_ahead``. Terms without a derivative get None.
    """
    q, k, v, terms, result, logarithms = residuals
    given = tuple(sorted(terms))
    forward = q, k, v, terms, result, logarithms, cotangent
    static = scale, window, given, with_slope(score) if score else "", block
    by_operands = attention_gradient(*forward, *static)
    # Dead-code elimination removes what follows if it is not needed.
    by_bias = attention_bias_gradient(*forward, *static) if "bias" in terms else None
    others: dict[str, Array | None] = {x: None for x in terms if x != "bias"}
    others |= _captured_gradient(*forward, scale, window, score)
    return *by_operands, by_bias, others


fused_attention = custom_vjp(_differentiable, nondiff_argnums=(5, 6, 7, 8))
"""Compute the result of ``attention``, with a rule of reverse mode.

The arguments are (q, k, v, bias, other terms, scale, window, score, block).
"""

fused_attention.defvjp(_ahead, _back)


def terms_of_captured(captured: Sequence[Array]) -> dict[str, Array]:
    """Return the terms of ``attention`` for the arrays that a score function captures.

    The first is "captured_000".
    """
    return {f"captured_{k:03}": array for k, array in enumerate(captured)}


__all__ = ["attention", "attention_gradient", "fused_attention"]
