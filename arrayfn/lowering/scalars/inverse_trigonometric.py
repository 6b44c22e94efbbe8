"""Inverse circular functions."""

from __future__ import annotations

from math import inf

from arrayfn.lowering.scalars.argument_reduction import HALF_PI
from arrayfn.lowering.scalars.arithmetic import (
    Arithmetic,
    Pair,
    Value,
    bits,
    either_nan,
    fast_two_sum,
    pair_sqrt,
    polynomial,
    reals,
    two_sum,
    with_sign_of,
)
from arrayfn.lowering.scalars.powers import unit_scale

# asin x = x + x**3 P(x**2) for |x| <= 1/2: 2**-27.6, 2**-59.8.
ASIN = {
    "f32": (
        0.166667539188157285,
        0.074952419030012631,
        0.0454770910043870375,
        0.0241476162581940746,
        0.0422185723327607942,
    ),
    "f64": (
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
}
# atan x = x + x**3 P(x**2) for |x| <= tan(pi/8): 2**-30.5, 2**-64.
ATAN = {
    "f32": (
        -0.333333154211899393,
        0.1999848395761754,
        -0.142437388025579387,
        0.105951435339135924,
        -0.0608117102785033343,
    ),
    "f64": (
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
}


def atan_pair(m: Arithmetic, y: Value, x: Value) -> Pair:
    """Return ``atan(y / x)`` in [0, pi/2] as a pair, for finite ``y, x >= 0``.

    They are not both 0. The quotient is reduced to ``|t| <= tan(pi/8)``: with ``small /
    large`` above that, ``atan(small / large) = pi/4 + atan(t)`` with ``t = (small -
    large) / (small + large)`` (``turned``), and ``atan(y / x) = pi/2 - atan(x / y)``
    (``swap``).
    """
    f = reals(m, x)
    half_pi = HALF_PI[f.dtype]
    swap = y > x
    large = m.select(swap, y, x)
    small = m.select(swap, x, y)
    factor = unit_scale(m, large)
    large, small = large * factor, small * factor
    turned = small > large * 0.41421356237309503  # tan(pi/8)
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
    tail = m.fma(t * z, polynomial(m, z, ATAN[f.dtype]), t_low * (1.0 - z))
    # atan = base + sign * (t + tail), base a multiple of pi/4.
    base = m.select(turned, m.constant(f.dtype, 0.5 * half_pi[0]), zero)
    base_low = m.select(turned, m.constant(f.dtype, 0.5 * half_pi[1]), zero)
    base = m.select(swap, half_pi[0] - base, base)
    base_low = m.select(swap, half_pi[1] - base_low, base_low)
    t, tail = m.select(swap, -t, t), m.select(swap, -tail, tail)
    high, low = two_sum(base, t)
    return fast_two_sum(high, low + (tail + base_low))


def atan(m: Arithmetic, x: Value) -> Value:
    """Return the angle in [-pi/2, pi/2] whose tangent is x."""
    a = m.abs(x)
    most = 2.0 ** (reals(m, x).mantissa + 10)  # from here on the result is pi/2
    bounded = m.select(a < most, a, most)
    high, low = atan_pair(m, bounded, m.constant(m.dtype(x), 1.0))
    result = m.select(x == x, with_sign_of(m, high + low, x), x)
    # Of a tiny x the result rounds to x.
    return m.select(a < 2.0 ** -(reals(m, x).mantissa // 2 + 2), x, result)


def atan2(m: Arithmetic, y: Value, x: Value) -> Value:
    """Return the angle of the point (x, y), in [-pi, pi]."""
    f = reals(m, x)
    half_pi = HALF_PI[f.dtype]
    a, b = m.abs(y), m.abs(x)
    both = (a == inf) & (b == inf)
    # Points with infinite or two zero coordinates are replaced by finite points on the
    # same ray, other than 0.
    one, zero = m.constant(f.dtype, 1.0), m.constant(f.dtype, 0.0)
    a_finite = m.select(a == inf, one, m.select(b == inf, zero, a))
    b_finite = m.select(b == inf, one, m.select(a == inf, zero, b))
    a_finite = m.select(both, one, a_finite)
    b_finite = m.select(both | ((a == 0.0) & (b == 0.0)), one, b_finite)
    high, low = atan_pair(m, a_finite, b_finite)
    # For a negative x the angle is pi minus that; it gets the sign of y.
    reflected, reflected_low = fast_two_sum(
        m.constant(f.dtype, 2.0 * half_pi[0]), -high
    )
    reflected = reflected + (reflected_low + (2.0 * half_pi[1] - low))
    result = m.select(bits(m, x) < 0, reflected, high + low)
    return m.select(either_nan(m, x, y), x + y, with_sign_of(m, result, y))


def asin_parts(m: Arithmetic, x: Value) -> tuple[Value, Value, Value]:
    """Return ``(a < 1/2, high, low)`` for ``a = |x|``, from which asin and acos follow.

    ``high + low`` is asin(a) where ``a < 1/2``. Elsewhere it is half of acos(a), which
    is ``asin(sqrt((1 - a) / 2))``.
    """
    a = m.abs(x)
    small = a < 0.5
    z = m.select(small, a * a, 0.5 * (1.0 - a))
    tail = z * polynomial(m, z, ASIN[m.dtype(x)])
    zero = m.constant(m.dtype(x), 0.0)
    root, root_low = pair_sqrt(m, (z, zero))
    high = m.select(small, a, root)
    low = m.fma(high, tail, m.select(small, zero, root_low))
    return small, high, low


def asin(m: Arithmetic, x: Value) -> Value:
    """Return the angle in [-pi/2, pi/2] whose sine is x; NaN outside [-1, 1].

    For a large x it is ``pi/2 - acos(x)``.
    """
    first, second, _ = HALF_PI[m.dtype(x)]
    small, high, low = asin_parts(m, x)
    half_pi = m.constant(m.dtype(x), first)
    rest, rest_low = fast_two_sum(half_pi, -2.0 * high)
    large = rest + (rest_low + (second - 2.0 * low))
    return with_sign_of(m, m.abs(m.select(small, high + low, large)), x)


def acos(m: Arithmetic, x: Value) -> Value:
    """Return the angle in [0, pi] whose cosine is x; NaN outside [-1, 1]."""
    first, second, _ = HALF_PI[m.dtype(x)]
    small, high, low = asin_parts(m, x)
    negative = x < 0.0
    # base + factor * (high + low) is pi/2 - asin(a) or pi/2 + asin(a) for a small a,
    # and acos(a) or pi - acos(a), of which high + low is half, for a large one.
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
