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
from functools import cache
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar, overload

from typing_extensions import override

from arrayfn.backends.native.structures import Array, function_types
from arrayfn.records import frozen

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class NativeOnlyError(RuntimeError):
    """An operation that exists only in compiled code was called as Python."""


def _native_only() -> NativeOnlyError:
    """Make the error that all operations below raise when Python calls them."""
    return NativeOnlyError("this operation exists only in compiled native code")


class CFunction(Generic[P, R]):
    """A C function that native routines may call, given by its types and its symbol.

    ``CFunction[[Array[u8], int], None]("name")`` takes a pointer and an int, and
    returns nothing.
    """

    def __init__(self, symbol: str) -> None:
        self.symbol = symbol

    def types(self) -> tuple[list[Any], Any]:
        """Return the annotated types of its parameters, and that of its result."""
        # ``CFunction[...]("name")`` keeps the type arguments in ``__orig_class__``.
        kinds, result = typing.get_args(vars(self)["__orig_class__"])
        return list(kinds), result

    @override
    def __str__(self) -> str:
        return f"{self.symbol} {self.types()}"

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        raise _native_only()


@frozen(slots=True, eq=False)
class Routine(Generic[P, R]):
    """A native routine: a Python function that ``compiler`` compiles.

    ``symbol`` is its name in object code, ``<module>.<name>``. ``arity`` is its number
    of parameters, ``module`` the globals of its Python module. A call from Python runs
    the Python function, which fails at operations that exist only in compiled code.
    """

    function: Callable[P, R]
    symbol: str
    arity: int
    module: Mapping[str, Any]

    def types(self) -> tuple[list[Any], Any]:
        """Return the annotated types of its parameters, and that of its result."""
        return _types(self.function)

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        return self.function(*arguments, **named)


_types = cache(function_types)


def routines_in(names: Mapping[str, Any]) -> list[Routine[..., Any]]:
    """Return the routines among a module's globals ``names``, imported ones too.

    Each routine is listed once, even if it has several names.
    """
    return list({x: None for x in names.values() if isinstance(x, Routine)})


def native(function: Callable[P, R]) -> Routine[P, R]:
    """Make a native ``Routine`` of a function; a decorator."""
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
    """Allocate an array of ``count`` elements on the routine's stack.

    ``count`` is a constant. The elements are not initialised.
    """
    raise _native_only()


def pointer(location: T) -> Array[T]:
    """Return the address of a field or element, as an array of one element."""
    raise _native_only()


def size_of(kind: type[Any]) -> int:
    """Return the bytes that an element of the type ``kind`` takes in an array."""
    raise _native_only()


def atomic_load(location: int) -> int:
    """Load an integer field or element atomically, with acquire ordering."""
    raise _native_only()


def atomic_store(location: int, value: int) -> None:
    """Store to an integer field or element atomically, with release ordering."""
    raise _native_only()


def atomic_add(location: int, value: int) -> int:
    """Add to an integer field or element atomically; return the value before.

    The operation is sequentially consistent.
    """
    raise _native_only()


def atomic_exchange_if(location: int, expected: int, value: int) -> int:
    """Write ``value`` if the location holds ``expected``; return the value before.

    This is an atomic compare and swap, sequentially consistent.
    """
    raise _native_only()


def cycles() -> int:
    """Read the core's cycle counter, or a timer that counts about 10**9 per second."""
    raise _native_only()


def pause() -> None:
    """Tell the core that this is a spinning loop."""
    raise _native_only()
