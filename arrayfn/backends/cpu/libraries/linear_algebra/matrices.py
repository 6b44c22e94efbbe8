"""Native routines shared around LAPACK: copies, NaN for failures, triangles.

LAPACK's matrices lie by columns. A row-major matrix is, by columns, its transpose.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

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
from arrayfn.dtypes import BY_SHORT_NAME, real_of

memcpy = CFunction("memcpy", 3)
memset = CFunction("memset", 3)

SIGN_F64: Final = -(1 << 63)
SIGN_F32: Final = 1 << 31


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
def all_finite(address: int, bytes: int, size: int) -> int:
    """Whether all real numbers in ``bytes`` bytes are finite."""
    if size == 8:
        for k in range(bytes // 8):
            if ((load(address + 8 * k) >> 52) & 0x7FF) == 0x7FF:
                return 0
    else:
        for k in range(bytes // 4):
            if ((load_i32(address + 4 * k) >> 23) & 0xFF) == 0xFF:
                return 0
    return 1
