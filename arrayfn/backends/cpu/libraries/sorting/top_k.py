"""The few greatest elements of rows: packed with their positions, and selected.

Elements of 64 bits, with which no position fits into a word, are sorted as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.cpu.libraries.sorting import sorting_loops
from arrayfn.backends.cpu.libraries.sorting.numpy_sorts import (
    ARGSORT,
    QUICK,
    SORT,
    NumpyArgsort,
    NumpySort,
    sort_function,
)
from arrayfn.backends.cpu.libraries.sorting.sorting import memcpy, values_of
from arrayfn.backends.native import cast, native
from arrayfn.backends.native.code import native_addresses
from arrayfn.backends.native.structures import Array, Struct, i32
from arrayfn.dtypes import BY_SHORT_NAME

POSITION: Final = 0xFFFFFFFF


class TopK(Struct):
    """The words of ``top_k``; then the arguments of ``lowering.libraries.sorting``."""

    item_bytes: int
    sort: NumpySort  # of 64-bit integers
    pack: Callable[[int, int, int, int, int], None] | None
    select: Callable[[int, int, int, Array[int], int, NumpySort], None]
    make_keys: Callable[[int, int, int], None]
    reverse: Callable[[int, int], None]
    argsort: NumpyArgsort
    order_ties: Callable[[int, Array[int], int, NumpySort], None]
    x: int
    values: int
    indices: Array[i32]
    keys: int
    buffer: Array[int]
    n: int
    k: int
    room: int
    infinity: int


@native
def top_k_run(a: TopK, begin: int, end: int) -> None:
    """Select from rows ``begin`` to ``end``."""
    size = a.item_bytes
    for row in range(begin, end):
        source = a.x + row * a.n * size
        order_row(a, source)
        for rank in range(a.k):
            position = a.buffer[rank] & POSITION
            index = row * a.k + rank
            a.indices[index] = position
            memcpy(a.values + index * size, source + position * size, size)


@native
def order_row(a: TopK, source: int) -> None:
    """Fill the buffer with the positions of the greatest, in its low halves."""
    if a.pack is not None:
        a.pack(source, a.keys, a.n, 0, a.infinity)
        a.select(a.keys, a.n, a.k, a.buffer, a.room, a.sort)
        return
    a.make_keys(source, a.keys, a.n)
    a.reverse(a.keys, a.n)
    for position in range(a.n):
        a.buffer[position] = position
    a.argsort(cast(Array[int], a.keys), a.buffer, a.n, None)
    a.order_ties(a.keys, a.buffer, a.n, a.sort)


def words(dtype: str) -> tuple[int, ...]:
    """The words before the arguments."""
    kind = BY_SHORT_NAME[dtype]
    if kind.kind == "c":
        raise KeyError(dtype)
    sort = sort_function(dtypes.int64, SORT + QUICK)
    if kind.itemsize == 8:
        order = sort_function(dtypes.int64, ARGSORT + QUICK)
        keys, reverse, ties = native_addresses(
            sorting_loops.KEYS[dtype],
            sorting_loops.reverse_keys,
            sorting_loops.order_ties,
        )
        return kind.itemsize, sort, 0, 0, keys, reverse, order, ties
    loops = native_addresses(sorting_loops.PACK[dtype], sorting_loops.select_packed)
    return kind.itemsize, sort, *loops, 0, 0, 0, 0


def unjitted(given: Mapping[str, Any], items: int) -> None:
    """Select from all rows, by NumPy."""
    n, k = int(given["n"]), int(given["k"])
    x = given["x"].array((items, n))
    # Descending is the reverse of ascending; among equal elements too, if reversed.
    values = values_of(x, int(given["infinity"]))[:, ::-1]
    order = n - 1 - np.argsort(values, axis=-1, kind="stable")[:, ::-1][:, :k]
    given["indices"].array((items, k))[...] = order
    given["values"].array((items, k))[...] = np.take_along_axis(x, order, -1)


PROVIDERS: Final = {"top_k": Provider(top_k_run, words, unjitted)}
