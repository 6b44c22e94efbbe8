"""What library kernels are written in, besides the kernel language.

A library kernel is a Python function that Numba compiles like any kernel. Annotations
give the types of its parameters: ``int``, ``Array[int]``, ``Array[i32]``, and
``Array[Real]`` or ``Array[Bits]``, which depend on the dtype. So does a ``Constant``.
One text thus serves all dtypes. ``a + k`` is the pointer to element ``k`` of ``a``. The
functions below exist only in compiled code.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeAlias, TypeVar

from arrayfn.backends.native.structures import Array, i32, u8
from arrayfn.dtypes import BY_SHORT_NAME, real_of, short_name
from arrayfn.lowering.plan import Parameter

__all__ = [
    "Array",
    "Bits",
    "Constant",
    "Real",
    "Rest",
    "address_of",
    "c_function",
    "fortran",
    "i32",
    "multiply_panels",
    "stack_integers",
    "transpose_block",
    "u8",
]

if TYPE_CHECKING:
    Real: TypeAlias = float
    """The dtype of a real number: of a complex one's parts."""
    Bits: TypeAlias = int
    """The integer that holds an element's bits, or 64 of them."""
    Constant: TypeAlias = int
    """An integer that is known when the kernel is compiled, for a dtype."""
    Rest: TypeAlias = Array[int]
    """All arguments from this one on, which are integers."""
else:
    Real, Bits = TypeVar("Real"), TypeVar("Bits")
    Constant = Annotated[int, "constant"]
    Rest = Annotated[Array[int], "rest"]

_KINDS: Final[dict[Any, str]] = {int: "i64", Constant: "constant", Rest: "rest"}
_NAMES: Final = {int: "i64", i32: "i32", float: "f64", u8: "u8"}


def fortran(function: int, *arguments: int | Array[Any]) -> int:
    """Call a function of BLAS or LAPACK at an address; returns LAPACK's ``info``.

    Integers are passed by reference, as 64-bit words. These serve libraries with
    integers of 32 and of 64 bits, and as letters, on processors that store the low half
    first. The address of ``info`` follows the arguments: a C function ignores it if it
    is beyond its own.
    """
    raise _only_compiled()


def c_function(function: int, *arguments: int | Array[Any]) -> int:
    """Call a C function at an address with pointers and 64-bit integers."""
    raise _only_compiled()


def stack_integers(count: int) -> Array[int]:
    """``count`` (a constant) integers on the kernel's stack."""
    raise _only_compiled()


def multiply_panels(
    a: Array[Any],
    b: Array[Any],
    c: Array[Any],
    ldc: int,
    terms: int,
    rows: int,
    columns: int,
    is_added: int,
) -> None:
    """``c = a b`` of two packed panels, with ``c`` added unless ``is_added`` is 0.

    Sums have ``terms`` terms. ``rows`` and ``columns`` of the result are stored, where
    they are fewer than those of the panels; its rows are ``ldc`` elements apart. What
    panels are is said in ``lowering.libraries.packed_products``.
    """
    raise _only_compiled()


def transpose_block(
    target: Array[Any],
    target_step: int,
    source: Array[Any],
    source_step: int,
    rows: int,
    columns: int,
) -> None:
    """Transpose a square block with as many rows as a vector has lanes.

    ``source`` has ``rows`` and ``columns``: if they are fewer than those of the block,
    nothing is read beyond them, and the remaining elements of ``target`` are undefined.
    Rows are ``target_step`` and ``source_step`` elements apart.
    """
    raise _only_compiled()


def address_of(pointer: Array[Any]) -> int:
    """The address of a pointer's first element."""
    raise _only_compiled()


def _only_compiled() -> NoReturn:
    raise RuntimeError("this function exists only in compiled kernels")


@cache
def parameters_of(kernel: Callable[..., None], dtype: str) -> tuple[Parameter, ...]:
    """The parameters of a library kernel of a dtype, less ``begin`` and ``end``."""
    hints = typing.get_type_hints(kernel, include_extras=True)
    names = kernel.__code__.co_varnames[: kernel.__code__.co_argcount - 2]
    return tuple(Parameter(name, _kind(hints[name], dtype)) for name in names)


def _kind(hint: Any, dtype: str) -> str:
    """The kind of a parameter annotated with ``hint``, as "i64" or "f32*".

    Generic arrays have elements of ``dtype``, the provider's.
    """
    if hint in _KINDS:
        return _KINDS[hint]
    (element,) = typing.get_args(hint)
    if element in _NAMES:
        return f"{_NAMES[element]}*"
    kind = BY_SHORT_NAME[dtype]
    if element is Real:
        return f"{short_name(real_of(kind))}*"
    letter = "u" if kind.kind in "ub" else "i"
    return f"{letter}{min(8 * kind.itemsize, 64)}*"
