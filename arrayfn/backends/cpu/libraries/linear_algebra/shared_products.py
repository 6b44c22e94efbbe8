"""Products with real vectors, in parts that threads share: BLAS's gemv and symv.

What reduces a matrix column by column is one work item of a plan, and most of its time
goes by in products of what is left of the matrix with a vector. Where the item has the
pool to itself it launches their parts there. Parts follow from extents alone, so the
bits do not depend on the number of threads. Matrices lie by columns.
"""

from __future__ import annotations

from typing import Final

from arrayfn import dtypes
from arrayfn.backends.cpu.libraries.blas import (
    LETTERS,
    blas,
    lapack_address,
    products_blas,
)
from arrayfn.backends.cpu.libraries.linear_algebra import symmetric_loops
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    LETTER_L,
    LETTER_N,
    LETTER_T,
    least,
    memset,
    one_bits,
)
from arrayfn.backends.cpu.pool import KernelEntry, Pool, pool_launch
from arrayfn.backends.native import (
    LINE_BYTES,
    address_of,
    call,
    cast,
    load,
    load_i32,
    native,
    stack,
    store,
    store_i32,
    store_u8,
)
from arrayfn.backends.native.code import native_address
from arrayfn.backends.native.structures import Array
from arrayfn.dtypes import BY_SHORT_NAME

# Byte offsets into the tools.
POOL: Final = 0  # 0: all parts are this thread's
GEMV: Final = 8
GEMM: Final = 16
SYMV: Final = 24
SCAL: Final = 32
LARFG: Final = 40
SIZE: Final = 48  # bytes of a number
ONE: Final = 56
MINUS_ONE: Final = 64
MINUS_HALF: Final = 72
STRIP_LOOP: Final = 80
TOOL_WORDS: Final = 11

ROWS_OF_PART: Final = 256
COLUMNS_OF_PART: Final = 128
PARTS: Final = 4  # of a symmetric matrix: sums of their results are made at last
LEAST_PART: Final = 96  # columns of one: for fewer a thread takes longer to begin
STRIP: Final = 32  # columns of such a part that have a corner on the diagonal

# Byte offsets into what a part is told.
PART_TOOLS: Final = 0
PART_A: Final = 8
PART_LEADING: Final = 16
PART_ROWS: Final = 24
PART_COLUMNS: Final = 32
PART_X: Final = 40
PART_Y: Final = 48
PART_EXTENT: Final = 56  # rows or columns of a part
PART_STRIDE: Final = 64  # bytes between results


def tool_words(dtype: str) -> tuple[int, ...]:
    """The tools, the pool being left to the runner; zeros for complex numbers."""
    kind = BY_SHORT_NAME[dtype]
    if kind in dtypes.COMPLEX:
        return (0,) * TOOL_WORDS
    letter, library = LETTERS[dtype], blas()
    return (
        0,
        library.address(letter + "gemv"),
        products_blas().address(letter + "gemm"),
        library.address(letter + "symv"),
        library.address(letter + "scal"),
        lapack_address(letter + "larfg"),
        kind.itemsize,
        *(one_bits(dtype, number) for number in (1, -1, -0.5)),
        native_address(symmetric_loops.symmetric_strip),
    )


@native
def share(tools: int, entry: int, arguments: int, items: int) -> int:
    """Run ``items`` of a routine on the pool, or here if there is none."""
    pool = load(tools + POOL)
    if pool == 0 or items == 1:
        return call(entry, arguments, 0, items)
    threads = cast(Pool, pool)
    threads.job.slot_count = 0
    run = cast(KernelEntry, entry)
    pool_launch(threads, run, cast(Array[int], arguments), items, 1)
    return 0


@native
def copy_apart(
    target: int, step: int, source: int, step_source: int, count: int, size: int
) -> int:
    """Copy numbers that are some bytes apart."""
    if size == 8:
        for k in range(count):
            store(target + k * step, load(source + k * step_source))
    else:
        for k in range(count):
            store_i32(target + k * step, load_i32(source + k * step_source))
    return 0


