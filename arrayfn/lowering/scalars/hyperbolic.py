"""Hyperbolic functions and their inverses.

Near 0 they are polynomials, elsewhere ``e**|x|`` or logarithms of pairs. The hyperbolic
tangent has a quotient of its own.
"""

from __future__ import annotations

from math import inf, nan

from arrayfn.lowering.scalars.arithmetic import (
    Arithmetic,
    Value,
    bits,
    estrin,
    fast_two_sum,
    pair_quotient,
    pair_sqrt,
    polynomial,
    power_of_two,
    reals,
    two_product,
    two_sum,
    with_sign_of,
)
from arrayfn.lowering.scalars.exponential import (
    CONSTANTS,
    LOG2_E,
    clamped,
    exp_pair,
    log1p_pair,
    log_sum,
    scale,
)

# sinh x = x + x**3 P(x**2) for |x| <= 1: 2**-34, 2**-63.
SINH = {
    "f32": (
        0.166666664887685618,
        0.00833335059579355646,
        0.000198360665484315098,
        2.81743842759716089e-6,
    ),
    "f64": (
        0.166666666666666674,
        0.00833333333333313882,
        0.000198412698414376801,
        2.75573191553359358e-6,
        2.50521233988512177e-8,
        1.60572403093765745e-10,
        7.7593133799600583e-13,
    ),
}
# y coth y = C(y**2) for |y| <= 0.55: 2**-26, 2**-61.
COTH = {
    "f32": (
        1.0,
        0.333332352482977884,
        -0.0222021271465376398,
        0.0019991351712938933,
    ),
    "f64": (
        1.0,
        0.333333333333333223,
        -0.0222222222222103019,
        0.00211640211596062371,
        -0.000211640203736136814,
        0.0000213777208404382639,
        -2.16395131301160907e-6,
        2.17732733666346548e-7,
        -1.94125341728411679e-8,
    ),
}
# From here on tanh rounds to 1.
TANH_ONE = {"f32": 9.2, "f64": 20.0}


def half_exponentials(m: Arithmetic, a: Value, sign: float) -> Value:
    """Return ``(e**a + sign * e**-a) / 2`` for ``a >= 0``: cosh or sinh."""
    f = reals(m, a)
    low, high = CONSTANTS[f.dtype].exp_limits
    # The factor 1/2 extends the range by ln 2.
    a = clamped(m, a, (low, high + 1.0))
    shifted, (p, p_low) = exp_pair(m, a, m.constant(f.dtype, 0.0))
    one = m.constant(f.dtype, 1.0)
    # e**-a = 2**-n / p, in units of 2**n; it is negligible from n = 64 on.
    n = shifted - f.rounding_shift
    bounded = m.select(n > 60.0, 60.0, n)
    square = scale(m, one, bounded * -2.0 + f.rounding_shift)  # 2**(-2 n)
    other = sign * square / p
    total, total_low = fast_two_sum(p, other)
    return scale(m, total + (total_low + p_low), shifted - 1.0)


def sinh(m: Arithmetic, x: Value) -> Value:
    """Return the hyperbolic sine: a polynomial below 1, else exponentials."""
    a = m.abs(x)
    z = a * a
    small = m.fma(a * z, polynomial(m, z, SINH[m.dtype(x)]), a)
    return with_sign_of(
        m, m.abs(m.select(a < 1.0, small, half_exponentials(m, a, -1.0))), x
    )


def cosh(m: Arithmetic, x: Value) -> Value:
    """Return the hyperbolic cosine."""
    return half_exponentials(m, m.abs(x), 1.0)


def tanh(m: Arithmetic, x: Value) -> Value:
    """Return the hyperbolic tangent.

    With ``a = n ln(2) / 2 + y`` and ``c = y coth y``, ``e**(2 a)`` is
    ``2**n (c + y) / (c - y)``. So tanh a is ``1 - 2 (c - y) / (2**n (c + y) + c - y)``,
    and ``y / c`` for n = 0, which is used below 0.55. One polynomial and one
    division serve both.
    """
    f = reals(m, x)
    a = m.abs(x)
    small = a < 0.55
    limit = TANH_ONE[f.dtype]
    bounded = m.select(a > limit, limit, a)
    shift = f.rounding_shift + f.bias
    # The low bits of ``shifted`` are the exponent field of 2**n.
    shifted = m.fma(bounded, 2.0 * LOG2_E, m.constant(f.dtype, shift))
    # 1 - tanh a decreases faster than the error of a one-part ln 2 grows with n.
    y = m.fma(shifted - shift, -0.5 * CONSTANTS[f.dtype].ln2[0], bounded)
    y = m.select(small, a, y)
    scheme = polynomial if f.dtype == "f32" else estrin
    c = scheme(m, y * y, COTH[f.dtype])
    difference = c - y
    total = m.fma(power_of_two(m, bits(m, shifted)), c + y, difference)
    quotient = m.select(small, a, difference) / m.select(small, c, total)
    result = m.select(small, quotient, m.fma(quotient, -2.0, 1.0))
    return with_sign_of(m, result, x)


