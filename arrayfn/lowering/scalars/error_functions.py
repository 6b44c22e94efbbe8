"""The error function, its complement and its inverse."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from arrayfn.lowering.scalars.arithmetic import (
    Arithmetic,
    Pair,
    Value,
    bits,
    estrin,
    fast_two_sum,
    pair_product,
    pair_quotient,
    polynomial,
    power_of_two,
    reals,
    split_constant,
    two_product,
    two_sum,
    with_sign_of,
)
from arrayfn.lowering.scalars.exponential import (
    CONSTANTS,
    LOG2_E,
    exp_pair,
    log,
    scale,
)

# erf x = x + x P(x**2) for |x| <= 1: 2**-29.6, 2**-56.9.
ERF = {
    "f32": (
        0.128379165729559356,
        -0.376126258374650715,
        0.11283585248605379,
        -0.0268538145820638969,
        0.00518833048257831298,
        -0.000801020269916034864,
        0.000078538498280874455,
    ),
    "f64": (
        0.128379167095512566,
        -0.3761263890318352,
        0.112837916709442003,
        -0.0268661706431134137,
        0.00522397760613084213,
        -0.000854832592976624276,
        0.000120552935869369102,
        -0.0000149247124395341377,
        1.64471326997791186e-6,
        -1.62063187529169179e-7,
        1.37109887039826407e-8,
        -7.77946297140207528e-10,
    ),
}
# exp(r) = 1 + r + r**2 P(r) for |r| <= 0.347: 2**-23.2, 2**-51.6; it contributes less
# than 0.16 of a result.
EXP_P = {
    "f32": (
        0.499992303770658489,
        0.166671157178477744,
        0.0418903263531030276,
        0.00831247433633517557,
    ),
    "f64": (
        0.499999999999983152,
        0.166666666666113395,
        0.0416666666681431076,
        0.00833333337098137551,
        0.00138888885149316232,
        0.000198411850680316166,
        0.0000248019325647480801,
        2.76350682566579055e-6,
        2.74766686424354265e-7,
    ),
}
# log(erfc x) = P(x) for 1 <= x up to the limit, weighted by erfc x: 2**-30, 2**-55
# (after N. Juffa's erff).
ERF_LIMIT = {"f32": 4.0, "f64": 5.95}
LOG_ERFC = {
    "f32": (
        -0.00035369689060630216,
        -1.1270401084980002,
        -0.6382255917813137,
        -0.10303741093671613,
        0.021805322926139854,
        -0.0029396046904115085,
        0.0001855733942995216,
    ),
    "f64": (
        -1.0818108363858122e-06,
        -1.1283685487432764,
        -0.6366682567426162,
        -0.10263592459305912,
        0.018862370177685002,
        0.000587897757143135,
        -0.002102447371558212,
        0.0009226456143790105,
        -0.00023219157950232918,
        2.8684464671855032e-05,
        3.374348138742835e-06,
        -2.6104598431073813e-06,
        6.753302793755184e-07,
        -1.0642688904973927e-07,
        1.0725665622420304e-08,
        -6.410325833495688e-10,
        1.740218338819748e-11,
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
ROOT_HALF = {
    "f32": split_constant("f32", 0.7071067811865476),
    "f64": (0.7071067811865476, -4.833646656726457e-17),
}
# erfinv(x) / x by w = -log(1 - x**2): of w - 3.125 below 6.25 (2**-58), of
# sqrt(w) - 3.25 below 16 (2**-58), of sqrt(w) - 5.1 beyond (2**-56). After Giles, 2012.
ERFINV_CENTER = (
    1.6536545626831027,
    0.24015818242558834,
    -0.006033670871426948,
    -0.0007407025341546148,
    0.0001867342080202871,
    -1.3882523394034881e-05,
    -1.365469176791854e-06,
    4.2347881691947144e-07,
    -2.9070390369474855e-08,
    -4.112660504807199e-09,
    1.0512228468853884e-09,
    -5.4143004158320704e-11,
    -1.2978608838779907e-11,
    2.6305190376442003e-12,
    -8.076719616057965e-14,
    -4.0018645237936694e-14,
    6.5291304794734964e-15,
    -3.9562321930029646e-17,
    -1.229937408047192e-16,
    1.55224359370139e-17,
    6.645201170575844e-19,
    -3.478295526520146e-19,
    1.7763025301912703e-20,
    3.2026654484076007e-21,
    -3.2118301879896865e-22,
)
ERFINV_MIDDLE = (
    3.0838856104922208,
    1.0052589676941655,
    0.005370914553555332,
    -0.0037512085082237055,
    0.0024914420979391476,
    -0.001688275535481371,
    0.0009532893419905123,
    -0.00035503781331888825,
    2.403150805806272e-05,
    6.828711377415938e-05,
    -4.732064842624819e-05,
    1.2465044698643295e-05,
    2.9324470240631853e-06,
    -3.985751244043061e-06,
    1.4819290399776011e-06,
    -2.7543189869437704e-08,
    -2.4600224353940444e-07,
    1.3152061114937905e-07,
    -2.0490218546420703e-08,
    -1.5280595232860434e-08,
    7.528491733411563e-09,
)
ERFINV_TAIL = (
    4.950934853078874,
    1.010266564502291,
    -0.0001988588686220908,
    -0.00018651301730295954,
    6.680006839551794e-05,
    -1.7162632772118878e-05,
    3.8899385493126e-06,
    -8.310733358355854e-07,
    1.7913395017442362e-07,
    -4.5427087832260764e-08,
    1.6546549861496066e-08,
    -8.160091426976801e-09,
    4.281444103218376e-09,
    -2.0404013422963786e-09,
    8.147550839259373e-10,
    -2.7499738219288046e-10,
    7.961483881071051e-11,
    -5.152888793844488e-12,
    -1.1799726469647253e-11,
    4.145664622738268e-12,
)
# For float32: of w - 2.5 below 5 (2**-26.7), of sqrt(w) - 3.15 beyond (2**-25).
ERFINV_SHORT_CENTER = (
    1.501409358813496,
    0.24664029613538987,
    -0.004177384152249617,
    -0.0012527637902204165,
    0.00021834222287853966,
    -4.950469658218187e-06,
    -3.462117185372288e-06,
    4.633821320817022e-07,
    2.3184458324695004e-08,
    -8.590488904656276e-09,
)
ERFINV_SHORT_TAIL = (
    2.983417414193474,
    1.0040613271456655,
    0.006665824576661963,
    -0.004935880048236067,
    0.0034743173284067725,
    -0.0023409173512167476,
    0.0012616168374739538,
    -0.0003318914079474417,
    -0.00015229056709307746,
    0.00011468682027798732,
)


def scheme(m: Arithmetic, x: Value, coefficients: Sequence[float]) -> Value:
    """Evaluate a polynomial by Horner's scheme for f32, by Estrin's for f64.

    Each is the faster one for the number of coefficients that the format needs.
    """
    return (polynomial if m.dtype(x) == "f32" else estrin)(m, x, coefficients)


def erf_small(m: Arithmetic, x: Value) -> Value:
    """Return erf x for ``|x| <= 1``, as ``x + x P(x**2)``."""
    return m.fma(x, scheme(m, x * x, ERF[m.dtype(x)]), x)


def erfc_positive(m: Arithmetic, a: Value, a_low: Value | None = None) -> Value:
    """Return erfc of ``a``, or of the pair ``a + a_low``, for ``a >= 0``.

    It is ``P(q) e**(-a**2) / (1 + 2 a)`` with ``q = (a - K) / (a + K)`` and the
    polynomial P of ``ERFCX``, computed in pairs. Beyond ``ERFC_ZERO`` the result is 0.
    """
    dtype = m.dtype(a)
    one = m.constant(dtype, 1.0)
    center = m.constant(dtype, ERFCX_CENTER[dtype])
    beyond = a > ERFC_ZERO[dtype]
    a = m.select(beyond, ERFC_ZERO[dtype], a)
    low = None if a_low is None else m.select(beyond, 0.0, a_low)

    def sum_of(x: Value, y: Value, twice: bool = False) -> Pair:
        """Return ``x + y`` as a pair, plus the low part of the argument.

        The low part is added twice if ``twice``.
        """
        high, rest = two_sum(x, y)
        if low is None:
            return high, rest
        return high, rest + (low + low if twice else low)

    q, q_low = pair_quotient(m, sum_of(a, -center), sum_of(a, center))
    # p + p_low = P(q + q_low): the constant term and its rounding error are exact.
    first, *others = ERFCX[dtype]
    tail = polynomial(m, q, others)
    product, product_low = two_product(m, q, tail)
    p, p_low = fast_two_sum(m.constant(dtype, first), product)
    p_low = p_low + m.fma(q_low, tail, product_low)
    square, square_low = two_product(m, a, a)
    if low is not None:
        square_low = m.fma(a + a, low, square_low)
    # e**(-a**2) = 2**n e; the power of 2 is applied last, by ``scale``.
    shifted, e = exp_pair(m, -square, -square_low)
    top = pair_product(m, (p, p_low), e)
    high, rest = pair_quotient(m, top, sum_of(one, a + a, twice=True))
    return scale(m, high + rest, shifted)


def erf_large(m: Arithmetic, a: Value) -> Value:
    """Return erf a for ``a >= 1``, as ``1 - exp(log(erfc a))``.

    ``log(erfc a)`` is a polynomial. With ``exp(...) = 2**n (1 + w)`` the result is ``1
    - 2**n - 2**n w``.
    """
    f = reals(m, a)
    limit = ERF_LIMIT[f.dtype]
    x = scheme(m, m.select(a > limit, limit, a), LOG_ERFC[f.dtype])
    shift = f.rounding_shift + f.bias
    # The low bits of ``shifted`` are the exponent field of 2**n.
    shifted = m.fma(x, LOG2_E, m.constant(f.dtype, shift))
    # The smaller erfc is, the less the error of a one-part ln 2 matters.
    r = m.fma(shifted - shift, -CONSTANTS[f.dtype].ln2[0], x)
    w = m.fma(r * r, scheme(m, r, EXP_P[f.dtype]), r)
    unit = power_of_two(m, bits(m, shifted))
    return m.fma(w, -unit, 1.0 - unit)


def erf(m: Arithmetic, x: Value) -> Value:
    """Return the error function of ``x``."""
    a = m.abs(x)
    return with_sign_of(m, m.select(a < 1.0, erf_small(m, a), erf_large(m, a)), x)


def erfc(m: Arithmetic, x: Value) -> Value:
    """Return the complementary error function, 1 - erf(x)."""
    a = m.abs(x)
    tail = erfc_positive(m, a)
    result = m.select(x < 0.0, 2.0 - tail, tail)
    result = m.select(a < 0.25, 1.0 - erf_small(m, x), result)
    return m.select(x == x, result, x)


def ndtr(m: Arithmetic, x: Value) -> Value:
    """Return the normal distribution function, erfc(-x / sqrt(2)) / 2.

    The quotient is a pair: the tail has the exponent of the quotient's square, so an
    error of an ulp in the quotient would cost about x**2 ulp.
    """
    dtype = m.dtype(x)
    high, low = ROOT_HALF[dtype]
    a, a_low = two_product(m, m.abs(x), m.constant(dtype, high))
    a_low = m.fma(m.abs(x), m.constant(dtype, low), a_low)
    tail = 0.5 * erfc_positive(m, a, a_low)
    result = m.select(x < 0.0, tail, 1.0 - tail)
    near = 0.5 * erf_small(m, x * high)
    result = m.select(a < 0.25, 0.5 + near, result)
    return m.select(x == x, result, x)


def erfinv(m: Arithmetic, x: Value) -> Value:
    """Return the inverse of erf; infinite at -1 and 1, NaN outside.

    ``erfinv(x) / x`` is a polynomial of ``w = -log(1 - x**2)`` near 0, and others of
    ``sqrt(w)`` elsewhere. All are computed, and one is selected.
    """
    w = -log(m, m.fma(-x, x, m.constant(m.dtype(x), 1.0)))
    root = m.sqrt(w)
    if m.dtype(x) == "f32":
        high, rest = _in_two_parts(m, w, -2.5, ERFINV_SHORT_CENTER)
        branches = [(w < 5.0, _in_two_parts(m, root, -3.15, ERFINV_SHORT_TAIL))]
    else:
        high, rest = _in_two_parts(m, w, -3.125, ERFINV_CENTER)
        branches = [
            (w < 6.25, _in_two_parts(m, root, -3.25, ERFINV_MIDDLE)),
            (w < 16.0, _in_two_parts(m, root, -5.1, ERFINV_TAIL)),
        ]
    for below, (other_high, other_rest) in branches:
        high = m.select(below, high, other_high)
        rest = m.select(below, rest, other_rest)
    factor, factor_low = fast_two_sum(high, rest)
    result = m.fma(x, factor, x * factor_low)
    return m.select(m.abs(x) == 1.0, x * inf, result)


def _in_two_parts(
    m: Arithmetic, x: Value, shift: float, coefficients: Sequence[float]
) -> Pair:
    """Evaluate a polynomial of ``x + shift``; return an unevaluated sum of two parts.

    The first part is the constant coefficient, the second the sum of all other terms.
    So the sum has more bits than the format.
    """
    constant, slope, *others = coefficients
    high, low = split_constant(m.dtype(x), constant)
    t, t_low = two_sum(x, m.constant(m.dtype(x), shift))
    inner = m.fma(t, polynomial(m, t, others), slope)
    rest = m.fma(t, inner, m.fma(t_low, slope, low))
    return m.constant(m.dtype(x), high), rest
