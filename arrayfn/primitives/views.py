"""Views, iota and relayout: primitives that move elements and compute nothing.

A primitive of the form ``View`` is affine: the compiler reads through it without a
copy. ``slicing`` has slice, pad and concatenate.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.errors import ArgumentError, DTypeError, ShapeError
from arrayfn.ir import ArrayType, Atom
from arrayfn.ir.layout import Shape, ascending
from arrayfn.primitives import conversion, emitters, factors, families
from arrayfn.primitives.base import (
    LINEAR,
    NOT_LINEAR,
    ZERO_TANGENT,
    Array,
    AxisMap,
    Batched,
    Primitive,
    Sample,
    Tangents,
    Template,
    View,
)
from arrayfn.primitives.emitters import Emitter
from arrayfn.primitives.rules import batched_along, shifted, transposed_first


def broadcast_literal(value: float, type: ArrayType) -> Atom:
    """Emit an array of the type ``type``, filled with ``value``."""
    scalar = conversion.literal(value, type.dtype)
    if not type.shape:
        return scalar
    return broadcast_in_dim(scalar, shape=type.shape, axes=())


def unchanged(x: ArrayType) -> tuple[AxisMap, ...]:
    """Return the index map of a view that reads all elements at their own index."""
    return tuple(AxisMap(axis) for axis in range(x.ndim))


def zeros(type: ArrayType) -> Atom:
    """Emit an array of zeros of the type ``type``."""
    return broadcast_literal(0, type)


def dense(tangents: Tangents, types: Iterable[ArrayType]) -> list[Atom]:
    """Replace None among ``tangents`` by zeros.

    ``types`` has the type of each tangent.
    """
    return [
        zeros(type) if t is None else t for t, type in zip(tangents, types, strict=True)
    ]


def _sample(shape: Shape, seed: int = 21, dtype: DType = dtypes.float32) -> Array:
    """Return a random array of ``shape`` for the table tests."""
    return families.random_array(dtype, shape, seed)


# transpose


def _transpose_types(x: ArrayType, *, permutation: tuple[int, ...]) -> ArrayType:
    """Type rule: output axis i is input axis ``permutation[i]``."""
    if sorted(permutation) != list(range(x.ndim)):
        raise ShapeError(f"{permutation} does not permute the axes of {x}")
    return x.with_shape(x.shape[axis] for axis in permutation)


def _transpose_axes(
    x: ArrayType, *, permutation: tuple[int, ...]
) -> tuple[AxisMap, ...]:
    """Return the index map: input axis i is output axis ``permutation.index(i)``."""
    return tuple(map(AxisMap, ascending(permutation)))


transpose = Primitive(
    name="transpose",
    factors=factors.transpose,
    family="view",
    types=_transpose_types,
    reference=lambda x, permutation: x.transpose(permutation),
    kernel=View(_transpose_axes),
    jvp=LINEAR,
    transpose=transposed_first(
        lambda ct, type, permutation: transpose(ct, permutation=ascending(permutation))
    ),
    batch=batched_along(
        lambda x, permutation: transpose(x, permutation=(0, *shifted(permutation)))
    ),
    samples=lambda: [
        Sample((_sample((2, 3, 4)),), {"permutation": (2, 0, 1)}),
        Sample((_sample((5, 3)),), {"permutation": (1, 0)}),
    ],
    doc="Permutes axes: output axis i is input axis permutation[i].",
)


# broadcast_in_dim


def with_axes_at(x: Atom, positions: Sequence[int]) -> Atom:
    """Transpose ``x`` so that its axis k becomes axis ``positions[k]``."""
    permutation = ascending(positions)
    if permutation == tuple(range(len(positions))):
        return x
    return transpose(x, permutation=permutation)


def _broadcast_types(x: ArrayType, *, shape: Shape, axes: tuple[int, ...]) -> ArrayType:
    """Type rule: an array of ``shape``.

    Input axis i becomes axis ``axes[i]``, and must have its extent, or extent 1, which
    is repeated. ``axes`` must ascend.
    """
    is_valid = (
        len(axes) == x.ndim
        and list(axes) == sorted(set(axes))
        and all(
            0 <= axis < len(shape) and extent in (1, shape[axis])
            for axis, extent in zip(axes, x.shape, strict=True)
        )
    )
    if not is_valid:
        raise ShapeError(f"{x} does not broadcast to shape {shape} along axes {axes}")
    return ArrayType(shape, x.dtype, weak=x.weak)


def _broadcast_axes(
    x: ArrayType, *, shape: Shape, axes: tuple[int, ...]
) -> tuple[AxisMap, ...]:
    """Return the index map: repeated axes are read at index 0."""
    return tuple(
        AxisMap(None) if extent == 1 != shape[axis] else AxisMap(axis)
        for axis, extent in zip(axes, x.shape, strict=True)
    )


def _broadcast_reference(x: Array, *, shape: Shape, axes: tuple[int, ...]) -> Array:
    """Insert axes of extent 1 into ``x``, and broadcast it to ``shape``."""
    expanded = [1] * len(shape)
    for axis, extent in zip(axes, np.shape(x), strict=True):
        expanded[axis] = extent
    return np.broadcast_to(np.reshape(x, expanded), shape)


def _broadcast_transpose(
    ct: Atom, type: ArrayType, *, shape: Shape, axes: tuple[int, ...]
) -> Atom:
    """Transpose rule: ``ct_x`` is ``ct`` summed over the repeated axes.

    ``type`` is the operand's type. Its axes of extent 1 are inserted again.
    """
    summed = [axis for axis in range(len(shape)) if axis not in axes]
    summed += [
        axis
        for axis, extent in zip(axes, type.shape, strict=True)
        if extent == 1 != shape[axis]  # repeated along the axis
    ]
    if summed:
        ct = emitters.reduce_sum(ct, axes=tuple(sorted(summed)))
    if ct.type.shape == type.shape:
        return ct
    kept = tuple(
        position for position in range(type.ndim) if axes[position] not in summed
    )
    return broadcast_in_dim(ct, shape=type.shape, axes=kept)


broadcast_in_dim = Primitive(
    name="broadcast_in_dim",
    factors=factors.broadcast,
    family="view",
    types=_broadcast_types,
    reference=_broadcast_reference,
    kernel=View(_broadcast_axes),
    jvp=LINEAR,
    transpose=transposed_first(_broadcast_transpose),
    batch=batched_along(
        lambda x, shape, axes: broadcast_in_dim(
            x,
            shape=(x.type.shape[0], *shape),
            axes=(0, *shifted(axes)),
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
    """Type rule: another shape with as many elements."""
    if math.prod(shape) != x.size or any(extent < 0 for extent in shape):
        raise ShapeError(f"{x} has {x.size} elements and does not reshape to {shape}")
    return x.with_shape(shape)


def _reshape_axes(x: ArrayType, *, shape: Shape) -> tuple[AxisMap, ...] | None:
    """Return the index map if only axes of extent 1 are added or removed, else None."""
    axes = [axis for axis, extent in enumerate(shape) if extent != 1]
    if [shape[axis] for axis in axes] != [n for n in x.shape if n != 1]:
        return None
    remaining = iter(axes)
    return tuple(AxisMap(None if n == 1 else next(remaining)) for n in x.shape)


reshape = Primitive(
    name="reshape",
    factors=factors.reshape,
    family="view",
    types=_reshape_types,
    reference=lambda x, shape: x.reshape(shape),
    kernel=View(_reshape_axes),
    jvp=LINEAR,
    transpose=transposed_first(lambda ct, type, shape: reshape(ct, shape=type.shape)),
    batch=batched_along(lambda x, shape: reshape(x, shape=(x.type.shape[0], *shape))),
    samples=lambda: [
        Sample((_sample((3, 4)),), {"shape": (2, 6)}),
        Sample((_sample((3, 1, 4)),), {"shape": (3, 4)}),
        Sample((_sample((6,)),), {"shape": (1, 2, 3)}),
    ],
    doc="The elements in row-major order, with another shape.",
)

# reverse


def _rev_types(x: ArrayType, *, axes: tuple[int, ...]) -> ArrayType:
    """Type rule: the operand's type."""
    if any(not 0 <= axis < x.ndim for axis in axes):
        raise ShapeError(f"cannot reverse axes {axes} of {x}")
    return x.with_shape(x.shape)


