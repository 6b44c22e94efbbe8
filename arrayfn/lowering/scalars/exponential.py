"""Exponentials, logarithms and powers.

Exponentials reduce ``x = n ln 2 + r`` with ``|r| <= ln 2 / 2`` (Cody and Waite) and
scale a polynomial of ``r`` by ``2**n`` in two steps, so that subnormal results round
once. Logarithms take ``x = 2**e m`` with ``m`` in [sqrt(1/2), sqrt(2)) and expand
``log m = 2 s + s**3 R(s**2)``, ``s = (m - 1) / (m + 1)``, as fdlibm does. Polynomials
are minimax (Remez exchange on the interval, relative error as their comments say).
"""

from __future__ import annotations

from math import inf, nan

from arrayfn.lowering.scalars.arithmetic import (
    Arithmetic,
    Pair,
    Value,
    bits,
    estrin,
    fast_two_sum,
    logical_shift_right,
    pair_product,
    polynomial,
    power_of_two,
    reals,
    two_product,
    two_sum,
)
from arrayfn.records import frozen

Split = tuple[float, float]
"""A high and a low part, whose sum has more bits than one float."""

Limits = tuple[float, float]
"""A lower and an upper limit."""


@frozen(slots=True)
class Constants:
    """Constants of exp and log in one float format.

    Attributes:
        ln2_high: ln 2 with few bits: its products with an exponent are exact.
        ln2_low: ln 2 - ``ln2_high``.
        ln2, log2_e, log10_e, log10_2: these numbers, as high and low parts.
        exp_limits: below the first one exp is 0, above the second one infinite.
        exp2_limits: the same for 2**x.
        expm1_minus_one: below it expm1 is -1.
        exp_p: the polynomial P of ``EXP_P``.
        exp_short: a shorter P, for exp alone.
        log_r: the polynomial R of ``LOG_R``.
    """

    ln2_high: float
    ln2_low: float
    ln2: Split
    log2_e: Split
    log10_e: Split
    log10_2: Split
    exp_limits: Limits
    exp2_limits: Limits
    expm1_minus_one: float
    exp_p: tuple[float, ...]
    exp_short: tuple[float, ...]
    log_r: tuple[float, ...]


LOG2_E = 1.4426950408889634
SQRT_HALF_BITS = {"f32": 0x3F3504F3, "f64": 0x3FE6A09E667F3BCD}

# exp(r) = 1 + r + r**2 P(r) for |r| <= 0.347: errors 2**-32 and 2**-61.7. The errors of
# ``exp_short`` are 2**-28.3 and 2**-57.9, which is enough for exp(r) alone.
EXP_P = (
    0.500000004665749211,
    0.16666666818629741,
    0.0416663535434038274,
    0.00833327268581590644,
    0.00139411024788306334,
    0.000199143724222414133,
)
# log((1 + s) / (1 - s)) = 2 s + s**3 R(s**2) for s**2 <= 0.02947: 2**-36.6, 2**-65.7.
LOG_R = (
    0.666666656415920283,
    0.400003361685236376,
    0.285372406529465661,
    0.23583537213932785,
)
CONSTANTS = {
    "f32": Constants(
        ln2_high=0.693145751953125,
        ln2_low=1.428606765330187e-06,
        ln2=(0.6931471824645996, -1.9046542121259336e-09),
        log2_e=(1.4426950216293335, 1.925963033500011e-08),
        log10_e=(0.4342944920063019, -1.0103049952192578e-08),
        log10_2=(0.3010300099849701, -1.432098883924482e-08),
        exp_limits=(-104.0, 89.0),
        exp2_limits=(-151.0, 129.0),
        expm1_minus_one=-18.0,
        exp_p=EXP_P,
        exp_short=(
            0.499999934320133796,
            0.166665203988383174,
            0.0416683908048548271,
            0.00836874512794196005,
            0.00138145392258611524,
        ),
        log_r=LOG_R,
    ),
    "f64": Constants(
        ln2_high=0.6931471805598903,
        ln2_low=5.497923018708371e-14,
        ln2=(0.6931471805599453, 2.3190468138462996e-17),
        log2_e=(1.4426950408889634, 2.0355273740931033e-17),
        log10_e=(0.4342944819032518, 1.098319650216765e-17),
        log10_2=(0.3010299956639812, -2.8037281277851704e-18),
        exp_limits=(-746.0, 710.0),
        exp2_limits=(-1076.0, 1025.0),
        expm1_minus_one=-38.0,
        exp_p=(
            0.5,
            0.166666666666666767,
            0.0416666666666667021,
            0.00833333333332153171,
            0.00138888888888665337,
            0.00019841269886400962,
            0.0000248015873611059153,
            2.75572439112676769e-6,
            2.75572423120705052e-7,
            2.51091476876613115e-8,
            2.09245777046059596e-9,
        ),
        exp_short=(
            0.500000000000001063,
            0.166666666666664087,
            0.04166666666652996,
            0.00833333333349667232,
            0.00138888889437158033,
            0.000198412695024359809,
            0.0000248014929827852636,
            2.75575894956177924e-6,
            2.76302977106711652e-7,
            2.49992486593770191e-8,
        ),
        log_r=(
            0.666666666666666609,
            0.400000000000062868,
            0.285714285690729188,
            0.222222226487690447,
            0.181817755064140951,
            0.153870977613904079,
            0.132499592646702428,
            0.132527814950397225,
        ),
    ),
}


