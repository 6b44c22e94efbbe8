"""Activation functions, elementwise."""

from __future__ import annotations

import math
from typing import Any

import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.compilation.operators import operator
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.transcendental import tanh
from arrayfn.primitives import special
from arrayfn.transforms.custom import custom_jvp

_SQRT_TWO_OVER_PI = math.sqrt(2.0 / math.pi)
# The fixed point of Klambauer et al., Self-normalizing neural networks (2017).
_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946


def relu(x: ArrayLike) -> Array:
    """Return x if it is positive, else 0.

    The derivative at 0 is 0.
    """
    return anp.where(anp.less_equal(x, 0), 0, x)


def relu6(x: ArrayLike) -> Array:
    """Limit x to [0, 6]; the derivative is 0 at both ends."""
    return anp.where(anp.greater_equal(x, 6), 6, relu(x))


def leaky_relu(x: ArrayLike, negative_slope: ArrayLike = 0.01) -> Array:
    """Return x if it is not negative, else ``negative_slope * x``."""
    return anp.where(anp.greater_equal(x, 0), x, anp.multiply(x, negative_slope))


def elu(x: ArrayLike, alpha: ArrayLike = 1.0) -> Array:
    """Return x if it is positive, else ``alpha * (exp(x) - 1)``."""
    (x, alpha), _, _ = ops.promoted("elu", (x, alpha))
    positive = anp.greater(x, 0)
    # For positive x exp(x) may overflow, and its derivative would be inf * 0.
    below = anp.where(positive, 0, x)
    return anp.where(positive, x, anp.multiply(alpha, anp.expm1(below)))


def celu(x: ArrayLike, alpha: ArrayLike = 1.0) -> Array:
    """Return x if it is positive, else ``alpha * (exp(x / alpha) - 1)``."""
    (x, alpha), _, _ = ops.promoted("celu", (x, alpha))
    below = anp.divide(anp.where(anp.greater(x, 0), 0, x), alpha)
    return anp.where(anp.greater(x, 0), x, anp.multiply(alpha, anp.expm1(below)))


def selu(x: ArrayLike) -> Array:
    """Return elu(x, 1.6733) times 1.0507 (Klambauer et al., 2017).

    With these constants, means and variances persist from layer to layer.
    """
    return anp.multiply(_SELU_SCALE, elu(x, _SELU_ALPHA))


@operator(name="nn.gelu", static_argnames=("approximate",), inline=True)
def gelu(x: ArrayLike, approximate: bool = True) -> Array:
    """Multiply x by the normal distribution function of x (Hendrycks and Gimpel, 2016).

    With ``approximate``, the result is x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3))) /
    2. For a gradient, the slope is computed together with the result, so that only one
    array is kept.
    """
    x = ops.as_floating("gelu", x)
    if approximate:
        return _gelu_by_tanh(x)
    return anp.multiply(x, ops.floating(special.ndtr, "gelu", x))


def _share(x: Array) -> Array:
    """Return (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3))) / 2, the factor of x in gelu.

    As the logistic function of twice the argument of tanh, it is accurate for small
    results.
    """
    cubic = anp.add(x, anp.multiply(0.044715, anp.power(x, 3)))
    return _logistic(anp.multiply(2 * _SQRT_TWO_OVER_PI, cubic))


