"""Gamma and beta functions, their logarithms and derivatives, combinatorics."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.errors import ArgumentError, user_location
from arrayfn.lax.special_convergence import stirling
from arrayfn.lax.special_incomplete_beta import log_beta
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.double_precision import in_float64, quiet
from arrayfn.primitives import special
from arrayfn.scipy.special.complex_gamma import complex_loggamma
from arrayfn.transforms.custom import custom_jvp

_LARGEST = 171  # the largest integer whose gamma function float64 holds
_FACTORIALS = np.array([float(math.factorial(n)) for n in range(_LARGEST)])
_SHIFT = 10  # Stirling's series is used from here on
_TINY = 1e-100  # below it gamma(x) is 1 / x


def gammaln(x: ArrayLike) -> Array:
    """Return the logarithm of the absolute value of the gamma function."""
    return ops.floating(special.lgamma, "gammaln", x)


def loggamma(x: ArrayLike) -> Array:
    """Return the logarithm of the gamma function; for real x, NaN below 0.

    For complex numbers, it is the branch that is continuous except on the negative real
    axis. The absolute error is 1e-15 times the size of the largest part of the
    logarithm. Near the zeros 1 and 2, this is the relative error.
    """
    if ops.type_of_operand("loggamma", x).dtype in dtypes.COMPLEX:
        return complex_loggamma(x)
    return anp.where(anp.less(x, 0), math.nan, gammaln(x))


@quiet
def gammasgn(x: ArrayLike) -> Array:
    """Return the sign of the gamma function.

    It is NaN at the poles, but 1 at 0 and -1 at -0.
    """
    (x,), dtype = in_float64("gammasgn", x)
    # Below 0 the sign alternates with floor(x): -1 in (-1, 0), 1 in (-2, -1).
    sign = 1.0 - 2.0 * anp.remainder(anp.floor(anp.minimum(x, 0.0)), 2.0)
    pole = (x < 0) & (anp.floor(x) == x)
    value = anp.where(x == 0, anp.copysign(1.0, x), anp.where(pole, math.nan, sign))
    return ops.convert(anp.where(anp.isnan(x), x, value), dtype)


@quiet
def gamma(x: ArrayLike) -> Array:
    """Return the gamma function of x.

    For positive integers it is (x - 1)!, correctly rounded. It is NaN at negative
    integers and infinite at 0. The relative error is below 2e-14. For complex numbers
    it is exp(loggamma(x)).
    """
    if ops.type_of_operand("gamma", x).dtype in dtypes.COMPLEX:
        return anp.exp(complex_loggamma(x))
    (x,), dtype = in_float64("gamma", x)
    return ops.convert(_gamma(x), dtype)


def _gamma_positive(a: Array) -> Array:
    """Return gamma(a) for a >= 0, by Stirling's series (DLMF 5.11.3).

    For a < 10, it is gamma(a + 10) / (a (a + 1) ... (a + 9)).
    """
    shifted = a < _SHIFT
    z = anp.where(shifted, a + float(_SHIFT), anp.minimum(a, 180.0))
    # z**(z - 1/2) as power**2, because it overflows before the result does.
    power = anp.power(z, 0.5 * z - 0.25)
    small = anp.exp(stirling(z) - z)
    value = math.sqrt(2.0 * math.pi) * power * small * power
    product = anp.where(shifted, a, 1.0)
    for k in range(1, _SHIFT):
        product = product * anp.where(shifted, a + float(k), 1.0)
    return value / product


@custom_jvp
def _gamma(x: Array) -> Array:
    """Return gamma(x); NaN at negative integers.

    Integers up to 171 use a table of factorials, and negative numbers the reflection
    gamma(-a) = -pi / (a sin(pi a) gamma(a)).
    """
    a = anp.abs(x)
    positive = _gamma_positive(a)
    whole = (anp.floor(x) == x) & (x > 0) & (x <= _LARGEST)
    place = anp.astype(anp.where(whole, x - 1.0, 0.0), dtypes.int64)
    positive = anp.where(whole, anp.take(_FACTORIALS, place), positive)
    # sin(pi a), from the distance to the nearest integer
    nearest = anp.rint(a)
    sine = anp.sin(math.pi * (a - nearest))
    sine = anp.where(anp.remainder(nearest, 2.0) == 0, sine, -sine)
    safe = anp.where((sine == 0) | (a == 0), 1.0, a * sine)
    negative = anp.where(sine == 0, math.nan, -math.pi / safe / positive)
    value = anp.where(x > 0, positive, negative)
    # For tiny x, gamma(x) is 1 / x, and the product with the sine would underflow.
    value = anp.where((a < _TINY) & (a > 0), 1.0 / anp.where(a > 0, x, 1.0), value)
    value = anp.where(x == 0, anp.copysign(math.inf, x), value)
    return anp.where(anp.isnan(x), x, value)


@_gamma.defjvp
def _gamma_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return gamma(x) and its derivative, gamma(x) digamma(x)."""
    (x,), (dx,) = primals, tangents
    value = _gamma(x)
    return value, value * digamma(x) * dx


