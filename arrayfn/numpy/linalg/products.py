"""Products of matrices and vectors of the array API's ``linalg``; powers; expm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.ir import ArrayType
from arrayfn.numpy import _operands as ops
from arrayfn.numpy import linear_algebra
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.numpy.arithmetic import ceil, multiply
from arrayfn.numpy.comparison import where
from arrayfn.numpy.creation import eye, zeros_like
from arrayfn.numpy.index_bounds import known_value
from arrayfn.numpy.linalg import _matrices as m
from arrayfn.numpy.linalg.norms import matrix_norm
from arrayfn.numpy.linalg.solutions import inv, solve
from arrayfn.numpy.linear_algebra import matmul
from arrayfn.numpy.manipulation import expand_dims
from arrayfn.numpy.reductions import max as max_
from arrayfn.numpy.transcendental import log2
from arrayfn.primitives.control_flow_cond import cond
from arrayfn.tracing import apply
from arrayfn.tracing import trace as traced
from arrayfn.transforms.custom import stop_gradient


def cross(x: ArrayLike, y: ArrayLike, /, *, axis: int = -1) -> Array:
    """Return the cross products of vectors of three elements along ``axis``.

    The other axes broadcast. Raises ShapeError for other numbers of elements.
    """
    return linear_algebra.cross(x, y, axis=axis)


def outer(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Multiply each element of x (n,) by each element of y (m,), giving (n, m).

    Raises ShapeError for other ranks.
    """
    for operand in (x, y):
        type = ops.type_of_operand("outer", operand)
        if type.ndim != 1:
            raise ShapeError(
                f"outer takes vectors, but was given {type}; ravel it, or use "
                "numpy.outer",
                user_location(),
            )
    return multiply(expand_dims(x, 1), y)


def diagonal(x: ArrayLike, /, *, offset: int = 0) -> Array:
    """Return diagonal ``offset`` of the matrices x (..., m, n), along the last axis.

    A positive offset is above the main diagonal.
    """
    return linear_algebra.diagonal(x, offset, -2, -1)


def trace(x: ArrayLike, /, *, offset: int = 0, dtype: DTypeLike = None) -> Array:
    """Return the sum of diagonal ``offset`` of the matrices x (..., m, n), shape (...).

    ``dtype`` is that of ``sum``.
    """
    return linear_algebra.trace(x, offset, -2, -1, dtype)


def multi_dot(
    arrays: Sequence[ArrayLike], *, out: None = None, precision: str | None = None
) -> Array:
    """Return the product of matrices, multiplied in the cheapest order.

    The first may be a vector, which is a row. The last may be a vector, which is a
    column. The result lacks their axes. ``precision`` is as for ``matmul``. Raises
    ArgumentError for fewer than two arrays, ShapeError for other ranks or extents.

    >>> import numpy as np
    >>> multi_dot([np.ones((2, 3)), np.ones((3, 5)), np.ones(5)])
    array([15., 15.])
    """
    ops.refuse_out("multi_dot", out)
    if len(arrays) < 2:
        raise ArgumentError("multi_dot takes two arrays or more", user_location())
    shapes = [ops.type_of_operand("multi_dot", x).shape for x in arrays]
    inner = shapes[1:-1]
    ends = (shapes[0], shapes[-1])
    if any(len(s) != 2 for s in inner) or any(len(s) not in (1, 2) for s in ends):
        raise ShapeError(
            f"multi_dot takes matrices, and vectors at its ends; got shapes {shapes}",
            user_location(),
        )
    # Extents of the chain: matrix k is extents[k] by extents[k + 1].
    extents = [1 if len(shapes[0]) == 1 else shapes[0][0]]
    extents += [s[0] for s in shapes[1:]]
    extents.append(1 if len(shapes[-1]) == 1 else shapes[-1][1])
    splits = _best_splits(extents)

    def product(first: int, last: int) -> Array:
        """Return the product of matrices ``first`` to ``last`` (inclusive)."""
        if first == last:
            return arrays[first]
        split = splits[first, last]  # the last matrix of the left factor
        left, right = product(first, split), product(split + 1, last)
        return matmul(left, right, precision=precision)

    return product(0, len(arrays) - 1)


def _best_splits(extents: Sequence[int]) -> dict[tuple[int, int], int]:
    """Return where to split each part of a chain of products (dynamic programming).

    Matrix k has shape ``extents[k]`` x ``extents[k + 1]``. The result maps each pair
    (first, last) to the last matrix of the left part. The cost of a product is its
    number of multiplications.
    """
    count = len(extents) - 1
    costs = {(k, k): 0 for k in range(count)}
    splits: dict[tuple[int, int], int] = {}
    for length in range(1, count):
        for first in range(count - length):
            last = first + length
            outside = extents[first] * extents[last + 1]
            # The smallest (cost, split after k).
            costs[first, last], splits[first, last] = min(
                (
                    costs[first, k] + costs[k + 1, last] + outside * extents[k + 1],
                    k,
                )
                for k in range(first, last)
            )
    return splits


