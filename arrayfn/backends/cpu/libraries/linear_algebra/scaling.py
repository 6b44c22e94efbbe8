"""Matrices scaled by powers of two, so that no product over- or underflows.

As LAPACK's own drivers do before they reduce a matrix; powers of two round nothing. The
scale is found from the exponents alone.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.libraries.linear_algebra.matrices import is_zero
from arrayfn.backends.native import (
    call,
    load,
    load_i32,
    native,
    stack,
    store,
    store_u8,
)

BIAS_F64: Final = 1023
BIAS_F32: Final = 127
# Exponents up to these, either way, are left alone.
PLAIN_F64: Final = 400
PLAIN_F32: Final = 30
LETTER_G: Final = ord("G")


@native
def largest_exponent(address: int, count: int, real: int) -> int:
    """The greatest exponent field of ``count`` real numbers of ``real`` bytes.

    Of subnormal numbers that is 1, as of the least normal one; only of zeros 0.
    """
    found = 0
    for k in range(count):
        if real == 8:
            exponent = (load(address + 8 * k) >> 52) & 0x7FF
        else:
            exponent = (load_i32(address + 4 * k) >> 23) & 0xFF
        if exponent > found:
            found = exponent
    if found == 0:
        for k in range(count):
            if is_zero(address + real * k, real) == 0:
                found = 1
    return found


@native
def is_finite_exponent(exponent: int, real: int) -> int:
    """Whether an exponent field is that of finite numbers."""
    if real == 8:
        return exponent != 0x7FF
    return exponent != 0xFF


@native
def scale_of(exponent: int, real: int) -> int:
    """The bits of the power of two to divide by; 0 if no scaling is needed."""
    bias = BIAS_F64
    plain = PLAIN_F64
    if real == 4:
        bias = BIAS_F32
        plain = PLAIN_F32
    distance = exponent - bias
    if distance < 0:
        distance = 0 - distance
    if exponent == 0 or distance <= plain:
        return 0
    if real == 8:
        return exponent << 52
    return exponent << 23


@native
def rescale(
    lascl: int, scale: int, up: int, rows: int, columns: int, a: int, real: int
) -> int:
    """Divide a matrix (by columns, without gaps) by ``scale``; multiply if ``up``."""
    numbers = stack(2)
    # Words of 64 bits serve a library with integers of 32 bits too.
    ints = stack(4)
    letters = stack(1)
    one = BIAS_F64 << 52
    if real == 4:
        one = BIAS_F32 << 23
    store_u8(letters, LETTER_G)
    store(numbers, scale)
    store(numbers + 8, one)
    if up:
        store(numbers, one)
        store(numbers + 8, scale)
    store(ints, 0)
    store(ints + 8, rows)
    store(ints + 16, columns)
    return call(
        lascl,
        letters,
        ints,
        ints,
        numbers,
        numbers + 8,
        ints + 8,
        ints + 16,
        a,
        ints + 8,
        ints + 24,
    )
