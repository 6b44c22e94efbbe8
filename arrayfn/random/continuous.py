"""Continuous distributions, as transformations of uniform and normal numbers.

Samples are differentiable by their parameters, because they are smooth functions of
the parameters and the random bits. dtypes are floating-point, float64 by default.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.errors import ArgumentError, user_location
from arrayfn.ir.layout import Shape
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.numpy.index_bounds import known_value
from arrayfn.primitives import special
from arrayfn.random.bits import (
    AnyKey,
    between,
    flat,
    floating,
    parameter,
    shape_for,
    unit,
)
from arrayfn.random.keys import Key, single, split
from arrayfn.tracing import apply
from arrayfn.transforms.custom import stop_gradient

_ROOT_TWO = math.sqrt(2.0)


def _limits(dtype: DType) -> Any:
    """Return the machine parameters of ``dtype``, such as ``eps`` and ``tiny``."""
    return anp.finfo(dtype)


def _drawn(
    name: str, key: AnyKey, shape: Any, dtype: DTypeLike
) -> tuple[Key, Shape, DType, DType]:
    """Return the key, shape and dtype of the result, and the dtype to draw in.

    float16 and bfloat16 are drawn in float32 and rounded, because they have too few
    uniform numbers for a tail. Errors call the function ``name``.
    """
    wanted = ops.as_shape(f"random.{name}", shape)
    kind = floating(name, dtype)
    return single(name, key), wanted, kind, dtypes.compute_dtype(kind)


def _shaped(sample: Array, shape: Shape, dtype: DType) -> Array:
    """Reshape a sample to ``shape``, and convert it to ``dtype``."""
    return ops.as_array(ops.convert(anp.reshape(sample, shape), dtype))


def normal(key: AnyKey, shape: Any = (), dtype: DTypeLike = None) -> Array:
    """Return standard normal random numbers of ``shape``.

    The inverse normal distribution function makes these numbers from uniform ones.
    ``dtype`` is a real or complex floating-point type. Each part of a complex number
    has variance 1/2. Samples equal JAX's up to the error of JAX's erfinv. In the tails
    this error is 2e-5 in float32 and 3e-12 in float64, and it is smaller in between.

    >>> from arrayfn import random
    >>> random.normal(random.key(0), (3,)).shape
    (3,)
    """
    one_key = single("normal", key)
    wanted = ops.as_shape("random.normal", shape)
    if dtype is not None and dtypes.canonical(dtype) in dtypes.COMPLEX:
        kind = dtypes.canonical(dtype)
        part = dtypes.real_of(kind)
        real, imaginary = (real_normal(k, wanted, part) for k in split(one_key))
        factor = ops.scalar(1 / _ROOT_TWO, part)
        return anp.add(
            anp.multiply(real, factor),
            anp.multiply(anp.multiply(imaginary, factor), ops.scalar(1j, kind)),
        )
    return real_normal(one_key, wanted, floating("normal", dtype))


def real_normal(key: Key, shape: Shape, dtype: DType) -> Array:
    """Return standard normal numbers of a real ``dtype``.

    16-bit numbers are rounded from float32. The numbers are sqrt(2) erfinv(u) for u
    uniform in (-1, 1).
    """
    wide = dtypes.compute_dtype(dtype)
    # The smallest number above -1, so that no sample is infinite.
    low = float(np.nextafter(np.array(-1, wide), np.array(0, wide)))
    drawn = _normal_between(unit(key, flat(shape), wide), low, 1.0, wide)
    return _shaped(drawn, shape, dtype)


def _normal_between(
    drawn: Array, low: ArrayLike, high: ArrayLike, dtype: DType
) -> Array:
    """Return normal numbers x whose erf(x / sqrt(2)) are uniform in [low, high).

    ``drawn`` are uniform numbers in [0, 1).
    """
    scaled = between(drawn, low, high, dtype)
    return anp.multiply(apply(special.erfinv, scaled), ops.scalar(_ROOT_TWO, dtype))


def truncated_normal(
    key: AnyKey,
    lower: ArrayLike,
    upper: ArrayLike,
    shape: Any = None,
    dtype: DTypeLike = None,
) -> Array:
    """Return standard normal random numbers in (lower, upper), without the bounds.

    The bounds broadcast to ``shape``, which is by default their common shape.

    >>> from arrayfn import random
    >>> x = random.truncated_normal(random.key(0), -1.0, 2.0, (100,))
    >>> bool((x > -1).all() and (x < 2).all())
    True
    """
    kind = floating("truncated_normal", dtype)
    wanted = shape_for("truncated_normal", shape, lower, upper)
    wide = dtypes.compute_dtype(kind)
    low, high = (parameter(x, wide) for x in (lower, upper))
    inner = flat(wanted, lower, upper)
    drawn = unit(single("truncated_normal", key), inner, wide)
    # Both bounds are far out on one side of 0.
    tail = (low > _TAIL) | (high < -_TAIL)
    if known_value(anp.any(tail)) == np.False_:
        sample = _inverted_erf(drawn, low, high, wide)
    else:
        first, last = anp.where(tail, -1.0, low), anp.where(tail, 1.0, high)
        middle = _inverted_erf(drawn, first, last, wide)
        outer = ops.convert(_in_tail(drawn, low, high), wide)
        sample = anp.where(tail, outer, middle)
    # Rounding, also to a narrow dtype, may move a number to a bound, or across it.
    first, last = (anp.astype(stop_gradient(x), kind) for x in (low, high))
    lowest = anp.nextafter(first, np.array(np.inf, kind))
    highest = anp.nextafter(last, np.array(-np.inf, kind))
    rounded = _shaped(sample, wanted, kind)
    return anp.clip(rounded, lowest, highest)


def _inverted_erf(drawn: Array, low: Array, high: Array, dtype: DType) -> Array:
    """Return normal numbers between ``low`` and ``high``, by the inverse of erf.

    ``drawn`` are uniform numbers in [0, 1). erf has too little precision for this in
    the tails.
    """
    first = apply(special.erf, anp.divide(low, _ROOT_TWO))
    last = apply(special.erf, anp.divide(high, _ROOT_TWO))
    return _normal_between(drawn, first, last, dtype)


_TAIL: Final = 1.0
"""Beyond this bound, erf has too little precision."""
_STEPS: Final = 4  # of Newton's method
_ASYMPTOTIC: Final = 30.0  # Mills' ratio is a continued fraction from here on
_FARTHEST: Final = 60.0
"""At this distance beyond a bound the probability, exp(-1800), is 0 in float64."""


def _in_tail(drawn: Array, low: Array, high: Array) -> Array:
    """Return normal numbers from ``low`` to ``high``, on one side of 0, in float64.

    ``drawn`` are uniform numbers in [0, 1). Solve log(Q(a + d) / Q(a)) = log(u) for d,
    where Q is the upper tail by Mills' ratio, a is the bound nearer to 0, and u is
    uniform between 1 and the value at the far bound. The left side is concave in d, so
    Newton's method converges.
    """
    u, low, high = (ops.convert(x, dtypes.float64) for x in (drawn, low, high))
    below = high < 0
    near = anp.maximum(anp.where(below, -high, low), _TAIL)
    far = anp.where(below, -low, high)
    at_near = _mills_ratio(near)

    def beyond(distance: Array) -> tuple[Array, Array]:
        """Return log(Q(near + distance) / Q(near)), and Mills' ratio there."""
        ratio = _mills_ratio(near + distance)
        log = -0.5 * distance * (2.0 * near + distance) + anp.log(ratio / at_near)
        return log, ratio

    log_at_far, _ = beyond(anp.clip(far - near, 0.0, _FARTHEST))
    log_u = anp.log1p(u * anp.expm1(log_at_far))
    constant_log_u = stop_gradient(log_u)
    # The first guess neglects the change of Mills' ratio: distance**2 / 2 + near
    # distance = -log_u.
    distance = (
        -2.0 * constant_log_u / (anp.sqrt(near * near - 2.0 * constant_log_u) + near)
    )
    for _ in range(_STEPS):
        distance = stop_gradient(distance)  # the last step carries the whole derivative
        log, ratio = beyond(distance)
        distance = distance + (log - log_u) * stop_gradient(ratio)
    sample = near + distance
    return anp.where(below, -sample, sample)