@native
def gemv(
    tools: int,
    transposed: int,
    rows: int,
    columns: int,
    alpha: int,
    a: int,
    leading: int,
    x: int,
    step_x: int,
    y: int,
) -> int:
    """Add alpha op(A) x to y. At ``alpha`` is a number; x is ``step_x`` apart."""
    if rows < 1 or columns < 1:
        return 0
    letters = stack(1)
    ints = stack(3)
    store_u8(letters, LETTER_N)
    if transposed:
        store_u8(letters, LETTER_T)
    store_i32(ints, rows)
    store_i32(ints + 4, columns)
    store_i32(ints + 8, leading)
    store_i32(ints + 12, step_x)
    store_i32(ints + 16, 1)
    return call(
        load(tools + GEMV),
        letters,
        ints,
        ints + 4,
        alpha,
        a,
        ints + 8,
        x,
        ints + 12,
        tools + ONE,
        y,
        ints + 16,
    )


@native
def gemm_transposed(
    tools: int,
    rows: int,
    columns: int,
    inner: int,
    a: int,
    leading_a: int,
    b: int,
    leading_b: int,
    c: int,
    leading_c: int,
) -> int:
    """Take A B^T from C."""
    letters = stack(1)
    # Slots of 64 bits serve a BLAS with integers of 32 bits too.
    ints = stack(6)
    store_u8(letters, LETTER_N)
    store_u8(letters + 1, LETTER_T)
    store(ints, rows)
    store(ints + 8, columns)
    store(ints + 16, inner)
    store(ints + 24, leading_a)
    store(ints + 32, leading_b)
    store(ints + 40, leading_c)
    return call(
        load(tools + GEMM),
        letters,
        letters + 1,
        ints,
        ints + 8,
        ints + 16,
        tools + MINUS_ONE,
        a,
        ints + 24,
        b,
        ints + 32,
        tools + ONE,
        c,
        ints + 40,
    )


@native
def scale(tools: int, count: int, factor: int, x: int) -> int:
    """Multiply ``x`` by the number at ``factor``."""
    ints = stack(1)
    store_i32(ints, count)
    store_i32(ints + 4, 1)
    return call(load(tools + SCAL), ints, factor, x, ints + 4)


@native
def make_reflection(tools: int, count: int, first: int, others: int, tau: int) -> int:
    """LAPACK's larfg: ``first`` becomes what it is reflected to."""
    ints = stack(1)
    store_i32(ints, count)
    store_i32(ints + 4, 1)
    return call(load(tools + LARFG), ints, first, others, ints + 4, tau)


@native
def product(
    tools: int,
    transposed: int,
    rows: int,
    columns: int,
    a: int,
    leading: int,
    x: int,
    y: int,
) -> int:
    """y = op(A) x, in parts of y."""
    told = stack(9)
    extent = rows
    store(told + PART_EXTENT, ROWS_OF_PART)
    if transposed:
        extent = columns
        store(told + PART_EXTENT, COLUMNS_OF_PART)
    store(told + PART_TOOLS, tools)
    store(told + PART_A, a)
    store(told + PART_LEADING, leading)
    store(told + PART_ROWS, rows)
    store(told + PART_COLUMNS, columns)
    store(told + PART_X, x)
    store(told + PART_Y, y)
    parts = (extent + load(told + PART_EXTENT) - 1) // load(told + PART_EXTENT)
    if transposed:
        return share(tools, address_of(columns_run), told, parts)
    return share(tools, address_of(rows_run), told, parts)


@native
def rows_run(told: int, begin: int, end: int) -> int:
    """Parts of A x: rows of A."""
    tools = load(told + PART_TOOLS)
    size = load(tools + SIZE)
    for part in range(begin, end):
        first = part * ROWS_OF_PART
        rows = least(ROWS_OF_PART, load(told + PART_ROWS) - first)
        y = load(told + PART_Y) + first * size
        memset(y, 0, rows * size)
        gemv(
            tools,
            0,
            rows,
            load(told + PART_COLUMNS),
            tools + ONE,
            load(told + PART_A) + first * size,
            load(told + PART_LEADING),
            load(told + PART_X),
            1,
            y,
        )
    return 0


