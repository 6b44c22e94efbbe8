"""How sparse matrices look: text for a console, and a picture for a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from arrayfn.dtypes import short_name
from arrayfn.sparse import structure

if TYPE_CHECKING:
    from arrayfn.sparse.array import SparseArray

_ROWS: Final = 12  # a matrix of at most so many rows and columns is printed whole
_COLUMNS: Final = 12
_ENTRIES: Final = 6  # the number of entries that are printed of a larger matrix
_CELLS: Final = 64  # the number of cells of a picture, along its longer side
_SIDE: Final = 192  # the length of the picture's longer side, in pixels


def head(matrix: SparseArray) -> str:
    """Return the format, the type and the number of entries, as one line.

    >>> from arrayfn.sparse import CSR
    >>> head(CSR(np.eye(4)))
    'CSR f64[4,4], 4 entries (25 %)'
    """
    m, n = matrix.shape
    # ``vmap`` puts further axes in front of the entries.
    count = int(np.prod(np.shape(matrix.data)[-1:]))
    share = f" ({100 * count / (m * n):.3g} %)" if m * n else ""
    entries = "entry" if count == 1 else "entries"
    kind = short_name(matrix.dtype)
    name = type(matrix).__name__
    return f"{name} {kind}[{m},{n}], {count} {entries}{share}"


def text(matrix: SparseArray) -> str:
    """Return the head, and a small matrix as a grid, or entries of a larger one.

    Without known values and positions, it is only the head. A grid has dots for what is
    not stored. Of more than six entries, the first five and the last are listed.
    """
    entries = _known(matrix)
    if entries is None:
        return head(matrix)
    data, rows, columns = entries
    m, n = matrix.shape
    if m <= _ROWS and n <= _COLUMNS:
        return "\n".join([head(matrix), *_grid(matrix.shape, data, rows, columns)])
    shown = [*range(len(data))]
    if len(shown) > _ENTRIES:
        shown = [*shown[: _ENTRIES - 1], -1]
    lines = [f"  ({rows[k]}, {columns[k]})  {data[k]:.6g}" for k in shown]
    if len(data) > _ENTRIES:
        lines.insert(-1, "  ...")
    return "\n".join([head(matrix), *lines])


def _known(matrix: SparseArray) -> tuple[Any, Any, Any] | None:
    """Return the values, rows and columns, or None.

    It is None if one of them is traced, or if ``vmap`` stacked several matrices.
    """
    if np.ndim(matrix.data) != 1:
        return None
    values = [structure.known(x) for x in (matrix.data, *matrix.positions)]
    if any(x is None for x in values):
        return None
    rows, columns = (structure.known(x) for x in matrix.coordinates())
    return values[0], rows, columns


def _grid(shape: tuple[int, int], data: Any, rows: Any, columns: Any) -> list[str]:
    """Return the lines of a small matrix; entries at one position are added up.

    The entries ``data`` are at ``rows`` and ``columns``. Padding is left out. Columns
    are aligned.
    """
    sums: dict[tuple[int, int], Any] = {}
    for value, row, column in zip(data, rows, columns, strict=True):
        if 0 <= row < shape[0] and 0 <= column < shape[1]:
            place = int(row), int(column)
            sums[place] = sums[place] + value if place in sums else value
    cells = {place: f"{value:.4g}" for place, value in sums.items()}
    widths = [
        max([1, *(len(cells.get((i, j), "")) for i in range(shape[0]))])
        for j in range(shape[1])
    ]
    return [
        "  "
        + " ".join(cells.get((i, j), ".").rjust(widths[j]) for j in range(shape[1]))
        for i in range(shape[0])
    ]


def html(matrix: SparseArray) -> str:
    """Return the head, and a picture of the pattern.

    The picture is an SVG of at most 64 cells along the longer side. A cell with more
    entries is darker. Without known positions, only the head is returned.
    """
    entries = _known(matrix)
    if entries is None or 0 in matrix.shape:
        return f"<code>{head(matrix)}</code>"
    _, rows, columns = entries
    m, n = matrix.shape
    longer = max(m, n)
    cells = min(longer, _CELLS)
    down, across = (max(1, round(extent * cells / longer)) for extent in (m, n))
    inside = (rows >= 0) & (rows < m) & (columns >= 0) & (columns < n)
    counts = np.zeros((down, across))
    # The cell of each entry.
    i = rows[inside].astype(np.int64) * down // m
    j = columns[inside].astype(np.int64) * across // n
    np.add.at(counts, (i, j), 1.0)
    shades = np.sqrt(counts / max(counts.max(), 1.0))
    size = _SIDE / cells
    squares = "".join(
        f'<rect x="{b * size:.2f}" y="{a * size:.2f}" width="{size:.2f}" '
        f'height="{size:.2f}" fill-opacity="{0.25 + 0.75 * shades[a, b]:.2f}"/>'
        for a, b in zip(*np.nonzero(counts), strict=True)
    )
    width, height = across * size, down * size
    return (
        f"<div><code>{head(matrix)}</code><br>"
        f'<svg width="{width:.0f}" height="{height:.0f}" fill="currentColor" '
        'style="border: 1px solid; margin-top: 4px">'
        f"{squares}</svg></div>"
    )
