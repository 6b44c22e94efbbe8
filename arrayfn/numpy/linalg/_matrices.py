"""Operands of linear algebra: inexact arrays whose last two axes are matrices."""

from __future__ import annotations

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.errors import DTypeError, ShapeError, user_location
from arrayfn.ir.layout import Shape
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.arithmetic import conj
from arrayfn.numpy.creation import eye, tril, triu
from arrayfn.numpy.manipulation import broadcast_to, matrix_transpose


def inexact(name: str, x: ArrayLike) -> Array:
    """``x`` in a dtype that LAPACK supports: integers become float64.

    Raises DTypeError for float16 and bfloat16, which LAPACK lacks.
    """
    (value,) = together(name, x)
    return value


def together(name: str, *operands: ArrayLike) -> list[Array]:
    """``operands`` in a common dtype that LAPACK supports."""
    dtype = ops.common_dtype(name, operands)
    if dtype in dtypes.HALF_PRECISION:
        raise DTypeError(
            f"{name} does not compute in {dtypes.short_name(dtype)}: convert the "
            "operand to float32 first",
            user_location(),
        )
    dtype = ops.inexact_dtype(name, dtype)
    return [as_array(x, dtype) for x in operands]


def as_array(x: ArrayLike, dtype: DType) -> Array:
    """``x``, an array or a Python number, as an array of ``dtype``."""
    type = ops.type_of_operand("asarray", x)
    if ops.is_number(x):
        return ops.full(ops.number_in(x), type.shape, dtype)
    return ops.as_array(ops.convert(x, dtype))


def matrix(name: str, x: ArrayLike) -> Array:
    """``x`` as ``inexact`` matrices (..., m, n); ShapeError for less than two axes."""
    x = inexact(name, x)
    check_matrix(name, x.shape)
    return x


def check_matrix(name: str, shape: Shape) -> None:
    """ShapeError unless there are at least two axes."""
    if len(shape) < 2:
        raise ShapeError(
            f"{name} takes matrices, at least two axes, but was given shape {shape}",
            user_location(),
        )


def square(name: str, x: ArrayLike) -> Array:
    """``x`` as ``inexact`` square matrices (..., n, n)."""
    x = matrix(name, x)
    check_square(name, x.shape)
    return x


def check_square(name: str, shape: Shape) -> None:
    """ShapeError unless the last two axes are equal."""
    check_matrix(name, shape)
    if shape[-1] != shape[-2]:
        raise ShapeError(
            f"{name} takes square matrices, but was given shape {shape}",
            user_location(),
        )


def adjoint(x: Array) -> Array:
    """Return the matrices, transposed and conjugated."""
    return conj(matrix_transpose(x))


def hermitian_part(x: Array) -> Array:
    """(x + x^H) / 2."""
    return (x + adjoint(x)) * 0.5


def from_triangle(x: Array, lower: bool, conjugate: bool = True) -> Array:
    """Return the Hermitian (or symmetric) matrices with this triangle of x.

    >>> import numpy as np
    >>> from_triangle(np.array([[1.0, 9.0], [2.0, 3.0]]), lower=True)
    array([[1., 2.],
           [2., 3.]])
    """
    inner, kept = (tril(x, -1), tril(x)) if lower else (triu(x, 1), triu(x))
    return kept + (adjoint(inner) if conjugate else matrix_transpose(inner))


def identities(like: Array) -> Array:
    """Identity matrices of the shape (..., m, n) and dtype of ``like``."""
    return broadcast_to(eye(*like.shape[-2:], dtype=like.dtype), like.shape)
