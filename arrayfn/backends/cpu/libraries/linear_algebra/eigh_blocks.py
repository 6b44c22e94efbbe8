"""Eigenvalues of large Hermitian matrices: LAPACK's syevd in parts for threads.

The matrix is made tridiagonal (a real one by all threads) and that is decomposed by
divide and conquer. Then its eigenvectors are reflected into those of the matrix, some
an item.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from arrayfn.backends.cpu.libraries.linear_algebra import (
    symmetric_loops,
    tridiagonal_loops,
)
from arrayfn.backends.cpu.libraries.linear_algebra.divided_eigh import (
    DIVIDED_WORDS,
    divided_eigh,
    divided_words,
)
from arrayfn.backends.cpu.libraries.linear_algebra.eigh import (
    conjugate,
    unjitted_values,
)
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    COMPLEX,
    FUNCTIONS,
    ITEM_BYTES,
    LETTER_L,
    LETTER_N,
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
    REFLECTION_WORDS,
    apply_reflector,
    form_reflector,
    panel_squares,
    reflection_words,
)
from arrayfn.backends.cpu.libraries.linear_algebra.scaling import (
    is_finite_exponent,
    rescale,
    scale_of,
)
from arrayfn.backends.cpu.libraries.linear_algebra.shared_products import (
    TOOL_WORDS,
    copy_apart,
    share,
    tool_words,
)
from arrayfn.backends.cpu.libraries.linear_algebra.tridiagonal import tridiagonal_panels
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.native import (
    address_of,
    call,
    load,
    load_i32,
    native,
    stack,
    store,
    store_i32,
    store_u8,
)
from arrayfn.backends.native.code import native_address

# sytrd
SYTRD: Final = FUNCTIONS
LASCL: Final = FUNCTIONS + 8
REAL_LASCL: Final = FUNCTIONS + 16
STERF: Final = FUNCTIONS + 24
LOWER_COLUMNS: Final = FUNCTIONS + 32
TRIDIAGONAL: Final = FUNCTIONS + 40
REFLECTION: Final = FUNCTIONS + 48
DIVIDED: Final = REFLECTION + 8 * REFLECTION_WORDS
TOOLS: Final = DIVIDED + 8 * DIVIDED_WORDS
AFTER_TOOLS: Final = TOOLS + 8 * TOOL_WORDS
VECTORS: Final = AFTER_TOOLS
VALUES: Final = AFTER_TOOLS + 8
REFLECTIONS: Final = AFTER_TOOLS + 16
TRIANGLES: Final = AFTER_TOOLS + 24
SIDES: Final = AFTER_TOOLS + 32
TAU: Final = AFTER_TOOLS + 40
WORK: Final = AFTER_TOOLS + 48
SMALL: Final = AFTER_TOOLS + 56
REAL_WORK: Final = AFTER_TOOLS + 64
INTEGER_WORK: Final = AFTER_TOOLS + 72
SIZE: Final = AFTER_TOOLS + 80
BLOCK: Final = AFTER_TOOLS + 88
WORDS: Final = AFTER_TOOLS + 96
CACHED: Final = AFTER_TOOLS + 104
ALONE: Final = AFTER_TOOLS + 112

COPIED: Final = 64  # rows of an item
ORDERED: Final = 64  # columns of one

# eigenvectors
GIVEN_REFLECTION: Final = FUNCTIONS
AFTER_REFLECTION: Final = FUNCTIONS + 8 * REFLECTION_WORDS
GIVEN_REFLECTIONS: Final = AFTER_REFLECTION
GIVEN_TRIANGLES: Final = AFTER_REFLECTION + 8
REFLECTED: Final = AFTER_REFLECTION + 16
CHUNK_WORK: Final = AFTER_REFLECTION + 24
CHUNK_SIZE: Final = AFTER_REFLECTION + 32
CHUNK_BLOCK: Final = AFTER_REFLECTION + 40
CHUNK: Final = AFTER_REFLECTION + 48


@native
def panel_bytes(n: int, block: int, size: int) -> int:
    """The bytes of the triangular factors of one matrix's reflections."""
    return (n - 1 + block - 1) // block * panel_squares(block, size)


@native
def tridiagonal_run(arguments: int, begin: int, end: int) -> int:
    """Matrices ``begin`` to ``end`` made tridiagonal, and those decomposed."""
    n = load(arguments + SIZE)
    size = load(arguments + ITEM_BYTES)
    real = real_bytes(arguments)
    if load(arguments + ALONE):
        # Its parts take no longer than a thread needs to wake.
        store(arguments + TOOLS, 0)
    for item in range(begin, end):
        vectors = load(arguments + VECTORS) + item * n * n * size
        values = load(arguments + VALUES) + item * n * real
        a = load(arguments + REFLECTIONS) + item * n * n * size
        triangles = panel_bytes(n, load(arguments + BLOCK), size)
        t = load(arguments + TRIANGLES) + item * triangles
        exponent = copy_lower(arguments, vectors, a)
        failed = 1
        if is_finite_exponent(exponent, real):
            scale = scale_of(exponent, real)
            if scale:
                rescale(load(arguments + LASCL), scale, 0, n, n, a, real)
            failed = tridiagonal(arguments, vectors, values, a, t)
            if scale:
                rescale(load(arguments + REAL_LASCL), scale, 1, n, 1, values, real)
        if failed:
            memset(t, 0, triangles)
            fill_words(values, n * real, load(arguments + NAN))
            fill_words(vectors, n * n * size, load(arguments + NAN))
    return 0


