"""Collectives over a mapped axis: all values, sums, parts of sums.

The first operand is a member's own value. The second is its index, an input of the
function that is mapped along the axis ``axis_name`` of ``members`` members. Batching
along that axis turns them into views and sums of the mapped array, so none is left in a
Program that runs. Unmapped, which is also their NumPy reference, all members have the
same value.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import DTypeError, ShapeError
from arrayfn.ir import ArrayType, Atom
from arrayfn.primitives import discrete, families, reductions, slicing, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import (
    Array,
    Atoms,
    Batched,
    ByAxis,
    Composition,
    Dim,
    Dims,
    MappedAxis,
    Primitive,
    Sample,
    TransposeRule,
)
from arrayfn.primitives.emitters import Emitter, move_axis
from arrayfn.primitives.rules import jvp_of_first, repeated, transposed_first


def _transposed_to(name: str) -> TransposeRule:
    """The transpose rule that emits the primitive ``name``."""
    row = Emitter(name)
    return transposed_first(lambda ct, type, index, **params: row(ct, index, **params))


def _own_index(index: Atom, dim: Dim) -> Atom:
    """A member's index when another axis is mapped, along which it does not vary."""
    if dim is None:
        return index
    return views.reshape(slicing.slice_along(index, 0, 0, 1), shape=())


def _samples(leading: int) -> Iterable[Sample]:
    params = {"axis_name": "i", "members": 1}
    for seed, dtype in enumerate((dtypes.float32, dtypes.int32, dtypes.complex64)):
        shape = (1,) * leading + (3, 4)
        x = families.random_array(dtype, shape, 80 + seed, -3.0, 3.0)
        yield Sample((x, np.asarray(0, np.int32)), params)


# all_gather


def _gather_types(
    x: ArrayType, index: ArrayType, *, axis_name: str, members: int
) -> ArrayType:
    return x.with_shape((members, *x.shape))


def _gather_reference(x: Array, index: Array, *, axis_name: str, members: int) -> Array:
    return np.broadcast_to(x, (members, *np.shape(x))).copy()


def _repeated(x: Atom, index: Atom, *, axis_name: str, members: int) -> Atom:
    return repeated(members, x, None)


def _gather_batch(
    axis: MappedAxis, inputs: Atoms, dims: Dims, *, axis_name: str, members: int
) -> Batched:
    x, index = inputs
    if axis.name == axis_name:
        return [repeated(members, x, dims[0])], [None]
    index = _own_index(index, dims[1])
    if dims[0] is not None:
        x = move_axis(x, dims[0], 0)
    result = all_gather(x, index, axis_name=axis_name, members=members)
    return [result], [None if dims[0] is None else 1]


all_gather = Primitive(
    name="all_gather",
    family="collective",
    types=_gather_types,
    reference=_gather_reference,
    kernel=Composition(_repeated),
    jvp=jvp_of_first(Emitter("all_gather")),
    transpose=_transposed_to("reduce_scatter"),
    batch=ByAxis(_gather_batch),
    samples=lambda: _samples(0),
    doc="The values of all members of a mapped axis, stacked.",
)


# all_reduce


def _reduce_types(
    x: ArrayType, index: ArrayType, *, axis_name: str, members: int
) -> ArrayType:
    if x.dtype == dtypes.bool_:
        raise DTypeError(f"all_reduce adds numbers, but was given {x}")
    return x.with_shape(x.shape)


def _multiplied(x: Atom, index: Atom, *, axis_name: str, members: int) -> Atom:
    return e.mul(x, members)


def _reduce_batch(
    axis: MappedAxis, inputs: Atoms, dims: Dims, *, axis_name: str, members: int
) -> Batched:
    x, index = inputs
    if axis.name == axis_name:
        if dims[0] is None:
            return [e.mul(x, members)], [None]
        return [reductions.reduce_sum(x, axes=(dims[0],))], [None]
    index = _own_index(index, dims[1])
    return [all_reduce(x, index, axis_name=axis_name, members=members)], [dims[0]]


all_reduce = Primitive(
    name="all_reduce",
    family="collective",
    types=_reduce_types,
    reference=lambda x, index, axis_name, members: np.asarray(
        x * np.asarray(members, x.dtype)
    ),
    kernel=Composition(_multiplied),
    jvp=jvp_of_first(Emitter("all_reduce")),
    transpose=_transposed_to("all_reduce"),
    batch=ByAxis(_reduce_batch),
    samples=lambda: _samples(0),
    doc="The sum of the values of all members of a mapped axis.",
)


# reduce_scatter


def _scatter_types(
    x: ArrayType, index: ArrayType, *, axis_name: str, members: int
) -> ArrayType:
    if x.shape[:1] != (members,):
        raise ShapeError(
            f"reduce_scatter takes an array with a part for each of {members} members "
            f"along its first axis, but was given {x}"
        )
    return x.with_shape(x.shape[1:])


def _scatter_reference(
    x: Array, index: Array, *, axis_name: str, members: int
) -> Array:
    return np.asarray(x[int(index)] * np.asarray(members, x.dtype))


def _own_part(x: Atom, index: Atom, *, axis_name: str, members: int) -> Atom:
    numbers = views.iota(shape=x.type.shape, axis=0, dtype=dtypes.int32)
    zero = views.zeros(x.type)
    own = reductions.reduce_sum(
        e.select(discrete.eq(numbers, index), x, zero), axes=(0,)
    )
    return e.mul(own, members)


def _scatter_batch(
    axis: MappedAxis, inputs: Atoms, dims: Dims, *, axis_name: str, members: int
) -> Batched:
    x, index = inputs
    if axis.name == axis_name:
        if dims[0] is None:
            return [e.mul(x, members)], [0]
        return [reductions.reduce_sum(move_axis(x, dims[0], 0), axes=(0,))], [0]
    index = _own_index(index, dims[1])
    if dims[0] is not None:
        x = move_axis(x, dims[0], 1)
    result = reduce_scatter(x, index, axis_name=axis_name, members=members)
    return [result], [None if dims[0] is None else 0]


reduce_scatter = Primitive(
    name="reduce_scatter",
    family="collective",
    types=_scatter_types,
    reference=_scatter_reference,
    kernel=Composition(_own_part),
    jvp=jvp_of_first(Emitter("reduce_scatter")),
    transpose=_transposed_to("all_gather"),
    batch=ByAxis(_scatter_batch),
    samples=lambda: _samples(1),
    doc="Each member's own part of the sum of all members' values.",
)
