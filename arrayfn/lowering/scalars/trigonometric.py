"""Circular functions, by polynomials of the reduced argument (minimax)."""

from __future__ import annotations

from math import inf, nan

from arrayfn.lowering.scalars.argument_reduction import LIMIT, reduce, reduce_huge
from arrayfn.lowering.scalars.arithmetic import (
    Arithmetic,
    Pair,
    Value,
    bits,
    fast_two_sum,
    polynomial,
    reals,
)

# sin r = r + r**3 S(r**2) for |r| <= pi/4: 2**-37.6, 2**-58.
SIN = {
    "f32": (
        -0.166666666414329704,
        0.00833332936270485873,
        -0.000198393272227368865,
        2.71823781440406238e-6,
    ),
    "f64": (
        -0.166666666666666317,
        0.00833333333332231612,
        -0.000198412698297255403,
        2.75573136620799463e-6,
        -2.50507532573292321e-8,
        1.58965040534001172e-10,
    ),
}
# cos r = 1 - r**2/2 + r**4 C(r**2) for |r| <= pi/4: 2**-43.2, 2**-64.
COS = {
    "f32": (
        0.0416666666224755093,
        -0.00138888837225205264,
        0.0000247995117360409272,
        -2.72095452663134111e-7,
    ),
    "f64": (
        0.0416666666666665988,
        -0.0013888888888873993,
        0.0000248015872893963147,
        -2.75573143264304174e-7,
        2.08757196131814019e-9,
        -1.13594515052758789e-11,
    ),
}


def sin_polynomial(m: Arithmetic, r: Pair, z: Value) -> Pair:
    """Return the sine of a reduced angle ``r``, a pair, as an unevaluated sum.

    ``z`` is the square of its high part.
    """
    high, low = r
    tail = high * z * polynomial(m, z, SIN[m.dtype(z)])
    return high, m.fma(low, 1.0 - 0.5 * z, tail)


def cos_polynomial(m: Arithmetic, r: Pair, z: Value) -> Pair:
    """Return the cosine of a reduced angle ``r``, a pair, as an unevaluated sum.

    ``z`` is the square of its high part.
    """
    high, low = r
    half = 0.5 * z
    one, one_low = fast_two_sum(m.constant(m.dtype(z), 1.0), -half)
    tail = z * z * polynomial(m, z, COS[m.dtype(z)])
    # The rounding error of the square affects the last half bit.
    square_low = m.fma(high, high, -z)
    return one, one_low + (tail - m.fma(high, low, 0.5 * square_low))


def finish(m: Arithmetic, function: str, n: Value, r: Pair) -> Value:
    """Return sin, cos or tan of the angle ``n pi/2 + r``; only n modulo 4 counts.

    ``function`` is "sin", "cos" or "tan". r is a pair. An odd n exchanges the sine and
    the cosine of r. The sine is negative for n modulo 4 of 2 and 3, the cosine for 1
    and 2. The tangent is the quotient of two unevaluated sums.
    """
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
        value, quadrant = m.select(odd, c, s), n
    else:
        value, quadrant = m.select(odd, s, c), n + 1
    f = reals(m, value)
    # Bit 1 of the quadrant, moved to the sign bit, inverts the sign.
    return m.reinterpret(bits(m, value) ^ ((quadrant & 2) << (f.bits - 2)), f.dtype)


def circular(m: Arithmetic, function: str, x: Value) -> Value:
    """Return sin, cos or tan of any x; ``function`` is "sin", "cos" or "tan".

    Angles above ``LIMIT`` are reduced by ``reduce_huge``, which is called only where it
    is needed.
    """
    f = reals(m, x)
    limit = LIMIT[f.dtype]

    def is_huge(m: Arithmetic, x: Value) -> Value:
        """Return whether ``reduce`` is not accurate for ``x``."""
        return m.abs(x) > limit

    def of_huge(m: Arithmetic, x: Value) -> Value:
        """Compute the function of a huge ``x`` by ``reduce_huge``, in f64.

        The result for infinities and NaN is NaN.
        """
        a = m.convert(m.abs(x), "f64")
        n, (r, r_low) = reduce_huge(m, m.select(a < inf, a, 2.0**30))
        if f.dtype == "f32":
            short = m.convert(r, "f32")
            r_low = m.convert((r - m.convert(short, "f64")) + r_low, "f32")
            n, r = m.convert(n, "i32"), short
        result = finish(m, function, n, (r, r_low))
        return m.select(m.abs(x) < inf, signed(m, result, x), nan)

    def signed(m: Arithmetic, result: Value, x: Value) -> Value:
        """Return the result for ``x``, given that for ``abs(x)``: sin, tan are odd."""
        if function == "cos":
            return result
        sign = bits(m, x) & ~f.magnitude_mask
        return m.reinterpret(bits(m, result) ^ sign, f.dtype)

    result = signed(m, finish(m, function, *reduce(m, m.abs(x))), x)
    return m.guarded(function, is_huge, of_huge, result, x)


def sin(m: Arithmetic, x: Value) -> Value:
    """Return the sine of an angle in radians."""
    return circular(m, "sin", x)


def cos(m: Arithmetic, x: Value) -> Value:
    """Return the cosine of an angle in radians."""
    return circular(m, "cos", x)


def tan(m: Arithmetic, x: Value) -> Value:
    """Return the tangent of an angle in radians."""
    return circular(m, "tan", x)
