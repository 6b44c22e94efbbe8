"""Softmax and its kin, one-hot vectors, and normalisation over axes."""

from __future__ import annotations

from functools import partial
from typing import Any

import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.custom import custom_jvp
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, Axis, DTypeLike
from arrayfn.primitives import special, views
from arrayfn.tracing import apply


def softmax(x: ArrayLike, /, axis: Axis = -1) -> Array:
    """exp(x) / sum(exp(x)) over ``axis``, without overflow.

    A row whose maximum is infinite is NaN.
    """
    return _softmax(_floating("softmax", x), axis)


@partial(custom_jvp, nondiff_argnums=(1,))
def _softmax(x: Array, axis: Axis) -> Array:
    exponentials = anp.exp(anp.subtract(x, anp.max(x, axis, keepdims=True)))
    return anp.divide(exponentials, anp.sum(exponentials, axis, keepdims=True))


@_softmax.defjvp
def _softmax_jvp(
    axis: Axis, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    y = _softmax.function(x, axis)
    along = anp.sum(anp.multiply(y, dx), axis, keepdims=True)
    return y, anp.multiply(y, anp.subtract(dx, along))


def log_softmax(x: ArrayLike, /, axis: Axis = -1) -> Array:
    """The logarithm of ``softmax``, accurate where that underflows."""
    return _log_softmax(_floating("log_softmax", x), axis)


@partial(custom_jvp, nondiff_argnums=(1,))
def _log_softmax(x: Array, axis: Axis) -> Array:
    shifted = anp.subtract(x, anp.max(x, axis, keepdims=True))
    total = anp.sum(anp.exp(shifted), axis, keepdims=True)
    return anp.subtract(shifted, anp.log(total))


@_log_softmax.defjvp
def _log_softmax_jvp(
    axis: Axis, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    y = _log_softmax.function(x, axis)
    along = anp.sum(anp.multiply(anp.exp(y), dx), axis, keepdims=True)
    return y, anp.subtract(dx, along)


def logsumexp(x: ArrayLike, /, axis: Axis = None, keepdims: bool = False) -> Array:
    """log(sum(exp(x))) over ``axis``, without overflow."""
    return _logsumexp(_floating("logsumexp", x), axis, keepdims)


@partial(custom_jvp, nondiff_argnums=(1, 2))
def _logsumexp(x: Array, axis: Axis, keepdims: bool) -> Array:
    highest = anp.max(x, axis, keepdims=True)
    # Subtracting an infinite maximum would give NaN.
    shift = anp.where(anp.isfinite(highest), highest, 0)
    total = anp.sum(anp.exp(anp.subtract(x, shift)), axis, keepdims=True)
    value = anp.add(anp.log(total), shift)
    return value if keepdims else _without(value, x.ndim, axis)


def _without(value: Array, ndim: int, axis: Axis) -> Array:
    return anp.squeeze(value, ops.normalize_axes("logsumexp", axis, ndim))


@_logsumexp.defjvp
def _logsumexp_jvp(
    axis: Axis, keepdims: bool, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    y = _logsumexp.function(x, axis, True)
    finite = anp.where(anp.isfinite(y), y, 0)
    weights = anp.exp(anp.subtract(x, finite))
    tangent = anp.sum(anp.multiply(weights, dx), axis, keepdims=True)
    if keepdims:
        return y, tangent
    return _without(y, x.ndim, axis), _without(tangent, x.ndim, axis)


def one_hot(
    x: ArrayLike,
    num_classes: int,
    /,
    *,
    dtype: DTypeLike = dtypes.float64,
    axis: int = -1,
) -> Array:
    """For each integer of x, 1 at its place along a new ``axis`` and 0 elsewhere.

    Integers outside 0 to ``num_classes`` - 1 give zeros alone.
    """
    type = ops.type_of_operand("one_hot", x)
    place = ops.normalize_axis("one_hot", axis, type.ndim + 1)
    index = type.dtype if type.dtype in dtypes.INTEGERS else dtypes.int64
    shape = (*type.shape[:place], num_classes, *type.shape[place:])
    classes = apply(views.iota, shape=shape, axis=place, dtype=index)
    return anp.astype(anp.equal(anp.expand_dims(x, place), classes), dtype)


def standardize(
    x: ArrayLike,
    /,
    axis: Axis = -1,
    mean: ArrayLike | None = None,
    variance: ArrayLike | None = None,
    epsilon: float = 1e-5,
) -> Array:
    """x less its mean, divided by its standard deviation, over ``axis``.

    ``mean`` and ``variance`` take the place of x's own; ``epsilon`` is added to the
    variance. Halves are computed in float32.
    """
    x = _floating("standardize", x)
    dtype = ops.type_of_operand("standardize", x).dtype
    wide = ops.convert(x, dtypes.compute_dtype(dtype))
    centre = anp.mean(wide, axis, keepdims=True) if mean is None else mean
    centred = anp.subtract(wide, centre)
    if variance is None:
        variance = anp.mean(anp.square(centred), axis, keepdims=True)
    scale = ops.floating(special.rsqrt, "standardize", anp.add(variance, epsilon))
    return ops.convert(anp.multiply(centred, scale), dtype)


def layer_norm(
    x: ArrayLike,
    scale: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    /,
    axis: Axis = -1,
    epsilon: float = 1e-5,
) -> Array:
    """``standardize`` over ``axis``, times ``scale``, plus ``bias``.

    Ba et al., Layer Normalization, 2016. ``scale`` and ``bias`` broadcast with x.
    """
    value = standardize(x, axis, epsilon=epsilon)
    value = value if scale is None else anp.multiply(value, scale)
    return value if bias is None else anp.add(value, bias)


def rms_norm(
    x: ArrayLike,
    scale: ArrayLike | None = None,
    /,
    axis: Axis = -1,
    epsilon: float = 1e-6,
) -> Array:
    """x divided by the root of its mean square over ``axis``, times ``scale``.

    Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.
    """
    x = _floating("rms_norm", x)
    dtype = ops.type_of_operand("rms_norm", x).dtype
    wide = ops.convert(x, dtypes.compute_dtype(dtype))
    size = anp.mean(anp.square(wide), axis, keepdims=True)
    factor = ops.floating(special.rsqrt, "rms_norm", anp.add(size, epsilon))
    value = ops.convert(anp.multiply(wide, factor), dtype)
    return value if scale is None else anp.multiply(value, scale)


def _floating(name: str, x: ArrayLike) -> ArrayLike:
    dtype = ops.type_of_operand(name, x).dtype
    return ops.convert(x, ops.floating_dtype(dtype))
