"""Sharding rules: which axes of operands and results a mesh axis can cut together.

A *factor* is an index of the computation that a primitive does: a matrix product has
three, of rows, of columns, and the one that is summed. ``Factors`` says for each axis
of operands and results which factor it is, or None for an axis that each device needs
whole. A mesh axis that cuts a factor cuts all axes that are this factor. If the factor
is ``reduced``, the devices' results are combined by an ``all_reduce``.

The rules take the types of the operands and the params, as type rules do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arrayfn.ir import ArrayType
from arrayfn.ir.layout import Shape
from arrayfn.primitives.base import Factors
from arrayfn.primitives.windows import Windows

Dims = tuple[int | None, ...]
Params = Mapping[str, Any]


def elementwise(*operands: ArrayType, **params: Any) -> Factors:
    """Sharding rule of elementwise primitives: axis k of each array is factor k.

    Operands of rank 0 have no axes to cut.
    """
    ndim = max((x.ndim for x in operands), default=0)
    dims = tuple(range(ndim))
    return Factors(tuple(dims[: x.ndim] for x in operands), (dims,))


def transpose(x: ArrayType, *, permutation: Sequence[int]) -> Factors:
    """Sharding rule of transpose: axis k of the operand is factor k.

    Axis i of the result is the operand's axis ``permutation[i]``.
    """
    return Factors((tuple(range(x.ndim)),), (tuple(permutation),))


def broadcast(x: ArrayType, *, shape: Shape, axes: Sequence[int]) -> Factors:
    """Sharding rule of broadcasts: operand axes that are not repeated are factors.

    ``axes`` has the result's axis for each axis of the operand.
    """
    operand_axis = {axis: k for k, axis in enumerate(axes)}
    dims = tuple(
        k if x.shape[k] == shape[axis] else None for k, axis in enumerate(axes)
    )
    result_axes = range(len(shape))
    out = tuple(
        dims[operand_axis[k]] if k in operand_axis else None for k in result_axes
    )
    return Factors((dims,), (out,), localize=_local_shape)


def reshape(x: ArrayType, *, shape: Shape) -> Factors:
    """Sharding rule of reshapes: one factor for each group of axes merged or split.

    A group is a run of axes of the operand and a run of axes of the result with the
    same number of elements; an axis that does not change is a group of its own. The
    factor is the outermost axis of both runs, axes of extent 1 left out. For
    (2, 6, 5) -> (12, 5) the factors are (0, None, 1) and (0, 1).
    """
    input_factors: list[int | None] = [None] * x.ndim
    output_factors: list[int | None] = [None] * len(shape)
    i = j = factor = 0
    while i < x.ndim and j < len(shape):
        # The group's axes are first..i of x and second..j of the result. Extend the
        # run with fewer elements until both have the same number.
        first, second = i, j
        left, right = x.shape[i], shape[j]
        while left != right:
            if left < right and i + 1 < x.ndim:
                i += 1
                left *= x.shape[i]
            elif right < left and j + 1 < len(shape):
                j += 1
                right *= shape[j]
            else:
                return Factors(
                    (tuple(input_factors),),
                    (tuple(output_factors),),
                    localize=_local_shape,
                )
        while first < i and x.shape[first] == 1:
            first += 1
        while second < j and shape[second] == 1:
            second += 1
        if left > 1:
            input_factors[first] = output_factors[second] = factor
            factor += 1
        i, j = i + 1, j + 1
    return Factors(
        (tuple(input_factors),), (tuple(output_factors),), localize=_local_shape
    )


def reduction(op: str) -> Any:
    """Make the sharding rule of a reduction.

    Devices combine their partial results by ``op``, an operation of ``all_reduce``:
    "sum", "max" or "min".
    """

    def rule(x: ArrayType, *, axes: Sequence[int]) -> Factors:
        """Axis k of the operand is factor k; the factors in ``axes`` are reduced."""
        dims = tuple(range(x.ndim))
        kept = tuple(axis for axis in dims if axis not in axes)
        return Factors((dims,), (kept,), dict.fromkeys(axes, op))

    return rule


def along_others(*operands: ArrayType, axis: int, **params: Any) -> Factors:
    """Sharding rule of work along ``axis``: all other axes are factors.

    Each device needs ``axis`` whole.
    """
    dims = tuple(k if k != axis else None for k in range(operands[0].ndim))
    return Factors((dims,) * len(operands), (dims,))


def index_reduction(x: ArrayType, *, axis: int, dtype: Any) -> Factors:
    """Sharding rule of argmax and argmin along ``axis``: all other axes are factors."""
    dims = tuple(k if k != axis else None for k in range(x.ndim))
    return Factors((dims,), (dims[:axis] + dims[axis + 1 :],))


def reverse(x: ArrayType, *, axes: Sequence[int]) -> Factors:
    """Sharding rule of rev: axes that are not reversed are factors, others whole."""
    dims = tuple(None if k in axes else k for k in range(x.ndim))
    return Factors((dims,), (dims,))


def slice_(
    x: ArrayType, *, start: Sequence[int], limit: Sequence[int], strides: Sequence[int]
) -> Factors:
    """Sharding rule of slices: axes that the slice takes whole are factors."""
    bounds = zip(start, limit, strides, x.shape, strict=True)
    dims = tuple(
        k if (low, high, step) == (0, extent, 1) else None
        for k, (low, high, step, extent) in enumerate(bounds)
    )
    return Factors((dims,), (dims,), localize=_local_limit)


def pad(x: ArrayType, value: ArrayType, *, config: Any) -> Factors:
    """Sharding rule of pad: axes without padding are factors; others stay whole.

    ``config`` has the amounts (low, high, between elements) for each axis.
    """
    dims = tuple(
        k if tuple(amounts) == (0, 0, 0) else None for k, amounts in enumerate(config)
    )
    return Factors((dims, ()), (dims,))


def last_axis_whole(*operands: ArrayType, **params: Any) -> Factors:
    """Sharding rule of work along the last axis: all other axes are factors."""
    dims = (*range(operands[0].ndim - 1), None)
    return Factors((dims,) * len(operands), (dims,))


def _whole_axes(sizes: Shape, shape: Shape) -> Dims:
    """Return the factor of each axis: its number if ``sizes`` spans it, else None."""
    pairs = zip(sizes, shape, strict=True)
    return tuple(k if n == extent else None for k, (n, extent) in enumerate(pairs))


def dynamic_slice(x: ArrayType, *starts: ArrayType, sizes: Shape) -> Factors:
    """Sharding rule of dynamic_slice: axes that the slice takes whole are factors."""
    dims = _whole_axes(sizes, x.shape)
    return Factors((dims, *[()] * len(starts)), (dims,), localize=_local_sizes)


def dynamic_update_slice(
    x: ArrayType, update: ArrayType, *starts: ArrayType
) -> Factors:
    """Sharding rule of dynamic_update_slice: axes written whole are factors."""
    dims = _whole_axes(update.shape, x.shape)
    return Factors((dims, dims, *[()] * len(starts)), (dims,))


def contraction(
    x: ArrayType, y: ArrayType, *, contract: Any, batch: Any, **_: Any
) -> Factors:
    """Sharding rule of dot_general: all axes are factors; contracted ones are summed.

    ``contract`` and ``batch`` are the params of ``dot_general``: pairs of axes of ``x``
    and ``y``. Paired axes are one factor.
    """
    left: list[int | None] = [None] * x.ndim
    right: list[int | None] = [None] * y.ndim
    count = 0  # of factors
    for pairs in (batch, contract):
        for i, j in zip(*pairs, strict=True):
            left[i] = right[j] = count
            count += 1
    summed = {left[i]: "sum" for i in contract[0]}
    for dims in (left, right):
        for axis, factor in enumerate(dims):
            if factor is None:
                dims[axis] = count
                count += 1
    output_groups = [
        tuple(left[i] for i in batch[0]),
        tuple(f for i, f in enumerate(left) if i not in (*batch[0], *contract[0])),
        tuple(f for j, f in enumerate(right) if j not in (*batch[1], *contract[1])),
    ]
    reduced = {f: op for f, op in summed.items() if f is not None}
    return Factors((tuple(left), tuple(right)), (sum(output_groups, ()),), reduced)


def gather(x: ArrayType, indices: ArrayType, *, sizes: Shape, **params: Any) -> Factors:
    """Sharding rule of gather: axes that windows span and indices' axes are factors.

    The last axis of ``indices``, along an index vector, stays whole.
    """
    operand, index, windows = _windows(x, indices, sizes, params)
    return Factors((operand, index), (windows,), localize=_local_gather)


def scatter(
    x: ArrayType, indices: ArrayType, updates: ArrayType, **params: Any
) -> Factors:
    """Sharding rule of scatter_add: the factors of ``gather``.

    If a mesh axis cuts an axis of the indices, devices have different updates for the
    same operand, and their results are summed.
    """
    sizes = _geometry(params).sizes(x.ndim, updates.shape)
    operand, index, windows = _windows(x, indices, sizes, params)
    summed = {f: "sum" for f in index if f is not None and f not in operand}
    return Factors((operand, index, windows), (operand,), summed, added=0)


def _geometry(params: Params) -> Windows:
    """Return the windows that the params of a gather or scatter describe."""
    names = ("window_axes", "collapsed_axes", "indexed_axes", "batch")
    return Windows(**{name: params[name] for name in names if name in params})


def _windows(
    x: ArrayType, indices: ArrayType, sizes: Shape, params: Params
) -> tuple[Dims, Dims, Dims]:
    """Return the factors of the axes of the operand ``x``, the indices and the windows.

    ``sizes`` are the extents of a window, by axis of ``x``. Axis k of ``x`` is factor
    k, if windows span it; axis k of ``indices`` is factor ``x.ndim + k``.
    """
    geometry = _geometry(params)
    kept_axes = geometry.kept(x.ndim)
    operand: list[int | None] = [
        axis
        if axis in kept_axes
        and sizes[axis] == x.shape[axis]
        and axis not in geometry.indexed_axes
        else None
        for axis in range(x.ndim)
    ]
    index: list[int | None] = [x.ndim + k for k in range(indices.ndim - 1)] + [None]
    for operand_axis, index_axis in zip(*geometry.batch, strict=True):
        operand[operand_axis] = index[index_axis]
    outer = iter(index[:-1])
    window_axis = dict(zip(geometry.window_axes, kept_axes, strict=True))
    ndim = indices.ndim - 1 + len(kept_axes)
    windows = [
        operand[window_axis[axis]] if axis in window_axis else next(outer)
        for axis in range(ndim)
    ]
    return tuple(operand), tuple(index), tuple(windows)


# The ``localize`` functions: they change params of the whole arrays to those of the
# parts on one device. ``inputs`` and ``result`` are the shapes of the parts.


def _local_shape(params: Params, inputs: Sequence[Shape], result: Shape) -> Params:
    """Return the params of a broadcast or reshape on one device."""
    return {**params, "shape": result}


def _local_limit(params: Params, inputs: Sequence[Shape], result: Shape) -> Params:
    """Return the params of a slice on one device: whole axes end with the part."""
    whole = zip(params["start"], params["limit"], params["strides"], strict=True)
    limit = tuple(
        extent if (low, step) == (0, 1) and extent == out else high
        for (low, high, step), extent, out in zip(whole, inputs[0], result, strict=True)
    )
    return {**params, "limit": limit}


def _local_sizes(params: Params, inputs: Sequence[Shape], result: Shape) -> Params:
    """Return the params of a dynamic_slice on one device."""
    return {**params, "sizes": result}


def _local_gather(params: Params, inputs: Sequence[Shape], result: Shape) -> Params:
    """Return the params of a gather on one device, with the windows of the part."""
    ndim = len(inputs[0])
    geometry = _geometry(params)
    window_axis = dict(zip(geometry.kept(ndim), geometry.window_axes, strict=True))
    sizes = tuple(
        result[window_axis[axis]] if axis in window_axis else params["sizes"][axis]
        for axis in range(ndim)
    )
    return {**params, "sizes": sizes}
