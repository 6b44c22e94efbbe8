"""Work items of merging the singular vectors of two parts of a bidiagonal matrix.

Roots of the secular equation, weights and vectors that follow from them, and products
of these with the singular vectors of the parts. See ``divided_svd``.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.libraries.linear_algebra import singular_loops
from arrayfn.backends.cpu.libraries.linear_algebra.dividing import (
    BEGIN,
    BOTH,
    COUNT,
    DISTANCES,
    EXTENT,
    GIVEN_WEIGHTS,
    NEW_WEIGHTS,
    ORDER,
    OWN_TOLD,
    OWN_WORDS,
    POLES,
    RHO,
    SMALL,
    SUMS,
    TYPES,
    VECTORS,
    WHOLE_TOLD,
    WORDS,
    D,
)
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    LETTER_N,
    LETTER_T,
    copy_negated,
    copy_real,
    least,
    memset,
)
from arrayfn.backends.cpu.libraries.linear_algebra.reflections import (
    ONE,
    SIZE,
    ZERO,
    multiply,
)
from arrayfn.backends.cpu.libraries.linear_algebra.shared_products import copy_apart
from arrayfn.backends.native import (
    call,
    load,
    load_i32,
    native,
    stack,
    store_i32,
)

ROWS: Final = singular_loops.ROWS

# Byte offsets into what the routines need, after the words of ``dividing``.
LASD0: Final = OWN_WORDS
LASD2: Final = OWN_WORDS + 8
LASD4: Final = OWN_WORDS + 16
SCALED: Final = OWN_WORDS + 24
WEIGHTS: Final = OWN_WORDS + 32
BOTH_VECTORS: Final = OWN_WORDS + 40
FLOOR: Final = OWN_WORDS + 48
DIVIDED_WORDS: Final = OWN_WORDS // 8 + 7

# Byte offsets into what the parts are told, and those of one merge.
U: Final = WHOLE_TOLD
V: Final = WHOLE_TOLD + 8  # V^T
LEFT: Final = OWN_TOLD  # extents of the parts, without the row between
RIGHT: Final = OWN_TOLD + 8
WIDE: Final = OWN_TOLD + 16  # columns
OLD_U: Final = OWN_TOLD + 24
OLD_V: Final = OWN_TOLD + 32
SMALL_V: Final = OWN_TOLD + 40
TOLD_WORDS: Final = OWN_TOLD // 8 + 6


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
def lapacks_singular_root(told: int, root: int) -> int:
    """A root by LAPACK's lasd4; not 0 if it failed."""
    words = load(told + WORDS)
    size = load(words + SIZE)
    column = root * load(told + EXTENT) * size
    ints = stack(2)
    store_i32(ints, load(told + COUNT))
    store_i32(ints + 4, root + 1)
    call(
        load(words + LASD4),
        ints,
        ints + 4,
        load(told + POLES),
        load(told + GIVEN_WEIGHTS),
        load(told + DISTANCES) + column,
        load(told + RHO),
        load(told + D) + (load(told + BEGIN) + root) * size,
        load(told + SUMS) + column,
        ints + 8,
    )
    return load_i32(ints + 8)


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
            load(told + SMALL) + root * count * size,
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
    small = load(told + SMALL) + first * count * size
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
