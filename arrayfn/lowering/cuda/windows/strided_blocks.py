"""Space-to-depth: rewrites strided convolutions of few channels with stride 1.

Blocks of s by s pixels become channels, where s is the stride: ``[n, s * h, s * w, c]``
is viewed as ``[n, h, w, s * s * c]``, and a window of ``k`` elements becomes one of
about ``k / s``. Libraries have faster kernels for these. Channels are last; there are
no groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from arrayfn.ir import Atom
from arrayfn.lowering.cuda.vocabulary import vector_lanes
from arrayfn.primitives import conversion, slicing, views
from arrayfn.primitives.padded_convolution import ARRAYS, padded_convolution
from arrayfn.records import frozen

MAX_CHANNELS: Final = 64
"""Channels after the change at most. With more, libraries are as fast without it."""


def has_blocks(p: Mapping[str, int]) -> bool:
    """Whether the convolution with the integers ``p`` can be rewritten by blocks."""
    # Channels must be last and in one group, and windows longer than their strides. The
    # channels of a block must not be too many.
    axes = range(p["axes"])
    strides = [p[f"stride{k}"] for k in axes]
    return (
        p["last"] == 1
        and p["groups"] == 1
        and max(strides) > 1
        and all(p[f"size{k}"] > strides[k] and p[f"dilation{k}"] == 1 for k in axes)
        and p["inner"] * math.prod(strides) <= MAX_CHANNELS
    )


@frozen
class _Axis:
    """How one spatial axis is cut into blocks of ``stride`` elements.

    Args:
        stride: Elements of a block.
        operand: How many zeros to add before and after the operand; a negative number
            cuts elements off.
        kernel: How many zeros to add before and after the kernel.
        blocks: How many blocks the operand has.
        size: How many blocks the kernel has.
        padding: Padding of the new convolution on either side, in blocks.
    """

    stride: int
    operand: tuple[int, int]
    kernel: tuple[int, int]
    blocks: int
    size: int
    padding: int

    @staticmethod
    def of(p: Mapping[str, int], k: int) -> _Axis:
        """Cut spatial axis ``k`` of the convolution with integers ``p`` into blocks."""
        extent, size, count, stride, low = (
            p[f"{name}{k}"] for name in ("extent", "size", "count", "stride", "low")
        )
        # Zeros before the kernel move its first block to a multiple of the stride: the
        # padding before the operand is then ``before`` whole blocks.
        before = -(-low // stride)
        front = before * stride - low
        windows = -(-(front + size) // stride)
        # How many blocks windows touch, from the first block of the first window on.
        touched = count + windows - 1
        present = min(-(-extent // stride), touched - before)
        after = touched - before - present
        # The convolution pads both sides alike; zeros of the operand are the rest.
        padding = min(before, after)
        begin, blocks = before - padding, touched - 2 * padding
        return _Axis(
            stride=stride,
            operand=(begin * stride, (blocks - begin) * stride - extent),
            kernel=(front, windows * stride - front - size),
            blocks=blocks,
            size=windows,
            padding=padding,
        )


def convolve_blocks(
    operands: Sequence[Atom],
    params: Mapping[str, Any],
    p: Mapping[str, int],
    border: Sequence[tuple[int, int]],
) -> Atom:
    """Compute ``padded_convolution`` of ``operands`` by blocks.

    Args:
        operands: The two operands.
        params: The equation's parameters.
        p: The integers of the library's call.
        border: Zeros before and after each axis that the operand still needs.
    """
    axes = [_Axis.of(p, k) for k in range(p["axes"])]
    gives = params["gives"]
    # Zeros to add before and after the spatial axes of the arrays that are cut into
    # blocks.
    borders = {
        "operand": [
            (low + extra[0], high + extra[1])
            for (low, high), extra in zip(
                (a.operand for a in axes), border, strict=True
            )
        ],
        "kernel": [axis.kernel for axis in axes],
    }
    strides = [axis.stride for axis in axes]
    arrays = [
        _blocked(x, borders[name], strides) if name in borders else x
        for name, x in zip(ARRAYS[gives], operands, strict=True)
    ]
    # The extents of the result along spatial axes, if it is a cotangent.
    extents = {
        "operand": [axis.blocks for axis in axes],
        "kernel": [axis.size for axis in axes],
    }
    ones = (1,) * len(axes)
    result = padded_convolution(
        arrays[0],
        arrays[1],
        **{
            **params,
            "strides": ones,
            "padding": tuple((axis.padding, axis.padding) for axis in axes),
            "extents": tuple(extents.get(gives, ())),
        },
    )
    if gives not in borders:
        return result
    return _unblocked(result, borders[gives], strides, p["inner"])


def _order(count: int) -> tuple[int, ...]:
    """Return the permutation that brings the axes of blocks before those within.

    It is from [n, block, within, ..., c] to [n, blocks, withins, c]. ``count`` is the
    number of spatial axes.
    """
    blocks = (1 + 2 * k for k in range(count))
    within = (2 + 2 * k for k in range(count))
    return (0, *blocks, *within, 1 + 2 * count)


def _blocked(
    x: Atom, borders: Sequence[tuple[int, int]], strides: Sequence[int]
) -> Atom:
    """View ``x`` [n, pixels, ..., c] with blocks of pixels as channels: space to depth.

    ``borders`` are the zeros to add before and after each spatial axis, ``strides`` the
    pixels of a block along it.
    """
    none = (0, 0)
    x = padded(x, (none, *borders, none))
    first, *space, inner = x.type.shape
    shape: list[int] = [first]
    for n, stride in zip(space, strides, strict=True):
        shape += [n // stride, stride]
    x = views.reshape(x, shape=(*shape, inner))
    x = views.transpose(x, permutation=_order(len(strides)))
    blocks = [n // stride for n, stride in zip(space, strides, strict=True)]
    x = views.reshape(x, shape=(first, *blocks, inner * math.prod(strides)))
    # How many channels are missing to whole vectors.
    missing = -x.type.shape[-1] % vector_lanes(x.type.dtype)
    return padded(x, (*(none,) * (1 + len(strides)), (0, missing))) if missing else x


def padded(x: Atom, widths: Sequence[tuple[int, int]]) -> Atom:
    """Add zeros before and after each axis of ``x``; negative widths cut off."""
    zero = conversion.literal(0, x.type.dtype)
    config = tuple((before, after, 0) for before, after in widths)
    return slicing.pad(x, zero, config=config)


def _unblocked(
    x: Atom,
    borders: Sequence[tuple[int, int]],
    strides: Sequence[int],
    inner: int,
) -> Atom:
    """Make of ``x`` an image of ``inner`` channels: the transpose of ``_blocked``.

    ``borders`` and ``strides`` are as in ``_blocked``; borders are cut off.
    """
    first, *blocks, _ = x.type.shape
    count = len(blocks)
    limit = (first, *blocks, inner * math.prod(strides))
    # Cut off the channels that are padding.
    if limit != x.type.shape:
        start, ones = (0,) * (2 + count), (1,) * (2 + count)
        x = slicing.slice_(x, start=start, limit=limit, strides=ones)
    x = views.reshape(x, shape=(first, *blocks, *strides, inner))
    order = _order(count)
    x = views.transpose(x, permutation=tuple(order.index(k) for k in range(len(order))))
    space = (n * stride for n, stride in zip(blocks, strides, strict=True))
    x = views.reshape(x, shape=(first, *space, inner))
    none = (0, 0)
    return padded(x, (none, *((-low, -high) for low, high in borders), none))
