"""Loops over the entries of sparse matrices, compiled with all optimisations.

Entries outside of the matrix are left out, so no memory outside of the arrays is
touched whatever the indices are. Sums of one row are in float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from arrayfn.backends.native import generic, inlined
from arrayfn.backends.native.structures import Array, Integer, f32, i32

if TYPE_CHECKING:
    Real: TypeAlias = float
else:
    Real = TypeVar("Real")

LOOPS_OVER_DATA: Final = True


@inlined
def is_within(position: int, extent: int) -> bool:
    """Whether there is such a row or column."""
    return (position >= 0) & (position < extent)


@generic
def by_rows(
    data: Array[Real],
    across: Array[Integer],
    starts: Array[Integer],
    x: Array[Real],
    out: Array[Real],
    begin: int,
    end: int,
    columns: int,
    entries: int,
    width: int,
) -> None:
    """Write rows ``begin`` to ``end`` of the product of a CSR matrix."""
    for row in range(begin, end):
        first = max(0, starts[row])
        last = min(entries, starts[row + 1])
        if width == 1:
            total = 0.0
            for k in range(first, last):
                column = across[k]
                if is_within(column, columns):
                    total += data[k] * x[column]
            out[row] = total
        else:
            for j in range(width):
                out[row * width + j] = 0.0
            for k in range(first, last):
                column = across[k]
                value = data[k]
                if is_within(column, columns):
                    for j in range(width):
                        out[row * width + j] += value * x[column * width + j]


@generic
def by_columns(
    data: Array[Real],
    down: Array[Integer],
    starts: Array[Integer],
    x: Array[Real],
    out: Array[Real],
    rows: int,
    columns: int,
    entries: int,
    width: int,
) -> None:
    """Write the product of a CSC matrix."""
    for k in range(rows * width):
        out[k] = 0.0
    for column in range(columns):
        first = max(0, starts[column])
        last = min(entries, starts[column + 1])
        for k in range(first, last):
            row = down[k]
            value = data[k]
            if is_within(row, rows):
                for j in range(width):
                    out[row * width + j] += value * x[column * width + j]


@generic
def by_entries(
    data: Array[Real],
    down: Array[Integer],
    across: Array[Integer],
    x: Array[Real],
    out: Array[Real],
    rows: int,
    columns: int,
    entries: int,
    width: int,
) -> None:
    """Write the product of a COO matrix."""
    for k in range(rows * width):
        out[k] = 0.0
    for k in range(entries):
        row = down[k]
        column = across[k]
        value = data[k]
        if is_within(row, rows) & is_within(column, columns):
            for j in range(width):
                out[row * width + j] += value * x[column * width + j]


BY_ROWS: Final = {
    "f32i32": by_rows.of(Real=f32, Integer=i32),
    "f32i64": by_rows.of(Real=f32, Integer=int),
    "f64i32": by_rows.of(Real=float, Integer=i32),
    "f64i64": by_rows.of(Real=float, Integer=int),
}
BY_COLUMNS: Final = {
    "f32i32": by_columns.of(Real=f32, Integer=i32),
    "f32i64": by_columns.of(Real=f32, Integer=int),
    "f64i32": by_columns.of(Real=float, Integer=i32),
    "f64i64": by_columns.of(Real=float, Integer=int),
}
BY_ENTRIES: Final = {
    "f32i32": by_entries.of(Real=f32, Integer=i32),
    "f32i64": by_entries.of(Real=f32, Integer=int),
    "f64i32": by_entries.of(Real=float, Integer=i32),
    "f64i64": by_entries.of(Real=float, Integer=int),
}
