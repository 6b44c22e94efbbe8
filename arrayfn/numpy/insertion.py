"""insert, delete, resize, put, place, fill_diagonal and choose, which return copies."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, InPlaceError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.arithmetic import clip
from arrayfn.numpy.changed_copies import at
from arrayfn.numpy.comparison import not_equal, where
from arrayfn.numpy.creation import arange
from arrayfn.numpy.cumulative import cumsum
from arrayfn.numpy.data_dependent import known, true_positions
from arrayfn.numpy.index_bounds import from_the_front, known_value
from arrayfn.numpy.indexing import take
from arrayfn.numpy.manipulation import (
    broadcast_to,
    concatenate,
    moveaxis,
    ravel,
    reshape,
    slice_along,
)
from arrayfn.numpy.updates import scatter_windows
from arrayfn.primitives import indexing
from arrayfn.primitives.windows import Windows
from arrayfn.tracing import ImmutableArray
from arrayfn.tracing.conversions import is_discarded

# The advice in errors about indices that must be known while tracing.
_KNOWN = "Which elements those are decides the places of the others: make it static"


def insert(
    arr: ArrayLike, obj: Any, values: ArrayLike, axis: int | None = None
) -> Array:
    """Return a copy of ``arr`` with ``values`` inserted before ``obj`` along ``axis``.

    ``obj`` is a number, a slice, numbers, or a mask. Under ``jit`` it must be known,
    unless it is a single number. ``values`` are converted to the dtype of ``arr`` and
    broadcast to the inserted slices. ``axis=None`` means that ``arr`` is flattened.
    """
    if axis is None:
        arr, axis = ravel(arr), 0
    type = ops.type_of_operand("insert", arr)
    place = ops.normalize_axis("insert", axis, type.ndim)
    extent = type.shape[place]
    new = ops.as_array(ops.convert(ops.from_lists(values), type.dtype))
    traced = is_traced_number(obj)
    index = obj if traced or isinstance(obj, slice) else _known_index("insert", obj)
    single = traced or (not isinstance(index, slice) and np.ndim(index) == 0)
    # ``count`` is the number of inserted slices.
    if single:
        # As in NumPy, a single position gets all values, whose last axes are arr's.
        if new.ndim:
            new = moveaxis(_with_minimum_ndim(new, type.ndim), 0, place)
        count = new.shape[place] if new.ndim else 1
    else:
        is_new = np.insert(np.zeros(extent, bool), index, True)
        count = int(is_new.sum())
    shape = (*type.shape[:place], count, *type.shape[place + 1 :])
    new = broadcast_to(new, shape)
    # The result takes slices of [arr, new] in this order: new ones begin at ``extent``.
    if traced:
        first = from_the_front(ops.as_array(obj), extent)
        position = arange(extent + count)
        from_first = where(
            position < first + count, extent + position - first, position - count
        )
        order = where(position < first, position, from_first)
    else:
        new_positions = np.arange(extent, extent + count)
        order = np.insert(np.arange(extent), index, new_positions)
    return take(concatenate([arr, new], place), order, place)


def is_traced_number(x: Any) -> bool:
    """Return whether ``x`` is an array without axes whose value is not known."""
    return isinstance(x, ImmutableArray) and not x.ndim and known_value(x) is None


def _with_minimum_ndim(x: Array, ndim: int) -> Array:
    """Return x with leading axes of extent 1, so that it has at least ``ndim`` axes."""
    return reshape(x, (1,) * (ndim - x.ndim) + x.shape) if x.ndim < ndim else x


def _known_index(name: str, index: Any) -> Any:
    """Return ``index``, numbers or a mask, as a NumPy array.

    Raises AbstractValueError, about the function ``name``, if it is not known while
    tracing.
    """
    if isinstance(index, (list, tuple)):
        # NumPy would make floats of an empty list.
        index = np.asarray(index, None if len(index) else np.int64)
    return known(name, index, _KNOWN)


def delete(
    arr: ArrayLike,
    obj: Any,
    axis: int | None = None,
    *,
    assume_unique_indices: bool = False,
) -> Array:
    """Return a copy of ``arr`` without the slices at ``obj`` along ``axis``.

    ``axis=None`` means that ``arr`` is flattened. ``obj`` is a number, a slice,
    numbers, or a mask. Under ``jit`` a single number may be unknown. Several numbers
    must be known, unless ``assume_unique_indices`` promises that none repeats.
    """
    if axis is None:
        arr, axis = ravel(arr), 0
    type = ops.type_of_operand("delete", arr)
    place = ops.normalize_axis("delete", axis, type.ndim)
    extent = type.shape[place]
    unique = assume_unique_indices and isinstance(obj, ImmutableArray)
    if is_traced_number(obj) or (unique and obj.dtype in dtypes.INTEGERS):
        gone = ravel(from_the_front(ops.as_array(obj), extent))
        stays = at(ops.full(True, (extent,), dtypes.bool_))[gone].set(False)
        order = true_positions(stays, extent - gone.shape[0], 0)
        return take(arr, order, place)
    gone = obj if isinstance(obj, slice) else _known_index("delete", obj)
    return take(arr, np.delete(np.arange(extent), gone), place)


def resize(a: ArrayLike, new_shape: Any) -> Array:
    """Return an array of ``new_shape`` filled with the elements of ``a``, in order.

    The elements are repeated as often as needed, and surplus elements are left out. An
    empty ``a`` gives zeros.
    """
    type = ops.type_of_operand("resize", a)
    wanted = ops.as_shape("resize", new_shape)
    size = math.prod(wanted)
    if not type.size:
        return ops.full(0, wanted, type.dtype)
    flat = ravel(a)
    if size > type.size:
        flat = concatenate([flat] * -(-size // type.size))  # ceil(size / type.size)
    return reshape(slice_along(flat, 0, size, axis=0), wanted)


def _refuse_in_place(name: str, inplace: bool) -> None:
    """Raise an error if the caller expects ``name`` to change its argument.

    NumPy's function ``name`` changes an array in place. Raises ArgumentError if
    ``inplace``, and InPlaceError if the code that called ``name`` does not use its
    result. ``name`` calls this function.
    """
    if inplace:
        raise ArgumentError(
            f"{name} changes no array in place; use the copy that it returns",
            user_location(),
        )
    if is_discarded(sys._getframe(2)):  # the frame that called ``name``
        raise InPlaceError(
            f"{name} changes no array in place, and the copy that it returns is not "
            f"used here; write x = {name}(x, ...)",
            user_location(),
        )


def put(
    a: ArrayLike,
    ind: ArrayLike,
    v: ArrayLike,
    mode: str | None = None,
    *,
    inplace: bool = False,
) -> Array:
    """Copy ``a``, and write ``v`` at the flat indices ``ind`` of the copy.

    Values are repeated if needed. ``mode`` handles indices out of bounds. "wrap" uses
    them modulo the size, and "clip" clamps them (negative ones to 0). Without ``mode``,
    and with "raise", such indices are handled as in ``a.at[ind].set(v)``. Raises
    ArgumentError for another mode or ``inplace``, and InPlaceError if the result is not
    used.

    >>> import numpy as np
    >>> put(np.zeros(3), np.array([-2, 7]), np.array([1.0, 2.0]), mode="clip")
    array([1., 0., 2.])
    """
    if mode not in (None, "raise", "wrap", "clip"):
        raise ArgumentError(
            f"put has the modes 'raise', 'wrap' and 'clip', not {mode!r}",
            user_location(),
        )
    _refuse_in_place("put", inplace)
    type = ops.type_of_operand("put", a)
    if not ops.type_of_operand("put", ops.from_lists(v)).size:
        return ops.same(a)  # nothing to put, as in NumPy
    places = ravel(ops.from_lists(ind))
    if mode == "wrap":
        places = places % type.size
    new = resize(ops.from_lists(v), places.shape)
    if mode == "clip":
        places = clip(places, 0, type.size - 1)
    return reshape(at(ravel(a))[places].set(new), type.shape)


def put_along_axis(
    arr: ArrayLike,
    indices: ArrayLike,
    values: ArrayLike,
    axis: int | None = None,
    inplace: bool = False,
    *,
    mode: str | None = None,
) -> Array:
    """Copy ``arr``, and write ``values`` where ``take_along_axis`` reads.

    ``indices`` has as many axes as ``arr``, and ``values`` is broadcast. ``axis=None``
    means that both are flattened. ``mode`` handles values at indices out of bounds.
    "drop" ignores them, and "clip" writes them to the nearest element. Raises
    ShapeError or ArgumentError for other arguments, and InPlaceError if the result is
    not used.

    >>> import numpy as np
    >>> put_along_axis(np.zeros((2, 2)), np.array([[1], [0]]), 5.0, axis=1)
    array([[0., 5.],
           [5., 0.]])
    """
    _refuse_in_place("put_along_axis", inplace)
    if mode not in (None, "drop", "fill", "promise_in_bounds", "clip"):
        raise ArgumentError(
            f"put_along_axis has no mode {mode!r}; it has 'drop' and 'clip'",
            user_location(),
        )
    type = ops.type_of_operand("put_along_axis", arr)
    if axis is None:
        flat = put_along_axis(ravel(arr), ravel(indices), values, 0, mode=mode)
        return reshape(flat, type.shape)
    wanted = ops.type_of_operand("put_along_axis", indices)
    if type.ndim != wanted.ndim:
        raise ShapeError(
            f"put_along_axis takes an array and indices with the same number of "
            f"axes, but was given {type} and {wanted}",
            user_location(),
        )
    place = ops.normalize_axis("put_along_axis", axis, type.ndim)
    shape = (*type.shape[:place], wanted.shape[place], *type.shape[place + 1 :])
    positions = from_the_front(indices, type.shape[place])
    if mode == "clip":
        positions = clip(positions, 0, type.shape[place] - 1)
    positions = broadcast_to(positions, shape)
    new = ops.as_array(ops.convert(values, type.dtype))
    others = tuple(k for k in range(type.ndim) if k != place)
    return scatter_windows(
        indexing.scatter,
        arr,
        reshape(positions, (*shape, 1)),
        broadcast_to(new, shape),
        # Windows of one element along ``place``; the other axes run together.
        Windows(
            window_axes=(),
            collapsed_axes=(place,),
            indexed_axes=(place,),
            batch=(others, others),
        ),
        unique_indices=False,
    )


def place(
    arr: ArrayLike,
    mask: ArrayLike,
    vals: ArrayLike,
    *,
    inplace: bool = False,
) -> Array:
    """Copy ``arr``, and write successive ``vals`` where ``mask`` is true.

    ``mask`` has the size of ``arr``. Values are repeated if needed. Raises
    ArgumentError for no values or ``inplace``, and InPlaceError if the result is not
    used.
    """
    _refuse_in_place("place", inplace)
    type = ops.type_of_operand("place", arr)
    new = ravel(ops.from_lists(vals))
    count = ops.type_of_operand("place", new).size
    if not count:
        raise ArgumentError("place takes at least one value", user_location())
    chosen = not_equal(ravel(mask), 0)
    which = (cumsum(chosen) - 1) % count  # the number of the value for each element
    picked = take(ops.convert(new, type.dtype), which, 0, mode="clip")
    return reshape(where(chosen, picked, ravel(arr)), type.shape)


def fill_diagonal(
    a: ArrayLike,
    val: ArrayLike,
    wrap: bool = False,
    *,
    inplace: bool = False,
) -> Array:
    """Copy ``a``, and write ``val`` on the diagonal of the copy.

    An array ``val`` is repeated along the diagonal. With ``wrap`` the diagonal of a
    tall matrix starts again below its end. Raises ShapeError unless ``a`` is a matrix
    or all its axes have one extent, ArgumentError for ``inplace``, and InPlaceError if
    the result is not used.
    """
    _refuse_in_place("fill_diagonal", inplace)
    type = ops.type_of_operand("fill_diagonal", a)
    if type.ndim < 2 or (type.ndim > 2 and len(set(type.shape)) != 1):
        raise ShapeError(
            f"fill_diagonal takes a matrix, or axes of one extent, not {type}",
            user_location(),
        )
    # Flat indices of the diagonal: 0, step, 2 * step, ... up to end (exclusive).
    if type.ndim == 2:
        step = type.shape[1] + 1
        # Without ``wrap``, only the square of the first rows has a diagonal.
        end = type.size if wrap else min(type.shape[1] ** 2, type.size)
    else:
        # The sum of the strides of all axes.
        step = 1 + sum(math.prod(type.shape[:k]) for k in range(1, type.ndim))
        end = type.size
    count = len(range(0, end, step))
    new = resize(ravel(ops.from_lists(val)), (count,))
    places = arange(0, end, step) if count else np.zeros(0, np.int64)
    flat = at(ravel(a))[places].set(ops.convert(new, type.dtype), unique_indices=True)
    return reshape(flat, type.shape)


def choose(a: ArrayLike, choices: Any, out: None = None, mode: str = "raise") -> Array:
    """Select each element from the choice whose number is in ``a``.

    ``a`` and the choices broadcast, and the result has the choices' promoted dtype.
    ``mode`` handles numbers out of bounds: "wrap", "clip" or "raise". "raise" needs the
    values of ``a``, and raises ArgumentError.
    """
    ops.refuse_out("choose", out)
    parts = list(choices) if isinstance(choices, (list, tuple)) else [*choices]
    number = ops.type_of_operand("choose", a)
    shapes = [ops.type_of_operand("choose", part).shape for part in parts]
    shape = ops.broadcast_shape("choose", [number.shape, *shapes])
    if mode == "wrap":
        a = a % len(parts)
    elif mode == "clip":
        a = where(a < 0, 0, where(a >= len(parts), len(parts) - 1, a))
    else:
        value = a
        if isinstance(a, ImmutableArray):
            value = a.concrete(
                "choose with mode='raise'", "Give it mode='wrap' or 'clip'"
            )
        value = np.asarray(value)
        if value.size and (value.min() < 0 or value.max() >= len(parts)):
            raise ArgumentError(
                f"choose: an index is not among the {len(parts)} choices",
                user_location(),
            )
    # Begin with the last choice, and replace it where ``a`` has a smaller number.
    result = broadcast_to(parts[-1], shape)
    for position in range(len(parts) - 2, -1, -1):
        result = where(a == position, parts[position], result)
    return result
