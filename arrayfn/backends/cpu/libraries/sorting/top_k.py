"""The few greatest elements of rows: packed with their positions, and selected.

Elements of 64 bits, with which no position fits into a word, are sorted as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.cpu.libraries.sorting import sorting_loops
from arrayfn.backends.cpu.libraries.sorting.sorting import (
    ENCODERS,
    PACKERS,
    QUICK,
    TABLE_ARGSORT,
    TABLE_SORT,
    sort_function,
    values_of,
)
from arrayfn.backends.native import CFunction, call, load, native, store, store_i32
from arrayfn.backends.native.code import native_addresses
from arrayfn.dtypes import BY_SHORT_NAME

memcpy = CFunction("memcpy", 3)

# Arguments: words, then those of ``lowering.libraries.sorting``.
ITEM_BYTES: Final = 0
ENCODE: Final = 8  # what packs, or makes keys
SELECT: Final = 16  # of packed elements; else what orders ties
SORT: Final = 24  # of 64-bit integers
ARGSORT: Final = 32  # of 64-bit integers; 0 where elements are packed
REVERSE: Final = 40
X: Final = 48
VALUES: Final = 56
INDICES: Final = 64
KEYS: Final = 72
BUFFER: Final = 80
N: Final = 88
K: Final = 96
ROOM: Final = 104
INFINITY: Final = 112

POSITION: Final = 0xFFFFFFFF


@native
def top_k_run(arguments: int, begin: int, end: int) -> int:
    """Select from rows ``begin`` to ``end``."""
    size = load(arguments + ITEM_BYTES)
    n = load(arguments + N)
    k = load(arguments + K)
    buffer = load(arguments + BUFFER)
    for row in range(begin, end):
        source = load(arguments + X) + row * n * size
        order_row(arguments, source)
        for rank in range(k):
            position = load(buffer + 8 * rank) & POSITION
            place = row * k + rank
            store_i32(load(arguments + INDICES) + 4 * place, position)
            target = load(arguments + VALUES) + place * size
            memcpy(target, source + position * size, size)
    return 0


@native
def order_row(arguments: int, source: int) -> int:
    """Fill the buffer with the positions of the greatest, in its low halves."""
    n = load(arguments + N)
    k = load(arguments + K)
    keys = load(arguments + KEYS)
    buffer = load(arguments + BUFFER)
    sort = load(arguments + SORT)
    encode = load(arguments + ENCODE)
    if load(arguments + ARGSORT) == 0:
        call(encode, source, keys, n, 0, load(arguments + INFINITY))
        room = load(arguments + ROOM)
        call(load(arguments + SELECT), keys, n, k, buffer, room, sort)
        return 0
    call(encode, source, keys, n)
    call(load(arguments + REVERSE), keys, n)
    for position in range(n):
        store(buffer + 8 * position, position)
    call(load(arguments + ARGSORT), keys, buffer, n, 0)
    call(load(arguments + SELECT), keys, buffer, n, sort)
    return 0


def words(dtype: str) -> tuple[int, ...]:
    """The words before the arguments."""
    kind = BY_SHORT_NAME[dtype]
    if kind.kind == "c":
        raise KeyError(dtype)
    sort = sort_function(dtypes.int64, TABLE_SORT + QUICK)
    if kind.itemsize == 8:
        order = sort_function(dtypes.int64, TABLE_ARGSORT + QUICK)
        encode, ties, reverse = native_addresses(
            ENCODERS[dtype], sorting_loops.order_ties, sorting_loops.reverse_keys
        )
        return kind.itemsize, encode, ties, sort, order, reverse
    pack, select = native_addresses(PACKERS[dtype], sorting_loops.select_packed)
    return kind.itemsize, pack, select, sort, 0, 0


def unjitted(given: Mapping[str, Any], items: int) -> None:
    """All rows, by NumPy."""
    n, k = int(given["n"]), int(given["k"])
    x = given["x"].array((items, n))
    # Descending is the reverse of ascending; among equal elements too, if reversed.
    values = values_of(x, int(given["infinity"]))[:, ::-1]
    order = n - 1 - np.argsort(values, axis=-1, kind="stable")[:, ::-1][:, :k]
    given["indices"].array((items, k))[...] = order
    given["values"].array((items, k))[...] = np.take_along_axis(x, order, -1)


PROVIDERS: Final = {"top_k": Provider(top_k_run, words, unjitted)}