@native
def tridiagonal_values_run(arguments: int, begin: int, end: int) -> int:
    """Eigenvalues of matrices ``begin`` to ``end``, which stay as they are."""
    n = load(arguments + SIZE)
    size = load(arguments + ITEM_BYTES)
    real = real_bytes(arguments)
    ints = stack(1)
    for item in range(begin, end):
        values = load(arguments + VALUES) + item * n * real
        a = load(arguments + REFLECTIONS)
        matrix = load(arguments + VECTORS) + item * n * n * size
        exponent = copy_lower(arguments, matrix, a)
        store_i32(ints, n)
        store_i32(ints + 4, 1)
        if is_finite_exponent(exponent, real):
            scale = scale_of(exponent, real)
            if scale:
                rescale(load(arguments + LASCL), scale, 0, n, n, a, real)
            reduce_hermitian(arguments, values, a)
            sides = load(arguments + SIDES)
            call(load(arguments + STERF), ints, values, sides, ints + 4)
            if scale:
                rescale(load(arguments + REAL_LASCL), scale, 1, n, 1, values, real)
        if load_i32(ints + 4) != 0:
            fill_words(values, n * real, load(arguments + NAN))
    return 0


@native
def copy_lower(arguments: int, matrix: int, a: int) -> int:
    """Copy a row-major lower triangle into one by columns; its greatest exponent."""
    n = load(arguments + SIZE)
    told = stack(4)
    found = load(arguments + REAL_WORK)
    items = (n + COPIED - 1) // COPIED
    store(told, arguments)
    store(told + 8, matrix)
    store(told + 16, a)
    store(told + 24, found)
    share(arguments + TOOLS, address_of(copy_lower_run), told, items)
    greatest = 0
    for item in range(items):
        if load(found + 8 * item) > greatest:
            greatest = load(found + 8 * item)
    return greatest


@native
def copy_lower_run(told: int, begin: int, end: int) -> int:
    """Chunks of rows, and the exponent of each."""
    arguments = load(told)
    n = load(arguments + SIZE)
    for item in range(begin, end):
        found = call(
            load(arguments + LOWER_COLUMNS),
            load(told + 8),
            load(told + 16),
            n,
            item * COPIED,
            least((item + 1) * COPIED, n),
            load(arguments + ITEM_BYTES),
            real_bytes(arguments),
        )
        store(load(told + 24) + 8 * item, found)
    return 0


@native
def reduce_hermitian(arguments: int, values: int, a: int) -> int:
    """One matrix made tridiagonal: its diagonal is written to ``values``."""
    letters = stack(1)
    ints = stack(3)
    work = load(arguments + WORK)
    sides = load(arguments + SIDES)
    n = load(arguments + SIZE)
    tau = load(arguments + TAU)
    store_u8(letters, LETTER_L)
    size = load(arguments + ITEM_BYTES)
    if load(arguments + CACHED):
        return call(
            load(arguments + TRIDIAGONAL),
            arguments + TOOLS,
            a,
            n,
            values,
            sides,
            tau,
            load(arguments + REAL_WORK),
            size,
        )
    done = 0
    if load(arguments + COMPLEX) == 0:
        tools = arguments + TOOLS
        done = tridiagonal_panels(tools, n, a, work, values, sides, tau)
    store_i32(ints, n)
    store_i32(ints + 20, n - done)
    store_i32(ints + 4, load(arguments + WORDS))
    return call(
        load(arguments + SYTRD),
        letters,
        ints + 20,
        a + (done * n + done) * size,
        ints,
        values + done * size,
        sides + done * size,
        tau + done * size,
        work,
        ints + 4,
        ints + 16,
    )


