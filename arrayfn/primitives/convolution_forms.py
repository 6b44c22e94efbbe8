"""A convolution as other primitives: a sum of slices, or windows and a matrix product.

Roles of axes are those of ``convolution``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Atom
from arrayfn.ir.layout import Shape, ascending, other_axes
from arrayfn.primitives import contraction, conversion, slicing, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import Factors
from arrayfn.primitives.windowed import SlidingWindows, sliding_windows
from arrayfn.records import frozen

Axes = tuple[int, ...]
Roles = tuple[Axes, Axes, Axes, Axes]

GROUP: Final = 0
OUTER: Final = 1  # the operand's batch, the kernel's free axes
INNER: Final = 2  # contracted; of the output, the kernel's free axes
SPATIAL: Final = 3

SHORT_SUMS: Final = 32
"""The largest window whose sum of slices is one kernel."""


ARRAYS: Final[dict[str, tuple[str, str]]] = {
    "output": ("operand", "kernel"),
    "operand": ("output", "kernel"),
    "kernel": ("operand", "output"),
}
"""For each array of a convolution, the two others, from which it is computed."""


def convolution_factors(
    first: ArrayType,
    second: ArrayType,
    *,
    lhs: Any,
    rhs: Any,
    out: Any,
    gives: str = "output",
    **params: Any,
) -> Factors:
    """The sharding rule: a mesh axis can cut groups, batch, and channels.

    Spatial axes stay whole. Factors that the result does not have are summed.

    ``lhs``, ``rhs`` and ``out`` are the roles of the axes of the convolution's operand,
    kernel and output. ``gives`` says which of these arrays is the result, so that the
    rule also serves the cotangents. ``first`` and ``second`` are the types of the two
    other arrays, in the order of ``ARRAYS``.
    """
    roles = {"operand": lhs, "kernel": rhs, "output": out}
    # The arrays and roles whose axes are the same factors.
    shared = (
        (("operand", GROUP), ("kernel", GROUP), ("output", GROUP)),
        (("operand", OUTER), ("output", OUTER)),
        (("operand", INNER), ("kernel", INNER)),
        (("kernel", OUTER), ("output", INNER)),
    )
    dims: dict[str, list[int | None]] = {
        name: [None] * sum(map(len, axes)) for name, axes in roles.items()
    }
    # Number the factors. ``dims`` gets the factor of each axis of each array.
    count = 0
    for roles_of_factor in shared:
        for name, role in roles_of_factor:
            for k, axis in enumerate(roles[name][role]):
                dims[name][axis] = count + k
        first_name, first_role = roles_of_factor[0]
        count += len(roles[first_name][first_role])
    inputs = tuple(tuple(dims[name]) for name in ARRAYS[gives])
    result = tuple(dims[gives])
    used = {f for input_factors in inputs for f in input_factors if f is not None}
    return Factors(inputs, (result,), dict.fromkeys(used - {*result}, "sum"))


def extents_of(type: ArrayType, axes: Axes) -> Shape:
    """Return the extents of ``type`` along ``axes``, in the order of ``axes``."""
    return tuple(type.shape[axis] for axis in axes)


@frozen(slots=True)
class Form:
    """The params of a convolution: roles of axes, strides and dilations."""

    lhs: Roles
    rhs: Roles
    out: Roles
    strides: Axes
    dilations: Axes

    def params(self) -> dict[str, Any]:
        """Return the fields as params of a conv_general equation."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def windows(self, kernel: ArrayType) -> SlidingWindows:
        """Return the windows of the operand for a kernel of this type.

        Their axes are the operand's spatial axes, in ascending order.
        """
        sizes = extents_of(kernel, self.rhs[SPATIAL])
        parts = sorted(
            zip(self.lhs[SPATIAL], sizes, self.strides, self.dilations, strict=True)
        )
        # The axes of all parts, then the sizes, the strides and the dilations.
        return SlidingWindows(*zip(*parts, strict=True) if parts else ((),) * 4)