@native
def columns_run(told: int, begin: int, end: int) -> int:
    """Parts of A^T x: columns of A."""
    tools = load(told + PART_TOOLS)
    size = load(tools + SIZE)
    for part in range(begin, end):
        first = part * COLUMNS_OF_PART
        columns = least(COLUMNS_OF_PART, load(told + PART_COLUMNS) - first)
        y = load(told + PART_Y) + first * size
        memset(y, 0, columns * size)
        gemv(
            tools,
            1,
            load(told + PART_ROWS),
            columns,
            tools + ONE,
            load(told + PART_A) + first * load(told + PART_LEADING) * size,
            load(told + PART_LEADING),
            load(told + PART_X),
            1,
            y,
        )
    return 0


@native
def symmetric_product(
    tools: int, n: int, a: int, leading: int, x: int, y: int, sums: int, ones: int
) -> int:
    """y = A x of the matrix that has A's lower triangle.

    ``sums`` is workspace of ``PARTS`` vectors; at ``ones`` are as many ones. There is a
    whole line at least.
    """
    told = stack(9)
    size = load(tools + SIZE)
    lines = n // (LINE_BYTES // size) * (LINE_BYTES // size)
    extent = ((lines + PARTS - 1) // PARTS + STRIP - 1) // STRIP * STRIP
    if extent < LEAST_PART:
        extent = LEAST_PART
    parts = (lines + extent - 1) // extent
    store(told + PART_TOOLS, tools)
    store(told + PART_A, a)
    store(told + PART_LEADING, leading)
    store(told + PART_ROWS, n)
    store(told + PART_X, x)
    store(told + PART_Y, sums)
    store(told + PART_EXTENT, extent)
    store(told + PART_STRIDE, n * size)
    share(tools, address_of(symmetric_run), told, parts)
    memset(y, 0, n * size)
    return gemv(tools, 0, n, parts, tools + ONE, sums, n, ones, 1, y)


@native
def symmetric_run(told: int, begin: int, end: int) -> int:
    """Parts of a symmetric product: columns of the triangle, strip by strip."""
    tools = load(told + PART_TOOLS)
    size = load(tools + SIZE)
    n = load(told + PART_ROWS)
    leading = load(told + PART_LEADING)
    extent = load(told + PART_EXTENT)
    x = load(told + PART_X)
    lines = LINE_BYTES // size
    # A first strip has what is not a whole line, so that below the others are lines.
    apart = n % lines
    for part in range(begin, end):
        y = load(told + PART_Y) + part * load(told + PART_STRIDE)
        memset(y, 0, n * size)
        first = apart + part * extent
        stop = least(first + extent, n)
        if part == 0:
            first = 0
        while first < stop:
            count = least(STRIP, stop - first)
            if first < apart:
                count = apart
            corner = load(told + PART_A) + (first * leading + first) * size
            here = first * size
            symv(tools, count, corner, leading, x + here, y + here)
            below = here + count * size
            rest = n - first - count
            strip = corner + count * size
            one = tools + ONE
            if rest % lines == 0 and count % 4 == 0:
                call(
                    load(tools + STRIP_LOOP),
                    strip,
                    leading * size,
                    rest,
                    count,
                    x + below,
                    y + below,
                    x + here,
                    y + here,
                    size,
                )
            else:
                gemv(tools, 0, rest, count, one, strip, leading, x + here, 1, y + below)
                gemv(tools, 1, rest, count, one, strip, leading, x + below, 1, y + here)
            first += count
    return 0


@native
def symv(tools: int, n: int, a: int, leading: int, x: int, y: int) -> int:
    """Add A x to y, of the matrix that has A's lower triangle."""
    letters = stack(1)
    ints = stack(2)
    store_u8(letters, LETTER_L)
    store_i32(ints, n)
    store_i32(ints + 4, leading)
    store_i32(ints + 8, 1)
    return call(
        load(tools + SYMV),
        letters,
        ints,
        tools + ONE,
        a,
        ints + 4,
        x,
        ints + 8,
        tools + ONE,
        y,
        ints + 8,
    )
