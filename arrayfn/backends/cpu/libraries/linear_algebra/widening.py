"""Ordered vectors of a small real matrix as the corner of a wider one, by threads."""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.libraries.linear_algebra.matrices import (
    copy_real,
    least,
    memset,
)
from arrayfn.backends.cpu.libraries.linear_algebra.shared_products import (
    copy_apart,
    share,
)
from arrayfn.backends.native import address_of, load, load_i32, native, store

COLUMNS_OF_ITEM: Final = 64

# Byte offsets into what is told.
WIDENED_TOOLS: Final = 0
WIDENED_EXTENT: Final = 8
WIDENED_ORDER: Final = 16
WIDENED_SIZE: Final = 24
WIDENED_REAL: Final = 32
WIDENED_ONE: Final = 40  # the address of a one
WIDENED_SMALL: Final = 48
WIDENED_BY_ROWS: Final = 56  # whether the vectors are rows
TARGET: Final = 64
ROWS: Final = 72
COLUMNS: Final = 80
WIDENED_WORDS: Final = 11


@native
def place_of(order: int, k: int, i: int) -> int:
    """Where the value is that is to be number ``i``: the least is first in an order."""
    return load_i32(order + 4 * (k - 1 - i)) - 1


@native
def widen(told: int, target: int, rows: int, columns: int) -> int:
    """A real matrix (k, k) as the corner of one with ones on the rest of its diagonal.

    All by columns; those of the matrix, or its rows, in the order of the values.
    """
    store(told + TARGET, target)
    store(told + ROWS, rows)
    store(told + COLUMNS, columns)
    items = (columns + COLUMNS_OF_ITEM - 1) // COLUMNS_OF_ITEM
    return share(load(told + WIDENED_TOOLS), address_of(widen_run), told, items)


@native
def widen_run(told: int, begin: int, end: int) -> int:
    """Some columns of a widened matrix."""
    rows = load(told + ROWS)
    k = load(told + WIDENED_EXTENT)
    size = load(told + WIDENED_SIZE)
    real = load(told + WIDENED_REAL)
    order = load(told + WIDENED_ORDER)
    last = least(end * COLUMNS_OF_ITEM, load(told + COLUMNS))
    for column in range(begin * COLUMNS_OF_ITEM, last):
        place = load(told + TARGET) + column * rows * size
        memset(place, 0, rows * size)
        if column >= k:
            if column < rows:
                copy_real(place + column * size, load(told + WIDENED_ONE), real)
        elif load(told + WIDENED_BY_ROWS):
            source = load(told + WIDENED_SMALL) + column * k * real
            for row in range(k):
                number = source + place_of(order, k, row) * real
                copy_real(place + row * size, number, real)
        else:
            source = load(told + WIDENED_SMALL) + place_of(order, k, column) * k * real
            copy_apart(place, size, source, real, k, real)
    return 0
