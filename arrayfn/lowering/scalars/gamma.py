"""The logarithm of the gamma function and its derivative, in float64.

``a < 8`` is shifted close to 2 (or to the positive root) by the recurrence. Larger
arguments use the asymptotic series, and negative ones the reflection formula.
"""

from __future__ import annotations

from math import inf, nan

from arrayfn.lowering.scalars.arithmetic import (
    FORMATS,
    Arithmetic,
    Formula,
    Pair,
    Value,
    bits,
    pair_product,
    pair_quotient,
    polynomial,
    two_product,
    two_sum,
    with_sign_of,
)
from arrayfn.lowering.scalars.exponential import log, log_pair
from arrayfn.lowering.scalars.trigonometric import finish

# lgamma(2 + t) = t P(t) for |t| <= 1/2: 2**-67.
LGAMMA = (
    0.42278433509846713,
    0.3224670334241132,
    -0.06735230105319809,
    0.02058080842778463,
    -0.0073855510286742025,
    0.0028905103307343386,
    -0.0011927539116907524,
    0.0005096695250263021,
    -0.00022315475882500266,
    9.945750665139864e-05,
    -4.492623028160987e-05,
    2.0507292367970076e-05,
    -9.439558394410411e-06,
    4.3742211949535355e-06,
    -2.0387265604948683e-06,
    9.584290694824879e-07,
    -4.5143326539697533e-07,
    2.019216145965021e-07,
    -9.442093385774757e-08,
    6.473980449373881e-08,
    -3.1788881922075804e-08,
)
# lgamma(a) = (a - 1/2) (log(a) - 1) + C + P(1/a**2) / a for a >= 8: 2**-60.
STIRLING = (
    0.08333333333333333,
    -0.0027777777777741,
    0.0007936507898353706,
    -0.0005952366070811184,
    0.0008414728652154978,
    -0.001890540873331661,
    0.005069268988594893,
)
# digamma(3/2 + t) = (3/2 + t - root) P(t) for |t| <= 1/2: 2**-61.
DIGAMMA = (
    0.9510558760318328,
    -0.42362742128146047,
    0.24054248424078736,
    -0.1484049230539199,
    0.09498872445282817,
    -0.061922133271418864,
    0.040760833944741774,
    -0.02697579685572535,
    0.017907248192268275,
    -0.01190821486685582,
    0.007927024137249336,
    -0.005280022807277575,
    0.0035180792668855704,
    -0.0023445978627757184,
    0.001563574027601196,
    -0.0010426199688207288,
    0.0006899426797082744,
    -0.00045835884969132307,
    0.00032689367038367384,
    -0.00022237315973864413,
    9.158732898768994e-05,
    -5.394253060768359e-05,
    0.00012241651197444318,
    -8.656061611020472e-05,
)
# digamma(a) = log(a) - 1 / (2 a) - w P(w), w = 1 / a**2, for a >= 8: 2**-70.
DIGAMMA_ASYMPTOTIC = (
    0.08333333333333333,
    -0.008333333333322632,
    0.00396825396055275,
    -0.004166663977871554,
    0.007575235261446759,
    -0.021033039876517768,
    0.07927971538831387,
    -0.28706483482018763,
)
DIGAMMA_ROOT = (1.4616321449683622, 9.549995429965697e-17)
PI = (3.141592653589793, 1.2246467991473532e-16)


def in_float64(formula: Formula) -> Formula:
    """Make a formula that computes f32 in f64, of a ``formula`` that computes in f64.

    This decorator is for functions that are rarely used.
    """

    def wrapped(m: Arithmetic, x: Value) -> Value:
        """Compute ``formula`` of an f32 or f64 in f64."""
        if m.dtype(x) == "f64":
            return formula(m, x)
        return m.convert(formula(m, m.convert(x, "f64")), "f32")

    wrapped.__doc__ = formula.__doc__
    return wrapped


def of_pi(m: Arithmetic, function: str, a: Value, quarters: int) -> Value:
    """Return sin (up to its sign) or tan of ``pi a + quarters pi/2``, for an f64 ``a``.

    ``function`` is "sin" or "tan". The angle is ``pi r + (n + quarters) pi/2`` with ``n
    = rint(2 a)``; only ``n`` modulo 2 matters.
    """
    n = m.rint(a + a)
    r = a - 0.5 * n
    pi_pair = m.constant("f64", PI[0]), m.constant("f64", PI[1])
    quarters_turned = n - 2.0 * m.floor(0.5 * n) + float(quarters)
    # Adding ``rounding_shift`` puts the integer into the low bits.
    quadrant = bits(m, quarters_turned + FORMATS["f64"].rounding_shift)
    zero = m.constant("f64", 0.0)
    return finish(m, function, quadrant, pair_product(m, (r, zero), pi_pair))


