"""Loops over symmetric matrices, compiled with all optimisations."""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.libraries.linear_algebra.matrices import is_zero
from arrayfn.backends.native import (
    columns_products_f32,
    columns_products_f64,
    load,
    load_i32,
    native,
    store,
    store_i32,
)

LOOPS_OVER_DATA: Final = True
COLUMNS: Final = 4  # of which rows are read at once
TILE: Final = 8  # rows and columns: more would fall into the same lines of a cache


@native
def symmetric_strip(
    a: int,
    step: int,
    rows: int,
    columns: int,
    x_rows: int,
    y_rows: int,
    x_columns: int,
    y_columns: int,
    size: int,
) -> int:
    """Add A x to ``y_rows`` and A^T x to ``y_columns``, reading A once.

    A lies by columns, ``step`` bytes apart. Its rows are whole lines, and its columns a
    multiple of 4.
    """
    length = rows * size
    for group in range(columns // COLUMNS):
        here = a + group * COLUMNS * step
        first = group * COLUMNS * size
        x = x_columns + first
        y = y_columns + first
        if size == 8:
            columns_products_f64(y_rows, x_rows, here, step, length, x, y)
        else:
            columns_products_f32(y_rows, x_rows, here, step, length, x, y)
    return 0


@native
def lower_columns(
    source: int, target: int, n: int, first: int, last: int, size: int, real: int
) -> int:
    """Copy rows ``first`` to ``last`` of a lower triangle into columns.

    The greatest exponent field of the numbers there: of ``size`` bytes, their parts of
    ``real`` ones.
    """
    found = 0
    row = first
    while row < last:
        rows = last - row
        if rows > TILE:
            rows = TILE
        column = 0
        while column < row + rows:
            for r in range(row, row + rows):
                columns = r + 1 - column
                if columns > TILE:
                    columns = TILE
                for c in range(column, column + columns):
                    given = source + (r * n + c) * size
                    place = target + (c * n + r) * size
                    found = copy_number(place, given, size, real, found)
            column += TILE
        row += TILE
    return found


@native
def copy_number(target: int, source: int, size: int, real: int, found: int) -> int:
    """Copy a number; ``found``, or the greatest exponent field of its parts.

    That of a subnormal number is 1, as in ``scaling``.
    """
    part = 0
    while part < size:
        if real == 8:
            bits = load(source + part)
            exponent = (bits >> 52) & 0x7FF
            store(target + part, bits)
        else:
            bits = load_i32(source + part)
            exponent = (bits >> 23) & 0xFF
            store_i32(target + part, bits)
        if exponent > found:
            found = exponent
        if found == 0:
            found = 1 - is_zero(source + part, real)
        part += real
    return found
