"""Eigenvectors of a real tridiagonal matrix: divide and conquer, shared by threads.

LAPACK's stedc with its parts as work items. Pieces are decomposed by the QL algorithm;
eigenvectors are products with those of the pieces.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.libraries.blas import LETTERS, lapack_address
from arrayfn.backends.cpu.libraries.linear_algebra import (
    secular_loops,
    tridiagonal_loops,
)
from arrayfn.backends.cpu.libraries.linear_algebra.dividing import (
    BEGIN,
    BOTH,
    COUNT,
    DISTANCES,
    EXTENT,
    FAILED,
    GIVEN_WEIGHTS,
    INTEGERS,
    LAPACKS_ROOT,
    LASCL,
    NEW_WEIGHTS,
    ORDER,
    OWN_TOLD,
    OWN_WORDS,
    PIECES,
    POLES,
    RHO,
    SMALL,
    SORT,
    SQUARES,
    STEP,
    SUMS,
    TOOLS,
    TYPES,
    VECTORS,
    WHOLE_TOLD,
    WORDS,
    WORK,
    D,
    E,
    copy_told,
    dividing_words,
    find_roots,
    merge_all,
    merge_order,
    tell,
    write_order,
)
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    LETTER_N,
    least,
    memset,
)
from arrayfn.backends.cpu.libraries.linear_algebra.reflections import (
    ONE,
    SIZE,
    ZERO,
    multiply,
)
from arrayfn.backends.cpu.libraries.linear_algebra.scaling import rescale, scale_of_both
from arrayfn.backends.cpu.libraries.linear_algebra.shared_products import (
    copy_apart,
    share,
)
from arrayfn.backends.native import (
    address_of,
    call,
    load,
    load_i32,
    native,
    stack,
    store,
    store_i32,
)
from arrayfn.backends.native.code import native_addresses
from arrayfn.dtypes import BY_SHORT_NAME, real_of, short_name

ROWS: Final = secular_loops.ROWS

# Byte offsets into what the routines need, after the words of ``dividing``.
LAED2: Final = OWN_WORDS
LAED4: Final = OWN_WORDS + 8
WEIGHTS: Final = OWN_WORDS + 16
VECTOR: Final = OWN_WORDS + 24
CUT: Final = OWN_WORDS + 32
PIECE: Final = OWN_WORDS + 40
DIVIDED_WORDS: Final = OWN_WORDS // 8 + 6

# Byte offsets into what the parts are told, and those of one merge.
Z: Final = WHOLE_TOLD
FIRST: Final = OWN_TOLD  # extent of the first part
OLD: Final = OWN_TOLD + 8
TOLD_WORDS: Final = OWN_TOLD // 8 + 2


def divided_words(dtype: str) -> tuple[int, ...]:
    """What the routines need for matrices of ``dtype``: functions of its real part."""
    real = short_name(real_of(BY_SHORT_NAME[dtype]))
    return (
        *dividing_words(dtype),
        *(lapack_address(LETTERS[real] + name) for name in ("laed2", "laed4")),
        *native_addresses(
            secular_loops.secular_weights,
            secular_loops.secular_vector,
            secular_loops.secular_cut,
            tridiagonal_loops.tridiagonal_values,
        ),
    )


@native
def divided_eigh(
    words: int,
    tools: int,
    n: int,
    d: int,
    e: int,
    z: int,
    work: int,
    integers: int,
) -> int:
    """Eigenvalues into ``d`` and vectors into ``z`` (n, n); not 0 if it failed.

    ``d`` and ``e`` are the diagonals, which are lost. What comes out is in the order
    that the first n 32-bit integers have, from 1. Workspace is for 2 n (n + 2) numbers
    and for 9 n integers.
    """
    told = stack(TOLD_WORDS)
    size = load(words + SIZE)
    scale = scale_of_both(d, n, e, n - 1, size)
    if scale:
        rescale(load(words + LASCL), scale, 0, n, 1, d, size)
        rescale(load(words + LASCL), scale, 0, n - 1, 1, e, size)
    pieces = tell(told, words, tools, n, d, e, work, integers)
    store(told + Z, z)
    store(told + SQUARES, 0)
    store(told + SUMS, 0)
    store(told + LAPACKS_ROOT, address_of(lapacks_root))
    memset(z, 0, n * n * size)
    for piece in range(1, pieces):
        call(load(words + CUT), d, e, n * piece // pieces, size)
    share(tools, address_of(pieces_run), told, pieces)
    merge_all(told, address_of(merge))
    call(load(words + SORT), integers, d, n, size)
    if scale:
        rescale(load(words + LASCL), scale, 1, n, 1, d, size)
    return load(told + FAILED)


@native
def pieces_run(told: int, begin: int, end: int) -> int:
    """Decompose pieces ``begin`` to ``end``."""
    words = load(told + WORDS)
    size = load(words + SIZE)
    n = load(told + EXTENT)
    pieces = load(told + PIECES)
    for piece in range(begin, end):
        first = n * piece // pieces
        extent = n * (piece + 1) // pieces - first
        order = load(told + INTEGERS) + first * 4
        values = load(told + D) + first * size
        failed = call(
            load(words + PIECE),
            values,
            load(told + E) + first * size,
            load(told + Z) + (first * n + first) * size,
            n,
            extent,
            load(told + WORK) + first * 2 * (n + 2) * size,
            size,
        )
        if failed:
            store(told + FAILED, 1)
        write_order(order, extent)
        call(load(words + SORT), order, values, extent, size)
    return 0


@native
def merge(whole: int, item: int) -> int:
    """Decompose two neighbours' whole, from their decompositions."""
    told = stack(TOLD_WORDS)
    copy_told(told, whole)
    rho = stack(1)
    tools = load(told + TOOLS)
    words = load(told + WORDS)
    size = load(words + SIZE)
    n = load(told + EXTENT)
    pieces = load(told + PIECES)
    step = load(told + STEP)
    begin = n * (2 * item * step) // pieces
    middle = n * ((2 * item + 1) * step) // pieces
    both = n * ((2 * item + 2) * step) // pieces - begin
    first = middle - begin
    corner = load(told + Z) + (begin * n + begin) * size
    made = load(told + WORK) + begin * 2 * (n + 2) * size
    order = load(told + INTEGERS) + 4 * begin
    integers = load(told + INTEGERS) + 4 * (n + 8 * begin)
    store(told + BEGIN, begin)
    store(told + FIRST, first)
    store(told + BOTH, both)
    store(told + RHO, rho)
    store(told + NEW_WEIGHTS, made)
    store(told + POLES, made + both * size)
    store(told + GIVEN_WEIGHTS, made + 2 * both * size)
    store(told + OLD, made + 3 * both * size)
    store(told + SMALL, made + (both + 3) * both * size)
    store(told + ORDER, integers + 4 * both)
    store(told + TYPES, integers + 12 * both)
    # Eigenvectors come in the place of distances.
    store(told + DISTANCES, corner)
    # The last row of the first vectors, and the first one of the others.
    row = corner + (first - 1) * size
    copy_apart(made, size, row, n * size, first, size)
    row = corner + (first * n + first) * size
    copy_apart(made + first * size, size, row, n * size, both - first, size)
    copy_apart(rho, size, load(told + E) + (middle - 1) * size, size, 1, size)
    count = deflate(told, corner, order, integers)
    if count == 0:
        return write_order(order, both)
    store(told + COUNT, count)
    find_roots(told)
    if count > 2:
        share(tools, address_of(weights_run), told, (count + ROWS - 1) // ROWS)
    share(tools, address_of(vectors_run), told, (count + VECTORS - 1) // VECTORS)
    return merge_order(told, load(told + D) + begin * size, order)


@native
def deflate(told: int, corner: int, order: int, integers: int) -> int:
    """LAPACK's laed2: the number of roots. Other eigenvectors are known, and last."""
    words = load(told + WORDS)
    both = load(told + BOTH)
    ints = stack(3)
    store_i32(ints, 0)
    store_i32(ints + 4, both)
    store_i32(ints + 8, load(told + FIRST))
    store_i32(ints + 12, load(told + EXTENT))
    call(
        load(words + LAED2),
        ints,
        ints + 4,
        ints + 8,
        load(told + D) + load(told + BEGIN) * load(words + SIZE),
        corner,
        ints + 12,
        order,
        load(told + RHO),
        load(told + NEW_WEIGHTS),
        load(told + POLES),
        load(told + GIVEN_WEIGHTS),
        load(told + OLD),
        integers,
        load(told + ORDER),
        integers + 8 * both,
        load(told + TYPES),
        ints + 16,
    )
    return load_i32(ints)


@native
def lapacks_root(told: int, root: int) -> int:
    """A root by LAPACK's laed4; not 0 if it failed."""
    words = load(told + WORDS)
    size = load(words + SIZE)
    ints = stack(2)
    store_i32(ints, load(told + COUNT))
    store_i32(ints + 4, root + 1)
    call(
        load(words + LAED4),
        ints,
        ints + 4,
        load(told + POLES),
        load(told + GIVEN_WEIGHTS),
        load(told + DISTANCES) + root * load(told + EXTENT) * size,
        load(told + RHO),
        load(told + D) + (load(told + BEGIN) + root) * size,
        ints + 8,
    )
    return load_i32(ints + 8)


@native
def weights_run(told: int, begin: int, end: int) -> int:
    """The weights whose roots are exactly those that were found."""
    words = load(told + WORDS)
    for item in range(begin, end):
        call(
            load(words + WEIGHTS),
            load(told + NEW_WEIGHTS),
            load(told + GIVEN_WEIGHTS),
            load(told + POLES),
            load(told + DISTANCES),
            load(told + EXTENT),
            load(told + COUNT),
            item * ROWS,
            load(words + SIZE),
        )
    return 0


@native
def vectors_run(told: int, begin: int, end: int) -> int:
    """Eigenvectors of the secular equation, times those of the two parts.

    The latter are those of the first part, those that are of both, those of the second.
    """
    words = load(told + WORDS)
    size = load(words + SIZE)
    n = load(told + EXTENT)
    count = load(told + COUNT)
    types = load(told + TYPES)
    first = load(told + FIRST)
    second = load(told + BOTH) - first
    before = load_i32(types)
    of_first = before + load_i32(types + 4)
    of_second = load_i32(types + 4) + load_i32(types + 8)
    a = load(told + OLD)
    b = a + first * of_first * size
    for item in range(begin, end):
        column = item * VECTORS
        many = least(VECTORS, count - column)
        small = load(told + SMALL) + column * count * size
        target = load(told + DISTANCES) + column * n * size
        small_vectors(told, small, target, many)
        part_of_vectors(words, first, many, of_first, a, small, count, target, n)
        small += before * size
        target += first * size
        part_of_vectors(words, second, many, of_second, b, small, count, target, n)
    return 0


@native
def small_vectors(told: int, small: int, distances: int, many: int) -> int:
    """Eigenvectors of the secular equation, in the order of the parts' vectors."""
    words = load(told + WORDS)
    size = load(words + SIZE)
    count = load(told + COUNT)
    for column in range(many):
        vector = small + column * count * size
        source = distances + column * load(told + EXTENT) * size
        if count > 2:
            call(
                load(words + VECTOR),
                vector,
                load(told + NEW_WEIGHTS),
                source,
                load(told + ORDER),
                count,
                size,
            )
        else:
            # LAPACK gives the eigenvectors themselves.
            for i in range(count):
                place = source + (load_i32(load(told + ORDER) + 4 * i) - 1) * size
                copy_apart(vector + i * size, size, place, size, 1, size)
    return 0


@native
def part_of_vectors(
    words: int,
    rows: int,
    columns: int,
    inner: int,
    a: int,
    b: int,
    leading_b: int,
    c: int,
    leading_c: int,
) -> int:
    """C = A B; zeros if there is nothing to add up."""
    if inner == 0:
        size = load(words + SIZE)
        for column in range(columns):
            memset(c + column * leading_c * size, 0, rows * size)
        return 0
    n = LETTER_N
    plus = words + ONE
    none = words + ZERO
    return multiply(
        words,
        n,
        n,
        rows,
        columns,
        inner,
        plus,
        a,
        rows,
        b,
        leading_b,
        none,
        c,
        leading_c,
    )
