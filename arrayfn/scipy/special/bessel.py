"""Bessel functions J and Y of the orders 0 and 1, K of these orders, Y of any order.

J and Y are polynomials up to 8, from which the zeros are divided out, so that values
near them are accurate too. Beyond 8 they are Hankel's expansion: a cosine and a sine,
times polynomials in 1 / x**2. Y and K have a logarithm at 0 (DLMF 10.8 and 10.31).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import horner, in_float64, quiet
from arrayfn.scipy.special import bessel_tables as tables
from arrayfn.transforms.custom import custom_jvp

_BORDER = 8.0  # where Hankel's expansion takes over
# The series of I0(x) and of I1(x) / x in (x / 2)**2.
_I0 = tuple(1 / math.factorial(k) ** 2 for k in range(10))
_I1 = tuple(0.5 / (math.factorial(k) * math.factorial(k + 1)) for k in range(10))
# 2 exp(-Euler's constant)
_SCALE_OF_LOG = 1.1229189671337703


@quiet
def j0(x: ArrayLike) -> Array:
    """Return J0(x), the Bessel function of the first kind of order 0.

    It is even in x. Up to x = 8 the relative error is below 1e-15, also near zeros.
    Beyond 8 the error is below 5e-16 times sqrt(2 / (pi x)), the size of the
    oscillation. The function is 0 at infinity, where SciPy gives NaN.
    """
    (x,), dtype = in_float64("j0", x)
    return ops.convert(_j0(x), dtype)


@quiet
def j1(x: ArrayLike) -> Array:
    """Return J1(x), the Bessel function of the first kind of order 1.

    It is odd in x. Errors are those of ``j0``.
    """
    (x,), dtype = in_float64("j1", x)
    return ops.convert(_j1(x), dtype)


@quiet
def y0(x: ArrayLike) -> Array:
    """Return Y0(x), the Bessel function of the second kind of order 0.

    It is NaN for x < 0. Errors are those of ``j0``.
    """
    (x,), dtype = in_float64("y0", x)
    return ops.convert(_y0(x), dtype)


@quiet
def y1(x: ArrayLike) -> Array:
    """Return Y1(x), the Bessel function of the second kind of order 1.

    It is NaN for x < 0. Errors are those of ``j0``.
    """
    (x,), dtype = in_float64("y1", x)
    return ops.convert(_y1(x), dtype)


@quiet
def yn(n: ArrayLike, x: ArrayLike) -> Array:
    """Return the Bessel function of the second kind of integer order n, for x >= 0.

    The method is the recurrence from Y0 and Y1, which is stable upwards (DLMF 10.6.1).
    A fractional n is truncated. The function cannot be differentiated with respect to
    n.
    """
    (n, x), dtype = in_float64("yn", n, x)
    return ops.convert(_yn(anp.trunc(n), x), dtype)


@quiet
def k0(x: ArrayLike) -> Array:
    """Return the modified Bessel function of the second kind of order 0, for x >= 0.

    The relative error is below 1e-15, also for ``k0e``, ``k1`` and ``k1e``.
    """
    (x,), dtype = in_float64("k0", x)
    return ops.convert(_k0(x), dtype)


@quiet
def k0e(x: ArrayLike) -> Array:
    """Return exp(x) k0(x), for x >= 0, without overflow or underflow."""
    (x,), dtype = in_float64("k0e", x)
    return ops.convert(_k0e(x), dtype)


@quiet
def k1(x: ArrayLike) -> Array:
    """Return the modified Bessel function of the second kind of order 1, for x >= 0."""
    (x,), dtype = in_float64("k1", x)
    return ops.convert(_k1(x), dtype)


@quiet
def k1e(x: ArrayLike) -> Array:
    """Return exp(x) k1(x), for x >= 0, without overflow or underflow."""
    (x,), dtype = in_float64("k1e", x)
    return ops.convert(_k1e(x), dtype)


# J and Y


def _less(x: Array, zero: tuple[float, float]) -> Array:
    """Return x minus a zero of a function, which is the sum of two floats.

    The second float has the digits that the first one lacks, so the difference is
    accurate near the zero.
    """
    return (x - zero[0]) - zero[1]


def _square(x: Array, top: float) -> Array:
    """Map x in [0, top] to [-1, 1] by t = 2 (x / top)**2 - 1, the tables' variable."""
    return x * x * (2.0 / (top * top)) - 1.0


