"""Attention over the blocks of keys that a BlockMask keeps.

Each block of queries gathers the blocks of keys and values that it meets. Work and
memory follow the largest number of them, not the number of keys.
"""

from __future__ import annotations

import math
from typing import Any

import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.errors import ShapeError, user_location
from arrayfn.nn.block_masks import BlockMask, ScoreFunction, iota, mask_of, scores_of
from arrayfn.nn.fused_attention import Places
from arrayfn.nn.softmax_family import softmax
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array


def places(B: int, N: int, T: int, S: int) -> Places:
    """Return the indices of batch, head, query and key, int32.

    Each broadcasts to [B, N, T, S].
    """
    return iota(B, 0), iota(N, 1), iota(T, 2), iota(S, 3)


def check_block_mask(mask: BlockMask, shape: tuple[int, int, int, int]) -> None:
    """Raise ShapeError unless the mask is for logits of ``shape`` [B, N, T, S]."""
    fits = all(have in (1, n) for have, n in zip(mask.shape[:2], shape, strict=False))
    if not fits or mask.shape[2:] != shape[2:]:
        raise ShapeError(
            f"dot_product_attention: {mask} is for {list(mask.shape)}; these queries "
            f"and keys take one for {list(shape)} (B, N, T, S), or 1 for B or N",
            user_location(),
        )


def leaves_out_half(mask: BlockMask) -> bool:
    """Return whether each block of queries meets at most half of the blocks of keys."""
    return 2 * mask.most <= mask.kept.shape[-1]


def sparse_attention(
    q: Array,
    k: Array,
    v: Array,
    scale: Any,
    score_mod: ScoreFunction | None,
    mask: BlockMask,
) -> Array:
    """Compute the attention of q [B, T, N, H] to k and v [B, S, K, H] by blocks.

    The result is [B, T, N, H]. Each block of queries meets only the blocks of keys that
    the mask keeps, at most ``mask.most``. ``scale`` multiplies the logits, and
    ``score_mod`` replaces them. Within kept blocks, the mask function says where to
    attend.
    """
    (B, T, N, H), (S, K) = q.shape, k.shape[1:3]
    rows, columns = mask.block
    index, is_kept_block = mask.indices()
    # Heads that share a mask share the gathered keys of their group. With a mask for
    # each head, each head gathers its own.
    G = N // K if mask.shape[1] == 1 else 1
    if not index.shape[-1]:
        return anp.zeros(q.shape, q.dtype)
    blocks, width = index.shape[2], index.shape[-1] * columns
    wide = dtypes.compute_dtype(ops.floating_dtype(q.dtype))
    queries = _in_blocks(q, rows)  # [B, N, blocks, rows, H]
    queries = anp.reshape(queries, (B, N // G, G, blocks, rows, H))
    # [B, N / G, blocks, width, H]
    keys, values = (_gathered(x, columns, index, N // G, width) for x in (k, v))
    over_heads = ((0, 1, 3), (0, 1, 2))
    logits = lax.dot_general(
        queries, keys, (((5,), (4,)), over_heads), preferred_element_type=wide
    )  # [B, N / G, blocks, G, rows, width]
    logits = anp.multiply(logits, scale)
    head = anp.add(
        anp.multiply(iota(N // G, axis=1, rank=6), G), iota(G, axis=3, rank=6)
    )
    row = anp.add(
        anp.multiply(iota(blocks, axis=2, rank=6), rows), iota(rows, axis=4, rank=6)
    )
    inner = anp.arange(columns, dtype=dtypes.int32)
    # Positions of the gathered keys: block number times block size plus offset.
    key = anp.add(anp.multiply(index[..., None], columns), inner)
    key = anp.reshape(key, (*index.shape[:3], 1, 1, width))
    is_kept = anp.repeat(is_kept_block, columns, axis=-1)[..., None, None, :]
    # Positions behind the end would be outside of what the functions capture.
    at = iota(B, axis=0, rank=6), head, anp.minimum(row, T - 1), anp.minimum(key, S - 1)
    where = anp.logical_and(mask_of(mask.mask_mod, *at), is_kept)
    where = anp.logical_and(where, anp.less(key, S))
    if score_mod is not None:
        logits = scores_of(score_mod, logits, *at)
        where = anp.logical_and(where, anp.greater(logits, -math.inf))
    weights = anp.astype(softmax(logits, where=where), q.dtype)
    mixed = lax.dot_general(weights, values, (((5,), (3,)), ((0, 1, 2), (0, 1, 2))))
    # [B, N / G, blocks, G, rows, H]
    whole = anp.reshape(anp.transpose(mixed, (0, 2, 4, 1, 3, 5)), (B, -1, N, H))
    return whole[:, :T]


def _in_blocks(x: Array, size: int) -> Array:
    """Cut x [B, L, N, H] into blocks of ``size`` rows: [B, N, blocks, size, H].

    Zeros fill the last block.
    """
    B, L, N, H = x.shape
    count = -(-L // size)  # ceil(L / size)
    padded = anp.pad(x, ((0, 0), (0, count * size - L), (0, 0), (0, 0)))
    return anp.transpose(anp.reshape(padded, (B, count, size, N, H)), (0, 3, 1, 2, 4))


def _gathered(x: Array, columns: int, index: Any, heads: int, width: int) -> Array:
    """Gather blocks of keys or values: [B, heads, blocks of queries, width, H].

    ``x`` is [B, S, K, H], and is cut into blocks of ``columns`` keys. ``index`` [B,
    heads, blocks of queries, most] has the numbers of the blocks, where B and heads may
    be 1. ``width`` is most times ``columns``.
    """
    B, _, K, H = x.shape
    batches = anp.reshape(anp.arange(B), (B, 1, 1, 1))
    # Head h of ``heads`` uses head h K / heads of x.
    members = anp.reshape(anp.floor_divide(anp.arange(heads) * K, heads), (-1, 1, 1))
    gathered = _in_blocks(x, columns)[batches, members, index]
    return anp.reshape(gathered, (B, heads, index.shape[2], width, H))


__all__ = ["sparse_attention"]
