"""Scaled dot-product attention, with grouped heads."""

from __future__ import annotations

import math
from numbers import Real
from typing import Final

import numpy as np

import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.compilation.operators import operator
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.ir import ArrayType
from arrayfn.lowering.operator_kernels import KERNELS
from arrayfn.nn.block_masks import BlockMask, ScoreFunction, mask_of, scores_of
from arrayfn.nn.fused_attention import (
    Window,
    fused_attention,
    grouped,
    grouped_places,
    terms_of_captured,
    where_to_attend,
)
from arrayfn.nn.score_programs import traced_scores
from arrayfn.nn.softmax_family import softmax
from arrayfn.nn.sparse_attention import (
    check_block_mask,
    leaves_out_half,
    places,
    sparse_attention,
)
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy._parameters import also_takes
from arrayfn.tracing import device_of
from arrayfn.tracing.frames import platform

# The dtypes of biases that kernels take.
_BIASES: Final = (*dtypes.HALF_PRECISION, dtypes.float32)


@operator(
    name="nn.dot_product_attention",
    static_argnames=(
        *("scale", "is_causal", "local_window_size", "score_mod", "block_mask"),
        "implementation",
    ),
    inline=True,
    parts=("nn.attention", "nn.attention_gradient", "nn.attention_bias_gradient"),
)
@also_takes("implementation")
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
    score_mod: ScoreFunction | None = None,
    block_mask: BlockMask | None = None,
) -> Array:
    """Compute softmax(query @ key * scale + bias) @ value, for each head.

    See Vaswani et al., Attention is all you need, 2017. If there are fewer heads of
    keys and values than of queries, several query heads share one of them (Ainslie et
    al., GQA, 2023). For float16 and bfloat16, logits and softmax are computed in
    float32. This is one operator, which has a kernel on a GPU, and has reverse-mode
    derivatives only. The derivative with respect to a bias takes memory for all logits.
    A query that may not attend to any key gives zeros.

    Args:
        query: [B, T, N, H], or without B.
        key: [B, S, K, H], where K divides N.
        value: as key.
        bias: numbers to add to the logits; broadcasts to [B, N, T, S].
        mask: bool, true where a query attends to a key; broadcasts to [B, N, T, S].
        scale: 1 / sqrt(H) by default.
        is_causal: position t attends only to positions s <= t.
        query_seq_lengths: integers [B]; queries from this position on give zeros.
        key_value_seq_lengths: integers [B]; keys from this position on are ignored.
        local_window_size: the number of positions to the left and to the right that a
            query attends to.
        score_mod: ``score_mod(score, b, h, q_idx, kv_idx)`` replaces each logit, after
            ``scale`` and ``bias`` and before the masks. It takes and gives scalars. It
            is traced, and can be differentiated with respect to the values that it
            captures. A key whose score is -inf is not attended to. On a GPU, for
            float16 and bfloat16, the kernel computes elementwise functions, which may
            read captured arrays at computed indices. The derivative with respect to
            these takes memory for all logits.
        block_mask: a result of ``create_block_mask`` for extents B, N, T and S, where B
            and N may be 1. Queries do not attend to keys that the mask excludes. The
            kernel for float16 and bfloat16 skips all excluded blocks. Elsewhere they
            are skipped if the mask keeps at most half of the blocks of keys, and no
            window, other mask, bias or length is given.

    Returns:
        An array of query's shape and dtype.

    Raises:
        ShapeError: the shapes do not fit.
        ArgumentError: ``score_mod`` or a mask function does not give one number.

    >>> import numpy as np
    >>> x = np.arange(6.0).reshape(3, 1, 2)
    >>> dot_product_attention(x, x, x, is_causal=True)[0]
    array([[0., 1.]])
    """
    types = [
        ops.type_of_operand("dot_product_attention", x) for x in (query, key, value)
    ]
    B, T, N, H, S, K = _extents(*types)
    # Each of K heads of keys serves G heads of queries.
    G = N // K
    dtype, _ = dtypes.promote((t.dtype, t.weak) for t in types)
    shape = B, N, T, S
    terms = {
        name: _of_logits(name, x, shape)
        for name, x in (("bias", bias), ("mask", mask))
        if x is not None
    }
    for name, lengths in (
        ("query_lengths", query_seq_lengths),
        ("key_lengths", key_value_seq_lengths),
    ):
        if lengths is not None:
            terms[name] = anp.reshape(anp.astype(lengths, dtypes.int32), (B,))
    window = _window(is_causal, local_window_size)
    factor = 1.0 / math.sqrt(H) if scale is None else scale
    q = anp.reshape(anp.astype(query, dtype), (B, T, N, H))
    k, v = (anp.reshape(anp.astype(x, dtype), (B, S, K, H)) for x in (key, value))
    if block_mask is not None:
        check_block_mask(block_mask, shape)
    # There are four ways to compute: one kernel with the functions inside, only the
    # kept blocks, the fused operator, and separate products and a softmax.
    can_fuse = dtype in dtypes.HALF_PRECISION and isinstance(factor, Real)
    if can_fuse and not (score_mod is None and block_mask is None):
        fused = _with_scores(q, k, v, terms, factor, window, score_mod, block_mask)
        if fused is not None:
            return anp.reshape(fused, types[0].shape)
    is_plain = not terms and window == (None, None)
    if block_mask is not None and is_plain and leaves_out_half(block_mask):
        result = sparse_attention(q, k, v, factor, score_mod, block_mask)
        return anp.reshape(result, types[0].shape)
    if can_fuse and score_mod is None:
        if block_mask is not None:
            kept = mask_of(block_mask.mask_mod, *places(*block_mask.shape))
            given = terms.get("mask")
            terms["mask"] = kept if given is None else anp.logical_and(given, kept)
        added = _bias_of(terms)
        result = fused_attention(q, k, v, added, terms, float(factor), window, "", None)
        return anp.reshape(result, types[0].shape)
    # The rest computes all logits.
    wide = dtypes.compute_dtype(ops.floating_dtype(dtype))
    q = anp.reshape(q, (B, T, K, G, H))
    # [B, T, K, G, H] and [B, S, K, H] to [B, K, T, G, S]: contract H.
    logits = lax.dot_general(
        q, k, (((4,), (3,)), ((0, 2), (0, 2))), preferred_element_type=wide
    )
    logits = anp.multiply(logits, factor)
    if "bias" in terms:
        logits = anp.add(logits, anp.astype(grouped(terms["bias"], K, G), wide))
    # Masks whose conjunction says where to attend; None is true everywhere.
    parts = [where_to_attend(B, T, S, window, terms)]
    if "mask" in terms:
        parts.append(grouped(terms["mask"], K, G))
    if block_mask is not None:
        at = grouped_places(B, K, T, G, S)
        parts.append(mask_of(block_mask.mask_mod, *at))
    if score_mod is not None:
        logits = scores_of(score_mod, logits, *grouped_places(B, K, T, G, S))
        parts.append(anp.greater(logits, -math.inf))
    where = None
    for part in parts:
        where = part if where is None or part is None else anp.logical_and(where, part)
    weights = anp.astype(softmax(logits, where=where), dtype)
    # [B, K, T, G, S] and [B, S, K, H] to [B, K, T, G, H]: contract S.
    mixed = lax.dot_general(weights, v, (((4,), (1,)), ((0, 1), (0, 2))))
    result = anp.transpose(mixed, (0, 2, 1, 3, 4))
    return anp.reshape(result, types[0].shape)


