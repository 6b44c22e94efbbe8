"""Sorting along the last axis: sort, argsort and top_k.

The order is NumPy's: ascending, NaN last, -0.0 and 0.0 equal, complex numbers by their
real and then their imaginary parts, False before True.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import DTypeError, ShapeError
from arrayfn.ir import ArrayType, Atom
from arrayfn.primitives import factors, families, indexing, views
from arrayfn.primitives.base import (
    NOT_LINEAR,
    ZERO_TANGENT,
    Array,
    Atoms,
    JvpWithOutputs,
    Library,
    Primitive,
    Sample,
    Tangents,
    WithTangents,
)
from arrayfn.primitives.emitters import Emitter
from arrayfn.primitives.rules import batched_along, jvp_alone
from arrayfn.primitives.windows import Windows


def take_along_last(x: Atom, indices: Atom) -> Atom:
    """Gather the elements of ``x`` at ``indices`` along the last axis.

    This is ``np.take_along_axis(x, indices, -1)`` for indices that are in bounds, and
    unique in each row.
    """
    lead = tuple(range(x.type.ndim - 1))
    last = (len(lead),)
    shape = (*indices.type.shape, 1)
    indexed = views.broadcast_in_dim(indices, shape=shape, axes=(*lead, *last))
    windows = Windows(
        window_axes=(), collapsed_axes=last, indexed_axes=last, batch=(lead, lead)
    )
    options = {"mode": "promise_in_bounds", "fill_value": None, "unique_indices": True}
    sizes = (1,) * x.type.ndim
    return indexing.gather(x, indexed, sizes=sizes, **options, **windows.params())


def _check(name: str, x: ArrayType) -> None:
    """Raise an error unless ``x`` has an axis to sort along, and a dtype with an order.

    ``name`` is the primitive's name, for the message.
    """
    if x.dtype in dtypes.STORAGE:
        raise dtypes.storage_error(name, x.dtype)
    if not x.ndim:
        raise ShapeError(f"{name} takes an array of at least one axis, not {x}")


def _sort_types(x: ArrayType) -> ArrayType:
    """Type rule: the operand's type."""
    _check("sort", x)
    return x.with_shape(x.shape)


def _argsort_types(x: ArrayType) -> ArrayType:
    """Type rule: int64 positions, in the operand's shape."""
    _check("argsort", x)
    return ArrayType(x.shape, dtypes.int64)


def _ordered(x: Array) -> Array:
    """Convert ``x`` to a dtype that NumPy sorts: bfloat16 to float32."""
    return x.astype(dtypes.float32) if x.dtype == dtypes.bfloat16 else x


def _sort_jvp(primals: Atoms, tangents: Tangents) -> WithTangents:
    """The jvp rule: ``d sort(x) = dx[argsort(x)]``; the values are taken likewise."""
    (x,), (t,) = primals, tangents
    assert t is not None
    order = argsort(x)
    return [take_along_last(x, order)], [take_along_last(t, order)]


def _samples() -> Iterable[Sample]:
    """Yield rows of each dtype, and with NaN and ties, for the table tests."""
    for position, dtype in enumerate(dtypes.COMPUTED):
        x = families.random_array(dtype, (3, 9), 95 + position)
        yield Sample((x,), {})
    for dtype in (dtypes.float16, dtypes.float32, dtypes.float64):
        # NaN and ties, at which it is not differentiated.
        values = [np.nan, 1.0, -np.inf, 0.0, -0.0, np.inf, -np.nan, 1.0, -2.0]
        x = np.array(values).astype(dtype)
        yield Sample((x,), {}, differentiate=())


sort = Primitive(
    name="sort",
    factors=factors.last_axis_whole,
    family="sorting",
    types=_sort_types,
    reference=lambda x: np.sort(_ordered(x), axis=-1).astype(x.dtype),
    kernel=Library("sort"),
    jvp=JvpWithOutputs(_sort_jvp),
    transpose=NOT_LINEAR,
    batch=batched_along(Emitter("sort")),
    samples=_samples,
    doc="The elements along the last axis, ascending; NaN last.",
)
argsort = Primitive(
    name="argsort",
    factors=factors.last_axis_whole,
    family="sorting",
    types=_argsort_types,
    reference=lambda x: np.argsort(_ordered(x), axis=-1, kind="stable").astype(
        dtypes.int64
    ),
    kernel=Library("argsort"),
    jvp=ZERO_TANGENT,
    transpose=NOT_LINEAR,
    batch=batched_along(Emitter("argsort")),
    samples=_samples,
    doc="The order that sorts along the last axis, as int64; stable.",
)


# top_k


def _top_k_types(x: ArrayType, *, k: int) -> tuple[ArrayType, ArrayType]:
    """Type rule: the ``k`` largest elements of each row, and their int32 positions."""
    _check("top_k", x)
    if x.dtype in dtypes.COMPLEX:
        raise DTypeError(f"top_k is not defined for {x}")
    if not 0 <= k <= x.shape[-1]:
        raise ShapeError(f"top_k takes 0 to {x.shape[-1]} elements of {x}, not {k}")
    shape = (*x.shape[:-1], k)
    return x.with_shape(shape), ArrayType(shape, dtypes.int32)


def _top_k_reference(x: Array, *, k: int) -> tuple[Array, Array]:
    """Find the ``k`` largest elements of each row and their positions, by argsort."""
    # Sort the reversed row ascending and reverse the result, so that equal elements
    # keep their order. ``last`` minus a position is the position before reversal.
    values = _ordered(x)[..., ::-1]
    last = x.shape[-1] - 1
    order = last - np.argsort(values, axis=-1, kind="stable")[..., ::-1][..., :k]
    return np.take_along_axis(x, order, -1), order.astype(dtypes.int32)


def _top_k_samples() -> Iterable[Sample]:
    """Yield the samples of sort, not complex, with ``k`` from 1 to 4."""
    for number, sample in enumerate(_samples()):
        (x,) = sample.inputs
        if x.dtype not in dtypes.COMPLEX:
            wrt = sample.differentiate
            yield Sample((x,), {"k": 1 + number % 4}, differentiate=wrt)


top_k = Primitive(
    name="top_k",
    family="sorting",
    types=_top_k_types,
    reference=_top_k_reference,
    kernel=Library("top_k"),
    jvp=jvp_alone(lambda x, y, positions, t, k: [take_along_last(t, positions), None]),
    transpose=NOT_LINEAR,
    batch=batched_along(Emitter("top_k")),
    samples=_top_k_samples,
    doc="The k largest elements along the last axis, descending, and their positions. "
    "NaN counts as largest; equal elements keep their order.",
)
