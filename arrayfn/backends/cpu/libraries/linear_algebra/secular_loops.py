"""Loops over roots of secular equations, compiled with all optimisations.

Gu and Eisenstat, A divide-and-conquer algorithm for the symmetric tridiagonal
eigenproblem (1995): eigenvectors of a diagonal matrix plus ``w w^T`` are orthogonal if
they are computed from the weights that have the computed roots exactly. Column j of
``distances`` has the differences between the poles and root j. All is computed in
float64.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.libraries.linear_algebra.reals import (
    real_at,
    sum_of_squares,
    write_real,
)
from arrayfn.backends.native import (
    LINE_BYTES,
    add_f64,
    div_f64,
    float_of,
    inlined,
    less_f64,
    load,
    load_i32,
    mul_f64,
    native,
    secular_square_sums,
    secular_sums,
    sqrt_f64,
    stack,
    store,
    store_i32,
    sub_f64,
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
    squares: int,
    value: int,
    distances: int,
    sums: int,
    size: int,
) -> int:
    """The root x between poles ``root`` and the next, and its distances to all poles.

    ``1 / rho + sum w^2 / (p - x)`` is 0 there, rho being at an address; or if
    ``squares`` that of ``p^2 - x^2``, and then the ``sums`` of poles and root are
    written too. Two poles are taken as they are, and the others for what they are near
    the last x, with its slope (Li, Solving secular equations stably and efficiently,
    1993: fixed weights). Not 0 if that takes too long: then nothing is written.
    """
    length = (8 * count + LINE_BYTES - 1) // LINE_BYTES * LINE_BYTES
    weights = lines + length
    found = stack(3)
    constant = div_f64(ONE, real_at(rho, size))
    left = load(lines + 8 * root)
    right = load(lines + 8 * root + 8)
    weight = load(weights + 8 * root)
    other = load(weights + 8 * root + 8)
    gap = from_origin(right, left, squares)
    middle = mul_f64(HALF, gap)
    # In which half of the gap the root is; its distance from the pole there is exact.
    add_terms(lines, weights, length, left, middle, squares, found)
    rest = add_f64(constant, load(found))
    at_left = less_f64(0, rest)
    own = mul_f64(weight, weight)
    others = mul_f64(other, other)
    rest = add_f64(rest, div_f64(sub_f64(own, others), middle))
    both = add_f64(own, others)
    b = mul_f64(rest, gap)
    if at_left:
        origin = left
        low = 0
        high = middle
        shift = root_below(rest, add_f64(b, both), mul_f64(own, gap))
    else:
        origin = right
        low = middle ^ SIGN
        high = 0
        shift = root_below(rest, sub_f64(both, b), mul_f64(others, gap) ^ SIGN)
    rounding = ROUNDING_F64
    if size == 4:
        rounding = ROUNDING_F32
    terms = float_of(8 + count // 8)
    for _ in range(TURNS):
        if less_f64(low, shift) == 0 or less_f64(shift, high) == 0:
            shift = mul_f64(HALF, add_f64(low, high))
        add_terms(lines, weights, length, origin, shift, squares, found)
        rest = add_f64(constant, load(found))
        slope = load(found + 8)
        bound = mul_f64(terms, add_f64(constant, load(found + 16)))
        bound = add_f64(bound, mul_f64(shift & MAGNITUDE, slope))
        if less_f64(mul_f64(rounding, bound), rest & MAGNITUDE) == 0:
            return write_root(
                lines, count, origin, shift, squares, value, distances, sums, size
            )
        if less_f64(rest, 0):
            low = shift
        else:
            high = shift
        to_left = sub_f64(from_origin(left, origin, squares), shift)
        to_right = sub_f64(from_origin(right, origin, squares), shift)
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


@inlined
def from_origin(pole: int, origin: int, squares: int) -> int:
    """How far a pole, or its square, is from that of the origin."""
    gap = sub_f64(pole, origin)
    if squares:
        return mul_f64(gap, add_f64(pole, origin))
    return gap


@native
def add_terms(
    lines: int,
    weights: int,
    length: int,
    origin: int,
    shift: int,
    squares: int,
    found: int,
) -> int:
    """The sums of the terms at a place."""
    if squares:
        secular_square_sums(lines, weights, length, origin, shift, found)
    else:
        secular_sums(lines, weights, length, origin, shift, found)
    return 0


@native
def write_root(
    lines: int,
    count: int,
    origin: int,
    shift: int,
    squares: int,
    value: int,
    distances: int,
    sums: int,
    size: int,
) -> int:
    """A root that is ``shift`` from the origin, or whose square is from the square."""
    if squares:
        square = add_f64(mul_f64(origin, origin), shift)
        shift = div_f64(shift, add_f64(origin, sqrt_f64(square)))
        for j in range(count):
            sum = add_f64(add_f64(load(lines + 8 * j), origin), shift)
            write_real(sums + j * size, sum, size)
    write_real(value, add_f64(origin, shift), size)
    for j in range(count):
        distance = sub_f64(sub_f64(load(lines + 8 * j), origin), shift)
        write_real(distances + j * size, distance, size)
    return 0


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
        # Without branches inside, the loops are of vectors.
        for i in range(clipped(j - first, rows)):
            multiply_ratio(own, poles + first * size, pole, column, i, size)
        for i in range(clipped(j - first + 1, rows), rows):
            multiply_ratio(own, poles + first * size, pole, column, i, size)
    for i in range(rows):
        place = (first + i) * size
        root = sqrt_f64(load(own + 8 * i) ^ SIGN)
        write_real(weights + place, root | (real_at(given + place, size) & SIGN), size)
    return 0


@inlined
def clipped(number: int, most: int) -> int:
    """A number from 0 to ``most``."""
    if number < 0:
        return 0
    if number > most:
        return most
    return number


@inlined
def multiply_ratio(
    own: int, poles: int, pole: int, column: int, i: int, size: int
) -> int:
    """Multiply a weight by a distance to a root over that to a pole."""
    gap = sub_f64(real_at(poles + i * size, size), pole)
    ratio = div_f64(real_at(column + i * size, size), gap)
    store(own + 8 * i, mul_f64(load(own + 8 * i), ratio))
    return 0


@native
def secular_vector(
    vector: int, weights: int, distances: int, order: int, count: int, size: int
) -> int:
    """An eigenvector of length 1, in the order of the 32-bit numbers from 1 there."""
    for i in range(count):
        distance = real_at(distances + i * size, size)
        ratio = div_f64(real_at(weights + i * size, size), distance)
        write_real(distances + i * size, ratio, size)
    factor = div_f64(ONE, sqrt_f64(sum_of_squares(distances, count, size)))
    for i in range(count):
        source = distances + (load_i32(order + 4 * i) - 1) * size
        write_real(vector + i * size, mul_f64(real_at(source, size), factor), size)
    return 0


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