def _waves(a: Array, order: int) -> tuple[Array, Array]:
    """Return J and Y of ``order`` 0 or 1 at a >= 8 (DLMF 10.17.3 and 10.17.4).

    By Hankel's expansion, with w = a - pi/4 or a - 3 pi/4, J = sqrt(2 / (pi a)) (P cos
    w - Q sin w), and Y = sqrt(2 / (pi a)) (P sin w + Q cos w). Both are 0 at infinity.
    """
    inverse = _BORDER / a
    t = 2.0 * inverse * inverse - 1.0  # P and Q / inverse are polynomials in t
    p, q = ((tables.P0, tables.Q0), (tables.P1, tables.Q1))[order]
    p_value, q_value = horner(t, p), inverse * horner(t, q)
    # The sine and cosine of w, times sqrt(2), by addition theorems.
    sine, cosine = anp.sin(a), anp.cos(a)
    sine, cosine = (
        (-(sine + cosine), sine - cosine) if order else (sine - cosine, sine + cosine)
    )
    size = math.sqrt(1.0 / math.pi) / anp.sqrt(a)
    first = size * (p_value * cosine - q_value * sine)
    second = size * (p_value * sine + q_value * cosine)
    infinite = anp.isinf(a)
    return anp.where(infinite, 0.0, first), anp.where(infinite, 0.0, second)


def _far(x: Array) -> Array:
    """Return max(x, 8), for a formula that is not used below 8."""
    return anp.where(x > _BORDER, x, _BORDER)


def _near_j0(x: Array) -> Array:
    """Return J0(x) for x in [-4, 4].

    It is (x**2 - z**2) times a polynomial in x**2, for the zero z = root + left, where
    ``left`` has the digits that the float ``root`` lacks.
    """
    root, left = tables.J0_ZEROS[0]
    a = anp.abs(x)
    return _less(a, (root, left)) * (a + root) * horner(_square(x, 4.0), tables.J0_NEAR)


def _near_j1(x: Array) -> Array:
    """Return J1(x) / x for x in [-4, 4].

    It is (x**2 - z**2) times a polynomial in x**2, for the zero z of J1.
    """
    root, left = tables.J1_ZEROS[0]
    a = anp.abs(x)
    return _less(a, (root, left)) * (a + root) * horner(_square(x, 4.0), tables.J1_NEAR)


@custom_jvp
def _j0(x: Array) -> Array:
    """Return J0(x) by one formula for each of |x| <= 4, |x| <= 8 and |x| > 8.

    From 4 to 8 it is (|x| - z) times a polynomial, for the zero z in that interval.
    Beyond 8 it is Hankel's expansion. All three are computed, and an element is clipped
    to the range of a formula that does not apply to it.
    """
    a = anp.abs(x)
    below = _near_j0(anp.minimum(a, 4.0))
    below = anp.where(a < 1e-4, 1.0 - 0.25 * a * a, below)  # exactly 1 at 0
    b = anp.clip(a, 4.0, _BORDER)
    # 0.5 b - 3 maps [4, 8] to [-1, 1], the variable of the polynomial.
    middle = _less(b, tables.J0_ZEROS[1]) * horner(0.5 * b - 3.0, tables.J0_MIDDLE)
    above, _ = _waves(_far(a), order=0)  # J and Y
    value = anp.where(a <= 4.0, below, anp.where(a <= _BORDER, middle, above))
    return anp.where(anp.isnan(x), x, value)


@custom_jvp
def _j1(x: Array) -> Array:
    """Return J1(x), which is odd, by one formula for each range of |x|.

    The ranges and formulas are those of ``_j0``. From 4 to 8 two zeros are factored
    out, of which the first is just below 4.
    """
    a = anp.abs(x)
    c = anp.minimum(a, 4.0)
    below = c * _near_j1(c)
    b = anp.clip(a, 4.0, _BORDER)
    # 0.5 b - 3 maps [4, 8] to [-1, 1], the variable of the polynomial.
    middle = _less(b, tables.J1_ZEROS[0]) * _less(b, tables.J1_ZEROS[1])
    middle = middle * horner(0.5 * b - 3.0, tables.J1_MIDDLE)
    above, _ = _waves(_far(a), order=1)  # J and Y
    value = anp.where(a <= 4.0, below, anp.where(a <= _BORDER, middle, above))
    return anp.where(anp.isnan(x), x, anp.copysign(1.0, x) * value)


@_j0.defjvp
def _j0_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return J0(x) and its derivative, -J1(x) (DLMF 10.6.3)."""
    (x,), (dx,) = primals, tangents
    return _j0(x), -_j1(x) * dx


@_j1.defjvp
def _j1_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return J1(x) and its derivative, J0(x) - J1(x) / x (DLMF 10.6.2)."""
    (x,), (dx,) = primals, tangents
    value = _j1(x)
    far = anp.abs(x) > 4.0
    near = anp.where(far, 0.0, x)
    # An even polynomial, whose derivatives at 0 are those of j1(x) / x.
    root, _ = tables.J1_ZEROS[0]  # without the digits that the float lacks
    ratio = (near * near - root * root) * horner(_square(near, 4.0), tables.J1_NEAR)
    ratio = anp.where(far, value / anp.where(far, x, 1.0), ratio)
    return value, (_j0(x) - ratio) * dx