def matrix_power(a: ArrayLike, n: int) -> Array:
    """Return the n-th power of ``a`` (..., m, m), in its dtype.

    A negative n gives a power of the inverse. Raises ShapeError unless ``a`` is square.
    """
    m.check_square("matrix_power", ops.type_of_operand("matrix_power", a).shape)
    n = ops.whole(n)
    if n < 0:
        return linear_algebra.matrix_power(inv(a), -n)
    return linear_algebra.matrix_power(a, n)


# Coefficients of the numerators of the diagonal Pade approximants of order 13 (float64)
# and 7 (float32), and the norms up to which they are exact to rounding, by bytes of a
# real number: Higham, The scaling and squaring method for the matrix exponential
# revisited (2005), table 2.3 and equation 2.8.
_PADE = (
    64764752532480000.0,
    32382376266240000.0,
    7771770303897600.0,
    1187353796428800.0,
    129060195264000.0,
    10559470521600.0,
    670442572800.0,
    33522128640.0,
    1323241920.0,
    40840800.0,
    960960.0,
    16380.0,
    182.0,
    1.0,
)
_PADE_NORM = {4: 3.925724783138660, 8: 5.371920351148152}
_PADE_7 = (
    17297280.0,
    8648640.0,
    1995840.0,
    277200.0,
    25200.0,
    1512.0,
    56.0,
    1.0,
)


def expm(A: ArrayLike, *, max_squarings: int = 16) -> Array:
    """Return the exponential (..., n, n) of the matrices A, by scaling and squaring.

    exp(A) = exp(A / 2**k)**(2**k), where k makes the norm of A / 2**k small enough for
    a Pade approximant. The result is NaN if the 1-norm of a matrix is too large for
    ``max_squarings``. With the default, the limit is 3.5e5 in float64 and 2.6e5 in
    float32. Each further squaring doubles the limit. Integers give float64. Raises
    ShapeError unless A is square.

    >>> import numpy as np
    >>> np.round(expm(np.array([[0.0, 1.0], [0.0, 0.0]])), 12)
    array([[1., 1.],
           [0., 1.]])
    """
    a = m.square("expm", A)
    is_single = a.dtype.itemsize == (8 if a.dtype.kind == "c" else 4)
    limit = _PADE_NORM[4 if is_single else 8]  # by the bytes of a real number
    size = stop_gradient(matrix_norm(a, ord=1))
    squarings = ceil(log2(where(size > limit, size / limit, 1.0)))
    too_great = squarings > max_squarings
    scaled = a * (2.0**-squarings)[..., None, None].astype(a.dtype)
    power = _approximant(scaled, _PADE_7 if is_single else _PADE)
    known = known_value(squarings)
    if known is not None:
        max_squarings = int(np.clip(np.max(known, initial=0), 0, max_squarings))
        power = _squared(power, squarings, 0, max_squarings)
    else:
        # Rounds of squarings: 0 to 1, 1 to 2, 2 to 4, 4 to 8 ... Rounds that no matrix
        # needs are skipped.
        done = 0
        while done < max_squarings:
            stop = min(max(1, 2 * done), max_squarings)
            needed = ops.convert(max_(squarings, initial=0) > done, dtypes.int32)
            power = _squared_if(needed, power, squarings, done, stop)
            done = stop
    return where(too_great[..., None, None], float("nan"), power)


def _squared(power: Array, squarings: Array, start: int, stop: int) -> Array:
    """Square each matrix of ``power``, in the steps ``start`` to ``stop`` (exclusive).

    ``squarings`` (...) is the total number of squarings of each matrix, from step 0 on.
    So a matrix is squared in step k if its number is larger than k.
    """
    for k in range(start, stop):
        doubled = (squarings > k)[..., None, None]
        # Multiply only matrices that are squared: others could overflow, and make the
        # gradient NaN.
        half = where(doubled, power, zeros_like(power))
        power = where(doubled, matmul(half, half), power)
    return power


def _squared_if(
    needed: Array, power: Array, squarings: Array, start: int, stop: int
) -> Array:
    """Call ``_squared`` if ``needed`` (int32) is 1; return ``power`` if it is 0.

    The other parameters are those of ``_squared``.
    """

    def kept(power: Array, squarings: Array) -> list[Array]:
        """Return the matrices unchanged."""
        return [power]

    def squared(power: Array, squarings: Array) -> list[Array]:
        """Square the matrices in the steps of this round."""
        return [_squared(power, squarings, start, stop)]

    types = [ArrayType(x.shape, x.dtype) for x in (power, squarings)]
    branches = tuple(
        traced(branch, types, name=branch.__name__).program
        for branch in (kept, squared)
    )
    return apply(cond, needed, power, squarings, branches=branches)


def _approximant(x: Array, coefficients: tuple[float, ...]) -> Array:
    """Return the diagonal Pade approximant of the exponential of matrices ``x``.

    ``coefficients`` are those of its numerator, even(x) + odd(x). The denominator is
    even(x) - odd(x), with the even and odd powers of x.
    """
    unit = eye(x.shape[-1], dtype=x.dtype)
    square = matmul(x, x)
    odd = coefficients[1] * unit
    even = coefficients[0] * unit
    power = unit
    for k in range(2, len(coefficients), 2):
        power = square if k == 2 else matmul(power, square)
        even = even + coefficients[k] * power
        odd = odd + coefficients[k + 1] * power
    odd = matmul(x, odd)
    return solve(even - odd, even + odd)
