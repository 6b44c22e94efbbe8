"""Python functions that were written for Numba, made traceable.

They call ``math``, and the built-in ``min`` and ``max``, on numbers. In the function
that is traced these names stand for functions of arrays.
"""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Callable
from importlib import import_module
from types import FunctionType, SimpleNamespace
from typing import Any, Final

from arrayfn.tracing import ImmutableArray, Namespace, namespace

Function = Callable[..., Any]

_NAMES: Final = {
    **{
        name: name
        for name in (
            *("sin", "cos", "tan", "sinh", "cosh", "tanh", "exp", "expm1", "log"),
            *("log1p", "log2", "log10", "sqrt", "hypot", "copysign", "degrees"),
            *("radians", "isnan", "isinf", "isfinite", "trunc", "floor", "ceil"),
        )
    },
    **{f"a{name}": f"arc{name}" for name in ("sin", "cos", "tan")},
    **{f"a{name}": f"arc{name}" for name in ("sinh", "cosh", "tanh")},
    "atan2": "arctan2",
    "fabs": "abs",
    "pow": "power",
}
_SPECIAL: Final = {"erf": "erf", "erfc": "erfc", "gamma": "gamma", "lgamma": "gammaln"}
_ROUNDING: Final = frozenset({"floor", "ceil", "trunc"})


def traceable(python: Function) -> Function:
    """Return a copy of ``python`` that calls arrayfn's functions instead of ``math``'s.

    The same holds for the built-in ``min`` and ``max``. The function itself does not
    change. Anything but a Python function is returned as it is.

    >>> def f(x):
    ...     return math.exp(max(x, 0.0))
    >>> traceable(f)(1.0)
    2.718281828459045
    """
    if not isinstance(python, FunctionType):
        return python
    used = {
        name: _replaced(value)
        for name, value in python.__globals__.items()
        if name in python.__code__.co_names
    }
    for name in ("min", "max"):
        used.setdefault(name, _extreme(name))  # unless the module defines its own
    scope = {**python.__globals__, **used}
    copy = FunctionType(
        python.__code__,
        scope,
        python.__name__,
        python.__defaults__,
        python.__closure__,
    )
    copy.__kwdefaults__ = python.__kwdefaults__
    return copy


def _replaced(value: Any) -> Any:
    """Return what stands for ``value``, a global of the function, in its copy.

    The module ``math`` and its functions are replaced, other values are not.
    """
    if value is math:
        return _math()
    name = getattr(value, "__name__", "")
    if getattr(math, name, None) is value and name in {*_NAMES, *_SPECIAL}:
        return getattr(_math(), name)
    return value


@functools.cache
def _math() -> Any:
    """Return a copy of the module ``math`` whose functions also take traced values."""
    whole = dict(vars(math))
    whole.update({name: _array_function(name) for name in {*_NAMES, *_SPECIAL}})
    return SimpleNamespace(**whole)


def _array_function(name: str) -> Function:
    """Return the function ``name`` of ``math`` for arrays and traced values as well."""
    math_function = getattr(math, name)

    def function(*operands: Any) -> Any:
        """Call math's function on plain numbers, and arrayfn's on others.

        ``log`` may have a base. ``floor``, ``ceil`` and ``trunc`` give integers.
        """
        if not any(isinstance(x, ImmutableArray) for x in operands):
            return math_function(*operands)
        if name in _SPECIAL:
            import_module(Namespace.special_module)
            return Namespace.special[_SPECIAL[name]](*operands)
        known = namespace().functions
        if name == "log" and len(operands) == 2:
            value, base = map(known["log"], operands)
            return known["true_divide"](value, base)
        value = known[_NAMES[name]](*operands)
        return value.astype("int64") if name in _ROUNDING else value

    function.__name__ = name
    return function


def _extreme(name: str) -> Function:
    """Return the built-in ``min`` or ``max`` for traced numbers as well."""
    builtin = getattr(builtins, name)

    def function(*values: Any, **options: Any) -> Any:
        """Call the built-in on plain numbers, and arrayfn's function on others."""
        if len(values) < 2 or not any(isinstance(x, ImmutableArray) for x in values):
            return builtin(*values, **options)
        # Of more than two values, by ``minimum`` or ``maximum`` of two at a time.
        return functools.reduce(namespace().functions[f"{name}imum"], values)

    function.__name__ = name
    return function
