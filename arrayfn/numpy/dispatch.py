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
from arrayfn.errors import InPlaceError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy import arithmetic, manipulation, rearrangement, representation
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.numpy.ufuncs import ufunc
from arrayfn.primitives import complex_numbers
from arrayfn.tracing import Namespace, apply

Function = Callable[..., Any]


def reshape_method(x: ArrayLike, *shape: Any, order: str = "C") -> Array:
    """Reshape x for ``x.reshape(2, 3)`` or ``x.reshape((2, 3))``."""
    return manipulation.reshape(x, shape[0] if len(shape) == 1 else shape, order)


def transpose_method(x: ArrayLike, *axes: Any) -> Array:
    """Transpose x for ``x.transpose()``, ``x.transpose(1, 0)`` and similar calls.

    A single tuple or list also gives the order of axes.
    """
    if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], (tuple, list))):
        return manipulation.transpose(x, axes[0])
    return manipulation.transpose(x, axes or None)


def view_method(x: ArrayLike, dtype: DTypeLike) -> Array:
    """Read the bits of x as another dtype, for ``x.view(np.int32)``.

    If the dtype has another width, the last axis becomes longer or shorter. Raises
    ShapeError if its bytes are no whole number of elements.
    """
    type, wanted = ops.type_of_operand("view", x), dtypes.canonical(dtype)
    if type.dtype != wanted and type.ndim:
        # A complex number is a pair of floats, the real part first.
        if type.dtype in dtypes.COMPLEX:
            pairs = manipulation.stack([arithmetic.real(x), arithmetic.imag(x)], -1)
            return view_method(
                manipulation.reshape(pairs, (*type.shape[:-1], -1)), wanted
            )
        if wanted in dtypes.COMPLEX:
            parts = view_method(x, dtypes.real_of(wanted))
            halves = parts[..., ::2], parts[..., 1::2]
            return apply(complex_numbers.make_complex, *halves)
    # bits_as adds a last axis for the parts of wider elements, or merges such an axis.
    old_size, new_size = type.dtype.itemsize, wanted.itemsize  # in bytes
    if old_size == new_size or not type.ndim:
        return representation.bits_as(x, wanted)
    outer, extent = type.shape[:-1], type.shape[-1]
    if old_size > new_size:
        return manipulation.reshape(
            representation.bits_as(x, wanted), (*outer, extent * (old_size // new_size))
        )
    if extent * old_size % new_size:
        raise ShapeError(
            f"view: the last axis of {type} has no whole number of "
            f"{dtypes.short_name(wanted)}",
            user_location(),
        )
    count = new_size // old_size
    parts = manipulation.reshape(x, (*outer, extent // count, count))
    return representation.bits_as(parts, wanted)


def byteswap_method(x: ArrayLike, inplace: bool = False) -> Array:
    """Reverse the bytes of each element, for ``x.byteswap()``.

    Both parts of a complex number are reversed. Raises InPlaceError for ``inplace``.
    """
    if inplace:
        raise InPlaceError(
            "byteswap would change its array; use the result of x.byteswap()",
            user_location(),
        )
    type = ops.type_of_operand("byteswap", x)
    if type.dtype in dtypes.COMPLEX:
        parts = [
            byteswap_method(part(x)) for part in (arithmetic.real, arithmetic.imag)
        ]
        return apply(complex_numbers.make_complex, *parts)
    if type.dtype.itemsize == 1:
        return ops.same(x)
    octets = representation.bits_as(x, dtypes.uint8)
    return representation.bits_as(rearrangement.flip(octets, -1), type.dtype)


_CHANGING = (np.fill_diagonal, np.place, np.put, np.put_along_axis)
"""NumPy functions that change an array; arrayfn's of the same name return a copy."""


_METHODS = ("reduce", "accumulate", "reduceat", "outer")


def install(functions: Mapping[str, Function], module: Any) -> None:
    """Make Tracers and NumPy's functions call the public functions of arrayfn.

    ``functions`` maps names to functions, and ``module`` is arrayfn.numpy. The function
    fills the tables of ``Namespace``: for methods and operators of Tracers, for NumPy's
    ufuncs, and for other NumPy functions, which NumPy calls through
    ``__array_function__``.
    """
    # Call the Python function of a ufunc directly, without the ufunc's options.
    plain = {
        name: function.call if isinstance(function, ufunc) else function
        for name, function in functions.items()
    }
    Namespace.functions.update(plain)
    Namespace.functions.update(
        reshape_method=reshape_method,
        transpose_method=transpose_method,
        view_method=view_method,
        byteswap_method=byteswap_method,
    )
    Namespace.module = module
    Namespace.changing.update(_CHANGING)
    for name, function in functions.items():
        theirs = getattr(np, name, None)
        if function is theirs:
            continue  # NumPy's own function, for concrete arrays
        if isinstance(theirs, np.ufunc):
            Namespace.ufuncs[theirs, "__call__"] = plain[name]
            if isinstance(function, ufunc):
                methods = _METHODS if function.nin == 2 else ()
                for method in methods:
                    Namespace.ufuncs[theirs, method] = getattr(function, method)
        elif callable(theirs) and not isinstance(theirs, type):
            Namespace.array_functions[theirs] = function


def install_module(ours: ModuleType, named: str) -> None:
    """Make the functions of NumPy's module ``named`` call ``ours`` on Tracers.

    ``ours`` is a module of arrayfn with functions of the same names.
    """
    theirs = getattr(np, named)
    for name in ours.__all__:
        function = getattr(theirs, name, None)
        if function is not None:
            Namespace.array_functions.setdefault(function, getattr(ours, name))
