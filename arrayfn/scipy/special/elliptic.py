"""Elliptic integrals of the first and second kind, complete and incomplete.

Complete ones are computed by the arithmetic-geometric mean (DLMF 19.8), incomplete ones
by Carlson's duplication (DLMF 19.36). Each formula adds numbers of one sign, so that
none cancels. The parameter is m = k**2.
"""

from __future__ import annotations

import math
from typing import Any

import arrayfn.numpy as anp
from arrayfn.lax import fori_loop
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import in_float64, quiet

# The mean of 1 and the smallest float64 needs 13 iterations, of 1 and 0.7 needs 5.
_ITERATIONS = 13
_FEW_ITERATIONS = 5
_DUPLICATIONS = 14  # see ``_duplicate``


@quiet
def ellipk(m: ArrayLike) -> Array:
    """Return the complete elliptic integral of the first kind.

    It is the integral of 1 / sqrt(1 - m sin(t)**2) from 0 to pi / 2. It is infinite at
    m = 1 and NaN beyond. The relative error is below 2e-15, also for ``ellipkm1`` and
    ``ellipe``.
    """
    (m,), dtype = in_float64("ellipk", m)
    return ops.convert(_first(1.0 - m), dtype)


@quiet
def ellipkm1(p: ArrayLike) -> Array:
    """Return ellipk(1 - p), also accurate near p = 0."""
    (p,), dtype = in_float64("ellipkm1", p)
    return ops.convert(_first(p), dtype)


@quiet
def ellipe(m: ArrayLike) -> Array:
    """Return the complete elliptic integral of the second kind; NaN for m > 1.

    It is the integral of sqrt(1 - m sin(t)**2) from 0 to pi / 2.
    """
    (m,), dtype = in_float64("ellipe", m)
    return ops.convert(_second(m), dtype)


@quiet
def ellipkinc(phi: ArrayLike, m: ArrayLike) -> Array:
    """Return the incomplete elliptic integral of the first kind; NaN for m > 1.

    It is the integral of 1 / sqrt(1 - m sin(t)**2) from 0 to ``phi``.
    """
    (phi, m), dtype = in_float64("ellipkinc", phi, m)
    periods, sine, cosine = _split_periods(phi)
    square = cosine * cosine
    # F(phi, m) = sin R_F(cos**2, 1 - m sin**2, 1) (DLMF 19.25.5), and each period of
    # pi adds 2 K(m).
    part = sine * _first_of_carlson(square, square + (1.0 - m) * sine * sine)
    whole = anp.where(periods == 0, 0.0, 2.0 * periods * _first(1.0 - m))
    value = _in_domain(phi, m, whole + part, 0.0 * phi)
    # For m = 1, the integral is infinite from pi / 2 on.
    right = (m == 1) & (anp.abs(phi) >= 0.5 * math.pi)
    return ops.convert(anp.where(right, anp.copysign(math.inf, phi), value), dtype)


@quiet
def ellipeinc(phi: ArrayLike, m: ArrayLike) -> Array:
    """Return the incomplete elliptic integral of the second kind; NaN for m > 1.

    It is the integral of sqrt(1 - m sin(t)**2) from 0 to ``phi``.
    """
    (phi, m), dtype = in_float64("ellipeinc", phi, m)
    # phi is a multiple of pi plus a rest, whose sine and cosine are used.
    periods, sine, cosine = _split_periods(phi)
    square, left = cosine * cosine, 1.0 - m
    # delta = 1 - m sin**2
    delta = square + left * sine * sine
    first = sine * _first_of_carlson(square, delta)
    # DLMF 19.25.9 for negative m, 19.25.10 for positive m.
    below = m < 0
    third = sine * sine * sine / 3.0 * m
    third = third * _second_of_carlson(
        square, anp.where(below, delta, 1.0), anp.where(below, 1.0, delta)
    )
    above = left * (first + third) + m * sine * anp.abs(cosine) / anp.sqrt(delta)
    part = anp.where(below, first - third, above)
    whole = anp.where(periods == 0, 0.0, 2.0 * periods * _second(m))
    return ops.convert(_in_domain(phi, m, whole + part, math.inf), dtype)


# Complete integrals


def _first(p: Array) -> Array:
    """Return K of the parameter 1 - p, also accurate near p = 0.

    It is pi / 2 over the arithmetic-geometric mean of 1 and sqrt(p) (DLMF 19.8.5). K is
    infinite at p = 0, NaN for p < 0, and 0 at infinity.
    """
    a: Any = 1.0
    inside = (p > 0) & (p < math.inf)
    b = anp.sqrt(anp.where(inside, p, 1.0))
    for _ in range(_ITERATIONS):
        a, b = 0.5 * (a + b), anp.sqrt(a * b)
    value = anp.where(inside, 0.5 * math.pi / a, anp.where(p == 0, math.inf, math.nan))
    return anp.where(p == math.inf, 0.0, value)


