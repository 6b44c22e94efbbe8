"""Bessel, elliptic and Legendre functions: bounds of errors against mpmath."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
import scipy.special as sp

import arrayfn as af
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.lowering.plan import Kernel
from arrayfn.scipy import special
from arrayfn.scipy.special import bessel_tables
from arrayfn.test_util import check_grads
from tests.lowered_on_gpu import lowered
from tests.scipy import bessel_polynomials

RNG = np.random.default_rng(3)
EPS = float(np.finfo(np.float64).eps)
INF, NAN = math.inf, math.nan


def log_uniform(low, high, count):
    return 10 ** RNG.uniform(low, high, count)


def errors(got, formula, *arguments):
    """Relative errors in eps, and the exact values."""
    with mp.workdps(30):
        rows = zip(*(np.broadcast_arrays(*arguments)), strict=True)
        want = [formula(*(mp.mpf(float(v)) for v in row)) for row in rows]
        pairs = zip(np.asarray(got, np.float64), want, strict=True)
        relative = [float(abs(mp.mpf(float(g)) - w) / abs(w)) for g, w in pairs]
    return np.array(relative) / EPS, np.array([float(w) for w in want])


OSCILLATING = {
    "j0": lambda x: mp.besselj(0, x),
    "j1": lambda x: mp.besselj(1, x),
    "y0": lambda x: mp.bessely(0, x),
    "y1": lambda x: mp.bessely(1, x),
}
MODIFIED = {
    "k0": lambda x: mp.besselk(0, x),
    "k0e": lambda x: mp.exp(x) * mp.besselk(0, x),
    "k1": lambda x: mp.besselk(1, x),
    "k1e": lambda x: mp.exp(x) * mp.besselk(1, x),
}
NEAR_ZEROS = np.concatenate(
    [
        float(zero[0]) * (1 + RNG.normal(size=4) * 10.0 ** np.array([-3, -7, -11, -15]))
        for table in ("J0_ZEROS", "J1_ZEROS", "Y0_ZEROS", "Y1_ZEROS")
        for zero in getattr(bessel_tables, table)
    ]
)


def test_tables_are_interpolations_at_the_nodes_of_chebyshev():
    for name, numbers in bessel_polynomials.tables().items():
        assert getattr(bessel_tables, name) == numbers, name


@pytest.mark.parametrize("name", OSCILLATING)
def test_bessel_functions_up_to_8_and_beyond(name):
    function = af.jit(getattr(special, name))
    near = np.concatenate([log_uniform(-200, 0, 20), RNG.uniform(0, 8, 80), NEAR_ZEROS])
    assert max(errors(function(near), OSCILLATING[name], near)[0]) < 4.5
    far = np.concatenate([RNG.uniform(8, 60, 60), log_uniform(2, 5, 20)])
    relative, exact = errors(function(far), OSCILLATING[name], far)
    size = np.sqrt(2 / np.pi / far)
    assert max(relative * np.abs(exact) / size) < 2.2


@pytest.mark.parametrize("name", MODIFIED)
def test_modified_bessel_functions(name):
    x = np.concatenate([log_uniform(-300, 0, 30), RNG.uniform(0, 8, 60)])
    x = np.concatenate([x, RNG.uniform(8, 600, 20)])
    got = af.jit(getattr(special, name))(x)
    assert max(errors(got, MODIFIED[name], x)[0]) < 4


def test_bessel_functions_of_any_order():
    n = RNG.integers(-12, 40, 60)
    x = RNG.uniform(0.1, 30, 60)
    got = af.jit(special.yn)(n, x)
    relative, exact = errors(got, lambda n, x: mp.bessely(int(n), x), n, x)
    size = np.maximum(np.abs(exact), np.sqrt(2 / np.pi / x))
    assert max(relative * np.abs(exact) / size) < 40
    # Overflow, and arguments outside of the domain.
    edges = np.array([0, 1, 5, 300, 4, 3]), np.array([0, 0, 0, 0.01, -1, NAN])
    np.testing.assert_array_equal(special.yn(*edges), sp.yn(*edges))


@pytest.mark.parametrize("name", [*OSCILLATING, *MODIFIED])
def test_bessel_functions_at_their_limits(name):
    function = getattr(special, name)
    x = np.array([0.0, -0.0, -1.0, NAN, -INF])
    expected = getattr(sp, name)(x)
    if name in ("j0", "j1"):
        expected[-1] = 0.0  # SciPy gives NaN
    np.testing.assert_allclose(function(x), expected, EPS)
    assert function(INF) == 0
    for dtype in (np.float32, np.float16):
        got = function(np.array([2.5], dtype))
        assert got.dtype == dtype
        np.testing.assert_allclose(got, getattr(sp, name)(2.5), 1e-3)


M = np.concatenate([RNG.uniform(-2, 1, 30), 1 - log_uniform(-15, -1, 20)])
M = np.concatenate([M, -log_uniform(-10, 10, 20), [0.0, 0.5]])
ANGLES = np.concatenate([RNG.uniform(-7, 7, 36), np.pi / 2 - log_uniform(-14, 0, 36)])
ELLIPTIC = {
    "ellipk": (mp.ellipk, (M,)),
    "ellipe": (mp.ellipe, (M,)),
    "ellipkm1": (
        lambda p: mp.pi / 2 / mp.agm(1, mp.sqrt(p)),
        (np.concatenate([log_uniform(-300, 0, 40), log_uniform(0, 300, 20)]),),
    ),
    "ellipkinc": (mp.ellipf, (ANGLES, M)),
    "ellipeinc": (mp.ellipe, (ANGLES, M)),
}


@pytest.mark.parametrize("name", ELLIPTIC)
def test_elliptic_integrals(name):
    formula, arguments = ELLIPTIC[name]
    got = af.jit(getattr(special, name))(*arguments)
    assert max(errors(got, formula, *arguments)[0]) < 6


@pytest.mark.parametrize("name", ["ellipk", "ellipe", "ellipkm1"])
def test_complete_elliptic_integrals_at_their_limits(name):
    x = np.array([0.0, 1.0, 2.0, -1.0, -INF, INF, NAN, -1e308])
    expected = getattr(sp, name)(x)
    np.testing.assert_allclose(getattr(special, name)(x), expected, 4 * EPS)


@pytest.mark.parametrize("name", ["ellipkinc", "ellipeinc"])
def test_incomplete_elliptic_integrals_at_their_limits(name):
    phi = np.array([np.pi / 2, 1, 2, INF, -INF, NAN, 1, 1, 0, 1e-300, INF, INF, 1])
    m = np.array([1, 1, 1, 0.5, 0.5, 0.5, 1.2, -INF, -INF, 0.5, -INF, 1, NAN])
    expected = getattr(sp, name)(phi, m)
    np.testing.assert_allclose(getattr(special, name)(phi, m), expected, 4 * EPS)


def test_associated_legendre_functions():
    m = RNG.integers(-4, 5, 40)
    v = RNG.uniform(-6, 12, 40)
    v[::2] = v[::2].round()
    x = RNG.uniform(-0.9, 0.9, 40)
    expected = sp.lpmv(m, v, x)
    got = af.jit(special.lpmv)(m, v, x)
    np.testing.assert_allclose(got, expected, 1e-11, 1e-13)


@pytest.mark.parametrize(
    "arguments",
    [
        *((0, 2, 1.5), (1, 2, -1.5), (0, 0.5, -1), (1, 0.5, -1), (0, 0.5, 1)),
        *((2, 2, -1), (3, 2, 0.5), (-3, 2, 0.5), (1.5, 2, 0.3), (-1, 0, 0.3)),
        *((2, NAN, 0.3), (2, 1, NAN), (NAN, 1, 0.2), (0, INF, 0.5), (0, 5, -7)),
    ],
)
def test_associated_legendre_functions_at_their_limits(arguments):
    expected = sp.lpmv(*arguments)
    np.testing.assert_allclose(special.lpmv(*arguments), expected, 4 * EPS)


# First and second derivatives, at points on both sides of the borders of formulas.
DERIVATIVES = {
    "j0": (special.j0, OSCILLATING["j0"], (0.0, 0.4, 3.9, 4.1, 9.0)),
    "j1": (special.j1, OSCILLATING["j1"], (0.0, 0.4, 3.9, 4.1, 9.0)),
    "y0": (special.y0, OSCILLATING["y0"], (0.4, 2.9, 4.1, 9.0)),
    "y1": (special.y1, OSCILLATING["y1"], (0.4, 2.9, 4.1, 9.0)),
    "yn": (lambda x: special.yn(3, x), lambda x: mp.bessely(3, x), (0.4, 4.1, 9.0)),
    "k0": (special.k0, MODIFIED["k0"], (0.4, 0.9, 4.1, 90.0)),
    "k0e": (special.k0e, MODIFIED["k0e"], (0.4, 0.9, 4.1)),
    "k1": (special.k1, MODIFIED["k1"], (0.4, 0.9, 4.1, 90.0)),
    "k1e": (special.k1e, MODIFIED["k1e"], (0.4, 0.9, 4.1)),
    "ellipk": (special.ellipk, mp.ellipk, (-30.0, -1e-9, 0.0, 0.3, 0.7, 0.999)),
    "ellipe": (special.ellipe, mp.ellipe, (-30.0, -1e-9, 0.0, 0.3, 0.7, 0.999)),
    "ellipkinc by m": (
        lambda m: special.ellipkinc(2.0, m),
        lambda m: mp.ellipf(2, m),
        (-3.0, 0.0, 0.3, 0.9),
    ),
    "ellipkinc by the angle": (
        lambda phi: special.ellipkinc(phi, 0.7),
        lambda phi: mp.ellipf(phi, 0.7),
        (-7.0, 0.3, 1.5),
    ),
    "ellipeinc by m": (
        lambda m: special.ellipeinc(2.0, m),
        lambda m: mp.ellipe(2, m),
        (-3.0, 0.1, 0.3, 0.9),
    ),
    "ellipeinc by the angle": (
        lambda phi: special.ellipeinc(phi, 0.7),
        lambda phi: mp.ellipe(phi, 0.7),
        (-7.0, 0.3, 1.5),
    ),
    "lpmv by x": (
        lambda x: special.lpmv(1, 3, x),
        lambda x: mp.re(mp.legenp(3, 1, x, type=2)),
        (-0.4, 0.3, 0.6),
    ),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_first_and_second_derivatives(name):
    function, formula, points = DERIVATIVES[name]
    points = np.array(points)
    first = af.grad(lambda x: function(x).sum())
    second = af.grad(lambda x: first(x).sum())
    for order, derivative in ((1, first), (2, second)):
        with mp.workdps(30):
            # The distance keeps the nodes in the domain.
            step = mp.mpf(10) ** -9
            exact = [
                float(mp.re(mp.diff(formula, mp.mpf(x), order, h=step))) for x in points
            ]
        np.testing.assert_allclose(derivative(points), exact, 1e-10, 1e-13)


def test_derivatives_of_legendre_functions_at_1():
    slope = af.grad(lambda x: special.lpmv(0, 3, x))
    assert slope(1.0) == 6.0
    assert slope(-1.0) == 6.0
    np.testing.assert_allclose(slope(2.0), 1.5 * (5 * 4 - 1), 1e-14)
    check_grads(lambda v: special.lpmv(1, v, 0.3), (2.5,), order=1, modes=("rev",))


def test_functions_are_mapped():
    x = RNG.uniform(0.1, 0.9, (3, 2))
    np.testing.assert_allclose(af.vmap(special.j1)(x), special.j1(x), 4 * EPS)
    n = np.array([2, 5, 0])
    mapped = af.vmap(special.yn)(n, x)
    np.testing.assert_allclose(mapped, special.yn(n[:, None], x), 4 * EPS)
    mapped = af.vmap(lambda x: special.ellipkinc(x, x))(x)
    np.testing.assert_allclose(mapped, special.ellipkinc(x, x), 4 * EPS)


@pytest.mark.parametrize("name", ["j0", "y1", "k1e", "ellipe"])
def test_kernels_of_a_gpu(name):
    """The emulator gives the same numbers, and the compiler takes the kernels."""
    kernel_ptx = pytest.importorskip("arrayfn.backends.cuda.code").kernel_ptx
    function = getattr(special, name)
    x = np.array([0.1, 0.9, 3.5, 7.0, 40.0])
    x = x / 100 if function is special.ellipe else x
    plan = lowered(function, x)
    np.testing.assert_allclose(run_plan(plan, [x])[0], function(x), 8 * EPS)
    kernels = [kernel for kernel in plan.kernels if isinstance(kernel, Kernel)]
    assert kernels
    for kernel in kernels:
        assert ".visible .entry kernel(" in kernel_ptx(kernel, (8, 0))
