"""Hypergeometric functions against mpmath's, and their derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

import arrayfn as af
from arrayfn.scipy.special import hyp1f1, hyp2f1

RNG = np.random.default_rng(5)
COUNT = 40


def exactly(function: Callable[..., Any], *operands: Any) -> Any:
    with mpmath.workdps(40):
        rows = zip(*np.broadcast_arrays(*operands), strict=True)
        return np.array([float(function(*map(float, row))) for row in rows])


def drawn(size: float, number: int) -> Any:
    return RNG.uniform(-size, size, (number, COUNT))


def test_kummers_function_where_terms_cancel_and_far_out() -> None:
    ranges = ((10, -30, 30, 1e-15), (30, -500, 500, 2e-15))
    ranges += ((10, 500, 690, 2e-13), (10, -1e4, -500, 1e-13))
    run = af.jit(hyp1f1)
    for size, low, high, rtol in ranges:
        (a, b), x = drawn(size, 2), RNG.uniform(low, high, COUNT)
        want = exactly(mpmath.hyp1f1, a, b, x)
        np.testing.assert_allclose(run(a, b, x), want, rtol)


def test_gausss_function_on_both_sides_and_near_one() -> None:
    near = 1 - 10.0 ** RNG.uniform(-12, -2, COUNT)
    run = af.jit(hyp2f1)
    for size, x, rtol in (
        (5, RNG.uniform(-1, 1, COUNT), 2e-15),
        (20, RNG.uniform(-1, 1, COUNT), 1e-14),
        (5, RNG.uniform(-100, -1, COUNT), 2e-14),
        (5, near, 2e-13),
    ):
        a, b, c = drawn(size, 3)
        want = exactly(mpmath.hyp2f1, a, b, c, x)
        np.testing.assert_allclose(run(a, b, c, x), want, rtol)


def test_whole_parameters_where_formulas_by_gamma_have_poles() -> None:
    a, b = RNG.integers(-5, 6, (2, COUNT)).astype(float)
    c = RNG.integers(1, 9, COUNT).astype(float)
    for x in (RNG.uniform(0.5, 1, COUNT), RNG.uniform(-50, 0, COUNT)):
        want = exactly(mpmath.hyp2f1, a, b, c, x)
        np.testing.assert_allclose(af.jit(hyp2f1)(a, b, c, x), want, 1e-14, 1e-300)


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        ((1.0, 2.0, 0.0), 1.0),
        ((0.5, -1.0, 2.0), np.inf),
        ((-2.0, -2.0, 0.5), 1.625),
        ((-1.0, 1.0, 1.0), 0.0),
        ((-2.0, 1.0, 1e3), 498001.0),
        ((1.0, 2.0, 800.0), np.inf),
        ((0.5, 0.5, -600.0), np.exp(-600.0)),
        ((1.0, np.nan, 1.0), np.nan),
        ((-86.346, 63.128, 58.994), np.nan),  # 1e-22, of terms up to 1e11
        ((0.5, 0.5, 1.5, 2.0), np.nan),
        ((0.5, 0.5, -1.0, 0.2), np.inf),
        ((-2.0, 0.5, -3.0, 0.2), 1.0716666666666668),
        ((-2.0, 0.5, 1.5, 3.0), 0.8),
        ((0.5, 0.1, 0.7, 1.0), 1.8063030049803013),
        ((0.5, 0.5, 0.7, 1.0), np.inf),
        ((1.0, 2.0, 3.0, -31.0), 2 / 31 * (1 - np.log(32) / 31)),
        ((1.0, 1.0, 2.0, np.nan), np.nan),
    ],
)
def test_values_at_the_edges(arguments: tuple[float, ...], want: float) -> None:
    function = hyp1f1 if len(arguments) == 3 else hyp2f1
    np.testing.assert_allclose(function(*arguments), want, 1e-14)


def test_derivatives_by_every_argument() -> None:
    point = (1.3, 2.4, -3.0)
    have = af.jit(af.grad(hyp1f1, (0, 1, 2)))(*point)
    for k in range(3):
        order = tuple(int(k == i) for i in range(3))
        want = float(mpmath.diff(mpmath.hyp1f1, point, order))
        np.testing.assert_allclose(have[k], want, 1e-10)
    twice = af.jit(af.grad(af.grad(hyp1f1, 2), 2))(*point)
    want = float(mpmath.diff(mpmath.hyp1f1, point, (0, 0, 2)))
    np.testing.assert_allclose(twice, want, 1e-10)
    point = (1.3, 2.4, 3.1, 0.8)
    have = af.jit(af.grad(hyp2f1, (2, 3)))(*point)
    for k, order in enumerate(((0, 0, 1, 0), (0, 0, 0, 1))):
        want = float(mpmath.diff(mpmath.hyp2f1, point, order))
        np.testing.assert_allclose(have[k], want, 1e-10)


def test_dtypes_and_mapping() -> None:
    x = np.linspace(-0.9, 0.9, 5, dtype=np.float32)
    assert hyp1f1(np.float32(1), np.float32(2), x).dtype == np.float32
    have = af.vmap(lambda v: hyp1f1(1.0, 2.0, v))(x.astype(float))
    np.testing.assert_allclose(have, hyp1f1(1.0, 2.0, x.astype(float)), 1e-15)
