"""Views and their kin: what moves elements and computes nothing.

``View`` rows are affine: the compiler reads through them, it does not copy. The others
(reshape, pad, concatenate, iota) say in ``Template`` how they are built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.errors import ArgumentError, DTypeError, ShapeError
from arrayfn.ir import ArrayType, Atom, Literal
from arrayfn.layout import Shape
from arrayfn.primitives import conversion, families, reductions
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import (
    LINEAR,
    NOT_LINEAR,
    ZERO_TANGENT,
    Array,
    AxisMap,
    Dim,
    Linear,
    Operand,
    Primitive,
    Sample,
    Template,
    View,
)


def move_axis(x: Atom, source: int, target: int) -> Atom:
    """``x`` with one axis moved; itself, if it is there already."""
    if source == target:
        return x
    order = [axis for axis in range(x.type.ndim) if axis != source]
    order.insert(target, source)
    return transpose(x, permutation=tuple(order))


def broadcast_literal(value: float, type: ArrayType) -> Atom:
    """An array of ``type``'s shape and dtype filled with ``value``."""
    scalar = conversion.literal(value, type.dtype)
    if not type.shape:
        return scalar
    return broadcast_in_dim(scalar, shape=type.shape, axes=())


def _one(rule: Callable[..., Atom]) -> Callable[..., list[Atom | None]]:
    """A transpose rule of one linear input from ``rule(cotangent, type, **params)``."""

    def transpose_rule(
        cotangents: Sequence[Atom | None], inputs: Sequence[Operand], **params: Any
    ) -> list[Atom | None]:
        (ct,) = cotangents
        operand = inputs[0]
        if ct is None or not isinstance(operand, Linear):
            return [None] * len(inputs)
        return [rule(ct, operand.type, **params)]

    return transpose_rule


def _along(rule: Callable[..., Atom]) -> Callable[..., tuple[list[Atom], list[Dim]]]:
    """A batching rule from ``rule(x mapped along axis 0, **params)``."""

    def batch_rule(
        size: int, inputs: Sequence[Atom], dims: Sequence[Dim], **params: Any
    ) -> tuple[list[Atom], list[Dim]]:
        x, dim = inputs[0], dims[0]
        assert dim is not None
        return [rule(move_axis(x, dim, 0), **params)], [0]

    return batch_rule


def _sample(shape: Shape, seed: int = 21, dtype: DType = dtypes.float32) -> Array:
    return families.random_array(dtype, shape, seed, -3.0, 3.0)


# transpose


def _transpose_types(x: ArrayType, *, permutation: tuple[int, ...]) -> ArrayType:
    if sorted(permutation) != list(range(x.ndim)):
        raise ShapeError(f"{permutation} does not permute the axes of {x}")
    return x.with_shape(x.shape[axis] for axis in permutation)


def _transpose_axes(
    x: ArrayType, *, permutation: tuple[int, ...]
) -> tuple[AxisMap, ...]:
    return tuple(AxisMap(permutation.index(axis)) for axis in range(x.ndim))


def _inverse(permutation: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argsort(permutation))


transpose = Primitive(
    name="transpose",
    family="view",
    types=_transpose_types,
    reference=lambda x, permutation: x.transpose(permutation),
    kernel=View(_transpose_axes),
    jvp=LINEAR,
    transpose=_one(
        lambda ct, type, permutation: transpose(ct, permutation=_inverse(permutation))
    ),
    batch=_along(
        lambda x, permutation: transpose(
            x, permutation=(0, *(axis + 1 for axis in permutation))
        )
    ),
    samples=lambda: [
        Sample((_sample((2, 3, 4)),), {"permutation": (2, 0, 1)}),
        Sample((_sample((5, 3)),), {"permutation": (1, 0)}),
    ],
    doc="Axes in another order: output axis i is input axis permutation[i].",
)


# broadcast_in_dim


def _broadcast_types(x: ArrayType, *, shape: Shape, axes: tuple[int, ...]) -> ArrayType:
    fits = (
        len(axes) == x.ndim
        and list(axes) == sorted(set(axes))
        and all(
            0 <= axis < len(shape) and extent in (1, shape[axis])
            for axis, extent in zip(axes, x.shape, strict=True)
        )
    )
    if not fits:
        raise ShapeError(f"{x} does not broadcast to shape {shape} along axes {axes}")
    return ArrayType(shape, x.dtype, weak=x.weak)