def shift_product(m: Arithmetic, a: Value) -> tuple[Value, Value, Pair]:
    """Return ``(t, top, bottom)`` with ``gamma(a) = gamma(2 + t) top / bottom``.

    ``a`` is from 0 to 8, and t is its distance from the nearest integer. ``top`` is the
    product of a - 1, a - 2, ... down to 2 + t, for an a above 2.5. ``bottom``, a pair,
    is ``a (a + 1)`` for an a near 0, ``a`` for one near 1, else 1.
    """
    one, zero = m.constant("f64", 1.0), m.constant("f64", 0.0)
    nearest = m.rint(a)
    bottom, bottom_low = pair_product(m, (a, zero), two_sum(one, a))
    bottom = m.select(nearest == 0.0, bottom, m.select(nearest == 1.0, a, one))
    bottom_low = m.select(nearest == 0.0, bottom_low, 0.0)
    top = one
    for k in range(1, 7):
        top = m.select(nearest > k + 1.5, top * (a - float(k)), top)
    return a - nearest, top, (bottom, bottom_low)


@in_float64
def lgamma(m: Arithmetic, x: Value) -> Value:
    """Return log |gamma(x)|; infinite at 0 and the negative integers.

    The relative error is large near the zeros at negative arguments.
    """
    a = m.abs(x)
    small = a < 8.0
    bounded = m.select(small, a, 1.0)
    # gamma(a) = gamma(2 + t) top / bottom, where top or bottom is 1.
    t, top, (bottom, bottom_low) = shift_product(m, bounded)
    below = top == 1.0
    product = m.select(below, bottom, top)
    sign = m.select(below, m.constant("f64", -1.0), 1.0)
    log_a, log_low = log_pair(
        m, m.select(small, product, a), m.select(small & below, bottom_low, 0.0)
    )
    # Both parts vanish with t where a is near 1: their leading terms are exact.
    leading, *others = LGAMMA
    first, first_low = two_product(m, t, m.constant("f64", leading))
    total, total_low = two_sum(first, sign * log_a)
    rest = m.fma(t * t, polynomial(m, t, others), first_low)
    series = total + (rest + m.fma(sign, log_low, total_low))
    inverse = 1.0 / a
    correction = inverse * polynomial(m, inverse * inverse, STIRLING)
    factor = a - 0.5
    # The number is log(2 pi) / 2 - 1/2.
    constant = m.fma(factor, log_low, correction + 0.4189385332046727)
    stirling = m.fma(factor, log_a - 1.0, constant)
    result = m.select(small, series, stirling)
    # |gamma(-a)| = pi / (a |sin(pi a)| gamma(a)).
    sine = m.abs(of_pi(m, "sin", m.select(a < 2.0**53, a, 0.0), quarters=0))
    reflected = log(m, PI[0] / (a * sine)) - result
    reflected = m.select(sine == 0.0, inf, reflected)
    # The sign of a tiny argument does not matter, and its sine might underflow.
    result = m.select((x < 0.0) & (a > 2.0**-60), reflected, result)
    result = m.select(a == inf, inf, result)
    return m.select(x == 0.0, inf, result)


@in_float64
def digamma(m: Arithmetic, x: Value) -> Value:
    """Return the derivative of lgamma; infinite at 0, NaN at the negative integers."""
    a = m.abs(x)
    small = a < 8.0
    bounded = m.select(small, a, 1.5)
    one, zero = m.constant("f64", 1.0), m.constant("f64", 0.0)
    # For 1 <= y < 2: digamma(a) = digamma(y) + the sum of 1 / (a - k) for k = 1 to n,
    # where y = a - n; below 1 it is digamma(y) - 1 / a with y = 1 + a.
    n = m.floor(bounded) - 1.0
    below = n < 0.0
    total, total_low = pair_quotient(m, (-one, zero), (bounded, zero))
    total, total_low = m.select(below, total, zero), m.select(below, total_low, zero)
    for k in range(1, 7):
        divisor = m.select(n > k - 0.5, bounded - float(k), m.constant("f64", inf))
        term = 1.0 / divisor
        total, low = two_sum(total, term)
        error = m.fma(-term, divisor, one) * term
        total_low = total_low + low + m.select(n > k - 0.5, error, zero)
    above, above_low = two_sum(one, bounded)
    y = m.select(below, above, bounded - n)
    y_low = m.select(below, above_low, zero)
    # (y - root) P(y - 3/2): the root and the constant of P are pairs.
    root, root_low = DIGAMMA_ROOT
    distance, low = two_sum(y - root, y_low - root_low)
    leading, *others = DIGAMMA
    first, first_low = two_product(m, distance, m.constant("f64", leading))
    shifted = y - 1.5
    rest = m.fma(distance * shifted, polynomial(m, shifted, others), first_low)
    rest = m.fma(low, leading, rest)
    total, low = two_sum(total, first)
    series = total + (low + total_low + rest)
    inverse = 1.0 / a
    w = inverse * inverse
    asymptotic = log(m, a) - m.fma(
        w, polynomial(m, w, DIGAMMA_ASYMPTOTIC), 0.5 * inverse
    )
    result = m.select(small, series, asymptotic)
    # digamma(-a) = digamma(a) + 1 / a + pi cot(pi a), and cot t = -tan(t + pi/2)
    tangent = of_pi(m, "tan", m.select(a < 2.0**53, a, 0.0), quarters=1)
    reflected = (result + inverse) - PI[0] * tangent
    reflected = m.select(m.floor(a) == a, nan, reflected)
    result = m.select(x < 0.0, reflected, result)
    # Near 0 it is -1 / x, which may be infinite.
    return m.select(a < 2.0**-60, -with_sign_of(m, inverse, x), result)