def _second(m: Array) -> Array:
    """Return the complete integral E(m), NaN for m > 1.

    A negative m becomes m / (m - 1), with the factor sqrt(1 - m) (DLMF 19.7.2). The
    arithmetic-geometric mean (DLMF 19.8.6) gives E of the smaller of m and 1 - m: E = K
    (1 - sum of 2**(n - 1) c_n**2), which needs few iterations. For m > 1/2, Legendre's
    relation (DLMF 19.7.1) then gives E(m).
    """
    p = 1.0 - m
    size = anp.where(m < 0, p, 1.0)
    m, p = anp.where(m < 0, -m / size, m), anp.where(m < 0, 1.0 / size, p)
    inside, m_is_small = p > 0, p >= 0.5
    small = anp.where(inside, anp.where(m_is_small, m, p), 0.0)
    a: Any = 1.0
    b = anp.sqrt(1.0 - small)
    total, weight, square = 0.5 * small, 1.0, small
    for _ in range(_FEW_ITERATIONS):
        a, b = 0.5 * (a + b), anp.sqrt(a * b)
        # c_n**2, where c_n is half the difference of the previous a and b.
        square = square * square / (16.0 * a * a)
        total, weight = total + weight * square, 2.0 * weight
    below = 0.5 * math.pi / a * (1.0 - total)
    # Legendre's relation (DLMF 19.7.1) gives E from the other parameter's.
    above = a + _first(anp.where(inside & ~m_is_small, p, 1.0)) * total
    root = anp.sqrt(size)
    value = root * anp.where(m_is_small, below, above)
    return anp.where(inside, value, anp.where(p == 0, root, math.nan))


# Incomplete integrals


def _split_periods(phi: Array) -> tuple[Array, Array, Array]:
    """Split ``phi`` into multiples of pi and a rest in [-pi / 2, pi / 2].

    Returns the number of multiples, and the sine and cosine of the rest. The cosine has
    the sign of cos(phi), because callers only use its square or magnitude.
    """
    periods = anp.rint(phi / math.pi)
    sign = 1.0 - 2.0 * anp.remainder(periods, 2.0)
    return periods, sign * anp.sin(phi), anp.cos(phi)


def _in_domain(phi: Array, m: Array, value: Array, limit: Any) -> Array:
    """Return ``value`` for finite ``phi`` and m <= 1.

    It is phi for infinite ``phi``, ``limit`` for m = -inf, and NaN for m > 1.
    """
    value = anp.where(anp.isinf(phi), phi, value)
    value = anp.where(m == -math.inf, limit, value)
    return anp.where((m <= 1) & ~anp.isnan(phi), value, math.nan)


def _duplicate(x: Array, y: Array, z: Array) -> tuple[Array, ...]:
    """Apply Carlson's duplication to x, y and z until they are nearly equal.

    Returns the three numbers and a sum. A duplication does not change R_F. R_D becomes
    a term plus a quarter of R_D of the new numbers (DLMF 19.26.20). The sum is that of
    these terms, divided by 3.

    Ten duplications bring even the smallest and the largest float64 to within a factor
    of 2. Each further one divides the relative distances by about 4. After four more,
    the distances are below 0.002. The Taylor series of R_F and R_D then need no terms
    of the sixth order, which are below rounding errors.
    """

    def step(_: Any, state: Any) -> Any:
        """Replace each number v by (v + shift) / 4, and add a term to the sum.

        The shift is sqrt(x y) + sqrt(x z) + sqrt(y z). ``weight`` is 4**-k in
        duplication k.
        """
        x, y, z, total, weight = state
        a, b, c = anp.sqrt(x), anp.sqrt(y), anp.sqrt(z)
        shift = a * (b + c) + b * c
        total = total + weight / (c * (z + shift))
        x, y, z = (0.25 * (v + shift) for v in (x, y, z))
        return x, y, z, total, 0.25 * weight

    one = anp.ones_like(x)
    start = (x, y, z, anp.zeros_like(x), one)
    x, y, z, total, _ = fori_loop(0, _DUPLICATIONS, step, start)
    return x, y, z, total


def _first_of_carlson(x: Array, y: Array) -> Array:
    """Return Carlson's integral R_F(x, y, 1) (DLMF 19.16.1).

    After the duplications, it is a Taylor series in the relative distances u, v, w from
    the mean, by their symmetric polynomials e2 and e3 (DLMF 19.36.1).
    """
    x, y, z, _ = _duplicate(x, y, anp.ones_like(x))
    mean = (x + y + z) / 3.0
    u, v = 1.0 - x / mean, 1.0 - y / mean
    w = -(u + v)
    e2, e3 = u * v - w * w, u * v * w
    series = 1.0 - e2 / 10.0 + e3 / 14.0 + e2 * e2 / 24.0 - 3.0 / 44.0 * e2 * e3
    return series / anp.sqrt(mean)


def _second_of_carlson(x: Array, y: Array, z: Array) -> Array:
    """Return Carlson's integral R_D(x, y, z) (DLMF 19.16.5).

    It is the terms of the duplications plus a Taylor series in the relative distances
    u, v, w from the mean, by their symmetric polynomials (DLMF 19.36.2).
    """
    x, y, z, total = _duplicate(x, y, z)
    mean = (x + y + 3.0 * z) / 5.0
    u, v = 1.0 - x / mean, 1.0 - y / mean
    w = (u + v) / -3.0
    e2, e3 = u * v - 6.0 * w * w, (3.0 * u * v - 8.0 * w * w) * w
    e4, e5 = 3.0 * (u * v - w * w) * w * w, u * v * w * w * w
    series = 1.0 - 3.0 / 14.0 * e2 + e3 / 6.0 + 9.0 / 88.0 * e2 * e2
    series = series - 3.0 / 22.0 * e4 - 9.0 / 52.0 * e2 * e3 + 3.0 / 26.0 * e5
    rest = 4.0**-_DUPLICATIONS * series / (mean * anp.sqrt(mean))
    return 3.0 * total + rest


__all__ = ["ellipe", "ellipeinc", "ellipk", "ellipkinc", "ellipkm1"]
