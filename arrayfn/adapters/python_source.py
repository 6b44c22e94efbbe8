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
    """A copy of ``python`` that calls arrayfn's functions in place of ``math``'s.

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
        used.setdefault(name, _extreme(name))
    scope = {**python.__globals__, **used}
    made = FunctionType(
        python.__code__,
        scope,
        python.__name__,
        python.__defaults__,
        python.__closure__,
    )
    made.__kwdefaults__ = python.__kwdefaults__
    return made


def _replaced(value: Any) -> Any:
    """The replacement of ``value``, a global name of the function, in the copy."""
    if value is math:
        return _math()
    name = getattr(value, "__name__", "")
    if getattr(math, name, None) is value and name in {*_NAMES, *_SPECIAL}:
        return getattr(_math(), name)
    return value


@functools.cache
def _math() -> Any:
    """A stand-in for the module ``math``, whose functions also take traced values."""
    whole = dict(vars(math))
    whole.update({name: _array_function(name) for name in {*_NAMES, *_SPECIAL}})
    return SimpleNamespace(**whole)


def _array_function(name: str) -> Function:
    """The function ``name`` of ``math``, which also takes arrays and traced values."""
    theirs = getattr(math, name)

    def function(*operands: Any) -> Any:
        """Call math's function on plain numbers, and arrayfn's on others."""
        if not any(isinstance(x, ImmutableArray) for x in operands):
            return theirs(*operands)
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
    """The built-in function ``name``, min or max, which also takes traced numbers."""
    theirs = getattr(builtins, name)

    def function(*values: Any, **options: Any) -> Any:
        """Call the built-in on plain numbers, and arrayfn's function on others."""
        if len(values) < 2 or not any(isinstance(x, ImmutableArray) for x in values):
            return theirs(*values, **options)
        return functools.reduce(namespace().functions[f"{name}imum"], values)

    function.__name__ = name
    return function
