"""``at(x)[index].set(y)`` and its kin, for arrays at hand, traced, and on a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from arrayfn.backends.cuda import DeviceArray
from arrayfn.jit import jit
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.updates import IndexedUpdate


def at(x: ArrayLike, /) -> At:
    """``at(x)[index].set(y)``: what ``x.at`` is to traced arrays, for any array.

    >>> import numpy as np
    >>> at(np.zeros(3))[1].add(5.0)
    array([0., 5., 0.])
    """
    return At(x)


class At:
    """``x.at``: index it to say which elements of x change."""

    def __init__(self, x: ArrayLike) -> None:
        self._x = x

    def __getitem__(self, index: Any) -> IndexedUpdate | DeviceUpdate:
        if isinstance(self._x, DeviceArray):
            return DeviceUpdate(self._x, index)
        return IndexedUpdate(self._x, index)


class DeviceUpdate:
    """``x.at[index]`` of an array on a GPU: an ``IndexedUpdate``, compiled.

    Numbers and slices of the index are compiled in; arrays of it are operands.
    """

    def __init__(self, x: DeviceArray, index: Any) -> None:
        self._x = x
        self._index = index if isinstance(index, tuple) else (index,)

    def get(self, **options: Any) -> Array:
        """``x[index]``."""
        return self._run("get", **options)

    def set(self, y: ArrayLike, **options: Any) -> Array:
        """x with y at ``index``."""
        return self._run("set", y, **options)

    def add(self, y: ArrayLike, **options: Any) -> Array:
        """x with y added at ``index``."""
        return self._run("add", y, **options)

    def subtract(self, y: ArrayLike, **options: Any) -> Array:
        """x with y subtracted at ``index``."""
        return self._run("subtract", y, **options)

    def multiply(self, y: ArrayLike, **options: Any) -> Array:
        """x multiplied by y at ``index``."""
        return self._run("multiply", y, **options)

    def divide(self, y: ArrayLike, **options: Any) -> Array:
        """x divided by y at ``index``."""
        return self._run("divide", y, **options)

    def power(self, y: ArrayLike, **options: Any) -> Array:
        """x to the power y at ``index``."""
        return self._run("power", y, **options)

    def min(self, y: ArrayLike, **options: Any) -> Array:
        """The lesser of x and y at ``index``."""
        return self._run("min", y, **options)

    def max(self, y: ArrayLike, **options: Any) -> Array:
        """The greater of x and y at ``index``."""
        return self._run("max", y, **options)

    def apply(self, function: Callable[[Array], Array], **options: Any) -> Array:
        """x with ``function(x[index])`` at ``index``."""
        return self._run("apply", function=function, **options)

    mul = multiply

    def _run(self, method: str, *operands: ArrayLike, **options: Any) -> Array:
        entries = tuple(_static(entry) for entry in self._index)
        arrays = [
            np.asarray(given) if isinstance(given, list) else given
            for given, entry in zip(self._index, entries, strict=True)
            if entry is _ARRAY
        ]
        compiled = _compiled(method, entries, tuple(sorted(options.items())))
        return compiled(self._x, arrays, *operands)


class _Array:
    """The place of an array among the entries of an index."""


_ARRAY = _Array()


def _static(entry: Any) -> Any:
    """A hashable value for an entry of an index: slices are not."""
    if isinstance(entry, slice):
        return ("slice", entry.start, entry.stop, entry.step)
    if isinstance(entry, (DeviceArray, np.ndarray, list)):
        return _ARRAY
    return entry


@functools.lru_cache(maxsize=256)
def _compiled(
    method: str, entries: tuple[Any, ...], options: tuple[tuple[str, Any], ...]
) -> Callable[..., Array]:
    def update(x: Array, arrays: list[Array], *operands: ArrayLike) -> Array:
        rest = iter(arrays)
        index = tuple(
            next(rest)
            if entry is _ARRAY
            else slice(*entry[1:])
            if isinstance(entry, tuple)
            else entry
            for entry in entries
        )
        return getattr(IndexedUpdate(x, index), method)(*operands, **dict(options))

    return jit(update, device="cuda")