def _mills_ratio(x: Array) -> Array:
    """Return Mills' ratio: the upper tail over the density at x.

    For x >= 30, it is the continued fraction 1 / (x + 1 / (x + 2 / (x + ...))).
    """
    small = anp.minimum(x, _ASYMPTOTIC)
    tail = apply(special.erfc, ops.as_array(small / _ROOT_TWO))
    ratio = math.sqrt(math.pi / 2) * tail * anp.exp(0.5 * small * small)
    large = anp.maximum(x, _ASYMPTOTIC)
    below = large
    for k in range(8, 0, -1):
        below = large + k / below
    return anp.where(x < _ASYMPTOTIC, ratio, 1.0 / below)


def exponential(key: AnyKey, shape: Any = (), dtype: DTypeLike = None) -> Array:
    """Return random numbers with density exp(-x) on x >= 0: -log(1 - u)."""
    one_key, wanted, kind, wide = _drawn("exponential", key, shape, dtype)
    drawn = unit(one_key, flat(wanted), wide)
    sample = anp.negative(anp.log1p(anp.negative(drawn)))
    return _shaped(sample, wanted, kind)


def laplace(key: AnyKey, shape: Any = (), dtype: DTypeLike = None) -> Array:
    """Return random numbers with density exp(-|x|) / 2.

    They are sign(u) log(1 - |u|) for u uniform in (-1, 1).
    """
    one_key, wanted, kind, wide = _drawn("laplace", key, shape, dtype)
    low = float(_limits(wide).eps) / 2 - 1.0
    u = between(unit(one_key, flat(wanted), wide), low, 1.0, wide)
    sample = anp.multiply(anp.sign(u), anp.log1p(anp.negative(anp.abs(u))))
    return _shaped(sample, wanted, kind)


