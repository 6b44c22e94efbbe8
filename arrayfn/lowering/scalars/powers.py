"""Powers, roots and hypot."""

from __future__ import annotations

from math import inf, nan

from arrayfn.lowering.scalars.arithmetic import (
    FORMATS,
    Arithmetic,
    Pair,
    Value,
    bits,
    either_nan,
    fast_two_sum,
    logical_shift_right,
    pair_product,
    pair_quotient,
    pair_sum,
    polynomial,
    power_of_two,
    reals,
    two_product,
    two_sum,
    with_sign_of,
)
from arrayfn.lowering.scalars.exponential import (
    CONSTANTS,
    EXP_P,
    LOG2_E,
    clamped,
    decompose,
    exp_reduced,
    scale,
)

FORMAT_F64 = FORMATS["f64"]

# log((1 + s) / (1 - s)) = 2 s + s**3 (2/3 + z Q(z)), z = s**2 <= 0.02947: 2**-72.
LOG_Q = (
    0.399999999999999817,
    0.285714285714430041,
    0.222222222179522759,
    0.181818188275846927,
    0.15384559369214553,
    0.133362336051484655,
    0.116763225147710435,
    0.119778186341177733,
)
# The same with R as in ``exponential``, for float32 powers in float64: 2**-43.9.
LOG_R_SHORT = (
    0.666666666758440215,
    0.399999956051802705,
    0.285721111100645961,
    0.221761000683797858,
    0.19585521262329118,
)
# cbrt on [1, 2]: 2**-16.6.
CBRT = (
    0.507659535064288683,
    0.716221216853293478,
    -0.298593594615121503,
    0.0851733405753086004,
    -0.0104502213468090896,
)


def log_pair(m: Arithmetic, x: Value) -> Pair:
    """Return ``log(x)`` of a positive f64 as a pair, with an error of about 2**-67.

    The error is relative. ``log x = e ln 2 + 2 s + s**3 (2/3 + s**2 Q(s**2))``, and all
    but Q is computed in pairs.
    """
    e, mantissa = decompose(m, x)
    f = mantissa - 1.0
    d = two_sum(m.constant("f64", 2.0), f)
    s = pair_quotient(m, (f, m.constant("f64", 0.0)), d)
    z = pair_product(m, s, s)
    third = fast_two_sum(
        m.constant("f64", 0.6666666666666666), z[0] * polynomial(m, z[0], LOG_Q)
    )
    third = (third[0], third[1] + 3.700743415417188e-17)  # the low part of 2/3
    cube = pair_product(m, pair_product(m, s, z), third)
    mantissa_log = pair_sum((s[0] + s[0], s[1] + s[1]), cube)
    # ``e * ln2_high`` is exact, so only ``ln2_low``'s own error (2**-103) remains.
    c = CONSTANTS["f64"]
    return pair_sum(
        fast_two_sum(e * c.ln2_high, e * c.ln2_low),
        mantissa_log,
    )


def pow_f64(m: Arithmetic, x: Value, y: Value) -> Value:
    """Return ``|x| ** y = exp(y log |x|)`` of f64; ``x`` is finite and not 0."""
    # The smallest nonzero logarithm is 2**-53, so such powers overflow anyway.
    y = clamped(m, y, (-(2.0**100), 2.0**100))
    zero = m.constant("f64", 0.0)
    high, low = pair_product(m, (y, zero), log_pair(m, m.abs(x)))
    c = CONSTANTS["f64"]
    bounded = clamped(m, high, c.exp_limits)
    low = m.select(bounded == high, low, 0.0)
    shifted, (w, w_low) = exp_reduced(m, bounded, low)
    return scale(m, 1.0 + (w + w_low), shifted)


def pow_f32(m: Arithmetic, x: Value, y: Value) -> Value:
    """Return ``|x| ** y`` of f32, computed in f64; ``x`` is finite and not 0.

    It is ``exp(y log |x|)``. With ``|x| = 2**e (1 + f)`` and ``s = f / (f + 2)`` the
    logarithm is ``e ln 2 + log((1 + s) / (1 - s))``.
    """
    e, mantissa = decompose(m, m.convert(m.abs(x), "f64"))
    f = mantissa - 1.0
    s = f / (f + 2.0)
    z = s * s
    c = CONSTANTS["f64"]
    log = m.fma(s * z, polynomial(m, z, LOG_R_SHORT), s + s)
    log = m.fma(e, c.ln2[0], log)
    power = clamped(m, m.convert(y, "f64") * log, (-110.0, 90.0))
    shift = FORMAT_F64.rounding_shift
    shifted = m.fma(power, LOG2_E, m.constant("f64", shift))
    r = m.fma(shifted - shift, -c.ln2[0], power)
    p = 1.0 + m.fma(r * r, polynomial(m, r, EXP_P), r)
    # The exponent field of 2**n; n is in the low bits of ``shifted``.
    biased = bits(m, shifted) - (FORMAT_F64.rounding_shift_bits - FORMAT_F64.bias)
    return m.convert(p * power_of_two(m, biased), "f32")