@native
def tridiagonal(arguments: int, vectors: int, values: int, a: int, t: int) -> int:
    """One matrix: its eigenvalues, and the eigenvectors of the tridiagonal one."""
    n = load(arguments + SIZE)
    size = load(arguments + ITEM_BYTES)
    sides = load(arguments + SIDES)
    tau = load(arguments + TAU)
    reduce_hermitian(arguments, values, a)
    block = load(arguments + BLOCK)
    start = 0
    while start < n - 1:
        form_reflector(
            arguments + REFLECTION,
            BY_COLUMNS,
            n - 1 - start,
            least(block, n - 1 - start),
            a + (start * n + start + 1) * size,
            n,
            tau + start * size,
            t + start // block * panel_squares(block, size),
            block,
        )
        start += block
    z = load(arguments + SMALL)
    order = load(arguments + INTEGER_WORK)
    failed = divided_eigh(
        arguments + DIVIDED,
        arguments + TOOLS,
        n,
        values,
        sides,
        z,
        load(arguments + REAL_WORK),
        order,
    )
    real = real_bytes(arguments)
    for i in range(n):
        copy_real(sides + i * real, values + (load_i32(order + 4 * i) - 1) * real, real)
    memcpy(values, sides, n * real)
    told = stack(2)
    store(told, arguments)
    store(told + 8, vectors)
    share(
        arguments + TOOLS,
        address_of(order_run),
        told,
        (n + ORDERED - 1) // ORDERED,
    )
    return failed


@native
def order_run(told: int, begin: int, end: int) -> int:
    """Write eigenvectors of the tridiagonal matrix in the order of the values."""
    arguments = load(told)
    n = load(arguments + SIZE)
    size = load(arguments + ITEM_BYTES)
    real = real_bytes(arguments)
    order = load(arguments + INTEGER_WORK)
    for column in range(begin * ORDERED, least(end * ORDERED, n)):
        place = (load_i32(order + 4 * column) - 1) * n * real
        source = load(arguments + SMALL) + place
        target = load(told + 8) + column * n * size
        if size == real:
            memcpy(target, source, n * size)
        else:
            memset(target, 0, n * size)
            copy_apart(target, size, source, real, n, real)
    return 0


@native
def eigenvectors_run(arguments: int, begin: int, end: int) -> int:
    """Chunks of eigenvectors, reflected by the last panel first, and conjugated."""
    n = load(arguments + CHUNK_SIZE)
    block = load(arguments + CHUNK_BLOCK)
    chunk = load(arguments + CHUNK)
    size = load(arguments + ITEM_BYTES)
    chunks = (n + chunk - 1) // chunk
    for item in range(begin, end):
        problem = item // chunks
        first = item % chunks * chunk
        count = least(chunk, n - first)
        vectors = load(arguments + REFLECTED) + (problem * n + first) * n * size
        a = load(arguments + GIVEN_REFLECTIONS) + problem * n * n * size
        t = load(arguments + GIVEN_TRIANGLES) + problem * panel_bytes(n, block, size)
        start = (n - 2) // block * block
        while start >= 0:
            apply_reflector(
                arguments + GIVEN_REFLECTION,
                BY_COLUMNS,
                LETTER_N,
                n - 1 - start,
                count,
                least(block, n - 1 - start),
                a + (start * n + start + 1) * size,
                n,
                t + start // block * panel_squares(block, size),
                block,
                vectors + (start + 1) * size,
                n,
                load(arguments + CHUNK_WORK),
            )
            start -= block
        if load(arguments + COMPLEX):
            conjugate(vectors, n * count, real_bytes(arguments))
    return 0


def words(dtype: str) -> tuple[int, ...]:
    """The words before those of ``tridiagonal_run``."""
    functions = lapack_words(dtype, "?sytrd|?hetrd", "?lascl", "%lascl", "%sterf")
    return (
        *functions,
        native_address(symmetric_loops.lower_columns),
        native_address(tridiagonal_loops.tridiagonal_in_cache),
        *reflection_words(dtype),
        *divided_words(dtype),
        *tool_words(dtype),
    )


def vector_words(dtype: str) -> tuple[int, ...]:
    """The words before those of ``eigenvectors_run``."""
    return *lapack_words(dtype), *reflection_words(dtype)


def unjitted(given: Mapping[str, Any], items: int) -> None:
    """All matrices, by NumPy, without anything left to reflect."""
    n = int(given["n"])
    vectors = given["a"].array((items, n, n))
    values = given["w"].array((items, n))
    for matrix, w in zip(vectors, values, strict=True):
        try:
            w[...], v = np.linalg.eigh(matrix)
            matrix[...] = v.T
        except np.linalg.LinAlgError:
            w[...] = matrix[...] = np.nan


def unjitted_vectors(given: Mapping[str, Any], items: int) -> None:
    """The eigenvectors of all matrices, conjugated: nothing is left to reflect."""
    n = int(given["n"])
    vectors = given["a"].array((items // -(-n // int(given["chunk"])), n, n))
    vectors[...] = vectors.conj()


PROVIDERS: Final = {
    "sytrd": Provider(
        tridiagonal_run, words, unjitted, uses_blas=True, pool=TOOLS // 8
    ),
    "sytrd_values": Provider(
        tridiagonal_values_run,
        words,
        unjitted_values,
        uses_blas=True,
        pool=TOOLS // 8,
    ),
    "larfb_eigh": Provider(
        eigenvectors_run, vector_words, unjitted_vectors, uses_blas=True
    ),
}
