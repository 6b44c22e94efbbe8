"""The logarithm of the gamma function of complex numbers.

Hare, Computing the principal branch of log-Gamma (1997): Stirling's series after a
recurrence in the right half-plane, and the reflection formula in the left one.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.lax.special_convergence import stirling
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import horner, quiet

_SHIFT: Final = 10  # steps of the recurrence before Stirling's series
_NEAR: Final = 0.2  # distance from 1 and 2 below which the series about 1 is summed
_TERMS: Final = 23  # of that series


def _zeta(k: int) -> float:
    """Return the Riemann zeta function of an integer k > 1, the sum of n**-k.

    The method is Euler and Maclaurin's formula after 99 terms, with N = 100: the rest
    is N**-k (N / (k - 1) + 1/2 + k / (12 N) - k (k + 1) (k + 2) / (720 N**3)).
    """
    head = math.fsum(n**-k for n in range(1, 100))
    rest = 100.0 / (k - 1) + 0.5 + k / 1200 - k * (k + 1) * (k + 2) / 720e6
    return head + rest * 100.0**-k


# loggamma(1 + x) = -0.577... x + zeta(2) / 2 x**2 - zeta(3) / 3 x**3 + ...
_ABOUT_ONE: Final = (
    -float(np.euler_gamma),
    math.pi**2 / 12,
    *((-1) ** k * _zeta(k) / k for k in range(3, _TERMS)),
)


@quiet
def complex_loggamma(x: ArrayLike) -> Array:
    """Return loggamma of complex x: the branch that is real for positive x.

    It is continuous except on the negative real axis, where the sign of the imaginary
    zero decides, and NaN at 0, -1, -2, ... Numbers below the real axis use
    loggamma(conj(z)) = conj(loggamma(z)).
    """
    dtype = ops.type_of_operand("loggamma", x).dtype
    z = ops.as_array(ops.convert(x, dtypes.complex128))
    re, im = anp.real(z), anp.imag(z)
    is_below = anp.signbit(im)
    upper = lax.complex(re, anp.abs(im))
    is_left = re < 0.5
    # The right half-plane's formula gets 1 - z for z on the left. The reflection gets
    # 0.25, which is not used, for z on the right.
    on_right = anp.where(is_left, 1.0 - upper, upper)
    value = _right(on_right)
    value = anp.where(
        is_left, _reflected(anp.where(is_left, upper, 0.25), value), value
    )
    pole = (im == 0) & (re <= 0) & (anp.floor(re) == re)
    value = anp.where(pole, complex(math.nan, math.nan), value)
    return ops.convert(anp.where(is_below, anp.conj(value), value), dtype)


def _right(z: Array) -> Array:
    """Return loggamma(z) for a real part of at least 1/2.

    It is Stirling's series at z + 10, minus log(z + k) for k < 10. Near the zeros 1 and
    2, it is the Taylor series about 1.
    """
    far = z + float(_SHIFT)
    value = (far - 0.5) * anp.log(far) - far + 0.5 * math.log(2.0 * math.pi)
    value = value + stirling(far)
    for k in range(_SHIFT):
        value = value - anp.log(z + float(k))
    one = anp.abs(z - 1.0) < _NEAR
    two = anp.abs(z - 2.0) < _NEAR
    near = anp.where(one, z - 1.0, anp.where(two, z - 2.0, 0.0))
    about = horner(near, _ABOUT_ONE) * near
    # loggamma(2 + x) = loggamma(1 + x) + log(1 + x)
    about = anp.where(two, about + anp.log1p(near), about)
    return anp.where(one | two, about, value)


def _reflected(z: Array, other: Array) -> Array:
    """Return loggamma(z) for z on or above the real axis, by reflection.

    ``other`` is loggamma(1 - z). The formula is log(pi) - log(sin(pi z)) - other, where
    sin(pi z) is the product of i/2, exp(-i pi z) and 1 - exp(2 i pi z). The last factor
    is in the right half-plane, so its logarithm has no jump.
    """
    re, im = anp.real(z), anp.imag(z)
    angle = 2.0 * math.pi * (re - anp.rint(re))
    size = -2.0 * math.pi * im
    half = anp.sin(0.5 * angle)
    # 1 - exp(size) cos(angle), without cancellation near 0
    rest_re = 2.0 * half * half * anp.exp(size) - anp.expm1(size)
    rest = lax.complex(rest_re, -anp.exp(size) * anp.sin(angle))
    log_of_two_factors = lax.complex(
        math.pi * im + math.log(0.5), math.pi * (0.5 - re)
    )  # log(i/2) - i pi z
    return math.log(math.pi) - log_of_two_factors - anp.log(rest) - other


__all__ = ["complex_loggamma"]