def pow(m: Arithmetic, x: Value, y: Value) -> Value:
    """Return ``x ** y``, with the special cases of C's pow.

    Those are zeros, infinities, NaN, and negative bases, which need an integer ``y``.
    """
    dtype = m.dtype(x)
    core = pow_f64 if dtype == "f64" else pow_f32
    a = m.abs(x)
    negative_y = y < 0.0
    result = core(m, x, y)
    zero = m.constant(dtype, 0.0)
    infinity = m.constant(dtype, inf)
    # A base of 0 or infinity, then an infinite exponent.
    result = m.select(a == 0.0, m.select(negative_y, infinity, zero), result)
    result = m.select(a == inf, m.select(negative_y, zero, infinity), result)
    grows = (a > 1.0) != negative_y
    limit = m.select(a == 1.0, m.constant(dtype, 1.0), m.select(grows, infinity, zero))
    result = m.select(m.abs(y) == inf, limit, result)
    # y is an odd integer if y / 2 is not an integer.
    integral = m.trunc(y) == y
    half = 0.5 * y
    odd = integral & (m.trunc(half) != half)
    # The sign of odd powers; infinite exponents count as even.
    odd = odd & (m.abs(y) < inf)
    negative_x = bits(m, x) < 0
    result = m.select(negative_x & odd, -result, result)
    # A negative base with an exponent that is no integer has no real power.
    invalid = (x < 0.0) & (a < inf) & (m.abs(y) < inf)
    result = m.select(invalid & ~integral, nan, result)
    result = m.select(either_nan(m, x, y), x + y, result)
    return m.select((x == 1.0) | (y == 0.0), 1.0, result)


def rsqrt(m: Arithmetic, x: Value) -> Value:
    """Return 1 / sqrt(x)."""
    return 1.0 / m.sqrt(x)


def cbrt(m: Arithmetic, x: Value) -> Value:
    """Return the real cube root.

    With ``|x| = 2**(3 third + remainder) mantissa`` it is ``2**third cbrt(v)``, ``v =
    2**remainder mantissa``. A polynomial of the mantissa, times cbrt(2**remainder), is
    refined by Halley's step (for f64) and Newton's.
    """
    f = reals(m, x)
    a = m.abs(x)
    tiny = a < f.smallest_normal
    a = m.select(tiny, a * 2.0**54, a)
    field = logical_shift_right(m, bits(m, a), f.mantissa)
    # Or-ed into the bits of 2**mantissa, the exponent field is an exact float.
    unit_bits = (f.bias + f.mantissa) << f.mantissa
    e = m.reinterpret(field | unit_bits, f.dtype) - (2.0**f.mantissa + f.bias)
    third = m.floor(e * (1.0 / 3.0) + 0.01)
    remainder = e - 3.0 * third
    mantissa = m.reinterpret((bits(m, a) & f.mantissa_mask) | f.one, f.dtype)
    start = polynomial(m, mantissa, CBRT)
    # cbrt(2**remainder): 1, cbrt(2) or cbrt(4).
    factor = m.select(remainder == 1.0, m.constant(f.dtype, 1.259921049894873), 1.0)
    factor = m.select(remainder == 2.0, 1.587401051968199, factor)
    power = m.select(remainder == 1.0, m.constant(f.dtype, 2.0), 1.0)
    v = mantissa * m.select(remainder == 2.0, 4.0, power)
    y = start * factor
    if f.dtype == "f64":
        # Halley's step: 2**-16.6 becomes 2**-49.
        cube = y * y * y
        y = y * (cube + 2.0 * v) / (2.0 * cube + v)
    # Newton's step, with the residual y**3 - v computed almost exactly.
    square, square_low = two_product(m, y, y)
    cube, cube_low = two_product(m, square, y)
    residual = (cube - v) + m.fma(square_low, y, cube_low)
    y = y - residual / (3.0 * square)
    # A subnormal x was scaled by 2**54, whose cube root is 2**18.
    exponent = third - m.select(tiny, m.constant(f.dtype, 18.0), 0.0)
    # The exponent field of 2**exponent, which is in the low bits of ``shifted``.
    shifted = exponent + f.rounding_shift
    biased = bits(m, shifted) - (f.rounding_shift_bits - f.bias)
    result = with_sign_of(m, y * power_of_two(m, biased), x)
    return m.select((x == 0.0) | ~(m.abs(x) < inf), x, result)


def unit_scale(m: Arithmetic, x: Value) -> Value:
    """Return a power of 2 whose product with a positive finite ``x`` is in [1, 4).

    For a subnormal ``x`` the product is smaller.
    """
    f = reals(m, x)
    field = bits(m, x) & (f.magnitude_mask - f.mantissa_mask)  # the exponent of x
    smallest, largest = 1 << f.mantissa, (2 * f.bias - 1) << f.mantissa
    field = m.select(field < smallest, smallest, field)
    field = m.select(field > largest, largest, field)
    # The exponent field of the reciprocal of a power of 2: 2 bias - field.
    return m.reinterpret(((2 * f.bias) << f.mantissa) - field, f.dtype)


def hypot(m: Arithmetic, x: Value, y: Value) -> Value:
    """Return sqrt(x**2 + y**2), without intermediate overflow.

    It is infinite if one of them is, even if the other is NaN. The squares are exact
    pairs, and the root is corrected by the rounding errors.
    """
    f = reals(m, x)
    x, y = m.abs(x), m.abs(y)
    a = m.select(x > y, x, y)
    b = m.select(x > y, y, x)
    factor = unit_scale(m, a)  # a power of 2, with a * factor in [1, 4)
    a_scaled, b_scaled = a * factor, b * factor
    square, square_low = two_product(m, a_scaled, a_scaled)
    other, other_low = two_product(m, b_scaled, b_scaled)
    total, total_low = fast_two_sum(square, other)
    root = m.sqrt(total)
    rest = m.fma(-root, root, total) + (total_low + (square_low + other_low))
    root = root + rest / (root + root)
    # The reciprocal of the power of 2 ``factor``: its exponent field is 2 bias - field.
    inverse = m.reinterpret(((2 * f.bias) << f.mantissa) - bits(m, factor), f.dtype)
    result = m.select(a == 0.0, 0.0, root * inverse)
    result = m.select(either_nan(m, x, y), x + y, result)
    return m.select((x == inf) | (y == inf), inf, result)
