"""Complex functions of pairs (real, imaginary) of floats.

Formulas follow Kahan, "Branch cuts for complex elementary functions" (1987), and C99
Annex G for infinities. They are accurate to a few ulp of the modulus.
"""

from __future__ import annotations

import math
from math import inf, nan

from arrayfn.lowering.scalars.arithmetic import (
    Arithmetic,
    Value,
    bits,
    two_product,
    two_sum,
    with_sign_of,
)
from arrayfn.lowering.scalars.exponential import exp as real_exp
from arrayfn.lowering.scalars.exponential import log as real_log
from arrayfn.lowering.scalars.exponential import log1p_pair
from arrayfn.lowering.scalars.hyperbolic import cosh as real_cosh
from arrayfn.lowering.scalars.hyperbolic import sinh as real_sinh
from arrayfn.lowering.scalars.inverse_trigonometric import atan2
from arrayfn.lowering.scalars.powers import hypot
from arrayfn.lowering.scalars.rounding import isfinite as real_isfinite
from arrayfn.lowering.scalars.trigonometric import cos as real_cos
from arrayfn.lowering.scalars.trigonometric import sin as real_sin
from arrayfn.lowering.scalars.trigonometric import tan as real_tan

Complex = tuple[Value, Value]
EXP_LIMIT = {"f32": 80.0, "f64": 700.0}
"""Up to here exp does not overflow, and leaves room for a factor."""


def add(m: Arithmetic, x: Complex, y: Complex) -> Complex:
    """Return the sum x + y."""
    return x[0] + y[0], x[1] + y[1]


def sub(m: Arithmetic, x: Complex, y: Complex) -> Complex:
    """Return the difference x - y."""
    return x[0] - y[0], x[1] - y[1]


def mul(m: Arithmetic, x: Complex, y: Complex) -> Complex:
    """Return the product x y."""
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


def square(m: Arithmetic, x: Complex) -> Complex:
    """Return the square of x."""
    return mul(m, x, x)


def div(m: Arithmetic, x: Complex, y: Complex) -> Complex:
    """Return the quotient x / y by Smith's algorithm, as NumPy does.

    It divides by the larger part of y, so that no square overflows.
    """
    a, b = m.abs(y[0]), m.abs(y[1])
    real_larger = a >= b
    large = m.select(real_larger, y[0], y[1])
    small = m.select(real_larger, y[1], y[0])
    ratio = small / large
    # A zero divisor: the parts are divided by 0.0, which gives infinities and NaN.
    zero = (a == 0.0) & (b == 0.0)
    scale = 1.0 / (large + small * ratio)
    # With y = c + i d and |c| >= |d| the quotient of a + i b is
    # (a + b d/c) / (c + d d/c) + i (b - a d/c) / (c + d d/c).
    first, second = (
        m.select(real_larger, x[0], x[1]),
        m.select(real_larger, x[1], -x[0]),
    )
    real = (first + m.select(real_larger, x[1], x[0]) * ratio) * scale
    imaginary = (second - m.select(real_larger, x[0], -x[1]) * ratio) * scale
    return (
        m.select(zero, x[0] / a, real),
        m.select(zero, x[1] / a, imaginary),
    )


def reciprocal(m: Arithmetic, x: Complex) -> Complex:
    """Return 1 / x."""
    dtype = m.dtype(x[0])
    return div(m, (m.constant(dtype, 1.0), m.constant(dtype, 0.0)), x)


def neg(m: Arithmetic, x: Complex) -> Complex:
    """Return -x."""
    return -x[0], -x[1]


def conj(m: Arithmetic, x: Complex) -> Complex:
    """Return the conjugate of x."""
    return x[0], -x[1]


def absolute(m: Arithmetic, x: Complex) -> Value:
    """Return the modulus of x."""
    return hypot(m, *x)


def angle(m: Arithmetic, x: Complex) -> Value:
    """Return the argument (angle) of x, in [-pi, pi]."""
    return atan2(m, x[1], x[0])


def sign(m: Arithmetic, x: Complex) -> Complex:
    """Return x / |x|, or 0 for 0."""
    modulus = hypot(m, *x)
    divisor = m.select(modulus == 0.0, 1.0, modulus)
    return x[0] / divisor, x[1] / divisor


def eq(m: Arithmetic, x: Complex, y: Complex) -> Value:
    """Return whether both parts are equal."""
    return (x[0] == y[0]) & (x[1] == y[1])


def ne(m: Arithmetic, x: Complex, y: Complex) -> Value:
    """Return whether a part differs."""
    return (x[0] != y[0]) | (x[1] != y[1])


def isfinite(m: Arithmetic, x: Complex) -> Value:
    """Return whether both parts are finite."""
    return real_isfinite(m, x[0]) & real_isfinite(m, x[1])


def isinf(m: Arithmetic, x: Complex) -> Value:
    """Return whether a part is infinite."""
    return (m.abs(x[0]) == inf) | (m.abs(x[1]) == inf)


