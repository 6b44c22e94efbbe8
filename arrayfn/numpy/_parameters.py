"""Further keyword arguments of a public function: other names, and hints.

A parameter has the name that NumPy gives it. Another library may use another name, or
have hints about its own algorithms and memory. With ``also_takes``, programs that pass
these names and hints run, too.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from arrayfn.errors import ArgumentError, user_location

F = TypeVar("F", bound=Callable[..., Any])


def also_takes(*hints: str, **names: str) -> Callable[[F], F]:
    """Let a function take ``hints``, which it ignores, and ``names`` of parameters.

    A hint chooses among another library's algorithms, or lets it overwrite memory. The
    result is the same without the hint. ``names`` maps an alternative name to the name
    of a parameter. The decorated function raises ArgumentError if both names are given.

    >>> @also_takes("check_finite", M="A")
    ... def rank(A, tol=0.0):
    ...     return A, tol
    >>> rank(M=1, tol=2.0, check_finite=False)
    (1, 2.0)
    """

    def decorate(function: F) -> F:
        """Wrap ``function``, and show the further parameters in its signature.

        The attribute ``hints`` of the result holds the names of the ignored parameters.
        """

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            """Call the function without hints, and with its own names of parameters."""
            if options:
                for hint in hints:
                    options.pop(hint, None)
                for name, own in names.items():
                    if name in options:
                        _rename(function, options, name, own)
            return function(*args, **options)

        own = inspect.signature(function)
        more = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=..., annotation="Any"
            )
            for name in (*hints, *names)
        ]
        parameters = [*own.parameters.values(), *more]
        signature = own.replace(parameters=parameters)
        cast(Any, call).__signature__ = signature
        cast(Any, call).hints = frozenset(hints)
        return cast(F, call)

    return decorate


def _rename(function: Any, options: dict[str, Any], name: str, own: str) -> None:
    """Rename the key ``name`` of ``options`` to ``own``, in place.

    Raises ArgumentError, about ``function``, if both are given.
    """
    if own in options:
        raise ArgumentError(
            f"{function.__name__} was given {name} and {own}, two names of one "
            "argument; leave out one",
            user_location(),
        )
    options[own] = options.pop(name)
