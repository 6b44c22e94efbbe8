"""Families of functions by order: Bessel functions, spherical harmonics."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.errors import ArgumentError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import in_float64, quiet
from arrayfn.scipy.special.gamma_functions import gammaln, gammasgn
from arrayfn.scipy.special.hypergeometric import hyp2f1
from arrayfn.tracing import Tracer
from arrayfn.transforms import jvp
from arrayfn.transforms.custom import SymbolicZero, custom_jvp

# The backward recurrence begins at an order this far above the largest argument.
_MARGIN = 60.0
_LARGE = 1e150  # larger numbers of the recurrence are scaled down, with all others


@quiet
def bessel_jn(z: ArrayLike, *, v: int, n_iter: int = 50) -> Array:
    """Return the Bessel functions of the first kind of orders 0 to ``v``.

    The result is [v + 1, *z.shape]. Miller's backward recurrence (Abramowitz and Stegun
    9.12) begins at order ``n_iter``. If ``n_iter`` is too low, the recurrence begins
    far above the largest argument.
    """
    (z,), dtype = in_float64("bessel_jn", z)
    return ops.convert(_bessel_jn(z, int(v), int(n_iter)), dtype)


@partial(custom_jvp, nondiff_argnums=(1, 2))
def _bessel_jn(z: Array, v: int, n_iter: int) -> Array:
    """Return J0(z) to Jv(z), along a new axis 0, by Miller's backward recurrence.

    The recurrence begins at an order far above |z| and v, and at least at ``n_iter``,
    with arbitrary small values. J0 + 2 J2 + 2 J4 + ... = 1 then gives the scale of all
    orders. NaN gives NaN, and infinite z gives 0.
    """
    finite = anp.isfinite(z)
    is_zero = z == 0
    x = anp.where(finite & ~is_zero, z, 1.0)
    begin = anp.maximum(anp.ceil(anp.max(anp.abs(x), initial=0.0)), float(v)) + _MARGIN
    # An even order, which the sum below contains.
    begin = 2.0 * anp.ceil(0.5 * anp.maximum(begin, float(n_iter)))
    orders = anp.reshape(anp.arange(v + 1.0), (v + 1,) + (1,) * z.ndim)

    def step(state: Any) -> Any:
        """Compute order k - 1, add it to the sum, and store it if it is at most ``v``.

        The state is k, orders k + 1 and k, the sum, and the stored orders.
        """
        k, above, here, total, results = state
        below = 2.0 * k / x * here - above
        # J0 + 2 J2 + 2 J4 + ... is 1.
        even = anp.remainder(k - 1.0, 2.0) == 0
        weight = anp.where(k == 1.0, 1.0, anp.where(even, 2.0, 0.0))
        total = total + weight * below
        results = anp.where(orders == k - 1.0, below, results)
        # Scale all numbers down before they overflow; only their ratios matter.
        scale = anp.where(anp.abs(below) > _LARGE, 1.0 / _LARGE, 1.0)
        return k - 1.0, here * scale, below * scale, total * scale, results * scale

    start = anp.full_like(x, 1e-30)
    state = (
        begin,
        anp.zeros_like(x),
        start,
        2.0 * start,
        anp.zeros((v + 1, *x.shape), dtype=x.dtype),
    )
    # s[0] is the order k.
    *_, total, results = lax.while_loop(lambda s: s[0] >= 1.0, step, state)
    at_zero = anp.where(orders == 0, 1.0, 0.0)
    value = anp.where(is_zero, at_zero, results / total)
    return anp.where(finite, value, anp.where(anp.isnan(z), math.nan, 0.0))


@_bessel_jn.defjvp
def _bessel_jn_jvp(
    v: int, n_iter: int, primals: Any, tangents: Any
) -> tuple[Array, Array]:
    """Return the values and their derivatives by z.

    Jn' = (J(n - 1) - J(n + 1)) / 2, and J0' = -J1.
    """
    (z,), (dz,) = primals, tangents
    more = _bessel_jn(z, v + 1, n_iter)

    # -J1 in place of J(-1) gives (-J1 - J1) / 2 for order 0.
    before = anp.concatenate([-more[1:2], more[:-2]])
    return more[:-1], 0.5 * (before - more[1:]) * dz


@quiet
def sph_harm_y(
    n: ArrayLike,
    m: ArrayLike,
    theta: ArrayLike,
    phi: ArrayLike,
    *,
    n_max: int | None = None,
) -> Array:
    """Return the complex spherical harmonic of degree n >= 0 and order m.

    ``theta`` is the polar angle, and ``phi`` is the azimuth. Harmonics are orthonormal,
    with the phase of Condon and Shortley. They are 0 for abs(m) > n. ``n_max`` is the
    largest degree, which is needed if n is traced: ArgumentError without.
    """
    if n_max is None:
        if isinstance(n, Tracer):
            raise ArgumentError(
                "sph_harm_y: the largest degree must be known when n is traced; give "
                "n_max=",
                user_location(),
            )
        n_max = int(np.max(n))
    (degree, order, theta, phi), dtype = in_float64("sph_harm_y", n, m, theta, phi)
    size = anp.abs(order)
    legendre = _legendre(degree, size, theta, n_max)
    angle = size * phi
    sign = 1.0 - 2.0 * anp.remainder(size, 2.0)
    # Y of -m is (-1)**m times the conjugate of Y of m.
    real = legendre * anp.cos(angle)
    imaginary = legendre * anp.sin(angle)
    negative = order < 0
    value = lax.complex(
        anp.where(negative, sign * real, real),
        anp.where(negative, -sign * imaginary, imaginary),
    )
    return ops.convert(value, dtypes.complex_of(dtypes.compute_dtype(dtype)))


def _legendre(n: Array, m: Array, theta: Array, n_max: int) -> Array:
    """Return normalised associated Legendre functions of cos(theta).

    ``n`` is the degree, at most ``n_max``, and ``m`` >= 0 the order. exp(i m phi) times
    the result is the spherical harmonic. Degree m is sqrt((2 m + 1)! / (4 pi)) / (2**m
    m!) (-sin(theta))**m, and the next degrees follow by recurrence (Press et al.,
    Numerical Recipes, section 6.7). For m > n the result is 0.
    """
    x, sine = anp.cos(theta), anp.abs(anp.sin(theta))
    logs = 0.5 * (lax.lgamma(2.0 * m + 2.0) - math.log(4.0 * math.pi))
    logs = logs - m * math.log(2.0) - lax.lgamma(m + 1.0)
    sign = 1.0 - 2.0 * anp.remainder(m, 2.0)
    here = sign * anp.exp(logs) * anp.power(sine, m)
    before: Any = anp.zeros_like(here)
    for step in range(1, n_max + 1):
        k = m + float(step)
        # P(k) = a (x P(k - 1) - b P(k - 2)), where b is 0 in the first step.
        a = anp.sqrt((4.0 * k * k - 1.0) / (k * k - m * m))
        c = k - 1.0
        b = anp.sqrt((c * c - m * m) / (4.0 * c * c - 1.0)) if step > 1 else 0.0
        after = a * (x * here - b * before)
        used = k <= n
        before, here = anp.where(used, here, before), anp.where(used, after, here)
    return anp.where(m <= n, here, 0.0)


@quiet
def lpmv(m: ArrayLike, v: ArrayLike, x: ArrayLike) -> Array:
    """Return the associated Legendre function of order m and real degree v at x.

    For x from -1 to 1 it is Ferrers' function of the first kind, with the phase of
    Condon and Shortley. The order must be an integer, otherwise the value is NaN. It is
    also NaN if v is an integer and m < -v (for negative v: m < v + 1). For |x| > 1 the
    value is a polynomial for m = 0 and integers v, and otherwise NaN. The first two
    degrees come from hypergeometric functions (DLMF 14.3.1 and 15.8.1). The other
    degrees come from the recurrence (14.10.3). For degrees up to 20 the error is below
    1e-13 times the largest value of a degree near v. The function can be differentiated
    with respect to v and x.
    """
    (m, v, x), dtype = in_float64("lpmv", m, v, x)
    return ops.convert(_lpmv(m, v, x), dtype)


@custom_jvp
def _lpmv(m: Array, v: Array, x: Array) -> Array:
    """Return ``_ferrers(m, v, x)``, with a rule of differentiation."""
    return _ferrers(m, v, x)


def _lpmv_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return the associated Legendre function and its tangent by v and x.

    The derivative by v is that of the sums, in forward mode. The derivative by x is
    DLMF 14.10.2, and v (v + 1) / 2 x**(v + 1) at |x| = 1. Symbolic zeros add no term.
    """
    m, v, x = primals
    _, dv, dx = tangents
    value = _lpmv(m, v, x)
    tangent: Any = anp.zeros_like(value)
    if not isinstance(dv, SymbolicZero):
        _, slope = jvp(lambda v: _ferrers(m, v, x), (v,), (anp.ones_like(v),))
        tangent = tangent + slope * dv
    if not isinstance(dx, SymbolicZero):
        edge = (anp.abs(x) == 1) & (m == 0)
        square = anp.where(edge, 1.0, 1.0 - x * x)
        slope = -_lpmv(m + 1.0, v, x) / anp.sqrt(square) - m * x / square * value
        at_edge = 0.5 * v * (v + 1.0) * anp.power(x, v + 1.0)
        # Beyond 1 there are polynomials only.
        beyond = (anp.abs(x) > 1) & (m == 0)
        outer = anp.where(beyond, 1.0 - x * x, 1.0)
        by_degrees = (v + 1.0) * (x * value - _lpmv(m, v + 1.0, x)) / outer
        slope = anp.where(edge, at_edge, anp.where(beyond, by_degrees, slope))
        tangent = tangent + slope * dx
    return value, tangent