def isnan(m: Arithmetic, x: Complex) -> Value:
    """Return whether a part is NaN."""
    return (x[0] != x[0]) | (x[1] != x[1])


def select(m: Arithmetic, condition: Value, x: Complex, y: Complex) -> Complex:
    """Return x where the condition holds, else y."""
    return m.select(condition, x[0], y[0]), m.select(condition, x[1], y[1])


def polar(m: Arithmetic, log_modulus: Value, angle: Value) -> Complex:
    """Return e**log_modulus (cos angle + i sin angle).

    A large modulus is multiplied in two steps of its square root, so that nothing
    overflows before the end.
    """
    large = log_modulus > EXP_LIMIT[m.dtype(angle)]
    modulus = real_exp(m, m.select(large, 0.5 * log_modulus, log_modulus))
    again = m.select(large, modulus, 1.0)
    real = real_cos(m, angle) * modulus * again
    imaginary = real_sin(m, angle) * modulus * again
    # C99's special cases: a zero angle keeps its sign, and an angle that is infinite or
    # NaN does not matter if the modulus is 0, or (for the real part) infinite.
    imaginary = m.select(angle == 0.0, angle, imaginary)
    vanishes = (log_modulus == -inf) & ~(m.abs(angle) < inf)
    zero = m.constant(m.dtype(angle), 0.0)
    infinite = (log_modulus == inf) & ~(m.abs(angle) < inf)
    real = m.select(vanishes, zero, m.select(infinite, inf, real))
    return real, m.select(vanishes, zero, imaginary)


def exp(m: Arithmetic, x: Complex) -> Complex:
    """Return e**x."""
    return polar(m, *x)


def log(m: Arithmetic, x: Complex) -> Complex:
    """Return the principal logarithm ``log |x| + i angle(x)``."""
    a, b = m.abs(x[0]), m.abs(x[1])
    # Half of large numbers, whose modulus may overflow.
    huge = m.select(a > b, a, b) > (2.0**100 if m.dtype(a) == "f32" else 2.0**1000)
    zero, one = (m.constant(m.dtype(a), x) for x in (0.0, 1.0))
    scale = m.select(huge, 0.5, one)
    modulus = hypot(m, a * scale, b * scale)
    # Near 1, log1p(a**2 + b**2 - 1) / 2 with all bits of the squares.
    near = (modulus > 0.5) & (modulus < 2.0)
    large = m.select(near, m.select(a > b, a, b), 1.0)
    small = m.select(near, m.select(a > b, b, a), 0.0)
    first, first_low = two_product(m, large, large)
    second, second_low = two_product(m, small, small)
    rest = first - 1.0
    rest_low = (first - (rest + 1.0)) + first_low
    high, low = two_sum(rest, second)
    high, low = two_sum(high, low + (rest_low + second_low))
    far = real_log(m, modulus) + m.select(huge, math.log(2.0), zero)
    result = m.select(near, 0.5 * log1p_pair(m, high, low), far)
    return result, atan2(m, x[1], x[0])


def sqrt(m: Arithmetic, x: Complex) -> Complex:
    """Return the principal square root.

    With x = a + i b and ``root = sqrt((|a| + |x|) / 2)``, the parts are ``root`` and
    ``|b| / (2 root)``, exchanged for a negative a, and the imaginary one has the sign
    of b. Very large and very small x are scaled by ``down``, a power of 4, and the
    root is scaled back.
    """
    dtype = m.dtype(x[0])
    a, b = m.abs(x[0]), m.abs(x[1])
    large = m.select(a > b, a, b)
    one = m.constant(dtype, 1.0)
    huge, tiny = (2.0**100, 2.0**-70) if dtype == "f32" else (2.0**1000, 2.0**-900)
    down = m.select(large > huge, one * 2.0**-4, m.select(large < tiny, 2.0**60, one))
    back = m.select(large > huge, one * 2.0**2, m.select(large < tiny, 2.0**-30, one))
    a_scaled, b_scaled = a * down, b * down
    root = m.sqrt(0.5 * (a_scaled + hypot(m, a_scaled, b_scaled)))
    other = m.select(root > 0.0, 0.5 * b_scaled / root, 0.0)
    root, other = root * back, other * back
    negative = bits(m, x[0]) < 0
    real = m.select(negative, other, root)
    imaginary = with_sign_of(m, m.abs(m.select(negative, root, other)), x[1])
    # Infinities, as in C99: of a, with a finite b; and of b, with any a.
    infinite_a = (a == inf) & (x[1] == x[1])
    zero = m.constant(dtype, 0.0)
    real = m.select(infinite_a, m.select(negative, zero, inf), real)
    edge = with_sign_of(m, m.select(negative, m.constant(dtype, inf), zero), x[1])
    imaginary = m.select(infinite_a, edge, imaginary)
    real = m.select(b == inf, inf, real)
    return real, m.select(b == inf, x[1], imaginary)


