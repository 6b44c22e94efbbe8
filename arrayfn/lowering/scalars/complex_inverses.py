"""Complex inverse circular and hyperbolic functions, and exponentials near 0.

After Kahan, "Branch cuts for complex elementary functions" (1987). Cuts are those of
C99, and infinities those of its Annex G. Errors are a few ulp of the modulus.
"""

from __future__ import annotations

from math import inf, pi

from arrayfn.lowering.scalars import complexes
from arrayfn.lowering.scalars.arithmetic import (
    Arithmetic,
    Value,
    bits,
    reals,
    two_product,
    two_sum,
    with_sign_of,
)
from arrayfn.lowering.scalars.complexes import EXP_LIMIT, Complex, polar, sqrt
from arrayfn.lowering.scalars.exponential import (
    CONSTANTS,
    log1p_pair,
)
from arrayfn.lowering.scalars.exponential import (
    expm1 as real_expm1,
)
from arrayfn.lowering.scalars.exponential import (
    log as real_log,
)
from arrayfn.lowering.scalars.exponential import (
    log1p as real_log1p,
)
from arrayfn.lowering.scalars.hyperbolic import asinh as real_asinh
from arrayfn.lowering.scalars.inverse_trigonometric import atan2
from arrayfn.lowering.scalars.powers import hypot
from arrayfn.lowering.scalars.trigonometric import cos as real_cos
from arrayfn.lowering.scalars.trigonometric import sin as real_sin


