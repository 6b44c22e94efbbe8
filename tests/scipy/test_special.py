"""Special functions against SciPy's, and where these are less accurate mpmath's."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import scipy.special as sp

import arrayfn as af
from arrayfn import lax
from arrayfn.errors import ArgumentError
from arrayfn.scipy import special

RNG = np.random.default_rng(11)
WIDE = np.concatenate(
    [RNG.uniform(-38, 40, 120), [0.0, -30.0, np.inf, -np.inf, np.nan]]
)
POSITIVE = np.concatenate([10.0 ** RNG.uniform(-8, 2.8, 120), [0.0, 1.0, np.nan]])
A, B = np.exp(RNG.uniform(-4, 4, (2, 80)))
PART = RNG.beta(A, B).clip(1e-8, 1 - 1e-8)
NEAR = A * np.exp(RNG.normal(0, 0.4, 80))
PROBABILITIES = np.concatenate(
    [RNG.uniform(0, 1, 80), 10.0 ** RNG.uniform(-300, -1, 60), [0, 1, 0.5, -1, 2]]
)
GAMMAS = np.concatenate(
    [RNG.uniform(-8, 8, 80), RNG.uniform(-170, 171, 60), [0.0, -0.0, -2.0, 172.0]]
)
COUNTS, CHOSEN = RNG.integers(-1, 50, (2, 80))

DEGREES = np.concatenate([RNG.uniform(-720, 720, 60), 30.0 * np.arange(-13, 14)])
SIZE, SIGNED = np.abs(RNG.normal(0, 5, 80)), RNG.normal(0, 2, 80)
SUCCESSES, TRIALS = np.arange(-1.0, 79.0) // 8, np.full(80, 9)
OPEN = PROBABILITIES[:80].clip(1e-12, 1 - 1e-12)
TINY = np.concatenate([10.0 ** RNG.uniform(-12, 1, 40), [0.0, -1e-9, 3.0]])

# Name: operands, relative tolerance, absolute tolerance.
AS_SCIPY = {
    "bdtr": ((SUCCESSES, TRIALS, PART), 1e-13, 0),
    "bdtrc": ((SUCCESSES, TRIALS, PART), 1e-13, 0),
    "bdtri": ((SUCCESSES, TRIALS, OPEN), 1e-12, 0),
    "betaincc": ((A, B, PART), 2e-11, 0),
    "betaincinv": ((A, B, OPEN), 1e-12, 0),
    "binom": ((A * 3, B), 1e-12, 0),
    "cbrt": ((SIGNED,), 1e-15, 0),
    "chdtr": ((A, SIZE), 1e-12, 0),
    "chdtrc": ((A, SIZE), 1e-12, 0),
    "chdtri": ((A, OPEN), 1e-12, 0),
    "cosdg": ((DEGREES,), 1e-14, 0),
    "cosm1": ((TINY,), 1e-13, 0),
    "cotdg": ((DEGREES,), 1e-13, 0),
    "erfcinv": ((2 * OPEN,), 1e-14, 1e-16),
    "erfi": ((SIGNED,), 1e-13, 0),
    "exp10": ((SIGNED,), 1e-15, 0),
    "exprel": ((TINY,), 1e-15, 0),
    "fdtr": ((A, B, SIZE), 1e-12, 0),
    "fdtrc": ((A, B, SIZE), 1e-12, 0),
    "fdtri": ((A, B, OPEN), 1e-11, 1e-300),
    "gammainccinv": ((A, OPEN), 1e-12, 0),
    "gammaincinv": ((A, OPEN), 1e-12, 0),
    "gdtr": ((A, B, SIZE), 1e-12, 0),
    "gdtrc": ((A, B, SIZE), 1e-12, 0),
    "huber": ((A, SIGNED), 1e-15, 0),
    "inv_boxcox": ((SIGNED, A / 20), 1e-14, 0),
    "inv_boxcox1p": ((TINY[:43], A[:43] / 20), 1e-14, 0),
    "nbdtr": ((SUCCESSES, TRIALS, PART), 1e-13, 0),
    "nbdtrc": ((SUCCESSES, TRIALS, PART), 1e-13, 0),
    "nbdtri": ((SUCCESSES, TRIALS, OPEN), 1e-12, 0),
    "pdtr": ((SUCCESSES, A), 1e-13, 0),
    "pdtrc": ((SUCCESSES, A), 1e-13, 0),
    "pdtri": ((SUCCESSES, OPEN), 1e-12, 0),
    "powm1": ((A, SIGNED), 1e-14, 0),
    "pseudo_huber": ((A, SIGNED), 1e-14, 0),
    "radian": ((SIGNED, A, B), 1e-15, 0),
    "rgamma": ((GAMMAS[:80],), 1e-13, 0),
    "sindg": ((DEGREES,), 1e-14, 0),
    "stdtr": ((A, SIGNED), 1e-12, 0),
    "tandg": ((DEGREES,), 1e-13, 0),
    "zetac": ((A + 1.001,), 1e-13, 0),
    "beta": ((A, B), 2e-13, 0),
    "betainc": ((A, B, PART), 2e-13, 0),
    "betaln": ((A, B), 0, 2e-13),
    "boxcox": ((A, B - 5), 2e-14, 1e-15),
    "boxcox1p": ((A - 0.5, B - 5), 2e-14, 1e-15),
    "comb": ((COUNTS, CHOSEN), 1e-13, 0),
    "dawsn": ((WIDE,), 1e-14, 0),
    "digamma": ((A,), 1e-13, 1e-15),
    "entr": ((A - 1,), 1e-15, 0),
    "exp1": ((POSITIVE,), 1e-14, 0),
    "expi": ((WIDE,), 1e-13, 1e-15),
    "expit": ((WIDE,), 1e-15, 0),
    "expn": ((RNG.integers(0, 9, POSITIVE.size), POSITIVE), 2e-14, 0),
    "factorial": ((COUNTS,), 1e-15, 0),
    "gamma": ((GAMMAS,), 3e-14, 0),
    "gammainc": ((A, NEAR), 2e-13, 0),
    "gammaincc": ((A, NEAR), 2e-13, 0),
    "gammaln": ((A,), 1e-13, 1e-15),
    "gammasgn": ((GAMMAS,), 0, 0),
    "i0": ((WIDE[:-3],), 1e-14, 0),
    "i0e": ((WIDE,), 2e-15, 0),
    "i1": ((WIDE[:-3],), 1e-14, 0),
    "i1e": ((WIDE,), 2e-15, 0),
    "kl_div": ((A, B), 1e-10, 1e-15),
    "log_ndtr": ((WIDE,), 1e-14, 0),
    "loggamma": ((A,), 1e-13, 1e-15),
    "logit": ((PART,), 1e-13, 1e-15),
    "multigammaln": ((A + 2, 4), 1e-13, 0),
    "ndtr": ((WIDE,), 1e-14, 0),
    "ndtri": ((PROBABILITIES,), 3e-15, 0),
    "owens_t": ((WIDE[:80] / 5, np.tan(PART * 3)), 1e-13, 1e-15),
    "poch": ((A, B), 1e-12, 0),
    "polygamma": ((RNG.integers(0, 7, 80), A), 1e-13, 1e-15),
    "rel_entr": ((A, B), 1e-13, 1e-15),
    "spence": ((POSITIVE,), 1e-14, 1e-15),
    "xlog1py": ((A, B), 1e-15, 0),
    "xlogy": ((A, B), 1e-15, 1e-16),
    "zeta": ((A + 1.001, B), 1e-13, 0),
}
# One of each kind: compiling them all takes long.
COMPILED = {
    name: AS_SCIPY[name]
    for name in ("comb", "gamma", "gammainc", "i1e", "ndtri", "rel_entr", "spence")
}


@pytest.mark.parametrize("name", AS_SCIPY)
def test_values_are_those_of_scipy(name):
    operands, rtol, atol = AS_SCIPY[name]
    with np.errstate(all="ignore"):
        expected = getattr(sp, name)(*operands)
    result = getattr(special, name)(*operands)
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, expected, rtol, atol)


def test_quantiles_are_differentiated_as_implicit_functions():
    for inverse, function, parameters in (
        (special.gammaincinv, special.gammainc, (1.7,)),
    ):
        x = inverse(*parameters, 0.3)
        for place in range(len(parameters) + 1):
            slope = af.grad(inverse, argnums=place)(*parameters, 0.3)
            by_x = af.grad(function, argnums=len(parameters))(*parameters, x)
            moved = (
                1.0
                if place == len(parameters)
                else -af.grad(function, place)(*parameters, x)
            )
            np.testing.assert_allclose(slope, moved / by_x, rtol=1e-10)


def test_quantiles_of_students_distribution():
    p = np.array([1e-9, 0.2, 0.4999, 0.5, 0.51, 0.9, 1 - 1e-9])
    t = special.stdtrit(3.5, p)
    np.testing.assert_allclose(special.stdtr(3.5, t), p, rtol=1e-13)
    np.testing.assert_allclose(t, sp.stdtrit(3.5, p), rtol=1e-7, atol=1e-15)


@pytest.mark.parametrize(
    ("df", "p", "t"),  # by mpmath
    [
        (0.5, 1e-100, -1.02849115631634085e199),
        (1.0, 1e-300, -3.18309886183790672e299),
        (3.5, 1e-300, -6.10685703157126266e85),
        (10.0, 1e-200, -2.56452571894819786e20),
        (30.0, 1e-300, -50178575360.5050811),
    ],
)
def test_far_quantiles_of_students_distribution(df, p, t):
    np.testing.assert_allclose(special.stdtrit(df, p), t, rtol=2e-14)


def test_slopes_of_quantiles_of_students_distribution():
    slope = af.grad(special.stdtrit, argnums=1)
    for p in (1e-100, 1e-17, 0.2, 0.5):
        want = np.pi / np.sin(np.pi * p) ** 2  # of t = -cot(pi p)
        np.testing.assert_allclose(slope(1.0, p), want, rtol=1e-12)
    np.testing.assert_allclose(slope(np.inf, 0.5), np.sqrt(2 * np.pi), rtol=1e-15)
    assert af.grad(special.stdtrit)(2.0, 0.5) == 0.0


def test_compiled_values_are_the_same():
    compiled = af.jit(
        lambda cases: {n: getattr(special, n)(*xs) for n, xs in cases.items()}
    )({n: case[0] for n, case in COMPILED.items()})
    for name, result in compiled.items():
        operands, rtol, atol = AS_SCIPY[name]
        expected = getattr(special, name)(*operands)
        np.testing.assert_allclose(
            result, expected, rtol + 1e-14, atol + 1e-15, err_msg=name
        )


def test_sine_and_cosine_integrals():
    # Up to 300: the error of SciPy's is that of its argument, in radians.
    x = np.concatenate([10.0 ** RNG.uniform(-8, 2.5, 80), [0.0, np.inf]])
    for result, expected in zip(special.sici(x), sp.sici(x), strict=True):
        np.testing.assert_allclose(result, expected, 1e-13, 1e-15)
    np.testing.assert_allclose(special.sici(-x[:5])[0], -sp.sici(x[:5])[0], 1e-14)


def test_fresnel_integrals():
    x = np.concatenate([RNG.uniform(-9, 9, 80), [0.0, np.inf, -np.inf, np.nan]])
    for result, expected in zip(special.fresnel(x), sp.fresnel(x), strict=True):
        np.testing.assert_allclose(result, expected, 1e-13, 1e-15)


def test_fresnel_integrals_have_the_phase_of_large_numbers():
    x = np.array([40.3, 1234.5678, 765432.1, 1e10])
    for result, form in zip(
        special.fresnel(x), (mpmath.fresnels, mpmath.fresnelc), strict=True
    ):
        np.testing.assert_allclose(result, exact(form, x), 1e-15)
    np.testing.assert_array_equal(special.fresnel(np.array([2.0**60])), [[0.5], [0.5]])
    slopes = [af.vmap(af.grad(lambda x, k=k: special.fresnel(x)[k]))(x) for k in (0, 1)]
    expected = exact(lambda x: mpmath.sin(mpmath.pi * x * x / 2), x)
    np.testing.assert_allclose(slopes[0], expected, 1e-13, 1e-15)
    expected = exact(lambda x: mpmath.cos(mpmath.pi * x * x / 2), x)
    np.testing.assert_allclose(slopes[1], expected, 1e-13, 1e-15)


def test_bessel_functions_of_integer_order():
    z = np.concatenate([RNG.uniform(-60, 60, 60), [0.0, 1e-8, 300.0, np.nan]])
    result = special.bessel_jn(z, v=4)
    expected = np.stack([sp.jv(k, z) for k in range(5)])
    np.testing.assert_allclose(result, expected, atol=3e-14)
    slope = af.grad(lambda z: special.bessel_jn(z, v=3).sum())(z[:9])
    expected = sum(sp.jvp(k, z[:9]) for k in range(4))
    np.testing.assert_allclose(slope, expected, atol=3e-14)


def test_the_faddeeva_function():
    z = RNG.normal(0, 3, 60) + 1j * RNG.normal(0, 2, 60)
    np.testing.assert_allclose(special.wofz(z), sp.wofz(z), rtol=2e-13)
    far = np.array([300.0 + 0.1j, 1e8j, 5.0 + 0j])
    np.testing.assert_allclose(af.jit(special.wofz)(far), sp.wofz(far), rtol=2e-13)
    assert special.wofz(np.complex64(1j)).dtype == np.complex64


def test_spherical_harmonics():
    n, m = RNG.integers(0, 12, 80), RNG.integers(-13, 13, 80)
    theta, phi = RNG.uniform(0, np.pi, 80), RNG.uniform(0, 6, 80)
    expected = sp.sph_harm_y(n, m, theta, phi)
    result = special.sph_harm_y(n, m, theta, phi)
    np.testing.assert_allclose(result, expected, atol=1e-14)
    with pytest.raises(ArgumentError, match="n_max"):
        af.jit(special.sph_harm_y)(n, m, theta, phi)


def exact(function, *operands):
    """``function`` of mpmath, to 40 digits."""
    with mpmath.workdps(40):
        values = [
            function(*[mpmath.mpf(float(v)) for v in row])
            for row in zip(*operands, strict=True)
        ]
        return np.array([float(v) for v in values])


def test_where_scipy_is_less_accurate():
    x = np.array([-24.469, -3.0, 0.5, 30.0, 1e5])
    expected = exact(lambda v: mpmath.exp(v * v) * mpmath.erfc(v), x)
    np.testing.assert_allclose(special.erfcx(x), expected, 1e-15)
    x = np.array([0.3, 5.0, 39.9, 40.4, 60.3, 700.0])
    np.testing.assert_allclose(special.expi(x), exact(mpmath.ei, x), 2e-15)
    a, b = np.array([0.2, 3e6, 20.0, 1e4]), np.array([386.5, 2.5, 30.0, 1e4])
    expected = exact(lambda v, w: mpmath.log(mpmath.beta(v, w)), a, b)
    np.testing.assert_allclose(special.betaln(a, b), expected, 2e-15)


def test_the_incomplete_gamma_functions_of_large_numbers_and_far_out():
    a = np.array([1e-3, 5.0, 300.0, 1e4, 1e4, 30.0])
    x = np.array([1e-5, 40.0, 310.0, 9900.0, 10300.0, 3.0])
    for function, form in (
        (special.gammainc, lambda v, w: mpmath.gammainc(v, 0, w, regularized=True)),
        (special.gammaincc, lambda v, w: mpmath.gammainc(v, w, regularized=True)),
    ):
        np.testing.assert_allclose(function(a, x), exact(form, a, x), 2e-13)
    a = np.array([1.0, 1.0, 0.0, -1.0, np.nan, 2.0])
    x = np.array([0.0, np.inf, 1.0, 1.0, 1.0, -1.0])
    np.testing.assert_array_equal(special.gammainc(a, x), [0, 1, 1, *[np.nan] * 3])
    np.testing.assert_array_equal(special.gammaincc(a, x), [1, 0, 0, *[np.nan] * 3])


def test_the_riemann_zeta_function_and_what_it_is_not_defined_for():
    np.testing.assert_allclose(special.zeta(2.0), np.pi**2 / 6, 1e-15)
    operands = np.array([1.0, 0.5, 2.0, 2.5]), np.array([1, 1, 0, -1.5])
    result = special.zeta(*operands)
    np.testing.assert_array_equal(result, [np.inf, np.nan, np.inf, np.nan])


def test_bernoulli_numbers_are_exactly_rounded():
    result = special.bernoulli(30)
    expected = [float(mpmath.bernoulli(k)) for k in range(31)]
    expected[1] = -0.5
    np.testing.assert_allclose(result, expected, rtol=2e-16)


def test_counts_are_integers():
    assert special.factorial(20) == 2432902008176640000
    assert special.comb(40, 20) == 137846528820
    assert special.comb(5, 3, repetition=True) == 35
    assert special.gamma(np.arange(1.0, 10.0)).tolist() == [
        float(sp.factorial(k, exact=True)) for k in range(9)
    ]
    with pytest.raises(ArgumentError, match=r"math\.comb"):
        special.comb(5, 3, exact=True)


def test_dtypes_are_kept():
    for name in ("gammainc", "betaln", "zeta"):
        operands = [np.float32(2.5), np.float32(0.5)]
        result = getattr(special, name)(*operands)
        assert result.dtype == np.float32
        expected = getattr(sp, name)(2.5, 0.5)
        np.testing.assert_allclose(result, expected, 1e-7)
    assert special.gamma(5).dtype == np.float64
    assert special.i0(np.float16(1.0)).dtype == np.float16


def owen(h, a):
    return mpmath.quad(
        lambda x: mpmath.exp(-h * h * (1 + x * x) / 2) / (1 + x * x), [0, a]
    ) / (2 * mpmath.pi)


# Derivatives of first and second order, along every operand that has one.
X = np.array([0.07, 0.3, 0.45, 0.61, 0.93])
DERIVATIVES = {
    "gamma": (special.gamma, mpmath.gamma),
    "digamma": (special.digamma, mpmath.digamma),
    "polygamma": (lambda x: special.polygamma(2, x), lambda x: mpmath.polygamma(2, x)),
    "zeta in x": (
        lambda x: special.zeta(x + 1, 0.7),
        lambda x: mpmath.zeta(x + 1, 0.7),
    ),
    "zeta in q": (lambda x: special.zeta(2.5, x), lambda x: mpmath.zeta(2.5, x)),
    "betaln": (
        lambda x: special.betaln(x, 12.0),
        lambda x: mpmath.log(mpmath.beta(x, 12)),
    ),
    "ndtri": (
        special.ndtri,
        lambda p: mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1),
    ),
    "log_ndtr": (
        lambda x: special.log_ndtr(x - 9),
        lambda x: mpmath.log(mpmath.ncdf(x - 9)),
    ),
    "erfcx": (special.erfcx, lambda x: mpmath.exp(x * x) * mpmath.erfc(x)),
    "expi": (special.expi, mpmath.ei),
    "exp1": (special.exp1, mpmath.e1),
    "expn": (lambda x: special.expn(3, x), lambda x: mpmath.expint(3, x)),
    "si": (lambda x: special.sici(x)[0], mpmath.si),
    "ci": (lambda x: special.sici(x)[1], mpmath.ci),
    "dawsn": (
        special.dawsn,
        lambda x: mpmath.sqrt(mpmath.pi) / 2 * mpmath.exp(-x * x) * mpmath.erfi(x),
    ),
    "fresnel's sine": (lambda x: special.fresnel(x)[0], mpmath.fresnels),
    "fresnel's cosine": (
        lambda x: special.fresnel(3 * x)[1],
        lambda x: mpmath.fresnelc(3 * x),
    ),
    "owens_t in h": (lambda h: special.owens_t(h, 1.7), lambda h: owen(h, 1.7)),
    "owens_t in a": (lambda a: special.owens_t(0.8, a), lambda a: owen(0.8, a)),
    "spence": (special.spence, lambda x: mpmath.re(mpmath.polylog(2, 1 - x))),
    "i0e": (special.i0e, lambda x: mpmath.exp(-x) * mpmath.besseli(0, x)),
    "i1": (special.i1, lambda x: mpmath.besseli(1, x)),
    "entr": (special.entr, lambda x: -x * mpmath.log(x)),
    "xlogy": (lambda x: special.xlogy(x, x + 1), lambda x: x * mpmath.log(x + 1)),
    "boxcox": (lambda x: special.boxcox(x, 0.4), lambda x: (x**0.4 - 1) / 0.4),
    "poch": (lambda x: special.poch(2.5, x), lambda x: mpmath.rf(2.5, x)),
    "gammainc in a": (
        lambda a: special.gammainc(a, 0.8),
        lambda a: mpmath.gammainc(a, 0, 0.8, regularized=True),
    ),
    "gammainc in x": (
        lambda x: special.gammainc(0.6, x),
        lambda x: mpmath.gammainc(0.6, 0, x, regularized=True),
    ),
    "gammaincc in a": (
        lambda a: special.gammaincc(a, 2.5),
        lambda a: mpmath.gammainc(a, 2.5, regularized=True),
    ),
    "betainc in a": (
        lambda a: special.betainc(a, 1.5, 0.3),
        lambda a: mpmath.betainc(a, 1.5, 0, 0.3, regularized=True),
    ),
    "betainc in b": (
        lambda b: special.betainc(1.5, b, 0.3),
        lambda b: mpmath.betainc(1.5, b, 0, 0.3, regularized=True),
    ),
    "betainc in x": (
        lambda x: special.betainc(1.5, 2.5, x),
        lambda x: mpmath.betainc(1.5, 2.5, 0, x, regularized=True),
    ),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_are_the_exact_ones(name):
    function, form = DERIVATIVES[name]
    first = af.grad(lambda x: function(x).sum())
    second = af.grad(lambda x: first(x).sum())
    exact_first = exact(lambda x: mpmath.diff(form, x), X)
    np.testing.assert_allclose(first(X), exact_first, 1e-11)
    exact_second = exact(lambda x: mpmath.diff(form, x, 2), X)
    np.testing.assert_allclose(second(X), exact_second, 1e-10)


def test_derivatives_at_the_edge_are_their_limits():
    by_x, by_y = af.grad(special.xlogy, (0, 1))(0.0, 0.0)
    assert by_x == -math.inf
    assert by_y == 0.0
    assert af.grad(special.i1)(0.0) == 0.5
    assert af.grad(lambda x: special.sici(x)[0])(0.0) == 1.0
    assert af.grad(special.spence)(1.0) == -1.0


def test_derivatives_far_out_are_their_limits():
    second = af.grad(af.grad(special.log_ndtr))
    assert [second(x) for x in (40.2, 300.7)] == [0.0, 0.0]
    np.testing.assert_allclose(second(-8.0), -0.9856751165566591, rtol=1e-12)
    slope = af.grad(special.erfi)
    assert [slope(x) for x in (-30.3, 27.5, 300.7)] == [np.inf] * 3
    assert [af.grad(slope)(x) for x in (-30.3, 300.7)] == [-np.inf, np.inf]
    expected = 2 / np.sqrt(np.pi) * np.exp(6.25)
    np.testing.assert_allclose(slope(2.5), expected, rtol=1e-15)


def test_the_gradient_of_gamma_samples_is_that_of_their_quantile():
    a = np.array([0.05, 0.7, 3.0, 30.0, 300.0])
    sample = a * np.array([0.3, 1.4, 0.7, 1.2, 0.95])
    quantile = sp.gammainc(a, sample)
    step = 1e-5 * a
    expected = (
        sp.gammaincinv(a + step, quantile) - sp.gammaincinv(a - step, quantile)
    ) / (2 * step)
    np.testing.assert_allclose(lax.random_gamma_grad(a, sample), expected, 1e-6)


@pytest.mark.parametrize(
    "function",
    [
        sp.erf,
        sp.gammaln,
        lambda x: sp.betainc(x, 2.0, x / 4),
        lambda x: np.float32(2) * sp.xlogy(x, x),
    ],
)
def test_ufuncs_of_scipy_are_traced(function):
    x = np.linspace(0.5, 3.0, 6)
    np.testing.assert_allclose(af.jit(function)(x), function(x), rtol=1e-12)
    slope = af.grad(lambda x: function(x).sum())(x)
    step = 1e-6
    differences = (function(x + step) - function(x - step)) / (2 * step)
    np.testing.assert_allclose(slope, differences, rtol=1e-6)


def test_a_ufunc_of_scipy_that_is_not_here_is_an_error():
    with pytest.raises(ArgumentError, match="the ufunc jv cannot be traced"):
        af.jit(lambda x: sp.jv(1, x))(1.0)
