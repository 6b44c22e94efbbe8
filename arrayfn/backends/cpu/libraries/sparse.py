"""Products with sparse matrices; ``lowering.libraries.sparse`` has the arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from arrayfn.backends.cpu.libraries import sparse_loops
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.native import Routine, native
from arrayfn.backends.native.code import native_addresses
from arrayfn.backends.native.structures import Struct


class ByRows(Struct):
    """The loop over rows, and the arguments of a product."""

    loop: Callable[[int, int, int, int, int, int, int, int, int, int], None]
    data: int
    first: int
    second: int
    x: int
    out: int
    rows: int
    columns: int
    entries: int
    width: int


class Whole(Struct):
    """The loop over a whole matrix, and the arguments of a product."""

    loop: Callable[[int, int, int, int, int, int, int, int, int], None]
    data: int
    first: int
    second: int
    x: int
    out: int
    rows: int
    columns: int
    entries: int
    width: int


@native
def rows_run(a: ByRows, begin: int, end: int) -> None:
    """Compute rows ``begin`` to ``end``."""
    a.loop(
        a.data, a.first, a.second, a.x, a.out, begin, end, a.columns, a.entries, a.width
    )


@native
def whole_run(a: Whole, begin: int, end: int) -> None:
    """Compute the product."""
    for _ in range(begin, end):
        a.loop(
            a.data, a.first, a.second, a.x, a.out, a.rows, a.columns, a.entries, a.width
        )


def _words(loops: Mapping[str, Routine[..., Any]]) -> Callable[[str], tuple[int, ...]]:
    return lambda kind: native_addresses(loops[kind])


def _unjitted(layout: str) -> Callable[[Mapping[str, Any], int], None]:
    """The whole product, by NumPy."""

    def run(given: Mapping[str, Any], items: int) -> None:
        rows, columns, entries, width = (
            int(given[name]) for name in ("rows", "columns", "entries", "width")
        )
        lengths = {
            "csr": (entries, rows + 1),
            "csc": (entries, columns + 1),
            "coo": (entries, entries),
        }[layout]
        data = given["data"].array((entries,))
        first, second = (
            given[name].array((length,))
            for name, length in zip(("first", "second"), lengths, strict=True)
        )
        if layout != "coo":
            along = np.repeat(np.arange(lengths[1] - 1), np.diff(second))
            along = np.pad(along, (0, entries - len(along)), constant_values=-1)
            first, second = (along, first) if layout == "csr" else (first, along)
        kept = (first >= 0) & (first < rows) & (second >= 0) & (second < columns)
        x = given["x"].array((columns, width))
        out = given["out"].array((rows, width))
        out[...] = 0
        np.add.at(out, first[kept], data[kept, None] * x[second[kept]])

    return run


PROVIDERS: Final = {
    "sparse_csr": Provider(rows_run, _words(sparse_loops.BY_ROWS), _unjitted("csr")),
    "sparse_csc": Provider(
        whole_run, _words(sparse_loops.BY_COLUMNS), _unjitted("csc")
    ),
    "sparse_coo": Provider(
        whole_run, _words(sparse_loops.BY_ENTRIES), _unjitted("coo")
    ),
}