def asinh(m: Arithmetic, x: Value) -> Value:
    """Return the inverse hyperbolic sine, ``log(a + sqrt(1 + a**2))`` with x's sign."""
    f = reals(m, x)
    a = m.abs(x)
    huge = a > 2.0 ** (f.mantissa + 2)
    b = m.select(huge, 1.0, a)
    # log(b + sqrt(1 + b**2)) = log1p(b + b**2 / (1 + sqrt(1 + b**2)))
    square, square_low = two_product(m, b, b)
    one = m.constant(f.dtype, 1.0)
    zero = m.constant(f.dtype, 0.0)
    total, total_low = two_sum(one, square)
    root, root_low = pair_sqrt(m, (total, total_low + square_low))
    bottom, bottom_low = two_sum(one, root)
    quotient = pair_quotient(m, (square, square_low), (bottom, bottom_low + root_low))
    high, low = two_sum(b, quotient[0])
    low = low + quotient[1]
    # log(a) + ln 2 for a huge one: log_sum serves both.
    moderate, moderate_low = two_sum(one, high)
    result = log_sum(
        m, m.select(huge, a, moderate), m.select(huge, zero, moderate_low + low)
    )
    result = result + m.select(
        huge, m.constant(f.dtype, CONSTANTS[f.dtype].ln2[0]), 0.0
    )
    result = m.select(a < inf, result, a)
    # Of a tiny x the result rounds to x.
    result = m.select(a < 2.0 ** -(f.mantissa // 2 + 2), a, result)
    return with_sign_of(m, m.abs(result), x)


def acosh(m: Arithmetic, x: Value) -> Value:
    """Return the inverse hyperbolic cosine, which is at least 0; NaN below 1.

    It is ``log(x + sqrt(x**2 - 1))``.
    """
    f = reals(m, x)
    huge = x > 2.0 ** (f.mantissa + 2)
    # log(1 + t + sqrt(t (t + 2))), t = x - 1
    t = m.select(huge, m.constant(f.dtype, 1.0), x - 1.0)
    square, square_low = two_product(m, t, t)
    total, total_low = two_sum(t + t, square)
    root, root_low = pair_sqrt(m, (total, total_low + square_low))
    high, low = two_sum(root, t)
    moderate, moderate_low = two_sum(m.constant(f.dtype, 1.0), high)
    zero = m.constant(f.dtype, 0.0)
    result = log_sum(
        m,
        m.select(huge, x, moderate),
        m.select(huge, zero, moderate_low + (low + root_low)),
    )
    # For a huge x the result is log(2 x) = log x + ln 2.
    result = result + m.select(
        huge, m.constant(f.dtype, CONSTANTS[f.dtype].ln2[0]), 0.0
    )
    result = m.select(x < inf, result, x)
    return m.select(x >= 1.0, result, nan)


def atanh(m: Arithmetic, x: Value) -> Value:
    """Return the inverse hyperbolic tangent; infinite at -1 and 1, NaN outside.

    It is ``log1p(2 a / (1 - a)) / 2`` with the sign of x.
    """
    f = reals(m, x)
    a = m.abs(x)
    bounded = m.select(a < 1.0, a, 0.5)
    zero = m.constant(f.dtype, 0.0)
    bottom = fast_two_sum(m.constant(f.dtype, 1.0), -bounded)
    high, low = pair_quotient(m, (bounded + bounded, zero), bottom)
    result = 0.5 * log1p_pair(m, high, low)
    # Of a tiny x the result rounds to x.
    result = m.select(a < 2.0 ** -(f.mantissa // 2 + 2), a, result)
    outside = m.select(a == 1.0, m.constant(f.dtype, inf), nan)
    return with_sign_of(m, m.abs(m.select(a < 1.0, result, outside)), x)
