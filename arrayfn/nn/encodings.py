"""Encodings of integers and of positions: one-hot vectors, rotary embeddings."""

from __future__ import annotations

import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.compilation.operators import operator
from arrayfn.errors import ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.primitives import views
from arrayfn.tracing import apply


def one_hot(
    x: ArrayLike,
    num_classes: int,
    *,
    dtype: DTypeLike = dtypes.float64,
    axis: int = -1,
) -> Array:
    """Replace each integer of x by a vector along a new ``axis``, with 1 at this index.

    The other elements are 0. Integers outside 0 to ``num_classes`` - 1 give zeros.
    """
    x = ops.from_lists(x)
    type = ops.type_of_operand("one_hot", x)
    position = ops.normalize_axis("one_hot", axis, type.ndim + 1)
    index = type.dtype if type.dtype in dtypes.INTEGERS else dtypes.int64
    shape = (*type.shape[:position], num_classes, *type.shape[position:])
    # Compare with 0 to num_classes - 1 along the new axis.
    classes = apply(views.iota, shape=shape, axis=position, dtype=index)
    return anp.astype(anp.equal(anp.expand_dims(x, position), classes), dtype)


@operator(name="nn.rope", static_argnames=("base", "interleaved"), inline=True)
def rope(
    x: ArrayLike,
    positions: ArrayLike | None = None,
    /,
    *,
    base: float = 10000.0,
    interleaved: bool = False,
) -> Array:
    """Rotate pairs of features of x by angles proportional to the position.

    See Su et al., RoFormer: enhanced transformer with rotary position embedding, 2021.
    Dot products of two rotated vectors depend only on the difference of their
    positions.

    Args:
        x: [..., T, N, H], like the queries and keys of attention, with even H.
        positions: integers [T] or [..., T]; 0 to T - 1 by default.
        base: the base of the angles. The angle of pair k, of H / 2 pairs, is ``position
            * base**(-2 k / H)`` radians.
        interleaved: whether the pairs are (0, 1), (2, 3), ..., instead of (k, k + H /
            2).

    >>> import numpy as np
    >>> x = np.ones((2, 1, 2))
    >>> rope(x)[:, 0].round(4)
    array([[ 1.    ,  1.    ],
           [-0.3012,  1.3818]])
    """
    type = ops.type_of_operand("rope", x)
    if type.ndim < 3 or type.shape[-1] % 2:
        raise ShapeError(
            f"rope takes [..., positions, heads, an even number of features], not "
            f"{type}",
            user_location(),
        )
    dtype = ops.floating_dtype(type.dtype)
    wide = dtypes.compute_dtype(dtype)
    half = type.shape[-1] // 2
    if positions is None:
        positions = apply(
            views.iota, shape=type.shape[-3:-2], axis=0, dtype=dtypes.int32
        )
    number = anp.astype(anp.arange(half), wide)
    rates = anp.power(ops.as_array(ops.scalar(base, wide)), number * (-1.0 / half))
    column_of_positions = anp.expand_dims(anp.astype(positions, wide), (-2, -1))
    angles = anp.multiply(column_of_positions, rates)
    cosine, sine = anp.cos(angles), anp.sin(angles)
    value = ops.as_array(x)
    if interleaved:
        pairs = anp.reshape(value, (*type.shape[:-1], half, 2))
        parts = pairs[..., 0], pairs[..., 1]
    else:
        parts = value[..., :half], value[..., half:]
    # Convert the parts: converting the whole would allocate another array.
    first, second = (ops.convert(part, wide) for part in parts)
    rotated = first * cosine - second * sine, first * sine + second * cosine
    rotated = [ops.convert(part, dtype) for part in rotated]
    if interleaved:
        return anp.reshape(anp.stack(rotated, axis=-1), type.shape)
    return anp.concatenate(rotated, axis=-1)


@operator(name="nn.embedding", static_argnames=(), inline=True)
def embedding(table: ArrayLike, indices: ArrayLike) -> Array:
    """Return the rows of ``table`` [V, ...] at integer ``indices``.

    The result is [*indices.shape, ...]. The derivative with respect to the table adds
    up the cotangents of equal indices. Indices outside the table are handled as
    ``arrayfn.numpy.take`` does.

    >>> import numpy as np
    >>> embedding(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1, 1, 0]))
    array([[3., 4.],
           [3., 4.],
           [1., 2.]])
    """
    return anp.take(table, indices, axis=0)


__all__ = ["embedding", "one_hot", "rope"]