def _broadcast_axes(
    x: ArrayType, *, shape: Shape, axes: tuple[int, ...]
) -> tuple[AxisMap, ...]:
    return tuple(
        AxisMap(None) if extent == 1 != shape[axis] else AxisMap(axis)
        for axis, extent in zip(axes, x.shape, strict=True)
    )


def _broadcast_reference(x: Array, *, shape: Shape, axes: tuple[int, ...]) -> Array:
    kept = [1] * len(shape)
    for axis, extent in zip(axes, np.shape(x), strict=True):
        kept[axis] = extent
    return np.broadcast_to(np.reshape(x, kept), shape)


def _broadcast_transpose(
    ct: Atom, type: ArrayType, *, shape: Shape, axes: tuple[int, ...]
) -> Atom:
    summed = [axis for axis in range(len(shape)) if axis not in axes]
    summed += [
        axis
        for axis, extent in zip(axes, type.shape, strict=True)
        if extent == 1 != shape[axis]
    ]
    if summed:
        ct = reductions.reduce_sum(ct, axes=tuple(sorted(summed)))
    if ct.type.shape == type.shape:
        return ct
    kept = tuple(
        position for position in range(type.ndim) if axes[position] not in summed
    )
    return broadcast_in_dim(ct, shape=type.shape, axes=kept)


broadcast_in_dim = Primitive(
    name="broadcast_in_dim",
    family="view",
    types=_broadcast_types,
    reference=_broadcast_reference,
    kernel=View(_broadcast_axes),
    jvp=LINEAR,
    transpose=_one(_broadcast_transpose),
    batch=_along(
        lambda x, shape, axes: broadcast_in_dim(
            x,
            shape=(x.type.shape[0], *shape),
            axes=(0, *(axis + 1 for axis in axes)),
        )
    ),
    samples=lambda: [
        Sample((_sample((3,)),), {"shape": (2, 3), "axes": (1,)}),
        Sample((_sample((3, 1)),), {"shape": (3, 2, 4), "axes": (0, 2)}),
        Sample((_sample(()),), {"shape": (2, 3), "axes": ()}),
    ],
    doc="Input axis i becomes output axis axes[i]; other axes, and those of extent 1, "
    "are repeated.",
)


# reshape


def _reshape_types(x: ArrayType, *, shape: Shape) -> ArrayType:
    if math.prod(shape) != x.size or any(extent < 0 for extent in shape):
        raise ShapeError(f"{x} has {x.size} elements and does not reshape to {shape}")
    return x.with_shape(shape)


def _reshape_axes(x: ArrayType, *, shape: Shape) -> tuple[AxisMap, ...] | None:
    """A view of axes if only extents of 1 come and go."""
    axes = [axis for axis, extent in enumerate(shape) if extent != 1]
    if [shape[axis] for axis in axes] != [n for n in x.shape if n != 1]:
        return None
    remaining = iter(axes)
    return tuple(AxisMap(None if n == 1 else next(remaining)) for n in x.shape)


reshape = Primitive(
    name="reshape",
    family="view",
    types=_reshape_types,
    reference=lambda x, shape: x.reshape(shape),
    kernel=View(_reshape_axes),
    jvp=LINEAR,
    transpose=_one(lambda ct, type, shape: reshape(ct, shape=type.shape)),
    batch=_along(lambda x, shape: reshape(x, shape=(x.type.shape[0], *shape))),
    samples=lambda: [
        Sample((_sample((3, 4)),), {"shape": (2, 6)}),
        Sample((_sample((3, 1, 4)),), {"shape": (3, 4)}),
        Sample((_sample((6,)),), {"shape": (1, 2, 3)}),
    ],
    doc="The elements in row-major order under another shape.",
)


# slice, reverse, pad


