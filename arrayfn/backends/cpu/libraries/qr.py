"""QR factors of row-major matrices: LAPACK's gelqf and orglq of the transposed ones.

``A^T = L Q`` is ``A = Q^T L^T``: the upper triangle of what gelqf leaves is R, and
orglq leaves Q, row-major both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from arrayfn.backends.cpu.libraries.matrices import (
    FUNCTIONS,
    ITEM_BYTES,
    lapack_words,
    least,
    least_one,
    memcpy,
    memset,
    small_address,
)
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.cpu.libraries.small_matrices import LIMIT
from arrayfn.backends.cpu.native import LANES, call, load, native, stack, store_i32

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


def words(dtype: str) -> tuple[int, ...]:
    """The words before the arguments."""
    small = small_address("small_qr", dtype)
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


PROVIDERS: Final = {"gelqf": Provider(qr_run, words, unjitted, uses_blas=True)}