@custom_jvp
def _logistic(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)) within 2 ulp; it is 0 where exp(-x) overflows.

    ``sigmoid`` is within an ulp everywhere, and takes twice as long.
    """
    return anp.divide(1.0, anp.add(1.0, anp.exp(anp.negative(x))))


@_logistic.defjvp
def _logistic_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    """Return y = logistic(x) and its derivative, y (1 - y)."""
    (x,), (dx,) = primals, tangents
    y = _logistic(x)
    return y, anp.multiply(dx, anp.multiply(y, anp.subtract(1.0, y)))


@custom_jvp
def _gelu_by_tanh(x: Array) -> Array:
    """Return x times ``_share(x)``, with the rule of differentiation below."""
    return anp.multiply(x, _share(x))


@_gelu_by_tanh.defjvp
def _gelu_by_tanh_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    """Return x s(x) and its derivative s + x s', for s = logistic(u).

    Here u = 2 sqrt(2 / pi) (x + 0.044715 x**3), and s' = u' s (1 - s).
    """
    (x,), (dx,) = primals, tangents
    share = _share(x)
    # ``inner`` is u', and ``steep`` is s'.
    inner = anp.add(1.0, anp.multiply(3 * 0.044715, anp.square(x)))
    inner = anp.multiply(2 * _SQRT_TWO_OVER_PI, inner)
    steep = anp.multiply(inner, anp.multiply(share, anp.subtract(1.0, share)))
    slope = anp.add(share, anp.multiply(x, steep))
    return anp.multiply(x, share), anp.multiply(dx, slope)


def sigmoid(x: ArrayLike) -> Array:
    """Return 1 / (1 + exp(-x)), without overflow."""
    return ops.floating(special.logistic, "sigmoid", x)


def log_sigmoid(x: ArrayLike) -> Array:
    """Return -softplus(-x), the logarithm of ``sigmoid``, accurate far from 0."""
    return anp.negative(softplus(anp.negative(x)))


def silu(x: ArrayLike) -> Array:
    """Return x sigmoid(x), within 3 ulp unless sigmoid(x) is subnormal."""
    return anp.multiply(x, sigmoid(x))


swish = silu


def mish(x: ArrayLike) -> Array:
    """Multiply x by tanh(softplus(x)) (Misra, 2019)."""
    x = ops.as_array(ops.as_floating("mish", x))
    # tanh(log(1 + e)) is (e**2 + 2 e) / (e**2 + 2 e + 2), and 1 from the limit on.
    limit = 5.0 if x.dtype == dtypes.float16 else 40.0
    exponential = anp.exp(anp.minimum(x, limit))
    top = anp.multiply(exponential, anp.add(exponential, 2.0))
    return anp.multiply(x, anp.divide(top, anp.add(top, 2.0)))


def glu(x: ArrayLike, axis: int = -1) -> Array:
    """Multiply the first half of x along ``axis`` by sigmoid of the second half.

    The extent of ``axis`` must be even. See Dauphin et al., Language modeling with
    gated convolutional networks, 2017.

    >>> import numpy as np
    >>> glu(np.array([2.0, 3.0, 0.0, 0.0]))
    array([1. , 1.5])
    """
    first, second = anp.split(x, 2, axis)
    return anp.multiply(first, sigmoid(second))


def identity(x: ArrayLike) -> Array:
    """Return x unchanged: the activation of a linear layer."""
    return anp.asarray(x)


def squareplus(x: ArrayLike, b: ArrayLike = 4) -> Array:
    """Return (x + sqrt(x**2 + b)) / 2, an algebraic softplus (Barron, 2021)."""
    x, b = (ops.as_array(v) for v in ops.floated("squareplus", x, b))
    # If x**2 would overflow, b is negligible.
    size = anp.abs(x)
    large = anp.greater(size, math.sqrt(float(anp.finfo(x.dtype).max)) / 2)
    square = anp.square(anp.where(large, 0, x))
    total = anp.add(size, anp.where(large, size, anp.sqrt(anp.add(square, b))))
    # For negative x, x and the root would cancel.
    below = anp.divide(anp.multiply(0.5, b), total)
    return anp.where(anp.less(x, 0), below, anp.multiply(0.5, total))


def sparse_plus(x: ArrayLike) -> Array:
    """Return 0 below -1, x above 1, and (x + 1)**2 / 4 between."""
    square = anp.multiply(0.25, anp.square(anp.add(x, 1.0)))
    within = anp.where(anp.less_equal(x, -1), 0, square)
    return anp.where(anp.greater_equal(x, 1), x, within)


def sparse_sigmoid(x: ArrayLike) -> Array:
    """Return 0 below -1, 1 above 1, and (x + 1) / 2 between.

    This is the slope of ``sparse_plus``.
    """
    return anp.multiply(0.5, anp.clip(anp.add(x, 1.0), 0, 2))


def log1mexp(x: ArrayLike) -> Array:
    """Return log(1 - exp(-x)) for positive x, accurate near 0 and far from it.

    See Maechler, Accurately computing log(1 - exp(-|a|)), 2012.
    """
    return _log1mexp(ops.as_floating("log1mexp", x))


@custom_jvp
def _log1mexp(x: Array) -> Array:
    """Return log(1 - exp(-x)) for positive x, by whichever formula cancels less."""
    negative = anp.negative(x)
    small = anp.log(anp.negative(anp.expm1(negative)))
    return anp.where(
        anp.less(x, math.log(2.0)), small, anp.log1p(anp.negative(anp.exp(negative)))
    )


@_log1mexp.defjvp
def _log1mexp_jvp(
    primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Array, Array]:
    """Return log(1 - exp(-x)) and its derivative, 1 / (exp(x) - 1).

    ``_log1mexp.function`` computes without this rule.
    """
    (x,), (dx,) = primals, tangents
    return _log1mexp.function(x), anp.divide(dx, anp.expm1(x))


def softplus(x: ArrayLike) -> Array:
    """Return log(1 + exp(x)), without overflow."""
    return anp.logaddexp(x, 0.0)


def soft_sign(x: ArrayLike) -> Array:
    """Return x / (1 + abs(x))."""
    return anp.divide(x, anp.add(1.0, anp.absolute(x)))


def hard_tanh(x: ArrayLike) -> Array:
    """Limit x to [-1, 1]; the derivative at both ends is 1."""
    below = anp.where(anp.less(x, -1), -1, x)
    return anp.where(anp.greater(x, 1), 1, below)


def hard_sigmoid(x: ArrayLike) -> Array:
    """Limit (x + 3) / 6 to [0, 1]."""
    return anp.divide(relu6(anp.add(x, 3.0)), 6.0)


def hard_swish(x: ArrayLike) -> Array:
    """Multiply x by hard_sigmoid(x).

    The derivative is 0 at -3, and 1 at 3.
    """
    # Outside of (-3, 3), 0 takes the place of x: the product is 0 and cannot overflow.
    inside = anp.where(anp.less(anp.absolute(x), 3), x, 0)
    middle = anp.multiply(inside, anp.divide(anp.add(inside, 3.0), 6.0))
    return anp.where(anp.greater_equal(x, 3), x, anp.where(anp.isnan(x), x, middle))


hard_silu = hard_swish


__all__ = [
    "celu",
    "elu",
    "gelu",
    "glu",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "identity",
    "leaky_relu",
    "log1mexp",
    "log_sigmoid",
    "mish",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "soft_sign",
    "softplus",
    "sparse_plus",
    "sparse_sigmoid",
    "squareplus",
    "swish",
    "tanh",
]