def scale(m: Arithmetic, y: Value, shifted: Value) -> Value:
    """Return ``y * 2**n``, rounded once; ``shifted`` is ``n + rounding_shift``.

    The factor 2**n, which may be no normal number, is applied as two powers of 2.
    """
    f = reals(m, y)
    # n + 2 bias is the sum of the two powers' exponent fields, which differ by 1 at
    # most. The bits of ``shifted`` are n plus the bits of ``rounding_shift``.
    biased = bits(m, shifted) - (f.rounding_shift_bits - 2 * f.bias)
    first = logical_shift_right(m, biased, 1)
    return y * power_of_two(m, first) * power_of_two(m, biased - first)


def clamped(m: Arithmetic, x: Value, limits: Split) -> Value:
    """Return ``x`` clamped to ``limits``, a lower and an upper one; NaN stays NaN."""
    low, high = limits
    x = m.select(x > high, high, x)
    return m.select(x < low, low, x)


def exp_reduced(m: Arithmetic, x: Value, x_low: Value | None) -> tuple[Value, Pair]:
    """Return ``(shifted, w)`` with ``exp(x + x_low) = 2**n (1 + w)``, ``|w| < 0.42``.

    ``x_low`` is None for 0. n is an integer, and ``shifted`` is the float ``n +
    rounding_shift``, whose lowest bits are those of n. w is a pair.
    """
    f = reals(m, x)
    c = CONSTANTS[f.dtype]
    shifted = m.fma(x, LOG2_E, m.constant(f.dtype, f.rounding_shift))
    n = shifted - f.rounding_shift
    first = m.fma(n, -c.ln2_high, x)
    product = n * c.ln2_low
    r = first - product
    r_low = (first - r) - product  # the rounding error of r
    if x_low is not None:
        r_low = r_low + x_low
    tail = r * r * polynomial(m, r, c.exp_p)
    # exp(r + r_low) - 1 = (exp(r) - 1) + r_low exp(r)
    return shifted, fast_two_sum(r, tail + m.fma(r_low, r + tail, r_low))


def exp_minus_one(m: Arithmetic, n: Value, x: Value) -> Value:
    """Return ``exp(x - n ln 2) - 1`` for a float ``n`` that is an integer.

    n is the nearest integer to ``x / ln 2``. The absolute error is about an ulp of 1/2.
    """
    c = CONSTANTS[m.dtype(x)]
    r = m.fma(n, -c.ln2_low, m.fma(n, -c.ln2_high, x))
    scheme = polynomial if m.dtype(x) == "f32" else estrin
    return m.fma(r * r, scheme(m, r, c.exp_short), r)


def exp(m: Arithmetic, x: Value) -> Value:
    """Return e**x."""
    f = reals(m, x)
    x = clamped(m, x, CONSTANTS[f.dtype].exp_limits)
    # The low bits of ``shifted`` hold n + 2 bias: two exponent fields whose sum is n.
    shift = f.rounding_shift + 2 * f.bias
    shifted = m.fma(x, LOG2_E, m.constant(f.dtype, shift))
    w = exp_minus_one(m, shifted - shift, x)
    field = bits(m, shifted)
    half = logical_shift_right(m, field, 1)
    unit = power_of_two(m, half)
    return m.fma(w, unit, unit) * power_of_two(m, field - half)


def exp_pair(m: Arithmetic, x: Value, x_low: Value) -> tuple[Value, Pair]:
    """Return ``(shifted, y)`` with ``exp(x + x_low) = 2**n y``; y is a pair.

    ``shifted`` is ``n + rounding_shift``, as ``scale`` takes it.
    """
    shifted, (w, w_low) = exp_reduced(m, x, x_low)
    y, y_low = fast_two_sum(m.constant(m.dtype(x), 1.0), w)
    return shifted, (y, y_low + w_low)


