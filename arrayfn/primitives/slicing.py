"""slice, pad and concatenate.

Their rules refer to each other: the transpose of a slice is a pad.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import DTypeError, ShapeError
from arrayfn.ir import ArrayType, Atom, Literal
from arrayfn.ir.layout import Shape
from arrayfn.primitives import conversion, emitters, factors, families, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import (
    LINEAR,
    Array,
    Atoms,
    AxisMap,
    Batched,
    Dims,
    Linear,
    Operands,
    Primitive,
    Sample,
    Tangents,
    Template,
    View,
)
from arrayfn.primitives.rules import batched_along, repeated, transposed_first


def _sample(shape: Shape, seed: int = 21) -> Array:
    """Return a random float32 array for the table tests."""
    return families.random_array(dtypes.float32, shape, seed)


# slice


def _slice_types(
    x: ArrayType,
    *,
    start: tuple[int, ...],
    limit: tuple[int, ...],
    strides: tuple[int, ...],
) -> ArrayType:
    """Type rule: ceil((limit - start) / stride) elements along each axis."""
    is_valid = len(start) == len(limit) == len(strides) == x.ndim and all(
        0 <= low <= high <= extent and step > 0
        for low, high, step, extent in zip(start, limit, strides, x.shape, strict=True)
    )
    if not is_valid:
        raise ShapeError(f"slice {start} to {limit} by {strides} is not within {x}")
    return x.with_shape(
        -(-(high - low) // step)  # rounded up
        for low, high, step in zip(start, limit, strides, strict=True)
    )


def _slice_reference(
    x: Array, *, start: Sequence[int], limit: Sequence[int], strides: Sequence[int]
) -> Array:
    """Slice ``x`` by NumPy's indexing."""
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
    """Transpose rule: ``ct_x`` is ``ct`` padded with zeros to the operand's ``type``.

    Strides put zeros between the elements too.
    """
    config: list[tuple[int, int, int]] = []
    shape = zip(ct.type.shape, type.shape, start, strides, strict=True)
    for count, extent, low, step in shape:
        # The elements of the operand up to the last one that the slice reads.
        covered = low + (count - 1) * step + 1 if count else low
        config.append((low, extent - covered, step - 1))
    return pad(ct, conversion.literal(0, type.dtype), config=tuple(config))


