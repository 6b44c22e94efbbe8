"""Elementwise arithmetic and selection; see also ``discrete`` and ``special``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.errors import DTypeError
from arrayfn.ir import ArrayType, Atom, Literal
from arrayfn.primitives import conversion, discrete, emitters
from arrayfn.primitives.base import (
    LINEAR,
    ZERO_TANGENT,
    Atoms,
    Linear,
    Operands,
    Sample,
    Tangents,
    not_differentiable,
    value_of,
)
from arrayfn.primitives.families import (
    broadcast_scalar,
    common_dtype,
    common_shape,
    elementwise,
    random_array,
    sum_to_scalar,
    transpose_each,
)
from arrayfn.primitives.rules import not_none

# Arithmetic. Addition and subtraction are linear in all operands together.


def _jvp_of_sum(primals: Atoms, outputs: Atoms, tangents: Tangents) -> Tangents:
    """The jvp rule of ``add``: ``d(x + y) = dx + dy``; a tangent of None is zero."""
    x, *rest = not_none(tangents)
    total = add(x, *rest) if rest else x
    return [broadcast_scalar(total, outputs[0].type.shape)]


def _jvp_of_difference(primals: Atoms, outputs: Atoms, tangents: Tangents) -> Tangents:
    """The jvp rule of ``sub``: ``d(x - y) = dx - dy``; a tangent of None is zero."""
    x, y = tangents
    total = x if y is None else neg(y) if x is None else sub(x, y)
    assert total is not None
    return [broadcast_scalar(total, outputs[0].type.shape)]


def _power(x: Any, y: Any) -> Any:
    """Return ``x**y``; for integers, a negative power truncated towards 0.

    NumPy raises an error for negative powers of integers. A kernel cannot raise, so
    this reference does not either.
    """
    if x.dtype not in dtypes.SIGNED:
        return np.power(x, y)
    # 1 / x**n truncates to 0 unless x is 1 or -1. 1 - 2 * (y % 2) is (-1)**y.
    truncated = np.where(x == 1, 1, np.where(x == -1, 1 - 2 * (y % 2), 0))
    return np.where(y < 0, truncated, np.power(x, np.maximum(y, 0))).astype(x.dtype)


neg = elementwise(
    "neg",
    np.negative,
    LINEAR,
    accepts=dtypes.NUMBERS,
    transpose=transpose_each(lambda ct, xs: neg(ct)),
    doc="The negative; unsigned integers wrap.",
)
add = elementwise(
    "add",
    np.add,
    [None, None],
    arity=2,
    accepts=dtypes.NUMBERS,
    jvp=_jvp_of_sum,
    transpose=transpose_each(lambda ct, xs: ct, lambda ct, xs: ct),
    doc="The sum; integers wrap.",
)
sub = elementwise(
    "sub",
    np.subtract,
    [None, None],
    arity=2,
    accepts=dtypes.NUMBERS,
    jvp=_jvp_of_difference,
    transpose=transpose_each(lambda ct, xs: ct, lambda ct, xs: neg(ct)),
    doc="The difference; integers wrap.",
)
mul = elementwise(
    "mul",
    np.multiply,
    [lambda x, y, z: y, lambda x, y, z: x],
    arity=2,
    accepts=dtypes.NUMBERS,
    transpose=transpose_each(
        lambda ct, xs: mul(ct, xs[1]), lambda ct, xs: mul(xs[0], ct)
    ),
    doc="The product; integers wrap.",
)
div = elementwise(
    "div",
    np.divide,
    [
        lambda x, y, z: reciprocal(y),
        lambda x, y, z: neg(div(z, y)),
    ],
    arity=2,
    accepts=dtypes.INEXACT,
    cost=4,
    domain=(0.5, 3.0),
    transpose=transpose_each(
        lambda ct, xs: div(ct, xs[1]),
        lambda ct, xs: value_of(xs[1], "div"),
    ),
    doc="The quotient.",
)
reciprocal = elementwise(
    "reciprocal",
    np.reciprocal,
    [lambda x, y: neg(square(y))],
    accepts=dtypes.INEXACT,
    cost=4,
    domain=(0.5, 3.0),
    doc="1 / x.",
)
square = elementwise(
    "square",
    np.square,
    [lambda x, y: mul(x, 2)],
    accepts=dtypes.NUMBERS,
    doc="x * x; integers wrap.",
)
absolute = elementwise(
    "abs",
    np.absolute,
    [lambda x, y: select(discrete.eq(x, 0), _one_like(x), sign(x))],
    accepts=dtypes.REALS,
    doc="The absolute value; its derivative is 1 at 0, as in JAX, and NaN at NaN.",
)
sign = elementwise(
    "sign",
    np.sign,
    ZERO_TANGENT,
    accepts=dtypes.REALS,
    doc="-1, 0 or 1; NaN for NaN.",
)
pow = elementwise(
    "pow",
    _power,
    [
        lambda x, y, z: _power_derivative(x, y),
        lambda x, y, z: mul(z, emitters.log(nonzero(x))),
    ],
    arity=2,
    accepts=dtypes.INEXACT | dtypes.INTEGERS,
    cost=24,
    domain=(0.4, 2.4),
    doc="The power. Integers wrap; a negative power gives the truncated reciprocal.",
)
floor_divide = elementwise(
    "floor_divide",
    np.floor_divide,
    ZERO_TANGENT,
    function="floordiv",
    arity=2,
    accepts=dtypes.REALS,
    cost=6,
    domain=(0.5, 3.0),
    doc="The floor of the quotient; integers divided by 0 give 0.",
)
remainder = elementwise(
    "remainder",
    np.remainder,
    [lambda x, y, z: _one_like(z), lambda x, y, z: neg(floor_divide(x, y))],
    arity=2,
    accepts=dtypes.REALS,
    cost=8,
    domain=(0.5, 3.0),
    doc="The remainder with the divisor's sign; integers divided by 0 give 0.",
)
fmod = elementwise(
    "fmod",
    np.fmod,
    [lambda x, y, z: _one_like(z), lambda x, y, z: neg(discrete.trunc(div(x, y)))],
    arity=2,
    accepts=dtypes.REALS,
    cost=8,
    domain=(0.5, 3.0),
    doc="The remainder with the dividend's sign; integers divided by 0 give 0.",
)


def _extremum_derivative(x: Atom, y: Atom, z: Atom) -> Atom:
    """Return dz/dx for ``z = max(x, y)`` or ``min(x, y)``.

    The derivative is 1 if x is the extremum, 0 if y is, and 1/2 if x equals y.
    """
    selected = select(discrete.eq(x, z), _one_like(z), _zero(z.type.dtype))
    half = conversion.literal(0.5, z.type.dtype)
    return select(discrete.eq(x, y), half, selected)


_EXTREMUM_DERIVATIVES = (
    _extremum_derivative,
    lambda x, y, z: _extremum_derivative(y, x, z),
)
maximum = elementwise(
    "max",
    np.maximum,
    _EXTREMUM_DERIVATIVES,
    arity=2,
    accepts=dtypes.REALS,
    doc="The larger operand, NaN if either is; equal operands share the derivative.",
)
minimum = elementwise(
    "min",
    np.minimum,
    _EXTREMUM_DERIVATIVES,
    arity=2,
    accepts=dtypes.REALS,
    doc="The smaller operand, NaN if either is; equal operands share the derivative.",
)
copysign = elementwise(
    "copysign",
    np.copysign,
    [
        lambda x, y, z: _sign_factor(
            discrete.ne(discrete.signbit(x), discrete.signbit(y)), z
        ),
        None,
    ],
    arity=2,
    accepts=dtypes.FLOATS,
    doc="The first operand's magnitude with the second's sign.",
)
nextafter = elementwise(
    "nextafter",
    np.nextafter,
    not_differentiable("nextafter steps between floating-point numbers"),
    arity=2,
    accepts={dtypes.float32, dtypes.float64},
    cost=4,
    doc="The next floating-point number from the first operand to the second.",
)
hypot = elementwise(
    "hypot",
    np.hypot,
    [
        lambda x, y, z: div(x, nonzero(z)),
        lambda x, y, z: div(y, nonzero(z)),
    ],
    arity=2,
    accepts=dtypes.FLOATS,
    cost=8,
    domain=(0.3, 3.0),
    doc="sqrt(x**2 + y**2) without overflow of the squares.",
)


# Selection.


def _select_types(which: ArrayType, x: ArrayType, y: ArrayType) -> ArrayType:
    """Type rule: the common type of ``x`` and ``y``, and the common shape.

    ``which`` must be bool, and ``x`` and ``y`` must have one dtype. All operands must
    have one shape, except scalars, which fit any.
    """
    if which.dtype != dtypes.bool_:
        raise DTypeError(f"select's condition is bool, but was given {which}")
    dtype = common_dtype("select", (x, y), dtypes.ALL)
    shape = common_shape("select", (which, x, y))
    return ArrayType(shape, dtype, weak=x.weak and y.weak)


def _select_samples() -> Iterable[Sample]:
    """Yield selections between arrays of every dtype, for the table tests."""
    for dtype in dtypes.SHORT_NAMES:
        yield Sample(
            (
                random_array(dtypes.bool_, (3, 5), 1, -1.0, 1.0),
                random_array(dtype, (3, 5), 2),
                random_array(dtype, (3, 5), 3),
            ),
            {},
        )


def _select_jvp(primals: Atoms, outputs: Atoms, tangents: Tangents) -> Tangents:
    """The jvp rule: ``d select(p, x, y) = select(p, dx, dy)``."""
    which, _, _ = primals
    _, x, y = tangents
    zero = _zero(outputs[0].type.dtype)
    value = select(which, zero if x is None else x, zero if y is None else y)
    return [broadcast_scalar(value, outputs[0].type.shape)]


def _select_transpose(cotangents: Tangents, inputs: Operands) -> Tangents:
    """Transpose rule: ``ct_x = select(p, ct, 0)`` and ``ct_y = select(p, 0, ct)``.

    The cotangent of a scalar operand is the sum over all elements.
    """
    (ct,) = cotangents
    which, x, y = inputs
    if ct is None or isinstance(which, Linear):
        return [None, None, None]
    zero = _zero(ct.type.dtype)
    to_x = to_y = None
    if isinstance(x, Linear):
        to_x = sum_to_scalar(select(which, ct, zero), x.type)
    if isinstance(y, Linear):
        to_y = sum_to_scalar(select(which, zero, ct), y.type)
    return [None, to_x, to_y]


select = elementwise(
    "select",
    lambda which, x, y: np.where(which, x, y).astype(x.dtype),
    [None, None, None],
    arity=3,
    accepts=dtypes.ALL,
    typed_by=1,
    types=_select_types,
    samples=_select_samples,
    jvp=_select_jvp,
    transpose=_select_transpose,
    doc="The second operand where the first is true, else the third.",
)
clamp = elementwise(
    "clamp",
    lambda low, x, high: np.minimum(np.maximum(x, low), high),
    [
        # At a bound the derivative is zero, as in JAX.
        lambda low, x, high, y: _indicator(
            discrete.bitwise_and(discrete.lt(x, low), discrete.lt(low, high)), y
        ),
        lambda low, x, high, y: _indicator(
            discrete.bitwise_and(discrete.lt(low, x), discrete.lt(x, high)), y
        ),
        lambda low, x, high, y: _indicator(discrete.lt(high, maximum(low, x)), y),
    ],
    arity=3,
    accepts=dtypes.REALS,
    typed_by=1,
    doc="The second operand limited to [first, third]: clamp(low, x, high).",
)


def _zero(dtype: DType) -> Atom:
    """Return the scalar 0 of ``dtype``."""
    return conversion.literal(0, dtype)


def _one_like(x: Atom) -> Atom:
    """Return the scalar 1 of the dtype of ``x``."""
    return conversion.literal(1, x.type.dtype)


def _indicator(which: Atom, like: Atom) -> Atom:
    """Convert bools to 1 (true) and 0 (false) in the dtype of ``like``."""
    return conversion.convert(which, like.type.dtype)


def _sign_factor(negative: Atom, like: Atom) -> Atom:
    """Return -1 where ``negative`` is true, else 1, in the dtype of ``like``."""
    minus_one = conversion.literal(-1, like.type.dtype)
    return select(negative, minus_one, _one_like(like))


def nonzero(x: Atom) -> Atom:
    """Return ``x`` with 1 in place of each 0.

    For divisors and arguments of log where a 0 would give NaN or infinity, and the
    result is multiplied by 0 or not used.
    """
    return select(discrete.eq(x, 0), _one_like(x), x)


def _power_derivative(x: Atom, y: Atom) -> Atom:
    """Return d(x**y)/dx = y * x**(y - 1); 0 for y = 0, as x**0 is 1 for all x."""
    if isinstance(y, Literal) and y.value == 0:
        return _zero(y.type.dtype)
    # For y = 0, y * x**(y - 1) is 0 * (1 / x), which is NaN if 1 / x is infinite. The
    # exponent 1 in place of -1 gives 0.
    if x.type.dtype in dtypes.COMPLEX:
        has_infinite_reciprocal = discrete.eq(x, 0)
    else:
        has_infinite_reciprocal = discrete.isinf(reciprocal(x))
    is_constant = discrete.bitwise_and(has_infinite_reciprocal, discrete.eq(y, 0))
    return mul(y, pow(x, select(is_constant, _one_like(y), sub(y, 1))))
