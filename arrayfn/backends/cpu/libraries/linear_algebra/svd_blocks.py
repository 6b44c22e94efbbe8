"""Singular values of large matrices: LAPACK's gesdd in parts for threads.

As there, the matrix (by columns) is made bidiagonal (if it is real and not wide, by all
threads) and that is decomposed (by all threads, unless it is wide). Then its singular
vectors are reflected into those of the matrix, some of them an item: columns of U, and
rows of V^H.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from arrayfn.backends.cpu.libraries.linear_algebra.bidiagonal import bidiagonal_panels
from arrayfn.backends.cpu.libraries.linear_algebra.divided_svd import (
    divided_svd,
    divided_words,
)
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    COMPLEX,
    FUNCTIONS,
    ITEM_BYTES,
    LETTER_C,
    LETTER_I,
    LETTER_L,
    LETTER_N,
    LETTER_U,
    NAN,
    copy_real,
    fill_words,
    lapack_words,
    least,
    memcpy,
    memset,
    real_bytes,
)
from arrayfn.backends.cpu.libraries.linear_algebra.reflections import (
    BY_COLUMNS,
    BY_ROWS,
    ONE,
    REFLECTION_WORDS,
    apply_reflector,
    form_reflector,
    panel_squares,
    reflection_words,
)
from arrayfn.backends.cpu.libraries.linear_algebra.scaling import (
    is_finite_exponent,
    largest_exponent,
    rescale,
    scale_of,
)
from arrayfn.backends.cpu.libraries.linear_algebra.shared_products import (
    TOOL_WORDS,
    tool_words,
)
from arrayfn.backends.cpu.libraries.linear_algebra.singular_items import DIVIDED_WORDS
from arrayfn.backends.cpu.libraries.linear_algebra.widening import (
    WIDENED_BY_ROWS,
    WIDENED_EXTENT,
    WIDENED_ONE,
    WIDENED_ORDER,
    WIDENED_REAL,
    WIDENED_SIZE,
    WIDENED_SMALL,
    WIDENED_TOOLS,
    WIDENED_WORDS,
    place_of,
    widen,
)
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.native import (
    call,
    load,
    load_i32,
    native,
    stack,
    store,
    store_i32,
    store_u8,
)

# gebrd
GEBRD: Final = FUNCTIONS
BDSDC: Final = FUNCTIONS + 8
LASCL: Final = FUNCTIONS + 16
REAL_LASCL: Final = FUNCTIONS + 24
REFLECTION: Final = FUNCTIONS + 32
DIVIDED: Final = REFLECTION + 8 * REFLECTION_WORDS
TOOLS: Final = DIVIDED + 8 * DIVIDED_WORDS
AFTER_TOOLS: Final = TOOLS + 8 * TOOL_WORDS
X: Final = AFTER_TOOLS
U: Final = AFTER_TOOLS + 8
S: Final = AFTER_TOOLS + 16
VH: Final = AFTER_TOOLS + 24
REFLECTIONS: Final = AFTER_TOOLS + 32
TRIANGLES: Final = AFTER_TOOLS + 40
SIDES: Final = AFTER_TOOLS + 48
TAU: Final = AFTER_TOOLS + 56
SMALL_U: Final = AFTER_TOOLS + 64
SMALL_VH: Final = AFTER_TOOLS + 72
WORK: Final = AFTER_TOOLS + 80
INTEGER_WORK: Final = AFTER_TOOLS + 88
SIZES: Final = AFTER_TOOLS + 96

# singular vectors
GIVEN_REFLECTION: Final = FUNCTIONS
AFTER_REFLECTION: Final = FUNCTIONS + 8 * REFLECTION_WORDS
GIVEN_REFLECTIONS: Final = AFTER_REFLECTION
GIVEN_TRIANGLES: Final = AFTER_REFLECTION + 8
GIVEN_U: Final = AFTER_REFLECTION + 16
GIVEN_VH: Final = AFTER_REFLECTION + 24
CHUNK_WORK: Final = AFTER_REFLECTION + 32
CHUNK_SIZES: Final = AFTER_REFLECTION + 40

# Byte offsets into the sizes.
ROWS: Final = 0
COLUMNS: Final = 8
U_COLUMNS: Final = 16
VH_ROWS: Final = 24
BLOCK: Final = 32
WORDS: Final = 40
CHUNK: Final = 40


@native
def panels_bytes(sizes: int, size: int) -> int:
    """The bytes of the triangular factors of one matrix's reflections of one side."""
    block = load(sizes + BLOCK)
    k = least(load(sizes + ROWS), load(sizes + COLUMNS))
    return (k + block - 1) // block * panel_squares(block, size)


