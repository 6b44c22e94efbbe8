"""Scaled dot-product attention, with grouped heads."""

from __future__ import annotations

import math
from typing import Any

import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.ir import ArrayType
from arrayfn.nn.fused_attention import fused_attention
from arrayfn.nn.softmax_family import softmax
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.primitives import views
from arrayfn.tracing import apply


def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
) -> Array:
    """softmax(query @ key * scale + bias) @ value, for each head.

    Vaswani et al., Attention is all you need, 2017. With fewer heads of keys and values
    than of queries, each serves a group of these (Ainslie et al., GQA, 2023). Logits
    and softmax of halves are computed in float32; without bias, mask, lengths and
    window they are one operator, which cuDNN computes on a GPU, and which has a
    derivative in reverse alone. A query that may attend to nothing gives zeros.

    Args:
        query: [B, T, N, H], or without B.
        key: [B, S, K, H], where K divides N.
        value: as key.
        bias: added to the logits; broadcasts to [B, N, T, S].
        mask: bool, where to attend; broadcasts to [B, N, T, S].
        scale: 1 / sqrt(H) by default.
        is_causal: position t attends to s <= t alone.
        query_seq_lengths: integers [B]; queries from there on give zeros.
        key_value_seq_lengths: integers [B]; keys from there on are not attended to.
        local_window_size: how far to the left and to the right to attend.

    Returns:
        An array of query's shape and dtype.

    Raises:
        ShapeError: the shapes do not fit.

    >>> import numpy as np
    >>> x = np.arange(6.0).reshape(3, 1, 2)
    >>> dot_product_attention(x, x, x, is_causal=True)[0]
    array([[0., 1.]])
    """
    types = [
        ops.type_of_operand("dot_product_attention", x) for x in (query, key, value)
    ]
    B, T, N, H, S, K = _extents(*types)
    G = N // K
    dtype = dtypes.promote((t.dtype, t.weak) for t in types)[0]
    plain = (
        bias is None
        and mask is None
        and local_window_size is None
        and query_seq_lengths is None
        and key_value_seq_lengths is None
    )
    factor = 1.0 / math.sqrt(H) if scale is None else scale
    if plain and dtype in dtypes.HALVES and isinstance(factor, float):
        shapes = (B, T, N, H), (B, S, K, H), (B, S, K, H)
        arrays = (
            anp.reshape(anp.astype(x, dtype), shape)
            for x, shape in zip((query, key, value), shapes, strict=True)
        )
        result = fused_attention(*arrays, factor, is_causal)
        return anp.reshape(result, types[0].shape)
    wide = dtypes.compute_dtype(ops.floating_dtype(dtype))
    q = anp.reshape(anp.astype(query, dtype), (B, T, K, G, H))
    k, v = (anp.reshape(anp.astype(x, dtype), (B, S, K, H)) for x in (key, value))
    # [B, K, T, G, S]
    logits = lax.dot_general(
        q, k, (((4,), (3,)), ((0, 2), (0, 2))), preferred_element_type=wide
    )
    logits = anp.multiply(logits, factor)
    if bias is not None:
        logits = anp.add(logits, anp.astype(_grouped("bias", bias, K, G), wide))
    window = local_window_size
    if isinstance(window, int):
        window = (window, window)
    where = _where(B, T, S, is_causal, window, query_seq_lengths, key_value_seq_lengths)
    if mask is not None:
        if ops.type_of_operand("dot_product_attention", mask).dtype != dtypes.bool_:
            raise ArgumentError(
                "dot_product_attention: mask is bool, true where to attend; numbers to "
                "add to the logits are a bias",
                user_location(),
            )
        given = _grouped("mask", mask, K, G)
        where = given if where is None else anp.logical_and(where, given)
    weights = anp.astype(softmax(logits, where=where), dtype)
    # [B, K, T, G, H]
    mixed = lax.dot_general(weights, v, (((4,), (1,)), ((0, 1), (0, 2))))
    result = anp.transpose(mixed, (0, 2, 1, 3, 4))
    return anp.reshape(result, types[0].shape)


def _extents(q: ArrayType, k: ArrayType, v: ArrayType) -> tuple[int, ...]:
    """B, T, N, H, S, K; ShapeError if they are not those of attention."""
    fits = q.ndim in (3, 4) and k.ndim == q.ndim and k.shape == v.shape
    fits = fits and q.shape[-1] == k.shape[-1] and q.shape[:-3] == k.shape[:-3]
    if not fits or k.shape[-2] == 0 or q.shape[-2] % k.shape[-2]:
        raise ShapeError(
            "dot_product_attention takes query [B, T, N, H], key and value [B, S, K, "
            f"H], where K divides N, not {q}, {k} and {v}",
            user_location(),
        )
    batch = q.shape[0] if q.ndim == 4 else 1
    return (batch, *q.shape[-3:], *k.shape[-3:-1])


def _grouped(name: str, x: ArrayLike, K: int, G: int) -> Array:
    """x, which broadcasts to [B, N, T, S], as what broadcasts to [B, K, T, G, S]."""
    shape = ops.type_of_operand(name, x).shape
    if len(shape) > 4 or (len(shape) >= 3 and shape[-3] not in (1, K * G)):
        raise ShapeError(
            f"dot_product_attention: {name} broadcasts to [B, {K * G}, T, S], which "
            f"{shape} does not",
            user_location(),
        )
    shape = (1,) * (4 - len(shape)) + shape
    split = (1, 1) if shape[1] == 1 else (K, G)
    grouped = anp.reshape(x, (shape[0], *split, *shape[2:]))
    return anp.transpose(grouped, (0, 1, 3, 2, 4))


def _where(
    B: int,
    T: int,
    S: int,
    is_causal: bool,
    window: tuple[int, int] | None,
    query_lengths: ArrayLike | None,
    key_lengths: ArrayLike | None,
) -> Array | None:
    """Where to attend, broadcasting to [B, K, T, G, S]; None for everywhere."""
    shape = (T, 1, S)
    t = apply(views.iota, shape=shape, axis=0, dtype=dtypes.int32)
    s = apply(views.iota, shape=shape, axis=2, dtype=dtypes.int32)
    parts: list[Any] = []
    if is_causal:
        parts.append(anp.less_equal(s, t))
    if window is not None:
        left, right = window
        parts += [
            anp.less_equal(t, anp.add(s, left)),
            anp.less_equal(s, anp.add(t, right)),
        ]
    for place, lengths in ((t, query_lengths), (s, key_lengths)):
        if lengths is not None:
            known = anp.reshape(lengths, (B, 1, 1, 1, 1))
            parts.append(anp.less(place, anp.astype(known, dtypes.int32)))
    if not parts:
        return None
    whole = parts[0]
    for part in parts[1:]:
        whole = anp.logical_and(whole, part)
    return whole


__all__ = ["dot_product_attention"]
