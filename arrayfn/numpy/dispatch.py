"""Dispatch from Tracers and NumPy: ``x + y``, ``x.sum()``, ``np.exp(x)``.

The tables are derived from the public functions: a function with the name of a NumPy
function replaces it in traced code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.numpy import cumulative, manipulation, reductions
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.primitives import conversion
from arrayfn.tracing import Namespace, apply

Function = Callable[..., Any]


def reshape_method(x: ArrayLike, *shape: Any, order: str = "C") -> Array:
    """``x.reshape(2, 3)`` or ``x.reshape((2, 3))``."""
    return manipulation.reshape(x, shape[0] if len(shape) == 1 else shape, order)


def transpose_method(x: ArrayLike, *axes: Any) -> Array:
    """``x.transpose()``, ``x.transpose(1, 0)`` or ``x.transpose((1, 0))``."""
    if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], (tuple, list))):
        return manipulation.transpose(x, axes[0])
    return manipulation.transpose(x, axes or None)


def view_method(x: ArrayLike, dtype: DTypeLike) -> Array:
    """``x.view(np.int32)``: the bits of x as another dtype of the same width."""
    return apply(conversion.bitcast, x, dtype=dtypes.canonical(dtype))


def _along_first(reduction: Function) -> Function:
    """A ufunc's ``reduce``: the reduction, but along axis 0 by default."""

    def reduce(x: ArrayLike, axis: Any = 0, **options: Any) -> Array:
        return reduction(x, axis=axis, **options)

    return reduce


def _outer(function: Function) -> Function:
    """A ufunc's ``outer``: combines each element of x with each of y."""

    def outer(x: ArrayLike, y: ArrayLike) -> Array:
        ndim = reductions.ndim(y)
        first = reductions.ndim(x)
        spread = tuple(range(first, first + ndim))
        return function(manipulation.expand_dims(x, spread) if spread else x, y)

    return outer


_REDUCTIONS: dict[Any, Function] = {
    np.add: reductions.sum,
    np.multiply: reductions.prod,
    np.maximum: reductions.max,
    np.minimum: reductions.min,
    np.logical_and: reductions.all,
    np.logical_or: reductions.any,
}


_ACCUMULATIONS: dict[Any, Function] = {
    np.add: cumulative.cumsum,
    np.multiply: cumulative.cumprod,
    np.maximum: cumulative.cummax,
    np.minimum: cumulative.cummin,
}


_CHANGING = (np.fill_diagonal, np.place, np.put, np.put_along_axis)
"""NumPy functions that change an array, while ours of the same name return a copy."""


def install(functions: Mapping[str, Function], module: Any) -> None:
    """Install the public functions, by name, and their module for Tracers."""
    Namespace.functions.update(functions)
    Namespace.functions.update(
        reshape_method=reshape_method,
        transpose_method=transpose_method,
        view_method=view_method,
    )
    Namespace.module = module
    Namespace.changing.update(_CHANGING)
    for name, function in functions.items():
        theirs = getattr(np, name, None)
        if function is theirs:
            continue  # NumPy's own function, for concrete arrays
        if isinstance(theirs, np.ufunc):
            Namespace.ufuncs[theirs, "__call__"] = function
            if theirs.nin == 2:
                Namespace.ufuncs[theirs, "outer"] = _outer(function)
        elif callable(theirs) and not isinstance(theirs, type):
            Namespace.array_functions[theirs] = function
    for ufunc, accumulation in _ACCUMULATIONS.items():
        Namespace.ufuncs[ufunc, "accumulate"] = _along_first(accumulation)
    for ufunc, reduction in _REDUCTIONS.items():
        Namespace.ufuncs[ufunc, "reduce"] = _along_first(reduction)


def install_module(ours: ModuleType, named: str) -> None:
    """Make the functions of NumPy's module ``named`` call ours on Tracers."""
    theirs = getattr(np, named)
    for name in ours.__all__:
        function = getattr(theirs, name, None)
        if function is not None:
            Namespace.array_functions.setdefault(function, getattr(ours, name))
