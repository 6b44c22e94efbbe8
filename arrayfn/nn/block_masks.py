"""Which keys attention attends to, as a function of positions and as blocks.

A mask function says for each batch, head, query and key whether they meet. A BlockMask
also knows, by blocks of queries and keys, where no element is kept, so that attention
leaves these blocks out (Dong et al., Flex Attention, 2024).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from typing_extensions import override

import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.compilation.jit import jit
from arrayfn.errors import AbstractValueError, ArgumentError, user_location
from arrayfn.numpy._operands import Array
from arrayfn.tracing import is_staged
from arrayfn.transforms import vmap

Host = np.ndarray[Any, Any]
MaskFunction = Callable[[Array, Array, Array, Array], Array]
ScoreFunction = Callable[[Array, Array, Array, Array, Array], Array]


@dataclass(frozen=True, eq=False, repr=False)
class BlockMask:
    """A mask function, and the blocks of queries and keys where it keeps some pairs.

    ``shape`` is [B, H, Q, KV], with 1 for B or H where the mask is the same for all.
    ``kept`` is bool, [B, H, blocks of queries, blocks of keys].
    """

    mask_mod: MaskFunction
    shape: tuple[int, int, int, int]
    block: tuple[int, int]
    kept: Host = field(repr=False)

    @property
    def sparsity(self) -> float:
        """The share of blocks, in percent, that the mask excludes."""
        return 100.0 * (1.0 - float(self.kept.mean()) if self.kept.size else 0.0)

    @property
    def most(self) -> int:
        """The largest number of kept blocks of keys for one block of queries."""
        return int(self.kept.sum(-1).max(initial=0))

    def indices(self) -> tuple[Host, Host]:
        """The kept blocks of keys for each block of queries, and a mask.

        Both arrays are [B, H, blocks of queries, most]. A row with fewer blocks is
        filled with zeros. The mask is false at these zeros.
        """
        order = np.argsort(~self.kept, axis=-1, kind="stable")[..., : self.most]
        there = np.take_along_axis(self.kept, order, -1)
        return np.where(there, order, 0).astype(np.int32), there

    def following(self, axis: int) -> Host:
        """For each block, the next kept one from there on along ``axis``.

        It is int32, [B, H, blocks of queries, blocks of keys + 1] for the keys' axis 1,
        and [B, H, blocks of keys, blocks of queries + 1] for the queries' axis 0. Where
        no block follows it is 2**30. The last column is the end of the last kept block,
        0 if none is kept.
        """
        kept = self.kept if axis else np.swapaxes(self.kept, 2, 3)
        count = kept.shape[-1]
        places = np.where(kept, np.arange(count), 2**30)
        ahead = np.minimum.accumulate(places[..., ::-1], axis=-1)[..., ::-1]
        ends = np.where(kept, np.arange(1, count + 1), 0).max(-1, keepdims=True)
        return np.concatenate([ahead, ends], axis=-1).astype(np.int32, order="C")

    @override
    def __repr__(self) -> str:
        name = getattr(self.mask_mod, "__name__", "a function")
        return (
            f"<block mask of {name}, {list(self.shape)} in blocks of "
            f"{self.block[0]} x {self.block[1]}, {self.sparsity:.1f} % left out>"
        )


def create_block_mask(
    mask_mod: MaskFunction,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    BLOCK_SIZE: int | tuple[int, int] = 128,
) -> BlockMask:
    """The BlockMask of ``mask_mod`` for queries and keys of these lengths.

    ``mask_mod(b, h, q_idx, kv_idx)`` takes int32 scalars and returns whether query
    ``q_idx`` attends to key ``kv_idx``. Give None for B or H if the mask does not
    depend on it. The function is evaluated for all pairs, one block of queries at a
    time. If you use a mask often, keep it.

    Raises ArgumentError if ``mask_mod`` does not return one bool, and
    AbstractValueError if it depends on traced values.

    >>> create_block_mask(lambda b, h, q, k: q >= k, None, None, 256, 256, 64)
    <block mask of <lambda>, [1, 1, 256, 256] in blocks of 64 x 64, 37.5 % left out>
    """
    rows, columns = (BLOCK_SIZE,) * 2 if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
    shape = B or 1, H or 1, Q_LEN, KV_LEN
    if min(rows, columns, *shape) < 1:
        raise ArgumentError(
            f"create_block_mask: lengths and block sizes must be positive, but are "
            f"{list(shape)} and {rows} x {columns}",
            user_location(),
        )
    count = -(-KV_LEN // columns)

    def of_rows(first: Array) -> Array:
        """Which blocks of keys the block of queries from ``first`` on meets."""
        row = anp.add(first, iota(rows, 2))
        key = iota(count * columns, 3)
        # Positions behind the end would be outside of what the function captures.
        places = anp.minimum(row, Q_LEN - 1), anp.minimum(key, KV_LEN - 1)
        kept = mask_of(mask_mod, iota(shape[0], 0), iota(shape[1], 1), *places)
        kept = anp.logical_and(kept, anp.less(row, Q_LEN))
        kept = anp.logical_and(kept, anp.less(key, KV_LEN))
        blocks = anp.reshape(kept, (*shape[:2], rows, count, columns))
        return anp.any(blocks, axis=(2, 4))

    if is_staged([]):
        raise AbstractValueError(
            "create_block_mask needs the values of the mask to find its blocks, and "
            "was called while a function is traced; call it outside, and capture the "
            "mask",
            user_location(),
        )
    compiled = jit(of_rows)
    kept = [
        np.asarray(compiled(np.asarray(at, np.int32))) for at in range(0, Q_LEN, rows)
    ]
    return BlockMask(mask_mod, shape, (rows, columns), np.stack(kept, axis=2))


def mask_of(mask_mod: MaskFunction, *places: Array) -> Array:
    """``mask_mod`` for each element; the four indices broadcast."""
    kept = for_each(mask_mod, *places)
    if kept.dtype != dtypes.bool_:
        raise ArgumentError(
            f"mask_mod {_name(mask_mod)} must return whether a query attends to a "
            f"key, as one bool, not {kept.dtype.name}",
            user_location(),
        )
    return kept


def scores_of(score_mod: ScoreFunction, logits: Array, *places: Array) -> Array:
    """``score_mod`` of each logit; the four indices broadcast with the logits."""
    scores = for_each(score_mod, logits, *places)
    if scores.dtype not in dtypes.FLOATS:
        raise ArgumentError(
            f"score_mod {_name(score_mod)} must return a score, as one "
            f"floating-point number, not {scores.dtype.name}",
            user_location(),
        )
    return anp.astype(scores, logits.dtype)


def for_each(function: Callable[..., Any], *operands: Array) -> Array:
    """``function`` of the scalars of operands with equally many axes, extents n or 1.

    Raises ArgumentError if it does not give a scalar.
    """

    def member(*scalars: Any) -> Array:
        """The function's value for one score; ArgumentError unless that is a number."""
        value = anp.asarray(function(*scalars))
        if value.ndim:
            raise ArgumentError(
                f"{_name(function)} is called for each score, with scalars, and "
                f"returned an array of shape {tuple(value.shape)}; return one number",
                user_location(),
            )
        return value

    def along(*parts: Any) -> Array:
        """The function mapped along all axes, one after the other."""
        if not parts[0].ndim:
            return member(*parts)
        axes = [None if x.shape[0] == 1 else 0 for x in parts]
        given = [
            x[0] if axis is None else x for x, axis in zip(parts, axes, strict=True)
        ]
        if all(axis is None for axis in axes):
            return anp.expand_dims(along(*given), 0)
        return vmap(along, in_axes=axes)(*given)

    return along(*operands)


def iota(extent: int, axis: int, rank: int = 4) -> Array:
    """0 to ``extent`` - 1 along ``axis`` of ``rank`` axes, int32."""
    shape = tuple(extent if k == axis else 1 for k in range(rank))
    return lax.broadcasted_iota(dtypes.int32, shape, axis)


def _name(function: Any) -> str:
    return getattr(function, "__name__", "a function")


__all__ = ["BlockMask", "create_block_mask"]
