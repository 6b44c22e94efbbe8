"""Singular vectors of a real bidiagonal matrix: divide and conquer, shared by threads.

LAPACK's bdsdc (Gu and Eisenstat 1995) with its parts as work items, as ``divided_eigh``
does it with stedc. Two neighbours and the row between them make the poles of a secular
equation. Matrices lie by columns.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.libraries.blas import LETTERS, lapack_address
from arrayfn.backends.cpu.libraries.linear_algebra import singular_loops
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
    copy_real,
    memcpy,
    memset,
)
from arrayfn.backends.cpu.libraries.linear_algebra.reflections import (
    ONE,
    SIZE,
)
from arrayfn.backends.cpu.libraries.linear_algebra.scaling import rescale, scale_of_both
from arrayfn.backends.cpu.libraries.linear_algebra.shared_products import share
from arrayfn.backends.cpu.libraries.linear_algebra.singular_items import (
    FLOOR,
    LASD0,
    LASD2,
    LEFT,
    OLD_U,
    OLD_V,
    RIGHT,
    ROWS,
    SCALED,
    SMALL_V,
    TOLD_WORDS,
    WIDE,
    U,
    V,
    lapacks_singular_root,
    only_root,
    part_of,
    products_run,
    share_first_row,
    singular_weights_run,
    small_singular_run,
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

SMALLEST: Final = 25  # of LAPACK's own pieces in these


def divided_words(dtype: str) -> tuple[int, ...]:
    """What the routines need for matrices of ``dtype``: functions of its real part."""
    real = short_name(real_of(BY_SHORT_NAME[dtype]))
    functions = ("lasd0", "lasd2", "lasd4")
    return (
        *dividing_words(dtype),
        *(lapack_address(LETTERS[real] + name) for name in functions),
        *native_addresses(
            singular_loops.singular_scale,
            singular_loops.singular_weights,
            singular_loops.singular_vectors,
            singular_loops.singular_floor,
        ),
    )


@native
def divided_svd(
    words: int,
    tools: int,
    n: int,
    d: int,
    e: int,
    u: int,
    v: int,
    work: int,
    integers: int,
) -> int:
    """Singular values into ``d``, vectors into ``u`` and V^T; not 0 if it failed.

    ``d`` and ``e`` are the diagonal and what is above it, which are lost. Values come
    out in the order that the first n 32-bit integers have, from 1: the least is first.
    Workspace is for 4 n (n + 5) numbers and 9 n integers.
    """
    told = stack(TOLD_WORDS)
    pieces = tell(told, words, tools, n, d, e, work, integers)
    store(told + U, u)
    store(told + V, v)
    store(told + SQUARES, 1)
    store(told + LAPACKS_ROOT, address_of(lapacks_singular_root))
    share(tools, address_of(identities_run), told, pieces)
    size = load(words + SIZE)
    scale = scale_of_both(d, n, e, n - 1, size)
    if scale == 0:
        return write_order(integers, n)
    rescale(load(words + LASCL), scale, 0, n, 1, d, size)
    rescale(load(words + LASCL), scale, 0, n - 1, 1, e, size)
    # Parts without a norm would have no scale.
    call(load(words + FLOOR), d, n, size)
    share(tools, address_of(singular_pieces_run), told, pieces)
    merge_all(told, address_of(merge_singular))
    call(load(words + SORT), integers, d, n, size)
    rescale(load(words + LASCL), scale, 1, n, 1, d, size)
    return load(told + FAILED)


@native
def boundary(n: int, pieces: int, piece: int) -> int:
    """Where ``piece`` begins: after the row between it and the one before."""
    if piece == 0:
        return 0
    return n * piece // pieces + 1


@native
def identities_run(told: int, begin: int, end: int) -> int:
    """Columns of U and V^T begin as those of the identity."""
    words = load(told + WORDS)
    size = load(words + SIZE)
    n = load(told + EXTENT)
    pieces = load(told + PIECES)
    for column in range(n * begin // pieces, n * end // pieces):
        u = load(told + U) + column * n * size
        v = load(told + V) + column * n * size
        memset(u, 0, n * size)
        memset(v, 0, n * size)
        copy_real(u + column * size, words + ONE, size)
        copy_real(v + column * size, words + ONE, size)
    return 0


@native
def singular_pieces_run(told: int, begin: int, end: int) -> int:
    """Decompose pieces ``begin`` to ``end``: all but the last have a column more."""
    words = load(told + WORDS)
    size = load(words + SIZE)
    n = load(told + EXTENT)
    pieces = load(told + PIECES)
    ints = stack(3)
    store_i32(ints + 8, n)
    store_i32(ints + 12, SMALLEST)
    for piece in range(begin, end):
        first = boundary(n, pieces, piece)
        extent = n * (piece + 1) // pieces - first
        integers = load(told + INTEGERS)
        values = load(told + D) + first * size
        corner = (first * n + first) * size
        store_i32(ints, extent)
        store_i32(ints + 4, piece + 1 < pieces)
        call(
            load(words + LASD0),
            ints,
            ints + 4,
            values,
            load(told + E) + first * size,
            load(told + U) + corner,
            ints + 8,
            load(told + V) + corner,
            ints + 8,
            ints + 12,
            integers + (n + 8 * first) * 4,
            load(told + WORK) + 4 * first * (n + 5) * size,
            ints + 16,
        )
        if load_i32(ints + 16) != 0:
            store(told + FAILED, 1)
        write_order(integers + first * 4, extent)
        call(load(words + SORT), integers + first * 4, values, extent, size)
    return 0


@native
def merge_singular(whole: int, item: int) -> int:
    """Decompose two neighbours and the row between, from their decompositions."""
    told = stack(TOLD_WORDS)
    copy_told(told, whole)
    numbers = stack(4)
    tools = load(told + TOOLS)
    words = load(told + WORDS)
    size = load(words + SIZE)
    n = load(told + EXTENT)
    pieces = load(told + PIECES)
    step = load(told + STEP)
    begin = boundary(n, pieces, 2 * item * step)
    middle = n * ((2 * item + 1) * step) // pieces
    stop = n * ((2 * item + 2) * step) // pieces
    both = stop - begin
    wide = both + (stop < n)
    made = load(told + WORK) + 4 * begin * (n + 5) * size
    order = load(told + INTEGERS) + 4 * begin
    integers = load(told + INTEGERS) + 4 * (n + 8 * begin)
    values = load(told + D) + begin * size
    store(told + BEGIN, begin)
    store(told + DISTANCES, part_of(told, load(told + U)))
    store(told + SUMS, part_of(told, load(told + V)))
    store(told + LEFT, middle - begin)
    store(told + RIGHT, stop - middle - 1)
    store(told + BOTH, both)
    store(told + WIDE, wide)
    store(told + RHO, numbers + 16)
    store(told + NEW_WEIGHTS, made)
    store(told + GIVEN_WEIGHTS, made + wide * size)
    store(told + POLES, made + 2 * wide * size)
    store(told + OLD_U, made + 3 * wide * size)
    store(told + OLD_V, made + (3 + wide) * wide * size)
    store(told + SMALL, made + (3 + 2 * wide) * wide * size)
    store(told + SMALL_V, made + (3 + 3 * wide) * wide * size)
    store(told + ORDER, integers + 4 * both)
    store(told + TYPES, integers + 12 * both)
    # The row between the parts.
    copy_real(numbers, load(told + D) + middle * size, size)
    copy_real(numbers + size, load(told + E) + middle * size, size)
    memset(load(told + D) + middle * size, 0, size)
    scale = scale_of_both(values, both, numbers, 2, size)
    if scale:
        rescale(load(words + LASCL), scale, 0, both, 1, values, size)
        rescale(load(words + LASCL), scale, 0, 2, 1, numbers, size)
    count = deflate_singular(told, numbers, order, integers)
    store(told + COUNT, count)
    if count == 1:
        only_root(told)
    else:
        given = load(told + GIVEN_WEIGHTS)
        weights = load(told + NEW_WEIGHTS)
        memcpy(given, weights, count * size)
        call(load(words + SCALED), given, numbers + 16, count, size)
        find_roots(told)
        share(tools, address_of(singular_weights_run), told, (count + ROWS - 1) // ROWS)
        items = (count + VECTORS - 1) // VECTORS
        share(tools, address_of(small_singular_run), told, items)
        share_first_row(told)
        share(tools, address_of(products_run), told, 2 * items)
    if scale:
        rescale(load(words + LASCL), scale, 1, both, 1, values, size)
    return merge_order(told, values, order)


@native
def deflate_singular(told: int, numbers: int, order: int, integers: int) -> int:
    """LAPACK's lasd2: the number of roots. Other vectors are known, and come last."""
    words = load(told + WORDS)
    size = load(words + SIZE)
    both = load(told + BOTH)
    ints = stack(5)
    store_i32(ints, load(told + LEFT))
    store_i32(ints + 4, load(told + RIGHT))
    store_i32(ints + 8, load(told + WIDE) - both)
    store_i32(ints + 12, 0)
    store_i32(ints + 16, load(told + EXTENT))
    store_i32(ints + 20, both)
    store_i32(ints + 24, load(told + WIDE))
    call(
        load(words + LASD2),
        ints,
        ints + 4,
        ints + 8,
        ints + 12,
        load(told + D) + load(told + BEGIN) * size,
        load(told + NEW_WEIGHTS),
        numbers,
        numbers + size,
        part_of(told, load(told + U)),
        ints + 16,
        part_of(told, load(told + V)),
        ints + 16,
        load(told + POLES),
        load(told + OLD_U),
        ints + 20,
        load(told + OLD_V),
        ints + 24,
        integers + 8 * both,
        integers,
        load(told + ORDER),
        order,
        load(told + TYPES),
        ints + 28,
    )
    return load_i32(ints + 12)
