"""The vocabulary of native routines: memory, atomics and C functions, all in 64 bits.

The runtime's own routines (thread pool, plan runner, call entry, GEMM tiles) are
written as Python functions over integers: every value is an i64, and addresses are
integers. ``compiler`` turns them into LLVM IR. The functions below are the
operations that integer arithmetic does not cover; they exist only in compiled code.

A Python module with native routines is compiled as one, when one of its routines is
first needed (``code``). Where it says ``LOOPS_OVER_DATA: Final = True`` it is
optimised as kernels are, which takes ten times as long; other modules are short of
loops that would gain by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, Literal


class NativeOnlyError(RuntimeError):
    """A native operation was called as Python."""


def _native_only() -> NativeOnlyError:
    return NativeOnlyError("this operation exists only in compiled native code")


@dataclass(frozen=True, slots=True)
class CFunction:
    """A C function of this process, called with i64 arguments."""

    symbol: str
    arity: int
    returns: Literal["i64", "i32", "void"] = "i64"

    def __call__(self, *arguments: int) -> int:
        raise _native_only()


@dataclass(frozen=True, slots=True, eq=False)
class Routine:
    """A native routine. Called from Python, it runs as Python, as far as it can.

    ``symbol`` is its name in object code, that of its module and its own; ``variables``
    are its local ones, the ``arity`` parameters first; ``module`` has the names of its
    module. ``is_inlined`` if it exists in its callers only.
    """

    function: Callable[..., int]
    symbol: str
    arity: int
    variables: tuple[str, ...]
    module: Mapping[str, Any]
    is_inlined: bool = False

    def __call__(self, *arguments: int) -> int:
        return self.function(*arguments)


def native(function: FunctionType) -> Routine:
    """Mark a function of integers as native."""
    symbol = f"{function.__module__}.{function.__name__}"
    code = function.__code__
    arity, variables = code.co_argcount, code.co_varnames
    return Routine(function, symbol, arity, variables, function.__globals__)


def inlined(function: FunctionType) -> Routine:
    """Mark a function as native and part of whatever routine of its module calls it.

    In a module that loops over data, one text so serves several widths or kinds: each
    caller has a copy made for the constants that it gives.
    """
    return replace(native(function), is_inlined=True)


def load(address: int) -> int:
    """The i64 at ``address``."""
    raise _native_only()


def load_i32(address: int) -> int:
    """The i32 at ``address``, sign-extended."""
    raise _native_only()


def load_u8(address: int) -> int:
    """The byte at ``address``."""
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


def atomic_load(address: int) -> int:
    """The i64 at ``address``; later reads are not moved before it (acquire)."""
    raise _native_only()


def atomic_store(address: int, value: int) -> None:
    """Write an i64; earlier writes are seen by whoever reads it (release)."""
    raise _native_only()


def atomic_add(address: int, value: int) -> int:
    """Add to an i64, sequentially consistent; the value before."""
    raise _native_only()


def atomic_exchange_if(address: int, expected: int, value: int) -> int:
    """Write ``value`` if the i64 is ``expected``, seq. consistent; what it was."""
    raise _native_only()


def cycles() -> int:
    """A counter of some 10^9 a second: of the core's cycles, or a timer."""
    raise _native_only()


def pause() -> None:
    """Tell the core that this is a spinning loop."""
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


def address_of(function: Routine | CFunction) -> int:
    """The address of a native routine or C function."""
    raise _native_only()
