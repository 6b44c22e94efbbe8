"""Converts paddings of windows ("SAME", "SAME_LOWER", "VALID" or pairs) to pairs."""

from __future__ import annotations

from collections.abc import Sequence

from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.ir.layout import Shape

Padding = str | Sequence[tuple[int, int]]
Pairs = tuple[tuple[int, int], ...]


def padtype_to_pads(
    in_shape: Sequence[int],
    window_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: str,
) -> list[tuple[int, int]]:
    """Convert ``padding``, a string, to a (low, high) pair of widths for each axis.

    For an axis of extent n, "SAME" pads so that there are ceil(n / stride) windows. If
    the total width is odd, "SAME" puts the extra element after the array, and
    "SAME_LOWER" before it. "VALID" adds nothing. Raises ArgumentError for other
    strings.

    >>> padtype_to_pads((5, 6), (3, 3), (1, 2), "SAME")
    [(1, 1), (0, 1)]
    """
    if padding not in ("SAME", "SAME_LOWER", "VALID"):
        raise ArgumentError(
            "padding must be 'SAME', 'SAME_LOWER', 'VALID', or a (low, high) pair "
            f"for each axis, not {padding!r}",
            user_location(),
        )
    if padding == "VALID":
        return [(0, 0)] * len(tuple(in_shape))
    pads: list[tuple[int, int]] = []
    parts = zip(in_shape, window_shape, window_strides, strict=True)
    for extent, size, stride in parts:
        count = -(-extent // stride)  # the number of windows: ceil(extent / stride)
        total = max((count - 1) * stride + size - extent, 0)
        smaller, larger = total // 2, total - total // 2
        pads.append((smaller, larger) if padding == "SAME" else (larger, smaller))
    return pads


def pairs(
    name: str, padding: Padding, extents: Shape, sizes: Shape, strides: Shape
) -> Pairs:
    """Return ``padding``, a string or pairs, as a (low, high) pair for each axis.

    A string is converted by ``padtype_to_pads``, for windows of ``sizes`` and
    ``strides`` over axes of ``extents``. Raises ArgumentError if ``padding`` is
    neither, and ShapeError if the number of pairs is not that of axes. Errors call the
    function ``name``.
    """
    if isinstance(padding, str):
        return tuple(padtype_to_pads(extents, sizes, strides, padding))
    try:
        widths = tuple((int(low), int(high)) for low, high in padding)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"{name}: padding must be 'SAME', 'SAME_LOWER', 'VALID', or a (low, "
            f"high) pair of integers for each axis, not {padding!r}",
            user_location(),
        ) from None
    if len(widths) != len(extents):
        raise ShapeError(
            f"{name} takes a (low, high) pair for each of {len(extents)} axes, but "
            f"padding is {widths}",
            user_location(),
        )
    return widths


def per_axis(
    name: str, word: str, values: Sequence[int] | None, count: int
) -> tuple[int, ...]:
    """Return ``values`` as a tuple of ``count`` integers, one for each axis.

    None becomes all ones. Raises ArgumentError if ``values`` are not integers, and
    ShapeError if there are not ``count`` of them, or one is below 1. Errors say that
    the function ``name`` takes ``word`` ("a stride", say) for each axis.
    """
    if values is None:
        return (1,) * count
    try:
        numbers = tuple(int(value) for value in values)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"{name} takes {word} for each axis, a sequence of integers, not "
            f"{values!r}",
            user_location(),
        ) from None
    if len(numbers) != count:
        raise ShapeError(
            f"{name} takes {word} for each of {count} axes, but was given {numbers}",
            user_location(),
        )
    if min(numbers, default=1) < 1:
        raise ShapeError(
            f"{name} takes {word} of 1 or more for each axis, but was given {numbers}",
            user_location(),
        )
    return numbers
