"""The vocabulary of native routines: memory, atomics and C functions.

The runtime's own routines (thread pool, plan runner, heap, call entry) are written as
typed Python functions: numbers, structures with named fields, arrays, and C functions
(see ``structures``). ``compiler`` turns them into LLVM IR. The functions below are the
operations that Python has no sign for; they exist only in compiled code.

A Python module with native routines is compiled as one, when one of its routines is
first needed (``code``). Where it says ``LOOPS_OVER_DATA: Final = True`` it is
optimised as kernels are, which takes ten times as long; other modules are short of
loops that would gain by it.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import FunctionType
from typing import Any, Final, Generic, Literal, ParamSpec, TypeVar, overload

from arrayfn.backends.native.structures import Array, function_types, i32

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class NativeOnlyError(RuntimeError):
    """A native operation was called as Python."""


def _native_only() -> NativeOnlyError:
    return NativeOnlyError("this operation exists only in compiled native code")


class CFunction(Generic[P, R]):
    """A C function of this process: ``CFunction[[Array[u8], int], None]("name")``.

    Without types it is one of ``arity`` integers.
    """

    def __init__(
        self,
        symbol: str,
        arity: int = 0,
        returns: Literal["i64", "i32", "void"] = "i64",
    ) -> None:
        self.symbol = symbol
        self._arity = arity
        self._returns = returns

    def types(self) -> tuple[list[Any], Any]:
        """The annotated types of its parameters, and of its result."""
        given = typing.get_args(getattr(self, "__orig_class__", None))
        if given:
            kinds, result = given
            return list(kinds), result
        return [int] * self._arity, _RESULTS[self._returns]

    def __str__(self) -> str:
        return f"{self.symbol} {self.types()}"

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        raise _native_only()


@dataclass(frozen=True, slots=True, eq=False)
class Routine(Generic[P, R]):
    """A native routine. Called from Python, it runs as Python, as far as it can.

    ``symbol`` is its name in object code, that of its module and its own; ``module``
    has the names of its module. ``is_inlined`` if it exists in its callers only.
    A generic one has type variables; ``bound`` are types by the names of these.
    """

    function: Callable[P, R]
    symbol: str
    arity: int
    module: Mapping[str, Any]
    is_inlined: bool = False
    is_generic: bool = False
    bound: tuple[tuple[str, Any], ...] = ()

    def types(self) -> tuple[list[Any], Any]:
        """The annotated types of its parameters, and of its result."""
        return _types(self.function, self.bound)

    def of(self, **kinds: Any) -> Routine[..., Any]:
        """The generic routine for types: ``Array[T]`` is ``Array[f32]`` for ``T=f32``.

        Its module has a name for it, or a dictionary with it. Generic routines of the
        module that it calls are of the same types.
        """
        names = ",".join(kind.__name__ for kind in kinds.values())
        symbol, bound = f"{self.symbol}[{names}]", tuple(kinds.items())
        return replace(self, symbol=symbol, bound=bound, is_generic=False)

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        return self.function(*arguments, **named)


_types = cache(function_types)
_RESULTS: Final = {"i64": int, "i32": i32, "void": type(None)}


def routines_in(names: Mapping[str, Any]) -> list[Routine[..., Any]]:
    """The routines that a module has by name, or in dictionaries; no generic ones."""
    found: dict[Routine[..., Any], None] = {}
    for value in names.values():
        held = value.values() if isinstance(value, dict) else (value,)
        found |= {x: None for x in held if isinstance(x, Routine) and not x.is_generic}
    return list(found)


def native(function: Callable[P, R]) -> Routine[P, R]:
    """Mark a function as native."""
    assert isinstance(function, FunctionType)
    symbol = f"{function.__module__}.{function.__name__}"
    arity = function.__code__.co_argcount
    return Routine(function, symbol, arity, function.__globals__)


def generic(function: Callable[P, R]) -> Routine[P, R]:
    """Mark a function as native, for types that ``Routine.of`` gives."""
    return replace(native(function), is_generic=True)


def inlined(function: Callable[P, R]) -> Routine[P, R]:
    """Mark a function as native and part of whatever routine of its module calls it.

    In a module that loops over data, one text so serves several widths or kinds: each
    caller has a copy made for the constants that it gives.
    """
    return replace(native(function), is_inlined=True)


@overload
def cast(kind: type[T], pointer: object) -> T: ...


@overload
def cast(kind: Any, pointer: object) -> Any: ...


def cast(kind: Any, pointer: object) -> Any:
    """A pointer or address as a pointer of another type, or as an address: ``int``."""
    raise _native_only()


def local(kind: type[T], count: int) -> Array[T]:
    """``count`` (a constant) elements on the routine's stack."""
    raise _native_only()


