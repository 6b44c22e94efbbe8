"""Loops over roots of secular equations, compiled with all optimisations.

Gu and Eisenstat, A divide-and-conquer algorithm for the symmetric tridiagonal
eigenproblem (1995): eigenvectors of a diagonal matrix plus ``w w^T`` are orthogonal if
they are computed from the weights that have the computed roots exactly. Column j of
``distances`` has the differences between the poles and root j. All is computed in
float64.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.native import (
    LINE_BYTES,
    add_f64,
    div_f64,
    float_of,
    less_f64,
    load,
    load_i32,
    mul_f64,
    narrow_f64,
    native,
    secular_sums,
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
HALF: Final = 1022 << 52
TWO: Final = 1024 << 52
FOUR: Final = 1025 << 52
INFINITY: Final = 2047 << 52
# Of the sums of terms, the rounding of one: what a root leaves may be as large.
ROUNDING_F64: Final = (1023 - 53) << 52
ROUNDING_F32: Final = (1023 - 32) << 52
TURNS: Final = 12  # more are left to LAPACK
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
def secular_lines(lines: int, numbers: int, count: int, size: int, filled: int) -> int:
    """Write numbers as f64 into whole lines, which ``filled`` fills."""
    for i in range(count):
        store(lines + 8 * i, real_at(numbers + i * size, size))
    stop = (8 * count + LINE_BYTES - 1) // LINE_BYTES * LINE_BYTES
    place = 8 * count
    while place < stop:
        store(lines + place, filled)
        place += 8
    return stop


@native
def secular_prepare(lines: int, poles: int, weights: int, count: int, size: int) -> int:
    """Poles, and then weights, as ``secular_root`` reads them."""
    length = secular_lines(lines, poles, count, size, INFINITY)
    return secular_lines(lines + length, weights, count, size, 0)


@native
def secular_root(
    lines: int,
    count: int,
    root: int,
    rho: int,
    value: int,
    distances: int,
    size: int,
) -> int:
    """The root between poles ``root`` and the next: its value and distances to poles.

    ``1 / rho + sum w^2 / (p - x)`` is 0 there, rho being at an address. Two poles are
    taken as they are, and the others for what they are near the last x, with its slope
    (Li, Solving secular equations stably and efficiently, 1993: fixed weights). Not 0
    if that takes too long: then nothing is written.
    """
    length = (8 * count + LINE_BYTES - 1) // LINE_BYTES * LINE_BYTES
    weights = lines + length
    sums = stack(3)
    constant = div_f64(ONE, real_at(rho, size))
    left = load(lines + 8 * root)
    right = load(lines + 8 * root + 8)
    weight = load(weights + 8 * root)
    other = load(weights + 8 * root + 8)
    gap = sub_f64(right, left)
    middle = mul_f64(HALF, gap)
    # In which half of the gap the root is; its distance from the pole there is exact.
    secular_sums(lines, weights, length, left, middle, sums)
    rest = add_f64(constant, load(sums))
    at_left = less_f64(0, rest)
    own = mul_f64(weight, weight)
    others = mul_f64(other, other)
    rest = add_f64(rest, div_f64(sub_f64(own, others), middle))
    both = add_f64(own, others)
    if at_left:
        origin = left
        low = 0
        high = middle
        b = mul_f64(rest, gap)
        shift = root_below(rest, add_f64(b, both), mul_f64(own, gap))
    else:
        origin = right
        low = middle ^ SIGN
        high = 0
        b = mul_f64(rest, gap)
        shift = root_below(rest, sub_f64(both, b), mul_f64(others, gap) ^ SIGN)
    rounding = ROUNDING_F64
    if size == 4:
        rounding = ROUNDING_F32
    terms = float_of(8 + count // 8)
    for _ in range(TURNS):
        if less_f64(low, shift) == 0 or less_f64(shift, high) == 0:
            shift = mul_f64(HALF, add_f64(low, high))
        secular_sums(lines, weights, length, origin, shift, sums)
        rest = add_f64(constant, load(sums))
        slope = load(sums + 8)
        bound = mul_f64(terms, add_f64(constant, load(sums + 16)))
        bound = add_f64(bound, mul_f64(shift & MAGNITUDE, slope))
        if less_f64(mul_f64(rounding, bound), rest & MAGNITUDE) == 0:
            write_real(value, add_f64(origin, shift), size)
            for j in range(count):
                distance = sub_f64(sub_f64(load(lines + 8 * j), origin), shift)
                write_real(distances + j * size, distance, size)
            return 0
        if less_f64(rest, 0):
            low = shift
        else:
            high = shift
        to_left = sub_f64(sub_f64(left, origin), shift)
        to_right = sub_f64(sub_f64(right, origin), shift)
        if at_left:
            term = div_f64(weight, to_left)
            c = add_f64(
                sub_f64(rest, mul_f64(to_right, slope)),
                mul_f64(gap, mul_f64(term, term)),
            )
        else:
            term = div_f64(other, to_right)
            c = sub_f64(
                sub_f64(rest, mul_f64(to_left, slope)),
                mul_f64(gap, mul_f64(term, term)),
            )
        product = mul_f64(to_left, to_right)
        a = sub_f64(mul_f64(add_f64(to_left, to_right), rest), mul_f64(product, slope))
        step = root_below(c, a, mul_f64(product, rest))
        # The function grows: a step goes against its sign.
        if less_f64(mul_f64(rest, step), 0) == 0:
            step = div_f64(rest, slope) ^ SIGN
        shift = add_f64(shift, step)
    return 1


@native
def root_below(a: int, b: int, c: int) -> int:
    """Of the roots of ``a x^2 - b x + c``, that with less of the square root."""
    square = sub_f64(mul_f64(b, b), mul_f64(FOUR, mul_f64(a, c)))
    root = sqrt_f64(square & MAGNITUDE)
    if less_f64(0, b):
        return div_f64(mul_f64(TWO, c), add_f64(b, root))
    return div_f64(sub_f64(b, root), mul_f64(TWO, a))


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
            gap = sub_f64(real_at(poles + (first + i) * size, size), pole)
            if first + i == j:
                gap = real_at(column + i * size, size)
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