_lpmv.defjvp(_lpmv_jvp, symbolic_zeros=True)


def _ferrers(m: Array, v: Array, x: Array) -> Array:
    """Return the associated Legendre function of order m, degree v, at x.

    The two lowest degrees with the fraction of v come from ``_ferrers_sum``, and a loop
    computes the higher ones by DLMF 14.10.3. Order -m follows from order m (DLMF
    14.9.3). Elements with invalid m, v or x are NaN.
    """
    degree = anp.where(v < -0.5, -v - 1.0, v)  # DLMF 14.9.5
    whole = anp.floor(degree) == degree
    valid = (anp.floor(m) == m) & anp.isfinite(m) & anp.isfinite(v) & ~anp.isnan(x)
    valid = valid & ~(whole & (m < 0) & (degree + m < 0))
    order = anp.where(valid, anp.abs(m), 0.0)
    degree = anp.where(valid, degree, 0.0)
    # The lowest degree is order + rest. It differs from the degree by ``steps``.
    rest = anp.where(degree >= order, degree - anp.floor(degree), degree - order)
    steps = anp.where(degree >= order, anp.floor(degree) - order, 0.0)
    factor = _ferrers_factor(order, rest, x)
    first = factor * _ferrers_sum(order, rest, x)
    above = rest + 1.0
    # The factor of the next degree, order + rest + 1, is the first one's times this
    # ratio.
    ratio = (rest + 2.0 * order + 1.0) / anp.where(above == 0, 1.0, above)
    second = factor * ratio * _ferrers_sum(order, above, x)

    def step(state: Any) -> Any:
        """Compute degree n + 1 (DLMF 14.10.3), where k is less than ``steps``."""
        k, before, here = state
        n = rest + order + k
        after = (2.0 * n + 1.0) * x * here - (n + order) * before
        after = after / (n + 1.0 - order)
        on = k < steps
        return k + 1.0, anp.where(on, here, before), anp.where(on, after, here)

    last = anp.max(steps, initial=0.0)
    start = (anp.ones_like(last), first, second)
    _, _, end = lax.while_loop(lambda s: s[0] < last, step, start)  # s[0] is k
    value = anp.where(steps == 0, first, end)
    # DLMF 14.9.3
    size = gammaln(degree - order + 1.0) - gammaln(degree + order + 1.0)
    sign = gammasgn(degree - order + 1.0) * (1.0 - 2.0 * anp.remainder(order, 2.0))
    reflected = value * sign * anp.exp(size)
    value = anp.where(m < 0, reflected, value)
    # At x = -1, the value is 0 for orders above the degree, and infinite for a
    # fractional degree.
    value = anp.where((x == -1) & (order > degree), 0.0, value)
    pole = (x == -1) & ~whole
    value = anp.where(pole, anp.where(m == 0, -math.inf, math.inf), value)
    return anp.where(valid, value, math.nan)