def sum_of_slices(x: Atom, w: Atom, type: ArrayType, form: Form) -> Atom:
    """Emit a convolution that contracts only the window, as a sum of slices.

    Each term is a slice of the operand times one element of the kernel's window, a
    "tap". The terms fuse into one kernel that reads the operand directly.

    Args:
        x: the operand.
        w: the kernel, with one element along contracted axes.
        type: the output's type.
        form: roles of the axes, strides and dilations.
    """
    lhs, rhs, out, geometry = form.lhs, form.rhs, form.out, form.windows(w.type)
    # The output's axis of each axis of x and of w.
    x_axes = [0] * x.type.ndim
    for role in (GROUP, OUTER, SPATIAL):
        for axis, position in zip(lhs[role], out[role], strict=True):
            x_axes[axis] = position
    w_axes = [0] * w.type.ndim
    for role, target in ((GROUP, GROUP), (OUTER, INNER)):
        for axis, position in zip(rhs[role], out[target], strict=True):
            w_axes[axis] = position
    ones = (1,) * len(geometry.axes)
    # ``tap`` below is an index along the operand's spatial axes. The kernel's spatial
    # axes may have another order: ``position`` is the place of each in ``index``.
    kernel_axis = dict(zip(lhs[SPATIAL], rhs[SPATIAL], strict=True))
    pairs = sorted(
        (kernel_axis[axis], size)
        for axis, size in zip(geometry.axes, geometry.sizes, strict=True)
    )
    position = {axis: k for k, (axis, _) in enumerate(pairs)}
    of_kernel = SlidingWindows(
        tuple(axis for axis, _ in pairs), tuple(n for _, n in pairs), ones, ones
    )
    # float16 and bfloat16 are computed in float32 and rounded once.
    compute_dtype = dtypes.compute_dtype(type.dtype)
    w = conversion.as_dtype(w, compute_dtype)
    total: Atom | None = None
    for tap in np.ndindex(*geometry.sizes):
        left = _drop_and_broadcast(geometry.tap(x, tap), lhs[INNER], x_axes, type.shape)
        index = [0] * len(tap)
        for axis, k in zip(geometry.axes, tap, strict=True):
            index[position[kernel_axis[axis]]] = k
        right = _element(w, of_kernel, index)
        right = _drop_and_broadcast(
            right, (*rhs[INNER], *rhs[SPATIAL]), w_axes, type.shape
        )
        term = e.mul(conversion.as_dtype(left, compute_dtype), right)
        total = term if total is None else e.add(total, term)
    assert total is not None
    return conversion.as_dtype(total, type.dtype)


def _element(w: Atom, taps: SlidingWindows, index: Sequence[int]) -> Atom:
    """Return the slice of the kernel ``w`` at one index of its window.

    ``taps.axes`` are the kernel's spatial axes, and ``index`` has the index along each.
    These axes have extent 1 in the result.
    """
    start = dict(zip(taps.axes, index, strict=True))
    begin = [start.get(axis, 0) for axis in range(w.type.ndim)]
    limit = [start[k] + 1 if k in start else n for k, n in enumerate(w.type.shape)]
    return slicing.block(w, begin, limit)


def _drop_and_broadcast(
    x: Atom, dropped: Axes, positions: Sequence[int], shape: Shape
) -> Atom:
    """Drop the axes ``dropped``, of extent 1, and broadcast ``x`` to ``shape``.

    Each other axis k becomes axis ``positions[k]`` of the result.
    """
    kept = other_axes(x.type.ndim, dropped)
    order = sorted(kept, key=lambda axis: positions[axis])
    x = views.transpose(x, permutation=(*order, *dropped))
    extents = tuple(x.type.shape[: len(kept)])
    x = views.reshape(x, shape=extents)
    return views.broadcast_in_dim(
        x, shape=shape, axes=tuple(positions[axis] for axis in order)
    )


