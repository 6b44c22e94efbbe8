"""Work items of merging the singular vectors of two parts of a bidiagonal matrix.

Roots of the secular equation, weights and vectors that follow from them, and products
of these with the singular vectors of the parts. See ``divided_svd``.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.libraries import singular_loops
from arrayfn.backends.cpu.libraries.matrices import (
    LETTER_N,
    LETTER_T,
    copy_negated,
    copy_real,
    least,
    memset,
)
from arrayfn.backends.cpu.libraries.reflections import ONE, SIZE, ZERO, multiply
from arrayfn.backends.cpu.libraries.shared_products import copy_apart
from arrayfn.backends.native import (
    call,
    load,
    load_i32,
    native,
    stack,
    store,
    store_i32,
)

ROOTS: Final = 32  # of an item
MANY: Final = 16  # roots that are worth vectors
ROWS: Final = singular_loops.ROWS
VECTORS: Final = 128  # of an item

# Byte offsets into what the routines need, after the words of ``reflections``.
LASD0: Final = 80
LASD2: Final = 88
LASD4: Final = 96
LAMRG: Final = 104
LASCL: Final = 112
SCALED: Final = 120
WEIGHTS: Final = 128
BOTH_VECTORS: Final = 136
FLOOR: Final = 144
SORT: Final = 152
PREPARE: Final = 160
ROOT: Final = 168
DIVIDED_WORDS: Final = 22

# Byte offsets into what all parts are told.
TOOLS: Final = 0
WORDS: Final = 8
EXTENT: Final = 16
D: Final = 24
E: Final = 32
U: Final = 40
V: Final = 48  # V^T
WORK: Final = 56
INTEGERS: Final = 64
PIECES: Final = 72
STEP: Final = 80  # pieces on either side of a merge
FAILED: Final = 88
# And those of one merge.
WHOLE: Final = 96
BEGIN: Final = 104
LEFT: Final = 112  # extents of its parts, and of both with the row between
RIGHT: Final = 120
BOTH: Final = 128
WIDE: Final = 136  # columns
COUNT: Final = 144  # roots
SQUARE: Final = 152  # address
NEW_WEIGHTS: Final = 160
GIVEN_WEIGHTS: Final = 168
POLES: Final = 176
OLD_U: Final = 184
OLD_V: Final = 192
SMALL_U: Final = 200
SMALL_V: Final = 208
ORDER: Final = 216
TYPES: Final = 224  # columns of each type
TOLD_WORDS: Final = 29


@native
def part_of(told: int, matrix: int) -> int:
    """Where a merge's part of U or V^T is."""
    place = load(told + BEGIN) * (load(told + EXTENT) + 1)
    return matrix + place * load(load(told + WORDS) + SIZE)


@native
def only_root(told: int) -> int:
    """The one root is its weight without a sign."""
    words = load(told + WORDS)
    size = load(words + SIZE)
    n = load(told + EXTENT)
    both = load(told + BOTH)
    wide = load(told + WIDE)
    weight = load(told + NEW_WEIGHTS)
    value = load(told + D) + load(told + BEGIN) * size
    u = part_of(told, load(told + U))
    v = part_of(told, load(told + V))
    copy_apart(v, n * size, load(told + OLD_V), wide * size, wide, size)
    copy_real(value, weight, size)
    negative = load_i32(weight + size - 4) < 0
    for row in range(both):
        if negative:
            copy_real(u + row * size, load(told + OLD_U) + row * size, size)
            copy_negated(u + row * size, u + row * size, size)
        else:
            copy_real(u + row * size, load(told + OLD_U) + row * size, size)
    if negative:
        copy_negated(value, value, size)
    return 0


@native
def small_lines(told: int) -> int:
    """Where the poles and weights are in float64, until there are small vectors."""
    return (load(told + SMALL_U) + 7) & -8


@native
def singular_roots_run(told: int, begin: int, end: int) -> int:
    """Roots of a secular equation."""
    words = load(told + WORDS)
    size = load(words + SIZE)
    n = load(told + EXTENT)
    count = load(told + COUNT)
    values = load(told + D) + load(told + BEGIN) * size
    ints = stack(2)
    store_i32(ints, count)
    for root in range(begin * ROOTS, least(end * ROOTS, count)):
        column = root * n * size
        if count >= MANY and root < count - 1:
            failed = call(
                load(words + ROOT),
                small_lines(told),
                count,
                root,
                load(told + SQUARE),
                1,
                values + root * size,
                part_of(told, load(told + U)) + column,
                part_of(told, load(told + V)) + column,
                size,
            )
            if failed == 0:
                continue
        store_i32(ints + 4, root + 1)
        call(
            load(words + LASD4),
            ints,
            ints + 4,
            load(told + POLES),
            load(told + GIVEN_WEIGHTS),
            part_of(told, load(told + U)) + column,
            load(told + SQUARE),
            values + root * size,
            part_of(told, load(told + V)) + column,
            ints + 8,
        )
        if load_i32(ints + 8) != 0:
            store(load(told + WHOLE) + FAILED, 1)
    return 0


