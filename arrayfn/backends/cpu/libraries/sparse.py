"""Products with sparse matrices; ``lowering.libraries.sparse`` has the arguments.

Positions are checked first, by a loop that LLVM vectorizes: it combines differences by
``|``, so that ``sign`` is negative if any difference is, which is if any position is
outside of the matrix. Only in this case is each entry tested, and skipped if it is
outside. So no memory outside of the arrays is accessed, whatever the indices are. For
CSR and one column of ``x``, the sum of a row is in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Final

import numpy as np

from arrayfn.backends.cpu.libraries.foreign import Array, Real, i32
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.lowering.scalars import max_i64, min_i64

Kernel = Callable[..., None]


def any_outside(positions: Array[Any], first: int, last: int, extent: int) -> int:
    """Return a negative number if a position is outside of 0 to ``extent`` - 1.

    The result is 0 or positive otherwise. Positions number ``first`` to ``last``
    (exclusive) are checked.
    """
    # ``|`` keeps the sign bit: the result is negative if any of these numbers is.
    sign = 0
    for k in range(first, last):
        position = int(positions[k])
        sign = sign | position | (extent - 1 - position)
    return sign


def any_descending(starts: Array[Any], first: int, last: int) -> int:
    """Return a negative number if a row pointer is followed by a smaller one.

    The result is 0 or positive otherwise. The pointers number ``first`` to ``last``
    (exclusive) and their successors are checked.
    """
    sign = 0
    for k in range(first, last):
        sign = sign | (int(starts[k + 1]) - int(starts[k]))
    return sign


def csr(
    data: Array[Real],
    first: Array[int],
    second: Array[int],
    x: Array[Real],
    out: Array[Real],
    rows: int,
    columns: int,
    entries: int,
    width: int,
    begin: int,
    end: int,
) -> None:
    """Compute ``out = A x`` for a sparse matrix A in CSR. A work item is a row of A.

    A is ``rows`` x ``columns`` and has ``entries``: ``data`` are their values,
    ``first`` their columns, and ``second`` the rows' pointers. ``x`` has ``width``
    columns. Items ``begin`` to ``end`` are computed. Entries outside of A are skipped.
    """
    low, high = int(second[begin]), int(second[end])
    sign = low | (entries - high) | any_descending(second, begin, end)
    if sign >= 0:
        sign = any_outside(first, low, high, columns)
    if (sign >= 0) & (width == 1):
        for row in range(begin, end):
            total = 0.0
            for k in range(int(second[row]), int(second[row + 1])):
                total = total + float(data[k]) * float(x[int(first[k])])
            out[row] = total
    else:
        for row in range(begin, end):
            for j in range(width):
                out[row * width + j] = 0.0
            start = max_i64(0, int(second[row]))
            for k in range(start, min_i64(entries, int(second[row + 1]))):
                column, value = int(first[k]), data[k]
                if (column >= 0) & (column < columns):
                    for j in range(width):
                        at = row * width + j
                        out[at] = out[at] + value * x[column * width + j]


def csc(
    data: Array[Real],
    first: Array[int],
    second: Array[int],
    x: Array[Real],
    out: Array[Real],
    rows: int,
    columns: int,
    entries: int,
    width: int,
    begin: int,
    end: int,
) -> None:
    """Compute ``out = A x`` for a sparse matrix A in CSC, as one work item.

    A is ``rows`` x ``columns`` and has ``entries``: ``data`` are their values,
    ``first`` their rows, and ``second`` the columns' pointers. ``x`` has ``width``
    columns. Nothing is done unless ``begin`` < ``end``. Entries outside of A are
    skipped.
    """
    for _ in range(begin, end):
        for k in range(rows * width):
            out[k] = 0.0
        low, high = int(second[0]), int(second[columns])
        sign = low | (entries - high) | any_descending(second, 0, columns)
        if sign >= 0:
            sign = any_outside(first, low, high, rows)
        if (sign >= 0) & (width == 1):
            for column in range(columns):
                factor = x[column]
                for k in range(int(second[column]), int(second[column + 1])):
                    row = int(first[k])
                    out[row] = out[row] + data[k] * factor
        else:
            for column in range(columns):
                start = max_i64(0, int(second[column]))
                for k in range(start, min_i64(entries, int(second[column + 1]))):
                    row, value = int(first[k]), data[k]
                    if (row >= 0) & (row < rows):
                        for j in range(width):
                            at = row * width + j
                            out[at] = out[at] + value * x[column * width + j]


def coo(
    data: Array[Real],
    first: Array[int],
    second: Array[int],
    x: Array[Real],
    out: Array[Real],
    rows: int,
    columns: int,
    entries: int,
    width: int,
    begin: int,
    end: int,
) -> None:
    """Compute ``out = A x`` for a sparse matrix A in COO, as one work item.

    A is ``rows`` x ``columns`` and has ``entries``: ``data`` are their values,
    ``first`` their rows, and ``second`` their columns. ``x`` has ``width`` columns.
    Nothing is done unless ``begin`` < ``end``. Entries outside of A are skipped.
    """
    for _ in range(begin, end):
        for k in range(rows * width):
            out[k] = 0.0
        # ``|`` is negative if one of its operands is: if some entry is outside.
        sign = any_outside(first, 0, entries, rows) | any_outside(
            second, 0, entries, columns
        )
        if (sign >= 0) & (width == 1):
            for k in range(entries):
                row = int(first[k])
                out[row] = out[row] + data[k] * x[int(second[k])]
        else:
            for k in range(entries):
                row, column, value = int(first[k]), int(second[k]), data[k]
                inside = (row >= 0) & (row < rows)
                if inside & (column >= 0) & (column < columns):
                    for j in range(width):
                        at = row * width + j
                        out[at] = out[at] + value * x[column * width + j]


def _with_short_indices(kernel: Kernel) -> Kernel:
    """Return a copy of ``kernel`` whose index arrays have 32-bit integers.

    Only the annotations differ, which give the parameters' types.
    """
    assert isinstance(kernel, FunctionType)
    short_kernel = FunctionType(kernel.__code__, kernel.__globals__, kernel.__name__)
    short = {"first": Array[i32], "second": Array[i32]}
    short_kernel.__annotations__ = {**kernel.__annotations__, **short}
    short_kernel.__module__ = kernel.__module__
    return short_kernel


def _unjitted(layout: str) -> Callable[[Mapping[str, Any], int], None]:
    """Return a NumPy product for ``layout``: "csr", "csc" or "coo"."""

    def run(arguments: Mapping[str, Any], items: int) -> None:
        """Compute the product; ``arguments`` has the arguments by name."""
        rows, columns, entries, width = (
            int(arguments[name]) for name in ("rows", "columns", "entries", "width")
        )
        lengths = {
            "csr": (entries, rows + 1),
            "csc": (entries, columns + 1),
            "coo": (entries, entries),
        }[layout]
        data = arguments["data"].array((entries,))
        first, second = (
            arguments[name].array((length,))
            for name, length in zip(("first", "second"), lengths, strict=True)
        )
        if layout != "coo":
            # The row or column of each entry, from the pointers; -1 for padding.
            along = np.repeat(np.arange(lengths[1] - 1), np.diff(second))
            along = np.pad(along, (0, entries - len(along)), constant_values=-1)
            first, second = (along, first) if layout == "csr" else (first, along)
        # ``first`` and ``second`` are the rows and columns of the entries, as in COO.
        inside = (first >= 0) & (first < rows) & (second >= 0) & (second < columns)
        x = arguments["x"].array((columns, width))
        out = arguments["out"].array((rows, width))
        out[...] = 0
        np.add.at(out, first[inside], data[inside, None] * x[second[inside]])

    return run


def _leading_arguments(dtype: str) -> tuple[int, ...]:
    """Return no arguments; raises KeyError for dtypes other than "f32" and "f64"."""
    return {"f32": (), "f64": ()}[dtype]


def _providers(layout: str, kernel: Kernel) -> dict[str, Provider]:
    """Return the providers, by name, of products with matrices in ``layout``.

    ``layout`` is "csr", "csc" or "coo". There is one provider for index arrays of 32
    bits and one for 64 bits. ``kernel`` is that for 64 bits.
    """
    kernels = {"i32": _with_short_indices(kernel), "i64": kernel}
    return {
        f"sparse_{layout}_{index}": Provider(
            kernel_of_index, _leading_arguments, _unjitted(layout)
        )
        for index, kernel_of_index in kernels.items()
    }


PROVIDERS: Final = {
    **_providers("csr", csr),
    **_providers("csc", csc),
    **_providers("coo", coo),
}