def pointer(location: T) -> Array[T]:
    """The address of a field or element, as an array of one."""
    raise _native_only()


def size_of(kind: type[Any]) -> int:
    """The bytes of an element of an array."""
    raise _native_only()


def atomic_load(location: int) -> int:
    """The integer at a field or element; later reads are not moved before (acquire)."""
    raise _native_only()


def atomic_store(location: int, value: int) -> None:
    """Write a field or element; earlier writes are seen by who reads it (release)."""
    raise _native_only()


def atomic_add(location: int, value: int) -> int:
    """Add to a field or element, sequentially consistent; the value before."""
    raise _native_only()


def atomic_exchange_if(location: int, expected: int, value: int) -> int:
    """Write ``value`` if there is ``expected``, seq. consistent; what there was."""
    raise _native_only()


def sqrt(x: float) -> float:
    """The square root."""
    raise _native_only()


def cycles() -> int:
    """A counter of some 10^9 a second: of the core's cycles, or a timer."""
    raise _native_only()


def pause() -> None:
    """Tell the core that this is a spinning loop."""
    raise _native_only()


# Untyped words, which linear algebra is still written in: addresses are integers, and
# floating-point numbers are bits. They go with its last routines.


def load(address: int) -> int:
    """The i64 at ``address``."""
    raise _native_only()


def load_i32(address: int) -> int:
    """The i32 at ``address``, sign-extended."""
    raise _native_only()


def store(address: int, value: int) -> None:
    """Write an i64."""
    raise _native_only()


def store_i32(address: int, value: int) -> None:
    """Write the low 32 bits of ``value``."""
    raise _native_only()


def store_u8(address: int, value: int) -> None:
    """Write the low 8 bits of ``value``."""
    raise _native_only()


def stack(words: int) -> int:
    """The address of ``words`` (a constant) i64 words on the routine's stack."""
    raise _native_only()


def narrow_f64(bits: int) -> int:
    """The bits of the f32 nearest to the f64 with these bits."""
    raise _native_only()


def widen_f32(bits: int) -> int:
    """The bits of the f64 that the f32 with these low 32 bits is."""
    raise _native_only()


def sub_f64(a: int, b: int) -> int:
    """The bits of the difference of two f64."""
    raise _native_only()


def div_f64(a: int, b: int) -> int:
    """The bits of the quotient of two f64."""
    raise _native_only()


def sqrt_f64(a: int) -> int:
    """The bits of the square root of an f64."""
    raise _native_only()


def less_f64(a: int, b: int) -> int:
    """Whether ``a < b``, of two f64; not if one is NaN."""
    raise _native_only()


LANES = 4
"""How many f64 in a row the operations below are of; addresses are multiples of 8."""


def lanes_add_product(y: int, a: int, b: int) -> None:
    """Add to the lanes at ``y`` the products of those at ``a`` and ``b``."""
    raise _native_only()


def lanes_sub_product(y: int, a: int, b: int) -> None:
    """Take from the lanes at ``y`` the products of those at ``a`` and ``b``."""
    raise _native_only()


def lanes_mul(y: int, a: int) -> None:
    """Multiply the lanes at ``y`` by those at ``a``."""
    raise _native_only()


def lanes_div(y: int, a: int) -> None:
    """Divide the lanes at ``y`` by those at ``a``."""
    raise _native_only()


def lanes_sqrt(y: int) -> None:
    """Replace the lanes at ``y`` by their square roots."""
    raise _native_only()


def call(address: int, *arguments: int) -> int:
    """Call the function at ``address`` with i64 arguments."""
    raise _native_only()
