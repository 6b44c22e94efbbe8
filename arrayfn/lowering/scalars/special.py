"""The error function, its relatives, and the gamma function's logarithm."""

from __future__ import annotations

from math import inf, nan

from arrayfn.lowering.scalars.arithmetic import (
    FORMATS,
    Arithmetic,
    Formula,
    Value,
    bits,
    fast_two_sum,
    pair_product,
    pair_quotient,
    polynomial,
    two_product,
    two_sum,
    with_sign_of,
)
from arrayfn.lowering.scalars.exponential import (
    exp_moderate,
    exp_pair,
    log,
    scale,
)
from arrayfn.lowering.scalars.trigonometric import finish

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


def erf_small(m: Arithmetic, x: Value) -> Value:
    """erf for ``|x| <= 1``."""
    return m.fma(x, polynomial(m, x * x, ERF[m.dtype(x)]), x)


def erfc_positive(m: Arithmetic, a: Value) -> Value:
    """erfc for ``a >= 0``."""
    dtype = m.dtype(a)
    one = m.constant(dtype, 1.0)
    a = m.select(a > ERFC_ZERO[dtype], ERFC_ZERO[dtype], a)
    center = m.constant(dtype, ERFCX_CENTER[dtype])
    q, q_low = pair_quotient(m, two_sum(a, -center), two_sum(a, center))
    first, *others = ERFCX[dtype]
    tail = polynomial(m, q, others)
    product, product_low = two_product(m, q, tail)
    p, p_low = fast_two_sum(m.constant(dtype, first), product)
    p_low = p_low + m.fma(q_low, tail, product_low)
    square, square_low = two_product(m, a, a)
    shifted, e = exp_pair(m, -square, -square_low)
    top = pair_product(m, (p, p_low), e)
    high, low = pair_quotient(m, top, two_sum(one, a + a))
    return scale(m, high + low, shifted)


def erf(m: Arithmetic, x: Value) -> Value:
    """The error function."""
    dtype = m.dtype(x)
    a = m.abs(x)
    bounded = m.select(a < ERF_LIMIT[dtype], a, ERF_LIMIT[dtype])
    large = 1.0 - exp_moderate(m, polynomial(m, bounded, LOG_ERFC[dtype]))
    result = m.select(a < 1.0, erf_small(m, a), large)
    return m.select(x == x, with_sign_of(m, result, x), x)


def erfc(m: Arithmetic, x: Value) -> Value:
    """1 - erf(x)."""
    a = m.abs(x)
    tail = erfc_positive(m, a)
    result = m.select(x < 0.0, 2.0 - tail, tail)
    result = m.select(a < 0.25, 1.0 - erf_small(m, x), result)
    return m.select(x == x, result, x)


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
    """A formula that computes float32 in float64, for functions rarely of any cost."""

    def wrapped(m: Arithmetic, x: Value) -> Value:
        if m.dtype(x) == "f64":
            return formula(m, x)
        return m.convert(formula(m, m.convert(x, "f64")), "f32")

    wrapped.__doc__ = formula.__doc__
    return wrapped


def erfinv(m: Arithmetic, x: Value) -> Value:
    """The inverse of erf; infinite at -1 and 1, NaN outside."""
    w = -log(m, (1.0 - x) * (1.0 + x))
    root = m.sqrt(w)
    if m.dtype(x) == "f32":
        center = polynomial(m, w - 2.5, ERFINV_SHORT_CENTER)
        tail = polynomial(m, root - 3.15, ERFINV_SHORT_TAIL)
        factor = m.select(w < 5.0, center, tail)
    else:
        center = polynomial(m, w - 3.125, ERFINV_CENTER)
        between = polynomial(m, root - 3.25, ERFINV_MIDDLE)
        tail = polynomial(m, root - 5.1, ERFINV_TAIL)
        factor = m.select(w < 6.25, center, m.select(w < 16.0, between, tail))
    return m.select(m.abs(x) == 1.0, x * inf, x * factor)