def logistic(key: AnyKey, shape: Any = (), dtype: DTypeLike = None) -> Array:
    """Return random numbers with distribution function 1 / (1 + exp(-x)).

    They are log(u / (1 - u)) for u uniform in (0, 1).
    """
    one_key, wanted, kind, wide = _drawn("logistic", key, shape, dtype)
    u = between(unit(one_key, flat(wanted), wide), float(_limits(wide).tiny), 1.0, wide)
    sample = anp.subtract(anp.log(u), anp.log1p(anp.negative(u)))
    return _shaped(sample, wanted, kind)


def gumbel(
    key: AnyKey, shape: Any = (), dtype: DTypeLike = None, mode: str = "low"
) -> Array:
    """Return random numbers with distribution function exp(-exp(-x)).

    They are -log(-log(u)) for u uniform in (0, 1). With ``mode="high"`` twice as many
    bits are used, for a finer upper tail. Another mode raises ArgumentError.
    """
    one_key, wanted, kind, wide = _drawn("gumbel", key, shape, dtype)
    limits = _limits(wide)
    if mode == "high":
        u = unit(one_key, (2, *wanted), wide)
        high, low = anp.getitem(u, 0), anp.getitem(u, 1)
        # Below 1/2, a second draw adds bits below the first one's. Then u = 1 - x.
        fine = anp.add(anp.multiply(low, float(limits.eps)), float(limits.tiny))
        x = anp.where(anp.greater_equal(high, 0.5), high, anp.add(high, fine))
        sample = anp.negative(anp.log(anp.negative(anp.log1p(anp.negative(x)))))
        return _shaped(sample, wanted, kind)
    if mode != "low":
        raise ArgumentError(
            f'random.gumbel: mode must be "low" or "high", not {mode!r}',
            user_location(),
        )
    u = between(unit(one_key, flat(wanted), wide), float(limits.tiny), 1.0, wide)
    sample = anp.negative(anp.log(anp.negative(anp.log(u))))
    return _shaped(sample, wanted, kind)


def cauchy(key: AnyKey, shape: Any = (), dtype: DTypeLike = None) -> Array:
    """Return random numbers with density 1 / (pi (1 + x**2)): tan(pi (u - 1/2))."""
    one_key, wanted, kind, wide = _drawn("cauchy", key, shape, dtype)
    # u is not 0, where the tangent would be infinite.
    u = between(unit(one_key, flat(wanted), wide), float(_limits(wide).eps), 1.0, wide)
    sample = anp.tan(anp.multiply(anp.subtract(u, 0.5), math.pi))
    return _shaped(sample, wanted, kind)


def lognormal(
    key: AnyKey, sigma: ArrayLike = 1.0, shape: Any = None, dtype: DTypeLike = None
) -> Array:
    """Return exp of ``sigma`` times standard normal random numbers."""
    kind = floating("lognormal", dtype)
    wanted = shape_for("lognormal", shape, sigma)
    drawn = real_normal(single("lognormal", key), wanted, kind)
    return anp.exp(anp.multiply(drawn, parameter(sigma, kind)))


def maxwell(key: AnyKey, shape: Any = (), dtype: DTypeLike = None) -> Array:
    """Return lengths of random standard normal vectors in three dimensions."""
    one_key, wanted, kind, _ = _drawn("maxwell", key, shape, dtype)
    vector = real_normal(one_key, (*wanted, 3), kind)
    return anp.sqrt(anp.sum(anp.square(vector), -1))


def double_sided_maxwell(
    key: AnyKey,
    loc: ArrayLike,
    scale: ArrayLike,
    shape: Any = (),
    dtype: DTypeLike = None,
) -> Array:
    """Return ``maxwell`` numbers with a random sign, times ``scale``, plus ``loc``.

    The result has the shape ``shape`` followed by that of the parameters.
    """
    kind = floating("double_sided_maxwell", dtype)
    one_key = single("double_sided_maxwell", key)
    wanted = ops.as_shape("random.double_sided_maxwell", shape)
    wanted = (*wanted, *shape_for("double_sided_maxwell", None, loc, scale))
    size_key, sign_key = split(one_key)
    size = maxwell(size_key, wanted, kind)
    positive = anp.less(unit(sign_key, wanted, kind), 0.5)
    signed = anp.where(positive, size, anp.negative(size))
    scaled = anp.multiply(signed, parameter(scale, kind))
    return anp.add(scaled, parameter(loc, kind))