@native
def below(sizes: int, by_rows: int) -> int:
    """Whether reflections begin beside the diagonal: of the longer side's they do not.

    Those by columns make Q, those by rows P.
    """
    wide = load(sizes + ROWS) < load(sizes + COLUMNS)
    if by_rows:
        return 1 - wide
    return wide


@native
def bidiagonal_run(arguments: int, begin: int, end: int) -> int:
    """Matrices ``begin`` to ``end`` made bidiagonal, and those decomposed."""
    sizes = arguments + SIZES
    rows = load(sizes + ROWS)
    columns = load(sizes + COLUMNS)
    u_bytes = rows * load(sizes + U_COLUMNS) * load(arguments + ITEM_BYTES)
    vh_bytes = columns * load(sizes + VH_ROWS) * load(arguments + ITEM_BYTES)
    size = load(arguments + ITEM_BYTES)
    real = real_bytes(arguments)
    k = least(rows, columns)
    told = stack(WIDENED_WORDS)
    store(told + WIDENED_TOOLS, arguments + TOOLS)
    store(told + WIDENED_EXTENT, k)
    store(told + WIDENED_ORDER, load(arguments + INTEGER_WORK))
    store(told + WIDENED_SIZE, size)
    store(told + WIDENED_REAL, real)
    store(told + WIDENED_ONE, arguments + REFLECTION + ONE)
    for item in range(begin, end):
        a = load(arguments + REFLECTIONS) + item * rows * columns * size
        u = load(arguments + U) + item * u_bytes
        vh = load(arguments + VH) + item * vh_bytes
        s = load(arguments + S) + item * k * real
        triangles = 2 * panels_bytes(sizes, size)
        t = load(arguments + TRIANGLES) + item * triangles
        memcpy(
            a,
            load(arguments + X) + item * rows * columns * size,
            rows * columns * size,
        )
        exponent = largest_exponent(a, rows * columns * (size // real), real)
        failed = 1
        if is_finite_exponent(exponent, real):
            scale = scale_of(exponent, real)
            if scale:
                rescale(load(arguments + LASCL), scale, 0, rows, columns, a, real)
            failed = bidiagonal(arguments, a, t, s)
            if scale:
                rescale(load(arguments + REAL_LASCL), scale, 1, k, 1, s, real)
            store(told + WIDENED_SMALL, load(arguments + SMALL_U))
            store(told + WIDENED_BY_ROWS, BY_COLUMNS)
            widen(told, u, rows, load(sizes + U_COLUMNS))
            store(told + WIDENED_SMALL, load(arguments + SMALL_VH))
            store(told + WIDENED_BY_ROWS, BY_ROWS)
            widen(told, vh, load(sizes + VH_ROWS), columns)
        if failed:
            memset(t, 0, triangles)
            fill_words(s, k * real, load(arguments + NAN))
            fill_words(u, u_bytes, load(arguments + NAN))
            fill_words(vh, vh_bytes, load(arguments + NAN))
    return 0


@native
def bidiagonal(arguments: int, a: int, t: int, s: int) -> int:
    """One matrix: its singular values, and the real vectors of the bidiagonal one."""
    sizes = arguments + SIZES
    rows = load(sizes + ROWS)
    columns = load(sizes + COLUMNS)
    k = least(rows, columns)
    letters = stack(1)
    ints = stack(3)
    unused = stack(1)
    size = load(arguments + ITEM_BYTES)
    sides = load(arguments + SIDES)
    tau = load(arguments + TAU)
    store_u8(letters, LETTER_U)
    if rows < columns:
        store_u8(letters, LETTER_L)
    store_u8(letters + 1, LETTER_I)
    done = 0
    if rows >= columns and load(arguments + COMPLEX) == 0:
        work = load(arguments + WORK)
        tools = arguments + TOOLS
        row_tau = tau + k * size
        done = bidiagonal_panels(tools, a, rows, columns, work, s, sides, tau, row_tau)
    store_i32(ints, rows - done)
    store_i32(ints + 4, columns - done)
    store_i32(ints + 8, k)
    store_i32(ints + 12, load(sizes + WORDS))
    store_i32(ints + 20, rows)
    call(
        load(arguments + GEBRD),
        ints,
        ints + 4,
        a + (done * rows + done) * size,
        ints + 20,
        s + done * size,
        sides + done * size,
        tau + done * size,
        tau + (k + done) * size,
        load(arguments + WORK),
        ints + 12,
        ints + 16,
    )
    form_panels(arguments, BY_COLUMNS, a, tau, t)
    form_panels(arguments, BY_ROWS, a, tau + k * size, t + panels_bytes(sizes, size))
    small_u = load(arguments + SMALL_U)
    small_vh = load(arguments + SMALL_VH)
    order = load(arguments + INTEGER_WORK)
    if rows >= columns:
        failed = divided_svd(
            arguments + DIVIDED,
            arguments + TOOLS,
            k,
            s,
            sides,
            small_u,
            small_vh,
            load(arguments + WORK),
            order,
        )
    else:
        call(
            load(arguments + BDSDC),
            letters,
            letters + 1,
            ints + 8,
            s,
            sides,
            small_u,
            ints + 8,
            small_vh,
            ints + 8,
            unused,
            unused,
            load(arguments + WORK),
            order,
            ints + 16,
        )
        failed = load_i32(ints + 16)
        for i in range(k):
            store_i32(order + 4 * i, k - i)
    real = real_bytes(arguments)
    for i in range(k):
        copy_real(sides + i * real, s + place_of(order, k, i) * real, real)
    memcpy(s, sides, k * real)
    return failed


@native
def form_panels(arguments: int, by_rows: int, a: int, tau: int, t: int) -> int:
    """The triangular factors of all reflections of one side."""
    sizes = arguments + SIZES
    rows = load(sizes + ROWS)
    columns = load(sizes + COLUMNS)
    block = load(sizes + BLOCK)
    size = load(arguments + ITEM_BYTES)
    shift = below(sizes, by_rows)
    length = rows - shift
    v = a + shift * size
    if by_rows:
        length = columns - shift
        v = a + shift * rows * size
    k = least(least(rows, columns), length)
    start = 0
    while start < k:
        form_reflector(
            arguments + REFLECTION,
            by_rows,
            length - start,
            least(block, k - start),
            v + (start * rows + start) * size,
            rows,
            tau + start * size,
            t + start // block * panel_squares(block, size),
            block,
        )
        start += block
    return 0


@native
def singular_vectors_run(arguments: int, begin: int, end: int) -> int:
    """Chunks of columns of U, and then of rows of V^H."""
    sizes = arguments + CHUNK_SIZES
    rows = load(sizes + ROWS)
    columns = load(sizes + COLUMNS)
    u_columns = load(sizes + U_COLUMNS)
    vh_rows = load(sizes + VH_ROWS)
    chunk = load(sizes + CHUNK)
    size = load(arguments + ITEM_BYTES)
    of_u = (u_columns + chunk - 1) // chunk
    each = of_u + (vh_rows + chunk - 1) // chunk
    for item in range(begin, end):
        problem = item // each
        place = item % each
        if place < of_u:
            first = place * chunk
            u = load(arguments + GIVEN_U)
            u += (problem * u_columns + first) * rows * size
            count = least(chunk, u_columns - first)
            reflect_vectors(arguments, BY_COLUMNS, problem, u, count, rows)
        else:
            first = (place - of_u) * chunk
            vh = load(arguments + GIVEN_VH)
            vh += (problem * columns * vh_rows + first) * size
            count = least(chunk, vh_rows - first)
            reflect_vectors(arguments, BY_ROWS, problem, vh, count, vh_rows)
    return 0


@native
def reflect_vectors(
    arguments: int, by_rows: int, problem: int, c: int, count: int, leading: int
) -> int:
    """Apply Q from the left to columns, or P^H from the right to rows."""
    sizes = arguments + CHUNK_SIZES
    rows = load(sizes + ROWS)
    columns = load(sizes + COLUMNS)
    block = load(sizes + BLOCK)
    size = load(arguments + ITEM_BYTES)
    shift = below(sizes, by_rows)
    v = load(arguments + GIVEN_REFLECTIONS) + problem * rows * columns * size
    t = load(arguments + GIVEN_TRIANGLES)
    t += (2 * problem + by_rows) * panels_bytes(sizes, size)
    letter = LETTER_N
    length = rows - shift
    step = shift * size
    if by_rows:
        letter = LETTER_C
        length = columns - shift
        step = shift * rows * size
    k = least(least(rows, columns), length)
    start = (k - 1) // block * block
    while start >= 0:
        height = length - start
        width = count
        target = c + (start + shift) * size
        if by_rows:
            height = count
            width = length - start
            target = c + (start + shift) * leading * size
        apply_reflector(
            arguments + GIVEN_REFLECTION,
            by_rows,
            letter,
            height,
            width,
            least(block, k - start),
            v + step + (start * rows + start) * size,
            rows,
            t + start // block * panel_squares(block, size),
            block,
            target,
            leading,
            load(arguments + CHUNK_WORK),
        )
        start -= block
    return 0


def words(dtype: str) -> tuple[int, ...]:
    """The words before those of ``bidiagonal_run``."""
    functions = lapack_words(dtype, "?gebrd", "%bdsdc", "?lascl", "%lascl")
    return (
        *functions,
        *reflection_words(dtype),
        *divided_words(dtype),
        *tool_words(dtype),
    )


def vector_words(dtype: str) -> tuple[int, ...]:
    """The words before those of ``singular_vectors_run``."""
    return *lapack_words(dtype), *reflection_words(dtype)


def unjitted(given: Mapping[str, Any], items: int) -> None:
    """All matrices, by NumPy, without anything left to reflect."""
    rows, columns = int(given["rows"]), int(given["columns"])
    u_columns, vh_rows = int(given["u_columns"]), int(given["vh_rows"])
    x = given["x"].array((items, columns, rows)).swapaxes(-1, -2)
    made = (
        given["u"].array((items, u_columns, rows)).swapaxes(-1, -2),
        given["s"].array((items, min(rows, columns))),
        given["vh"].array((items, columns, vh_rows)).swapaxes(-1, -2),
    )
    full = (u_columns, vh_rows) == (rows, columns)
    for number, matrix in enumerate(x):
        try:
            parts: Any = np.linalg.svd(matrix, full_matrices=full)
        except np.linalg.LinAlgError:
            parts = (np.nan, np.nan, np.nan)
        for array, part in zip(made, parts, strict=True):
            array[number] = part


def unjitted_vectors(given: Mapping[str, Any], items: int) -> None:
    """Nothing: NumPy's vectors are those of the matrices."""


PROVIDERS: Final = {
    "gebrd": Provider(bidiagonal_run, words, unjitted, uses_blas=True, pool=TOOLS // 8),
    "larfb_svd": Provider(
        singular_vectors_run, vector_words, unjitted_vectors, uses_blas=True
    ),
}
