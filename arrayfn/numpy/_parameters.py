"""Further keyword arguments of a public function: other names, and hints.

NumPy's name of a parameter is the name. Where another library calls it differently, or
takes hints about its own algorithms and memory, a program that gives them runs too.
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

    A hint chooses among another library's algorithms, or lets it overwrite memory; the
    result is the same without. ``names`` maps a name to the parameter's own one.

    >>> @also_takes("check_finite", M="A")
    ... def rank(A, tol=0.0):
    ...     return A, tol
    >>> rank(M=1, tol=2.0, check_finite=False)
    (1, 2.0)
    """

    def decorate(function: F) -> F:
        """``function`` with the further parameters, and a signature that has them."""

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            """The function, without hints, and with its own names of parameters."""
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
    """Give the option ``name`` the name ``own``; ArgumentError if both are given."""
    if own in options:
        raise ArgumentError(
            f"{function.__name__} was given {name} and {own}, two names of one "
            "argument; leave out one",
            user_location(),
        )
    options[own] = options.pop(name)