def _log(x: Array, zero: tuple[float, float]) -> Array:
    """Return log(x / zero) for a ``zero`` as two floats, also accurate near the zero.

    From half the zero on, it is log1p((x - zero) / zero).
    """
    low = x < 0.5 * zero[0]
    near = anp.log1p(anp.where(low, 0.0, _less(x, zero) / zero[0]))
    return anp.where(low, anp.log(x / zero[0]), near)


def _from_0(x: Array, at_0: float, value: Array) -> Array:
    """Return ``value`` for x > 0, ``at_0`` for x = 0, and NaN for x < 0 or NaN."""
    value = anp.where(x > 0, value, anp.where(x == 0, at_0, math.nan))
    return anp.where(anp.isnan(x), x, value)


@custom_jvp
def _y0(x: Array) -> Array:
    """Return Y0(x) for x >= 0, by one formula for each of x <= 3, x <= 8 and x > 8.

    Up to 3, it is 2 / pi log(x / z) J0(x) + (x**2 - z**2) times a polynomial in x**2,
    for the first zero z of Y0. From 3 to 8, it is a product of x - z for two zeros and
    a polynomial. Beyond 8, it is Hankel's expansion. All are computed, as in ``_j0``.
    """
    # Pairs of a float, and the digits that it lacks.
    first, second, third = tables.Y0_ZEROS
    root, _ = first
    a = anp.where(x > 0, anp.minimum(x, 3.0), 1.0)
    square = _less(a, first) * (a + root)
    below = 2.0 / math.pi * _log(a, first) * _near_j0(a)
    below = below + square * horner(_square(a, 3.0), tables.Y0_NEAR)
    b = anp.clip(x, 3.0, _BORDER)
    middle = _less(b, second) * _less(b, third)
    # 0.4 b - 2.2 maps [3, 8] to [-1, 1], the variable of the polynomial.
    middle = middle * horner(0.4 * b - 2.2, tables.Y0_MIDDLE)
    _, above = _waves(_far(x), order=0)  # J and Y
    value = anp.where(x <= 3.0, below, anp.where(x <= _BORDER, middle, above))
    return _from_0(x, -math.inf, value)


@custom_jvp
def _y1(x: Array) -> Array:
    """Return Y1(x) for x >= 0, by one formula for each of x <= 4, x <= 8 and x > 8.

    Up to 4, it is 2 / pi log(x / z) J1(x) + (x**2 - z**2) / x times a polynomial in
    x**2, for the first zero z of Y1. From 4 to 8, it is x - z for a zero z times a
    polynomial. Beyond 8, it is Hankel's expansion. All are computed, as in ``_j0``.
    """
    first, second = tables.Y1_ZEROS  # pairs of a float, and the digits that it lacks
    root, _ = first
    a = anp.where(x > 0, anp.minimum(x, 4.0), 1.0)
    square = _less(a, first) * (a + root)
    below = 2.0 / math.pi * _log(a, first) * a * _near_j1(a)
    below = below + square * horner(_square(a, 4.0), tables.Y1_NEAR) / a
    b = anp.clip(x, 4.0, _BORDER)
    # 0.5 b - 3 maps [4, 8] to [-1, 1], the variable of the polynomial.
    middle = _less(b, second) * horner(0.5 * b - 3.0, tables.Y1_MIDDLE)
    _, above = _waves(_far(x), order=1)  # J and Y
    value = anp.where(x <= 4.0, below, anp.where(x <= _BORDER, middle, above))
    return _from_0(x, -math.inf, value)


@_y0.defjvp
def _y0_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return Y0(x) and its derivative, -Y1(x) (DLMF 10.6.3)."""
    (x,), (dx,) = primals, tangents
    return _y0(x), -_y1(x) * dx


@_y1.defjvp
def _y1_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return Y1(x) and its derivative, Y0(x) - Y1(x) / x (DLMF 10.6.2)."""
    (x,), (dx,) = primals, tangents
    value = _y1(x)
    return value, (_y0(x) - value / x) * dx


