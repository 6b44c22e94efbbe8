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
    """Convert ``x`` to an array of a dtype that LAPACK supports.

    Integers become float64. Raises DTypeError, about the function ``name``, for float16
    and bfloat16, which LAPACK lacks.
    """
    (value,) = together(name, x)
    return value


def together(name: str, *operands: ArrayLike) -> list[Array]:
    """Convert ``operands`` to arrays of a common dtype that LAPACK supports.

    Integers become float64. Raises DTypeError, about the function ``name``, for float16
    and bfloat16.
    """
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
    """Convert ``x``, an array or a Python number, to an array of ``dtype``."""
    type = ops.type_of_operand("asarray", x)
    if ops.is_number(x):
        return ops.full(ops.number_in(x), type.shape, dtype)
    return ops.as_array(ops.convert(x, dtype))


def matrix(name: str, x: ArrayLike) -> Array:
    """Convert ``x`` as ``inexact`` does; ShapeError for fewer than two axes."""
    x = inexact(name, x)
    check_matrix(name, x.shape)
    return x


def check_matrix(name: str, shape: Shape) -> None:
    """Raise ShapeError, about the function ``name``, for fewer than two axes."""
    if len(shape) < 2:
        raise ShapeError(
            f"{name} takes matrices, at least two axes, but was given shape {shape}",
            user_location(),
        )


def square(name: str, x: ArrayLike) -> Array:
    """Convert ``x`` as ``inexact`` does; ShapeError unless matrices are square."""
    x = matrix(name, x)
    check_square(name, x.shape)
    return x


def check_square(name: str, shape: Shape) -> None:
    """Raise ShapeError, about ``name``, unless the last two axes are equal."""
    check_matrix(name, shape)
    if shape[-1] != shape[-2]:
        raise ShapeError(
            f"{name} takes square matrices, but was given shape {shape}",
            user_location(),
        )


def adjoint(x: Array) -> Array:
    """Transpose and conjugate the matrices x (..., m, n)."""
    return conj(matrix_transpose(x))


def hermitian_part(x: Array) -> Array:
    """Return (x + x^H) / 2 for the matrices x (..., n, n)."""
    return (x + adjoint(x)) * 0.5


def from_triangle(x: Array, lower: bool, conjugate: bool = True) -> Array:
    """Return the Hermitian (or symmetric) matrices that have this triangle of x.

    ``lower`` says which triangle is used. Without ``conjugate``, the result is
    symmetric.

    >>> import numpy as np
    >>> from_triangle(np.array([[1.0, 9.0], [2.0, 3.0]]), lower=True)
    array([[1., 2.],
           [2., 3.]])
    """
    # The triangle without and with its diagonal.
    strict, whole = (tril(x, -1), tril(x)) if lower else (triu(x, 1), triu(x))
    return whole + (adjoint(strict) if conjugate else matrix_transpose(strict))


def identities(like: Array) -> Array:
    """Return identity matrices of the shape (..., m, n) and dtype of ``like``."""
    return broadcast_to(eye(*like.shape[-2:], dtype=like.dtype), like.shape)
