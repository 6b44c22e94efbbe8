"""Python functions in Programs, which refer to them by name.

A param of an equation is a ``NamedFunction``: a str with the function attached. So a
Program can be printed, and keeps its functions alive. ``FUNCTIONS`` finds a function by
its name, for Programs that are read from text.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any, Final, Self

from arrayfn.errors import ProgramError


class NamedFunction(str):
    """The name by which a Program refers to a Python function, with the function."""

    __slots__ = ("__weakref__", "function")

    function: Callable[..., Any]

    def __new__(cls, name: str, function: Callable[..., Any]) -> Self:
        """Make ``name`` with ``function`` attached."""
        named = super().__new__(cls, name)
        named.function = function
        return named


class FunctionTable:
    """The Python functions that Programs refer to, by name.

    The table holds functions by weak references: a function lives as long as a Program
    that refers to it. Compiled code calls functions without a Program, so it calls
    ``keep`` for them.
    """

    def __init__(self) -> None:
        """Make an empty table."""
        self._numbers = itertools.count()  # for unique names
        self._by_name: weakref.WeakValueDictionary[str, NamedFunction] = (
            weakref.WeakValueDictionary()
        )
        self._kept: dict[str, NamedFunction] = {}  # those that stay alive

    def name(self, function: Callable[..., Any], label: str) -> NamedFunction:
        """Make a unique name ``label#number`` for ``function``, and add it."""
        named = NamedFunction(f"{label}#{next(self._numbers)}", function)
        self._by_name[str(named)] = named
        return named

    def keep(self, name: str) -> None:
        """Keep the function called ``name`` as long as the process lives."""
        self._kept[str(name)] = self.find(name)

    def find(self, name: str) -> NamedFunction:
        """Return the function called ``name``, as a NamedFunction.

        Raises ProgramError if this process has no such function, or has deleted it.
        """
        if isinstance(name, NamedFunction):
            return name
        named = self._by_name.get(name)
        if named is None:
            raise ProgramError(
                f"the Python function {name!r} that this Program names is not there: "
                "it belongs to another process, or to a Program that is gone"
            )
        return named


FUNCTIONS: Final = FunctionTable()
