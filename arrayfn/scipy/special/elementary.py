"""Logistic functions, entropies, Box-Cox transformations and Bessel functions."""

from __future__ import annotations

import math
from typing import Any

import arrayfn.numpy as anp
from arrayfn.custom import custom_jvp
from arrayfn.numpy import _operands as ops
from arrayfn.numpy import bessel
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.primitives import special


def expit(x: ArrayLike, /) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    return ops.floating(special.logistic, "expit", x)


def logit(x: ArrayLike, /) -> Array:
    """log(x / (1 - x)), the inverse of expit."""
    return anp.subtract(anp.log(x), anp.log1p(anp.negative(x)))


def log_expit(x: ArrayLike, /) -> Array:
    """The logarithm of expit, accurate far from 0."""
    return anp.negative(anp.logaddexp(anp.negative(x), 0.0))


def _floated(name: str, *operands: ArrayLike) -> list[Array]:
    return [ops.as_array(x) for x in ops.floated(name, *operands)]


# Products with logarithms, 0 where the factor is.


def xlogy(x: ArrayLike, y: ArrayLike, /) -> Array:
    """x log(y), 0 where x is 0 (unless y is NaN).

    >>> xlogy(0.0, 0.0)
    array(0.)
    """
    return _xlogy(*_floated("xlogy", x, y))


@custom_jvp
def _xlogy(x: Array, y: Array) -> Array:
    zero = anp.logical_and(anp.equal(x, 0), anp.logical_not(anp.isnan(y)))
    return anp.where(zero, 0, anp.multiply(x, anp.log(anp.where(zero, 1, y))))


@_xlogy.defjvp
def _xlogy_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (x, y), (dx, dy) = primals, tangents
    zero = anp.equal(x, 0)
    by_y = anp.where(zero, 0, anp.divide(x, anp.where(zero, 1, y)))
    # Where both are 0, the derivatives are taken to be 0 too.
    both = anp.logical_and(zero, anp.equal(y, 0))
    by_x = anp.log(anp.where(both, 1, y))
    slope = anp.add(anp.multiply(by_x, dx), anp.multiply(by_y, dy))
    return _xlogy(x, y), slope


def xlog1py(x: ArrayLike, y: ArrayLike, /) -> Array:
    """x log(1 + y), 0 where x is 0 (unless y is NaN)."""
    return _xlog1py(*_floated("xlog1py", x, y))


@custom_jvp
def _xlog1py(x: Array, y: Array) -> Array:
    zero = anp.logical_and(anp.equal(x, 0), anp.logical_not(anp.isnan(y)))
    return anp.where(zero, 0, anp.multiply(x, anp.log1p(anp.where(zero, 0, y))))


@_xlog1py.defjvp
def _xlog1py_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (x, y), (dx, dy) = primals, tangents
    zero = anp.equal(x, 0)
    by_y = anp.where(zero, 0, anp.divide(x, anp.add(anp.where(zero, 0, y), 1)))
    both = anp.logical_and(zero, anp.equal(y, -1))
    by_x = anp.log1p(anp.where(both, 0, y))
    slope = anp.add(anp.multiply(by_x, dx), anp.multiply(by_y, dy))
    return _xlog1py(x, y), slope


def entr(x: ArrayLike, /) -> Array:
    """-x log(x), 0 at 0, minus infinity for negative x.

    >>> entr(0.5)
    array(0.34657359)
    """
    (x,) = _floated("entr", x)
    positive = anp.greater(x, 0)
    safe = anp.where(positive, x, 1)
    value = anp.negative(anp.multiply(safe, anp.log(safe)))
    outside = anp.where(anp.equal(x, 0), 0, anp.where(anp.isnan(x), x, -math.inf))
    return anp.where(positive, value, outside)


def rel_entr(x: ArrayLike, y: ArrayLike, /) -> Array:
    """x log(x / y) of positive x, y; 0 where x is 0 and y >= 0; infinite elsewhere."""
    x, y = _floated("rel_entr", x, y)
    both = anp.logical_and(anp.greater(x, 0), anp.greater(y, 0))
    a, b = anp.where(both, x, 1), anp.where(both, y, 1)
    value = anp.multiply(a, anp.log(anp.divide(a, b)))
    none = anp.logical_and(anp.equal(x, 0), anp.greater_equal(y, 0))
    unknown = anp.logical_or(anp.isnan(x), anp.isnan(y))
    outside = anp.where(unknown, math.nan, anp.where(none, 0, math.inf))
    return anp.where(both, value, anp.astype(outside, value.dtype))


def kl_div(x: ArrayLike, y: ArrayLike, /) -> Array:
    """x log(x / y) - x + y, whose sum is the Kullback-Leibler divergence."""
    x, y = _floated("kl_div", x, y)
    value = rel_entr(x, y)
    infinite = anp.isinf(value)
    difference = anp.subtract(anp.where(infinite, 0, y), anp.where(infinite, 0, x))
    return anp.add(value, difference)


def boxcox(x: ArrayLike, lmbda: ArrayLike, /) -> Array:
    """(x**lmbda - 1) / lmbda, log(x) for lmbda of 0.

    >>> boxcox(4.0, 0.5)
    array(2.)
    """
    return boxcox1p(anp.subtract(x, 1.0), lmbda)


def boxcox1p(x: ArrayLike, lmbda: ArrayLike, /) -> Array:
    """((1 + x)**lmbda - 1) / lmbda, log(1 + x) for lmbda of 0."""
    x, lmbda = _floated("boxcox1p", x, lmbda)
    log = anp.log1p(x)
    zero = anp.equal(lmbda, 0)
    power = anp.where(zero, 1, lmbda)
    return anp.where(zero, log, anp.divide(anp.expm1(anp.multiply(power, log)), power))


# Modified Bessel functions.


def i0(x: ArrayLike, /) -> Array:
    """The modified Bessel function of the first kind of order 0."""
    return bessel.i0(x)


def i0e(x: ArrayLike, /) -> Array:
    """exp(-abs(x)) i0(x)."""
    return bessel.bessel_i0e(x)


def i1(x: ArrayLike, /) -> Array:
    """The modified Bessel function of the first kind of order 1."""
    return bessel.i1(x)


def i1e(x: ArrayLike, /) -> Array:
    """exp(-abs(x)) i1(x)."""
    return bessel.bessel_i1e(x)


__all__ = [
    "boxcox",
    "boxcox1p",
    "entr",
    "expit",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "kl_div",
    "log_expit",
    "logit",
    "rel_entr",
    "xlog1py",
    "xlogy",
]
