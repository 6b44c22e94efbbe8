"""gather and scatter: type rules, NumPy references, and samples for the tests.

The semantics are XLA's, in the terms of ``windows``. No mode accesses memory outside
the operand. Updates are combined in the row-major order of the updates array, so
results are reproducible; of several ``scatter`` updates with one target the last wins.
The primitives and their other rules are in ``indexing``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType, PythonScalar
from arrayfn.errors import ArgumentError, ShapeError
from arrayfn.ir import ArrayType
from arrayfn.ir.layout import Shape
from arrayfn.primitives import families
from arrayfn.primitives.base import Array, Sample
from arrayfn.primitives.windows import Windows, check_mode

GATHER_MODES: Final = ("fill", "clip", "promise_in_bounds")
SCATTER_MODES: Final = ("drop", "clip")


def default_fill(dtype: DType) -> PythonScalar:
    """Return the value that gather reads out of bounds, by default.

    It is NaN for floats, True for bools, the smallest integer for signed dtypes and the
    largest for unsigned ones, which the words of random keys are too.
    """
    if dtype == dtypes.bool_:
        return True
    if dtype in dtypes.DIFFERENTIABLE:
        return float("nan")
    limits = dtypes.limits(dtypes.uint32 if dtype is dtypes.KEY else dtype)
    return int(limits.min or limits.max)  # the minimum of unsigned dtypes is 0


# gather


def gather_types(
    x: ArrayType,
    indices: ArrayType,
    *,
    sizes: Shape,
    mode: str,
    fill_value: PythonScalar | None,
    unique_indices: bool = False,
    **windows: Any,
) -> ArrayType:
    """Type rule of gather: the type of the windows that it reads.

    Args:
        x: the operand.
        indices: the index vectors, along the last axis.
        sizes: the extents of a window, by axis of ``x``.
        mode: what happens out of bounds, one of GATHER_MODES.
        fill_value: what is read out of bounds in mode "fill", else None.
        unique_indices: the promise that no element is read twice.
        windows: the fields of ``Windows``.
    """
    check_mode("gather", mode, GATHER_MODES)
    if (fill_value is None) == (mode == "fill"):
        raise ArgumentError("gather takes a fill_value only in mode 'fill'")
    geometry = Windows(**windows)
    geometry.check("gather", x, indices, sizes, may_miss=mode == "fill")
    return x.with_shape(geometry.shape(indices.shape, sizes))


def gather_reference(
    x: Array,
    indices: Array,
    *,
    sizes: Shape,
    mode: str,
    fill_value: PythonScalar | None,
    unique_indices: bool = False,
    **windows: Any,
) -> Array:
    """Read the windows by the flat positions of their elements.

    Elements of windows out of bounds get ``fill_value``. The arguments are those of
    ``gather_types``.
    """
    positions, inside = Windows(**windows).positions(
        x.shape, indices, sizes, clip=mode != "fill"
    )
    result = np.full(positions.shape, 0 if fill_value is None else fill_value, x.dtype)
    result[inside] = np.ravel(x)[positions[inside]]
    return result


# scatter


def promised(unique_indices: bool, indices_are_sorted: bool) -> dict[str, bool]:
    """Return the params of a scatter that promise something about its indices.

    ``unique_indices`` promises that no two updates have the same target. The param
    ``indices_are_sorted`` is present only if it is true.
    """
    promises = {"unique_indices": unique_indices}
    return promises | ({"indices_are_sorted": True} if indices_are_sorted else {})


def scatter_types(name: str, allowed: frozenset[DType]) -> Callable[..., ArrayType]:
    """Make the type rule of the scatter ``name``, on arrays of ``allowed`` dtypes."""

    def types(
        x: ArrayType,
        indices: ArrayType,
        updates: ArrayType,
        *,
        mode: str,
        unique_indices: bool,
        indices_are_sorted: bool = False,
        **windows: Any,
    ) -> ArrayType:
        """Type rule: the operand's type; an error unless indices and updates fit it."""
        check_mode(name, mode, SCATTER_MODES)
        families.common_dtype(name, (x, updates), allowed)
        geometry = Windows(**windows)
        kept = geometry.kept(x.ndim)
        if len(kept) != len(geometry.window_axes) or any(
            not 0 <= axis < updates.ndim for axis in geometry.window_axes
        ):
            raise ShapeError(
                f"{name}: {x} keeps {len(kept)} axes, which window axes "
                f"{geometry.window_axes} do not name in updates ({updates})"
            )
        sizes = geometry.sizes(x.ndim, updates.shape)
        geometry.check(name, x, indices, sizes, may_miss=mode == "drop")
        wanted = geometry.shape(indices.shape, sizes)
        if updates.shape != wanted:
            raise ShapeError(
                f"{name}: updates for {indices} have shape {wanted}, not {updates}"
            )
        return x.with_shape(x.shape)

    return types


def scatter_reference(combine: Callable[..., None]) -> Callable[..., Array]:
    """Make the reference of a scatter.

    ``combine(flat array, positions, updates)`` writes the updates in place, as
    ``np.add.at``.
    """

    def reference(
        x: Array,
        indices: Array,
        updates: Array,
        *,
        mode: str,
        unique_indices: bool,
        indices_are_sorted: bool = False,
        **windows: Any,
    ) -> Array:
        """Write the updates that are in bounds to a copy of ``x``.

        In mode "clip" windows out of bounds are moved inside first.
        """
        geometry = Windows(**windows)
        sizes = geometry.sizes(x.ndim, updates.shape)
        positions, inside = geometry.positions(
            x.shape, indices, sizes, clip=mode == "clip"
        )
        result = np.array(x, order="C")
        with np.errstate(all="ignore"):
            combine(result.reshape(-1), positions[inside], updates[inside])
        return result

    return reference


