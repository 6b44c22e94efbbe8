"""Special functions, elementwise, under SciPy's names.

Floating-point arrays keep their dtype; integers become floating-point.
"""

from __future__ import annotations

import math

import arrayfn.numpy as anp
from arrayfn.nn import log_softmax, logsumexp, softmax
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.primitives import special


def erf(x: ArrayLike, /) -> Array:
    """The error function."""
    return ops.floating(special.erf, "erf", x)


def erfc(x: ArrayLike, /) -> Array:
    """1 - erf(x), accurate for large x."""
    return ops.floating(special.erfc, "erfc", x)


def erfinv(x: ArrayLike, /) -> Array:
    """The inverse of erf; infinite at -1 and 1, NaN outside."""
    return ops.floating(special.erfinv, "erfinv", x)


def gammaln(x: ArrayLike, /) -> Array:
    """The logarithm of the absolute value of the gamma function."""
    return ops.floating(special.lgamma, "gammaln", x)


def digamma(x: ArrayLike, /) -> Array:
    """The derivative of ``gammaln``."""
    return ops.floating(special.digamma, "digamma", x)


psi = digamma


def beta(x: ArrayLike, y: ArrayLike, /) -> Array:
    """The beta function of positive x and y."""
    return anp.exp(betaln(x, y))


def betaln(x: ArrayLike, y: ArrayLike, /) -> Array:
    """The logarithm of the beta function of positive x and y."""
    return anp.subtract(anp.add(gammaln(x), gammaln(y)), gammaln(anp.add(x, y)))


def expit(x: ArrayLike, /) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    return ops.floating(special.logistic, "expit", x)


def logit(x: ArrayLike, /) -> Array:
    """log(x / (1 - x)), the inverse of expit."""
    return anp.subtract(anp.log(x), anp.log1p(anp.negative(x)))


def log_expit(x: ArrayLike, /) -> Array:
    """The logarithm of expit, accurate far from 0."""
    return anp.negative(anp.logaddexp(anp.negative(x), 0.0))


def ndtr(x: ArrayLike, /) -> Array:
    """The distribution function of the standard normal distribution."""
    tail = erfc(anp.multiply(x, -math.sqrt(0.5)))
    return anp.multiply(tail, 0.5)


def ndtri(p: ArrayLike, /) -> Array:
    """The inverse of ndtr."""
    half = erfinv(anp.subtract(anp.multiply(p, 2.0), 1.0))
    return anp.multiply(half, math.sqrt(2.0))


def xlogy(x: ArrayLike, y: ArrayLike, /) -> Array:
    """x log(y), and 0 where x is 0."""
    # A logarithm of 1 where x is 0 keeps value and gradient finite there.
    nothing = anp.equal(x, 0)
    return anp.multiply(x, anp.log(anp.where(nothing, 1, y)))


def xlog1py(x: ArrayLike, y: ArrayLike, /) -> Array:
    """x log(1 + y), and 0 where x is 0."""
    nothing = anp.equal(x, 0)
    return anp.multiply(x, anp.log1p(anp.where(nothing, 0, y)))


def entr(x: ArrayLike, /) -> Array:
    """-x log(x); 0 at 0, -inf below."""
    value = anp.negative(xlogy(x, anp.where(anp.less(x, 0), 1, x)))
    return anp.where(anp.less(x, 0), -anp.inf, value)


__all__ = [
    "beta",
    "betaln",
    "digamma",
    "entr",
    "erf",
    "erfc",
    "erfinv",
    "expit",
    "gammaln",
    "log_expit",
    "log_softmax",
    "logit",
    "logsumexp",
    "ndtr",
    "ndtri",
    "psi",
    "softmax",
    "xlog1py",
    "xlogy",
]