slice_ = Primitive(
    name="slice",
    factors=factors.slice_,
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
    transpose=transposed_first(_slice_transpose),
    batch=batched_along(
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


def block(x: Atom, start: Sequence[int], limit: Sequence[int]) -> Atom:
    """Slice ``x`` from ``start`` to ``limit`` (exclusive) on every axis."""
    ones = (1,) * x.type.ndim
    return slice_(x, start=tuple(start), limit=tuple(limit), strides=ones)


def slice_along(x: Atom, axis: int, start: int, stop: int) -> Atom:
    """Slice ``x`` from ``start`` to ``stop`` (exclusive) along ``axis``."""
    begin, limit = [0] * x.type.ndim, list(x.type.shape)
    begin[axis], limit[axis] = start, stop
    return block(x, begin, limit)


def index_along(x: Atom, axis: int, index: int) -> Atom:
    """Return the part of ``x`` at ``index`` along ``axis``, without that axis."""
    part, shape = slice_along(x, axis, index, index + 1), x.type.shape
    return views.reshape(part, shape=(*shape[:axis], *shape[axis + 1 :]))


# pad


PadConfig = tuple[tuple[int, int, int], ...]


def _pad_types(x: ArrayType, value: ArrayType, *, config: PadConfig) -> ArrayType:
    """Type rule: axes grow by ``config``, or shrink where an entry is negative.

    ``config`` has (before, after, between elements) for each axis.
    """
    if x.dtype != value.dtype or value.shape:
        raise DTypeError(f"pad's value must be a scalar of {x.dtype}, not {value}")
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
    """Pad between elements first, then at the borders; cut where entries are negative.

    ``config`` has (before, after, between elements) for each axis.
    """
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
    primals: Atoms, outputs: Atoms, tangents: Tangents, *, config: PadConfig
) -> Tangents:
    """The jvp rule: ``d pad(x, v) = pad(dx, dv)``."""
    x, value = tangents
    zero = conversion.literal(0, outputs[0].type.dtype)
    if x is None:
        x = views.zeros(primals[0].type)
    return [pad(x, zero if value is None else value, config=config)]


def _pad_transpose(
    cotangents: Tangents, inputs: Operands, *, config: PadConfig
) -> Tangents:
    """The transpose rule: ``ct_x`` is ``ct`` without the padding.

    The padding value's cotangent is the sum of the padding's: ``sum(ct) - sum(ct_x)``.
    """
    (ct,), (x, value) = cotangents, inputs
    assert ct is not None
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
        total = emitters.reduce_sum(ct, axes=axes)
        to_value = emitters.sub(total, emitters.reduce_sum(inner, axes=axes))
    return [to_x, to_value]


def _pad_batch(
    axis_size: int, inputs: Atoms, dims: Dims, *, config: PadConfig
) -> Batched:
    """Batching rule: a pad that does not pad the mapped axis.

    If the padding value is mapped, a mask of the operand's elements is padded too, and
    selects between the padded operand and the members' values.
    """
    x, value = inputs
    x = repeated(axis_size, x, dims[0])
    if dims[1] is None:
        return [pad(x, value, config=((0, 0, 0), *config))], [0]
    ones = views.broadcast_literal(1, ArrayType(x.type.shape, dtypes.bool_))
    no = Literal(False, dtypes.bool_)
    inside = pad(ones, no, config=((0, 0, 0), *config))
    zero = conversion.literal(0, x.type.dtype)
    padded = pad(x, zero, config=((0, 0, 0), *config))
    filler = views.broadcast_in_dim(value, shape=padded.type.shape, axes=(0,))
    return [e.select(inside, padded, filler)], [0]


pad = Primitive(
    name="pad",
    factors=factors.pad,
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
    doc="Inserts (low, high, interior) elements of a value before, after and between; "
    "negative low and high remove elements.",
)


# concatenate


def _concatenate_types(*operands: ArrayType, axis: int) -> ArrayType:
    """Type rule: extents along ``axis`` add up; all others, and dtypes, are equal."""
    first = operands[0]
    for other in operands[1:]:
        if other.dtype != first.dtype:
            raise DTypeError(
                "concatenate takes operands of one dtype, but was given "
                + ", ".join(map(str, operands))
            )
        agrees = other.ndim == first.ndim and all(
            a == b or k == axis
            for k, (a, b) in enumerate(zip(first.shape, other.shape, strict=True))
        )
        if not agrees:
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
    primals: Atoms, outputs: Atoms, tangents: Tangents, *, axis: int
) -> Tangents:
    """The jvp rule: ``d concatenate(x, y) = concatenate(dx, dy)``; None is zeros."""
    parts = views.dense(tangents, [x.type for x in primals])
    return [concatenate(*parts, axis=axis)]


def _concatenate_transpose(
    cotangents: Tangents, inputs: Operands, *, axis: int
) -> Tangents:
    """The transpose rule: an operand's cotangent is its slice of the cotangent."""
    (ct,) = cotangents
    assert ct is not None
    ends = list(itertools.accumulate(x.type.shape[axis] for x in inputs))
    return [
        slice_along(ct, axis, begin, end) if isinstance(x, Linear) else None
        for x, begin, end in zip(inputs, [0, *ends[:-1]], ends, strict=True)
    ]


concatenate = Primitive(
    name="concatenate",
    factors=factors.along_others,
    family="structure",
    types=_concatenate_types,
    reference=lambda *xs, axis: np.concatenate(xs, axis),
    kernel=Template("concatenate"),
    jvp=_concatenate_jvp,
    transpose=_concatenate_transpose,
    batch=batched_along(lambda *xs, axis: concatenate(*xs, axis=axis + 1)),
    samples=lambda: [
        Sample((_sample((2, 3)), _sample((4, 3), 22)), {"axis": 0}),
        Sample((_sample((2, 3)), _sample((2, 1), 22), _sample((2, 2))), {"axis": 1}),
    ],
    doc="The operands joined along an axis.",
)
