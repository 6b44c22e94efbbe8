"""Helpers for the rules of linear algebra: products, transposes, triangles, masks.

The last two axes of an array are its matrices; the others are the batch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.errors import DTypeError, ShapeError
from arrayfn.ir import ArrayType, Atom
from arrayfn.ir.layout import Shape
from arrayfn.primitives import complex_numbers, conversion, discrete, slicing, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import (
    NOT_LINEAR,
    Array,
    JvpRule,
    JvpWithOutputs,
    Library,
    Marker,
    Primitive,
    Sample,
    Tolerance,
)
from arrayfn.primitives.contraction import dot_general
from arrayfn.primitives.emitters import Emitter
from arrayfn.primitives.families import random_array
from arrayfn.primitives.indexing import gather, scatter
from arrayfn.primitives.reductions import reduce_sum
from arrayfn.primitives.rules import batched_along
from arrayfn.primitives.windows import Windows

DTYPES = (dtypes.float32, dtypes.float64, dtypes.complex64, dtypes.complex128)


# Types.


def check_matrix(name: str, x: ArrayType) -> tuple[int, int]:
    """Return ``(rows, columns)`` of the matrices of ``x``.

    Raises DTypeError for a dtype that is not in DTYPES, and ShapeError for fewer than
    two axes. ``name`` is the primitive's, for the message.
    """
    if x.dtype not in DTYPES:
        raise DTypeError(
            f"{name} is of float32, float64, complex64 or complex128 matrices, not of "
            f"{x}: convert them first"
        )
    if x.ndim < 2:
        raise ShapeError(f"{name} is of matrices, at least two axes; got {x}")
    return x.shape[-2], x.shape[-1]


def check_square(name: str, x: ArrayType) -> int:
    """Return the extent of the square matrices of ``x``.

    Raises ShapeError if they are not square; see also ``check_matrix``.
    """
    rows, columns = check_matrix(name, x)
    if rows != columns:
        raise ShapeError(f"{name} is of square matrices; got {x}")
    return rows


# Values.


def multiply(x: Atom, y: Atom) -> Atom:
    """Emit the matrix products ``x @ y`` of two arrays with the same batch axes."""
    batch = tuple(range(x.type.ndim - 2))
    axes = (len(batch) + 1,), (len(batch),)
    return dot_general(x, y, contract=axes, batch=(batch, batch))


def transpose_matrices(x: Atom) -> Atom:
    """Emit the transposes of the matrices of ``x``: swap the last two axes."""
    order = (*range(x.type.ndim - 2), x.type.ndim - 1, x.type.ndim - 2)
    return views.transpose(x, permutation=order)


def conjugate(x: Atom) -> Atom:
    """Emit the complex conjugate; return a real array as it is."""
    return complex_numbers.conj(x) if x.type.dtype in dtypes.COMPLEX else x


def adjoint(x: Atom) -> Atom:
    """Emit the conjugate transposes of the matrices of ``x``."""
    return conjugate(transpose_matrices(x))


def real_part(x: Atom) -> Atom:
    """Emit the real part; return a real array as it is."""
    return complex_numbers.real(x) if x.type.dtype in dtypes.COMPLEX else x


def constant(value: float, like: Atom) -> Atom:
    """Return the number ``value`` as a scalar of the dtype of ``like``."""
    return conversion.literal(value, like.type.dtype)


def integer(value: int) -> Atom:
    """Return the int32 Literal ``value``, for comparisons with ``positions``."""
    return conversion.literal(value, dtypes.int32)


def scale(x: Atom, factor: float) -> Atom:
    """Emit ``x * factor``."""
    return e.mul(x, constant(factor, x))


def positions(shape: Shape) -> tuple[Atom, Atom]:
    """Emit two int32 arrays of ``shape``: each element's row and column number."""
    axes = len(shape) - 2, len(shape) - 1
    row, column = (
        views.iota(shape=tuple(shape), axis=axis, dtype=dtypes.int32) for axis in axes
    )
    return row, column


def lower_part(x: Atom, diagonal: int = 0) -> Atom:
    """Emit the matrices of ``x`` with zeros above a diagonal, as ``np.tril``.

    ``diagonal`` is 0 for the main diagonal, and positive above it.
    """
    row, column = positions(x.type.shape)
    shifted = e.add(row, integer(diagonal))
    return e.select(discrete.le(column, shifted), x, constant(0, x))


def upper_part(x: Atom, diagonal: int = 0) -> Atom:
    """Emit the matrices of ``x`` with zeros below a diagonal, as ``np.triu``.

    ``diagonal`` is 0 for the main diagonal, and positive above it.
    """
    row, column = positions(x.type.shape)
    shifted = e.add(row, integer(diagonal))
    return e.select(discrete.ge(column, shifted), x, constant(0, x))


def hermitian(x: Atom) -> Atom:
    """Emit the Hermitian matrices that have the lower triangle of ``x``.

    The imaginary part of the diagonal is dropped.
    """
    lower, diagonal = lower_part(x, -1), diagonal_part(x)
    if diagonal.type.dtype in dtypes.COMPLEX:
        diagonal = scale(e.add(diagonal, conjugate(diagonal)), 0.5)
    return e.add(e.add(lower, adjoint(lower)), diagonal)


def diagonal_part(x: Atom) -> Atom:
    """Emit the matrices of ``x`` with zeros outside of the diagonal."""
    row, column = positions(x.type.shape)
    return e.select(discrete.eq(row, column), x, constant(0, x))


