"""Modified Bessel functions of the first kind, of order 0 and 1.

Up to 8 they are computed by their power series (Abramowitz and Stegun 9.6.10), whose
terms are all positive. Above, exp(-x) sqrt(x) times the function is a polynomial in 1 /
x.
"""

from __future__ import annotations

import math
from typing import Any

from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.arithmetic import absolute, copysign, minimum, sign, sqrt
from arrayfn.numpy.comparison import isinf, isnan, where
from arrayfn.numpy.double_precision import horner, in_float64, quiet
from arrayfn.numpy.transcendental import exp
from arrayfn.transforms.custom import custom_jvp

_BORDER = 8.0  # between the two methods
# The coefficients of (x / 2)**2k in I0(x), and of the same times x / 2 in I1(x).
_SERIES_0 = tuple(1 / math.factorial(k) ** 2 for k in range(27))
_SERIES_1 = tuple(1 / (math.factorial(k) * math.factorial(k + 1)) for k in range(27))
# The coefficients of exp(-x) sqrt(x) I(x), for x > 8, as a polynomial in 16 / x - 1. It
# interpolates at Chebyshev's nodes, with errors below 2**-53.7 (I0) and 2**-55.3 (I1).
_LARGE_0 = (
    0.4021765094450081,
    0.0033605519836678944,
    0.00013621607439186705,
    1.1143033787545386e-05,
    1.4838475687894938e-06,
    2.9735996224521226e-07,
    8.872214307451732e-08,
    3.932437699533459e-08,
    2.15488936175863e-08,
    7.566352487698237e-09,
    -6.750552282740284e-09,
    -1.346629294837396e-08,
    -5.394456734259438e-09,
    7.737147033780934e-09,
    7.406235049001522e-09,
    -3.905230623712341e-09,
    -5.91556056510856e-09,
    2.1053080134403423e-09,
    3.5985362919394714e-09,
    -1.1448789558755036e-09,
    -1.5930354799216344e-09,
    5.122212147228388e-10,
    4.4789181847911815e-10,
    -1.5066113686101474e-10,
    -5.905024573995148e-11,
    2.0820835852793106e-11,
)
_LARGE_1 = (
    0.38939845902587233,
    -0.009749577193235768,
    -0.00021923576383382282,
    -1.5038547197358572e-05,
    -1.8349101357991557e-06,
    -3.4838567401229716e-07,
    -1.0001282610189342e-07,
    -4.312778920167609e-08,
    -2.337446787242448e-08,
    -8.43880090582137e-09,
    6.737493433374833e-09,
    1.408852075202545e-08,
    5.963645798166707e-09,
    -7.816968266767898e-09,
    -7.863004697555056e-09,
    3.803814960536081e-09,
    6.202984113000443e-09,
    -1.992076551203188e-09,
    -3.75344338735913e-09,
    1.0715528639398075e-09,
    1.657764699456319e-09,
    -4.798751536934023e-10,
    -4.6561597954216946e-10,
    1.417650842869536e-10,
    6.135932778393812e-11,
    -1.9677083272584384e-11,
)


@quiet
def bessel_i0e(x: ArrayLike) -> Array:
    """Return exp(-abs(x)) I0(x), elementwise, within 1e-15 of the true value.

    I0 is the modified Bessel function of order 0. The computation is in float64, and
    the result has the float dtype of x. The derivative at 0 is 0.

    >>> bessel_i0e(0.0)
    array(1.)
    """
    (x,), dtype = in_float64("bessel_i0e", x)
    return ops.convert(_i0e(x), dtype)


@quiet
def bessel_i1e(x: ArrayLike) -> Array:
    """Return exp(-abs(x)) I1(x), elementwise, within 1e-15 of the true value.

    I1 is the modified Bessel function of order 1. The computation is in float64, and
    the result has the float dtype of x.

    >>> bessel_i1e(0.0)
    array(0.)
    """
    (x,), dtype = in_float64("bessel_i1e", x)
    return ops.convert(_i1e(x), dtype)


@quiet
def i0(x: ArrayLike) -> Array:
    """Return the modified Bessel function I0(x), elementwise; infinite on overflow.

    The computation is in float64, and the result has the float dtype of x.
    """
    (x,), dtype = in_float64("i0", x)
    return ops.convert(_i0(x), dtype)


@quiet
def i1(x: ArrayLike) -> Array:
    """Return the modified Bessel function I1(x), elementwise; infinite on overflow.

    The computation is in float64, and the result has the float dtype of x.
    """
    (x,), dtype = in_float64("i1", x)
    return ops.convert(_i1(x), dtype)


