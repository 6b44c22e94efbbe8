"""Special functions at poles and outside of their domains: SciPy's values."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
import scipy.special as sp

import arrayfn as af
from arrayfn.scipy import special

INF, NAN = math.inf, math.nan
REALS = np.array([-7, -3, -2.5, -2, -1, -0.5, 0, 0.3, 1, 2, 2.5, 7, 30.0])
COUNTS = np.array([-2.5, -1, -0.5, 0, 0.3, 1, 2, 2.7, 5, 7, INF, NAN])
TRIALS = np.array([-3, -1, 0, 1, 2, 5])
PROBABILITIES = np.array([-0.2, 0, 0.3, 1, 1.2, INF, NAN])
ANGLES = np.concatenate([np.arange(-405, 406, 15.0), [44.999, 45.0001, 1e10]])
BELOW_1 = np.concatenate([np.arange(-12, 1.1, 0.5), [0.99, -170.5, INF, NAN]])
EDGES = {
    **dict.fromkeys(("bdtr", "bdtrc", "bdtri"), (COUNTS, TRIALS, PROBABILITIES)),
    **dict.fromkeys(("betaln", "poch", "binom", "zeta"), (REALS, REALS)),
    **dict.fromkeys(("sindg", "cosdg", "tandg", "cotdg"), (ANGLES,)),
    **dict.fromkeys(("gdtr", "gdtrc"), (REALS, REALS, REALS)),
    "polygamma": (np.arange(4), REALS),
    "zetac": (BELOW_1,),
    "gammaincinv": (np.array([0, 1.0]), np.array([0, 0.3, 1])),
    "gammainccinv": (np.array([0, 1.0]), np.array([0, 0.3, 1])),
    "lpmv": (np.arange(6), np.arange(6), np.array([-1, -0.3, 1])),
    "erfcinv": (np.array([-1e-300, -0.5, 2.5]),),
    "ndtri": (np.array([-1e-300, -0.5, 1.5]),),
    "betaincc": (np.array([0, 2.0]), np.array([0.3, INF]), np.array([1e-300, 0.5])),
    "pseudo_huber": (np.array([-1, 0, 1, NAN]), np.array([0, 2.0])),
    "kl_div": (np.array([0.3, INF]), np.array([0.3, INF])),
    "boxcox": (np.array([0, 1e-30, 1, INF]), np.array([0, 0.5])),
    "boxcox1p": (np.array([-1, 1, INF]), np.array([0, 0.5])),
    "inv_boxcox": (np.array([-INF, 1, INF]), np.array([0, 0.5])),
}


@pytest.mark.parametrize("name", EDGES)
def test_values_at_edges_are_those_of_scipy(name):
    operands = [x.ravel() for x in np.meshgrid(*EDGES[name], indexing="ij")]
    with np.errstate(all="ignore"):
        expected = getattr(sp, name)(*operands)
    if name == "bdtri" or name.startswith("bdtr"):
        operands[1] = operands[1].astype(float)
    result = getattr(special, name)(*operands)
    np.testing.assert_allclose(result, expected, 1e-12, 1e-13)


def test_beta_of_negative_numbers():
    a = np.array([-2.0, -2.0, -3.0, -2.0, -2.0, -2.5, -1.5, 0.0, 1.0])
    b = np.array([1.0, 2.0, 1.0, 3.0, 0.5, 1.5, 2.5, 1.0, INF])
    np.testing.assert_allclose(special.beta(a, b), sp.beta(a, b), 1e-14, 1e-16)


def test_integers_do_not_overflow_in_sums():
    large = np.array([2**62])
    assert special.poch(large, large) == INF
    assert np.isnan(special.gdtr(-large, 4, large))
    assert special.pdtr(large, 1.0) == 1.0


def test_angles_near_whole_quarter_circles():
    small = np.array([1e-12, -1e-12, 1e-300])
    radians = small * (math.pi / 180)
    np.testing.assert_allclose(special.sindg(small), radians, 1e-15)
    np.testing.assert_allclose(special.cotdg(small[:2]), 1 / radians[:2], 1e-15)
    np.testing.assert_allclose(special.cosdg(90 - 1e-9), sp.cosdg(90 - 1e-9), 1e-14)
    quarters = np.array([45.0, 135, -45, 225])
    np.testing.assert_array_equal(special.tandg(quarters), [1, -1, -1, 1])
    np.testing.assert_array_equal(special.cotdg(quarters), [1, -1, -1, 1])


def test_the_riemann_zeta_function_of_all_real_numbers():
    x = np.array([-90.3, -12.7, -1.0, -1e-5, 0.0, 0.5, 0.999, 1.001])
    expected = [float(mp.zeta(mp.mpf(v))) for v in x]
    np.testing.assert_allclose(af.jit(special.zeta)(x), expected, 6e-14)
    slope = af.vmap(af.grad(special.zeta))(x[1:6])
    expected = [float(mp.diff(mp.zeta, mp.mpf(v))) for v in x[1:6]]
    np.testing.assert_allclose(slope, expected, 1e-12)


def test_quantiles_far_out():
    for a, y in ((5.98, 1e-24), (0.05, 1e-13), (30.9, 0.48), (1e5, 0.3), (900, 1e-200)):
        with mp.workdps(30):
            x = special.gammaincinv(a, y)
            got = mp.gammainc(a, 0, mp.mpf(float(x)), regularized=True)
            assert abs(got / mp.mpf(y) - 1) < 1e-11
    a, b = np.array([3.75, 9.0, 0.05]), np.array([4.6, 2.3, 7.0])
    for y in (1e-190, 1e-9, 0.3, 0.999):
        x = special.betaincinv(a, b, y)
        assert (x[2] == 0) == (y == 1e-190)  # the solution underflows
        y = np.where(x == 0, 0, y)
        np.testing.assert_allclose(special.betainc(a, b, x), y, 1e-10)


def test_log_gamma_is_infinite_at_minus_infinity():
    x = np.array([-INF])
    np.testing.assert_array_equal(special.gammaln(x), [INF])
    np.testing.assert_array_equal(af.jit(special.gammaln)(x), [INF])


def test_digamma_is_infinite_next_to_0():
    x = np.array([-5e-324, 5e-324])
    np.testing.assert_array_equal(af.jit(special.digamma)(x), [INF, -INF])


def test_complements_of_numbers_below_an_ulp_of_1_are_not_lost():
    a, b = np.array([1e-3, 0.02, 1e-3, 1.0]), np.array([2.0, 0.5, 3.0, 1e3])
    x = np.array([1e-20, 1e-30, 1e-15, 0.1])
    rows = zip(a, b, x, strict=True)
    with mp.workdps(60):
        expected = [float(mp.betainc(*row, 1, regularized=True)) for row in rows]
    np.testing.assert_allclose(special.betaincc(a, b, x), expected, 1e-13)
    df, t = np.array([1e-3, 0.01, 0.01]), np.array([-1e5, 1e8, -1e12])
    np.testing.assert_allclose(special.stdtr(df, t), sp.stdtr(df, t), 1e-13)
    n, x = np.array([0.01, 0.3]), np.array([1e13, 1e17])
    np.testing.assert_allclose(special.fdtr(171.0, n, x), sp.fdtr(171.0, n, x), 1e-13)
    np.testing.assert_allclose(special.fdtrc(n, 5.0, 1 / x), sp.fdtrc(n, 5.0, 1 / x))


def test_quantiles_of_numbers_below_an_ulp_of_1_are_not_lost():
    y = np.array([1e-20, 1e-12, 1e-5])
    result = special.bdtri(0, np.full(3, 50.0), y)
    np.testing.assert_allclose(result, -np.expm1(np.log(y) / 50), 1e-14)
    result = special.fdtri(171.0, 0.5, y)
    np.testing.assert_allclose(result, sp.fdtri(171.0, 0.5, y), 1e-13)
    df, p = np.array([1e3, 1e4, 100.0]), np.array([1e-12, 1e-13, 1e-10])
    np.testing.assert_allclose(special.stdtrit(df, p), sp.stdtrit(df, p), 1e-14)
