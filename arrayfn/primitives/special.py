"""Elementwise exponentials, logarithms, trigonometric and special functions.

Derivatives: Abramowitz and Stegun, Handbook of Mathematical Functions, chapters 4-7.
"""

from __future__ import annotations

import cmath
import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.ir import Atom, Literal
from arrayfn.primitives import complex_references, conversion, discrete, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import Tolerance
from arrayfn.primitives.families import elementwise


def _scipy(name: str) -> Callable[..., Any]:
    """Make a function that calls ``name`` of scipy.special, imported at the first call.

    SciPy takes a quarter of a second to import.
    """

    def call(x: Any) -> Any:
        """Import scipy.special and call the function."""
        return getattr(importlib.import_module("scipy.special"), name)(x)

    return call


def _logistic(x: Any) -> Any:
    """Return 1 / (1 + e**-x), for negative x as e**x / (1 + e**x).

    So e**-x does not overflow to infinity, which would give 0.
    """
    power = np.exp(-np.abs(x))
    return np.where(x < 0, power, np.ones_like(power)) / (1 + power)


_TWO_OVER_SQRT_PI = 2.0 / math.sqrt(math.pi)
_ONE_OVER_SQRT_TWO_PI = 1.0 / math.sqrt(2.0 * math.pi)
_HALF_SQRT_PI = math.sqrt(math.pi) / 2.0
_LN2 = math.log(2.0)
_LN10 = math.log(10.0)


def _one_minus(x: Atom) -> Atom:
    """Emit 1 - x."""
    return e.add(e.neg(x), 1)


def _one_minus_square(x: Atom) -> Atom:
    """Emit 1 - x**2, with an accurate value near 1 and a finite derivative at 1.

    The value is (1 - x)(1 + x), which has no cancellation. The derivative is that of
    1 - x**2, because the difference of both is a constant to derivatives. By the
    product rule, the derivative of a function of (1 - x)(1 + x) that is infinite at 1
    would be inf * 0 = NaN there.
    """
    square = _one_minus(e.square(x))
    product = e.mul(_one_minus(x), e.add(x, 1))
    return e.add(square, views.stop_gradient(e.sub(product, square)))


def _difference(x: Atom, y: Atom) -> Atom:
    """Emit x - y, but 0 if both are the same infinity, where inf - inf is NaN."""
    difference = e.sub(x, y)
    if any(isinstance(a, Literal) and cmath.isfinite(a.value) for a in (x, y)):
        return difference
    equal = discrete.bitwise_and(discrete.isinf(x), discrete.eq(x, y))
    return e.select(equal, conversion.literal(0, x.type.dtype), difference)


# Exponentials and logarithms.

exp = elementwise(
    "exp",
    np.exp,
    [lambda x, y: y],
    accepts=dtypes.INEXACT,
    cost=8,
    doc="e**x.",
)
exp2 = elementwise(
    "exp2",
    np.exp2,
    [lambda x, y: e.mul(y, _LN2)],
    accepts=dtypes.FLOATS,
    cost=8,
    doc="2**x.",
)
expm1 = elementwise(
    "expm1",
    complex_references.expm1,
    [lambda x, y: e.add(y, 1)],
    accepts=dtypes.INEXACT,
    cost=12,
    doc="e**x - 1, accurate near 0.",
)
log = elementwise(
    "log",
    np.log,
    [lambda x, y: e.reciprocal(x)],
    accepts=dtypes.INEXACT,
    cost=10,
    domain=(0.2, 4.0),
    doc="The natural logarithm (for complex numbers the principal value).",
)
log2 = elementwise(
    "log2",
    np.log2,
    [lambda x, y: e.reciprocal(e.mul(x, _LN2))],
    accepts=dtypes.FLOATS,
    cost=10,
    domain=(0.2, 4.0),
    doc="The logarithm to base 2.",
)
log10 = elementwise(
    "log10",
    np.log10,
    [lambda x, y: e.reciprocal(e.mul(x, _LN10))],
    accepts=dtypes.FLOATS,
    cost=10,
    domain=(0.2, 4.0),
    doc="The logarithm to base 10.",
)
log1p = elementwise(
    "log1p",
    complex_references.log1p,
    [lambda x, y: e.reciprocal(e.add(x, 1))],
    accepts=dtypes.INEXACT,
    cost=12,
    domain=(-0.6, 4.0),
    doc="log(1 + x), accurate near 0.",
)
logaddexp = elementwise(
    "logaddexp",
    np.logaddexp,
    [
        lambda x, y, z: logistic(_difference(x, y)),
        lambda x, y, z: logistic(_difference(y, x)),
    ],
    arity=2,
    accepts=dtypes.FLOATS,
    cost=22,
    doc="log(e**x + e**y), without intermediate overflow.",
)
logistic = elementwise(
    "logistic",
    _logistic,
    [lambda x, y: e.mul(y, _one_minus(y))],
    accepts=dtypes.FLOATS,
    cost=12,
    doc="1 / (1 + e**-x).",
)
sqrt = elementwise(
    "sqrt",
    np.sqrt,
    [lambda x, y: e.div(conversion.literal(0.5, x.type.dtype), y)],
    accepts=dtypes.INEXACT,
    cost=5,
    domain=(0.3, 4.0),
    doc="The square root (for complex numbers the principal value).",
)
rsqrt = elementwise(
    "rsqrt",
    lambda x: np.reciprocal(np.sqrt(x)),
    [lambda x, y: e.mul(e.mul(y, -0.5), e.reciprocal(x))],
    accepts=dtypes.FLOATS,
    cost=8,
    domain=(0.3, 4.0),
    doc="1 / sqrt(x).",
)
cbrt = elementwise(
    "cbrt",
    np.cbrt,
    [lambda x, y: e.mul(e.square(e.reciprocal(y)), 1 / 3)],
    accepts=dtypes.FLOATS,
    cost=14,
    domain=(0.3, 4.0),
    doc="The real cube root.",
)


