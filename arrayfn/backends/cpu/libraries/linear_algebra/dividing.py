"""What divide and conquer of eigenvalues and of singular values have in common.

A matrix is cut into pieces; two neighbours, decomposed, make the poles of a secular
equation, whose roots are independent of each other (Cuppen 1981; Gu and Eisenstat
1995). Pieces and items follow from the extent alone, so the bits do not depend on the
number of threads.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.libraries.blas import LETTERS, lapack_address
from arrayfn.backends.cpu.libraries.linear_algebra import secular_loops
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import least
from arrayfn.backends.cpu.libraries.linear_algebra.reflections import (
    SIZE,
    reflection_words,
)
from arrayfn.backends.cpu.libraries.linear_algebra.shared_products import share
from arrayfn.backends.native import (
    address_of,
    call,
    load,
    native,
    stack,
    store,
    store_i32,
)
from arrayfn.backends.native.code import native_addresses
from arrayfn.dtypes import BY_SHORT_NAME, real_of, short_name

LEAF: Final = 32  # extent of pieces, at least
ROOTS: Final = 32  # of an item
MANY: Final = 16  # roots that are worth vectors
VECTORS: Final = 128  # of an item

# Byte offsets into what the routines need, after the words of ``reflections``.
LAMRG: Final = 80
LASCL: Final = 88
SORT: Final = 96
PREPARE: Final = 104
ROOT: Final = 112
OWN_WORDS: Final = 120  # of either kind

# Byte offsets into what all parts are told.
TOOLS: Final = 0
WORDS: Final = 8
EXTENT: Final = 16
D: Final = 24
E: Final = 32
WORK: Final = 40
INTEGERS: Final = 48
PIECES: Final = 56
STEP: Final = 64  # pieces on either side of a merge
FAILED: Final = 72
SQUARES: Final = 80  # whether roots are of squares
LAPACKS_ROOT: Final = 88  # a routine (told, root): not 0 if it failed
WHOLE_TOLD: Final = 96  # of either kind: U and V, or Z
# And those of one merge.
WHOLE: Final = 112
BEGIN: Final = 120
BOTH: Final = 128  # extents of its parts
COUNT: Final = 136  # roots
RHO: Final = 144  # address
NEW_WEIGHTS: Final = 152
GIVEN_WEIGHTS: Final = 160
POLES: Final = 168
SMALL: Final = 176  # vectors of the secular equation, and lines before there are any
ORDER: Final = 184
TYPES: Final = 192  # columns of each type
DISTANCES: Final = 200  # of poles and roots: what is told last, like their sums
SUMS: Final = 208
OWN_TOLD: Final = 216  # of either kind


def dividing_words(dtype: str) -> tuple[int, ...]:
    """What the routines need for matrices of ``dtype``: functions of its real part."""
    real = short_name(real_of(BY_SHORT_NAME[dtype]))
    return (
        *reflection_words(real),
        *(lapack_address(LETTERS[real] + name) for name in ("lamrg", "lascl")),
        *native_addresses(
            secular_loops.secular_sort,
            secular_loops.secular_prepare,
            secular_loops.secular_root,
        ),
    )


@native
def tell(
    told: int,
    words: int,
    tools: int,
    n: int,
    d: int,
    e: int,
    work: int,
    integers: int,
) -> int:
    """Write what all parts are told; into how many pieces the matrix is cut."""
    pieces = 1
    while n // (2 * pieces) >= LEAF:
        pieces = 2 * pieces
    store(told + TOOLS, tools)
    store(told + WORDS, words)
    store(told + EXTENT, n)
    store(told + D, d)
    store(told + E, e)
    store(told + WORK, work)
    store(told + INTEGERS, integers)
    store(told + PIECES, pieces)
    store(told + FAILED, 0)
    return pieces


@native
def merge_all(told: int, merge: int) -> int:
    """Merge neighbours until there is one: by ``merge``, a routine (told, item)."""
    step = 1
    while step < load(told + PIECES):
        store(told + STEP, step)
        for item in range(load(told + PIECES) // (2 * step)):
            call(merge, told, item)
        step = 2 * step
    return 0


@native
def copy_told(target: int, source: int) -> int:
    """What a merge is told of the whole."""
    for word in range(WHOLE // 8):
        store(target + 8 * word, load(source + 8 * word))
    store(target + WHOLE, source)
    return 0


@native
def write_order(order: int, count: int) -> int:
    """The numbers from 1 to ``count``."""
    for i in range(count):
        store_i32(order + 4 * i, i + 1)
    return 0


@native
def merge_order(told: int, values: int, order: int) -> int:
    """The order of roots, which grow, and of the values behind them, which fall."""
    count = load(told + COUNT)
    ints = stack(2)
    store_i32(ints, count)
    store_i32(ints + 4, load(told + BOTH) - count)
    store_i32(ints + 8, 1)
    store_i32(ints + 12, -1)
    return call(
        load(load(told + WORDS) + LAMRG),
        ints,
        ints + 4,
        values,
        ints + 8,
        ints + 12,
        order,
    )


@native
def small_lines(told: int) -> int:
    """Where the poles and weights are in float64, until there are small vectors."""
    return (load(told + SMALL) + 7) & -8


@native
def find_roots(told: int) -> int:
    """All roots of a merge's equation, and their distances to the poles."""
    words = load(told + WORDS)
    count = load(told + COUNT)
    if count >= MANY:
        call(
            load(words + PREPARE),
            small_lines(told),
            load(told + POLES),
            load(told + GIVEN_WEIGHTS),
            count,
            load(words + SIZE),
        )
    items = (count + ROOTS - 1) // ROOTS
    return share(load(told + TOOLS), address_of(roots_run), told, items)


@native
def roots_run(told: int, begin: int, end: int) -> int:
    """Roots ``begin`` to ``end``, ``ROOTS`` at a time: the last one is LAPACK's."""
    words = load(told + WORDS)
    size = load(words + SIZE)
    count = load(told + COUNT)
    values = load(told + D) + load(told + BEGIN) * size
    for root in range(begin * ROOTS, least(end * ROOTS, count)):
        column = root * load(told + EXTENT) * size
        failed = 1
        if count >= MANY and root < count - 1:
            failed = call(
                load(words + ROOT),
                small_lines(told),
                count,
                root,
                load(told + RHO),
                load(told + SQUARES),
                values + root * size,
                load(told + DISTANCES) + column,
                load(told + SUMS) + column,
                size,
            )
        if failed:
            failed = call(load(told + LAPACKS_ROOT), told, root)
        if failed:
            store(load(told + WHOLE) + FAILED, 1)
    return 0
