"""Sorting along the last axis: the sorted values, and the order that sorts.

Ascending, as NumPy sorts: NaN after all else, -0.0 and 0.0 equal, complex numbers by
their real and then their imaginary parts, False before True.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ShapeError
from arrayfn.ir import ArrayType, Atom
from arrayfn.primitives import families, indexing, views
from arrayfn.primitives.base import (
    NOT_LINEAR,
    ZERO_TANGENT,
    Array,
    Dim,
    JvpWithOutputs,
    Library,
    Primitive,
    Sample,
)
from arrayfn.primitives.windows import Windows


def take_along_last(x: Atom, indices: Atom) -> Atom:
    """The elements of ``x`` at ``indices``, which lie inside, along the last axis."""
    lead = tuple(range(x.type.ndim - 1))
    last = (len(lead),)
    shape = (*indices.type.shape, 1)
    places = views.broadcast_in_dim(indices, shape=shape, axes=(*lead, *last))
    where = Windows((), last, last, (lead, lead))
    options = {"mode": "promise_in_bounds", "fill_value": None}
    sizes = (1,) * x.type.ndim
    return indexing.gather(x, places, sizes=sizes, **options, **where.params())


def _check(name: str, x: ArrayType) -> None:
    if not x.ndim:
        raise ShapeError(f"{name} takes an array of at least one axis, not {x}")


def _sort_types(x: ArrayType) -> ArrayType:
    _check("sort", x)
    return x.with_shape(x.shape)


def _argsort_types(x: ArrayType) -> ArrayType:
    _check("argsort", x)
    return ArrayType(x.shape, dtypes.int64)


def _ordered(x: Array) -> Array:
    """In a dtype that NumPy sorts."""
    return x.astype(dtypes.float32) if x.dtype == dtypes.bfloat16 else x


def _sort_jvp(
    primals: Sequence[Atom], tangents: Sequence[Atom | None]
) -> tuple[list[Atom], list[Atom | None]]:
    # One sort, of the order, serves value and derivative.
    (x,), (t,) = primals, tangents
    if t is None:
        return [sort(x)], [None]
    order = argsort(x)
    return [take_along_last(x, order)], [take_along_last(t, order)]


def _batch_of(row: Any) -> Any:
    def batch(
        size: int, inputs: Sequence[Atom], dims: Sequence[Dim]
    ) -> tuple[list[Atom], list[Dim]]:
        return [row()(views.move_axis(inputs[0], dims[0] or 0, 0))], [0]

    return batch


def _samples() -> Iterable[Sample]:
    for position, dtype in enumerate(dtypes.SHORT_NAMES):
        x = families.random_array(dtype, (3, 9), 95 + position, -3.0, 3.0)
        yield Sample((x,), {})
    for dtype in (dtypes.float16, dtypes.float32, dtypes.float64):
        # Not to be differentiated: NaN and ties.
        values = [np.nan, 1.0, -np.inf, 0.0, -0.0, np.inf, -np.nan, 1.0, -2.0]
        yield Sample((np.array(values).astype(dtype),), {}, ())


sort = Primitive(
    name="sort",
    family="sorting",
    types=_sort_types,
    reference=lambda x: np.sort(_ordered(x), axis=-1).astype(x.dtype),
    kernel=Library("sort"),
    jvp=JvpWithOutputs(_sort_jvp),
    transpose=NOT_LINEAR,
    batch=_batch_of(lambda: sort),
    samples=_samples,
    doc="The elements along the last axis, ascending; NaN last.",
)
argsort = Primitive(
    name="argsort",
    family="sorting",
    types=_argsort_types,
    reference=lambda x: np.argsort(_ordered(x), axis=-1, kind="stable").astype(
        dtypes.int64
    ),
    kernel=Library("argsort"),
    jvp=ZERO_TANGENT,
    transpose=NOT_LINEAR,
    batch=_batch_of(lambda: argsort),
    samples=_samples,
    doc="The order that sorts along the last axis, as int64; stable.",
)

ROWS = (sort, argsort)
