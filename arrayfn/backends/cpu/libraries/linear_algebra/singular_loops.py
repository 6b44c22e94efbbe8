"""Loops over roots of the secular equation of singular values, fully optimised.

Gu and Eisenstat, A divide-and-conquer algorithm for the bidiagonal SVD (1995). Column j
of ``gaps`` has the differences between the poles and root j, that of ``sums`` what
both come to. All is computed in float64.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.libraries.linear_algebra.reals import (
    real_at,
    sum_of_squares,
    write_real,
)
from arrayfn.backends.native import (
    add_f64,
    div_f64,
    less_f64,
    load,
    load_i32,
    mul_f64,
    native,
    sqrt_f64,
    stack,
    store,
    sub_f64,
)

LOOPS_OVER_DATA: Final = True
ROWS: Final = 64  # weights at once
ONE: Final = 1023 << 52
LEAST_F64: Final = (1023 - 53) << 52
LEAST_F32: Final = (1023 - 24) << 52
SIGN: Final = -(1 << 63)
MAGNITUDE: Final = (1 << 63) - 1


@native
def singular_floor(numbers: int, count: int, size: int) -> int:
    """Make numbers as large as the rounding of 1, at least, whose signs they keep."""
    least = LEAST_F64
    if size == 4:
        least = LEAST_F32
    for i in range(count):
        number = real_at(numbers + i * size, size)
        if less_f64(number & MAGNITUDE, least):
            write_real(numbers + i * size, least | (number & SIGN), size)
    return 0


@native
def singular_scale(numbers: int, square: int, count: int, size: int) -> int:
    """Divide numbers by their length, whose square is written to ``square``."""
    total = sum_of_squares(numbers, count, size)
    factor = div_f64(ONE, sqrt_f64(total))
    for i in range(count):
        number = real_at(numbers + i * size, size)
        write_real(numbers + i * size, mul_f64(number, factor), size)
    return write_real(square, total, size)


@native
def singular_weights(
    weights: int,
    given: int,
    poles: int,
    gaps: int,
    sums: int,
    leading: int,
    count: int,
    first: int,
    size: int,
) -> int:
    """Weights ``first`` and up to ``ROWS`` after it, with the signs of those given."""
    own = stack(ROWS)
    rows = count - first
    if rows > ROWS:
        rows = ROWS
    last = ((count - 1) * leading + first) * size
    for i in range(rows):
        gap = real_at(gaps + last + i * size, size)
        store(own + 8 * i, mul_f64(gap, real_at(sums + last + i * size, size)))
    for j in range(count - 1):
        column = (j * leading + first) * size
        before = real_at(poles + j * size, size)
        after = real_at(poles + (j + 1) * size, size)
        for i in range(rows):
            other = after
            if j < first + i:
                other = before
            pole = real_at(poles + (first + i) * size, size)
            gap = real_at(gaps + column + i * size, size)
            product = mul_f64(gap, real_at(sums + column + i * size, size))
            square = mul_f64(sub_f64(pole, other), add_f64(pole, other))
            ratio = div_f64(product, square)
            store(own + 8 * i, mul_f64(load(own + 8 * i), ratio))
    for i in range(rows):
        place = (first + i) * size
        root = sqrt_f64(load(own + 8 * i) & MAGNITUDE)
        write_real(weights + place, root | (real_at(given + place, size) & SIGN), size)
    return 0


@native
def singular_vectors(
    left: int,
    right: int,
    weights: int,
    poles: int,
    gaps: int,
    sums: int,
    order: int,
    count: int,
    size: int,
) -> int:
    """Both singular vectors of a root, all but their first numbers in an order.

    That has 32-bit numbers from 1. ``gaps`` and ``sums`` are lost.
    """
    for i in range(count):
        place = i * size
        gap = mul_f64(real_at(gaps + place, size), real_at(sums + place, size))
        number = div_f64(real_at(weights + place, size), gap)
        write_real(sums + place, number, size)
        write_real(gaps + place, mul_f64(number, real_at(poles + place, size)), size)
    # The first pole is 0, and the first number of the left vector -1.
    write_real(gaps, SIGN | ONE, size)
    factor_left = div_f64(ONE, sqrt_f64(sum_of_squares(gaps, count, size)))
    factor_right = div_f64(ONE, sqrt_f64(sum_of_squares(sums, count, size)))
    write_real(left, mul_f64(real_at(gaps, size), factor_left), size)
    write_real(right, mul_f64(real_at(sums, size), factor_right), size)
    for i in range(1, count):
        place = (load_i32(order + 4 * i) - 1) * size
        number = mul_f64(real_at(sums + place, size), factor_right)
        write_real(right + i * size, number, size)
        number = mul_f64(real_at(gaps + place, size), factor_left)
        write_real(left + i * size, number, size)
    return 0