@partial(custom_jvp, nondiff_argnums=(0,))
def _yn(n: Array, x: Array) -> Array:
    """Return Y of integer order ``n``, by a recurrence from Y0 and Y1.

    The recurrence is Y(k + 1) = 2 k / x Y(k) - Y(k - 1) (DLMF 10.6.1). One loop
    computes all elements, up to the largest order. Y of order -n is (-1)**n Y of order
    n.
    """
    size = anp.abs(n)

    def going(here: Array, k: Any) -> Array:
        """Return whether the order is not yet reached; infinite values stay."""
        return (k < size) & anp.isfinite(here)

    def step(state: Any) -> Any:
        """Compute order k + 1, in elements whose order is not yet reached.

        Y(k + 1) = 2 k / x Y(k) - Y(k - 1).
        """
        k, before, here = state
        above = 2.0 * k / x * here - before
        on = going(here, k)
        return k + 1.0, anp.where(on, here, before), anp.where(on, above, here)

    start = (anp.ones_like(anp.max(size, initial=0.0)), _y0(x), _y1(x))
    # The state is (k, order k - 1, order k).
    _, _, last = lax.while_loop(lambda s: anp.any(going(s[2], s[0])), step, start)
    value = anp.where(size == 0, _y0(x), last)
    return anp.where((n < 0) & (anp.remainder(size, 2.0) == 1.0), -value, value)


@_yn.defjvp
def _yn_jvp(n: Array, primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return Y of order n and its derivative by x.

    It is (Y(n - 1) - Y(n + 1)) / 2 (DLMF 10.6.1). The order has no derivative.
    """
    (x,), (dx,) = primals, tangents
    return _yn(n, x), 0.5 * (_yn(n - 1.0, x) - _yn(n + 1.0, x)) * dx


# K


def _scaled_k(x: Array, order: int, scaled: bool) -> Array:
    """Return K of ``order`` 0 or 1, times exp(x) if ``scaled``, for x >= 0.

    Up to 1, K0 is a polynomial - log(x / c) I0(x), and K1 is (1 + x log(x) I1(x) + x**2
    times a polynomial) / x, with the series of I0 and I1 (DLMF 10.31). Beyond 1, K is
    exp(-x) / sqrt(x) times a polynomial in 1 / x.
    """
    a = anp.where(x > 0, anp.minimum(x, 1.0), 1.0)
    quarter, t = 0.25 * a * a, _square(a, 1.0)
    if order:
        log = a * a * horner(quarter, _I1) * anp.log(a)
        below = (1.0 + log + a * a * horner(t, tables.K1_NEAR)) / a
    else:
        below = horner(t, tables.K0_NEAR)
        below = below - anp.log(a / _SCALE_OF_LOG) * horner(quarter, _I0)
    b = anp.where(x > 1.0, x, 1.0)
    above = horner(2.0 / b - 1.0, tables.K1_FAR if order else tables.K0_FAR)
    above = above / anp.sqrt(b)
    if scaled:
        below = below * anp.exp(a)
    else:
        above = above * anp.exp(-b)
    return _from_0(x, math.inf, anp.where(x <= 1.0, below, above))


@custom_jvp
def _k0(x: Array) -> Array:
    """Return K0(x)."""
    return _scaled_k(x, 0, scaled=False)


@custom_jvp
def _k1(x: Array) -> Array:
    """Return K1(x)."""
    return _scaled_k(x, 1, scaled=False)


@custom_jvp
def _k0e(x: Array) -> Array:
    """Return exp(x) K0(x)."""
    return _scaled_k(x, 0, scaled=True)


@custom_jvp
def _k1e(x: Array) -> Array:
    """Return exp(x) K1(x)."""
    return _scaled_k(x, 1, scaled=True)


# Derivatives of K: DLMF 10.29.3, and 10.29.2 with order 1.


@_k0.defjvp
def _k0_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return K0 and its derivative, -K1(x)."""
    (x,), (dx,) = primals, tangents
    return _k0(x), -_k1(x) * dx


@_k1.defjvp
def _k1_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return K1 and its derivative, -(K0(x) + K1(x) / x)."""
    (x,), (dx,) = primals, tangents
    value = _k1(x)
    return value, -(_k0(x) + value / x) * dx


@_k0e.defjvp
def _k0e_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return exp(x) K0 and its derivative, exp(x) (K0 - K1)."""
    (x,), (dx,) = primals, tangents
    value = _k0e(x)
    return value, (value - _k1e(x)) * dx


@_k1e.defjvp
def _k1e_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return exp(x) K1 and its derivative, exp(x) (K1 - K0 - K1 / x)."""
    (x,), (dx,) = primals, tangents
    value = _k1e(x)
    return value, (value - _k0e(x) - value / x) * dx


__all__ = ["j0", "j1", "k0", "k0e", "k1", "k1e", "y0", "y1", "yn"]
