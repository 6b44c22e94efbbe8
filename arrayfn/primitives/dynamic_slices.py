"""Reads and updates of slices with fixed extents at computed positions.

A slice that exceeds the array is moved inside, as in JAX.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import DTypeError, ShapeError
from arrayfn.ir import ArrayType, Atom, Literal
from arrayfn.ir.layout import Shape
from arrayfn.primitives import factors, families, indexing, slicing, views
from arrayfn.primitives.base import (
    Array,
    Atoms,
    Batched,
    Dims,
    Linear,
    Operands,
    Primitive,
    Sample,
    Tangents,
    Template,
)
from arrayfn.primitives.emitters import Emitter
from arrayfn.primitives.rules import (
    all_mapped,
    jvp_of_first,
    mapped_axes_first,
    not_linear,
    transposed_first,
)
from arrayfn.primitives.windows import Windows


def _check_starts(
    name: str, x: ArrayType, sizes: Shape, starts: Sequence[ArrayType]
) -> None:
    """Raise DTypeError or ShapeError unless a slice of ``x`` can be read.

    ``name`` is the primitive's name, for the message. ``starts`` are the types of the
    start indices, which must be integer scalars of one dtype, one for each axis. The
    extents ``sizes`` must not exceed those of ``x``.
    """
    if any(t.shape or t.dtype not in dtypes.INTEGERS for t in starts) or any(
        t.dtype != starts[0].dtype for t in starts
    ):
        raise DTypeError(
            f"{name} takes integer scalars of one dtype as starts, but was given "
            + ", ".join(map(str, starts))
        )
    if len(starts) != x.ndim:
        raise ShapeError(f"{name}: {x} takes {x.ndim} starts, not {len(starts)}")
    if len(sizes) != x.ndim or any(
        not 0 <= size <= extent for size, extent in zip(sizes, x.shape, strict=False)
    ):
        raise ShapeError(f"{name}: a slice of {sizes} does not fit {x}")


def _bounds(x: Array, sizes: Shape, starts: Sequence[Array]) -> tuple[slice, ...]:
    """Return a slice object for each axis of ``x``, clamped to lie inside ``x``.

    A slice has the extent in ``sizes`` and begins at the index in ``starts``.
    """
    begins = (
        min(max(int(start), 0), extent - size)
        for start, extent, size in zip(starts, x.shape, sizes, strict=True)
    )
    return tuple(slice(b, b + n) for b, n in zip(begins, sizes, strict=True))


def _index_vectors(axis_size: int, starts: Sequence[Atom], dims: Dims) -> Atom:
    """Return the start indices of all members as a matrix, for a gather or scatter.

    Row k has member k's start index along each axis. ``starts`` are scalars, or vectors
    of ``axis_size`` elements where ``dims`` is not None.
    """
    columns = [
        views.broadcast_in_dim(
            start, shape=(axis_size, 1), axes=() if dim is None else (0,)
        )
        for start, dim in zip(starts, dims, strict=True)
    ]
    return columns[0] if len(columns) == 1 else slicing.concatenate(*columns, axis=1)


def _with_mapped_axis(starts: Sequence[Atom]) -> list[Atom]:
    """Return ``starts`` with a 0 in front, the start along the mapped axis 0."""
    dtype = starts[0].type.dtype if starts else dtypes.int64
    return [Literal(0, dtype), *starts]


def _slice_windows(ndim: int, mapped: bool) -> Windows:
    """Return the geometry of a gather that reads one slice per index vector.

    A slice has ``ndim`` axes, which follow the axis of members in the result. If the
    operand is ``mapped``, each member reads its own array: the operand's axis 0 is a
    batch axis that belongs to axis 0 of the indices.
    """
    axes = tuple(range(1, ndim + 1))
    if mapped:
        return Windows(
            window_axes=axes,
            collapsed_axes=(),
            indexed_axes=axes,
            batch=((0,), (0,)),
        )
    return Windows(window_axes=axes, collapsed_axes=(), indexed_axes=tuple(range(ndim)))


# dynamic_slice


def _slice_types(x: ArrayType, *starts: ArrayType, sizes: Shape) -> ArrayType:
    """Type rule: a slice with extents ``sizes``."""
    _check_starts("dynamic_slice", x, sizes, starts)
    return x.with_shape(sizes)


def _slice_batch(axis_size: int, inputs: Atoms, dims: Dims, *, sizes: Shape) -> Batched:
    """Batching rule: a slice with one more axis; a gather if starts are mapped."""
    x, *_ = mapped_axes_first(inputs, dims)
    starts = inputs[1:]
    if all(dim is None for dim in dims[1:]):
        value = dynamic_slice(x, *_with_mapped_axis(starts), sizes=(axis_size, *sizes))
        return [value], [0]
    mapped = dims[0] is not None
    value = indexing.gather(
        x,
        _index_vectors(axis_size, starts, dims[1:]),
        sizes=(1, *sizes) if mapped else sizes,
        mode="clip",
        fill_value=None,
        **_slice_windows(len(sizes), mapped).params(),
    )
    return [value], [0]


def _samples(update: bool) -> Iterable[Sample]:
    """Yield samples of dynamic_slice, or with ``update`` of dynamic_update_slice."""
    for dtype in dtypes.SHORT_NAMES:
        x = families.random_array(dtype, (4, 5), 81)
        y = families.random_array(dtype, (2, 3), 82)
        for starts in ((1, 2), (3, -1)):
            start_arrays = tuple(np.asarray(start, np.int32) for start in starts)
            if update:
                yield Sample((x, y, *start_arrays), {})
            else:
                yield Sample((x, *start_arrays), {"sizes": (2, 3)})


dynamic_slice = Primitive(
    name="dynamic_slice",
    factors=factors.dynamic_slice,
    family="indexing",
    types=_slice_types,
    reference=lambda x, *starts, sizes: np.array(x[_bounds(x, sizes, starts)]),
    kernel=Template("dynamic_slice"),
    jvp=jvp_of_first(Emitter("dynamic_slice")),
    transpose=transposed_first(
        lambda ct, type, *starts, sizes: dynamic_update_slice(
            views.zeros(type), ct, *starts
        )
    ),
    batch=_slice_batch,
    samples=lambda: _samples(update=False),
    doc="The slice of extents sizes that begins at the scalar operands, one per axis.",
)


# dynamic_update_slice


def _update_types(x: ArrayType, update: ArrayType, *starts: ArrayType) -> ArrayType:
    """Type rule: the type of ``x``, into which ``update`` must fit."""
    families.common_dtype("dynamic_update_slice", (x, update), dtypes.ALL)
    _check_starts("dynamic_update_slice", x, update.shape, starts)
    return x.with_shape(x.shape)


def _update_reference(x: Array, update: Array, *starts: Array) -> Array:
    """Return a copy of ``x`` with ``update`` written at ``starts``, clamped."""
    result = np.array(x, order="C")
    result[_bounds(x, update.shape, starts)] = update
    return result


def _update_jvp(primals: Atoms, outputs: Atoms, tangents: Tangents) -> Tangents:
    """The jvp rule: ``d update(x, u) = update(dx, du)``, at the same starts."""
    dense_tangents = views.dense(tangents[:2], [x.type for x in primals[:2]])
    return [dynamic_update_slice(*dense_tangents, *primals[2:])]


def _update_transpose(cotangents: Tangents, inputs: Operands) -> Tangents:
    """Transpose rule: ``ct_x = update(ct, 0)`` and ``ct_u = slice(ct)``."""
    (ct,), (x, update, *starts) = cotangents, inputs
    assert ct is not None
    start_values = not_linear(starts)
    to_x = to_update = None
    if isinstance(x, Linear):
        to_x = dynamic_update_slice(ct, views.zeros(update.type), *start_values)
    if isinstance(update, Linear):
        to_update = dynamic_slice(ct, *start_values, sizes=update.type.shape)
    return [to_x, to_update, *[None] * len(starts)]


def _update_batch(axis_size: int, inputs: Atoms, dims: Dims, **params: Any) -> Batched:
    """Batching rule: an update with one more axis; a scatter if starts are mapped."""
    x, update = all_mapped(axis_size, inputs[:2], dims[:2])
    starts = inputs[2:]
    if all(dim is None for dim in dims[2:]):
        return [dynamic_update_slice(x, update, *_with_mapped_axis(starts))], [0]
    value = indexing.scatter(
        x,
        _index_vectors(axis_size, starts, dims[2:]),
        update,
        mode="clip",
        unique_indices=True,
        **_slice_windows(x.type.ndim - 1, mapped=True).params(),
    )
    return [value], [0]


dynamic_update_slice = Primitive(
    name="dynamic_update_slice",
    factors=factors.dynamic_update_slice,
    family="indexing",
    types=_update_types,
    reference=_update_reference,
    kernel=Template("dynamic_update_slice", in_place=True),
    jvp=_update_jvp,
    transpose=_update_transpose,
    batch=_update_batch,
    samples=lambda: _samples(update=True),
    doc="The first operand with the second written at the scalar operands.",
)