def cosh_sinh(m: Arithmetic, x: Value, with_cosh: Value, with_sinh: Value) -> Complex:
    """Return ``(with_cosh * cosh x, with_sinh * sinh x)``.

    ``with_cosh`` and ``with_sinh`` are real factors, the sine and cosine of the other
    part. For a large x, cosh and sinh are ``e**|x| / 2`` up to the sign, multiplied in
    two steps, so that nothing overflows before the end.
    """
    a = m.abs(x)
    large = a > EXP_LIMIT[m.dtype(x)]
    half = real_exp(m, 0.5 * a)
    moderate = m.select(large, 0.0, x)
    cosh_value = m.select(large, half, real_cosh(m, moderate))
    sinh_value = m.select(large, with_sign_of(m, half, x), real_sinh(m, moderate))
    again = m.select(large, 0.5 * half, 1.0)
    zero = m.constant(m.dtype(x), 0.0)
    first = with_cosh * cosh_value * again
    second = with_sinh * sinh_value * again
    # Zero times an infinity is zero (C99's convention).
    first = m.select(with_cosh == 0.0, with_cosh, first)
    sign = with_sign_of(m, zero + 1.0, x)
    return first, m.select(with_sinh == 0.0, with_sinh * sign, second)


def sinh(m: Arithmetic, x: Complex) -> Complex:
    """Return the hyperbolic sine."""
    imaginary, real = cosh_sinh(m, x[0], real_sin(m, x[1]), real_cos(m, x[1]))
    return real, imaginary


def cosh(m: Arithmetic, x: Complex) -> Complex:
    """Return the hyperbolic cosine."""
    return cosh_sinh(m, x[0], real_cos(m, x[1]), real_sin(m, x[1]))


def sin(m: Arithmetic, x: Complex) -> Complex:
    """Return the sine."""
    return cosh_sinh(m, x[1], real_sin(m, x[0]), real_cos(m, x[0]))


def cos(m: Arithmetic, x: Complex) -> Complex:
    """Return the cosine."""
    return cosh_sinh(m, x[1], real_cos(m, x[0]), -real_sin(m, x[0]))


def tanh(m: Arithmetic, x: Complex) -> Complex:
    """Return the hyperbolic tangent.

    For x = a + i b this is Kahan's formula, with ``t = tan b``, ``s = sinh a``, ``beta
    = 1 + t**2`` and ``rho = sqrt(1 + s**2)``: ``(beta rho s + i t) / (1 + beta s**2)``.
    For ``|a| > 20`` it is ``1 + 4 i sin(b) cos(b) e**(-2 |a|)``, with the sign of a.
    """
    a = m.abs(x[0])
    large = a > 20.0
    t = real_tan(m, x[1])
    s = real_sinh(m, m.select(large, 0.0, x[0]))
    beta = m.fma(t, t, m.constant(m.dtype(t), 1.0))
    rho = m.sqrt(m.fma(s, s, m.constant(m.dtype(t), 1.0)))
    divisor = m.fma(beta * s, s, m.constant(m.dtype(t), 1.0))
    real, imaginary = beta * rho * s / divisor, t / divisor
    # tan is finite, but its square may be infinite: then tanh is coth(a).
    steep = ~(beta < inf) & (t == t)
    real = m.select(steep, rho / s, real)
    imaginary = m.select(steep, with_sign_of(m, s * 0.0, t), imaginary)
    decay = real_exp(m, -2.0 * a)
    sine, cosine = real_sin(m, x[1]), real_cos(m, x[1])
    far = m.select(m.abs(x[1]) < inf, 4.0 * sine * cosine * decay, 0.0)
    one = with_sign_of(m, m.constant(m.dtype(t), 1.0), x[0])
    return m.select(large, one, real), m.select(large, far, imaginary)


def tan(m: Arithmetic, x: Complex) -> Complex:
    """Return the tangent ``-i tanh(i x)``."""
    real, imaginary = tanh(m, (-x[1], x[0]))
    return imaginary, -real


def pow(m: Arithmetic, x: Complex, y: Complex) -> Complex:
    """Return x**y = exp(y log x), and 1 for y = 0; computed in float64.

    For x = 0 the result is 0 if the real part of y is positive, else NaN, as in NumPy.
    """
    dtype = m.dtype(x[0])
    base = tuple(m.convert(part, "f64") for part in x)
    exponent = tuple(m.convert(part, "f64") for part in y)
    zero_base = (base[0] == 0.0) & (base[1] == 0.0)
    base = (m.select(zero_base, 1.0, base[0]), base[1])
    product = mul(m, (exponent[0], exponent[1]), log(m, base))
    result = polar(m, *product)
    zero = m.constant("f64", 0.0)
    at_zero = m.select(exponent[0] > 0.0, zero, m.constant("f64", nan))
    one = (exponent[0] == 0.0) & (exponent[1] == 0.0)
    real = m.select(zero_base, at_zero, result[0])
    imaginary = m.select(zero_base, at_zero, result[1])
    real, imaginary = m.select(one, 1.0, real), m.select(one, 0.0, imaginary)
    return m.convert(real, dtype), m.convert(imaginary, dtype)