def pareto(
    key: AnyKey, b: ArrayLike, shape: Any = None, dtype: DTypeLike = None
) -> Array:
    """Return random numbers with density b / x**(b + 1) on x >= 1.

    They are exp(e / b) for an exponential number e.
    """
    kind = floating("pareto", dtype)
    wanted = shape_for("pareto", shape, b)
    return anp.exp(anp.divide(exponential(key, wanted, kind), parameter(b, kind)))


def rayleigh(
    key: AnyKey, scale: ArrayLike, shape: Any = None, dtype: DTypeLike = None
) -> Array:
    """Return lengths of two-dimensional normal vectors of standard deviation ``scale``.

    They are scale sqrt(2 e) for an exponential number e.
    """
    kind = floating("rayleigh", dtype)
    wanted = shape_for("rayleigh", shape, scale)
    root = anp.sqrt(anp.multiply(exponential(key, wanted, kind), 2.0))
    return anp.multiply(root, parameter(scale, kind))


def weibull_min(
    key: AnyKey,
    scale: ArrayLike,
    concentration: ArrayLike,
    shape: Any = (),
    dtype: DTypeLike = None,
) -> Array:
    """Return ``scale * e**(1 / concentration)`` for exponential random numbers e.

    This is the Weibull distribution. The parameters broadcast to ``shape``.
    """
    kind = floating("weibull_min", dtype)
    wanted = shape_for("weibull_min", shape, scale, concentration)
    inverse = anp.divide(1.0, parameter(concentration, kind))
    drawn = anp.power(exponential(key, wanted, kind), inverse)
    return anp.multiply(drawn, parameter(scale, kind))


def triangular(
    key: AnyKey,
    left: ArrayLike,
    mode: ArrayLike,
    right: ArrayLike,
    shape: Any = None,
    dtype: DTypeLike = None,
) -> Array:
    """Return random numbers whose density rises to ``mode`` and falls to ``right``.

    It is 0 at ``left`` and ``right``. The distribution function is inverted: with width
    = right - left, x is left + sqrt(u width (mode - left)) below the mode, and right -
    sqrt((1 - u) width (right - mode)) above.
    """
    kind = floating("triangular", dtype)
    wanted = shape_for("triangular", shape, left, mode, right)
    left, mode, right = (parameter(x, kind) for x in (left, mode, right))
    u = unit(single("triangular", key), wanted, kind)
    width = anp.subtract(right, left)
    before, after = anp.subtract(mode, left), anp.subtract(right, mode)
    rising = anp.sqrt(anp.multiply(anp.multiply(u, width), before))
    falling = anp.sqrt(anp.multiply(anp.multiply(anp.subtract(1.0, u), width), after))
    below = anp.less(anp.multiply(u, width), before)
    return anp.where(below, anp.add(left, rising), anp.subtract(right, falling))


def wald(
    key: AnyKey, mean: ArrayLike, shape: Any = None, dtype: DTypeLike = None
) -> Array:
    """Return random numbers of the inverse Gaussian distribution with a scale of 1.

    ``mean`` is the mean. Of the two roots x and mean**2 / x of a quadratic equation,
    the smaller has the probability mean / (mean + x) (Michael, Schucany and Haas,
    Generating random variates using transformations with multiple roots, 1976).
    """
    kind = floating("wald", dtype)
    wanted = shape_for("wald", shape, mean)
    mean = parameter(mean, kind)
    normal_key, choice_key = split(single("wald", key))
    y = anp.square(real_normal(normal_key, wanted, kind))
    # mean + mean**2 y / 2 - mean / 2 sqrt(4 mean y + mean**2 y**2), without
    # cancellation for large y.
    half = anp.multiply(anp.multiply(mean, y), 0.5)
    root = anp.sqrt(anp.multiply(half, anp.add(half, 2.0)))
    smaller = anp.divide(mean, anp.add(anp.add(half, 1.0), root))
    u = unit(choice_key, wanted, kind)
    first = anp.less_equal(anp.multiply(u, anp.add(mean, smaller)), mean)
    return anp.where(first, smaller, anp.divide(anp.square(mean), smaller))


__all__ = [
    "cauchy",
    "double_sided_maxwell",
    "exponential",
    "gumbel",
    "laplace",
    "logistic",
    "lognormal",
    "maxwell",
    "normal",
    "pareto",
    "rayleigh",
    "triangular",
    "truncated_normal",
    "wald",
    "weibull_min",
]
