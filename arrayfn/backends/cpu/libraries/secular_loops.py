"""Loops over roots of secular equations, compiled with all optimisations.

Gu and Eisenstat, A divide-and-conquer algorithm for the symmetric tridiagonal
eigenproblem (1995): eigenvectors of a diagonal matrix plus ``w w^T`` are orthogonal if
they are computed from the weights that have the computed roots exactly. Column j of
``distances`` has the differences between the poles and root j. All is computed in
float64.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.native import (
    add_f64,
    div_f64,
    less_f64,
    load,
    load_i32,
    mul_f64,
    narrow_f64,
    native,
    sqrt_f64,
    stack,
    store,
    store_i32,
    sub_f64,
    widen_f32,
)

LOOPS_OVER_DATA: Final = True
ROWS: Final = 64  # weights at once
ONE: Final = 1023 << 52
SIGN: Final = -(1 << 63)
MAGNITUDE: Final = (1 << 63) - 1


@native
def real_at(address: int, size: int) -> int:
    """The bits of a number of ``size`` bytes, as of an f64."""
    if size == 8:
        return load(address)
    return widen_f32(load_i32(address))


@native
def write_real(address: int, bits: int, size: int) -> int:
    """Write a number of ``size`` bytes from the bits of an f64."""
    if size == 8:
        store(address, bits)
    else:
        store_i32(address, narrow_f64(bits))
    return 0


@native
def secular_weights(
    weights: int,
    given: int,
    poles: int,
    distances: int,
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
    for i in range(rows):
        row = first + i
        store(own + 8 * i, real_at(distances + (row * leading + row) * size, size))
    for j in range(count):
        pole = real_at(poles + j * size, size)
        column = distances + (j * leading + first) * size
        for i in range(rows):
            if first + i != j:
                gap = sub_f64(real_at(poles + (first + i) * size, size), pole)
                ratio = div_f64(real_at(column + i * size, size), gap)
                store(own + 8 * i, mul_f64(load(own + 8 * i), ratio))
    for i in range(rows):
        place = (first + i) * size
        root = sqrt_f64(load(own + 8 * i) ^ SIGN)
        write_real(weights + place, root | (real_at(given + place, size) & SIGN), size)
    return 0


@native
def secular_vector(
    vector: int, weights: int, distances: int, order: int, count: int, size: int
) -> int:
    """An eigenvector of length 1, in the order of the 32-bit numbers from 1 there."""
    # Four sums, for an addition takes longer than to begin the next one.
    a = 0
    b = 0
    c = 0
    d = 0
    place = 0
    stop = count // 4 * 4 * size
    while place < stop:
        a = add_square(a, weights + place, distances + place, size)
        place += size
        b = add_square(b, weights + place, distances + place, size)
        place += size
        c = add_square(c, weights + place, distances + place, size)
        place += size
        d = add_square(d, weights + place, distances + place, size)
        place += size
    stop = count * size
    while place < stop:
        a = add_square(a, weights + place, distances + place, size)
        place += size
    total = add_f64(add_f64(a, b), add_f64(c, d))
    factor = div_f64(ONE, sqrt_f64(total))
    for i in range(count):
        source = distances + (load_i32(order + 4 * i) - 1) * size
        write_real(vector + i * size, mul_f64(real_at(source, size), factor), size)
    return 0


@native
def add_square(total: int, weight: int, distance: int, size: int) -> int:
    """Divide a weight by a distance, into that; the sum with the square."""
    ratio = div_f64(real_at(weight, size), real_at(distance, size))
    write_real(distance, ratio, size)
    return add_f64(total, mul_f64(ratio, ratio))


@native
def secular_cut(diagonal: int, sides: int, place: int, size: int) -> int:
    """Take the side before ``place`` from the diagonal, so that it adds rank 1."""
    side = real_at(sides + (place - 1) * size, size) & MAGNITUDE
    for row in range(place - 1, place + 1):
        number = diagonal + row * size
        write_real(number, sub_f64(real_at(number, size), side), size)
    return 0


@native
def secular_sort(order: int, values: int, count: int, size: int) -> int:
    """Sort numbers from 1 by their values: few are out of order, by rounding."""
    for i in range(1, count):
        number = load_i32(order + 4 * i)
        value = real_at(values + (number - 1) * size, size)
        place = i
        while place > 0:
            before = load_i32(order + 4 * (place - 1))
            if less_f64(value, real_at(values + (before - 1) * size, size)) == 0:
                break
            store_i32(order + 4 * place, before)
            place -= 1
        store_i32(order + 4 * place, number)
    return 0
