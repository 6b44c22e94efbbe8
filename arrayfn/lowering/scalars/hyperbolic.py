"""Hyperbolic functions and their inverses.

Near 0 a polynomial; elsewhere from ``e**|x|``, or the logarithm, of a pair.
"""

from __future__ import annotations

from math import inf, nan

from arrayfn.lowering.scalars.arithmetic import (
    Arithmetic,
    Value,
    fast_two_sum,
    pair_quotient,
    pair_sqrt,
    polynomial,
    reals,
    two_product,
    two_sum,
    with_sign_of,
)
from arrayfn.lowering.scalars.exponential import (
    CONSTANTS,
    clamped,
    exp,
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
# tanh x = x + x**3 P(x**2) for x**2 <= 0.4: 2**-32, 2**-61.
TANH = {
    "f32": (
        -0.333333305708562584,
        0.133331959015066272,
        -0.0539453774807199586,
        0.0216926029806115059,
        -0.00815627216399369875,
        0.00212273954033753571,
    ),
    "f64": (
        -0.33333333333333308,
        0.133333333333289647,
        -0.0539682539656275136,
        0.0218694884568669975,
        -0.00886323412457323877,
        0.00359211213316981253,
        -0.00145571385735934439,
        0.000589399913701345945,
        -0.000236865459065318223,
        0.0000912980701595112596,
        -0.0000299220258308320558,
        5.92466081751268999e-6,
    ),
}


def half_exponentials(m: Arithmetic, a: Value, sign: float) -> Value:
    """``(e**a + sign * e**-a) / 2`` for ``a >= 0``."""
    f = reals(m, a)
    low, high = CONSTANTS[f.dtype].exp_limits
    # The half extends the range by ln 2.
    a = clamped(m, a, (low, high + 1.0))
    shifted, (p, p_low) = exp_pair(m, a, m.constant(f.dtype, 0.0))
    one = m.constant(f.dtype, 1.0)
    # e**-a = 2**-n / p, in units of 2**n; nothing of it is left from n = 64 on.
    n = shifted - f.rounding_shift
    bounded = m.select(n > 60.0, 60.0, n)
    square = scale(m, one, bounded * -2.0 + f.rounding_shift)
    other = sign * square / p
    total, total_low = fast_two_sum(p, other)
    return scale(m, total + (total_low + p_low), shifted - 1.0)


def sinh(m: Arithmetic, x: Value) -> Value:
    """The hyperbolic sine."""
    a = m.abs(x)
    z = a * a
    small = m.fma(a * z, polynomial(m, z, SINH[m.dtype(x)]), a)
    return with_sign_of(
        m, m.abs(m.select(a < 1.0, small, half_exponentials(m, a, -1.0))), x
    )


def cosh(m: Arithmetic, x: Value) -> Value:
    """The hyperbolic cosine."""
    return half_exponentials(m, m.abs(x), 1.0)


def tanh(m: Arithmetic, x: Value) -> Value:
    """The hyperbolic tangent."""
    a = m.abs(x)
    z = a * a
    small = m.fma(a * z, polynomial(m, z, TANH[m.dtype(x)]), a)
    large = 1.0 - 2.0 / (exp(m, a + a) + 1.0)
    return with_sign_of(m, m.select(z < 0.4, small, large), x)


def asinh(m: Arithmetic, x: Value) -> Value:
    """The inverse hyperbolic sine."""
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
    result = m.select(a < 2.0 ** -(f.mantissa // 2 + 2), a, result)
    return with_sign_of(m, m.abs(result), x)


def acosh(m: Arithmetic, x: Value) -> Value:
    """The inverse hyperbolic cosine, at least 0; NaN below 1."""
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
    result = result + m.select(
        huge, m.constant(f.dtype, CONSTANTS[f.dtype].ln2[0]), 0.0
    )
    result = m.select(x < inf, result, x)
    return m.select(x >= 1.0, result, nan)


def atanh(m: Arithmetic, x: Value) -> Value:
    """The inverse hyperbolic tangent; infinite at -1 and 1, NaN outside."""
    f = reals(m, x)
    a = m.abs(x)
    bounded = m.select(a < 1.0, a, 0.5)
    zero = m.constant(f.dtype, 0.0)
    bottom = fast_two_sum(m.constant(f.dtype, 1.0), -bounded)
    high, low = pair_quotient(m, (bounded + bounded, zero), bottom)
    result = 0.5 * log1p_pair(m, high, low)
    result = m.select(a < 2.0 ** -(f.mantissa // 2 + 2), a, result)
    outside = m.select(a == 1.0, m.constant(f.dtype, inf), nan)
    return with_sign_of(m, m.abs(m.select(a < 1.0, result, outside)), x)