def _bias_of(terms: dict[str, Array]) -> Array | None:
    """Remove the bias from ``terms``, and return it in a dtype that kernels take.

    The result is None if there is no bias.
    """
    bias = terms.pop("bias", None)
    if bias is not None and bias.dtype not in _BIASES:
        return anp.astype(bias, dtypes.float32)
    return bias


def _with_scores(
    q: Array,
    k: Array,
    v: Array,
    terms: dict[str, Array],
    factor: float,
    window: Window,
    score_mod: ScoreFunction | None,
    block_mask: BlockMask | None,
) -> Array | None:
    """Compute attention with ``score_mod`` and ``block_mask`` inside one kernel.

    The operands are those of ``fused_attention``; ``terms`` has the bias, mask and
    lengths. Returns None if the functions cannot be traced as scalar Programs, or if
    this backend has no kernel that takes them.
    """
    backend = platform() or device_of([q, k, v]) or "cpu"
    if not KERNELS.of("nn.attention", backend.partition(":")[0]):
        return None
    mask_mod = None if block_mask is None else block_mask.mask_mod
    scores = traced_scores(score_mod, mask_mod)
    if scores is None:
        return None
    kernel_terms = {**terms, **terms_of_captured(scores.captured)}
    bias = _bias_of(kernel_terms)
    block = None
    if block_mask is not None:
        block = block_mask.block
        # The next kept block after each block lets the kernel skip blocks.
        kernel_terms["next_queries"], kernel_terms["next_keys"] = map(
            block_mask.following, (0, 1)
        )
    all_terms = kernel_terms if bias is None else {**kernel_terms, "bias": bias}
    # Ask the registry for a kernel with the operands and static arguments that the
    # operator ``nn.attention`` will have.
    given = tuple(sorted(all_terms))
    operands = q, k, v, *(all_terms[name] for name in given)
    static = {"scale": float(factor), "window": window, "given": given}
    static |= {"score": scores.text, "block": block}
    kernel = KERNELS.find(
        "nn.attention",
        backend.partition(":")[0],
        [ops.type_of_operand("dot_product_attention", x) for x in operands],
        static,
    )
    if kernel is None:
        return None
    return fused_attention(
        q, k, v, bias, kernel_terms, float(factor), window, scores.text, block
    )