def _slice_types(
    x: ArrayType,
    *,
    start: tuple[int, ...],
    limit: tuple[int, ...],
    strides: tuple[int, ...],
) -> ArrayType:
    fits = len(start) == len(limit) == len(strides) == x.ndim and all(
        0 <= low <= high <= extent and step > 0
        for low, high, step, extent in zip(start, limit, strides, x.shape, strict=True)
    )
    if not fits:
        raise ShapeError(f"slice {start} to {limit} by {strides} is not within {x}")
    return x.with_shape(
        -(-(high - low) // step)
        for low, high, step in zip(start, limit, strides, strict=True)
    )


def _slice_reference(
    x: Array, *, start: Sequence[int], limit: Sequence[int], strides: Sequence[int]
) -> Array:
    bounds = zip(start, limit, strides, strict=True)
    return x[tuple(slice(low, high, step) for low, high, step in bounds)]


def _slice_transpose(
    ct: Atom,
    type: ArrayType,
    *,
    start: tuple[int, ...],
    limit: tuple[int, ...],
    strides: tuple[int, ...],
) -> Atom:
    config: list[tuple[int, int, int]] = []
    shape = zip(ct.type.shape, type.shape, start, strides, strict=True)
    for count, extent, low, step in shape:
        covered = low + (count - 1) * step + 1 if count else low
        config.append((low, extent - covered, step - 1))
    return pad(ct, conversion.literal(0, type.dtype), config=tuple(config))


slice_ = Primitive(
    name="slice",
    family="view",
    types=_slice_types,
    reference=_slice_reference,
    kernel=View(
        lambda x, start, limit, strides: tuple(
            AxisMap(axis, step, low)
            for axis, (low, step) in enumerate(zip(start, strides, strict=True))
        )
    ),
    jvp=LINEAR,
    transpose=_one(_slice_transpose),
    batch=_along(
        lambda x, start, limit, strides: slice_(
            x,
            start=(0, *start),
            limit=(x.type.shape[0], *limit),
            strides=(1, *strides),
        )
    ),
    samples=lambda: [
        Sample(
            (_sample((5, 7)),), {"start": (1, 0), "limit": (4, 7), "strides": (1, 3)}
        )
    ],
    doc="start to limit (exclusive) by strides, on every axis.",
)


def _rev_types(x: ArrayType, *, axes: tuple[int, ...]) -> ArrayType:
    if any(not 0 <= axis < x.ndim for axis in axes):
        raise ShapeError(f"cannot reverse axes {axes} of {x}")
    return x.with_shape(x.shape)


rev = Primitive(
    name="rev",
    family="view",
    types=_rev_types,
    reference=lambda x, axes: np.flip(x, axis=axes),
    kernel=View(
        lambda x, axes: tuple(
            AxisMap(axis, -1, extent - 1) if axis in axes else AxisMap(axis)
            for axis, extent in enumerate(x.shape)
        )
    ),
    jvp=LINEAR,
    transpose=_one(lambda ct, type, axes: rev(ct, axes=axes)),
    batch=_along(lambda x, axes: rev(x, axes=tuple(axis + 1 for axis in axes))),
    samples=lambda: [Sample((_sample((3, 4)),), {"axes": (1,)})],
    doc="Elements in reverse order along some axes.",
)


PadConfig = tuple[tuple[int, int, int], ...]


def _pad_types(x: ArrayType, value: ArrayType, *, config: PadConfig) -> ArrayType:
    if x.dtype != value.dtype or value.shape:
        raise DTypeError(f"pad's value is a scalar of {x.dtype}, not {value}")
    if len(config) != x.ndim or any(inner < 0 for _, _, inner in config):
        raise ShapeError(f"pad config {config} does not fit {x}")
    shape = tuple(
        low + high + extent + max(extent - 1, 0) * inner
        for extent, (low, high, inner) in zip(x.shape, config, strict=True)
    )
    if any(extent < 0 for extent in shape):
        raise ShapeError(f"pad config {config} removes more than {x} has")
    return x.with_shape(shape)


def _pad_reference(x: Array, value: Array, *, config: PadConfig) -> Array:
    if not config:
        return np.array(x)
    spread_shape = [
        extent + max(extent - 1, 0) * inner
        for extent, (_, _, inner) in zip(x.shape, config, strict=True)
    ]
    spread = np.full(spread_shape, value, x.dtype)
    spread[tuple(slice(None, None, inner + 1) for _, _, inner in config)] = x
    widths = [(max(low, 0), max(high, 0)) for low, high, _ in config]
    padded = np.pad(spread, widths, constant_values=np.asarray(value).item())
    for axis, (low, high, _) in enumerate(config):
        start, stop = max(-low, 0), padded.shape[axis] - max(-high, 0)
        padded = padded[(slice(None),) * axis + (slice(start, max(stop, start)),)]
    return padded


def _pad_jvp(
    primals: Sequence[Atom],
    outputs: Sequence[Atom],
    tangents: Sequence[Atom | None],
    *,
    config: PadConfig,
) -> list[Atom | None]:
    x, value = tangents
    if x is None and value is None:
        return [None]
    zero = conversion.literal(0, outputs[0].type.dtype)
    if x is None:
        x = broadcast_literal(0, primals[0].type)
    return [pad(x, zero if value is None else value, config=config)]


def _pad_transpose(
    cotangents: Sequence[Atom | None], inputs: Sequence[Operand], *, config: PadConfig
) -> list[Atom | None]:
    (ct,) = cotangents
    x, value = inputs
    if ct is None:
        return [None, None]
    zero = conversion.literal(0, ct.type.dtype)
    inverse = tuple((-low, -high, 0) for low, high, _ in config)
    inner = pad(ct, zero, config=inverse)
    steps = tuple(inner_step + 1 for _, _, inner_step in config)
    if any(step > 1 for step in steps):
        shape = inner.type.shape
        inner = slice_(inner, start=(0,) * len(shape), limit=shape, strides=steps)
    to_x = inner if isinstance(x, Linear) else None
    to_value = None
    if isinstance(value, Linear):
        axes = tuple(range(ct.type.ndim))
        total = reductions.reduce_sum(ct, axes=axes)
        to_value = e.sub(total, reductions.reduce_sum(inner, axes=axes))
    return [to_x, to_value]


def _pad_batch(
    size: int, inputs: Sequence[Atom], dims: Sequence[Dim], *, config: PadConfig
) -> tuple[list[Atom], list[Dim]]:
    x, value = inputs
    x = batched(size, x, dims[0])
    if dims[1] is None:
        return [pad(x, value, config=((0, 0, 0), *config))], [0]
    # A mapped pad value: pad a mask too, and select.
    ones = broadcast_literal(1, ArrayType(x.type.shape, dtypes.bool_))
    no = Literal(False, dtypes.bool_)
    inside = pad(ones, no, config=((0, 0, 0), *config))
    zero = conversion.literal(0, x.type.dtype)
    padded = pad(x, zero, config=((0, 0, 0), *config))
    filler = broadcast_in_dim(value, shape=padded.type.shape, axes=(0,))
    return [e.select(inside, padded, filler)], [0]


pad = Primitive(
    name="pad",
    family="structure",
    types=_pad_types,
    reference=_pad_reference,
    kernel=Template("pad"),
    jvp=_pad_jvp,
    transpose=_pad_transpose,
    batch=_pad_batch,
    samples=lambda: [
        Sample(
            (_sample((3, 4)), np.asarray(0.5, np.float32)),
            {"config": ((1, 2, 0), (0, -1, 1))},
        ),
        Sample((_sample((4,)), np.asarray(0.0, np.float32)), {"config": ((-1, 2, 2),)}),
    ],
    doc="(low, high, interior) elements of a value put around and between; negative "
    "low and high remove elements.",
)


def batched(size: int, x: Atom, dim: Dim) -> Atom:
    """``x`` mapped along axis 0, repeated if it is not mapped."""
    if dim is not None:
        return move_axis(x, dim, 0)
    shape = (size, *x.type.shape)
    return broadcast_in_dim(x, shape=shape, axes=tuple(range(1, len(shape))))


# concatenate, iota


def _concatenate_types(*operands: ArrayType, axis: int) -> ArrayType:
    first = operands[0]
    for other in operands[1:]:
        if other.dtype != first.dtype:
            raise DTypeError(
                "concatenate takes operands of one dtype, but was given "
                + ", ".join(map(str, operands))
            )
        same = other.ndim == first.ndim and all(
            a == b or k == axis
            for k, (a, b) in enumerate(zip(first.shape, other.shape, strict=True))
        )
        if not same:
            raise ShapeError(
                f"concatenate along axis {axis} takes operands that agree on all other "
                "axes, but was given " + ", ".join(map(str, operands))
            )
    shape = list(first.shape)
    if not 0 <= axis < len(shape):
        raise ShapeError(f"cannot concatenate along axis {axis} of {first}")
    shape[axis] = sum(t.shape[axis] for t in operands)
    return first.with_shape(shape)


def _concatenate_jvp(
    primals: Sequence[Atom],
    outputs: Sequence[Atom],
    tangents: Sequence[Atom | None],
    *,
    axis: int,
) -> list[Atom | None]:
    if all(t is None for t in tangents):
        return [None]
    parts = [
        broadcast_literal(0, x.type) if t is None else t
        for x, t in zip(primals, tangents, strict=True)
    ]
    return [concatenate(*parts, axis=axis)]


def _concatenate_transpose(
    cotangents: Sequence[Atom | None], inputs: Sequence[Operand], *, axis: int
) -> list[Atom | None]:
    (ct,) = cotangents
    results: list[Atom | None] = []
    begin = 0
    for x in inputs:
        end = begin + x.type.shape[axis]
        if ct is None or not isinstance(x, Linear):
            results.append(None)
        else:
            ndim = ct.type.ndim
            start = tuple(begin if k == axis else 0 for k in range(ndim))
            limit = tuple(end if k == axis else n for k, n in enumerate(ct.type.shape))
            results.append(slice_(ct, start=start, limit=limit, strides=(1,) * ndim))
        begin = end
    return results


def _concatenate_batch(
    size: int, inputs: Sequence[Atom], dims: Sequence[Dim], *, axis: int
) -> tuple[list[Atom], list[Dim]]:
    parts = [batched(size, x, dim) for x, dim in zip(inputs, dims, strict=True)]
    return [concatenate(*parts, axis=axis + 1)], [0]


concatenate = Primitive(
    name="concatenate",
    family="structure",
    types=_concatenate_types,
    reference=lambda *xs, axis: np.concatenate(xs, axis),
    kernel=Template("concatenate"),
    jvp=_concatenate_jvp,
    transpose=_concatenate_transpose,
    batch=_concatenate_batch,
    samples=lambda: [
        Sample((_sample((2, 3)), _sample((4, 3), 22)), {"axis": 0}),
        Sample((_sample((2, 3)), _sample((2, 1), 22), _sample((2, 2))), {"axis": 1}),
    ],
    doc="Operands one after the other along an axis.",
)


def _iota_types(*, shape: Shape, axis: int, dtype: DType) -> ArrayType:
    if not 0 <= axis < len(shape):
        raise ShapeError(f"iota counts along an axis of {shape}, not axis {axis}")
    if dtype in dtypes.COMPLEX or dtype == dtypes.bool_:
        raise DTypeError(f"iota counts in integers or floats, not {dtype}")
    return ArrayType(shape, dtype)


def _iota_reference(*, shape: Shape, axis: int, dtype: DType) -> Array:
    count = np.arange(shape[axis]).astype(dtype)
    kept = [1] * len(shape)
    kept[axis] = shape[axis]
    return np.broadcast_to(count.reshape(kept), shape)


def _iota_batch(*args: Any, **params: Any) -> tuple[list[Atom], list[Dim]]:
    raise ArgumentError("iota has no operand that could be mapped")


iota = Primitive(
    name="iota",
    family="structure",
    types=_iota_types,
    reference=_iota_reference,
    kernel=Template("iota"),
    jvp=ZERO_TANGENT,
    transpose=NOT_LINEAR,
    batch=_iota_batch,
    samples=lambda: [
        Sample((), {"shape": (3, 4), "axis": 1, "dtype": dtypes.int32}),
        Sample((), {"shape": (3, 4), "axis": 0, "dtype": dtypes.float32}),
    ],
    doc="0, 1, 2, ... along an axis.",
)


def _relayout_types(x: ArrayType, *, layout: str) -> ArrayType:
    return x.with_shape(x.shape)


relayout = Primitive(
    name="relayout",
    family="structure",
    types=_relayout_types,
    reference=lambda x, layout: np.array(x, order=layout),
    kernel=View(lambda x, layout: tuple(AxisMap(axis) for axis in range(x.ndim))),
    jvp=LINEAR,
    transpose=_one(lambda ct, type, layout: ct),
    batch=_along(lambda x, layout: relayout(x, layout="C")),
    samples=lambda: [Sample((_sample((3, 4)),), {"layout": "C"})],
    doc="A copy in another layout: 'C' or 'F'.",
)

stop_gradient = Primitive(
    name="stop_gradient",
    family="view",
    types=lambda x: ArrayType(x.shape, x.dtype, weak=x.weak),
    reference=np.array,
    kernel=View(lambda x: tuple(AxisMap(axis) for axis in range(x.ndim))),
    jvp=ZERO_TANGENT,
    transpose=NOT_LINEAR,
    batch=_along(lambda x, **_: stop_gradient(x)),
    samples=lambda: [
        Sample((_sample((3, 4), 23, d),), {}, ()) for d in dtypes.SHORT_NAMES
    ],
    doc="The operand, as if it were constant to derivatives.",
)


ROWS: Iterable[Primitive] = (
    transpose,
    broadcast_in_dim,
    reshape,
    slice_,
    rev,
    pad,
    concatenate,
    iota,
    relayout,
    stop_gradient,
)
