"""Loops for real symmetric matrices that a core's cache holds, fully optimised.

Made tridiagonal, and that decomposed. All is computed in float64, in whole lines.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.libraries.linear_algebra.reals import real_at, write_real
from arrayfn.backends.cpu.libraries.linear_algebra.shared_products import share
from arrayfn.backends.native import (
    LINE_BYTES,
    add_f64,
    address_of,
    columns_update_products,
    div_f64,
    less_f64,
    lines_product,
    lines_rotate,
    load,
    mul_f64,
    native,
    sqrt_f64,
    stack,
    store,
    sub_f64,
)

LOOPS_OVER_DATA: Final = True
COLUMNS: Final = 4  # that are brought up to date at once
FACTORS: Final = 3 * COLUMNS
NUMBERS: Final = LINE_BYTES // 8
PARTS: Final = 4  # of the columns
SHARED_LEAST: Final = 160  # columns that are worth several threads
VECTORS: Final = 3 + PARTS
ONE: Final = 1023 << 52
HALF: Final = 1022 << 52
TWO: Final = 1024 << 52
LEAST: Final = (1023 - 900) << 52
NOTHING: Final = (1023 - 300) << 52  # beside numbers up to 1
LARGE: Final = (1023 + 600) << 52
ROUNDING: Final = (1023 - 53) << 52
SIGN: Final = -(1 << 63)
MAGNITUDE: Final = (1 << 63) - 1
TURNS: Final = 60  # for one eigenvalue, at most

# Byte offsets into what a part of a product is told.
SQUARE: Final = 0
STEP: Final = 8
V: Final = 16
W: Final = 24
X: Final = 32
Y: Final = 40
FIRST: Final = 48
COUNT: Final = 56
TOLD_WORDS: Final = 8


@native
def whole_lines(count: int) -> int:
    """The bytes of the lines that hold ``count`` f64."""
    return (8 * count + LINE_BYTES - 1) // LINE_BYTES * LINE_BYTES


@native
def zero(address: int, length: int) -> int:
    """Write zeros into ``length`` bytes of words."""
    place = 0
    while place < length:
        store(address + place, 0)
        place += 8
    return 0


@native
def tridiagonal_in_cache(
    tools: int,
    a: int,
    n: int,
    diagonal: int,
    sides: int,
    taus: int,
    work: int,
    size: int,
) -> int:
    """LAPACK's sytrd of a lower triangle by columns: reflections come in its place.

    What a reflection changes, v w^T + w v^T, is taken from the matrix when that is
    multiplied with the next reflection x, so that it is read once for both. Workspace
    is for the lines of a square and of ``VECTORS`` more rows.
    """
    step = whole_lines(n)
    square = work
    v = square + step // 8 * step
    w = v + step
    x = w + step
    y = x + step
    read_symmetric(a, n, square, step, size)
    zero(v, 2 * step)
    for i in range(n):
        column = square + i * step
        bring_up(column, v, w, i, n)
        write_real(diagonal + i * size, load(column + 8 * i), size)
        if i + 1 < n:
            rest = n - i - 1
            below = column + 8 * (i + 1)
            zero(x, step)
            tau = reflect_below(x, below, rest, 8 * (i + 1), step)
            write_real(taus + i * size, tau, size)
            write_real(sides + i * size, load(below), size)
            target = a + (i * n + i + 1) * size
            for k in range(rest):
                write_real(target + k * size, load(x + 8 * (i + 1 + k)), size)
            multiply_symmetric(tools, square, step, v, w, x, y, i + 1, n)
            pair_of(x, y, i + 1, tau, step)
            kept = v
            v = x
            x = kept
            # What y is becomes w; its other parts stay.
            for k in range(step // 8):
                store(w + 8 * k, load(y + 8 * k))
    return 0


@native
def read_symmetric(a: int, n: int, square: int, step: int, size: int) -> int:
    """A lower triangle by columns, in lines that have all of the diagonal's blocks."""
    for column in range(n):
        for row in range(column, n):
            number = real_at(a + (column * n + row) * size, size)
            store(square + column * step + 8 * row, number)
        zero(square + column * step + 8 * n, step - 8 * n)
        block = column // NUMBERS * NUMBERS
        for row in range(block, column):
            number = real_at(a + (row * n + column) * size, size)
            store(square + column * step + 8 * row, number)
    return zero(square + n * step, (step // 8 - n) * step)


@native
def bring_up(column: int, v: int, w: int, i: int, n: int) -> int:
    """Take from column i what the last reflection changes."""
    first = load(w + 8 * i)
    second = load(v + 8 * i)
    for row in range(i, n):
        change = add_f64(
            mul_f64(load(v + 8 * row), first), mul_f64(load(w + 8 * row), second)
        )
        store(column + 8 * row, sub_f64(load(column + 8 * row), change))
    return 0


@native
def reflect_below(x: int, below: int, rest: int, offset: int, step: int) -> int:
    """LAPACK's larfg: the reflection is written to x, its factor is the result.

    The first number ``below`` becomes what it is reflected to.
    """
    for k in range(1, rest):
        store(x + offset + 8 * k, load(below + 8 * k))
    squares = lines_product(x, x, step)
    first = load(below)
    scale = ONE
    if less_f64(squares, LEAST):
        # What is left of a matrix of lower rank; its squares may be no numbers at all.
        scale = LARGE
        for k in range(1, rest):
            store(x + offset + 8 * k, mul_f64(load(x + offset + 8 * k), scale))
        squares = lines_product(x, x, step)
        first = mul_f64(first, scale)
    store(x + offset, ONE)
    if squares == 0:
        return 0
    length = sqrt_f64(add_f64(mul_f64(first, first), squares))
    beta = length | ((first & SIGN) ^ SIGN)
    factor = div_f64(ONE, sub_f64(first, beta))
    for k in range(1, rest):
        place = x + offset + 8 * k
        store(place, mul_f64(load(place), factor))
    store(below, div_f64(beta, scale))
    return div_f64(sub_f64(beta, first), beta)


@native
def multiply_symmetric(
    tools: int,
    square: int,
    step: int,
    v: int,
    w: int,
    x: int,
    y: int,
    first: int,
    n: int,
) -> int:
    """Bring the matrix from row ``first`` on up to date; y is its product with x.

    Threads take parts of its columns in turns, whose products are added up at last.
    """
    told = stack(TOLD_WORDS)
    parts = 1
    if n - first >= SHARED_LEAST:
        parts = PARTS
    store(told + SQUARE, square)
    store(told + STEP, step)
    store(told + V, v)
    store(told + W, w)
    store(told + X, x)
    store(told + Y, y)
    store(told + FIRST, first)
    store(told + COUNT, parts)
    share(tools, address_of(multiply_run), told, parts)
    for part in range(1, parts):
        place = 8 * first
        while place < step:
            other = load(y + part * step + place)
            store(y + place, add_f64(load(y + place), other))
            place += 8
    return 0


@native
def multiply_run(told: int, begin: int, end: int) -> int:
    """Parts of the columns.

    A block of the diagonal is multiplied by its columns; what is below it serves as
    what is right of it, too.
    """
    step = load(told + STEP)
    v = load(told + V)
    w = load(told + W)
    x = load(told + X)
    factors = stack(FACTORS)
    for part in range(begin, end):
        y = load(told + Y) + part * step
        zero(y, step)
        column = (load(told + FIRST) // COLUMNS + part) * COLUMNS
        while 8 * column < step:
            for k in range(COLUMNS):
                store(factors + 8 * k, load(w + 8 * (column + k)))
                store(factors + 8 * (COLUMNS + k), load(v + 8 * (column + k)))
                store(factors + 8 * (2 * COLUMNS + k), 0)
            block = column // NUMBERS * LINE_BYTES
            below = block + LINE_BYTES
            here = load(told + SQUARE) + column * step
            total = y + 8 * column
            columns_update_products(
                here + block,
                step,
                LINE_BYTES,
                v + block,
                w + block,
                x + block,
                y + block,
                factors,
                total,
            )
            for k in range(COLUMNS):
                number = load(x + 8 * (column + k))
                store(factors + 8 * (2 * COLUMNS + k), number)
            columns_update_products(
                here + below,
                step,
                step - below,
                v + below,
                w + below,
                x + below,
                y + below,
                factors,
                total,
            )
            column += load(told + COUNT) * COLUMNS
    return 0


@native
def pair_of(x: int, y: int, first: int, tau: int, step: int) -> int:
    """From A x, what A is to be less ``x y^T + y x^T`` of."""
    zero(y, 8 * first)
    dot = mul_f64(mul_f64(tau, tau), lines_product(x, y, step))
    half = mul_f64(HALF, dot)
    place = 8 * first
    while place < step:
        change = mul_f64(half, load(x + place))
        store(y + place, sub_f64(mul_f64(tau, load(y + place)), change))
        place += 8
    return 0


@native
def tridiagonal_values(
    diagonal: int,
    sides: int,
    vectors: int,
    leading: int,
    n: int,
    work: int,
    size: int,
) -> int:
    """LAPACK's steqr: eigenvalues in place, in no order, vectors; not 0 if it failed.

    The implicit QL algorithm (Dubrulle, Martin and Wilkinson, 1968). The greatest
    number is about 1. Workspace is for the lines of a square and of two more rows.
    """
    step = whole_lines(n)
    d = work
    e = d + step
    z = e + step
    for i in range(n):
        store(d + 8 * i, real_at(diagonal + i * size, size))
        store(e + 8 * i, 0)
        zero(z + i * step, step)
        store(z + i * step + 8 * i, ONE)
        if i + 1 < n:
            store(e + 8 * i, real_at(sides + i * size, size))
    failed = 0
    for i in range(n):
        turns = 0
        last = end_of_block(d, e, i, n)
        while last > i:
            if turns == TURNS:
                failed = 1
                break
            chase(d, e, z, step, i, last)
            turns += 1
            last = end_of_block(d, e, i, n)
    for i in range(n):
        write_real(diagonal + i * size, load(d + 8 * i), size)
        for k in range(n):
            number = load(z + i * step + 8 * k)
            write_real(vectors + (i * leading + k) * size, number, size)
    return failed


@native
def end_of_block(d: int, e: int, first: int, n: int) -> int:
    """The first row from ``first`` on below which there is nothing beside it."""
    for row in range(first, n - 1):
        sum = add_f64(load(d + 8 * row) & MAGNITUDE, load(d + 8 * row + 8) & MAGNITUDE)
        side = load(e + 8 * row) & MAGNITUDE
        if less_f64(add_f64(mul_f64(ROUNDING, sum), NOTHING), side) == 0:
            return row
    return n - 1


@native
def chase(d: int, e: int, z: int, step: int, first: int, last: int) -> int:
    """One implicit QL step of a block, with Wilkinson's shift."""
    own = load(d + 8 * first)
    side = load(e + 8 * first)
    g = div_f64(sub_f64(load(d + 8 * first + 8), own), mul_f64(TWO, side))
    root = sqrt_f64(add_f64(mul_f64(g, g), ONE)) | (g & SIGN)
    g = add_f64(sub_f64(load(d + 8 * last), own), div_f64(side, add_f64(g, root)))
    s = ONE
    c = ONE
    p = 0
    i = last - 1
    while i >= first:
        f = mul_f64(s, load(e + 8 * i))
        b = mul_f64(c, load(e + 8 * i))
        r = sqrt_f64(add_f64(mul_f64(f, f), mul_f64(g, g)))
        store(e + 8 * i + 8, r)
        if r == 0:
            store(d + 8 * i + 8, sub_f64(load(d + 8 * i + 8), p))
            store(e + 8 * last, 0)
            return 0
        s = div_f64(f, r)
        c = div_f64(g, r)
        g = sub_f64(load(d + 8 * i + 8), p)
        twice = mul_f64(mul_f64(TWO, c), b)
        r = add_f64(mul_f64(sub_f64(load(d + 8 * i), g), s), twice)
        p = mul_f64(s, r)
        store(d + 8 * i + 8, add_f64(g, p))
        g = sub_f64(mul_f64(c, r), b)
        lines_rotate(z + i * step, z + (i + 1) * step, step, c, s)
        i -= 1
    store(d + 8 * first, sub_f64(own, p))
    store(e + 8 * first, g)
    store(e + 8 * last, 0)
    return 0
