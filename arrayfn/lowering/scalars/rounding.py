"""Remainders, comparisons and sign operations of floats, with NumPy's meaning."""

from __future__ import annotations

from math import inf, nan

from arrayfn.lowering.scalars.arithmetic import (
    Arithmetic,
    Value,
    bits,
    reals,
    with_sign_of,
)


def maximum(m: Arithmetic, x: Value, y: Value) -> Value:
    """Return the maximum of two floats: NaN if one is NaN, y if both are zeros.

    If y is a constant, which is usual, the compiler removes the test of y.
    """
    return m.select(y != y, y, m.select(y >= x, y, x))


def minimum(m: Arithmetic, x: Value, y: Value) -> Value:
    """Return the minimum of two floats: NaN if one is NaN, y if both are zeros."""
    return m.select(y != y, y, m.select(y <= x, y, x))


def clamp(m: Arithmetic, x: Value, low: Value, high: Value) -> Value:
    """Return ``minimum(maximum(x, low), high)``, as np.clip."""
    return minimum(m, maximum(m, x, low), high)


def sign(m: Arithmetic, x: Value) -> Value:
    """Return the sign of ``x``: -1, 0 or 1, and NaN for NaN."""
    one = m.constant(m.dtype(x), 1.0)
    return m.select(x > 0.0, one, m.select(x < 0.0, -one, m.select(x == 0.0, 0.0, x)))


def copysign(m: Arithmetic, x: Value, y: Value) -> Value:
    """Return ``x`` with the sign of ``y``."""
    return with_sign_of(m, m.abs(x), y)


def signbit(m: Arithmetic, x: Value) -> Value:
    """Return whether the sign bit of ``x`` is set."""
    return bits(m, x) < 0


def isfinite(m: Arithmetic, x: Value) -> Value:
    """Return whether ``x`` is neither infinite nor NaN."""
    return m.abs(x) < inf


def isinf(m: Arithmetic, x: Value) -> Value:
    """Return whether ``x`` is infinite, of either sign."""
    return m.abs(x) == inf


def isnan(m: Arithmetic, x: Value) -> Value:
    """Return whether ``x`` is NaN, the only value unequal to itself."""
    return x != x


def fmod(m: Arithmetic, x: Value, y: Value) -> Value:
    """Return the exact remainder with the sign of ``x``, as C's fmod.

    Where the quotient has too many bits to be exact, C's own function computes it.
    """
    most = 2.0 ** (reals(m, x).mantissa - 1)

    def is_far(m: Arithmetic, x: Value, y: Value) -> Value:
        """Return whether the quotient is large, or not a number."""
        return ~(m.abs(x / y) < most)

    def of_far(m: Arithmetic, x: Value, y: Value) -> Value:
        """Return the result of C's fmod."""
        return m.exact_fmod(x, y)

    a, b = m.abs(x), m.abs(y)
    quotient = m.trunc(a / b)
    # Exact, because it is a multiple of the smaller argument's last bit and below 2 b.
    # If the quotient was rounded up, the remainder is negative.
    rest = m.fma(-quotient, b, a)
    rest = m.select(b == inf, a, m.select(rest < 0.0, rest + b, rest))
    return m.guarded("fmod", is_far, of_far, with_sign_of(m, m.abs(rest), x), x, y)


def remainder(m: Arithmetic, x: Value, y: Value) -> Value:
    """Return the remainder with the sign of ``y``, as Python's and NumPy's ``%``."""
    rest = fmod(m, x, y)
    shifted = m.select((y < 0.0) != (rest < 0.0), rest + y, rest)
    return m.select(rest == 0.0, with_sign_of(m, m.abs(rest), y), shifted)


def floordiv(m: Arithmetic, x: Value, y: Value) -> Value:
    """Return the floor of the quotient as NumPy's ``//``, in step with ``remainder``.

    ``(x - remainder) / y`` is nearly an integer, and is rounded to it. A zero gets the
    sign of the quotient.
    """
    rest = fmod(m, x, y)
    quotient = (x - rest) / y
    down = (rest != 0.0) & ((y < 0.0) != (rest < 0.0))
    quotient = m.select(down, quotient - 1.0, quotient)
    floor = m.floor(quotient)
    floor = m.select(quotient - floor > 0.5, floor + 1.0, floor)
    ratio = x / y
    zero = with_sign_of(m, m.abs(quotient), ratio)
    floor = m.select(quotient == 0.0, zero, floor)
    return m.select(y == 0.0, ratio, floor)


def nextafter(m: Arithmetic, x: Value, y: Value) -> Value:
    """Return the next representable number from ``x`` towards ``y``.

    Adding 1 to the bits of a float steps away from 0, subtracting 1 towards 0.
    """
    f = reals(m, x)
    raw = bits(m, x)
    away = (y > x) == (x > 0.0)
    one = m.constant(f.integer, 1)
    stepped = m.reinterpret(raw + m.select(away, one, -1), f.dtype)
    # From 0 the next number is the smallest subnormal, whose bits are 1.
    smallest = with_sign_of(m, m.reinterpret(one, f.dtype), y)
    result = m.select(x == 0.0, smallest, stepped)
    result = m.select(x == y, y, result)
    return m.select((x != x) | (y != y), nan, result)
