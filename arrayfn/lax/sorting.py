"""Sorting under JAX's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.lax._operands import typed
from arrayfn.numpy import _operands as ops
from arrayfn.numpy import moveaxis
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.primitives import indexing
from arrayfn.primitives import sorting as s
from arrayfn.primitives.windows import Windows
from arrayfn.tracing import apply


def sort(
    operand: ArrayLike | Sequence[ArrayLike],
    dimension: int = -1,
    is_stable: bool = True,
    num_keys: int = 1,
) -> Any:
    """Sort ``operand`` along ``dimension`` in ascending order, NaN last.

    If ``operand`` is a sequence of arrays of one shape, the first array decides the
    order of all. The second array decides ties, and so on up to ``num_keys``. The
    result is then a tuple of arrays, else an array. Shapes and dtypes stay. The sort is
    always stable.

    Raises ArgumentError for other numbers of keys, and ShapeError if shapes differ.

    >>> import numpy as np
    >>> sort((np.array([2, 1, 1]), np.array([0.0, 5.0, 4.0])), num_keys=2)
    (array([1, 1, 2]), array([4., 5., 0.]))
    """
    if not isinstance(operand, (tuple, list)):
        (x,) = typed("sort", operand)
        return _along(s.sort, x, dimension)
    operands = [typed("sort", x)[0] for x in operand]
    shapes = [ops.type_of_operand("sort", x).shape for x in operands]
    if not 1 <= num_keys <= len(operands):
        raise ArgumentError(
            f"sort of {len(operands)} arrays has 1 to {len(operands)} keys, not "
            f"{num_keys}",
            user_location(),
        )
    if len(set(shapes)) != 1:
        raise ShapeError(
            f"sort takes arrays of one shape, but was given {shapes}", user_location()
        )
    place = ops.normalize_axis("sort", dimension, len(shapes[0]))
    along_last = [moveaxis(x, place, -1) for x in operands]
    order: Any = None
    # Sort by the last key first: stable sorts by the other keys keep its order in ties.
    for key in reversed(along_last[:num_keys]):
        if order is None:
            order = apply(s.argsort, key)
        else:
            order = _take(order, apply(s.argsort, _take(key, order)))
    return tuple(moveaxis(_take(x, order), -1, place) for x in along_last)


def sort_key_val(
    keys: ArrayLike, values: ArrayLike, dimension: int = -1, is_stable: bool = True
) -> tuple[Array, Array]:
    """Sort ``keys`` along ``dimension``, and put ``values`` into the same order.

    Returns (keys, values). Both have one shape, and keep their dtypes. The sort is
    always stable. Raises ShapeError if the shapes differ.
    """
    first, second = sort((keys, values), dimension, is_stable)
    return first, second


_LARGEST_EXTENT = 2**31  # whose last position is an int32


def top_k(operand: ArrayLike, k: int, *, axis: int = -1) -> tuple[Array, Array]:
    """Return the ``k`` largest elements along ``axis``, and their positions (int32).

    The elements descend. Equal elements keep their order, and NaN counts as the largest
    number. Both results have extent ``k`` along ``axis``. Raises ArgumentError if ``k``
    is larger than the extent.

    >>> import numpy as np
    >>> top_k(np.array([1.0, 3.0, 2.0, 3.0]), 3)
    (array([3., 3., 2.]), array([1, 3, 2], dtype=int32))
    """
    k = ops.whole(k)
    (x,) = typed("top_k", operand)
    type = ops.type_of_operand("top_k", x)
    if type.ndim and axis not in (-1, type.ndim - 1):
        last = moveaxis(x, ops.normalize_axis("top_k", axis, type.ndim), -1)
        values, positions = (moveaxis(v, -1, axis) for v in top_k(last, k))
        return values, positions
    if not type.ndim or not 0 <= k <= type.shape[-1]:
        most = type.shape[-1] if type.ndim else 0
        raise ArgumentError(
            f"top_k takes 0 to {most} elements of {type}, not {k}",
            user_location(),
        )
    if type.shape[-1] > _LARGEST_EXTENT:
        raise ArgumentError(
            f"top_k gives int32 positions, which do not reach the end of {type}",
            user_location(),
        )
    values, positions = apply(s.top_k, x, k=k)
    return values, positions


def _along(primitive: Any, x: Array, dimension: int) -> Array:
    """Sort x along ``dimension`` by a ``primitive`` that sorts the last axis."""
    place = ops.normalize_axis("sort", dimension, len(x.shape))
    return moveaxis(apply(primitive, moveaxis(x, place, -1)), -1, place)


def _take(x: Array, indices: Array) -> Array:
    """Return ``x[..., indices]`` for each row: elements at ``indices``, all in bounds.

    ``x`` and ``indices`` have the same leading axes.
    """
    # Windows of one element along the last axis; the leading axes are batch axes.
    lead = tuple(range(len(x.shape) - 1))
    last = (len(lead),)
    where = Windows(
        window_axes=(), collapsed_axes=last, indexed_axes=last, batch=(lead, lead)
    )
    return apply(
        indexing.gather,
        x,
        indices[..., None],
        sizes=(1,) * len(x.shape),
        mode="promise_in_bounds",
        fill_value=None,
        **where.params(),
    )


__all__ = ["sort", "sort_key_val", "top_k"]