def exp2(m: Arithmetic, x: Value) -> Value:
    """Return 2**x."""
    f = reals(m, x)
    c = CONSTANTS[f.dtype]
    x = clamped(m, x, c.exp2_limits)
    shifted = x + f.rounding_shift  # rounds x to the nearest integer n
    fraction = x - (shifted - f.rounding_shift)
    # The parts of ln2 are high and low; r + r_low is fraction * ln2.
    r = fraction * c.ln2[0]
    r_low = m.fma(fraction, c.ln2[0], -r) + fraction * c.ln2[1]
    y = 1.0 + (r + m.fma(r * r, polynomial(m, r, c.exp_p), r_low))
    return scale(m, y, shifted)  # by the integer in the low bits of ``shifted``


def expm1(m: Arithmetic, x: Value) -> Value:
    """Return ``e**x - 1``, accurate near 0.

    It is ``2**n w + (2**n - 1)`` with n and w of ``exp_reduced``. Half of it is
    computed and then doubled, because 2**n of the largest arguments is infinite.
    """
    f = reals(m, x)
    c = CONSTANTS[f.dtype]
    bounded = clamped(m, x, (c.expm1_minus_one, c.exp_limits[1]))
    shifted, (w, w_low) = exp_reduced(m, bounded, None)
    # The exponent field of 2**(n - 1); n is in the low bits of ``shifted``.
    biased = bits(m, shifted) - (f.rounding_shift_bits - f.bias + 1)
    half = power_of_two(m, biased)
    result = m.fma(half, w, m.fma(half, w_low, half - 0.5))
    # Of a tiny x the result rounds to x.
    return m.select(m.abs(x) < 2.0 ** -(f.mantissa + 2), x, result + result)


def decompose(m: Arithmetic, x: Value) -> Pair:
    """Return ``(e, y)`` with ``x = 2**e y`` and ``sqrt(1/2) <= y < sqrt(2)``.

    ``x`` is positive and finite; subnormal numbers are scaled first. e is a float.
    """
    f = reals(m, x)
    tiny = x < f.smallest_normal
    x = m.select(tiny, x * 2.0 ** (f.mantissa + 1), x)
    root = SQRT_HALF_BITS[f.dtype]
    # Bits are counted from those of sqrt(1/2), so that the exponent field changes at
    # 2**e sqrt(1/2) instead of at powers of 2.
    offset = bits(m, x) + (f.one - root)
    biased = logical_shift_right(m, offset, f.mantissa)
    # An exponent field or-ed into the bits of 2**mantissa is an exact float.
    unit = 2.0**f.mantissa
    shifted = m.reinterpret(biased | ((f.bias + f.mantissa) << f.mantissa), f.dtype)
    unscaled = m.constant(f.dtype, unit + f.bias)
    e = shifted - m.select(tiny, unit + f.bias + f.mantissa + 1, unscaled)
    return e, m.reinterpret((offset & f.mantissa_mask) + root, f.dtype)


def finish_log(m: Arithmetic, x: Value, result: Value) -> Value:
    """Return the ``result`` of a logarithm, or its value for a special ``x``.

    It is -inf for 0, NaN for negative numbers, and ``x`` for infinity and NaN.
    """
    outside = m.select(x == 0.0, m.constant(m.dtype(x), -inf), nan)
    return m.select(x > 0.0, m.select(x < inf, result, x), outside)


def log_sum(m: Arithmetic, x: Value, x_low: Value | None) -> Value:
    """Return ``log(x + x_low)`` for positive finite ``x`` and much smaller ``x_low``.

    ``x_low`` is None for 0. The result is ``e ln 2 + log(1 + f) + x_low / x``, with
    ``s = f / (2 + f)``.
    """
    c = CONSTANTS[m.dtype(x)]
    e, mantissa = decompose(m, x)
    f = mantissa - 1.0
    s = f / (f + 2.0)
    z = s * s
    scheme = polynomial if m.dtype(x) == "f32" else estrin
    rest = z * scheme(m, z, c.log_r)
    low = e * -c.ln2_low
    if x_low is not None:
        low = low - x_low / x
    # 2 s + s rest = f - s (f - rest): the division's error is made small.
    return m.fma(e, c.ln2_high, f - m.fma(s, f - rest, low))


def log(m: Arithmetic, x: Value) -> Value:
    """Return the natural logarithm; -inf at 0, NaN below."""
    return finish_log(m, x, log_sum(m, x, None))


def log_mantissa(m: Arithmetic, mantissa: Value) -> Pair:
    """Return ``log(mantissa)`` as a pair, with some 7 bits more than a float.

    ``mantissa`` is in [sqrt(1/2), sqrt(2)). The quotient ``s = f / (2 + f)`` is a pair.
    """
    c = CONSTANTS[m.dtype(mantissa)]
    f = mantissa - 1.0
    d, d_low = two_sum(m.constant(m.dtype(f), 2.0), f)
    s = f / d
    s_low = (m.fma(-s, d, f) - s * d_low) / d
    z = s * s
    low = m.fma(s * z, polynomial(m, z, c.log_r), s_low + s_low)
    return fast_two_sum(s + s, low)


