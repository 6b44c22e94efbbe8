"""Sums, products and extrema over segments: the rows that have the same number."""

from __future__ import annotations

from typing import Any

import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.numpy import _operands as operands
from arrayfn.numpy._operands import Array, ArrayLike


def segment_sum(
    data: ArrayLike,
    segment_ids: ArrayLike,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: str = "drop",
) -> Array:
    """Sum the rows of ``data`` that have the same number.

    The result is (num_segments, ...), with one sum for each number.

    Args:
        data: an array (n, ...).
        segment_ids: integers (n,), the number of each row. Rows with a number outside 0
            to ``num_segments`` - 1 are ignored.
        num_segments: the number of segments, which must be known while tracing. The
            default is one more than the largest of ``segment_ids``, whose values must
            then be known.
        indices_are_sorted: a promise that the numbers ascend.
        unique_indices: a promise that no number occurs twice.
        bucket_size: has no effect. Another library groups sums by it.
        mode: how to treat rows whose number is out of bounds. "drop" ignores them, and
            "clip" uses the last number.

    Raises:
        ShapeError: if ``segment_ids`` is not a vector with a number for each row.
        ArgumentError: if ``segment_ids`` does not have integers.

    >>> import numpy as np
    >>> segment_sum(np.array([1.0, 2.0, 4.0]), np.array([0, 1, 0]), 3)
    array([5., 2., 0.])
    """
    segments = _Segments("segment_sum", data, segment_ids, num_segments)
    return segments.filled(0).add(
        data,
        mode=mode,
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
    )


def segment_prod(
    data: ArrayLike,
    segment_ids: ArrayLike,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: str = "drop",
) -> Array:
    """Return the product of the rows of each segment, or 1 if it has none.

    The arguments, the shape and the errors are those of ``segment_sum``.

    >>> import numpy as np
    >>> segment_prod(np.array([2.0, 3.0, 4.0]), np.array([0, 1, 0]), 3)
    array([8., 3., 1.])
    """
    segments = _Segments("segment_prod", data, segment_ids, num_segments)
    return segments.filled(1).multiply(
        data,
        mode=mode,
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
    )


def segment_max(
    data: ArrayLike,
    segment_ids: ArrayLike,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: str = "drop",
) -> Array:
    """Return the maximum of the rows of each segment.

    An empty segment gives the smallest number of the dtype. The arguments, the shape
    and the errors are those of ``segment_sum``.

    >>> import numpy as np
    >>> segment_max(np.array([2.0, 3.0, 4.0]), np.array([0, 1, 0]), 3)
    array([  4.,   3., -inf])
    """
    if operands.type_of_operand("segment_max: data", data).dtype == dtypes.bool_:
        bits = anp.astype(data, dtypes.uint8)
        return anp.astype(
            segment_max(bits, segment_ids, num_segments, mode=mode), dtypes.bool_
        )
    segments = _Segments("segment_max", data, segment_ids, num_segments)
    return segments.filled(segments.limit(largest=False)).max(
        data,
        mode=mode,
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
    )


def segment_min(
    data: ArrayLike,
    segment_ids: ArrayLike,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: str = "drop",
) -> Array:
    """Return the minimum of the rows of each segment.

    An empty segment gives the largest number of the dtype. The arguments, the shape and
    the errors are those of ``segment_sum``.

    >>> import numpy as np
    >>> segment_min(np.array([2.0, 3.0, 4.0]), np.array([0, 1, 0]), 3)
    array([ 2.,  3., inf])
    """
    if operands.type_of_operand("segment_min: data", data).dtype == dtypes.bool_:
        bits = anp.astype(data, dtypes.uint8)
        return anp.astype(
            segment_min(bits, segment_ids, num_segments, mode=mode), dtypes.bool_
        )
    segments = _Segments("segment_min", data, segment_ids, num_segments)
    return segments.filled(segments.limit(largest=True)).min(
        data,
        mode=mode,
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
    )


class _Segments:
    """The checked arguments of a segment function.

    ``type`` is that of the rows, ``count`` the number of segments, and ``ids`` the
    number of each row, where negative numbers are out of bounds.
    """

    def __init__(
        self, name: str, data: ArrayLike, ids: ArrayLike, count: int | None
    ) -> None:
        """Check the arguments; ``name`` is the function in errors.

        Raises ShapeError or ArgumentError. Without ``count``, it is the largest of
        ``ids`` plus 1.
        """
        self.type = operands.type_of_operand(f"{name}: data", data)
        given = operands.type_of_operand(f"{name}: segment_ids", ids)
        if given.shape != self.type.shape[:1] or not self.type.shape:
            raise ShapeError(
                f"{name}: data is {self.type}, so segment_ids must be a vector with a "
                f"number for each row, not {given}",
                user_location(),
            )
        if given.dtype not in dtypes.INTEGERS:
            raise ArgumentError(
                f"{name}: segment_ids must be integers, not {given}", user_location()
            )
        self.count = int(anp.max(ids, initial=-1)) + 1 if count is None else count
        # A negative number would count from the end.
        self.ids = anp.where(anp.less(ids, 0), self.count, ids)

    def limit(self, *, largest: bool) -> Any:
        """Return the largest or the smallest number of the dtype, which is not bool."""
        if self.type.dtype in dtypes.FLOATS:
            return float("inf") if largest else -float("inf")
        limits = anp.iinfo(self.type.dtype)
        return limits.max if largest else limits.min

    def filled(self, value: Any) -> Any:
        """Return an array of ``value`` for the results, indexed at the numbers.

        It is ``array.at[ids]``, whose methods add or multiply rows.
        """
        shape = (self.count, *self.type.shape[1:])
        return anp.at(anp.full(shape, value, self.type.dtype))[self.ids]


__all__ = ["segment_max", "segment_min", "segment_prod", "segment_sum"]