def put(x: Array, positions: Array, updates: Array) -> None:
    """Replace the elements at ``positions``; the last of several updates wins."""
    x[positions] = updates


# Samples.

_ROWS_OF = Windows(
    window_axes=(1,), collapsed_axes=(0,), indexed_axes=(0,)
)  # x[i]: rows of a matrix
_PATCHES_OF = Windows(
    window_axes=(1, 2), collapsed_axes=(), indexed_axes=(1, 0)
)  # windows of a matrix, column index first
_ALONG = Windows(
    window_axes=(), collapsed_axes=(0, 1), indexed_axes=(0, 1)
)  # x[i, j]: single elements
_BATCHED = Windows(
    window_axes=(1,), collapsed_axes=(), indexed_axes=(1,), batch=((0,), (0,))
)  # a window of each row
_FIRST = Windows(
    window_axes=(0,), collapsed_axes=(1,), indexed_axes=(1,)
)  # columns, the window axis first


def gather_samples() -> Iterable[Sample]:
    """Yield windows of each form in each mode, and arrays of each dtype."""
    # Negative and too large indices among them.
    rows = np.array([[[2], [0]], [[5], [2]], [[-1], [1]]], np.int32)
    corners = np.array([[0, 1], [2, 2], [3, 0], [-1, 1], [1, 1]], np.int64)
    for mode in GATHER_MODES:
        fill = 0.5 if mode == "fill" else None
        for geometry, shape, indices, sizes in (
            (_ROWS_OF, (4, 3), rows, (1, 3)),
            (_PATCHES_OF, (4, 5), corners, (2, 3)),
            (_ALONG, (3, 3), corners, (1, 1)),
            (_BATCHED, (5, 6), corners[:, :1], (1, 4)),
            (_FIRST, (3, 4), corners[:, 1:], (2, 1)),
        ):
            params = {"sizes": sizes, "mode": mode, "fill_value": fill}
            x = families.random_array(dtypes.float32, shape, 71)
            yield Sample((x, indices), {**geometry.params(), **params})
    for position, dtype in enumerate(dtypes.SHORT_NAMES):
        x = families.random_array(dtype, (4, 3), 72 + position)
        fill = default_fill(dtype)
        params = {"sizes": (1, 3), "mode": "fill", "fill_value": fill}
        # A NaN would hide the finite differences of elements around it.
        wrt = None if fill == fill else ()
        params |= _ROWS_OF.params()
        yield Sample((x, rows.astype(np.uint8)), params, differentiate=wrt)


def scatter_samples(
    allowed: frozenset[DType], low: float = -3.0, unique_only: bool = False
) -> Callable[[], Iterable[Sample]]:
    """Make the samples of a scatter: repeated, out of bounds, and unique targets.

    ``allowed`` are the dtypes; values are drawn from ``low`` to 3. With
    ``unique_only``, updates with repeated targets are not differentiated.
    """
    repeated = np.array([[2], [0], [5], [2], [-1], [1], [2]], np.int32)
    unique_targets = np.array([[2], [0], [7], [1]], np.int64)

    def draw(dtype: DType, shape: Shape, seed: int) -> Array:
        """Return random values from ``low`` to 3."""
        return families.random_array(dtype, shape, seed, low, 3.0)

    def samples() -> Iterable[Sample]:
        """Yield samples of every mode, window form and dtype."""
        real = dtypes.float32
        # Windows of single elements of a vector.
        single = Windows(window_axes=(), collapsed_axes=(0,), indexed_axes=(0,))
        for mode in SCATTER_MODES:
            for unique, indices in ((False, repeated), (True, unique_targets)):
                # Clipping may move an index out of bounds to the target of another.
                if unique and mode == "clip":
                    indices = unique_targets[:2]
                n = len(indices)
                params = {"mode": mode, "unique_indices": unique}
                wrt = (0,) if unique_only and not unique else None
                for geometry, shape, sample_indices, window in (
                    (_ROWS_OF, (4, 3), indices, (n, 3)),
                    (single, (4,), indices, (n,)),
                    (_BATCHED, (n, 4), indices, (n, 1)),
                ):
                    inputs = (
                        draw(real, shape, seed=73),
                        sample_indices,
                        draw(real, window, seed=74),
                    )
                    yield Sample(
                        inputs, {**geometry.params(), **params}, differentiate=wrt
                    )
        patches = np.array([[0, 1], [2, 2], [1, 0]], np.int64)
        params = {"mode": "drop", "unique_indices": False}
        wrt = (0,) if unique_only else None
        inputs = (draw(real, (4, 5), 75), patches, draw(real, (3, 2, 3), 76))
        yield Sample(inputs, {**_PATCHES_OF.params(), **params}, differentiate=wrt)
        params |= _ROWS_OF.params()
        for position, dtype in enumerate(dtypes.SHORT_NAMES):
            if dtype in allowed:
                x, y = draw(dtype, (4, 3), 77), draw(dtype, (7, 3), 78 + position)
                yield Sample((x, repeated, y), params, differentiate=wrt)

    return samples
