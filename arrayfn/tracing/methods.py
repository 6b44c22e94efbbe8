"""Operators and methods of arrays, made of functions looked up by name.

This module cannot import ``arrayfn.numpy``, which imports it. When a function is first
needed, ``arrayfn.numpy`` is imported by name, and fills ``Namespace``.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, NoReturn

import numpy as np

from arrayfn import dtypes
from arrayfn.array_likes import adopted
from arrayfn.errors import ArgumentError, DTypeError, InPlaceError, user_location


class Operand:
    """The base class of arrayfn's own arrays, which operators recognise.

    Modules that do not import this one recognise them by ``__arrayfn_array__``.
    """

    __slots__ = ()
    __arrayfn_array__ = True


class Namespace:
    """The functions that operators, methods, ufuncs and NumPy's functions call.

    Attributes:
        functions: arrayfn's functions, by name.
        ufuncs: arrayfn's functions for NumPy's ufuncs, by (ufunc, method).
        array_functions: arrayfn's functions for other functions of NumPy's.
        changing: functions of NumPy's that change an argument.
        module: the module ``arrayfn.numpy``, which fills all of the above.
        special: arrayfn's functions for SciPy's ufuncs, by name.
        numpy_module: the name of ``arrayfn.numpy``, which ``namespace()`` imports.
        special_module: the name of the module that fills ``special``; it is imported
            when such a ufunc is called.
        numba_module: the name of the module that calls functions that Numba compiled;
            it is imported when one is called.
    """

    functions: ClassVar[dict[str, Callable[..., Any]]] = {}
    ufuncs: ClassVar[dict[tuple[Any, str], Callable[..., Any]]] = {}
    array_functions: ClassVar[dict[Any, Callable[..., Any]]] = {}
    changing: ClassVar[set[Any]] = set()
    special: ClassVar[dict[str, Callable[..., Any]]] = {}
    special_module: ClassVar[str]
    numba_module: ClassVar[str]
    numpy_module: ClassVar[str]
    module: ClassVar[Any] = None


@cache
def namespace() -> type[Namespace]:
    """Import ``arrayfn.numpy``, which fills ``Namespace``, and return ``Namespace``."""
    import_module(Namespace.numpy_module)
    return Namespace


def function_for(ufunc: Any, method: str) -> Callable[..., Any] | None:
    """Return arrayfn's function for a method of a NumPy, SciPy or Numba ufunc, or None.

    Looks for SciPy's and Numba's ufuncs only if these packages are imported already.
    """
    function = namespace().ufuncs.get((ufunc, method))
    if function is None and method == "__call__":
        name = ufunc.__name__
        scipy_special = sys.modules.get("scipy.special")
        if getattr(scipy_special, name, None) is ufunc:
            import_module(Namespace.special_module)
            return Namespace.special.get(name)
        if "numba" in sys.modules:
            return import_module(Namespace.numba_module).ufunc_for(ufunc)
    return function


def operator(name: str) -> Callable[..., Any]:
    """Make a method that calls the function ``name`` of ``Namespace``."""

    def method(self: Any, *operands: Any, **options: Any) -> Any:
        """Call the function on ``self`` and the operands.

        A binary operator first converts an array of another library (``adopted``). It
        returns NotImplemented for an object that is no array, and raises ArgumentError
        for a sequence.
        """
        if name in _BINARY and operands and not is_operand(operands[0]):
            other = adopted(operands[0])
            if other is operands[0]:
                return _not_an_operand(name, other)
            operands = (other, *operands[1:])
        return namespace().functions[name](self, *operands, **options)

    method.__name__ = name
    return method


def reflected(name: str) -> Callable[[Any, Any], Any]:
    """Make a reflected operator, such as ``__radd__``, from the function ``name``."""

    def method(self: Any, other: Any) -> Any:
        """Compute ``other`` op ``self``.

        Python calls this if ``other`` does not implement the operator for ``self``.
        Raises ArgumentError for a sequence. Returns NotImplemented for another object
        that is no array, and Python raises TypeError.
        """
        operand = other if is_operand(other) else adopted(other)
        if operand is other and not is_operand(other):
            return _not_an_operand(name, other)
        return namespace().functions[name](operand, self)

    return method


def _not_an_operand(name: str, value: Any) -> Any:
    """Return NotImplemented, for an operator that cannot take ``value``.

    Raises ArgumentError for sequences, because their own operators would repeat or join
    them. ``name`` is the operator's name, for the message.
    """
    if isinstance(value, (list, tuple, str, bytes)):
        text = f"{name} takes arrays and numbers, not {type(value).__name__}"
        if isinstance(value, (list, tuple)):
            text += "; convert it with arrayfn.numpy.asarray"
        raise ArgumentError(text, user_location())
    return NotImplemented


def is_operand(value: Any) -> bool:
    """Whether ``value`` is an array, a number or a traced value."""
    return isinstance(
        value, (Operand, np.ndarray, np.generic)
    ) or dtypes.is_python_scalar(value)


_BINARY = frozenset(
    {
        "add",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "equal",
        "floor_divide",
        "greater",
        "greater_equal",
        "left_shift",
        "less",
        "less_equal",
        "matmul",
        "multiply",
        "not_equal",
        "power",
        "remainder",
        "right_shift",
        "subtract",
        "true_divide",
    }
)


def in_place_method(name: str, instead: str) -> Callable[..., NoReturn]:
    """Make a method that refuses ``x.name(...)`` and says what to write instead."""

    def method(self: Any, *args: Any, **options: Any) -> NoReturn:
        """Raise InPlaceError: the array is immutable."""
        raise InPlaceError(
            f"x.{name}(...) would change an array {self.KIND}, and those are "
            f"immutable; write x = {instead}",
            user_location(),
        )

    return method


def in_dtype(
    name: str, inputs: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Convert the operands of a ufunc that is called with ``dtype=``.

    Returns the operands and the other options. With ``dtype=bool`` the operands are not
    converted: such ufuncs are comparisons, which are computed in the dtype of their
    operands. Raises DTypeError for an operand that needs an unsafe conversion.
    """
    dtype = dtypes.canonical(options["dtype"])
    rest = {name: value for name, value in options.items() if name != "dtype"}
    if dtype == dtypes.bool_:
        return inputs, rest
    converted: list[Any] = []
    for x in inputs:
        if not dtypes.is_python_scalar(x) and x.dtype != dtype:
            if not np.can_cast(x.dtype, dtype, "same_kind"):
                raise DTypeError(
                    f"{name} with dtype={dtype} does not convert an operand of dtype "
                    f"{x.dtype}; convert it first, with .astype",
                    user_location(),
                )
            x = namespace().functions["astype"](x, dtype)
        converted.append(x)
    return tuple(converted), rest


def called(name: str, function: Callable[..., Any], args: Any, options: Any) -> Any:
    """Call ``function`` with the arguments given for NumPy's function ``name``.

    Raises ArgumentError if ``function`` does not have these parameters.
    """
    try:
        return function(*args, **options)
    except TypeError:
        # Arguments that do not fit, or an error inside the function?
        try:
            inspect.signature(function).bind(*args, **options)
        except TypeError as misfit:
            raise ArgumentError(
                f"{name} cannot be traced with these arguments: {misfit}",
                user_location(),
            ) from None
        raise
