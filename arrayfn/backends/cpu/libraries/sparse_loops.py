"""Loops over the entries of sparse matrices, compiled with all optimisations.

Positions are checked first, in a loop of vectors: it finds whether any is outside of
the matrix. Only then each entry is tested, and left out if it is. So no memory outside
of the arrays is touched whatever the indices are. Sums of one row are in float64.
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
def outside(positions: Array[Integer], first: int, last: int, extent: int) -> int:
    """A negative number if one of the positions is not from 0 to ``extent`` - 1."""
    bits = 0
    for k in range(first, last):
        position = positions[k]
        bits |= position | (extent - 1 - position)
    return bits


@generic
def descending(starts: Array[Integer], first: int, last: int) -> int:
    """A negative number if one of these pointers is followed by a smaller one."""
    bits = 0
    for k in range(first, last):
        bits |= starts[k + 1] - starts[k]
    return bits


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
    low = starts[begin]
    high = starts[end]
    bits = low | (entries - high) | descending(starts, begin, end)
    if bits >= 0:
        bits = outside(across, low, high, columns)
    if (bits >= 0) & (width == 1):
        for row in range(begin, end):
            total = 0.0
            for k in range(starts[row], starts[row + 1]):
                total += data[k] * x[across[k]]
            out[row] = total
        return
    for row in range(begin, end):
        for j in range(width):
            out[row * width + j] = 0.0
        for k in range(max(0, starts[row]), min(entries, starts[row + 1])):
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
    low = starts[0]
    high = starts[columns]
    bits = low | (entries - high) | descending(starts, 0, columns)
    if bits >= 0:
        bits = outside(down, low, high, rows)
    if (bits >= 0) & (width == 1):
        for column in range(columns):
            factor = x[column]
            for k in range(starts[column], starts[column + 1]):
                out[down[k]] += data[k] * factor
        return
    for column in range(columns):
        for k in range(max(0, starts[column]), min(entries, starts[column + 1])):
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
    bits = outside(down, 0, entries, rows) | outside(across, 0, entries, columns)
    if (bits >= 0) & (width == 1):
        for k in range(entries):
            out[down[k]] += data[k] * x[across[k]]
        return
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
