"""Products of Householder reflections, applied as one by matrix products.

``1 - V T V^H`` with reflections in the columns of V, or ``1 - V^H T V`` with them in
its rows (Schreiber and Van Loan, A storage-efficient WY representation for products of
Householder transformations, 1989). V lies as LAPACK leaves it, with other things where
it is 0 and 1. Its triangle is written out beside T, so that all else is products of
whole matrices, and nothing is written to V: threads can share it.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.libraries.blas import LETTERS, products_blas
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    LETTER_C,
    LETTER_N,
    LETTER_U,
    copy_negated,
    copy_real,
    memcpy,
    memset,
    one_bits,
)
from arrayfn.backends.native import call, load, native, stack, store, store_u8
from arrayfn.dtypes import BY_SHORT_NAME

BY_COLUMNS: Final = 0
BY_ROWS: Final = 1

# Byte offsets into what the routines need.
GEMM: Final = 0
TRMV: Final = 8
SCAL: Final = 16
SIZE: Final = 24  # bytes of a number
REAL: Final = 32  # and of a real one
# Numbers of any dtype: the word after each is 0, an imaginary part.
ONE: Final = 40
MINUS_ONE: Final = 56
ZERO: Final = 64
REFLECTION_WORDS: Final = 10

# Square matrices for a panel: T, and the triangle of V.
SQUARES: Final = 2


def reflection_words(dtype: str) -> tuple[int, ...]:
    """What the routines need; integers are passed in words of 64 bits."""
    letter, library = LETTERS[dtype], products_blas()
    kind = BY_SHORT_NAME[dtype]
    return (
        *(library.address(letter + name) for name in ("gemm", "trmv", "scal")),
        kind.itemsize,
        kind.itemsize >> (kind.kind == "c"),
        one_bits(dtype, 1),
        0,
        one_bits(dtype, -1),
        0,
        0,
    )


@native
def panel_squares(block: int, size: int) -> int:
    """The bytes of the squares of one panel of up to ``block`` reflections."""
    return SQUARES * block * block * size


@native
def multiply(
    words: int,
    letter_a: int,
    letter_b: int,
    rows: int,
    columns: int,
    inner: int,
    alpha: int,
    a: int,
    leading_a: int,
    b: int,
    leading_b: int,
    beta: int,
    c: int,
    leading_c: int,
) -> int:
    """C = alpha A B + beta C, by columns; at ``alpha`` and ``beta`` are numbers.

    Nothing happens where an extent is 0.
    """
    if rows < 1 or columns < 1 or inner < 1:
        return 0
    letters = stack(1)
    ints = stack(6)
    store_u8(letters, letter_a)
    store_u8(letters + 1, letter_b)
    store(ints, rows)
    store(ints + 8, columns)
    store(ints + 16, inner)
    store(ints + 24, leading_a)
    store(ints + 32, leading_b)
    store(ints + 40, leading_c)
    return call(
        load(words + GEMM),
        letters,
        letters + 1,
        ints,
        ints + 8,
        ints + 16,
        alpha,
        a,
        ints + 24,
        b,
        ints + 32,
        beta,
        c,
        ints + 40,
    )


@native
def write_triangle(
    words: int, by_rows: int, count: int, v: int, leading: int, block: int, target: int
) -> int:
    """The first ``count`` columns (or rows) of V with their ones and zeros."""
    size = load(words + SIZE)
    real = load(words + REAL)
    for column in range(count):
        place = target + column * block * size
        source = v + column * leading * size
        memset(place, 0, count * size)
        first = column + 1
        length = count - first
        if by_rows:
            first = 0
            length = column
        memcpy(place + first * size, source + first * size, length * size)
        copy_real(place + column * size, words + ONE, real)
    return 0


@native
def form_reflector(
    words: int,
    by_rows: int,
    length: int,
    count: int,
    v: int,
    leading: int,
    tau: int,
    t: int,
    block: int,
) -> int:
    """The squares of ``count`` reflections of ``length``, ``block`` between columns.

    Column i of T is ``-tau_i T V^H v_i`` above its diagonal, with the T before it.
    """
    size = load(words + SIZE)
    real = load(words + REAL)
    d = t + block * block * size
    write_triangle(words, by_rows, count, v, leading, block, d)
    plus = words + ONE
    none = words + ZERO
    h = LETTER_C
    n = LETTER_N
    rest = v + count * size
    if by_rows:
        h = LETTER_N
        n = LETTER_C
        rest = v + count * leading * size
    k = length - count
    multiply(words, h, n, count, count, count, plus, d, block, d, block, none, t, block)
    multiply(
        words, h, n, count, count, k, plus, rest, leading, rest, leading, plus, t, block
    )
    letters = stack(1)
    ints = stack(3)
    less = stack(2)
    store_u8(letters, LETTER_U)
    store_u8(letters + 1, LETTER_N)
    store_u8(letters + 2, LETTER_N)
    store(ints + 8, block)
    store(ints + 16, 1)
    for i in range(count):
        column = t + i * block * size
        store(ints, i)
        for part in range(size // real):
            copy_negated(less + part * real, tau + i * size + part * real, real)
        if i > 0:
            call(load(words + SCAL), ints, less, column, ints + 16)
            call(
                load(words + TRMV),
                letters,
                letters + 1,
                letters + 2,
                ints,
                t,
                ints + 8,
                column,
                ints + 16,
            )
        memcpy(column + i * size, tau + i * size, size)
        memset(column + (i + 1) * size, 0, (count - i - 1) * size)
    return 0


@native
def apply_reflector(
    words: int,
    by_rows: int,
    letter: int,
    rows: int,
    columns: int,
    count: int,
    v: int,
    leading: int,
    t: int,
    block: int,
    c: int,
    leading_c: int,
    work: int,
) -> int:
    """Apply ``count`` reflections to C: from the left, or ``by_rows`` from the right.

    ``letter`` says whether they are transposed (C) or not (N). Workspace is for twice
    ``block`` times C's other extent. From the left it comes to C - V T V^H C, from the
    right to C - C V^H T V, with V's triangle apart from the rest of V.
    """
    size = load(words + SIZE)
    n = LETTER_N
    h = LETTER_C
    plus = words + ONE
    less = words + MINUS_ONE
    none = words + ZERO
    d = t + block * block * size
    lc = leading_c
    m = count
    if by_rows:
        v += m * leading * size
        rest = c + m * lc * size
        k = columns - m
        w = work + rows * m * size
        multiply(words, n, h, rows, m, m, plus, c, lc, d, block, none, work, rows)
        multiply(words, n, h, rows, m, k, plus, rest, lc, v, leading, plus, work, rows)
        multiply(
            words, n, letter, rows, m, m, plus, work, rows, t, block, none, w, rows
        )
        multiply(words, n, n, rows, m, m, less, w, rows, d, block, plus, c, lc)
        return multiply(
            words, n, n, rows, k, m, less, w, rows, v, leading, plus, rest, lc
        )
    v += m * size
    rest = c + m * size
    k = rows - m
    w = work + m * columns * size
    multiply(words, h, n, m, columns, m, plus, d, block, c, lc, none, work, m)
    multiply(words, h, n, m, columns, k, plus, v, leading, rest, lc, plus, work, m)
    multiply(words, letter, n, m, columns, m, plus, t, block, work, m, none, w, m)
    multiply(words, n, n, m, columns, m, less, d, block, w, m, plus, c, lc)
    return multiply(words, n, n, k, columns, m, less, v, leading, w, m, plus, rest, lc)