def digamma(x: ArrayLike) -> Array:
    """Return the derivative of ``gammaln``."""
    return ops.floating(special.digamma, "digamma", x)


psi = digamma


def polygamma(n: ArrayLike, x: ArrayLike) -> Array:
    """Return the derivative of order ``n`` of digamma at positive x."""
    return lax.polygamma(n, x)


def gammainc(a: ArrayLike, x: ArrayLike) -> Array:
    """Return the regularized lower incomplete gamma function; see ``lax.igamma``."""
    return lax.igamma(a, x)


def gammaincc(a: ArrayLike, x: ArrayLike) -> Array:
    """Return the regularized upper incomplete gamma function; see ``lax.igammac``."""
    return lax.igammac(a, x)


def betainc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Array:
    """Return the regularized incomplete beta function; see ``lax.betainc``."""
    return lax.betainc(a, b, x)


@quiet
def betaln(a: ArrayLike, b: ArrayLike) -> Array:
    """Return the logarithm of the absolute value of the beta function.

    For positive a and b, also large ones, the error is 2e-16 times the largest of the
    three logarithms of gamma.
    """
    (a, b), dtype = in_float64("betaln", a, b)
    a, b, _ = _reflected(a, b)
    return ops.convert(_betaln(a, b), dtype)


def is_nonpositive_integer(x: Array) -> Array:
    """Return whether x is 0, -1, -2, ...: gamma has poles there."""
    return (x <= 0) & (anp.floor(x) == x)


def _reflected(a: Array, b: Array) -> tuple[Array, Array, Array]:
    """Replace a and b by arguments without poles, for the beta function.

    The result is two arguments whose beta function has the same absolute value, and a
    sign to multiply by. If a is an integer -n <= 0, beta(a, b) is finite for integers b
    from 1 to n: it is (-1)**b beta(1 - a - b, b). At all other poles, the new a is 0,
    which stands for an infinite beta function.
    """
    pole_a, pole_b = is_nonpositive_integer(a), is_nonpositive_integer(b)
    # Exchange a and b if only b is a pole.
    a, b = anp.where(pole_b & ~pole_a, b, a), anp.where(pole_b & ~pole_a, a, b)
    pole = pole_a | pole_b
    other = 1.0 - a - b
    finite = pole & (anp.floor(b) == b) & (b > 0) & (other > 0)
    odd = finite & (anp.remainder(b, 2.0) == 1.0)
    a = anp.where(finite, other, anp.where(pole, 0.0, a))
    return a, b, anp.where(odd, -1.0, 1.0)


def _betaln(a: Array, b: Array) -> Array:
    """Return log(abs(beta(a, b))) for the arguments that ``_reflected`` returns.

    Positive a and b use ``log_beta``, which does not cancel. Others use the logarithms
    of three gamma functions.
    """
    positive = (a > 0) & (b > 0)
    value = log_beta(anp.where(positive, a, 1.0), anp.where(positive, b, 1.0))
    # a = 0 stands for a pole, where the result is infinite whatever b is.
    plain = gammaln(a) + gammaln(b) - gammaln(a + b)
    unknown = anp.isnan(a) | anp.isnan(b)
    plain = anp.where((a == 0) & ~unknown, math.inf, plain)
    value = anp.where(positive, value, plain)
    return anp.where(positive & anp.isinf(a + b), -math.inf, value)


@quiet
def beta(a: ArrayLike, b: ArrayLike) -> Array:
    """Return the beta function gamma(a) gamma(b) / gamma(a + b).

    At poles the function is infinite, with one exception. If one of ``a`` and b is an
    integer -n <= 0, and the other is an integer from 1 to n, the result is the limit.
    """
    (a, b), dtype = in_float64("beta", a, b)
    a, b, sign = _reflected(a, b)
    pole = a == 0
    safe = anp.where(pole, 1.0, a)
    total = safe + b
    # At a pole of gamma(a + b), the denominator is infinite, and beta is 0.
    zero = is_nonpositive_integer(total) & ~pole
    sign = sign * gammasgn(safe) * gammasgn(b) * gammasgn(anp.where(zero, 1.0, total))
    size = anp.where(zero, 0.0, anp.exp(_betaln(a, b)))
    return ops.convert(anp.where(pole, size, sign * size), dtype)


