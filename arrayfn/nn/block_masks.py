"""Which keys attention attends to, as a function of positions and as blocks.

A mask function says for each batch, head, query and key whether they meet. A BlockMask
also knows, by blocks of queries and keys, where no element is kept, so that attention
leaves these blocks out (Dong et al., Flex Attention, 2024).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

import numpy as np
from typing_extensions import override

import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.compilation.jit import jit
from arrayfn.errors import AbstractValueError, ArgumentError, user_location
from arrayfn.numpy._operands import Array
from arrayfn.records import frozen
from arrayfn.tracing import is_staged
from arrayfn.transforms import vmap

Host = np.ndarray[Any, Any]
# (batch, head, query, key) -> bool
MaskFunction = Callable[[Array, Array, Array, Array], Array]
# (score, batch, head, query, key) -> score
ScoreFunction = Callable[[Array, Array, Array, Array, Array], Array]


@frozen(eq=False, repr=False)
class BlockMask:
    """A mask function, and the blocks of queries and keys where it keeps some pairs.

    ``shape`` is [B, H, Q, KV], with 1 for B or H where the mask is the same for all.
    ``block`` has the numbers of queries and of keys in a block. ``kept`` is bool, [B,
    H, blocks of queries, blocks of keys]: false where the mask excludes all pairs of a
    block.
    """

    mask_mod: MaskFunction
    shape: tuple[int, int, int, int]
    block: tuple[int, int]
    kept: Host = field(repr=False)

    @property
    def sparsity(self) -> float:
        """The percentage of blocks that the mask excludes."""
        return 100.0 * (1.0 - float(self.kept.mean()) if self.kept.size else 0.0)

    @property
    def most(self) -> int:
        """The largest number of kept blocks of keys for one block of queries."""
        return int(self.kept.sum(-1).max(initial=0))

    def indices(self) -> tuple[Host, Host]:
        """Return the kept blocks of keys for each block of queries, and a mask.

        Both arrays are [B, H, blocks of queries, most]. A row with fewer blocks is
        filled with zeros. The mask is false at these zeros. For the kept blocks 1 and
        3, a row is [1, 3, 0] and its mask [true, true, false].
        """
        # A stable sort puts kept blocks (~kept is 0) first, in their order.
        order = np.argsort(~self.kept, axis=-1, kind="stable")[..., : self.most]
        is_kept = np.take_along_axis(self.kept, order, -1)
        return np.where(is_kept, order, 0).astype(np.int32), is_kept

    def following(self, axis: int) -> Host:
        """Return, for each block, the next kept block from it on along ``axis``.

        The result is int32, [B, H, blocks of queries, blocks of keys + 1] for the keys'
        axis 1, and [B, H, blocks of keys, blocks of queries + 1] for the queries' axis
        0. Where no kept block follows it is 2**30. The last column is the end of the
        last kept block, 0 if none is kept. For axis 1, a row with the kept blocks 1 and
        3 of 5 gives [1, 1, 3, 3, 2**30, 4].
        """
        kept = self.kept if axis else np.swapaxes(self.kept, 2, 3)
        count = kept.shape[-1]
        places = np.where(kept, np.arange(count), 2**30)
        # The minimum from each place to the end.
        ahead = np.minimum.accumulate(places[..., ::-1], axis=-1)[..., ::-1]
        ends = np.where(kept, np.arange(1, count + 1), 0).max(-1, keepdims=True)
        return np.concatenate([ahead, ends], axis=-1).astype(np.int32, order="C")

    @override
    def __repr__(self) -> str:
        """Name the mask function, the extents, and the percentage left out."""
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
    """Return the BlockMask of ``mask_mod`` for queries and keys of these lengths.

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
    count = -(-KV_LEN // columns)  # the number of blocks of keys

    def of_rows(first: Array) -> Array:
        """Return which blocks of keys the block of queries from ``first`` on meets.

        The result is bool, [B, H, blocks of keys].
        """
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
    """Call ``mask_mod`` with each (batch, head, query, key) of four index arrays.

    The arrays broadcast. Returns bool; another dtype raises ArgumentError.
    """
    kept = for_each(mask_mod, *places)
    if kept.dtype != dtypes.bool_:
        raise ArgumentError(
            f"mask_mod {_name(mask_mod)} must return whether a query attends to a "
            f"key, as one bool, not {kept.dtype.name}",
            user_location(),
        )
    return kept


def scores_of(score_mod: ScoreFunction, logits: Array, *places: Array) -> Array:
    """Call ``score_mod`` for each logit, with its (batch, head, query, key).

    The four index arrays broadcast with the logits. Returns scores of the logits'
    dtype; a result that is not floating-point raises ArgumentError.
    """
    scores = for_each(score_mod, logits, *places)
    if scores.dtype not in dtypes.FLOATS:
        raise ArgumentError(
            f"score_mod {_name(score_mod)} must return a score, as one "
            f"floating-point number, not {scores.dtype.name}",
            user_location(),
        )
    return anp.astype(scores, logits.dtype)


def for_each(function: Callable[..., Any], *operands: Array) -> Array:
    """Call ``function`` with scalars, for each element of ``operands``, by vmap.

    The operands have equally many axes, and each extent is n or 1. Raises ArgumentError
    if the function does not return a scalar.
    """

    def member(*scalars: Any) -> Array:
        """Call the function with scalars, and check that it returns a scalar."""
        value = anp.asarray(function(*scalars))
        if value.ndim:
            raise ArgumentError(
                f"{_name(function)} is called for each score, with scalars, and "
                f"returned an array of shape {tuple(value.shape)}; return one number",
                user_location(),
            )
        return value

    def along(*parts: Any) -> Array:
        """Map the function over the first axis of ``parts``, then over the others.

        An operand with extent 1 is not mapped. If all are 1, the axis is added again.
        """
        if not parts[0].ndim:
            return member(*parts)
        axes = [None if x.shape[0] == 1 else 0 for x in parts]
        elements = [
            x[0] if axis is None else x for x, axis in zip(parts, axes, strict=True)
        ]
        if all(axis is None for axis in axes):
            return anp.expand_dims(along(*elements), 0)
        return vmap(along, in_axes=axes)(*elements)

    return along(*operands)


def iota(extent: int, axis: int, rank: int = 4) -> Array:
    """Return 0 to ``extent`` - 1 along ``axis`` of ``rank`` axes, int32.

    The other axes have an extent of 1.
    """
    shape = tuple(extent if k == axis else 1 for k in range(rank))
    return lax.broadcasted_iota(dtypes.int32, shape, axis)


def _name(function: Any) -> str:
    """Return the function's name for errors."""
    return getattr(function, "__name__", "a function")


__all__ = ["BlockMask", "create_block_mask"]