def _inverse_root(x: Atom) -> Atom:
    """Emit 1 / sqrt(x); rsqrt is not defined for complex numbers."""
    if x.type.dtype in dtypes.COMPLEX:
        return e.reciprocal(sqrt(x))
    return rsqrt(x)


def _acosh_derivative(x: Atom) -> Atom:
    """Emit the derivative of acosh: 1 / (sqrt(x - 1) sqrt(x + 1))."""
    low, high = e.sub(x, 1), e.add(x, 1)
    if x.type.dtype in dtypes.COMPLEX:
        # For negative x the root of the product is on another branch.
        return e.reciprocal(e.mul(sqrt(low), sqrt(high)))
    return rsqrt(e.mul(low, high))


# Trigonometric and hyperbolic functions.

sin = elementwise(
    "sin",
    np.sin,
    [lambda x, y: cos(x)],
    accepts=dtypes.INEXACT,
    cost=14,
    doc="The sine of radians.",
)
cos = elementwise(
    "cos",
    np.cos,
    [lambda x, y: e.neg(sin(x))],
    accepts=dtypes.INEXACT,
    cost=14,
    doc="The cosine of radians.",
)
tan = elementwise(
    "tan",
    np.tan,
    [lambda x, y: e.add(e.square(y), 1)],
    accepts=dtypes.INEXACT,
    cost=18,
    domain=(-1.2, 1.2),
    doc="The tangent of radians.",
)
asin = elementwise(
    "asin",
    np.arcsin,
    [lambda x, y: _inverse_root(_one_minus_square(x))],
    accepts=dtypes.INEXACT,
    cost=14,
    domain=(-0.9, 0.9),
    doc="The inverse sine, in [-pi/2, pi/2].",
)
acos = elementwise(
    "acos",
    np.arccos,
    [lambda x, y: e.neg(_inverse_root(_one_minus_square(x)))],
    accepts=dtypes.INEXACT,
    cost=14,
    domain=(-0.9, 0.9),
    doc="The inverse cosine, in [0, pi].",
)
atan = elementwise(
    "atan",
    np.arctan,
    [lambda x, y: e.reciprocal(e.add(e.square(x), 1))],
    accepts=dtypes.INEXACT,
    cost=14,
    doc="The inverse tangent, in [-pi/2, pi/2].",
)
atan2 = elementwise(
    "atan2",
    np.arctan2,
    [
        lambda x, y, z: e.div(y, e.add(e.square(x), e.square(y))),
        lambda x, y, z: e.neg(e.div(x, e.add(e.square(x), e.square(y)))),
    ],
    arity=2,
    accepts=dtypes.FLOATS,
    cost=18,
    domain=(0.3, 3.0),
    doc="The angle of the point (second, first), in [-pi, pi].",
)
sinh = elementwise(
    "sinh",
    np.sinh,
    [lambda x, y: cosh(x)],
    accepts=dtypes.INEXACT,
    cost=14,
    doc="The hyperbolic sine.",
)
cosh = elementwise(
    "cosh",
    np.cosh,
    [lambda x, y: sinh(x)],
    accepts=dtypes.INEXACT,
    cost=14,
    doc="The hyperbolic cosine.",
)
tanh = elementwise(
    "tanh",
    np.tanh,
    [lambda x, y: e.add(e.neg(e.square(y)), 1)],
    accepts=dtypes.INEXACT,
    cost=14,
    doc="The hyperbolic tangent.",
)
asinh = elementwise(
    "asinh",
    np.arcsinh,
    [lambda x, y: _inverse_root(e.add(e.square(x), 1))],
    accepts=dtypes.INEXACT,
    cost=18,
    doc="The inverse hyperbolic sine.",
)
acosh = elementwise(
    "acosh",
    np.arccosh,
    [lambda x, y: _acosh_derivative(x)],
    accepts=dtypes.INEXACT,
    cost=18,
    domain=(1.2, 4.0),
    doc="The inverse hyperbolic cosine.",
)
atanh = elementwise(
    "atanh",
    np.arctanh,
    [lambda x, y: e.reciprocal(_one_minus_square(x))],
    accepts=dtypes.INEXACT,
    cost=14,
    domain=(-0.9, 0.9),
    doc="The inverse hyperbolic tangent.",
)


