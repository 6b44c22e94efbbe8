"""QR factors of row-major matrices: LAPACK's gelqf and orglq of the transposed ones.

``A^T = L Q`` is ``A = Q^T L^T``: the upper triangle of what gelqf leaves is R, and
orglq leaves Q, row-major both. The order of columns for pivoted factors is geqp3's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from arrayfn.backends.cpu.libraries.linear_algebra import small_matrices
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    COMPLEX,
    FUNCTIONS,
    ITEM_BYTES,
    lapack_words,
    least,
    least_one,
    memcpy,
    memset,
    small_address,
)
from arrayfn.backends.cpu.libraries.linear_algebra.small_matrices import LIMIT
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.native import (
    LANES,
    call,
    load,
    load_i32,
    native,
    stack,
    store_i32,
)
from arrayfn.primitives import linalg_qr

GELQF: Final = FUNCTIONS
ORGLQ: Final = FUNCTIONS + 8
SMALL: Final = FUNCTIONS + 16
X: Final = FUNCTIONS + 24
Q: Final = FUNCTIONS + 32
R: Final = FUNCTIONS + 40
COPY: Final = FUNCTIONS + 48
TAU: Final = FUNCTIONS + 56
WORK: Final = FUNCTIONS + 64
ROWS: Final = FUNCTIONS + 72
COLUMNS: Final = FUNCTIONS + 80
INNER: Final = FUNCTIONS + 88
WORDS: Final = FUNCTIONS + 96

# geqp3
GEQP3: Final = FUNCTIONS
GIVEN: Final = FUNCTIONS + 8
ORDER: Final = FUNCTIONS + 16
GEQP3_COPY: Final = FUNCTIONS + 24
GEQP3_TAU: Final = FUNCTIONS + 32
GEQP3_WORK: Final = FUNCTIONS + 40
REAL_WORK: Final = FUNCTIONS + 48
GEQP3_ROWS: Final = FUNCTIONS + 56
GEQP3_COLUMNS: Final = FUNCTIONS + 64
GEQP3_WORDS: Final = FUNCTIONS + 72


@native
def qr_run(arguments: int, begin: int, end: int) -> int:
    """Factor matrices ``begin`` to ``end``."""
    rows = load(arguments + ROWS)
    columns = load(arguments + COLUMNS)
    inner = load(arguments + INNER)
    size = load(arguments + ITEM_BYTES)
    step = rows * columns * size
    step_q = rows * inner * size
    step_r = inner * columns * size
    small = rows <= LIMIT and columns <= LIMIT and load(arguments + SMALL)
    item = begin
    while item < end:
        x = load(arguments + X) + item * step
        q = load(arguments + Q) + item * step_q
        r = load(arguments + R) + item * step_r
        many = 1
        left = 1
        if small:
            many = least(LANES, end - item)
            left = call(
                load(arguments + SMALL), x, q, r, many, rows, columns, inner, size
            )
        for lane in range(many):
            if (left >> lane) & 1:
                qr_matrix(
                    arguments, x + lane * step, q + lane * step_q, r + lane * step_r
                )
        item += many
    return 0


@native
def qr_matrix(arguments: int, x: int, q: int, r: int) -> int:
    """Factor one matrix."""
    rows = load(arguments + ROWS)
    columns = load(arguments + COLUMNS)
    inner = load(arguments + INNER)
    size = load(arguments + ITEM_BYTES)
    a = load(arguments + COPY)
    k = rows
    if columns < k:
        k = columns
    ints = stack(4)
    store_i32(ints, columns)
    store_i32(ints + 4, rows)
    store_i32(ints + 8, least_one(columns))
    store_i32(ints + 12, load(arguments + WORDS))
    store_i32(ints + 16, inner)
    store_i32(ints + 20, k)
    store_i32(ints + 24, least_one(inner))
    memcpy(a, x, rows * columns * size)
    call(
        load(arguments + GELQF),
        ints,
        ints + 4,
        a,
        ints + 8,
        load(arguments + TAU),
        load(arguments + WORK),
        ints + 12,
        ints + 28,
    )
    for row in range(inner):
        below = row
        if below > columns:
            below = columns
        target = r + row * columns * size
        memset(target, 0, below * size)
        memcpy(
            target + below * size,
            a + (row * columns + below) * size,
            (columns - below) * size,
        )
    for row in range(rows):
        memcpy(q + row * inner * size, a + row * columns * size, k * size)
    call(
        load(arguments + ORGLQ),
        ints + 16,
        ints + 4,
        ints + 20,
        q,
        ints + 24,
        load(arguments + TAU),
        load(arguments + WORK),
        ints + 12,
        ints + 28,
    )
    return 0


@native
def column_order_run(arguments: int, begin: int, end: int) -> int:
    """The orders of matrices ``begin`` to ``end``."""
    rows = load(arguments + GEQP3_ROWS)
    columns = load(arguments + GEQP3_COLUMNS)
    step = rows * columns * load(arguments + ITEM_BYTES)
    a = load(arguments + GEQP3_COPY)
    ints = stack(2)
    store_i32(ints, rows)
    store_i32(ints + 4, columns)
    store_i32(ints + 8, least_one(rows))
    store_i32(ints + 12, load(arguments + GEQP3_WORDS))
    for item in range(begin, end):
        order = load(arguments + ORDER) + 4 * item * columns
        memcpy(a, load(arguments + GIVEN) + item * step, step)
        # 0: LAPACK may take any column first.
        memset(order, 0, 4 * columns)
        if rows > 0:
            pivoted_factors(arguments, ints, a, order)
        for column in range(columns):
            place = load_i32(order + 4 * column) - 1
            if place < 0:
                place = column
            store_i32(order + 4 * column, place)
    return 0


@native
def pivoted_factors(arguments: int, ints: int, a: int, order: int) -> int:
    """One call of geqp3, which has workspace of real numbers if it is complex."""
    info = stack(1)
    tau = load(arguments + GEQP3_TAU)
    work = load(arguments + GEQP3_WORK)
    if load(arguments + COMPLEX):
        return call(
            load(arguments + GEQP3),
            ints,
            ints + 4,
            a,
            ints + 8,
            order,
            tau,
            work,
            ints + 12,
            load(arguments + REAL_WORK),
            info,
        )
    return call(
        load(arguments + GEQP3),
        ints,
        ints + 4,
        a,
        ints + 8,
        order,
        tau,
        work,
        ints + 12,
        info,
    )


def words(dtype: str) -> tuple[int, ...]:
    """The words before the arguments."""
    small = small_address(small_matrices.small_qr, dtype)
    return *lapack_words(dtype, "?gelqf", "?orglq|?unglq"), small


def unjitted(given: Mapping[str, Any], items: int) -> None:
    """All matrices, by NumPy."""
    rows, columns, inner = (int(given[name]) for name in ("rows", "columns", "inner"))
    x = given["x"].array((items, rows, columns))
    q = given["q"].array((items, rows, inner))
    r = given["r"].array((items, inner, columns))
    if not columns:
        q[...] = np.eye(rows, inner)
    elif rows:
        mode = "reduced" if inner < rows else "complete"
        q[...], r[...] = np.linalg.qr(x, mode=mode)


def order_words(dtype: str) -> tuple[int, ...]:
    """Those of ``column_order_run``."""
    return lapack_words(dtype, "?geqp3")


def unjitted_order(given: Mapping[str, Any], items: int) -> None:
    """The orders of all matrices, by the row's reference."""
    rows, columns = int(given["rows"]), int(given["columns"])
    x = given["x"].array((items, columns, rows))
    given["order"].array((items, columns))[...] = linalg_qr.column_order.reference(x)


PROVIDERS: Final = {
    "gelqf": Provider(qr_run, words, unjitted, uses_blas=True),
    "geqp3": Provider(column_order_run, order_words, unjitted_order, uses_blas=True),
}