def product(x: Atom, w: Atom, type: ArrayType, form: Form) -> Atom:
    """Emit a convolution as windows side by side (im2col) and a matrix product.

    The axes of the windows are ordered so that the product needs no other copy:
    contracted axes as in the kernel, free axes as in the output. Axis ``ndim + k`` of
    the windows (``ndim``: the operand's number of axes) is the axis inside windows
    along the k-th spatial axis. ``type`` is the output's type.
    """
    lhs, rhs, out, geometry = form.lhs, form.rhs, form.out, form.windows(w.type)
    ndim = x.type.ndim
    spatial = dict(zip(lhs[SPATIAL], rhs[SPATIAL], strict=True))
    # For each axis of the windows, the output's axis, or, in ``contracted``, the
    # kernel's axis.
    output_axis: dict[int, int] = {}
    for role in (GROUP, OUTER, SPATIAL):
        output_axis.update(zip(lhs[role], out[role], strict=True))
    contracted = dict(zip(lhs[INNER], rhs[INNER], strict=True))
    contracted |= {ndim + k: spatial[axis] for k, axis in enumerate(geometry.axes)}
    groups = sorted(lhs[GROUP], key=output_axis.__getitem__)
    free = sorted(
        (a for a in (*lhs[OUTER], *lhs[SPATIAL])), key=output_axis.__getitem__
    )
    contracted_axes = sorted(contracted, key=contracted.__getitem__)
    # The kernel is the left operand if its free axes precede some free axes of the
    # windows in the output. Free axes of the windows before the kernel's become batch
    # axes of the product, over which the kernel is repeated.
    kernel_axes = sorted(out[INNER])
    leading_free = [a for a in free if kernel_axes and output_axis[a] < kernel_axes[0]]
    swapped = bool(kernel_axes) and len(leading_free) < len(free)
    batched = leading_free if swapped else []
    other_free = [a for a in free if a not in batched]
    extents = (*geometry.shape(x.type.shape), *geometry.sizes)
    orders = [
        (*groups, *batched, *other_free, *contracted_axes),
        (*groups, *batched, *contracted_axes, *other_free),
    ]
    # BLAS multiplies windows in both orders. Choose the one that is faster to copy.
    axes = geometry.axes
    order = max(orders, key=lambda order: _innermost(order, extents, ndim, axes))
    windows = _windows(x, geometry, order)
    position = {axis: k for k, axis in enumerate(order)}
    kernel_groups = [rhs[GROUP][lhs[GROUP].index(a)] for a in groups]
    w = _repeated(w, [extents[a] for a in batched])
    shift = len(batched)  # the new axes of the kernel precede its own
    kernel_contract = tuple(contracted[a] + shift for a in contracted_axes)
    kernel_batch = (*(g + shift for g in kernel_groups), *range(shift))
    windows_contract = tuple(position[a] for a in contracted_axes)
    windows_batch = tuple(position[a] for a in (*groups, *batched))
    # dot_general keeps the order of free axes. These are the output's axes for them.
    of_kernel = [out[INNER][k] for k in ascending(rhs[OUTER])]
    of_windows = [output_axis[a] for a in order if a in other_free]
    of_batch = [output_axis[a] for a in (*groups, *batched)]
    if swapped:
        value = contraction.dot_general(
            w,
            windows,
            contract=(kernel_contract, windows_contract),
            batch=(kernel_batch, windows_batch),
        )
        return views.with_axes_at(value, [*of_batch, *of_kernel, *of_windows])
    value = contraction.dot_general(
        windows,
        w,
        contract=(windows_contract, kernel_contract),
        batch=(windows_batch, kernel_batch),
    )
    return views.with_axes_at(value, [*of_batch, *of_windows, *of_kernel])


def _innermost(
    order: Sequence[int], extents: Shape, ndim: int, axes: Axes
) -> tuple[bool, int]:
    """Return how contiguous a copy of windows into ``order`` is, as a key for ``max``.

    The key is (whether the copy's last axis lies along the operand's last axis, the
    extent of the copy's last axis). Axes of extent 1 are skipped.

    Args:
        order: the axes of the copy; those from ``ndim`` on are axes inside windows.
        extents: the extent of each of these axes.
        ndim: the number of axes of the operand.
        axes: the operand's axis along which each axis inside windows lies.
    """
    last = next((a for a in reversed(order) if extents[a] > 1), order[-1])
    along = axes[last - ndim] if last >= ndim else last
    return along == ndim - 1, extents[last]


def _windows(x: Atom, geometry: SlidingWindows, order: Sequence[int]) -> Atom:
    """Emit the windows of ``x``, with axes in ``order``.

    The result is a view, without a copy, if there is only one window, or if windows
    have only one element.
    """
    if math.prod(geometry.sizes) == 1:
        x = geometry.tap(x, (0,) * len(geometry.axes))
        x = views.reshape(x, shape=(*x.type.shape, *geometry.sizes))
    elif math.prod(geometry.count(x.type.shape)) == 1:
        x = _one_window(x, geometry)
    else:
        return sliding_windows(x, **geometry.params(), order=tuple(order))
    shape = x.type.shape
    if tuple(order) == tuple(range(len(shape))):
        return x
    return views.transpose(x, permutation=tuple(order))


def _one_window(x: Atom, geometry: SlidingWindows) -> Atom:
    """Emit the only window of ``x``, as a view.

    The axes are those of ``x``, where spatial axes have extent 1, then the axes inside
    the window.
    """
    ndim, axes = x.type.ndim, geometry.axes
    limit, strides = list(x.type.shape), [1] * ndim
    for axis, size, step in zip(axes, geometry.sizes, geometry.dilations, strict=True):
        limit[axis], strides[axis] = (size - 1) * step + 1, step
    if tuple(limit) != x.type.shape or max(strides) > 1:
        x = slicing.slice_(
            x, start=(0,) * ndim, limit=tuple(limit), strides=tuple(strides)
        )
    others = other_axes(ndim, axes)
    x = views.transpose(x, permutation=(*others, *axes))
    extents = dict(zip(others, x.type.shape[: len(others)], strict=True))
    shape = (*(extents.get(axis, 1) for axis in range(ndim)), *geometry.sizes)
    return views.reshape(x, shape=shape)


def _repeated(w: Atom, extents: Sequence[int]) -> Atom:
    """Repeat the kernel ``w`` along new leading axes of ``extents``, if any."""
    if not extents:
        return w
    shape = (*extents, *w.type.shape)
    axes = tuple(range(len(extents), len(shape)))
    return views.broadcast_in_dim(w, shape=shape, axes=axes)