def _scaled(
    x: Array, small: tuple[float, ...], large: tuple[float, ...], order: int
) -> Array:
    """Return exp(-abs(x)) times the Bessel function I of ``order`` 0 or 1.

    ``small`` are the coefficients of the power series for abs(x) <= 8, and ``large``
    those of the polynomial in 16 / x - 1 beyond.
    """
    a = absolute(x)
    # Each formula gets operands from its own side of the border.
    near = minimum(a, _BORDER)
    below = horner(0.25 * near * near, small) * exp(-near)
    if order:
        below = below * (0.5 * near)
    far = where(a > _BORDER, a, _BORDER)
    above = horner(2.0 * _BORDER / far - 1.0, large) / sqrt(far)
    value = where(a > _BORDER, above, below)
    value = where(isnan(x), x, value)
    return where(x < 0, -value, value) if order else value  # I1 is odd


@custom_jvp
def _i0e(x: Array) -> Array:
    """Compute exp(-abs(x)) I0(x) for float64 x."""
    return _scaled(x, _SERIES_0, _LARGE_0, order=0)


@custom_jvp
def _i1e(x: Array) -> Array:
    """Compute exp(-abs(x)) I1(x) for float64 x."""
    return _scaled(x, _SERIES_1, _LARGE_1, order=1)


# Rules call ``function``, the formula without its rule: if rules called each other,
# they would nest without end.


@_i0e.defjvp
def _i0e_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return the value and its tangent; the derivative is i1e(x) - sign(x) i0e(x)."""
    (x,), (dx,) = primals, tangents
    value = _i0e.function(x)  # the formula, without this rule
    return value, (_i1e.function(x) - sign(x) * value) * dx


@_i1e.defjvp
def _i1e_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return the value and its tangent, by the derivative of i1e.

    It is i0e(x) - (sign(x) + 1 / x) i1e(x).
    """
    (x,), (dx,) = primals, tangents
    value = _i1e.function(x)  # the formula, without this rule
    # I1(x) / x is 1/2 at 0.
    zero = x == 0
    ratio = where(zero, 0.5, value / where(zero, 1.0, x))
    return value, (_i0e.function(x) - sign(x) * value - ratio) * dx


# Without the factor exp(-abs(x)), I0 and I1 are analytic. Up to 8 they are computed by
# their power series, whose derivatives of all orders are accurate there.


@custom_jvp
def _i0(x: Array) -> Array:
    """Compute I0(x) for float64 x."""
    near = _series(x, _SERIES_0)
    return _unscaled(x, near, _scaled(x, _SERIES_0, _LARGE_0, order=0))


@custom_jvp
def _i1(x: Array) -> Array:
    """Compute I1(x) for float64 x, by a power series up to 8, and scaled beyond."""
    near = 0.5 * _near(x) * _series(x, _SERIES_1)
    return _unscaled(x, near, _scaled(x, _SERIES_1, _LARGE_1, order=1))


@_i0.defjvp
def _i0_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return the value and its tangent; the derivative of I0 is I1."""
    (x,), (dx,) = primals, tangents
    return _i0(x), _i1(x) * dx


@_i1.defjvp
def _i1_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return the value and its tangent; the derivative is I0(x) - I1(x) / x."""
    (x,), (dx,) = primals, tangents
    value = _i1(x)
    far = absolute(x) > _BORDER
    # I1(x) / x beyond the border. I1 and I0 are both infinite at infinity, where their
    # difference would be NaN; the true derivative is infinite.
    beyond = value / where(far, where(isinf(x), 1.0, x), 1.0)
    ratio = where(far, beyond, 0.5 * _series(x, _SERIES_1))
    slope = where(isinf(x), math.inf, _i0(x) - ratio)
    return value, slope * dx


def _near(x: Array) -> Array:
    """Return x where abs(x) <= 8, and 0 beyond."""
    return where(absolute(x) > _BORDER, 0.0, x)


def _series(x: Array, coefficients: tuple[float, ...]) -> Array:
    """Return the polynomial with these coefficients in (x / 2)**2; x = 0 beyond 8."""
    half = 0.5 * _near(x)
    return horner(half * half, coefficients)


def _unscaled(x: Array, near: Array, scaled: Array) -> Array:
    """Return ``near`` for abs(x) <= 8, and exp(abs(x)) times ``scaled`` beyond."""
    # Multiply by exp(x / 2) twice: exp(x) overflows before the product does.
    half = exp(0.5 * absolute(x))
    beyond = where(isinf(x), copysign(math.inf, scaled), scaled * half * half)
    return where(absolute(x) > _BORDER, beyond, near)


__all__ = ["bessel_i0e", "bessel_i1e", "i0", "i1"]
