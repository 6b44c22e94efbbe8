"""conv_general: products of a kernel with the windows of an operand.

It is a ``dot_general`` whose operands also share *spatial* axes: the kernel's axes
slide over the operand's. The axes of each array have four *roles*, in this order:

* of the operand: group, batch, contracted, spatial;
* of the kernel: group, free, contracted, spatial (the window);
* of the output: group, batch, free, spatial (the number of windows).

Each role is a tuple of axes; groups pair as dot_general's batch axes do. Both
cotangents of a convolution are convolutions with the roles exchanged, and batching adds
an axis to a role. All windows lie inside the operand: ``pad`` makes borders, and gaps
between its elements. The kernel is not reversed (a correlation). float16 and bfloat16
are multiplied and summed in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ShapeError
from arrayfn.ir import ArrayType, Atom
from arrayfn.ir.layout import Shape
from arrayfn.primitives import contraction, conversion, families, slicing, views
from arrayfn.primitives.base import (
    Array,
    Atoms,
    Batched,
    Composition,
    Dims,
    Linear,
    Operands,
    Primitive,
    Sample,
    Tangents,
    Tolerance,
    value_of,
)
from arrayfn.primitives.convolution_forms import (
    GROUP,
    INNER,
    OUTER,
    SHORT_SUMS,
    SPATIAL,
    Axes,
    Form,
    Roles,
    convolution_factors,
    extents_of,
    product,
    sum_of_slices,
)
from arrayfn.primitives.emitters import Emitter
from arrayfn.primitives.rules import jvp_of_product, mapped_axes_first, shifted
from arrayfn.primitives.windowed import (
    SlidingWindows,
    overlap_add,
    spread_config,
)


def _check_roles(name: str, type: ArrayType, roles: Roles) -> None:
    """Raise ShapeError unless ``roles`` name each axis of an array exactly once.

    ``type`` is the array's type, and ``name`` the array's name in the message.
    """
    axes = sorted(axis for role in roles for axis in role)
    if axes != list(range(type.ndim)):
        raise ShapeError(
            f"conv_general: roles {roles} do not name each axis of the {name} "
            f"({type}) once"
        )


def _types(x: ArrayType, w: ArrayType, **params: Any) -> ArrayType:
    """Type rule: groups and batch of ``x``, free axes of ``w``, numbers of windows.

    These are the extents of the output, at the axes that its roles say. Raises
    ShapeError unless group and contracted axes of ``x``, the operand, and ``w``, the
    kernel, have equal extents. ``params`` are the fields of a ``Form``.
    """
    form = Form(**params)
    lhs, rhs, out = form.lhs, form.rhs, form.out
    strides, dilations = form.strides, form.dilations
    families.common_dtype("conv_general", (x, w), dtypes.NUMBERS)
    _check_roles("operand", x, lhs)
    _check_roles("kernel", w, rhs)
    counts = {len(lhs[SPATIAL]), len(rhs[SPATIAL]), len(strides), len(dilations)}
    if len(counts) != 1:
        raise ShapeError(
            f"conv_general: spatial axes {lhs[SPATIAL]} of {x} take as many of the "
            f"kernel's ({rhs[SPATIAL]} of {w}), strides {strides} and dilations "
            f"{dilations}"
        )
    for role, role_name in ((GROUP, "group"), (INNER, "contracted")):
        if extents_of(x, lhs[role]) != extents_of(w, rhs[role]):
            raise ShapeError(
                f"conv_general: {role_name} axes differ: {lhs[role]} of {x} and "
                f"{rhs[role]} of {w}"
            )
    windows = form.windows(w)
    windows.check("conv_general", x)
    window_shape = windows.shape(x.shape)
    result = [0] * sum(len(role) for role in out)
    extents_by_role = (
        extents_of(x, lhs[GROUP]),
        extents_of(x, lhs[OUTER]),
        extents_of(w, rhs[OUTER]),
        tuple(window_shape[axis] for axis in lhs[SPATIAL]),
    )
    if [len(role) for role in out] != [len(extents) for extents in extents_by_role]:
        raise ShapeError(
            f"conv_general: roles {out} of the output do not fit those of {x} and {w}"
        )
    for role, extents in zip(out, extents_by_role, strict=True):
        for axis, n in zip(role, extents, strict=True):
            if not 0 <= axis < len(result):
                raise ShapeError(f"conv_general: the output has no axis {axis}: {out}")
            result[axis] = n
    type = x.with_shape(result)
    _check_roles("output", type, out)
    return type


def _reference(x: Array, w: Array, **params: Any) -> Array:
    """Compute the convolution by ``np.einsum``, over all windows of the operand ``x``.

    ``params`` are the fields of a ``Form``.
    """
    form = Form(**params)
    lhs, rhs, out = form.lhs, form.rhs, form.out
    compute_dtype = dtypes.compute_dtype(x.dtype)
    geometry = form.windows(ArrayType(w.shape, w.dtype))
    windows = geometry.of(x.astype(compute_dtype))
    # einsum labels. ``windows`` has the axes of x, then one inside windows for each
    # spatial axis. Axes of w that are paired get the label of their partner.
    left = list(range(windows.ndim))
    right = [windows.ndim + axis for axis in range(w.ndim)]
    for role in (GROUP, INNER):
        for a, b in zip(lhs[role], rhs[role], strict=True):
            right[b] = left[a]
    for a, b in zip(lhs[SPATIAL], rhs[SPATIAL], strict=True):
        right[b] = x.ndim + geometry.axes.index(a)
    result = [0] * sum(len(role) for role in out)
    sources = (lhs[GROUP], lhs[OUTER], None, lhs[SPATIAL])
    for role, axes in zip(out, sources, strict=True):
        labels = [right[axis] for axis in rhs[OUTER]] if axes is None else list(axes)
        for axis, label in zip(role, labels, strict=True):
            result[axis] = label
    product = np.einsum(
        windows, left, w.astype(compute_dtype), right, result, optimize=True
    )
    return np.asarray(product).astype(x.dtype)


def _transpose(cotangents: Tangents, inputs: Operands, **params: Any) -> Tangents:
    """Transpose rule: the cotangent of the operand or kernel, whichever is linear.

    For ``y[i] = sum_k x[i + k] * w[k]``: ``ct_x[j] = sum_k ct[j - k] * w[k]`` and
    ``ct_w[k] = sum_i x[i + k] * ct[i]``.
    """
    (ct,), (x, w) = cotangents, inputs
    assert ct is not None
    form = Form(**params)
    if isinstance(x, Linear):
        return [to_operand(ct, x.type, value_of(w, "conv_general"), form), None]
    assert isinstance(w, Linear)
    return [None, to_kernel(ct, x, w.type, form)]


def to_operand(ct: Atom, x: ArrayType, w: Atom, form: Form) -> Atom:
    """Return the operand's cotangent: a convolution of ``ct`` by the reversed kernel.

    ``ct`` is padded with zeros at its borders, and between its elements if the
    convolution has strides.

    Args:
        ct: the output's cotangent.
        x: the operand's type.
        w: the kernel.
        form: the params of the convolution that is transposed.
    """
    lhs, rhs, out = form.lhs, form.rhs, form.out
    strides, dilations = form.strides, form.dilations
    if not ct.type.size:
        return views.zeros(x)
    if max(strides, default=1) > 1 and math.prod(extents_of(w.type, rhs[OUTER])) > 1:
        # Most of the dilated cotangent would be zeros.
        return _to_operand_by_windows(ct, x, w, form)
    counts = extents_of(ct.type, out[SPATIAL])
    sizes = extents_of(w.type, rhs[SPATIAL])
    # The windows of the convolution, along the axes of the cotangent.
    around = SlidingWindows(out[SPATIAL], sizes, strides, dilations)
    # The operand's spatial extents, by axis of the cotangent; other axes need none.
    extents = dict(zip(out[SPATIAL], extents_of(x, lhs[SPATIAL]), strict=True))
    shape = tuple(extents.get(axis, 0) for axis in range(ct.type.ndim))
    config = spread_config(ct.type.ndim, around, shape, counts)
    if any(entry != (0, 0, 0) for entry in config):
        ct = slicing.pad(ct, conversion.literal(0, ct.type.dtype), config=config)
    if rhs[SPATIAL]:
        w = views.rev(w, axes=tuple(sorted(rhs[SPATIAL])))
    return conv_general(
        ct,
        w,
        lhs=out,
        rhs=(rhs[GROUP], rhs[INNER], rhs[OUTER], rhs[SPATIAL]),
        out=(lhs[GROUP], lhs[OUTER], lhs[INNER], lhs[SPATIAL]),
        strides=(1,) * len(strides),
        dilations=dilations,
    )


def _to_operand_by_windows(ct: Atom, x: ArrayType, w: Atom, form: Form) -> Atom:
    """Return the operand's cotangent as the sum of the cotangents of its windows.

    A matrix product gives the cotangent of each element of each window, and
    ``overlap_add`` sums the elements of overlapping windows. The arguments are those of
    ``to_operand``.
    """
    lhs, rhs, out, geometry = form.lhs, form.rhs, form.out, form.windows(w.type)
    windows = contraction.dot_general(
        ct,
        w,
        contract=(out[INNER], rhs[OUTER]),
        batch=(out[GROUP], rhs[GROUP]),
    )
    # The axes of ``windows`` are: groups, the cotangent's other axes and the kernel's
    # other axes, the latter two in ascending order. ``order`` names these axes as the
    # operand's; axes from x.ndim on are those inside windows.
    axis_of = dict(zip(out[OUTER], lhs[OUTER], strict=True))
    axis_of |= zip(out[SPATIAL], lhs[SPATIAL], strict=True)
    tap_axis_of = dict(zip(rhs[INNER], lhs[INNER], strict=True))
    for axis, lhs_axis in zip(rhs[SPATIAL], lhs[SPATIAL], strict=True):
        tap_axis_of[axis] = x.ndim + geometry.axes.index(lhs_axis)
    order = (
        *lhs[GROUP],
        *(axis_of[axis] for axis in sorted(axis_of)),
        *(tap_axis_of[axis] for axis in sorted(tap_axis_of)),
    )
    return overlap_add(windows, x, geometry, order)


def to_kernel(ct: Atom, x: Atom, w: ArrayType, form: Form) -> Atom:
    """Return the kernel's cotangent: a convolution of the operand by ``ct``.

    Strides and dilations are exchanged: ``ct`` slides over the operand by the
    dilations, and its elements lie apart by the strides.

    Args:
        ct: the output's cotangent.
        x: the operand.
        w: the kernel's type.
        form: the params of the convolution that is transposed.
    """
    # These have the axes of an array by role: group, contracted (INNER), only in this
    # operand and the output (OUTER), and spatial.
    lhs, rhs, out = form.lhs, form.rhs, form.out
    strides, dilations = form.strides, form.dilations
    if not ct.type.size:
        return views.zeros(w)
    limit = list(x.type.shape)
    parts = zip(
        lhs[SPATIAL],
        extents_of(ct.type, out[SPATIAL]),
        extents_of(w, rhs[SPATIAL]),
        strides,
        dilations,
        strict=True,
    )
    # Cut off elements at the end of the operand that no window reaches.
    for axis, count, size, stride, dilation in parts:
        limit[axis] = (count - 1) * stride + (size - 1) * dilation + 1
    if tuple(limit) != x.type.shape:
        x = slicing.block(x, (0,) * x.type.ndim, limit)
    return conv_general(
        x,
        ct,
        lhs=(lhs[GROUP], lhs[INNER], lhs[OUTER], lhs[SPATIAL]),
        rhs=(out[GROUP], out[INNER], out[OUTER], out[SPATIAL]),
        out=(rhs[GROUP], rhs[INNER], rhs[OUTER], rhs[SPATIAL]),
        strides=dilations,
        dilations=strides,
    )


def with_mapped(roles: Roles, role: int) -> Roles:
    """Return ``roles`` for the array with a mapped axis 0, which gets role ``role``.

    >>> with_mapped(((), (0,), (1,), (2,)), GROUP)
    ((0,), (1,), (2,), (3,))
    """
    with_axis = [shifted(axes) for axes in roles]
    with_axis[role] = (0, *with_axis[role])
    return with_axis[0], with_axis[1], with_axis[2], with_axis[3]


def _batch(
    axis_size: int,
    inputs: Atoms,
    dims: Dims,
    *,
    lhs: Roles,
    rhs: Roles,
    out: Roles,
    **params: Any,
) -> Batched:
    """Batching rule: the mapped axis becomes a group axis if both operands have it.

    If only ``x`` has the mapped axis, it becomes a batch axis; if only ``w`` has it, a
    free axis.
    """
    x, w = mapped_axes_first(inputs, dims)
    both_mapped = dims[0] is not None and dims[1] is not None
    if dims[0] is not None:
        lhs = with_mapped(lhs, GROUP if both_mapped else OUTER)
    if dims[1] is not None:
        rhs = with_mapped(rhs, GROUP if both_mapped else OUTER)
    out = with_mapped(
        out, GROUP if both_mapped else OUTER if dims[1] is None else INNER
    )
    return [conv_general(x, w, lhs=lhs, rhs=rhs, out=out, **params)], [0]


# As other primitives.


def _expand(x: Atom, w: Atom, **params: Any) -> Atom:
    """Emit the convolution of ``x`` by kernel ``w`` as other primitives.

    If only a short window is contracted, emits a sum of slices, else windows and a
    matrix product.
    """
    type, form = _types(x.type, w.type, **params), Form(**params)
    inner = math.prod(extents_of(w.type, form.rhs[INNER]))
    window = math.prod(extents_of(w.type, form.rhs[SPATIAL]))
    if not type.size or not inner:
        return views.zeros(type)
    if inner == 1 and window <= SHORT_SUMS:
        return sum_of_slices(x, w, type, form)
    return product(x, w, type, form)


# Samples.

Sides = tuple[Roles, Roles, Roles]
SIDES_NHWC: Final[Sides] = (
    ((), (0,), (3,), (1, 2)),
    ((), (3,), (2,), (0, 1)),
    ((), (0,), (3,), (1, 2)),
)
SIDES_NCH: Final[Sides] = (
    ((), (0,), (1,), (2,)),
    ((), (0,), (1,), (2,)),
    ((), (0,), (1,), (2,)),
)
_GROUPED: Final[Sides] = (
    ((1,), (0,), (2,), (3,)),
    ((0,), (1,), (2,), (3,)),
    ((1,), (0,), (2,), (3,)),
)
_ROWS: Final[Roles] = ((), (0,), (1,), ())
_PLAIN: Final[Sides] = (_ROWS, _ROWS, _ROWS)


def _samples() -> Iterable[Sample]:
    """Yield samples of several layouts, groups, strides and dtypes, for table tests."""

    def sample(
        shapes: tuple[Shape, Shape],
        sides: Sides,
        strides: Axes,
        dilations: Axes,
        seed: int,
        dtype: dtypes.DType = dtypes.float32,
    ) -> Sample:
        """Make a sample of random arrays with these shapes and params.

        ``sides`` are the roles of operand, kernel and output.
        """
        x, w = (
            families.random_array(dtype, shape, seed + k, -1.5, 1.5)
            for k, shape in enumerate(shapes)
        )
        names: dict[str, Callable[..., Any] | Any] = dict(
            zip(("lhs", "rhs", "out"), sides, strict=True)
        )
        return Sample((x, w), {**names, "strides": strides, "dilations": dilations})

    yield sample(((2, 5, 6, 2), (3, 2, 2, 3)), SIDES_NHWC, (1, 2), (1, 2), seed=81)
    yield sample(((1, 4, 3, 2), (1, 1, 2, 3)), SIDES_NHWC, (2, 1), (1, 1), seed=82)
    yield sample(((2, 2, 3, 5), (2, 2, 3, 2)), _GROUPED, (2,), (1,), seed=83)
    yield sample(((2, 3, 1, 7), (3, 2, 1, 3)), _GROUPED, (1,), (2,), seed=84)
    yield sample(((3, 4), (2, 4)), _PLAIN, (), (), seed=85)
    for position, dtype in enumerate(dtypes.COMPUTED):
        if dtype != dtypes.bool_:
            shapes = ((2, 2, 6), (3, 2, 3))
            yield sample(shapes, SIDES_NCH, (1,), (1,), seed=86 + position, dtype=dtype)


conv_general = Primitive(
    name="conv_general",
    factors=convolution_factors,
    family="contraction",
    types=_types,
    reference=_reference,
    kernel=Composition(_expand),
    jvp=jvp_of_product(Emitter("conv_general")),
    transpose=_transpose,
    batch=_batch,
    samples=_samples,
    tolerance=Tolerance(float32=1e-5, float64=1e-14),
    doc="The sum of products of the kernel and each window of the operand, over the "
    "contracted axes and the window. Each axis has a role.",
)
