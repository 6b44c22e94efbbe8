"""What native routines around LAPACK share: NaNs for what failed, copies, triangles.

LAPACK's matrices lie by columns. A row-major matrix is, by columns, its transpose.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from arrayfn.backends.cpu.libraries.blas import LETTERS, lapack_address
from arrayfn.backends.native import (
    CFunction,
    Routine,
    load,
    load_i32,
    native,
    store,
    store_i32,
)
from arrayfn.backends.native.code import native_address
from arrayfn.dtypes import BY_SHORT_NAME, real_of, short_name

memcpy = CFunction("memcpy", 3)
memset = CFunction("memset", 3)

# The words before the arguments of a routine that calls LAPACK.
ITEM_BYTES: Final = 0
NAN: Final = 8  # the bits of NaN in two 32-bit halves, as reals repeat them
COMPLEX: Final = 16
FUNCTIONS: Final = 24  # the first of the functions' addresses

LETTER_A: Final = ord("A")
LETTER_C: Final = ord("C")
LETTER_G: Final = ord("G")
LETTER_I: Final = ord("I")
LETTER_L: Final = ord("L")
LETTER_N: Final = ord("N")
LETTER_R: Final = ord("R")
LETTER_S: Final = ord("S")
LETTER_T: Final = ord("T")
LETTER_U: Final = ord("U")
LETTER_V: Final = ord("V")
SIGN_F64: Final = -(1 << 63)
SIGN_F32: Final = 1 << 31


def lapack_words(dtype: str, *functions: str) -> tuple[int, ...]:
    """Bytes of an element, NaN, if it is complex, addresses of ``functions``.

    A function is named as ``"?potrf"``, or ``"%lascl"`` for that of real numbers. Where
    a name ends in ``"|..."``, that is the name of the complex function.
    """
    kind = BY_SHORT_NAME[dtype]
    real = real_of(kind)
    letters = LETTERS[dtype], LETTERS[short_name(real)]
    nan = np.full(8 // real.itemsize, np.nan, real)
    bits = int(nan.view(np.int64)[0])
    addresses: list[int] = []
    for function in functions:
        name, _, other = function.partition("|")
        chosen = other if other and kind.kind == "c" else name
        chosen = chosen.replace("?", letters[0]).replace("%", letters[1])
        addresses.append(lapack_address(chosen))
    return kind.itemsize, bits, int(kind.kind == "c"), *addresses


def small_address(routine: Routine[..., Any], dtype: str) -> int:
    """The address of a routine of ``small_matrices``; 0 for complex numbers."""
    return 0 if BY_SHORT_NAME[dtype].kind == "c" else native_address(routine)


def one_bits(dtype: str, number: float) -> int:
    """The bits of a number as a real one of ``dtype``'s parts, in one word."""
    kind = real_of(BY_SHORT_NAME[dtype])
    bits = int.from_bytes(np.array(number, kind).tobytes(), "little")
    return bits - (1 << 64) if bits >> 63 else bits


@native
def fill_words(address: int, count: int, bits: int) -> int:
    """Fill ``count`` bytes, a multiple of 4, with the two halves of ``bits``."""
    for k in range(count // 4):
        if k & 1:
            store_i32(address + 4 * k, bits >> 32)
        else:
            store_i32(address + 4 * k, bits)
    return 0


@native
def least(a: int, b: int) -> int:
    """The lesser of two integers."""
    if b < a:
        return b
    return a


@native
def least_one(value: int) -> int:
    """``value``, but at least 1: as LAPACK wants leading extents."""
    if value < 1:
        return 1
    return value


@native
def real_bytes(arguments: int) -> int:
    """The bytes of a real number of the routine's dtype."""
    return load(arguments + ITEM_BYTES) >> load(arguments + COMPLEX)


@native
def copy_real(target: int, source: int, size: int) -> int:
    """Copy a real number of 4 or 8 bytes."""
    if size == 8:
        store(target, load(source))
    else:
        store_i32(target, load_i32(source))
    return 0


@native
def copy_negated(target: int, source: int, size: int) -> int:
    """Copy a real number with the other sign."""
    if size == 8:
        store(target, load(source) ^ SIGN_F64)
    else:
        store_i32(target, load_i32(source) ^ SIGN_F32)
    return 0


@native
def is_zero(address: int, size: int) -> int:
    """Whether a real number is 0 or -0."""
    if size == 8:
        return (load(address) << 1) == 0
    return (load_i32(address) << 33) == 0


@native
def all_finite(address: int, count: int, size: int) -> int:
    """Whether none of ``count`` real numbers is infinite or NaN."""
    if size == 8:
        for k in range(count):
            if ((load(address + 8 * k) >> 52) & 0x7FF) == 0x7FF:
                return 0
    else:
        for k in range(count):
            if ((load_i32(address + 4 * k) >> 23) & 0xFF) == 0xFF:
                return 0
    return 1
