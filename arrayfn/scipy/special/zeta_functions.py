"""Zeta functions: of Hurwitz for x > 1, and of Riemann for all real numbers."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import in_float64, quiet
from arrayfn.scipy.special.compositions import sindg
from arrayfn.scipy.special.gamma_functions import gamma, gammaln

_TERMS = 24  # of Borwein's sum
_LARGEST = 170.0  # gamma overflows for larger arguments


def zeta(x: ArrayLike, q: ArrayLike | None = None) -> Array:
    """Return the sum of (q + k)**-x over k >= 0, for x > 1.

    This is Hurwitz's zeta function. Without q, the result is Riemann's zeta function,
    for all x.

    >>> zeta(2.0)
    array(1.64493407)
    """
    return lax.zeta(x, q) if q is not None else _riemann("zeta", x, less=0.0)


def zetac(x: ArrayLike) -> Array:
    """Return Riemann's zeta function minus 1, also accurate for large x.

    >>> zetac(2.0)
    array(0.64493407)
    """
    return _riemann("zetac", x, less=1.0)


@quiet
def _riemann(name: str, x: ArrayLike, less: float) -> Array:
    """Return Riemann's zeta function minus ``less``, which is 0 or 1.

    For x > 1 it is the Hurwitz sum (from 2**-x for ``less`` = 1), for -1/2 <= x < 1
    Borwein's sum, and below that the reflection formula. Errors call the function
    ``name``.
    """
    (x,), dtype = in_float64(name, x)
    above = lax.zeta(anp.where(x > 1, x, 2.0), 1.0 + less)
    between = _borwein(anp.where((x >= -0.5) & (x < 1), x, 0.0)) - less
    below = _reflection(anp.where(x < -0.5, x, -1.0)) - less
    value = anp.where(x > 1, above, anp.where(x < -0.5, below, between))
    value = anp.where(x == 1, math.inf, anp.where(x == math.inf, 1.0 - less, value))
    return ops.convert(
        anp.where(anp.isnan(x) | (x == -math.inf), math.nan, value), dtype
    )


@cache
def _coefficients() -> tuple[float, ...]:
    """Return the signed weights of 1 / (k + 1)**s in Borwein's sum, for k < 24.

    They are (-1)**k (1 - d[k] / d[n]), where d[k] = n times the sum of (n + i - 1)!
    4**i / ((n - i)! (2 i)!) over i <= k, for n = 24.
    """
    sums, total = [], 0.0
    n = _TERMS
    for i in range(n + 1):
        step = math.factorial(n + i - 1) * 4**i
        total += step / (math.factorial(n - i) * math.factorial(2 * i))
        sums.append(n * total)
    return tuple((-1.0) ** k * (1.0 - sums[k] / sums[n]) for k in range(n))


def _borwein(s: Array) -> Array:
    """Return zeta(s) for -1/2 <= s < 1: the alternating sum over 1 - 2**(1 - s).

    Source: P. Borwein, An efficient algorithm for the Riemann zeta function (2000),
    algorithm 2. The error of 24 terms is below 1e-17.
    """
    total: Any = 0.0
    for k, weight in enumerate(_coefficients()):
        total = total + weight * anp.exp(-math.log(k + 1.0) * s)
    return total / -anp.expm1((1.0 - s) * math.log(2.0))


def _reflection(s: Array) -> Array:
    """Return zeta(s) for s < 0 by reflection (DLMF 25.4.1).

    It is 2 (2 pi)**(s - 1) sin(pi s / 2) gamma(1 - s) zeta(1 - s), by logarithms where
    gamma overflows.
    """
    other = 1.0 - s
    near = other < _LARGEST
    log = math.log(2.0 * math.pi)
    small = anp.where(near, other, 1.0)
    size = gamma(small) * anp.exp(-small * log)
    far = anp.exp(gammaln(other) - other * log)
    sine = sindg(90.0 * anp.remainder(s, 4.0))
    size = anp.where(near, size, far)
    return anp.where(sine == 0, 0.0, 2.0 * sine * size * lax.zeta(other, 1.0))


__all__ = ["zeta", "zetac"]
