"""Normalisation: to mean 0 and variance 1, over axes, groups or the batch."""

from __future__ import annotations

from typing import Any, Final

import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.compilation.operators import operator
from arrayfn.errors import ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, Axis
from arrayfn.numpy._parameters import also_takes
from arrayfn.primitives import special


@also_takes("algorithm")
def standardize(
    x: ArrayLike,
    axis: Axis = -1,
    mean: ArrayLike | None = None,
    variance: ArrayLike | None = None,
    epsilon: float = 1e-5,
    where: ArrayLike | None = None,
) -> Array:
    """Subtract the mean of x over ``axis``, and divide by the standard deviation.

    Mean and variance are computed from the elements where ``where`` is true, or given
    as ``mean`` and ``variance``. ``epsilon`` is added to the variance. float16 and
    bfloat16 are computed in float32.
    """
    x = ops.as_floating("standardize", x)
    dtype = ops.type_of_operand("standardize", x).dtype
    wide = ops.convert(x, dtypes.compute_dtype(dtype))
    centre = _mean(wide, axis, where) if mean is None else mean
    centred = anp.subtract(wide, centre)
    if variance is None:
        variance = _mean(anp.square(centred), axis, where)
    return ops.convert(anp.multiply(centred, _inverse_root(variance, epsilon)), dtype)


def _mean(x: Array, axis: Axis, where: ArrayLike | None) -> Array:
    """Return the mean of ``x`` over ``axis``, which stays with an extent of 1.

    With ``where``, it is the mean of the elements where ``where`` is true.
    """
    if where is None:
        return anp.mean(x, axis, keepdims=True)
    total = anp.sum(anp.where(where, x, 0), axis, keepdims=True)
    counted = anp.logical_and(where, anp.ones(x.shape, dtype=bool))
    return anp.divide(total, anp.astype(anp.sum(counted, axis, keepdims=True), x.dtype))


def _inverse_root(variance: ArrayLike, epsilon: float) -> Array:
    """Return 1 / sqrt(variance + epsilon)."""
    return ops.floating(special.rsqrt, "standardize", anp.add(variance, epsilon))


_STATIC: Final = ("axis", "epsilon")


@operator(name="nn.layer_norm", static_argnames=_STATIC, inline=True)
def layer_norm(
    x: ArrayLike,
    scale: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    /,
    axis: Axis = -1,
    epsilon: float = 1e-5,
) -> Array:
    """Standardize over ``axis``, multiply by ``scale``, and add ``bias``.

    See Ba et al., Layer Normalization, 2016. ``scale`` and ``bias`` broadcast with x.
    ``epsilon`` is added to the variance.
    """
    return _affine(standardize(x, axis, epsilon=epsilon), scale, bias)


@operator(name="nn.rms_norm", static_argnames=_STATIC, inline=True)
def rms_norm(
    x: ArrayLike,
    scale: ArrayLike | None = None,
    /,
    axis: Axis = -1,
    epsilon: float = 1e-6,
) -> Array:
    """Divide x by its root mean square over ``axis``, and multiply by ``scale``.

    See Zhang and Sennrich, Root Mean Square Layer Normalization, 2019. ``epsilon`` is
    added to the mean square.
    """
    x = ops.as_floating("rms_norm", x)
    dtype = ops.type_of_operand("rms_norm", x).dtype
    wide = ops.convert(x, dtypes.compute_dtype(dtype))
    size = anp.mean(anp.square(wide), axis, keepdims=True)
    value = ops.convert(anp.multiply(wide, _inverse_root(size, epsilon)), dtype)
    return _affine(value, scale, None)


def group_norm(
    x: ArrayLike,
    groups: int,
    scale: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    /,
    epsilon: float = 1e-5,
) -> Array:
    """Standardize x [N, ..., C] over all axes but the first, in groups of channels.

    See Wu and He, Group normalization, 2018. ``scale`` and ``bias`` are [C].

    Raises ShapeError if ``groups`` does not divide C.

    >>> import numpy as np
    >>> group_norm(np.array([[1.0, 3.0, 10.0, 30.0]]), 2).round(3)
    array([[-1.,  1., -1.,  1.]])
    """
    type = ops.type_of_operand("group_norm", x)
    if type.ndim < 2 or type.shape[-1] % groups:
        raise ShapeError(
            f"group_norm takes [N, ..., C] with C divisible by {groups} groups, not "
            f"{type}",
            user_location(),
        )
    grouped = anp.reshape(x, (*type.shape[:-1], groups, type.shape[-1] // groups))
    axes = (*range(1, type.ndim - 1), type.ndim)
    value = anp.reshape(standardize(grouped, axes, epsilon=epsilon), type.shape)
    return _affine(value, scale, bias)


def batch_norm(
    x: ArrayLike,
    mean: ArrayLike,
    variance: ArrayLike,
    scale: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    /,
    *,
    training: bool,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
) -> tuple[Array, tuple[Array, Array]]:
    """Standardize x [..., C] for each channel, and update the running statistics.

    See Ioffe and Szegedy, Batch normalization, 2015. With ``training``, x is normalised
    by its own statistics over all axes except the last. The running statistics, [C],
    become ``momentum * running + (1 - momentum) * own``. Without ``training``, x is
    normalised by the running statistics, which do not change.

    >>> import numpy as np
    >>> x = np.array([[0.0], [2.0]])
    >>> y, (mean, variance) = batch_norm(x, np.zeros(1), np.ones(1), training=True)
    >>> y.round(3).tolist(), mean.round(3)
    ([[-1.0], [1.0]], array([0.1]))
    """
    x = ops.as_floating("batch_norm", x)
    type = ops.type_of_operand("batch_norm", x)
    if not training:
        value = standardize(x, mean=mean, variance=variance, epsilon=epsilon)
        return _affine(value, scale, bias), (anp.asarray(mean), anp.asarray(variance))
    axes = tuple(range(type.ndim - 1))
    wide = ops.convert(x, dtypes.compute_dtype(type.dtype))
    own_mean = anp.mean(wide, axes)
    own_variance = anp.mean(anp.square(anp.subtract(wide, own_mean)), axes)
    value = standardize(x, mean=own_mean, variance=own_variance, epsilon=epsilon)

    def moved(running: ArrayLike, own: Array) -> Any:
        """Return momentum * running + (1 - momentum) * own.

        The dtype is that of ``running``.
        """
        decayed = anp.multiply(running, momentum)
        return anp.add(
            decayed, ops.convert(anp.multiply(own, 1 - momentum), decayed.dtype)
        )

    running = moved(mean, own_mean), moved(variance, own_variance)
    return _affine(value, scale, bias), running


def _affine(x: Array, scale: ArrayLike | None, bias: ArrayLike | None) -> Array:
    """Return x * scale + bias, leaving out what is None."""
    x = x if scale is None else anp.multiply(x, scale)
    return x if bias is None else anp.add(x, bias)


__all__ = ["batch_norm", "group_norm", "layer_norm", "rms_norm", "standardize"]