def _huge(m: Arithmetic, z: Complex) -> Value:
    """Return whether 1 is negligible in a sum with the square of z.

    The square is then above about ``2**(mantissa + 8)``: 1 is far below its last bit.
    """
    x, y = z
    limit = 2.0 ** (reals(m, x).mantissa // 2 + 4)
    return (m.abs(x) > limit) | (m.abs(y) > limit)


def _log_twice(m: Arithmetic, z: Complex) -> Value:
    """Return log(2 |z|) for a huge z, from |z / 2|, which does not overflow."""
    x, y = z
    half_modulus = hypot(m, 0.5 * x, 0.5 * y)
    return real_log(m, half_modulus) + 2.0 * CONSTANTS[m.dtype(half_modulus)].ln2[0]


def _one_if_huge(m: Arithmetic, z: Complex, huge: Value) -> Complex:
    """Return z, or 1 + i where it is ``huge``, so that formulas do not overflow."""
    x, y = z
    one = m.constant(m.dtype(x), 1.0)
    return m.select(huge, one, x), m.select(huge, one, y)


def asinh(m: Arithmetic, z: Complex) -> Complex:
    """Return the inverse hyperbolic sine.

    Kahan's formulas: with ``a = sqrt(1 - i z)`` and ``b = sqrt(1 + i z)`` the real part
    is ``asinh(im(conj(a) b))`` and the imaginary part ``atan2(y, re(a b))``. A huge z
    gives ``log(2 |z|)`` with the sign of x, and the angle of ``|x| + i y``.
    """
    z_real, z_imaginary = z
    huge = _huge(m, z)
    x, y = _one_if_huge(m, z, huge)
    a_real, a_imaginary = sqrt(m, (1.0 + y, -x))
    b_real, b_imaginary = sqrt(m, (1.0 - y, x))
    real = real_asinh(m, a_real * b_imaginary - b_real * a_imaginary)
    imaginary = atan2(m, y, a_real * b_real - a_imaginary * b_imaginary)
    real = m.select(huge, with_sign_of(m, _log_twice(m, z), z_real), real)
    imaginary = m.select(huge, atan2(m, z_imaginary, m.abs(z_real)), imaginary)
    # A real NaN stays real.
    is_real_nan = (z_imaginary == 0.0) & (z_real != z_real)
    return real, m.select(is_real_nan, z_imaginary, imaginary)


def acosh(m: Arithmetic, z: Complex) -> Complex:
    """Return the inverse hyperbolic cosine, whose real part is not negative.

    Kahan's formulas: with ``a = sqrt(z - 1)`` and ``b = sqrt(z + 1)`` the real part is
    ``asinh(re(conj(a) b))`` and the imaginary part ``2 atan(im(a) / re(b))``. A huge z
    gives ``log(2 |z|)`` and the angle of z.
    """
    z_real, z_imaginary = z
    huge = _huge(m, z)
    x, y = _one_if_huge(m, z, huge)
    a_real, a_imaginary = sqrt(m, (x - 1.0, y))
    b_real, b_imaginary = sqrt(m, (x + 1.0, y))
    real = real_asinh(m, a_real * b_real + a_imaginary * b_imaginary)
    imaginary = 2.0 * atan2(m, a_imaginary, b_real)
    real = m.select(huge, _log_twice(m, z), real)
    imaginary = m.select(huge, atan2(m, z_imaginary, z_real), imaginary)
    # On the imaginary axis the imaginary part is pi/2 for every y, also for NaN.
    half_pi = m.constant(m.dtype(x), 0.5 * pi)
    is_imaginary_nan = (z_real == 0.0) & (z_imaginary != z_imaginary)
    return real, m.select(is_imaginary_nan, half_pi, imaginary)


def acos(m: Arithmetic, z: Complex) -> Complex:
    """Return the inverse cosine, whose real part is in [0, pi].

    Kahan's formulas: with ``a = sqrt(1 - z)`` and ``b = sqrt(1 + z)`` the real part is
    ``2 atan(re(a) / re(b))`` and the imaginary part ``asinh(im(conj(b) a))``. A huge z
    gives the angle of ``x + i |y|`` and ``-log(2 |z|)`` with the sign of y.
    """
    z_real, z_imaginary = z
    huge = _huge(m, z)
    x, y = _one_if_huge(m, z, huge)
    a_real, a_imaginary = sqrt(m, (1.0 - x, -y))
    b_real, b_imaginary = sqrt(m, (1.0 + x, y))
    real = 2.0 * atan2(m, a_real, b_real)
    imaginary = real_asinh(m, b_real * a_imaginary - b_imaginary * a_real)
    real = m.select(huge, atan2(m, m.abs(z_imaginary), z_real), real)
    log_twice = with_sign_of(m, _log_twice(m, z), -z_imaginary)
    imaginary = m.select(huge, log_twice, imaginary)
    # On the imaginary axis the real part is pi/2 for every y, also for NaN.
    half_pi = m.constant(m.dtype(x), 0.5 * pi)
    is_imaginary_nan = (z_real == 0.0) & (z_imaginary != z_imaginary)
    return m.select(is_imaginary_nan, half_pi, real), imaginary


def asin(m: Arithmetic, z: Complex) -> Complex:
    """Return the inverse sine ``-i asinh(i z)``, with real part in [-pi/2, pi/2]."""
    real, imaginary = asinh(m, (-z[1], z[0]))
    return imaginary, -real


def atanh(m: Arithmetic, z: Complex) -> Complex:
    """Return the inverse hyperbolic tangent.

    It is computed for ``x + i a`` with positive x and a, and then gets its signs: the
    function is odd, and conjugates give conjugates. The parts are ``log1p(4 x / ((1 -
    x)**2 + a**2)) / 4`` and ``atan2(2 a, (1 - x) (1 + x) - a**2) / 2``. Points near 1
    (``at_one``), where both are infinite or undefined, and huge points have formulas of
    their own.
    """
    f = reals(m, z[0])
    negative = bits(m, z[0]) < 0
    x, y = m.abs(z[0]), m.select(negative, -z[1], z[1])
    a = m.abs(y)
    zero, one = m.constant(f.dtype, 0.0), m.constant(f.dtype, 1.0)
    # Of a huge z the angle is pi/2 - 1 / |z|, which rounds to pi/2.
    most = 2.0 ** (f.mantissa + 2)
    huge = (x > most) | (a > most)
    near_x, near_a = m.select(huge, zero, x), m.select(huge, one, a)
    left = 1.0 - near_x
    # a**2 may underflow, and matters only at x = 1.
    tiny = near_a < 2.0 ** -(f.bias // 2)
    at_one = (near_x == 1.0) & tiny
    safe = m.select(at_one, one, near_a)
    square = safe * safe
    real = 0.25 * real_log1p(m, 4.0 * near_x / (left * left + square))
    # At 1 + i a the real part is log(2 / a) / 2.
    real_at_one = real_log(m, m.select(at_one & (near_a > 0.0), near_a, one))
    real_at_one = 0.5 * (CONSTANTS[f.dtype].ln2[0] - real_at_one)
    real_at_one = m.select(near_a == 0.0, inf, real_at_one)
    real = m.select(at_one, real_at_one, real)
    angle = 0.5 * atan2(m, 2.0 * near_a, left * (1.0 + near_x) - square)
    quarter = m.constant(f.dtype, 0.25 * pi)
    angle = m.select(at_one, m.select(near_a == 0.0, near_a, quarter), angle)
    # Of a huge z the real part is x / |z|**2.
    modulus = hypot(m, 0.5 * x, 0.5 * y)
    far = m.select(modulus == inf, zero, 0.25 * x / modulus / modulus)
    half_pi = m.constant(f.dtype, 0.5 * pi)
    real = m.select(huge, far, real)
    # Of a huge z the angle is NaN if a part is NaN, unless a is infinite.
    unknown = (a != a) | ((x != x) & (a < inf))
    angle = m.select(huge, m.select(unknown, x + a, half_pi), angle)
    # The real part is 0 on the imaginary axis for every y.
    real = m.select((x == 0.0) & (a != a), zero, real)
    angle = with_sign_of(m, angle, y)
    return (
        m.select(negative, -real, real),
        m.select(negative, -angle, angle),
    )


def atan(m: Arithmetic, z: Complex) -> Complex:
    """Return the inverse tangent ``-i atanh(i z)``, with real part in [-pi/2, pi/2]."""
    real, imaginary = atanh(m, (-z[1], z[0]))
    return imaginary, -real


def expm1(m: Arithmetic, z: Complex) -> Complex:
    """Return e**z - 1, accurate near 0.

    With z = x + i y, the real part is ``expm1(x) cos(y) - 2 sin(y / 2)**2``.
    """
    real, imaginary = polar(m, *z)
    moderate = (m.abs(z[0]) < EXP_LIMIT[m.dtype(z[0])]) & (m.abs(z[1]) < inf)
    zero = m.constant(m.dtype(z[0]), 0.0)
    x, y = m.select(moderate, z[0], zero), m.select(moderate, z[1], zero)
    half = real_sin(m, 0.5 * y)
    near = m.fma(real_expm1(m, x), real_cos(m, y), -2.0 * half * half)
    return m.select(moderate, near, real - 1.0), imaginary


def log1p(m: Arithmetic, z: Complex) -> Complex:
    """Return log(1 + z), accurate near 0."""
    x, y = z
    far, angle = complexes.log(m, (1.0 + x, y))
    near = (m.abs(x) < 0.5) & (m.abs(y) < 0.5)
    zero = m.constant(m.dtype(x), 0.0)
    a, b = m.select(near, x, zero), m.select(near, y, zero)
    # log1p(2 a + a**2 + b**2) / 2 with all bits of the squares.
    first, first_low = two_product(m, a, a)
    second, second_low = two_product(m, b, b)
    high, low = two_sum(2.0 * a, first)
    high, rest = two_sum(high, second)
    low = low + (rest + (first_low + second_low))
    high, low = two_sum(high, low)
    return m.select(near, 0.5 * log1p_pair(m, high, low), far), angle
