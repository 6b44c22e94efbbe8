"""Sorting: NumPy's own functions over rows and chunks, and merges of sorted chunks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.cpu.libraries.sorting import merging, sorting_loops
from arrayfn.backends.cpu.libraries.sorting.numpy_sorts import (
    ARGSORT,
    QUICK,
    SORT,
    STABLE,
    NumpyArgsort,
    NumpySort,
    sort_function,
)
from arrayfn.backends.native import CFunction, cast, native
from arrayfn.backends.native.code import native_address, native_addresses
from arrayfn.backends.native.structures import Array, Struct
from arrayfn.dtypes import BY_SHORT_NAME

memcpy = CFunction[[int, int, int], int]("memcpy")

SHORT: Final = 256  # elements that a radix sort is too slow for


class Sort(Struct):
    """The words of ``sort``; then the arguments of ``lowering.libraries.sorting``."""

    item_bytes: int
    sort: NumpySort
    sort_short: NumpySort
    encode: Callable[[int, int, int, int], None] | None  # of floats
    decode: Callable[[int, int, int], None] | None
    x: int
    sorted: int
    keys: int
    n: int
    chunk: int
    chunks: int
    infinity: int


class Argsort(Struct):
    """As ``Sort``. Elements are packed, or have keys, or are ordered by NumPy."""

    item_bytes: int
    sort: NumpySort  # of 64-bit integers
    argsort: NumpyArgsort  # of keys, or of elements
    pack: Callable[[int, int, int, int, int], None] | None
    unpack: Callable[[int, int, int], None]
    make_keys: Callable[[int, int, int], None] | None
    order_ties: Callable[[int, int, int, NumpySort], None]
    x: int
    sorted: int
    keys: int
    n: int
    chunk: int
    chunks: int
    infinity: int


class Merge(Struct):
    """The words of ``merge``; then the arguments of the lowering."""

    item_bytes: int
    merge: Callable[[int, int, int, int, int, int, int, int], None]
    flip: int
    decode: Callable[[int, int, int], None]  # makes elements of what was merged
    runs: int
    merged: int
    n: int
    run: int
    pairs: int
    part: int
    parts: int
    unpack: int  # whether to decode


@native
def sort_run(a: Sort, begin: int, end: int) -> None:
    """Sort chunks ``begin`` to ``end``: each copied, then sorted where it is."""
    for item in range(begin, end):
        first = item % a.chunks * a.chunk
        count = min(a.n - first, a.chunk)
        offset = (item // a.chunks * a.n + first) * a.item_bytes
        if count > 0:
            target = a.sorted + offset
            if a.encode is not None:
                a.encode(a.x + offset, target, count, a.infinity)
            else:
                memcpy(target, a.x + offset, count * a.item_bytes)
            if count < SHORT:
                a.sort_short(cast(Array[int], target), count, None)
            else:
                a.sort(cast(Array[int], target), count, None)
            if a.decode is not None and a.chunks == 1:
                a.decode(target, count, a.infinity)


@native
def argsort_run(a: Argsort, begin: int, end: int) -> None:
    """Argsort chunks ``begin`` to ``end``."""
    for item in range(begin, end):
        first = item % a.chunks * a.chunk
        count = min(a.n - first, a.chunk)
        offset = item // a.chunks * a.n + first
        if count > 0:
            source = a.x + offset * a.item_bytes
            order_chunk(a, source, cast(Array[int], a.sorted) + offset, count, first)


@native
def order_chunk(
    a: Argsort, source: int, order: Array[int], count: int, first: int
) -> None:
    """Argsort one chunk, whose positions begin with ``first``."""
    target = cast(int, order)
    if a.pack is not None:
        a.pack(source, target, count, first, a.infinity)
        a.sort(order, count, None)
        if a.chunks == 1:
            a.unpack(target, count, 0)
        return
    for k in range(count):
        order[k] = k
    if a.make_keys is None:
        a.argsort(cast(Array[int], source), order, count, None)
        return
    a.make_keys(source, a.keys, count)
    a.argsort(cast(Array[int], a.keys), order, count, None)
    a.order_ties(a.keys, target, count, a.sort)


@native
def merge_run(a: Merge, begin: int, end: int) -> None:
    """Merge parts ``begin`` to ``end`` of pairs of runs."""
    for item in range(begin, end):
        first = item // a.parts % a.pairs * 2 * a.run
        row = item // (a.parts * a.pairs) * a.n
        middle = min(first + a.run, a.n)
        last = min(middle + a.run, a.n)
        start = item % a.parts * a.part
        stop = min(start + a.part, last - first)
        if start < stop:
            offset = (row + first) * a.item_bytes
            left = a.runs + offset
            right = left + (middle - first) * a.item_bytes
            target = a.merged + offset
            lengths = middle - first
            a.merge(left, lengths, right, last - middle, target, start, stop, a.flip)
            if a.unpack:
                a.decode(target + start * a.item_bytes, stop - start, 0)


_CODES: Final = {"f32": dtypes.int32, "f64": dtypes.int64}


def sort_words(dtype: str) -> tuple[int, ...]:
    """The words of ``sort``."""
    kind = BY_SHORT_NAME[dtype]
    narrow = kind.itemsize <= 2
    # A radix sort of the bits, made to order as integers.
    halves = kind in dtypes.HALF_PRECISION
    sorted_as = dtypes.uint16 if halves else kind
    quick = sort_function(sorted_as, SORT + QUICK)
    best = sort_function(sorted_as, SORT + STABLE) if narrow else quick
    codes = (0, 0)
    if halves:
        codes = native_addresses(
            sorting_loops.encode_halves, sorting_loops.decode_halves
        )
    return kind.itemsize, best, quick, *codes


def argsort_words(dtype: str) -> tuple[int, ...]:
    """The words of ``argsort``."""
    kind = BY_SHORT_NAME[dtype]
    integers = sort_function(dtypes.int64, SORT + QUICK)
    if kind.kind == "c":
        order = sort_function(kind, ARGSORT + STABLE)
        return kind.itemsize, integers, order, 0, 0, 0, 0
    if kind.itemsize == 8:
        order = sort_function(dtypes.int64, ARGSORT + QUICK)
        loops = native_addresses(sorting_loops.KEYS[dtype], sorting_loops.order_ties)
        return kind.itemsize, integers, order, 0, 0, *loops
    loops = native_addresses(sorting_loops.PACK[dtype], sorting_loops.unpack)
    return kind.itemsize, integers, 0, *loops, 0, 0


def sort_codes_words(dtype: str) -> tuple[int, ...]:
    """The words of ``sort_codes``."""
    integers = _CODES[dtype]
    quick = sort_function(integers, SORT + QUICK)
    loops = sorting_loops.ENCODE[dtype], sorting_loops.DECODE[dtype]
    return integers.itemsize, quick, quick, *native_addresses(*loops)


def merge_words(dtype: str) -> tuple[int, ...]:
    """The words of ``merge``."""
    kind = BY_SHORT_NAME[dtype]
    signed = "u32" if dtype == "u32" else f"i{8 * kind.itemsize}"
    merge = native_address(merging.MERGE[signed])
    decode = native_address(sorting_loops.DECODE.get(dtype, sorting_loops.unpack))
    return kind.itemsize, merge, merging.SIGN_64 if dtype == "u64" else 0, decode


# Without a compiler.

_HALVES: Final = {0x7C00: dtypes.float16, 0x7F80: dtypes.bfloat16}


def values_of(x: Any, infinity: int) -> Any:
    """Elements as NumPy sorts them; halves come as bits."""
    is_half = infinity in _HALVES
    return x.view(_HALVES[infinity]).astype(np.float32) if is_half else x


def _ranges(given: Mapping[str, Any]) -> list[slice]:
    chunk, chunks = int(given["chunk"]), int(given["chunks"])
    return [slice(k * chunk, (k + 1) * chunk) for k in range(chunks)]


def sort_unjitted(given: Mapping[str, Any], items: int) -> None:
    """Sort all chunks, by NumPy."""
    shape = (items // int(given["chunks"]), int(given["n"]))
    infinity = int(given["infinity"])
    x, out = (given[name].array(shape) for name in ("x", "sorted"))
    for part in _ranges(given):
        values = np.sort(values_of(x[:, part], infinity), axis=-1)
        if infinity in _HALVES:
            values = values.astype(_HALVES[infinity]).view(np.uint16)
        out[:, part] = values


def argsort_unjitted(given: Mapping[str, Any], items: int) -> None:
    """Argsort all chunks, by NumPy; several are packed with their positions."""
    shape = (items // int(given["chunks"]), int(given["n"]))
    x = values_of(given["x"].array(shape), int(given["infinity"]))
    out = given["sorted"].array(shape)
    if int(given["chunks"]) == 1:
        out[...] = np.argsort(x, axis=-1, kind="stable")
        return
    # Ranks order as elements do.
    for row, target in zip(x, out, strict=True):
        ranks = np.unique(row, return_inverse=True)[1].astype(np.int64)
        packed = (ranks << 32) | np.arange(len(row))
        for part in _ranges(given):
            target[part] = np.sort(packed[part])


def merge_unjitted(given: Mapping[str, Any], items: int) -> None:
    """Merge all pairs of runs, by NumPy."""
    n, run, pairs = (int(given[name]) for name in ("n", "run", "pairs"))
    rows = items // (pairs * int(given["parts"]))
    runs, out = (given[name].array((rows, n)) for name in ("runs", "merged"))
    for pair in range(pairs):
        part = slice(2 * pair * run, 2 * (pair + 1) * run)
        out[:, part] = np.sort(runs[:, part], axis=-1)
    if int(given["unpack"]) and out.dtype == np.int64:
        out &= 0xFFFFFFFF


PROVIDERS: Final = {
    "sort": Provider(sort_run, sort_words, sort_unjitted),
    "sort_codes": Provider(sort_run, sort_codes_words, sort_unjitted),
    "argsort": Provider(argsort_run, argsort_words, argsort_unjitted),
    "merge": Provider(merge_run, merge_words, merge_unjitted),
}
