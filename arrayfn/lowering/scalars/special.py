"""The error function, its relatives, and the gamma function's logarithm."""

from __future__ import annotations

from math import inf, log, nan, pi

from arrayfn.lowering.scalars.arithmetic import (
    Arithmetic,
    Value,
    fast_two_sum,
    pair_product,
    polynomial,
    reals,
    two_product,
    with_sign_of,
)
from arrayfn.lowering.scalars.exponential import exp_pair, log_sum, scale
from arrayfn.lowering.scalars.exponential import log as logarithm
from arrayfn.lowering.scalars.exponential import log1p
from arrayfn.lowering.scalars.trigonometric import finish, reduce

# erf x = x + x P(x**2) for |x| <= 1: 2**-35, 2**-69.
ERF = {
    "f32": (
        0.128379167063178358,
        -0.376126384839539327,
        0.112837827488875241,
        -0.0268654458933599859,
        0.00522107501721732708,
        -0.000848471269566868045,
        0.000112705487627922659,
        -9.68013705201456867e-6,
    ),
    "f64": (
        0.128379167095512574,
        -0.376126389031837524,
        0.112837916709551204,
        -0.0268661706451298681,
        0.00522397762542360974,
        -0.000854832702195599487,
        0.000120553329038118402,
        -0.000014925647594489846,
        1.64620459806490943e-6,
        -1.63646495557933077e-7,
        1.47924697101036333e-8,
        -1.21649691462244254e-9,
        8.71046760974204284e-11,
        -4.23313363265233548e-12,
    ),
}
# (1 + 2 x) e**(x**2) erfc x = P((x - K) / (x + K)) for 0 <= x: K = 2, 2**-25.5 up to
# 11; K = 4, 2**-56 up to 28 (after N. Juffa's erfcx).
ERFCX_CENTER = {"f32": 2.0, "f64": 4.0}
ERFCX = {
    "f32": (
        1.27697839730419203,
        -0.0927640110474365727,
        -0.166031720346657818,
        0.164055897199095576,
        -0.054200822837686406,
        -0.00806150374737797105,
        0.00861848197726380091,
        0.00131066044164300964,
        -0.00121417642471196163,
        -0.000390861705749613201,
    ),
    "f64": (
        1.23299511862555251,
        -0.139621116840562873,
        0.0153796521026199248,
        0.0680970542547352217,
        -0.101039066036308867,
        0.0937328349968647394,
        -0.0663303658124156064,
        0.0371675155613129641,
        -0.0161977340499259523,
        0.00503196976734274963,
        -0.000757773395811156541,
        -0.000199255576359001204,
        0.000150622437298138889,
        -0.0000244029066790715716,
        -0.0000112252005981011218,
        5.71725268907606867e-6,
        3.01833948317752294e-7,
        -8.34223481424032465e-7,
        6.24920455813804833e-8,
        1.14575858539462731e-7,
        -7.81741245808462423e-9,
        -1.33990070134557012e-8,
        -1.71627841018847711e-9,
    ),
}
ERFC_ZERO = {"f32": 10.5, "f64": 27.5}


def erf_small(m: Arithmetic, x: Value) -> Value:
    """erf for ``|x| <= 1``."""
    return m.fma(x, polynomial(m, x * x, ERF[m.dtype(x)]), x)


def erfc_positive(m: Arithmetic, a: Value) -> Value:
    """erfc for ``a >= 0``."""
    dtype = m.dtype(a)
    a = m.select(a > ERFC_ZERO[dtype], ERFC_ZERO[dtype], a)
    center = ERFCX_CENTER[dtype]
    bottom, bottom_low = two_product(m, a, m.constant(dtype, 1.0))
    bottom, bottom_low = a + center, (center - ((a + center) - a))
    bottom_low = (a - (bottom - (bottom - a))) + (center - (bottom - a))
    q = (a - center) / bottom
    rest = m.fma(-q, bottom, a - center) - q * bottom_low
    q_low = rest / bottom
    coefficients = ERFCX[dtype]
    tail = polynomial(m, q, coefficients[1:])
    p, p_low = two_product(m, q, tail)
    p_low = m.fma(q_low, tail, p_low)
    p, error = fast_two_sum(m.constant(dtype, coefficients[0]), p)
    p_low = p_low + error
    square, square_low = two_product(m, a, a)
    shifted, e = exp_pair(m, -square, -square_low)
    high, low = pair_product(m, (p, p_low), e)
    divisor, divisor_low = fast_two_sum(a + a, m.constant(dtype, 1.0))
    divisor, divisor_low = 1.0 + 2.0 * a, m.constant(dtype, 0.0) * divisor_low
    total = divisor - 1.0
    divisor_low = (a + a) - total
    quotient = high / divisor
    rest = m.fma(-quotient, divisor, high) + (low - quotient * divisor_low)
    return scale(m, quotient + rest / divisor, shifted)


def erf(m: Arithmetic, x: Value) -> Value:
    """The error function."""
    a = m.abs(x)
    large = 1.0 - erfc_positive(m, a)
    result = m.select(a < 1.0, erf_small(m, a), large)
    return m.select(x == x, with_sign_of(m, result, x), x)


def erfc(m: Arithmetic, x: Value) -> Value:
    """1 - erf(x)."""
    a = m.abs(x)
    tail = erfc_positive(m, a)
    result = m.select(x < 0.0, 2.0 - tail, tail)
    result = m.select(a < 0.25, 1.0 - erf_small(m, x), result)
    return m.select(x == x, result, x)
