"""Circular functions and their inverses.

Arguments up to a limit are reduced by a three-part pi/2 with exact products; larger
ones, out of line, by the bits of 2/pi that matter (Payne and Hanek, 1983). The
reduced argument is a pair. Polynomials are minimax on [-pi/4, pi/4].
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan

from arrayfn.lowering.scalars.arithmetic import (
    FORMATS,
    Arithmetic,
    Pair,
    Value,
    bits,
    either_nan,
    fast_two_sum,
    pair_product,
    pair_sqrt,
    polynomial,
    reals,
    two_product,
    two_sum,
    with_sign_of,
)
from arrayfn.lowering.scalars.powers import unit_scale


@dataclass(frozen=True, slots=True)
class Constants:
    """``half_pi`` sums up to pi/2; ``limit`` bounds the reduction by it."""

    half_pi: tuple[float, float, float]
    limit: float
    sin: tuple[float, ...]
    cos: tuple[float, ...]
    asin: tuple[float, ...]
    atan: tuple[float, ...]


# sin r = r + r**3 S(r**2), cos r = 1 - r**2/2 + r**4 C(r**2), |r| <= pi/4;
# asin x = x + x**3 A(x**2), |x| <= 1/2; atan x = x + x**3 T(x**2), |x| <= tan(pi/8).
CONSTANTS = {
    "f32": Constants(
        half_pi=(1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15),
        limit=2.0**17,
        # 2**-37.6, 2**-43.2, 2**-27.6, 2**-30.5
        sin=(
            -0.166666666414329704,
            0.00833332936270485873,
            -0.000198393272227368865,
            2.71823781440406238e-6,
        ),
        cos=(
            0.0416666666224755093,
            -0.00138888837225205264,
            0.0000247995117360409272,
            -2.72095452663134111e-7,
        ),
        asin=(
            0.166667539188157285,
            0.074952419030012631,
            0.0454770910043870375,
            0.0241476162581940746,
            0.0422185723327607942,
        ),
        atan=(
            -0.333333154211899393,
            0.1999848395761754,
            -0.142437388025579387,
            0.105951435339135924,
            -0.0608117102785033343,
        ),
    ),
    "f64": Constants(
        half_pi=(1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33),
        limit=2.0**30,
        # 2**-58 (relative to r**3), 2**-64, 2**-59.8, 2**-64
        sin=(
            -0.166666666666666317,
            0.00833333333332231612,
            -0.000198412698297255403,
            2.75573136620799463e-6,
            -2.50507532573292321e-8,
            1.58965040534001172e-10,
        ),
        cos=(
            0.0416666666666665988,
            -0.0013888888888873993,
            0.0000248015872893963147,
            -2.75573143264304174e-7,
            2.08757196131814019e-9,
            -1.13594515052758789e-11,
        ),
        asin=(
            0.166666666666667624,
            0.0749999999997027638,
            0.0446428571751087195,
            0.0303819426841398889,
            0.0223722156468725867,
            0.0173516003132608397,
            0.013980959004595493,
            0.0113977945057790245,
            0.0107864327586565304,
            0.00368338034517968766,
            0.0217627314101881427,
            -0.0210762768541414265,
            0.0326762952500919953,
        ),
        atan=(
            -0.333333333333333275,
            0.199999999999976702,
            -0.142857142853881342,
            0.111111110881852703,
            -0.0909090814478876969,
            0.0769228276436285918,
            -0.0666622683891236253,
            0.0587702256887795909,
            -0.0521840915722228328,
            0.045035679605647046,
            -0.0334748670256967233,
            0.0151955468203556754,
        ),
    ),
}

# 2/pi in words of 32 bits, high first, after two words of zeros.
TWO_OVER_PI = (
    0x00000000,
    0x00000000,
    0xA2F9836E,
    0x4E441529,
    0xFC2757D1,
    0xF534DDC0,
    0xDB629599,
    0x3C439041,
    0xFE5163AB,
    0xDEBBC561,
    0xB7246E3A,
    0x424DD2E0,
    0x06492EEA,
    0x09D1921C,
    0xFE1DEB1C,
    0xB129A73E,
    0xE88235F5,
    0x2EBB4484,
    0xE99C7026,
    0xB45F7E41,
    0x3991D639,
    0x835339F4,
    0x9C845F8B,
    0xBDF9283B,
    0x1FF897FF,
    0xDE05980F,
    0xEF2F118B,
    0x5A0A6D1F,
    0x6D367ECF,
    0x27CB09B7,
    0x4F463F66,
    0x9E5FEA2D,
    0x7527BAC7,
    0xEBE5F17B,
    0x3D0739F7,
    0x8A5292EA,
    0x6BFB5FB1,
    0x1F8D5D08,
    0x56033046,
    0xFC7B6BAB,
    0xF0CFBC20,
    0x9AF4361D,
    0xA9E39161,
    0x5EE61B08,
)


def reduce(m: Arithmetic, a: Value) -> tuple[Value, Pair]:
    """``(n, r)`` with ``a = n pi/2 + r``, ``0 <= a <= limit``; n modulo 4 counts."""
    f = reals(m, a)
    first, second, third = CONSTANTS[f.dtype].half_pi
    shifted = m.fma(a, 0.6366197723675814, m.constant(f.dtype, f.rounding_shift))
    n = shifted - f.rounding_shift
    r = m.fma(n, -first, a)
    product, product_low = two_product(m, n, m.constant(f.dtype, second))
    high, low = two_sum(r, -product)
    low = low - m.fma(n, third, product_low)
    return bits(m, shifted), fast_two_sum(high, low)


def reduce_huge(m: Arithmetic, a: Value) -> tuple[Value, Pair]:
    """``reduce`` for any finite f64 ``a >= 2**17``.

    ``a = M 2**E`` with an integer M of 53 bits. Of 2/pi, the bits that make multiples
    of 4 in the product are skipped and the next 192 kept: after the top two bits (the
    quadrant) 190 bits of fraction remain, of which M's width, 53, are not exact. A
    double comes no nearer to a multiple of pi/2 than 2**-62.
    """
    f = FORMATS["f64"]
    raw = m.reinterpret(a, "u64")
    mantissa = (raw & f.mantissa_mask) | (1 << f.mantissa)
    # E - 2 bits of 2/pi are skipped; the table begins with 64 zero bits.
    skip = m.reinterpret(raw >> f.mantissa, "i64") - (f.bias + f.mantissa + 2 - 64)
    word, shift = skip >> 5, m.reinterpret(skip & 31, "u64")
    words = [m.lookup(TWO_OVER_PI, word + k) for k in range(7)]
    mask = 0xFFFFFFFF
    window = [
        (((words[k] << 32) | words[k + 1]) >> (32 - shift)) & mask
        for k in reversed(range(6))
    ]
    low_half, high_half = mantissa & mask, mantissa >> 32
    product: list[Value] = []
    carry = m.constant("u64", 0)
    for k in range(6):
        carry = low_half * window[k] + (carry >> 32)
        product.append(carry & mask)
    carry = m.constant("u64", 0)
    for k in range(5):
        carry = high_half * window[k] + (product[k + 1] + (carry >> 32))
        product[k + 1] = carry & mask
    high = (product[5] << 34) | (product[4] << 2) | (product[3] >> 30)
    low = (product[3] << 34) | (product[2] << 2) | (product[1] >> 30)
    # To the nearest quadrant: the fraction becomes a signed one.
    negative = (high >> 63) != 0
    quadrant = (product[5] >> 30) + m.convert(negative, "u64")
    high = m.select(negative, ~high, high)
    low = m.select(negative, ~low, low)
    parts = (high >> 32, high & mask, low >> 32, low & mask)
    terms = [
        m.convert(part, "f64") * 2.0 ** (-32 * (k + 1)) for k, part in enumerate(parts)
    ]
    total = fast_two_sum(terms[0], terms[1])
    rest = fast_two_sum(total[1], terms[2] + terms[3])
    turn_high, turn_low = fast_two_sum(total[0], rest[0])
    first, second, _ = CONSTANTS["f64"].half_pi
    half_pi = m.constant("f64", first), m.constant("f64", second)
    r, r_low = pair_product(m, (turn_high, turn_low + rest[1]), half_pi)
    r, r_low = (m.select(negative, -v, v) for v in (r, r_low))
    return m.reinterpret(quadrant, "i64"), (r, r_low)


def sin_polynomial(m: Arithmetic, r: Pair, z: Value) -> Pair:
    """``sin`` of a reduced argument as a sum; ``z`` is its square."""
    high, low = r
    tail = high * z * polynomial(m, z, CONSTANTS[m.dtype(z)].sin)
    return high, m.fma(low, 1.0 - 0.5 * z, tail)


def cos_polynomial(m: Arithmetic, r: Pair, z: Value) -> Pair:
    """``cos`` of a reduced argument as a sum; ``z`` is its square."""
    high, low = r
    half = 0.5 * z
    one, one_low = fast_two_sum(m.constant(m.dtype(z), 1.0), -half)
    tail = z * z * polynomial(m, z, CONSTANTS[m.dtype(z)].cos)
    # The rounding error of the square matters for the last half bit.
    square_low = m.fma(high, high, -z)
    return one, one_low + (tail - m.fma(high, low, 0.5 * square_low))


def finish(m: Arithmetic, function: str, n: Value, r: Pair) -> Value:
    """sin, cos or tan from the quadrant and the reduced argument."""
    z = r[0] * r[0]
    sine = sin_polynomial(m, r, z)
    cosine = cos_polynomial(m, r, z)
    odd = (n & 1) != 0
    if function == "tan":
        numerator = tuple(
            m.select(odd, -c, s) for s, c in zip(sine, cosine, strict=True)
        )
        denominator = tuple(
            m.select(odd, s, c) for s, c in zip(sine, cosine, strict=True)
        )
        top, top_low = fast_two_sum(*numerator)
        bottom, bottom_low = fast_two_sum(*denominator)
        reciprocal = 1.0 / bottom
        quotient = top * reciprocal
        rest = m.fma(-quotient, bottom, top) + (top_low - quotient * bottom_low)
        return quotient + rest * reciprocal
    s, c = sine[0] + sine[1], cosine[0] + cosine[1]
    if function == "sin":
        value, turns = m.select(odd, c, s), n
    else:
        value, turns = m.select(odd, s, c), n + 1
    f = reals(m, value)
    return m.reinterpret(bits(m, value) ^ ((turns & 2) << (f.bits - 2)), f.dtype)


def circular(m: Arithmetic, function: str, x: Value) -> Value:
    """sin, cos or tan of any x."""
    f = reals(m, x)
    limit = CONSTANTS[f.dtype].limit

    def is_huge(m: Arithmetic, x: Value) -> Value:
        return m.abs(x) > limit

    def of_huge(m: Arithmetic, x: Value) -> Value:
        a = m.convert(m.abs(x), "f64")
        n, (r, r_low) = reduce_huge(m, m.select(a < inf, a, 2.0**30))
        if f.dtype == "f32":
            short = m.convert(r, "f32")
            r_low = m.convert((r - m.convert(short, "f64")) + r_low, "f32")
            n, r = m.convert(n, "i32"), short
        result = finish(m, function, n, (r, r_low))
        return m.select(m.abs(x) < inf, signed(m, result, x), nan)

    def signed(m: Arithmetic, result: Value, x: Value) -> Value:
        if function == "cos":
            return result
        sign = bits(m, x) & ~f.magnitude_mask
        return m.reinterpret(bits(m, result) ^ sign, f.dtype)

    result = signed(m, finish(m, function, *reduce(m, m.abs(x))), x)
    return m.guarded(function, is_huge, of_huge, result, x)


def sin(m: Arithmetic, x: Value) -> Value:
    """The sine of an angle in radians."""
    return circular(m, "sin", x)


def cos(m: Arithmetic, x: Value) -> Value:
    """The cosine of an angle in radians."""
    return circular(m, "cos", x)


def tan(m: Arithmetic, x: Value) -> Value:
    """The tangent of an angle in radians."""
    return circular(m, "tan", x)


def atan_pair(m: Arithmetic, y: Value, x: Value) -> Pair:
    """``atan(y / x)`` in [0, pi/2] for finite ``y, x >= 0``, not both 0."""
    f = reals(m, x)
    c = CONSTANTS[f.dtype]
    swap = y > x
    large = m.select(swap, y, x)
    small = m.select(swap, x, y)
    factor = unit_scale(m, large)
    large, small = large * factor, small * factor
    turned = small > large * 0.41421356237309503
    zero = m.constant(f.dtype, 0.0)
    difference, difference_low = fast_two_sum(large, -small)
    total, total_low = fast_two_sum(large, small)
    top = m.select(turned, -difference, small)
    top_low = m.select(turned, -difference_low, zero)
    bottom = m.select(turned, total, large)
    bottom_low = m.select(turned, total_low, zero)
    reciprocal = 1.0 / bottom
    t = top * reciprocal
    rest = m.fma(-t, bottom, top) + (top_low - t * bottom_low)
    t, t_low = fast_two_sum(t, rest * reciprocal)
    z = t * t
    tail = m.fma(t * z, polynomial(m, z, c.atan), t_low * (1.0 - z))
    # atan = base + sign * (t + tail), base a multiple of pi/4.
    base = m.select(turned, m.constant(f.dtype, 0.5 * c.half_pi[0]), zero)
    base_low = m.select(turned, m.constant(f.dtype, 0.5 * c.half_pi[1]), zero)
    base = m.select(swap, c.half_pi[0] - base, base)
    base_low = m.select(swap, c.half_pi[1] - base_low, base_low)
    t, tail = m.select(swap, -t, t), m.select(swap, -tail, tail)
    high, low = two_sum(base, t)
    return fast_two_sum(high, low + (tail + base_low))


def atan(m: Arithmetic, x: Value) -> Value:
    """The angle in [-pi/2, pi/2] whose tangent is x."""
    a = m.abs(x)
    most = 2.0 ** (reals(m, x).mantissa + 10)
    bounded = m.select(a < most, a, most)
    high, low = atan_pair(m, bounded, m.constant(m.dtype(x), 1.0))
    result = m.select(x == x, with_sign_of(m, high + low, x), x)
    return m.select(a < 2.0 ** -(reals(m, x).mantissa // 2 + 2), x, result)


def atan2(m: Arithmetic, y: Value, x: Value) -> Value:
    """The angle of the point (x, y), in [-pi, pi]."""
    f = reals(m, x)
    c = CONSTANTS[f.dtype]
    a, b = m.abs(y), m.abs(x)
    both = (a == inf) & (b == inf)
    # Infinite and zero pairs become points on the same ray.
    one, zero = m.constant(f.dtype, 1.0), m.constant(f.dtype, 0.0)
    a_finite = m.select(a == inf, one, m.select(b == inf, zero, a))
    b_finite = m.select(b == inf, one, m.select(a == inf, zero, b))
    a_finite = m.select(both, one, a_finite)
    b_finite = m.select(both | ((a == 0.0) & (b == 0.0)), one, b_finite)
    high, low = atan_pair(m, a_finite, b_finite)
    reflected, reflected_low = fast_two_sum(
        m.constant(f.dtype, 2.0 * c.half_pi[0]), -high
    )
    reflected = reflected + (reflected_low + (2.0 * c.half_pi[1] - low))
    result = m.select(bits(m, x) < 0, reflected, high + low)
    return m.select(either_nan(m, x, y), x + y, with_sign_of(m, result, y))


def asin_parts(m: Arithmetic, x: Value) -> tuple[Value, Value, Value]:
    """``(a < 1/2, asin(a) there, half of acos(a) elsewhere)`` for ``a = |x|``."""
    c = CONSTANTS[m.dtype(x)]
    a = m.abs(x)
    small = a < 0.5
    z = m.select(small, a * a, 0.5 * (1.0 - a))
    tail = z * polynomial(m, z, c.asin)
    zero = m.constant(m.dtype(x), 0.0)
    root, root_low = pair_sqrt(m, (z, zero))
    high = m.select(small, a, root)
    low = m.fma(high, tail, m.select(small, zero, root_low))
    return small, high, low


def asin(m: Arithmetic, x: Value) -> Value:
    """The angle in [-pi/2, pi/2] whose sine is x; NaN outside [-1, 1]."""
    first, second, _ = CONSTANTS[m.dtype(x)].half_pi
    small, high, low = asin_parts(m, x)
    half_pi = m.constant(m.dtype(x), first)
    rest, rest_low = fast_two_sum(half_pi, -2.0 * high)
    large = rest + (rest_low + (second - 2.0 * low))
    return with_sign_of(m, m.abs(m.select(small, high + low, large)), x)


def acos(m: Arithmetic, x: Value) -> Value:
    """The angle in [0, pi] whose cosine is x; NaN outside [-1, 1]."""
    first, second, _ = CONSTANTS[m.dtype(x)].half_pi
    small, high, low = asin_parts(m, x)
    negative = x < 0.0
    # pi/2 -+ asin(a) for a small a; 2 half or pi - 2 half for a large one.
    zero = m.constant(m.dtype(x), 0.0)
    half_pi = m.constant(m.dtype(x), first)
    positive_base = m.select(small, half_pi, zero)
    base = m.select(negative, m.select(small, half_pi, 2.0 * first), positive_base)
    base_low = base * (second / first)
    factor = m.select(small, m.constant(m.dtype(x), 1.0), 2.0)
    minus = small != negative
    high = m.select(minus, -factor * high, factor * high)
    low = m.select(minus, -factor * low, factor * low)
    total, total_low = two_sum(base, high)
    return total + (total_low + (low + base_low))
