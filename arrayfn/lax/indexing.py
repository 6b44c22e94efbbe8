"""Reads and writes windows of an array at computed positions, under JAX's names.

Out of bounds, reads give a fill value and writes do nothing, unless ``mode`` says
otherwise. No mode accesses memory outside the array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy import negative
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.primitives import indexing, indexing_semantics
from arrayfn.primitives.base import Primitive
from arrayfn.primitives.windows import Windows
from arrayfn.records import frozen
from arrayfn.tracing import apply


class GatherScatterMode(Enum):
    """The ways in which ``gather`` and ``scatter`` handle windows out of bounds.

    CLIP moves such a window inside. FILL_OR_DROP reads a fill value, or writes nothing.
    PROMISE_IN_BOUNDS promises that no window is out of bounds.
    """

    CLIP = "clip"
    FILL_OR_DROP = "fill"
    PROMISE_IN_BOUNDS = "promise_in_bounds"


@frozen(slots=True)
class GatherDimensionNumbers:
    """How the axes of operand, indices and result correspond in ``gather``, as in JAX.

    ``offset_dims`` are the axes of the result that run over a window.
    ``collapsed_slice_dims`` are axes of the operand of window extent 1, which the
    result lacks. Entry i of an index vector is the position along axis
    ``start_index_map[i]`` of the operand. ``operand_batching_dims`` and
    ``start_indices_batching_dims`` are axes of operand and indices that run together.
    """

    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    start_indices_batching_dims: tuple[int, ...] = ()

    def windows(self) -> Windows:
        """Return these numbers as the parameters of the primitive."""
        return Windows(
            window_axes=tuple(self.offset_dims),
            collapsed_axes=tuple(self.collapsed_slice_dims),
            indexed_axes=tuple(self.start_index_map),
            batch=(
                tuple(self.operand_batching_dims),
                tuple(self.start_indices_batching_dims),
            ),
        )


@frozen(slots=True)
class ScatterDimensionNumbers:
    """How the axes of operand, indices and updates correspond in ``scatter``.

    They are those of JAX. ``update_window_dims`` are the axes of the updates that run
    over a window. ``inserted_window_dims`` are axes of the operand of window extent 1,
    which the updates lack. Entry i of an index vector is the position along axis
    ``scatter_dims_to_operand_dims[i]`` of the operand. ``operand_batching_dims`` and
    ``scatter_indices_batching_dims`` are axes of operand and indices that run together.
    """

    update_window_dims: tuple[int, ...]
    inserted_window_dims: tuple[int, ...]
    scatter_dims_to_operand_dims: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    scatter_indices_batching_dims: tuple[int, ...] = ()

    def windows(self) -> Windows:
        """Return these numbers as the parameters of the primitive."""
        return Windows(
            window_axes=tuple(self.update_window_dims),
            collapsed_axes=tuple(self.inserted_window_dims),
            indexed_axes=tuple(self.scatter_dims_to_operand_dims),
            batch=(
                tuple(self.operand_batching_dims),
                tuple(self.scatter_indices_batching_dims),
            ),
        )


Mode = GatherScatterMode | str | None

_MODES = {
    None: GatherScatterMode.FILL_OR_DROP,
    "fill": GatherScatterMode.FILL_OR_DROP,
    "drop": GatherScatterMode.FILL_OR_DROP,
    "clip": GatherScatterMode.CLIP,
    "promise_in_bounds": GatherScatterMode.PROMISE_IN_BOUNDS,
}


def _mode(mode: Mode) -> GatherScatterMode:
    """Return ``mode`` as a GatherScatterMode; ArgumentError for an unknown name.

    None means FILL_OR_DROP.
    """
    if isinstance(mode, GatherScatterMode):
        return mode
    if mode not in _MODES:
        raise ArgumentError(
            f"there is no mode {mode!r}; there are 'fill', 'drop', 'clip' and "
            "'promise_in_bounds'",
            user_location(),
        )
    return _MODES[mode]


def gather(
    operand: ArrayLike,
    start_indices: ArrayLike,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: Mode = None,
    fill_value: Any = None,
) -> Array:
    """Read windows of ``slice_sizes`` at the positions ``start_indices``.

    The last axis of ``start_indices`` (integers) holds a position along each axis of
    ``dimension_numbers.start_index_map``. The result has the dtype of ``operand``, the
    other axes of ``start_indices``, and the axes of a window as ``offset_dims``. By
    default (and with ``mode`` "fill"), a window out of bounds is filled with
    ``fill_value``, which is NaN or the smallest integer if it is None.
    ``unique_indices`` promises that no windows overlap. ``indices_are_sorted`` has no
    effect.
    """
    chosen = _mode(mode)
    x = ops.as_array(operand)
    if chosen is GatherScatterMode.FILL_OR_DROP:
        if fill_value is None:
            dtype = ops.type_of_operand("gather", x).dtype
            fill_value = indexing_semantics.default_fill(dtype)
    else:
        fill_value = None
    return apply(
        indexing.gather,
        x,
        start_indices,
        sizes=tuple(slice_sizes),
        mode=chosen.value,
        fill_value=fill_value,
        # The parameter is left out if False, so that most equations are shorter.
        **({"unique_indices": True} if unique_indices else {}),
        **dimension_numbers.windows().params(),
    )


def _scattered(
    primitive: Primitive,
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    promises: Mapping[str, bool],
    mode: Mode,
) -> Array:
    """Copy ``operand``, and combine ``updates`` with it by a scatter ``primitive``.

    ``promises`` are the parameters that ``indexing_semantics.promised`` makes: whether
    the indices are sorted, and whether they are unique. The updates are converted to
    the dtype of ``operand``.
    """
    clip = _mode(mode) is GatherScatterMode.CLIP
    dtype = ops.type_of_operand("scatter", operand).dtype
    return apply(
        primitive,
        ops.as_array(operand),
        scatter_indices,
        ops.as_array(ops.convert(updates, dtype)),
        mode="clip" if clip else "drop",
        **promises,
        **dimension_numbers.windows().params(),
    )


def scatter(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Mode = None,
) -> Array:
    """Copy ``operand``, and write the windows ``updates`` at the given indices.

    The last axis of ``scatter_indices`` (integers) has the position of a window along
    the axes ``dimension_numbers.scatter_dims_to_operand_dims``. The updates are
    converted to the dtype of ``operand``, which is that of the result. If windows
    overlap, the last in the order of ``updates`` wins. ``unique_indices`` promises that
    no windows overlap. ``indices_are_sorted`` promises that positions ascend. ``mode``
    handles windows out of bounds. By default they are skipped, and "clip" moves them
    inside.
    """
    promises = indexing_semantics.promised(unique_indices, indices_are_sorted)
    args = operand, scatter_indices, updates, dimension_numbers, promises, mode
    return _scattered(indexing.scatter, *args)


def scatter_add(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Mode = None,
) -> Array:
    """Copy ``operand``, and add the windows ``updates``; overlapping windows add up.

    The other parameters, shapes and dtypes are those of ``scatter``.
    """
    promises = indexing_semantics.promised(unique_indices, indices_are_sorted)
    args = operand, scatter_indices, updates, dimension_numbers, promises, mode
    return _scattered(indexing.scatter_add, *args)


def scatter_sub(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Mode = None,
) -> Array:
    """Copy ``operand``, and subtract the windows ``updates``.

    Overlapping windows are all subtracted. The other parameters, shapes and dtypes are
    those of ``scatter``.
    """
    promises = indexing_semantics.promised(unique_indices, indices_are_sorted)
    negated = negative(updates)
    args = operand, scatter_indices, negated, dimension_numbers, promises, mode
    return _scattered(indexing.scatter_add, *args)


def scatter_mul(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Mode = None,
) -> Array:
    """Copy ``operand``, and multiply it by the windows ``updates``.

    If several windows overlap, all of them multiply the same elements. The other
    parameters, shapes and dtypes are those of ``scatter``.
    """
    promises = indexing_semantics.promised(unique_indices, indices_are_sorted)
    args = operand, scatter_indices, updates, dimension_numbers, promises, mode
    return _scattered(indexing.scatter_mul, *args)


def scatter_min(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Mode = None,
) -> Array:
    """Copy ``operand``, and take the minimum of it and the windows ``updates``.

    If several windows overlap, the minimum is over all of them. The other parameters,
    shapes and dtypes are those of ``scatter``.
    """
    promises = indexing_semantics.promised(unique_indices, indices_are_sorted)
    args = operand, scatter_indices, updates, dimension_numbers, promises, mode
    return _scattered(indexing.scatter_min, *args)


def scatter_max(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Mode = None,
) -> Array:
    """Copy ``operand``, and take the maximum of it and the windows ``updates``.

    If several windows overlap, the maximum is over all of them. The other parameters,
    shapes and dtypes are those of ``scatter``.
    """
    promises = indexing_semantics.promised(unique_indices, indices_are_sorted)
    args = operand, scatter_indices, updates, dimension_numbers, promises, mode
    return _scattered(indexing.scatter_max, *args)


def scatter_apply(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    func: Callable[[Array], Array],
    dimension_numbers: ScatterDimensionNumbers,
    *,
    update_shape: Sequence[int] = (),
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Mode = None,
) -> Array:
    """Copy ``operand``, and apply ``func`` to its windows at the given indices.

    ``func`` takes and returns an array of all windows, of shape ``update_shape``. If
    windows overlap, one of the results wins, so ``func`` is in effect applied once. The
    other parameters are those of ``scatter``.
    """
    windows = dimension_numbers.windows()
    type = ops.type_of_operand("scatter_apply", operand)
    clip = _mode(mode) is GatherScatterMode.CLIP
    values = apply(
        indexing.gather,
        ops.as_array(operand),
        scatter_indices,
        sizes=windows.sizes(type.ndim, tuple(update_shape)),
        mode="clip" if clip else "fill",
        fill_value=None if clip else _zero(type.dtype),
        **windows.params(),
    )
    return scatter(
        operand,
        scatter_indices,
        func(values),
        dimension_numbers,
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
        mode=mode,
    )


def _zero(dtype: dtypes.DType) -> Any:
    """Return the zero of ``dtype``, as a Python scalar."""
    return False if dtype == dtypes.bool_ else 0
