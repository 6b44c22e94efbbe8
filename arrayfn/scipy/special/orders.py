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
from arrayfn.tracing import Tracer
from arrayfn.transforms.custom import custom_jvp

# The backward recurrence begins so far above the largest argument.
_MARGIN = 60.0
_LARGE = 1e150


@quiet
def bessel_jn(z: ArrayLike, *, v: int, n_iter: int = 50) -> Array:
    """Bessel functions of the first kind of orders 0 to ``v``: [v + 1, *z.shape].

    Miller's backward recurrence (Abramowitz and Stegun 9.12) begins at order
    ``n_iter``, or, if that is too low, far above the largest argument.

    >>> bessel_jn(1.0, v=1)
    array([0.76519769, 0.44005059])
    """
    (z,), dtype = in_float64("bessel_jn", z)
    return ops.convert(_bessel_jn(z, int(v), int(n_iter)), dtype)


@partial(custom_jvp, nondiff_argnums=(1, 2))
def _bessel_jn(z: Array, v: int, n_iter: int) -> Array:
    """J0(z) to Jv(z), along a new axis 0, by Miller's downward recurrence.

    It begins at order ``n_iter`` at least.
    """
    finite = anp.isfinite(z)
    zero = z == 0
    x = anp.where(finite & ~zero, z, 1.0)
    begin = anp.maximum(anp.ceil(anp.max(anp.abs(x), initial=0.0)), float(v)) + _MARGIN
    # An even order, which the sum below contains.
    begin = 2.0 * anp.ceil(0.5 * anp.maximum(begin, float(n_iter)))
    orders = anp.reshape(anp.arange(v + 1.0), (v + 1,) + (1,) * z.ndim)

    def step(state: Any) -> Any:
        """Compute the order below, and keep it if it is asked for."""
        k, above, here, total, kept = state
        below = 2.0 * k / x * here - above
        # J0 + 2 J2 + 2 J4 + ... is 1.
        even = anp.remainder(k - 1.0, 2.0) == 0
        weight = anp.where(k == 1.0, 1.0, anp.where(even, 2.0, 0.0))
        total = total + weight * below
        kept = anp.where(orders == k - 1.0, below, kept)
        scale = anp.where(anp.abs(below) > _LARGE, 1.0 / _LARGE, 1.0)
        return k - 1.0, here * scale, below * scale, total * scale, kept * scale

    start = anp.full_like(x, 1e-30)
    state = (
        begin,
        anp.zeros_like(x),
        start,
        2.0 * start,
        anp.zeros((v + 1, *x.shape), dtype=x.dtype),
    )
    *_, total, kept = lax.while_loop(lambda s: s[0] >= 1.0, step, state)
    at_zero = anp.where(orders == 0, 1.0, 0.0)
    value = anp.where(zero, at_zero, kept / total)
    return anp.where(finite, value, anp.where(anp.isnan(z), math.nan, 0.0))


@_bessel_jn.defjvp
def _bessel_jn_jvp(
    v: int, n_iter: int, primals: Any, tangents: Any
) -> tuple[Array, Array]:
    """The values, and their derivatives."""
    (z,), (dz,) = primals, tangents
    more = _bessel_jn(z, v + 1, n_iter)
    # J0' = -J1, and Jn' = (J(n - 1) - J(n + 1)) / 2.
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
    """The spherical harmonic of degree n >= 0 and order m, complex.

    ``theta`` is the polar angle, ``phi`` the azimuth. Harmonics are orthonormal, with
    the phase of Condon and Shortley; 0 for abs(m) > n. ``n_max`` is the largest degree,
    which is needed if n is traced.

    >>> sph_harm_y(0, 0, 1.0, 2.0)
    array(0.28209479+0.j)
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
    turned = size * phi
    sign = 1.0 - 2.0 * anp.remainder(size, 2.0)
    # Y of -m is (-1)**m times the conjugate of Y of m.
    real = legendre * anp.cos(turned)
    imaginary = legendre * anp.sin(turned)
    negative = order < 0
    value = lax.complex(
        anp.where(negative, sign * real, real),
        anp.where(negative, -sign * imaginary, imaginary),
    )
    return ops.convert(value, dtypes.complex_of(dtypes.compute_dtype(dtype)))


def _legendre(n: Array, m: Array, theta: Array, n_max: int) -> Array:
    """Associated Legendre functions of cos(theta), normalised on the sphere.

    ``n`` is the degree, at most ``n_max``, and ``m`` the order. Upward recurrence in
    the degree (Press et al., Numerical Recipes, section 6.7).
    """
    x, sine = anp.cos(theta), anp.abs(anp.sin(theta))
    logs = 0.5 * (lax.lgamma(2.0 * m + 2.0) - math.log(4.0 * math.pi))
    logs = logs - m * math.log(2.0) - lax.lgamma(m + 1.0)
    sign = 1.0 - 2.0 * anp.remainder(m, 2.0)
    here = sign * anp.exp(logs) * anp.power(sine, m)
    before: Any = anp.zeros_like(here)
    for step in range(1, n_max + 1):
        k = m + float(step)
        # The factor of the degree before the first is 0.
        a = anp.sqrt((4.0 * k * k - 1.0) / (k * k - m * m))
        c = k - 1.0
        b = anp.sqrt((c * c - m * m) / (4.0 * c * c - 1.0)) if step > 1 else 0.0
        after = a * (x * here - b * before)
        used = k <= n
        before, here = anp.where(used, here, before), anp.where(used, after, here)
    return anp.where(m <= n, here, 0.0)


__all__ = ["bessel_jn", "sph_harm_y"]
