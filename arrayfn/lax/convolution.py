"""Convolutions under JAX's names, with any order of axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from arrayfn import dtypes
from arrayfn.compilation.operators import operator
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.ir import ArrayType
from arrayfn.lax._operands import typed
from arrayfn.lax._padding import Padding, pairs, per_axis
from arrayfn.lax.structure import pad, reshape, rev
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.primitives.contraction import precision_params
from arrayfn.primitives.convolution_forms import Roles
from arrayfn.primitives.padded_convolution import padded_convolution
from arrayfn.tracing import apply


class ConvDimensionNumbers(NamedTuple):
    """The positions of the axes of operand, kernel and output of a convolution.

    ``lhs_spec`` and ``out_spec`` list the positions of (batch, feature, spatial...) in
    operand and output. ``rhs_spec`` lists the positions of (output feature, input
    feature, spatial...) in the kernel.
    """

    lhs_spec: Sequence[int]
    rhs_spec: Sequence[int]
    out_spec: Sequence[int]


DimensionNumbers = ConvDimensionNumbers | tuple[str, str, str] | None


def conv_dimension_numbers(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    dimension_numbers: DimensionNumbers,
) -> ConvDimensionNumbers:
    """Convert ``dimension_numbers`` to positions of axes.

    Strings name the axes by letters, as in ("NHWC", "HWIO", "NHWC") for operand, kernel
    and output. N is the batch, C the feature, and I and O are the input and output
    feature of the kernel. Other letters are spatial axes. None means ("NCHW", "OIHW",
    "NCHW"), for any number of spatial axes. ConvDimensionNumbers are returned
    unchanged.

    Raises ShapeError if the shapes of operand and kernel have different ranks, or fewer
    than 2 axes, and ArgumentError for other strings.

    >>> conv_dimension_numbers((8, 32, 3), (3, 3, 16), ("NHC", "HIO", "NHC"))
    ConvDimensionNumbers(lhs_spec=(0, 2, 1), rhs_spec=(2, 1, 0), out_spec=(0, 2, 1))
    """
    ndim = len(tuple(lhs_shape))
    if len(tuple(rhs_shape)) != ndim or ndim < 2:
        raise ShapeError(
            "a convolution takes operand and kernel of the same number of axes, at "
            f"least 2, but was given shapes {tuple(lhs_shape)} and {tuple(rhs_shape)}",
            user_location(),
        )
    if dimension_numbers is None:
        axes = tuple(range(ndim))
        return ConvDimensionNumbers(axes, axes, axes)
    if isinstance(dimension_numbers, ConvDimensionNumbers):
        return dimension_numbers
    specs = tuple(dimension_numbers)
    if len(specs) != 3 or any(len(set(s)) != len(s) or len(s) != ndim for s in specs):
        raise ArgumentError(
            "dimension_numbers are three strings with a letter for each of "
            f"{ndim} axes, as ('NHWC', 'HWIO', 'NHWC'), not {specs}",
            user_location(),
        )
    lhs, rhs, out = specs
    spatial = [letter for letter in rhs if letter not in "OI"]
    positions: list[tuple[int, ...]] = []
    for spec, letters in ((lhs, "NC"), (rhs, "OI"), (out, "NC")):
        if sorted(spec) != sorted([*letters, *spatial]):
            raise ArgumentError(
                f"dimension_numbers {specs}: {spec!r} must have the letters "
                f"{', '.join([*letters, *spatial])}",
                user_location(),
            )
        positions.append(tuple(spec.index(letter) for letter in [*letters, *spatial]))
    return ConvDimensionNumbers(*positions)


@operator(
    name="lax.conv_general_dilated",
    static_argnames=(
        *("window_strides", "padding", "lhs_dilation", "rhs_dilation"),
        *("dimension_numbers", "feature_group_count", "batch_group_count"),
        *("precision", "preferred_element_type"),
    ),
    inline=True,
)
def conv_general_dilated(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: Padding,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: DimensionNumbers = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: str | None = None,
    preferred_element_type: DTypeLike = None,
) -> Array:
    """Convolve ``lhs`` with the kernel ``rhs``, which is not reversed.

    Args:
        lhs: batch, feature and any number of spatial axes, in the order given by
            ``dimension_numbers`` (see ``conv_dimension_numbers``).
        rhs: the kernel: output feature, input feature, spatial axes.
        window_strides: elements from one window to the next, for each spatial axis.
        padding: zeros before and after each spatial axis, or "SAME" or "VALID".
            Negative widths remove elements.
        lhs_dilation: 1 + the number of zeros put between neighbours of ``lhs``.
        rhs_dilation: the same for the kernel.
        dimension_numbers: the layouts of lhs, rhs and the output.
        feature_group_count: splits features into groups. Each group has its part of the
            kernel's output features. One group per feature is a depthwise convolution.
        batch_group_count: splits the batch into groups in the same way.
        precision: None for the full precision of the dtype, or "tf32" (see
            ``dot_general``).
        preferred_element_type: the dtype to compute in, and of the result.

    Returns:
        An array of ``preferred_element_type``, by default the operands' common dtype.

    Raises:
        ShapeError: shapes, groups or the numbers of entries do not fit.
        ArgumentError: ``padding``, ``dimension_numbers`` or numbers of groups of
            another form.

    >>> import numpy as np
    >>> x = np.arange(5.0).reshape(1, 1, 5)
    >>> conv_general_dilated(x, np.array([[[1.0, 0.0, -1.0]]]), (1,), "SAME")
    array([[[-1., -2., -2., -2.,  3.]]])
    """
    name = "conv_general_dilated"
    lhs, rhs = typed(name, lhs, rhs)
    if preferred_element_type is not None:
        wanted = dtypes.canonical(preferred_element_type)
        lhs, rhs = ops.convert(lhs, wanted), ops.convert(rhs, wanted)
    x, w = ops.type_of_operand(name, lhs), ops.type_of_operand(name, rhs)
    numbers = conv_dimension_numbers(x.shape, w.shape, dimension_numbers)
    _check_groups(x, w, numbers, feature_group_count, batch_group_count)
    spatial = tuple(numbers.lhs_spec)[2:]
    strides = per_axis(name, "strides", window_strides, len(spatial))
    steps = per_axis(name, "dilations", rhs_dilation, len(spatial))
    gaps = per_axis(name, "dilations", lhs_dilation, len(spatial))
    # The extents of the dilated operand, and below those of the dilated kernel.
    extents = tuple(
        max(0, (x.shape[axis] - 1) * gap + 1)
        for axis, gap in zip(spatial, gaps, strict=True)
    )
    if 0 in (w.shape[axis] for axis in tuple(numbers.rhs_spec)[2:]):
        raise ShapeError(
            f"{name}: the kernel ({w}) has no elements along a spatial axis; give it "
            "at least one along each",
            user_location(),
        )
    sizes = tuple(
        (w.shape[axis] - 1) * step + 1
        for axis, step in zip(tuple(numbers.rhs_spec)[2:], steps, strict=True)
    )
    config = [(0, 0, 0)] * x.ndim
    widths = pairs(name, padding, extents, sizes, strides)
    for axis, (low, high), gap in zip(spatial, widths, gaps, strict=True):
        # Remove elements for negative padding, and put zeros between elements. The
        # primitive itself adds the zeros of positive padding (``around``).
        config[axis] = (min(0, low), min(0, high), gap - 1)
    if any(entry != (0, 0, 0) for entry in config):
        lhs = pad(lhs, 0, config)
    around = tuple((max(0, low), max(0, high)) for low, high in widths)
    geometry = {
        "strides": strides,
        "dilations": steps,
        "padding": around,
        **precision_params(name, precision),
    }
    groups = (int(feature_group_count), int(batch_group_count))
    return _grouped(lhs, rhs, numbers, groups, geometry)


def _check_groups(
    x: ArrayType,
    w: ArrayType,
    numbers: ConvDimensionNumbers,
    features: int,
    batches: int,
) -> None:
    """Raise an error unless the groups divide the operand ``x`` and the kernel ``w``.

    There are ``features`` groups of features, or ``batches`` groups of the batch; one
    of the two numbers must be 1. Raises ArgumentError for bad numbers of groups, and
    ShapeError if a number does not divide its axis.
    """
    batch, feature = x.shape[numbers.lhs_spec[0]], x.shape[numbers.lhs_spec[1]]
    out, taken = w.shape[numbers.rhs_spec[0]], w.shape[numbers.rhs_spec[1]]
    if features < 1 or batches < 1 or (features > 1 and batches > 1):
        raise ArgumentError(
            "feature_group_count and batch_group_count must be 1 or more, and one of "
            f"them is 1, not {features} and {batches}",
            user_location(),
        )
    if feature != taken * features:
        raise ShapeError(
            f"conv_general_dilated: {x} has {feature} features, and the kernel ({w}) "
            f"takes {taken} in each of {features} groups",
            user_location(),
        )
    if out % features or out % batches or batch % batches:
        raise ShapeError(
            f"conv_general_dilated: {features} feature groups and {batches} batch "
            f"groups do not divide the output features ({out}) and the batch ({batch})",
            user_location(),
        )


def _grouped(
    lhs: Array,
    rhs: Array,
    numbers: ConvDimensionNumbers,
    groups: tuple[int, int],
    geometry: dict[str, Any],
) -> Array:
    """Apply the convolution primitive to ``lhs`` and ``rhs``.

    ``groups`` are the numbers of feature groups and batch groups, of which one is 1. If
    the other is larger, the grouped axes of operand, kernel and output are split into
    (group, element), and the group is a batch axis of the primitive. ``geometry`` has
    the strides, dilations, padding and precision, as parameters of the primitive.
    """
    # The positions of batch (n, m), features (c, f; o, i) and spatial axes.
    (n, c, *x_spatial), (o, i, *w_spatial), (m, f, *out_spatial) = numbers
    features, _ = groups
    count = max(groups)
    # The group, outer, inner and spatial axes of each array. The outer axes are the
    # batch, and the kernel's output features. The inner axes are contracted; those of
    # the output are its features.
    roles: tuple[Roles, Roles, Roles] = (
        ((), (n,), (c,), tuple(x_spatial)),
        ((), (o,), (i,), tuple(w_spatial)),
        ((), (m,), (f,), tuple(out_spatial)),
    )
    if count > 1:
        # Split each grouped axis into two: the group, and the elements in it.
        split_x = c if features > 1 else n
        lhs = _split(lhs, split_x, count)
        rhs = _split(rhs, o, count)
        roles = (
            _with_group(roles[0], split_x),
            _with_group(roles[1], o),
            _with_group(roles[2], f),
        )
    out = apply(
        padded_convolution,
        lhs,
        rhs,
        gives="output",
        lhs=roles[0],
        rhs=roles[1],
        out=roles[2],
        extents=(),
        **geometry,
    )
    if count > 1:
        shape = out.shape
        merged = (*shape[:f], math.prod(shape[f : f + 2]), *shape[f + 2 :])
        out = reshape(out, merged)
    return out


def _split(x: Array, axis: int, count: int) -> Array:
    """Reshape ``axis`` of x into two axes, (count, extent // count)."""
    shape = x.shape
    return reshape(x, (*shape[:axis], count, shape[axis] // count, *shape[axis + 1 :]))


def _with_group(roles: Roles, axis: int) -> Roles:
    """Return ``roles`` for an array with a new group axis at position ``axis``.

    Axes at or after this position move back by one.
    """
    _, outer, inner, spatial = (
        tuple(a + 1 if a >= axis else a for a in role) for role in roles
    )
    return (axis,), outer, inner, spatial


def conv(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: str,
    precision: str | None = None,
    preferred_element_type: DTypeLike = None,
) -> Array:
    """Convolve ``lhs`` (N, C, spatial...) with ``rhs`` (O, I, spatial...).

    The result is (N, O, spatial...). ``padding`` is "SAME" or "VALID". The other
    arguments and the errors are those of ``conv_general_dilated``.
    """
    return conv_general_dilated(
        lhs,
        rhs,
        window_strides,
        padding,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def conv_with_general_padding(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: Padding,
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    precision: str | None = None,
    preferred_element_type: DTypeLike = None,
) -> Array:
    """Convolve ``lhs`` (N, C, spatial...) with ``rhs`` (O, I, spatial...).

    The result is (N, O, spatial...). Padding and dilations are any of those of
    ``conv_general_dilated``, and so are the other arguments and the errors.
    """
    return conv_general_dilated(
        lhs,
        rhs,
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def conv_transpose(
    lhs: ArrayLike,
    rhs: ArrayLike,
    strides: Sequence[int],
    padding: Padding,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: DimensionNumbers = None,
    transpose_kernel: bool = False,
    precision: str | None = None,
    preferred_element_type: DTypeLike = None,
) -> Array:
    """Compute the transposed ("fractionally strided") convolution, which upsamples.

    With padding "SAME", an extent n becomes n * stride. With "VALID" it becomes n *
    stride + max(size - stride, 0) for a kernel of (dilated) extent ``size``. If
    ``padding`` has (low, high) pairs, these widths pad the operand after stride - 1
    zeros have been inserted between its elements. Without ``dimension_numbers``, the
    layouts are ("NHWC", "HWIO", "NHWC"), with any number of spatial axes. With
    ``transpose_kernel``, the kernel is reversed and its features are exchanged, which
    gives the gradient of the convolution with that kernel. The other arguments and the
    errors are those of ``conv_general_dilated``.

    >>> import numpy as np
    >>> x = np.array([1.0, 2.0]).reshape(1, 2, 1)
    >>> conv_transpose(x, np.ones((2, 1, 1)), (2,), "SAME").ravel()
    array([1., 1., 2., 2.])
    """
    name = "conv_transpose"
    lhs, rhs = typed(name, lhs, rhs)
    x, w = ops.type_of_operand(name, lhs), ops.type_of_operand(name, rhs)
    if dimension_numbers is None:  # N, spatial..., C and spatial..., I, O
        operand = (0, x.ndim - 1, *range(1, x.ndim - 1))
        kernel = (x.ndim - 1, x.ndim - 2, *range(x.ndim - 2))
        dimension_numbers = ConvDimensionNumbers(operand, kernel, operand)
    numbers = conv_dimension_numbers(x.shape, w.shape, dimension_numbers)
    spatial = tuple(numbers.rhs_spec)[2:]
    jumps = per_axis(name, "strides", strides, len(spatial))
    steps = per_axis(name, "dilations", rhs_dilation, len(spatial))
    widths: Padding = padding
    if isinstance(padding, str):
        sizes = [(w.shape[a] - 1) * s + 1 for a, s in zip(spatial, steps, strict=True)]
        widths = [
            _transpose_padding(size, stride, padding)
            for size, stride in zip(sizes, jumps, strict=True)
        ]
    if transpose_kernel:
        rhs = rev(rhs, spatial)
        out, taken, *_ = numbers.rhs_spec
        numbers = numbers._replace(rhs_spec=(taken, out, *spatial))
    # The stride is the dilation of the operand, and windows move by one element.
    return conv_general_dilated(
        lhs,
        rhs,
        window_strides=(1,) * len(spatial),
        padding=widths,
        lhs_dilation=jumps,
        rhs_dilation=steps,
        dimension_numbers=numbers,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def _transpose_padding(size: int, stride: int, padding: str) -> tuple[int, int]:
    """Return the padding (low, high) of the dilated operand along one axis.

    ``padding`` is "SAME" or "VALID"; ArgumentError for others. The dilated kernel has
    ``size`` elements, and ``stride`` is that of the transposed convolution. An operand
    of n elements is (n - 1) * stride + 1 long after dilation. The widths give results
    of n * stride elements ("SAME") or of n * stride + max(size - stride, 0) ("VALID").
    """
    if padding == "SAME":
        total = size + stride - 2
        before = size - 1 if stride > size - 1 else -(-total // 2)  # ceil(total / 2)
    elif padding == "VALID":
        total = size + stride - 2 + max(size - stride, 0)
        before = size - 1
    else:
        raise ArgumentError(
            "conv_transpose: padding must be 'SAME', 'VALID' or a (low, high) pair "
            f"for each axis, not {padding!r}",
            user_location(),
        )
    return before, total - before


__all__ = [
    "ConvDimensionNumbers",
    "conv",
    "conv_dimension_numbers",
    "conv_general_dilated",
    "conv_transpose",
    "conv_with_general_padding",
]