rev = Primitive(
    name="rev",
    factors=factors.reverse,
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
    transpose=transposed_first(lambda ct, type, axes: rev(ct, axes=axes)),
    batch=batched_along(lambda x, axes: rev(x, axes=shifted(axes))),
    samples=lambda: [Sample((_sample((3, 4)),), {"axes": (1,)})],
    doc="Elements in reverse order along some axes.",
)

# iota, and copies


def _iota_types(*, shape: Shape, axis: int, dtype: DType) -> ArrayType:
    """Type rule: an array of ``shape`` and ``dtype``, which counts along ``axis``."""
    shape = tuple(map(operator.index, shape))  # an error for a traced value
    if not 0 <= axis < len(shape):
        raise ShapeError(f"iota counts along an axis of {shape}, not axis {axis}")
    if dtype in dtypes.COMPLEX or dtype == dtypes.bool_:
        raise DTypeError(f"iota counts in integers or floats, not {dtype}")
    return ArrayType(shape, dtype)


def _iota_reference(*, shape: Shape, axis: int, dtype: DType) -> Array:
    """Count 0, 1, 2, ... along ``axis``, by ``np.arange``."""
    count = np.arange(shape[axis]).astype(dtype)
    expanded = [1] * len(shape)
    expanded[axis] = shape[axis]
    return np.broadcast_to(count.reshape(expanded), shape)


def _iota_batch(*args: Any, **params: Any) -> Batched:
    """Raise ArgumentError: iota has no operand that could be mapped."""
    raise ArgumentError("iota has no operand to map")


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
    """Type rule: the operand's type; an error unless ``layout`` is "C" (row-major)."""
    if layout != "C":
        raise ArgumentError(
            f"relayout copies into row-major order, layout 'C', not {layout!r}: all "
            "that is computed lies so; transpose before the copy for another order"
        )
    return x.with_shape(x.shape)


relayout = Primitive(
    name="relayout",
    family="structure",
    types=_relayout_types,
    reference=lambda x, layout: np.array(x, order=layout),
    kernel=View(lambda x, layout: unchanged(x)),
    jvp=LINEAR,
    transpose=transposed_first(lambda ct, type, layout: ct),
    batch=batched_along(Emitter("relayout")),
    samples=lambda: [Sample((_sample((3, 4)),), {"layout": "C"})],
    doc="A row-major copy: layout 'C'.",
)

stop_gradient = Primitive(
    name="stop_gradient",
    factors=factors.elementwise,
    family="view",
    types=lambda x: x.plain(),
    reference=np.array,
    kernel=View(unchanged),
    jvp=ZERO_TANGENT,
    transpose=NOT_LINEAR,
    batch=batched_along(Emitter("stop_gradient")),
    samples=lambda: [
        Sample((_sample((3, 4), 23, d),), {}, differentiate=())
        for d in dtypes.SHORT_NAMES
    ],
    doc="The operand, treated as a constant by derivatives.",
)