def identity(like: ArrayType) -> Atom:
    """Emit identity matrices of the type ``like``."""
    row, column = positions(like.shape)
    return conversion.convert(discrete.eq(row, column), like.dtype)


def as_column(x: Atom, columns: int) -> Atom:
    """Repeat vectors ``[..., n]`` as columns of matrices ``[..., n, columns]``."""
    shape = (*x.type.shape, columns)
    return views.broadcast_in_dim(x, shape=shape, axes=tuple(range(x.type.ndim)))


def as_row(x: Atom, rows: int) -> Atom:
    """Repeat vectors ``[..., n]`` as rows of matrices ``[..., rows, n]``."""
    ndim = x.type.ndim
    shape = (*x.type.shape[:-1], rows, x.type.shape[-1])
    axes = (*range(ndim - 1), ndim)
    return views.broadcast_in_dim(x, shape=shape, axes=axes)


def columns(x: Atom, start: int, stop: int) -> Atom:
    """Slice columns ``start`` to ``stop`` (excluded) of matrices."""
    return slicing.slice_along(x, x.type.ndim - 1, start, stop)


def rows(x: Atom, start: int, stop: int) -> Atom:
    """Slice rows ``start`` to ``stop`` (excluded) of matrices."""
    return slicing.slice_along(x, x.type.ndim - 2, start, stop)


def padded(x: Atom, rows: int, columns: int) -> Atom:
    """Pad matrices with zeros below and to the right, to ``rows`` and ``columns``."""
    extents = x.type.shape[-2:]
    if extents == (rows, columns):
        return x
    ends = (rows - extents[0], columns - extents[1])
    config = (*((0, 0, 0),) * (x.type.ndim - 2), *((0, end, 0) for end in ends))
    return slicing.pad(x, constant(0, x), config=config)


def take_rows(x: Atom, order: Atom) -> Atom:
    """Gather rows: row i of each result matrix is row ``order[..., i]`` of ``x``.

    ``order`` has int32 row numbers, which must be in bounds, for each matrix of the
    batch.
    """
    shape = (*order.type.shape, x.type.shape[-1])
    if 0 in shape:
        return views.zeros(x.type.with_shape(shape))
    batch = tuple(range(x.type.ndim - 2))
    count = len(batch)
    geometry = Windows(
        window_axes=(count + 1,),
        collapsed_axes=(count,),
        indexed_axes=(count,),
        batch=(batch, batch),
    )
    indices = views.reshape(order, shape=(*order.type.shape, 1))
    return gather(
        x,
        indices,
        sizes=(1,) * (count + 1) + x.type.shape[-1:],
        mode="promise_in_bounds",
        fill_value=None,
        **geometry.params(),
    )


def inverse_permutation(order: Atom) -> Atom:
    """Emit the inverses of permutations ``[..., n]``: ``result[order[i]] = i``."""
    shape = order.type.shape
    if 0 in shape:
        return order
    axes = tuple(range(len(shape)))
    count = views.iota(shape=shape, axis=len(shape) - 1, dtype=dtypes.int32)
    return scatter(
        views.zeros(order.type),
        views.reshape(order, shape=(*shape, 1)),
        count,
        mode="clip",
        unique_indices=True,
        **Windows(
            window_axes=(),
            collapsed_axes=axes[-1:],
            indexed_axes=axes[-1:],
            batch=(axes[:-1], axes[:-1]),
        ).params(),
    )


def diagonal(x: Atom) -> Atom:
    """Emit the diagonals of square matrices, as vectors."""
    return reduce_sum(diagonal_part(x), axes=(x.type.ndim - 1,))


# Primitives, references and samples.


def matrix_primitive(
    name: str,
    *,
    types: Callable[..., ArrayType | tuple[ArrayType, ...]],
    reference: Callable[..., Any],
    jvp: JvpRule | JvpWithOutputs | Marker,
    samples: Callable[[], Iterable[Sample]],
    tolerance: Tolerance = Tolerance(),
    in_place: bool = False,
    doc: str,
) -> Primitive:
    """Make a Primitive that a library computes for each matrix of a batch.

    Args:
        name: the name of the primitive and of its library call.
        types: the type rule.
        reference: the NumPy reference.
        jvp: the jvp rule, or a marker.
        samples: inputs for the table tests.
        tolerance: the relative error that the table tests allow.
        in_place: whether the library overwrites the first operand by the first output.
        doc: what the primitive computes.
    """
    return Primitive(
        name=name,
        family="linear algebra",
        types=types,
        reference=reference,
        kernel=Library(name, in_place=in_place),
        jvp=jvp,
        transpose=NOT_LINEAR,
        batch=batched_along(Emitter(name)),
        samples=samples,
        tolerance=tolerance,
        doc=doc,
    )


def lapack(name: str, dtype: DType) -> Callable[..., Any]:
    """Return the routine ``name`` of SciPy's LAPACK for arrays of ``dtype``.

    SciPy takes a quarter of a second to import, so it is imported when needed.
    """
    (function,) = importlib.import_module("scipy.linalg.lapack").get_lapack_funcs(
        (name,), dtype=dtype
    )
    return function


def each(x: Array) -> Array:
    """Reshape the matrices of ``x`` to one array ``[count, rows, columns]``."""
    count = int(np.prod(x.shape[:-2]))
    return x.reshape((count, *x.shape[-2:]))


def random_matrices(dtype: DType, shape: Shape, seed: int, **bounds: Any) -> Array:
    """Return random matrices, uniform between the bounds ``low`` and ``high``."""
    limits = {"low": -1.5, "high": 1.5, **bounds}
    return random_array(dtype, shape, seed, limits["low"], limits["high"])
