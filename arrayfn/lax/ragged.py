"""Products of rows in groups of unequal sizes, each with a matrix of its own."""

from __future__ import annotations

from typing import Any

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.lax.control_flow_loops import scan
from arrayfn.lax.structure import dot
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.numpy.comparison import where
from arrayfn.numpy.creation import arange, zeros
from arrayfn.numpy.cumulative import cumsum


def ragged_dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    precision: str | None = None,
    preferred_element_type: DTypeLike = None,
    group_offset: ArrayLike | None = None,
) -> Array:
    """The rows of lhs (m, k), in groups, times the matrices rhs (g, k, n): (m, n).

    The first ``group_sizes[0]`` rows meet ``rhs[0]``, those that follow ``rhs[1]``, and
    so on; ``group_sizes`` (g,) are integers. Rows after the last group become zeros. As
    extents cannot depend on values, each group's product is of all rows, those of
    others being zeros: the work is that of g products. ``precision`` and
    ``preferred_element_type`` are those of ``dot_general``.

    Raises ShapeError if extents do not fit, ArgumentError for sizes that are not
    integers, and for ``group_offset``, which shares groups among devices.

    >>> import numpy as np
    >>> rows = np.array([[1.0], [2.0], [3.0]])
    >>> ragged_dot(rows, np.array([[[10.0]], [[100.0]]]), np.array([1, 2]))
    array([[ 10.],
           [200.],
           [300.]])
    """
    if group_offset is not None:
        raise ArgumentError(
            "ragged_dot has no group_offset: pass the groups that are to be computed",
            user_location(),
        )
    names = ("lhs", lhs), ("rhs", rhs), ("group_sizes", group_sizes)
    x, y, sizes = (ops.type_of_operand(f"ragged_dot: {n}", v) for n, v in names)
    fits = (x.ndim, y.ndim, sizes.ndim) == (2, 3, 1)
    if not fits or x.shape[1] != y.shape[1] or sizes.shape[0] != y.shape[0]:
        raise ShapeError(
            "ragged_dot takes lhs (m, k), rhs (g, k, n) and group_sizes (g,); got "
            f"shapes {x.shape}, {y.shape} and {sizes.shape}",
            user_location(),
        )
    if sizes.dtype not in dtypes.INTEGERS:
        raise ArgumentError(
            f"ragged_dot: group_sizes are integers, not {sizes}", user_location()
        )
    ends = cumsum(group_sizes)
    rows = arange(x.shape[0], dtype=ends.dtype)

    def add_group(total: Array, group: tuple[Array, Array, Array]) -> tuple[Array, Any]:
        matrix, begin, end = group
        own = ((rows >= begin) & (rows < end))[:, None]
        # Zeros on both sides: what is infinite elsewhere spoils neither the product
        # nor its gradient.
        product = dot(
            where(own, lhs, ops.scalar(0, x.dtype)),
            matrix,
            precision=precision,
            preferred_element_type=preferred_element_type,
        )
        return total + where(own, product, ops.scalar(0, product.dtype)), None

    wanted = preferred_element_type
    dtype = x.dtype if wanted is None else dtypes.canonical(wanted)
    groups = rhs, ends - group_sizes, ends
    return scan(add_group, zeros((x.shape[0], y.shape[2]), dtype), groups)[0]
