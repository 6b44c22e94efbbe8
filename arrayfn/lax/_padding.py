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
    """The (low, high) padding of each axis for ``padding``.

    "SAME" gives as many windows as strides fit into the extent. "SAME_LOWER" does too,
    but puts an odd element before instead of after. "VALID" adds nothing.

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
        count = -(-extent // stride)
        total = max((count - 1) * stride + size - extent, 0)
        less, more = total // 2, total - total // 2
        pads.append((less, more) if padding == "SAME" else (more, less))
    return pads


def pairs(
    name: str, padding: Padding, extents: Shape, sizes: Shape, strides: Shape
) -> Pairs:
    """``padding`` as pairs, for windows of ``sizes`` in axes of ``extents``."""
    if isinstance(padding, str):
        return tuple(padtype_to_pads(extents, sizes, strides, padding))
    try:
        given = tuple((int(low), int(high)) for low, high in padding)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"{name}: padding must be 'SAME', 'SAME_LOWER', 'VALID', or a (low, "
            f"high) pair of integers for each axis, not {padding!r}",
            user_location(),
        ) from None
    if len(given) != len(extents):
        raise ShapeError(
            f"{name} takes a (low, high) pair for each of {len(extents)} axes, but "
            f"padding is {given}",
            user_location(),
        )
    return given


def per_axis(
    name: str, word: str, values: Sequence[int] | None, count: int
) -> tuple[int, ...]:
    """``values``, one for each of ``count`` axes; all 1 if None."""
    if values is None:
        return (1,) * count
    try:
        given = tuple(int(value) for value in values)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"{name} takes {word} for each axis, a sequence of integers, not "
            f"{values!r}",
            user_location(),
        ) from None
    if len(given) != count:
        raise ShapeError(
            f"{name} takes {word} for each of {count} axes, but was given {given}",
            user_location(),
        )
    if min(given, default=1) < 1:
        raise ShapeError(
            f"{name} takes {word} of 1 or more for each axis, but was given {given}",
            user_location(),
        )
    return given