# The error function and the gamma function.


def _trigamma(x: Atom) -> Atom:
    """Emit trigamma, the derivative of digamma.

    For x >= 0.5, z = x, and otherwise z = 1 - x. The recurrence (Abramowitz and Stegun
    6.4.6) gives trigamma(z) = 1/z**2 + 1/(z + 1)**2 + ... + trigamma(z + 7), of which
    the last term is computed by the asymptotic series (6.4.12). The reflection (6.4.7)
    gives trigamma(x) = pi**2 / sin(pi x)**2 - trigamma(1 - x).
    """
    reflected = discrete.lt(x, 0.5)
    z = e.select(reflected, _one_minus(x), x)
    total = e.square(e.reciprocal(z))
    for step in range(1, _TRIGAMMA_STEPS):
        total = e.add(total, e.square(e.reciprocal(e.add(z, step))))
    # The series: 1/s + 1/(2 s**2) + sum of B_2k / s**(2k + 1), with s = z + 7.
    inverse = e.reciprocal(e.add(z, _TRIGAMMA_STEPS))
    square = e.square(inverse)
    series: Atom = e.mul(square, _BERNOULLI[-1])
    for number in reversed(_BERNOULLI[:-1]):
        series = e.mul(square, e.add(series, number))
    tail = e.mul(inverse, e.add(e.add(series, e.mul(inverse, 0.5)), 1))
    total = e.add(total, tail)
    # The sine of x minus the nearest integer is accurate also far from 0. Where x is
    # not reflected, the sine of pi/2 replaces it: the reciprocal is infinite at
    # integers.
    period = e.sub(x, discrete.round(x))
    half = conversion.literal(0.5, x.type.dtype)
    sine = sin(e.mul(e.select(reflected, period, half), math.pi))
    reflection = e.mul(e.square(e.reciprocal(sine)), math.pi**2)
    return e.select(reflected, e.sub(reflection, total), total)


_TRIGAMMA_STEPS = 7  # of the recurrence, before the asymptotic series
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)


def _gaussian(x: Atom) -> Atom:
    """Emit the derivative of erf: 2 / sqrt(pi) * e**(-x**2)."""
    return e.mul(exp(e.neg(e.square(x))), _TWO_OVER_SQRT_PI)


def _normal_density(x: Atom) -> Atom:
    """Emit the density of the standard normal: e**(-x**2 / 2) / sqrt(2 pi)."""
    return e.mul(exp(e.mul(e.square(x), -0.5)), _ONE_OVER_SQRT_TWO_PI)


erf = elementwise(
    "erf",
    _scipy("erf"),
    [lambda x, y: _gaussian(x)],
    accepts=dtypes.FLOATS,
    cost=14,
    doc="The error function.",
)
erfc = elementwise(
    "erfc",
    _scipy("erfc"),
    [lambda x, y: e.neg(_gaussian(x))],
    accepts=dtypes.FLOATS,
    cost=18,
    tolerance=Tolerance(float32=4e-6, float64=1e-14),
    doc="1 - erf(x), accurate where erf is near 1.",
)
ndtr = elementwise(
    "ndtr",
    _scipy("ndtr"),
    [lambda x, y: _normal_density(x)],
    accepts=dtypes.FLOATS,
    cost=20,
    tolerance=Tolerance(float32=4e-6, float64=1e-14),
    doc="The distribution function of the standard normal distribution.",
)
erfinv = elementwise(
    "erfinv",
    lambda x: np.copysign(_scipy("erfinv")(x), x),  # SciPy's of -0.0 is 0.0
    [lambda x, y: e.mul(exp(e.square(y)), _HALF_SQRT_PI)],
    accepts=dtypes.FLOATS,
    cost=20,
    domain=(-0.95, 0.95),
    tolerance=Tolerance(float32=4e-6, float64=1e-13),
    doc="The inverse of the error function.",
)
lgamma = elementwise(
    "lgamma",
    lambda x: np.where(x == -np.inf, -x, _scipy("gammaln")(x)),  # SciPy's is -inf
    [lambda x, y: digamma(x)],
    accepts=dtypes.FLOATS,
    cost=30,
    domain=(0.3, 6.0),
    tolerance=Tolerance(float32=1e-5, float64=1e-13),
    doc="The logarithm of the gamma function's magnitude.",
)
digamma = elementwise(
    "digamma",
    _scipy("digamma"),
    [lambda x, y: _trigamma(x)],
    accepts=dtypes.FLOATS,
    cost=30,
    domain=(0.3, 6.0),
    tolerance=Tolerance(float32=1e-5, float64=1e-13),
    doc="The logarithmic derivative of the gamma function.",
)