def of_pi(m: Arithmetic, function: str, a: Value, quarters: int) -> Value:
    """sin (up to its sign) or tan of ``pi a + quarters pi/2``, for an f64."""
    n = m.rint(a + a)
    r = a - 0.5 * n
    pi_pair = m.constant("f64", PI[0]), m.constant("f64", PI[1])
    turns = n - 2.0 * m.floor(0.5 * n) + float(quarters)
    quadrant = bits(m, turns + FORMATS["f64"].rounding_shift)
    zero = m.constant("f64", 0.0)
    return finish(m, function, quadrant, pair_product(m, (r, zero), pi_pair))


def shift_product(m: Arithmetic, a: Value) -> tuple[Value, Value, Value]:
    """``(t, top, bottom)`` with ``gamma(a) = gamma(2 + t) top / bottom``, ``a < 8``."""
    one = m.constant("f64", 1.0)
    nearest = m.rint(a)
    bottom = m.select(nearest == 0.0, a * (a + 1.0), m.select(nearest == 1.0, a, one))
    top = one
    for k in range(1, 7):
        top = m.select(nearest > k + 1.5, top * (a - float(k)), top)
    return a - nearest, top, bottom


@in_float64
def lgamma(m: Arithmetic, x: Value) -> Value:
    """log |gamma(x)|; infinite at 0 and the negative integers.

    Its relative error is large near its zeros at negative arguments.
    """
    a = m.abs(x)
    small = a < 8.0
    bounded = m.select(small, a, 1.0)
    t, top, bottom = shift_product(m, bounded)
    product = m.select(top == 1.0, bottom, top)
    log_a = log(m, m.select(small, product, a))
    signed_log = m.select(top == 1.0, -log_a, log_a)
    series = m.fma(t, polynomial(m, t, LGAMMA), signed_log)
    inverse = 1.0 / a
    correction = inverse * polynomial(m, inverse * inverse, STIRLING)
    # log(2 pi) / 2 - 1/2
    stirling = m.fma(a - 0.5, log_a - 1.0, correction + 0.4189385332046727)
    result = m.select(small, series, stirling)
    sine = m.abs(of_pi(m, "sin", m.select(a < 2.0**53, a, 0.0), 0))
    reflected = log(m, PI[0] / (a * sine)) - result
    reflected = m.select(sine == 0.0, inf, reflected)
    # At a tiny argument its sign does not matter, but the sine might underflow.
    result = m.select((x < 0.0) & (a > 2.0**-60), reflected, result)
    result = m.select(a == inf, inf, result)
    return m.select(x == 0.0, inf, result)


@in_float64
def digamma(m: Arithmetic, x: Value) -> Value:
    """The derivative of lgamma; infinite at 0, NaN at the negative integers."""
    a = m.abs(x)
    small = a < 8.0
    bounded = m.select(small, a, 1.5)
    one, zero = m.constant("f64", 1.0), m.constant("f64", 0.0)
    # digamma(a) = digamma(y) + the sum of 1 / (a - k), or - 1 / a, with 1 <= y < 2.
    n = m.floor(bounded) - 1.0
    below = n < 0.0
    top, bottom = m.select(below, -one, zero), m.select(below, bounded, one)
    for k in range(1, 7):
        factor = bounded - float(k)
        used = n > k - 0.5
        top = m.select(used, m.fma(top, factor, bottom), top)
        bottom = m.select(used, bottom * factor, bottom)
    y = m.select(below, bounded + 1.0, bounded - n)
    distance = (y - DIGAMMA_ROOT[0]) - DIGAMMA_ROOT[1]
    series = m.fma(distance, polynomial(m, y - 1.5, DIGAMMA), top / bottom)
    inverse = 1.0 / a
    w = inverse * inverse
    asymptotic = log(m, a) - m.fma(
        w, polynomial(m, w, DIGAMMA_ASYMPTOTIC), 0.5 * inverse
    )
    result = m.select(small, series, asymptotic)
    # digamma(-a) = digamma(a) + 1 / a + pi cot(pi a), and cot t = -tan(t + pi/2)
    tangent = of_pi(m, "tan", m.select(a < 2.0**53, a, 0.0), 1)
    reflected = (result + inverse) - PI[0] * tangent
    reflected = m.select(m.floor(a) == a, nan, reflected)
    result = m.select(x < 0.0, reflected, result)
    return m.select(x == 0.0, with_sign_of(m, inverse, x) * -inf, result)