def _extents(q: ArrayType, k: ArrayType, v: ArrayType) -> tuple[int, ...]:
    """Return B, T, N, H, S, K of ``q`` [B, T, N, H] and of ``k``, ``v`` [B, S, K, H].

    B is 1 without that axis. Raises ShapeError if the shapes do not fit.
    """
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


def _of_logits(name: str, x: ArrayLike, shape: tuple[int, ...]) -> Array:
    """Reshape a bias or mask ``x`` to four axes that broadcast to the logits.

    ``name`` is "bias" or "mask", and ``shape`` is that of the logits. Raises
    ArgumentError for a mask that is not bool, and ShapeError if x does not broadcast to
    [B, N, T, S].
    """
    given = ops.type_of_operand("dot_product_attention", x)
    if name == "mask" and given.dtype != dtypes.bool_:
        raise ArgumentError(
            "dot_product_attention: mask must be bool, true where to attend; pass "
            "numbers to add to the logits as bias",
            user_location(),
        )
    whole = (1,) * (4 - given.ndim) + given.shape
    if given.ndim > 4 or any(
        n not in (1, m) for n, m in zip(whole, shape, strict=True)
    ):
        raise ShapeError(
            f"dot_product_attention: {name} broadcasts to {list(shape)} (B, N, T, S), "
            f"which {given.shape} does not",
            user_location(),
        )
    return anp.reshape(x, whole)


def _window(
    is_causal: bool, local: int | tuple[int, int] | None
) -> tuple[int | None, int | None]:
    """Return how many positions to the left and to the right a query attends to.

    None is no limit. ``local`` bounds both sides by one number, or each by its own. If
    ``is_causal``, the bound on the right is at most 0.
    """
    left, right = (
        (local, local)
        if local is None or isinstance(local, (int, np.integer))
        else local
    )
    if is_causal:
        right = 0 if right is None else min(right, 0)
    return left, right


__all__ = ["dot_product_attention"]