@native
def singular_weights_run(told: int, begin: int, end: int) -> int:
    """The weights whose roots are exactly those that were found."""
    words = load(told + WORDS)
    for item in range(begin, end):
        call(
            load(words + WEIGHTS),
            load(told + NEW_WEIGHTS),
            load(told + GIVEN_WEIGHTS),
            load(told + POLES),
            part_of(told, load(told + U)),
            part_of(told, load(told + V)),
            load(told + EXTENT),
            load(told + COUNT),
            item * ROWS,
            load(words + SIZE),
        )
    return 0


@native
def small_singular_run(told: int, begin: int, end: int) -> int:
    """Both singular vectors of roots, in the order of the parts' vectors."""
    words = load(told + WORDS)
    size = load(words + SIZE)
    n = load(told + EXTENT)
    count = load(told + COUNT)
    for root in range(begin * VECTORS, least(end * VECTORS, count)):
        call(
            load(words + BOTH_VECTORS),
            load(told + SMALL_U) + root * count * size,
            load(told + SMALL_V) + root * count * size,
            load(told + NEW_WEIGHTS),
            load(told + POLES),
            part_of(told, load(told + U)) + root * n * size,
            part_of(told, load(told + V)) + root * n * size,
            load(told + ORDER),
            count,
            size,
        )
    return 0


@native
def share_first_row(told: int) -> int:
    """The right part of V^T's first row goes before the rows of the right part."""
    size = load(load(told + WORDS) + SIZE)
    wide = load(told + WIDE)
    first = load_i32(load(told + TYPES))
    if first > 0:
        after = load(told + LEFT) + 1
        source = load(told + OLD_V) + after * wide * size
        target = source + first * size
        copy_apart(target, wide * size, source, wide * size, wide - after, size)
    return 0


@native
def products_run(told: int, begin: int, end: int) -> int:
    """Columns of U, or rows of V^T: those of the parts times the small vectors."""
    count = load(told + COUNT)
    for item in range(begin, end):
        first = item // 2 * VECTORS
        many = least(VECTORS, count - first)
        if item % 2 == 0:
            left_vectors(told, first, many)
        else:
            right_vectors(told, first, many)
    return 0


@native
def left_vectors(told: int, first: int, many: int) -> int:
    """Columns of U: above the row between, that row, and below."""
    words = load(told + WORDS)
    size = load(words + SIZE)
    n = load(told + EXTENT)
    count = load(told + COUNT)
    both = load(told + BOTH)
    left = load(told + LEFT)
    types = load(told + TYPES)
    one = load_i32(types)
    two = load_i32(types + 4)
    three = load_i32(types + 8)
    small = load(told + SMALL_U) + first * count * size
    old = load(told + OLD_U)
    target = part_of(told, load(told + U)) + first * n * size
    plus = words + ONE
    for column in range(many):
        memset(target + column * n * size, 0, both * size)
    k = LETTER_N
    a = old + both * size
    b = small + size
    multiply(words, k, k, left, many, one, plus, a, both, b, count, plus, target, n)
    a = old + (1 + one + two) * both * size
    b = small + (1 + one + two) * size
    multiply(words, k, k, left, many, three, plus, a, both, b, count, plus, target, n)
    between = target + left * size
    copy_apart(between, n * size, small, count * size, many, size)
    a = old + ((1 + one) * both + left + 1) * size
    b = small + (1 + one) * size
    c = between + size
    rows = load(told + RIGHT)
    inner = two + three
    return multiply(words, k, k, rows, many, inner, plus, a, both, b, count, plus, c, n)


@native
def right_vectors(told: int, first: int, many: int) -> int:
    """Rows of V^T: what is left of the right part's columns, and those."""
    words = load(told + WORDS)
    size = load(words + SIZE)
    n = load(told + EXTENT)
    count = load(told + COUNT)
    wide = load(told + WIDE)
    left = load(told + LEFT) + 1
    types = load(told + TYPES)
    one = load_i32(types)
    two = load_i32(types + 4)
    three = load_i32(types + 8)
    small = load(told + SMALL_V) + first * count * size
    old = load(told + OLD_V)
    target = part_of(told, load(told + V)) + first * size
    plus = words + ONE
    none = words + ZERO
    t = LETTER_T
    k = LETTER_N
    inner = 1 + one
    multiply(
        words, t, k, many, left, inner, plus, small, count, old, wide, none, target, n
    )
    a = small + (1 + one + two) * size
    b = old + (1 + one + two) * size
    multiply(words, t, k, many, left, three, plus, a, count, b, wide, plus, target, n)
    for column in range(many):
        numbers = small + column * count * size
        copy_real(numbers + one * size, numbers, size)
    a = small + one * size
    b = old + (left * wide + one) * size
    c = target + left * n * size
    inner = 1 + two + three
    columns = wide - left
    return multiply(
        words, t, k, many, columns, inner, plus, a, count, b, wide, none, c, n
    )
