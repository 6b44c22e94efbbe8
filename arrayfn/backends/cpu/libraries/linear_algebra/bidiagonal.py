"""Real matrices made bidiagonal by reflections: LAPACK's gebrd, shared by threads.

Dongarra, Sorensen and Hammarling, Block reduction of matrices to condensed forms for
eigenvalue computations (1989): of a panel the matrix's own columns and a copy of its
rows are brought up to date one by one, what is left of the matrix at its end. The copy
is the rows' transpose, so that everything is read along columns. Matrices lie by
columns and have at least as many rows.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    copy_real,
    least,
    memset,
)
from arrayfn.backends.cpu.libraries.linear_algebra.shared_products import (
    MINUS_ONE,
    ONE,
    SIZE,
    copy_apart,
    gemm_transposed,
    gemv,
    make_reflection,
    product,
    scale,
    share,
)
from arrayfn.backends.native import address_of, load, native, stack, store

PANEL: Final = 32
CHUNK: Final = 128  # columns that a thread brings up to date at once

# Byte offsets into what the routines are told.
TOOLS: Final = 0
A: Final = 8
ROWS: Final = 16
COLUMNS: Final = 24
X: Final = 32  # workspace [rows, PANEL]: products with rows' reflections
Y: Final = 40  # [columns, PANEL]: and with columns'
TURNED: Final = 48  # [columns, PANEL]: the panel's rows
SMALL: Final = 56  # [PANEL]
DIAGONAL: Final = 64
SIDES: Final = 72
COLUMN_TAUS: Final = 80
ROW_TAUS: Final = 88
START: Final = 96
STOP: Final = 104
TOLD_WORDS: Final = 14


@native
def bidiagonal_panels(
    tools: int,
    a: int,
    rows: int,
    columns: int,
    work: int,
    diagonal: int,
    sides: int,
    column_taus: int,
    row_taus: int,
) -> int:
    """Reduce all columns but up to twice ``PANEL``; how many are done.

    Workspace is for ``PANEL`` (rows + 2 columns + 1) numbers.
    """
    told = stack(TOLD_WORDS)
    size = load(tools + SIZE)
    store(told + TOOLS, tools)
    store(told + A, a)
    store(told + ROWS, rows)
    store(told + COLUMNS, columns)
    store(told + X, work)
    store(told + Y, work + PANEL * rows * size)
    store(told + TURNED, work + PANEL * (rows + columns) * size)
    store(told + SMALL, work + PANEL * (rows + 2 * columns) * size)
    store(told + DIAGONAL, diagonal)
    store(told + SIDES, sides)
    store(told + COLUMN_TAUS, column_taus)
    store(told + ROW_TAUS, row_taus)
    start = 0
    store(told + STOP, 0)
    # Nothing is to be brought up to date yet: this copies the first rows.
    store(told + START, 0)
    chunks = (columns + CHUNK - 1) // CHUNK
    share(tools, address_of(bring_up_run), told, chunks)
    while columns - start > 2 * PANEL:
        store(told + START, start)
        store(told + STOP, start + PANEL)
        for k in range(PANEL):
            reduce_column(told, start, k)
            reduce_row(told, start, k)
        chunks = (columns - start + CHUNK - 1) // CHUNK
        share(tools, address_of(bring_up_run), told, chunks)
        start += PANEL
    return start


@native
def reduce_column(told: int, start: int, k: int) -> int:
    """Bring column ``start + k`` up to date and reflect it onto its diagonal."""
    tools = load(told + TOOLS)
    size = load(tools + SIZE)
    rows = load(told + ROWS)
    columns = load(told + COLUMNS)
    i = start + k
    v = load(told + A) + (i * rows + i) * size
    panel = load(told + A) + (start * rows + i) * size
    x = load(told + X) + i * size
    y = load(told + Y) + i * size
    turned = load(told + TURNED) + i * size
    small = load(told + SMALL)
    less = tools + MINUS_ONE
    gemv(tools, 0, rows - i, k, less, panel, rows, y, columns, v)
    gemv(tools, 0, rows - i, k, less, x, rows, turned, columns, v)
    tau = load(told + COLUMN_TAUS) + i * size
    make_reflection(tools, rows - i, v, v + size, tau)
    copy_real(load(told + DIAGONAL) + i * size, v, size)
    copy_real(v, tools + ONE, size)
    made = y + (k * columns + 1) * size
    rest = columns - i - 1
    product(tools, 1, rows - i, rest, v + rows * size, rows, v, made)
    memset(small, 0, k * size)
    gemv(tools, 1, rows - i, k, tools + ONE, panel, rows, v, 1, small)
    gemv(tools, 0, rest, k, less, y + size, columns, small, 1, made)
    memset(small, 0, k * size)
    gemv(tools, 1, rows - i, k, tools + ONE, x, rows, v, 1, small)
    gemv(tools, 0, rest, k, less, turned + size, columns, small, 1, made)
    return scale(tools, rest, tau, made)


@native
def reduce_row(told: int, start: int, k: int) -> int:
    """Bring row ``start + k`` up to date and reflect it onto the upper diagonal."""
    tools = load(told + TOOLS)
    size = load(tools + SIZE)
    rows = load(told + ROWS)
    columns = load(told + COLUMNS)
    i = start + k
    rest = columns - i - 1
    left = rows - i - 1
    panel = load(told + A) + (start * rows + i) * size
    x = load(told + X) + i * size
    y = load(told + Y) + (i + 1) * size
    turned = load(told + TURNED) + (i + 1) * size
    u = turned + k * columns * size
    small = load(told + SMALL)
    less = tools + MINUS_ONE
    gemv(tools, 0, rest, k + 1, less, y, columns, panel, rows, u)
    gemv(tools, 0, rest, k, less, turned, columns, x, rows, u)
    tau = load(told + ROW_TAUS) + i * size
    make_reflection(tools, rest, u, u + size, tau)
    copy_real(load(told + SIDES) + i * size, u, size)
    copy_real(u, tools + ONE, size)
    made = x + (k * rows + 1) * size
    corner = load(told + A) + ((i + 1) * rows + i + 1) * size
    product(tools, 0, left, rest, corner, rows, u, made)
    memset(small, 0, (k + 1) * size)
    gemv(tools, 1, rest, k + 1, tools + ONE, y, columns, u, 1, small)
    gemv(tools, 0, left, k + 1, less, panel + size, rows, small, 1, made)
    memset(small, 0, k * size)
    gemv(tools, 1, rest, k, tools + ONE, turned, columns, u, 1, small)
    gemv(tools, 0, left, k, less, x + size, rows, small, 1, made)
    return scale(tools, left, tau, made)


@native
def bring_up_run(told: int, begin: int, end: int) -> int:
    """Columns of the matrix after a panel, and copies of rows of the next."""
    tools = load(told + TOOLS)
    size = load(tools + SIZE)
    rows = load(told + ROWS)
    columns = load(told + COLUMNS)
    start = load(told + START)
    stop = load(told + STOP)
    for item in range(begin, end):
        first = start + item * CHUNK
        last = least(first + CHUNK, columns)
        write_rows(told, first, last)
        from_here = first
        if from_here < stop:
            from_here = stop
        count = last - from_here
        if count > 0 and stop > 0 and rows > stop:
            corner = load(told + A) + (from_here * rows + stop) * size
            v = load(told + A) + (start * rows + stop) * size
            y = load(told + Y) + from_here * size
            x = load(told + X) + stop * size
            turned = load(told + TURNED) + from_here * size
            gemm_transposed(
                tools, rows - stop, count, PANEL, v, rows, y, columns, corner, rows
            )
            gemm_transposed(
                tools, rows - stop, count, PANEL, x, rows, turned, columns, corner, rows
            )
        if count > 0:
            read_rows(told, from_here, last)
    return 0


@native
def write_rows(told: int, first: int, last: int) -> int:
    """Write the panel's rows into columns ``first`` to ``last``, over the diagonal."""
    size = load(load(told + TOOLS) + SIZE)
    rows = load(told + ROWS)
    step = load(told + COLUMNS) * size
    start = load(told + START)
    for column in range(first, last):
        source = load(told + TURNED) + column * size
        target = load(told + A) + (column * rows + start) * size
        count = least(load(told + STOP), column) - start
        copy_apart(target, size, source, step, count, size)
    return 0


@native
def read_rows(told: int, first: int, last: int) -> int:
    """Copy rows of the next panel from columns ``first`` to ``last``."""
    size = load(load(told + TOOLS) + SIZE)
    rows = load(told + ROWS)
    step = load(told + COLUMNS) * size
    stop = load(told + STOP)
    for column in range(first, last):
        target = load(told + TURNED) + column * size
        source = load(told + A) + (column * rows + stop) * size
        copy_apart(target, step, source, size, least(PANEL, rows - stop), size)
    return 0
