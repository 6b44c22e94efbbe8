"""softmax, log_softmax, logsumexp and logmeanexp."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.compilation.operators import operator
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, Axis
from arrayfn.transforms.custom import custom_jvp, stop_gradient


@operator(name="nn.softmax", static_argnames=("axis",), inline=True)
def softmax(x: ArrayLike, axis: Axis = -1, where: ArrayLike | None = None) -> Array:
    """Return exp(x) / sum(exp(x)) over ``axis``, without overflow.

    A row whose maximum is infinite gives NaN. Elements where ``where`` is false are
    ignored and give 0, even if no element is left.

    >>> import numpy as np
    >>> softmax(np.zeros(4), where=np.array([True, True, False, False]))
    array([0.5, 0.5, 0. , 0. ])
    """
    x = ops.as_array(ops.as_floating("softmax", x))
    if where is None:
        return _softmax(x, axis)
    return anp.where(where, _softmax(_smallest_where_not(x, where), axis), 0)


def _smallest_where_not(x: ArrayLike, where: ArrayLike) -> Array:
    """Replace x by its dtype's smallest finite number where ``where`` is false.

    Unlike -inf, this number gives no NaN if no element is left.
    """
    dtype = ops.type_of_operand("softmax", x).dtype
    return anp.where(where, x, float(anp.finfo(dtype).min))


def _highest(x: Array, axis: Axis) -> Array:
    """Return the maximum of ``x`` over ``axis``, which stays with an extent of 1.

    It is -inf for a maximum over no elements.
    """
    shape = x.shape
    axes = ops.normalize_axes("softmax", axis, len(shape))
    if 0 not in [shape[k] for k in axes]:
        return anp.max(x, axis, keepdims=True)
    kept = tuple(1 if k in axes else n for k, n in enumerate(shape))
    return ops.full(-math.inf, kept, x.dtype)


@partial(custom_jvp, nondiff_argnums=(1,))
def _softmax(x: Array, axis: Axis) -> Array:
    """Return softmax(x) over ``axis``, with the rule of differentiation below."""
    exponentials = anp.exp(anp.subtract(x, _highest(x, axis)))
    return anp.divide(exponentials, anp.sum(exponentials, axis, keepdims=True))


@_softmax.defjvp
def _softmax_jvp(
    axis: Axis, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Array, Array]:
    """Return y = softmax(x) and its derivative, y (dx - sum(y dx)).

    ``_softmax.function`` computes without this rule.
    """
    (x,), (dx,) = primals, tangents
    y = _softmax.function(x, axis)
    along = anp.sum(anp.multiply(y, dx), axis, keepdims=True)
    return y, anp.multiply(y, anp.subtract(dx, along))


@operator(name="nn.log_softmax", static_argnames=("axis",), inline=True)
def log_softmax(x: ArrayLike, axis: Axis = -1, where: ArrayLike | None = None) -> Array:
    """Return the logarithm of ``softmax``, accurate even if ``softmax`` underflows.

    Elements where ``where`` is false are ignored and give -inf.
    """
    x = ops.as_array(ops.as_floating("log_softmax", x))
    if where is None:
        return _log_softmax(x, axis)
    value = _log_softmax(_smallest_where_not(x, where), axis)
    return anp.where(where, value, -math.inf)


@partial(custom_jvp, nondiff_argnums=(1,))
def _log_softmax(x: Array, axis: Axis) -> Array:
    """Return log(softmax(x)) as d - log(sum(exp(d))), for d = x - maximum."""
    shifted = anp.subtract(x, _highest(x, axis))
    total = anp.sum(anp.exp(shifted), axis, keepdims=True)
    return anp.subtract(shifted, anp.log(total))


@_log_softmax.defjvp
def _log_softmax_jvp(
    axis: Axis, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Array, Array]:
    """Return y = log_softmax(x) and its derivative, dx - sum(exp(y) dx).

    ``_log_softmax.function`` computes without this rule.
    """
    (x,), (dx,) = primals, tangents
    y = _log_softmax.function(x, axis)
    along = anp.sum(anp.multiply(anp.exp(y), dx), axis, keepdims=True)
    return y, anp.subtract(dx, along)


def logsumexp(
    a: ArrayLike,
    axis: Axis = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: bool = False,
    where: ArrayLike | None = None,
) -> Any:
    """Return log(sum(b * exp(a))) over ``axis``, without overflow.

    ``b`` is 1 by default. With ``return_sign``, the result is a pair: log(abs(sum)),
    and the sign sum / abs(sum). Otherwise, a negative sum gives NaN. Elements where
    ``where`` is false are ignored.

    >>> import numpy as np
    >>> logsumexp(np.array([1000.0, 1000.0]))
    array(1000.69314718)
    """
    a = ops.as_array(ops.as_floating("logsumexp", a))
    if where is not None:
        a = anp.where(where, a, -math.inf)
    # Weights of 1 lead to the branch that returns complex signs.
    if b is None and return_sign and a.dtype in dtypes.COMPLEX:
        b = 1
    if b is not None:
        return _weighted(a, b, axis, keepdims, return_sign)
    value = _logsumexp(a, axis, keepdims)
    return (value, anp.ones_like(value)) if return_sign else value


def _weighted(
    a: Array, b: ArrayLike, axis: Axis, keepdims: bool, return_sign: bool
) -> Any:
    """Return log(sum(b exp(a))) over ``axis``.

    With ``return_sign``, return log(abs(sum)) and the sign sum / abs(sum), which is
    complex for complex numbers. The real maximum of ``a`` is subtracted before exp.
    """
    a, b = anp.broadcast_arrays(
        a, ops.convert(b, ops.common_dtype("logsumexp", [a, b]))
    )
    # An element of weight 0 is ignored even if its exponent is infinite.
    a = anp.where(anp.equal(b, 0), -math.inf, a)
    size = anp.real(a) if a.dtype in dtypes.COMPLEX else a
    highest = stop_gradient(anp.max(size, axis, keepdims=True))
    shift = anp.where(anp.isfinite(highest), highest, 0)
    total = anp.sum(
        anp.multiply(b, anp.exp(anp.subtract(a, shift))), axis, keepdims=True
    )
    sign = anp.sign(total)
    size = anp.log(anp.abs(total) if return_sign else total)
    value = anp.add(size, shift)
    if not keepdims:
        value, sign = (_without(x, a.ndim, axis) for x in (value, sign))
    return (value, sign) if return_sign else value


def logmeanexp(
    x: ArrayLike,
    axis: Axis = None,
    where: ArrayLike | None = None,
    keepdims: bool = False,
) -> Array:
    """Return log(mean(exp(x))) over ``axis``, without overflow.

    Elements where ``where`` is false are ignored.
    """
    type = ops.type_of_operand("logmeanexp", x)
    ones = anp.ones(type.shape, dtype=bool)
    counted = ones if where is None else anp.logical_and(where, ones)
    total = logsumexp(x, axis, keepdims=keepdims, where=where)
    count = anp.sum(counted, axis, keepdims=keepdims)
    return anp.subtract(total, anp.astype(anp.log(count), total.dtype))


@partial(custom_jvp, nondiff_argnums=(1, 2))
def _logsumexp(x: Array, axis: Axis, keepdims: bool) -> Array:
    """Return log(sum(exp(x))) over ``axis``, without overflow."""
    highest = _highest(x, axis)
    # Subtracting an infinite maximum would give NaN.
    shift = anp.where(anp.isfinite(highest), highest, 0)
    total = anp.sum(anp.exp(anp.subtract(x, shift)), axis, keepdims=True)
    value = anp.add(anp.log(total), shift)
    return value if keepdims else _without(value, x.ndim, axis)


def _without(value: Array, ndim: int, axis: Axis) -> Array:
    """Remove the reduced axes, which have an extent of 1, from ``value``."""
    return anp.squeeze(value, ops.normalize_axes("logsumexp", axis, ndim))


@_logsumexp.defjvp
def _logsumexp_jvp(
    axis: Axis, keepdims: bool, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Array, Array]:
    """Return logsumexp(x) and its derivative: the sum of dx weighted by softmax(x).

    ``_logsumexp.function`` computes without this rule.
    """
    (x,), (dx,) = primals, tangents
    y = _logsumexp.function(x, axis, keepdims=True)
    # If all are -inf, all weights are 0.
    total = anp.where(anp.equal(y, -math.inf), 0, y)
    weights = anp.exp(anp.subtract(x, total))
    tangent = anp.sum(anp.multiply(weights, dx), axis, keepdims=True)
    if keepdims:
        return y, tangent
    return _without(y, x.ndim, axis), _without(tangent, x.ndim, axis)


__all__ = ["log_softmax", "logmeanexp", "logsumexp", "softmax"]
