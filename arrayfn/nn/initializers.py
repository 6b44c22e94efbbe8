"""Initializers: functions ``init(key, shape, dtype=float64)`` that return parameters.

Names are JAX's (``jax.nn.initializers``), and equal keys give JAX's numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

import arrayfn.numpy as anp
from arrayfn import documentation as _documentation
from arrayfn import dtypes, random
from arrayfn.dtypes import DType
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.ir.layout import Shape
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, DTypeLike

Axes = int | Sequence[int]


class Initializer(Protocol):
    """A function that makes parameters from a key, a shape and a dtype."""

    def __call__(self, key: Any, shape: Any, dtype: DTypeLike = None) -> Array:
        """Return parameters of ``shape``."""
        ...


def _dtype(given: DTypeLike, default: DTypeLike) -> DType:
    """Return ``given``, or ``default`` for None, or float64 if both are None."""
    chosen = default if given is None else given
    return dtypes.float64 if chosen is None else dtypes.canonical(chosen)


def _scaled(values: Array, scale: Any) -> Array:
    """Multiply ``values`` by ``scale``, converted to the dtype of ``values``."""
    return anp.multiply(values, ops.convert(scale, values.dtype))


def zeros(key: Any, shape: Any, dtype: DTypeLike = None) -> Array:
    """Return zeros of ``shape``; ``key`` is not used."""
    return anp.zeros(ops.as_shape("zeros", shape), dtype=_dtype(dtype, None))


def ones(key: Any, shape: Any, dtype: DTypeLike = None) -> Array:
    """Return ones of ``shape``; ``key`` is not used."""
    return anp.ones(ops.as_shape("ones", shape), dtype=_dtype(dtype, None))


def constant(value: Any, dtype: DTypeLike = None) -> Initializer:
    """Return an initializer that broadcasts ``value`` to the shape.

    ``dtype`` is the initializer's default.
    """
    default = dtype

    def init(key: Any, shape: Any, dtype: DTypeLike = None) -> Array:
        """Return an array of ``shape`` that is filled with the value."""
        filled = anp.astype(anp.asarray(value), _dtype(dtype, default))
        return anp.broadcast_to(filled, ops.as_shape("constant", shape))

    return init


def uniform(scale: float = 0.01, dtype: DTypeLike = None) -> Initializer:
    """Return an initializer of uniform random numbers in [0, scale).

    ``dtype`` is the initializer's default.
    """
    default = dtype

    def init(key: Any, shape: Any, dtype: DTypeLike = None) -> Array:
        """Draw numbers in [0, scale)."""
        return _scaled(random.uniform(key, shape, _dtype(dtype, default)), scale)

    return init


def normal(stddev: float = 0.01, dtype: DTypeLike = None) -> Initializer:
    """Return an initializer of normal random numbers with mean 0.

    ``stddev`` is the standard deviation, and ``dtype`` the initializer's default.
    """
    default = dtype

    def init(key: Any, shape: Any, dtype: DTypeLike = None) -> Array:
        """Draw normal numbers with this standard deviation."""
        return _scaled(random.normal(key, shape, _dtype(dtype, default)), stddev)

    return init


def truncated_normal(
    stddev: float = 0.01,
    dtype: DTypeLike = None,
    lower: float = -2.0,
    upper: float = 2.0,
) -> Initializer:
    """Return an initializer of normal numbers between two bounds, times ``stddev``.

    ``lower`` and ``upper`` bound the numbers before they are multiplied. ``dtype`` is
    the initializer's default.
    """
    default = dtype

    def init(key: Any, shape: Any, dtype: DTypeLike = None) -> Array:
        """Draw truncated normal numbers, times ``stddev``."""
        kind = _dtype(dtype, default)
        values = random.truncated_normal(key, lower, upper, shape, kind)
        return _scaled(values, stddev)

    return init


def _fans(
    shape: Shape, in_axis: Axes, out_axis: Axes, batch_axis: Axes
) -> tuple[float, float]:
    """Return the number of inputs of each output, and of outputs of each input.

    The extents of ``in_axis`` and ``out_axis`` count inputs and outputs. Axes of
    ``batch_axis`` count for neither, and all other axes for both: they are the window
    of a convolution. A kernel (3, 3, 16, 32) has 144 inputs and 288 outputs. Fewer than
    two axes raise ShapeError.
    """
    if len(shape) < 2:
        raise ShapeError(
            f"this initializer needs axes of inputs and of outputs, but the shape is "
            f"{shape}; give one of two axes or more, or use initializers.normal",
            user_location(),
        )

    def extent(axes: Axes) -> int:
        """Return the product of the extents of one or more axes."""
        several = [axes] if isinstance(axes, (int, np.integer)) else list(axes)
        return math.prod(shape[axis] for axis in several)

    size_in, size_out = extent(in_axis), extent(out_axis)
    field = math.prod(shape) / max(size_in * size_out * extent(batch_axis), 1)
    return size_in * field, size_out * field


def variance_scaling(
    scale: float,
    mode: str,
    distribution: str,
    in_axis: Axes = -2,
    out_axis: Axes = -1,
    batch_axis: Axes = (),
    dtype: DTypeLike = None,
) -> Initializer:
    """Return an initializer of random numbers with variance ``scale`` / n.

    ``mode`` says what n is: the number of inputs ("fan_in"), the number of outputs
    ("fan_out"), or their mean ("fan_avg", "fan_geo_avg" the geometric one).
    ``distribution`` is "truncated_normal", "normal" or "uniform". ``in_axis`` and
    ``out_axis`` are the axes of inputs and outputs. Axes of ``batch_axis`` count for
    neither, all others for both. ``dtype`` is the initializer's default. Another mode
    or distribution raises ArgumentError, and fewer than two axes raise ShapeError.

    >>> from arrayfn import random
    >>> init = variance_scaling(1.0, "fan_in", "normal")
    >>> float(init(random.key(0), (400, 100)).std().round(2))
    0.05
    """
    default = dtype
    modes = {
        "fan_in": lambda n, m: n,
        "fan_out": lambda n, m: m,
        "fan_avg": lambda n, m: (n + m) / 2,
        "fan_geo_avg": lambda n, m: math.sqrt(n * m),
    }
    if mode not in modes:
        raise ArgumentError(
            f"variance_scaling: mode must be one of {', '.join(modes)}, not {mode!r}",
            user_location(),
        )
    if distribution not in ("truncated_normal", "normal", "uniform"):
        raise ArgumentError(
            "variance_scaling: distribution must be truncated_normal, normal or "
            f"uniform, not {distribution!r}",
            user_location(),
        )

    def init(key: Any, shape: Any, dtype: DTypeLike = None) -> Array:
        """Draw random numbers with variance ``scale`` / n."""
        kind = _dtype(dtype, default)
        wanted = ops.as_shape("variance_scaling", shape)
        count = modes[mode](*_fans(wanted, in_axis, out_axis, batch_axis))
        deviation = math.sqrt(scale / max(count, 1.0))
        if distribution == "uniform":
            # Uniform numbers in [-1, 1) have the variance 1/3.
            drawn = random.uniform(key, wanted, kind, -1.0, 1.0)
            return drawn * (deviation * math.sqrt(3.0))
        if distribution == "normal":
            return random.normal(key, wanted, kind) * deviation
        # A normal number truncated to [-2, 2] has the standard deviation 0.8796...
        drawn = random.truncated_normal(key, -2.0, 2.0, wanted, kind)
        return drawn * (deviation / 0.87962566103423978)

    return init


def orthogonal(
    scale: float = 1.0, column_axis: int = -1, dtype: DTypeLike = None
) -> Initializer:
    """Return an initializer of random orthogonal matrices, times ``scale``.

    See Saxe et al., Exact solutions to the nonlinear dynamics of learning, 2014.
    ``column_axis`` is the axis of columns, and all other axes together are the rows.
    The vectors of the shorter side are orthonormal. ``dtype`` is the initializer's
    default. Fewer than two axes raise ShapeError.

    >>> from arrayfn import random
    >>> w = orthogonal()(random.key(0), (3, 2))
    >>> (w.T @ w).round(6) + 0.0
    array([[1., 0.],
           [0., 1.]])
    """
    default = dtype

    def init(key: Any, shape: Any, dtype: DTypeLike = None) -> Array:
        """Draw a random matrix with orthonormal rows or columns, times ``scale``."""
        kind = _dtype(dtype, default)
        wanted = ops.as_shape("orthogonal", shape)
        if len(wanted) < 2:
            raise ShapeError(
                f"initializers.orthogonal takes a shape of two axes or more, not "
                f"{wanted}",
                user_location(),
            )
        axis = ops.normalize_axis("orthogonal", column_axis, len(wanted))
        columns = wanted[axis]
        rows = math.prod(wanted) // max(columns, 1)
        matrix = random.orthogonal(key, rows, (), kind, columns)
        rest = wanted[:axis] + wanted[axis + 1 :]
        return anp.moveaxis(anp.reshape(matrix * scale, (*rest, columns)), -1, axis)

    return init


def delta_orthogonal(
    scale: float = 1.0, column_axis: int = -1, dtype: DTypeLike = None
) -> Initializer:
    """Return an initializer of kernels with an orthogonal matrix at their centre.

    All other elements are zeros. See Xiao et al., Dynamical isometry and a mean field
    theory of CNNs, 2018. Shapes are [*window, inputs, outputs], with one to three
    window axes and no more inputs than outputs; others raise ShapeError. ``scale`` and
    ``column_axis`` are those of ``orthogonal``, and ``dtype`` is the initializer's
    default.
    """
    default = dtype

    def init(key: Any, shape: Any, dtype: DTypeLike = None) -> Array:
        """Return a convolution kernel with an orthogonal matrix at its centre."""
        kind = _dtype(dtype, default)
        wanted = ops.as_shape("delta_orthogonal", shape)
        if not 3 <= len(wanted) <= 5 or wanted[-2] > wanted[-1]:
            raise ShapeError(
                "delta_orthogonal takes a shape [*window, inputs, outputs] "
                f"with inputs <= outputs, not {wanted}",
                user_location(),
            )
        matrix = orthogonal(scale, column_axis)(key, wanted[-2:], kind)
        middle = tuple((extent - 1) // 2 for extent in wanted[:-2])
        return anp.at(anp.zeros(wanted, dtype=kind))[middle].set(matrix)

    return init


def glorot_uniform(
    in_axis: Axes = -2,
    out_axis: Axes = -1,
    batch_axis: Axes = (),
    dtype: DTypeLike = None,
) -> Initializer:
    """Return an initializer of uniform numbers with variance 2 / (inputs + outputs).

    See Glorot and Bengio, Understanding the difficulty of training deep feedforward
    neural networks, 2010. The axes and ``dtype`` are those of ``variance_scaling``.
    """
    axes = in_axis, out_axis, batch_axis
    return variance_scaling(1.0, "fan_avg", "uniform", *axes, dtype)


def glorot_normal(
    in_axis: Axes = -2,
    out_axis: Axes = -1,
    batch_axis: Axes = (),
    dtype: DTypeLike = None,
) -> Initializer:
    """Return an initializer of truncated normal numbers, by Glorot's rule.

    Their variance is 2 / (inputs + outputs). The axes and ``dtype`` are those of
    ``variance_scaling``.
    """
    axes = in_axis, out_axis, batch_axis
    return variance_scaling(1.0, "fan_avg", "truncated_normal", *axes, dtype)


def lecun_uniform(
    in_axis: Axes = -2,
    out_axis: Axes = -1,
    batch_axis: Axes = (),
    dtype: DTypeLike = None,
) -> Initializer:
    """Return an initializer of uniform numbers with variance 1 / inputs.

    See LeCun et al., Efficient backprop, 1998. The axes and ``dtype`` are those of
    ``variance_scaling``.
    """
    axes = in_axis, out_axis, batch_axis
    return variance_scaling(1.0, "fan_in", "uniform", *axes, dtype)


def lecun_normal(
    in_axis: Axes = -2,
    out_axis: Axes = -1,
    batch_axis: Axes = (),
    dtype: DTypeLike = None,
) -> Initializer:
    """Return an initializer of truncated normal numbers with variance 1 / inputs.

    The axes and ``dtype`` are those of ``variance_scaling``.
    """
    axes = in_axis, out_axis, batch_axis
    return variance_scaling(1.0, "fan_in", "truncated_normal", *axes, dtype)


def he_uniform(
    in_axis: Axes = -2,
    out_axis: Axes = -1,
    batch_axis: Axes = (),
    dtype: DTypeLike = None,
) -> Initializer:
    """Return an initializer of uniform numbers with variance 2 / inputs.

    See He et al., Delving deep into rectifiers, 2015. The axes and ``dtype`` are those
    of ``variance_scaling``.
    """
    axes = in_axis, out_axis, batch_axis
    return variance_scaling(2.0, "fan_in", "uniform", *axes, dtype)


def he_normal(
    in_axis: Axes = -2,
    out_axis: Axes = -1,
    batch_axis: Axes = (),
    dtype: DTypeLike = None,
) -> Initializer:
    """Return an initializer of truncated normal numbers with variance 2 / inputs.

    The axes and ``dtype`` are those of ``variance_scaling``.
    """
    axes = in_axis, out_axis, batch_axis
    return variance_scaling(2.0, "fan_in", "truncated_normal", *axes, dtype)


xavier_uniform = glorot_uniform
xavier_normal = glorot_normal
kaiming_uniform = he_uniform
kaiming_normal = he_normal

__all__ = [
    "Initializer",
    "constant",
    "delta_orthogonal",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "kaiming_normal",
    "kaiming_uniform",
    "lecun_normal",
    "lecun_uniform",
    "normal",
    "ones",
    "orthogonal",
    "truncated_normal",
    "uniform",
    "variance_scaling",
    "xavier_normal",
    "xavier_uniform",
    "zeros",
]

_documentation.attach(__name__)
