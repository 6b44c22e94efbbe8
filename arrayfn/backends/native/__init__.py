"""The vocabulary of native routines: memory, atomics and C functions.

The runtime's own routines (thread pool, plan runner, heap, call entry) are written as
typed Python functions: numbers, structures with named fields, arrays, and C functions
(see ``structures``). ``compiler`` turns them into LLVM IR. The functions below are the
operations that Python has no notation for; they exist only in compiled code.

A Python module with native routines is compiled as one, when one of its routines is
first needed (``code``).
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar, overload

from typing_extensions import override

from arrayfn.backends.native.structures import Array, function_types

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class NativeOnlyError(RuntimeError):
    """An operation that exists only in compiled code was called as Python."""


def _native_only() -> NativeOnlyError:
    return NativeOnlyError("this operation exists only in compiled native code")


class CFunction(Generic[P, R]):
    """A C function of this process: ``CFunction[[Array[u8], int], None]("name")``."""

    def __init__(self, symbol: str) -> None:
        self.symbol = symbol

    def types(self) -> tuple[list[Any], Any]:
        """The annotated types of its parameters, and of its result."""
        kinds, result = typing.get_args(vars(self)["__orig_class__"])
        return list(kinds), result

    @override
    def __str__(self) -> str:
        return f"{self.symbol} {self.types()}"

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        raise _native_only()


@dataclass(frozen=True, slots=True, eq=False)
class Routine(Generic[P, R]):
    """A native routine; called from Python, it runs as Python, as far as it can.

    ``symbol`` is its name in object code, that of its module and its own; ``module``
    has the names of its module.
    """

    function: Callable[P, R]
    symbol: str
    arity: int
    module: Mapping[str, Any]

    def types(self) -> tuple[list[Any], Any]:
        """The annotated types of its parameters, and of its result."""
        return _types(self.function)

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        return self.function(*arguments, **named)


_types = cache(function_types)


def routines_in(names: Mapping[str, Any]) -> list[Routine[..., Any]]:
    """The routines among the globals ``names`` of a module, imported ones too."""
    return list({x: None for x in names.values() if isinstance(x, Routine)})


def native(function: Callable[P, R]) -> Routine[P, R]:
    """Decorator: make a ``Routine``, which ``compiler`` compiles, of a function."""
    assert isinstance(function, FunctionType)
    symbol = f"{function.__module__}.{function.__name__}"
    arity = function.__code__.co_argcount
    return Routine(function, symbol, arity, function.__globals__)


@overload
def cast(kind: type[T], pointer: object) -> T: ...


@overload
def cast(kind: Any, pointer: object) -> Any: ...


def cast(kind: Any, pointer: object) -> Any:
    """Convert a pointer or address to another pointer type, or to ``int``."""
    raise _native_only()


def local(kind: type[T], count: int) -> Array[T]:
    """Allocate ``count`` (a constant) elements on the routine's stack."""
    raise _native_only()


def pointer(location: T) -> Array[T]:
    """The address of a field or element, as an array of one element."""
    raise _native_only()


def size_of(kind: type[Any]) -> int:
    """The bytes that an element of the type ``kind`` takes in an array."""
    raise _native_only()


def atomic_load(location: int) -> int:
    """Load an integer field or element; later reads stay later (acquire)."""
    raise _native_only()


def atomic_store(location: int, value: int) -> None:
    """Store to a field or element; whoever reads it sees earlier writes (release)."""
    raise _native_only()


def atomic_add(location: int, value: int) -> int:
    """Add to a field or element, sequentially consistent; return the value before."""
    raise _native_only()


def atomic_exchange_if(location: int, expected: int, value: int) -> int:
    """Compare and swap: write ``value`` if ``expected`` is there; the value before."""
    raise _native_only()


def cycles() -> int:
    """Read the core's cycle counter, or a timer that counts some 10^9 a second."""
    raise _native_only()


def pause() -> None:
    """Tell the core that this is a spinning loop."""
    raise _native_only()