def multigammaln(a: ArrayLike, d: int) -> Array:
    """Return the logarithm of the multivariate gamma function, for a > (d - 1) / 2.

    It is log(pi) d (d - 1) / 4 plus the sum of gammaln(a - k / 2) over k < d.
    """
    total = anp.add(gammaln(a), 0.25 * d * (d - 1) * math.log(math.pi))
    for k in range(1, d):
        total = anp.add(total, gammaln(anp.subtract(a, 0.5 * k)))
    return total


@quiet
def poch(z: ArrayLike, m: ArrayLike) -> Array:
    """Return the rising factorial gamma(z + m) / gamma(z), with its limits at poles."""
    (z, m), dtype = in_float64("poch", z, m)
    end = z + m
    from_pole, to_pole = is_nonpositive_integer(z), is_nonpositive_integer(end)
    # If both are poles, the limit is (-1)**m gamma(1 - z) / gamma(1 - end).
    both_poles = from_pole & to_pole
    start, stop = (
        anp.where(both_poles, 1.0 - end, z),
        anp.where(both_poles, 1.0 - z, end),
    )
    size = anp.exp(gammaln(stop) - gammaln(start))
    odd = anp.where(anp.remainder(m, 2.0) == 1.0, -1.0, 1.0)
    sign = anp.where(both_poles, odd, gammasgn(end) * gammasgn(z))
    value = anp.where(m == 0, 1.0, sign * size)
    value = anp.where(from_pole & ~to_pole, 0.0, value)
    value = anp.where(to_pole & ~from_pole, math.inf, value)
    return ops.convert(anp.where(anp.isnan(z) | anp.isnan(m), math.nan, value), dtype)


def factorial(n: ArrayLike, exact: bool = False) -> Array:
    """Return n! = gamma(n + 1), which is 0 for negative n, in floating point.

    The result is correctly rounded for integer n. ``exact=True`` raises ArgumentError.
    """
    _not_exact("factorial", exact)
    return anp.where(anp.less(n, 0), 0.0, gamma(anp.add(n, 1)))


@quiet
def comb(
    N: ArrayLike, k: ArrayLike, exact: bool = False, repetition: bool = False
) -> Array:
    """Return the number of ways to choose k of N things, in floating point.

    It is 0 for k < 0, k > N or N < 0. With ``repetition``, things may repeat, and the
    number is comb(N + k - 1, k). The result is correctly rounded for integers, if it is
    below 1e14. The formula is 1 / ((N + 1) beta(N - k + 1, k + 1)). ``exact=True``
    raises ArgumentError.
    """
    _not_exact("comb", exact)
    if repetition:
        chosen = comb(anp.subtract(anp.add(N, k), 1), k)
        nothing = anp.logical_and(anp.equal(N, 0), anp.equal(k, 0))
        return anp.where(nothing, 1.0, chosen)
    (n, m), dtype = in_float64("comb", N, k)
    valid = (n >= 0) & (m >= 0) & (m <= n)
    a, b = anp.where(valid, n, 1.0), anp.where(valid, m, 0.0)
    value = anp.exp(-anp.log1p(a) - log_beta(a - b + 1.0, b + 1.0))
    whole = (anp.floor(a) == a) & (anp.floor(b) == b) & (value < 1e14)
    value = anp.where(whole, anp.rint(value), value)
    return ops.convert(anp.where(valid, value, 0.0), dtype)


def _not_exact(name: str, exact: bool) -> None:
    """Raise ArgumentError, about the function ``name``, if ``exact`` is true."""
    if exact:
        raise ArgumentError(
            f"{name} gives floating-point numbers; for exact integers of any size use "
            "Python's math.factorial and math.comb",
            user_location(),
        )


def bernoulli(n: int) -> Array:
    """Return the Bernoulli numbers B(0) to B(n), with B(1) = -1/2, correctly rounded.

    They are computed as fractions, by the sum of comb(m + 1, j) B(j) over j <= m, which
    is 0 for m > 0.
    """
    numbers: list[Fraction] = []
    for m in range(ops.whole(n) + 1):
        # The sum is 1 for m = 0. Its last term is (m + 1) B(m).
        rest = sum(math.comb(m + 1, j) * b for j, b in enumerate(numbers))
        numbers.append((int(m == 0) - rest) / Fraction(m + 1))
    return anp.asarray(np.array([float(b) for b in numbers]))


__all__ = [
    "bernoulli",
    "beta",
    "betainc",
    "betaln",
    "comb",
    "digamma",
    "factorial",
    "gamma",
    "gammainc",
    "gammaincc",
    "gammaln",
    "gammasgn",
    "loggamma",
    "multigammaln",
    "poch",
    "polygamma",
    "psi",
]