def _ferrers_factor(order: Array, rest: Array, x: Array) -> Array:
    """Return the factor of ``_ferrers_sum`` for the degree ``order`` + ``rest``.

    It is (-1)**m (1 - x**2)**(m / 2) gamma(rest + 2 m + 1) / (gamma(rest + 1) 2**m m!)
    for the order m, as a product of m factors.
    """
    last = anp.max(order, initial=0.0)
    root = anp.sqrt(1.0 - x * x)

    def step(state: Any) -> Any:
        """Multiply by factor k, in elements whose order is at least k.

        ``root`` is sqrt(1 - x**2), and ``rest`` the degree less the order.
        """
        k, product = state
        factor = -root * (rest + 2.0 * k - 1.0) * (rest + 2.0 * k) / (2.0 * k)
        return k + 1.0, anp.where(k <= order, product * factor, product)

    start = (anp.ones_like(last), anp.ones_like(rest))
    _, product = lax.while_loop(lambda s: s[0] <= last, step, start)  # s[0] is k
    return product


def _ferrers_sum(order: Array, rest: Array, x: Array) -> Array:
    """Return the hypergeometric sum for the degree ``order`` + ``rest``.

    It is 2F1(-rest, rest + 2 m + 1; m + 1; (1 - x) / 2) for the order m (DLMF 14.3.1).
    """
    return hyp2f1(-rest, rest + 2.0 * order + 1.0, order + 1.0, 0.5 * (1.0 - x))


__all__ = ["bessel_jn", "lpmv", "sph_harm_y"]