def log_pair(m: Arithmetic, x: Value, x_low: Value) -> Pair:
    """Return ``log(x + x_low)`` as a pair, with some 7 bits more than a float.

    ``x`` is positive and finite, and ``x_low`` much smaller.
    """
    c = CONSTANTS[m.dtype(x)]
    e, mantissa = decompose(m, x)
    high, low = log_mantissa(m, mantissa)
    total, rest = two_sum(e * c.ln2_high, high)
    return total, rest + (low + m.fma(e, c.ln2_low, x_low / x))


def log2(m: Arithmetic, x: Value) -> Value:
    """Return the logarithm to base 2, exact at powers of 2."""
    e, mantissa = decompose(m, x)
    scaled = pair_product(m, log_mantissa(m, mantissa), constant_pair(m, x, "log2_e"))
    high, low = two_sum(e, scaled[0])
    return finish_log(m, x, high + (low + scaled[1]))


def log10(m: Arithmetic, x: Value) -> Value:
    """Return the logarithm to base 10: that of 2**e plus the mantissa's, in pairs."""
    e, mantissa = decompose(m, x)
    scaled = pair_product(m, log_mantissa(m, mantissa), constant_pair(m, x, "log10_e"))
    unit = CONSTANTS[m.dtype(x)].log10_2
    exponent, exponent_low = two_product(m, e, m.constant(m.dtype(x), unit[0]))
    high, low = two_sum(exponent, scaled[0])
    low = low + (scaled[1] + m.fma(e, unit[1], exponent_low))
    return finish_log(m, x, high + low)


def constant_pair(m: Arithmetic, x: Value, name: str) -> Pair:
    """Return the split constant ``name`` of ``CONSTANTS`` in the format of ``x``."""
    high, low = getattr(CONSTANTS[m.dtype(x)], name)
    return m.constant(m.dtype(x), high), m.constant(m.dtype(x), low)


def log1p_pair(m: Arithmetic, x: Value, x_low: Value) -> Value:
    """Return ``log(1 + x + x_low)``, for a finite positive argument of the log."""
    high, low = two_sum(m.constant(m.dtype(x), 1.0), x)
    return log_sum(m, high, low + x_low)


def log1p(m: Arithmetic, x: Value) -> Value:
    """Return log(1 + x), accurate near 0."""
    f = reals(m, x)
    high, low = two_sum(m.constant(f.dtype, 1.0), x)
    result = finish_log(m, high, log_sum(m, high, low))
    # Of a tiny x the result rounds to x.
    return m.select(m.abs(x) < 2.0 ** -(f.mantissa + 2), x, result)


def logistic(m: Arithmetic, x: Value) -> Value:
    """Return 1 / (1 + e**-x).

    ``1 / (1 + e**a)`` is computed for a = |x|: the result for a negative x. A positive
    x gives 1 minus that.
    """
    f = reals(m, x)
    a = m.abs(x)
    limit = -CONSTANTS[f.dtype].exp_limits[0]
    a = m.select(a > limit, limit, a)
    shift = f.rounding_shift + f.bias
    # The low bits of ``shifted`` are the exponent field of 2**n.
    shifted = m.fma(a, LOG2_E, m.constant(f.dtype, shift))
    w = exp_minus_one(m, shifted - shift, a)
    # ``total`` is e**a + 1 = 2**n + (2**n w + 1). If n is above a limit, ``total`` is
    # scaled down to it: the 1 is negligible then, and the quotient stays normal. The
    # last factor scales the quotient by the remaining power of 2.
    most = f.rounding_shift_bits + f.bias + f.mantissa + 20
    field = bits(m, shifted)
    bounded = m.select(field < most, field, most)
    unit = power_of_two(m, bounded)
    rest = m.fma(w, unit, 1.0)
    total = unit + rest
    reciprocal = 1.0 / total
    correction = (rest - (total - unit)) * reciprocal
    quotient = m.fma(correction, -reciprocal, reciprocal)
    tail = quotient * power_of_two(m, f.bias - (field - bounded))
    return m.select(bits(m, x) < 0, tail, 1.0 - tail)


def logaddexp(m: Arithmetic, x: Value, y: Value) -> Value:
    """Return log(e**x + e**y), as max(x, y) + log1p(e**-|x - y|)."""
    larger = m.select(x > y, x, y)
    result = larger + log1p(m, exp(m, -m.abs(x - y)))
    return m.select(x == y, x + CONSTANTS[m.dtype(x)].ln2[0], result)
