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
    """Call the function of BLAS or LAPACK at an address; return LAPACK's ``info``.

    Integers and letters are passed by reference, as 64-bit words. On a little-endian
    processor, libraries with 32-bit integers read these words too. The address of
    ``info`` is added as last argument; a function of BLAS, which has none, ignores it.
    """
    raise _only_compiled()


def c_function(function: int, *arguments: int | Array[Any]) -> int:
    """Call a C function at an address with pointers and 64-bit integers."""
    raise _only_compiled()


def stack_integers(count: int) -> Array[int]:
    """Allocate ``count`` integers, a constant number, on the kernel's stack."""
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
    """Compute ``c = a b``, or ``c += a b`` if ``is_added`` is not 0, of two panels.

    ``a`` and ``b`` are packed as ``lowering.libraries.packed_products`` says, and have
    ``terms`` terms for each sum. At most the first ``rows`` rows and ``columns``
    columns of the result are stored; its rows are ``ldc`` elements apart.
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

    Only the first ``rows`` rows and ``columns`` columns of ``source`` are read. If the
    block has more, the other elements of ``target`` are written but undefined. Rows of
    ``target`` and ``source`` are ``target_step`` and ``source_step`` elements apart.
    """
    raise _only_compiled()


def address_of(pointer: Array[Any]) -> int:
    """Return the address of a pointer's first element as an integer."""
    raise _only_compiled()


def _only_compiled() -> NoReturn:
    """Raise the error of all functions above when Python calls them."""
    raise RuntimeError("this function exists only in compiled kernels")


@cache
def parameters_of(kernel: Callable[..., None], dtype: str) -> tuple[Parameter, ...]:
    """Return the parameters of a library kernel for ``dtype``, a name such as "f32".

    The last two, ``begin`` and ``end``, are left out.
    """
    hints = typing.get_type_hints(kernel, include_extras=True)
    names = kernel.__code__.co_varnames[: kernel.__code__.co_argcount - 2]
    return tuple(Parameter(name, _kind(hints[name], dtype)) for name in names)


def _kind(hint: Any, dtype: str) -> str:
    """Return the kind of a parameter annotated with ``hint``, such as "i64" or "f32*".

    ``Array[Real]`` has the real dtype of ``dtype`` (that of its parts if complex), and
    ``Array[Bits]`` integers of its size, of at most 64 bits.
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
