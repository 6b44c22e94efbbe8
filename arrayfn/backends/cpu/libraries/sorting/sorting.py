"""Sorting: NumPy's own functions over rows and chunks, and merges of sorted chunks.

NumPy keeps a table of functions for each dtype (``PyArray_ArrFuncs``); its sorts take
an address and a count, and touch no Python object. Those of 32 and 64 bits are the
vectorised quicksorts behind ``np.sort``, those of 8 and 16 bits radix sorts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.cpu.libraries.sorting import merging, sorting_loops
from arrayfn.backends.native import CFunction, call, load, native, store
from arrayfn.backends.native.code import native_addresses
from arrayfn.dtypes import BY_SHORT_NAME, DType

memcpy = CFunction("memcpy", 3)

API_GET_FUNCTIONS: Final = 365  # a position in NumPy's table of C functions
TABLE_SORT: Final = 33  # positions in a dtype's table: quick, heap, stable
TABLE_ARGSORT: Final = 36
QUICK: Final = 0
STABLE: Final = 2

# Arguments of sort and argsort: words, then those of ``lowering.libraries.sorting``.
ITEM_BYTES: Final = 0
SORT: Final = 8  # of the elements, or of 64-bit integers
ENCODE: Final = 16  # of floats; of argsort: what packs, or makes keys
DECODE: Final = 24  # of floats; of argsort: what unpacks, or orders ties
METHOD: Final = 32  # of argsort; of sort: the function for short rows
ARGSORT: Final = 40
X: Final = 48
SORTED: Final = 56
KEYS: Final = 64
N: Final = 72
CHUNK: Final = 80
CHUNKS: Final = 88
INFINITY: Final = 96

SHORT: Final = 256  # elements that a radix sort is too slow for

PACKED: Final = 0
KEYED: Final = 1
PLAIN: Final = 2

# Arguments of merge.
MERGE: Final = 0
IS_SIGNED: Final = 8
MERGED_BYTES: Final = 16
UNPACK: Final = 24
RUNS: Final = 32
MERGED: Final = 40
LENGTH: Final = 48
RUN: Final = 56
PAIRS: Final = 64
PART: Final = 72
PARTS: Final = 80
UNPACKED: Final = 88


@native
def sort_run(arguments: int, begin: int, end: int) -> int:
    """Sort chunks ``begin`` to ``end``: each copied, then sorted where it is."""
    size = load(arguments + ITEM_BYTES)
    n = load(arguments + N)
    chunk = load(arguments + CHUNK)
    chunks = load(arguments + CHUNKS)
    infinity = load(arguments + INFINITY)
    for item in range(begin, end):
        first = item % chunks * chunk
        count = n - first
        if count > chunk:
            count = chunk
        place = (item // chunks * n + first) * size
        if count > 0:
            target = load(arguments + SORTED) + place
            source = load(arguments + X) + place
            if load(arguments + ENCODE) != 0:
                call(load(arguments + ENCODE), source, target, count, infinity)
            else:
                memcpy(target, source, count * size)
            if count < SHORT:
                call(load(arguments + METHOD), target, count, 0)
            else:
                call(load(arguments + SORT), target, count, 0)
            if load(arguments + DECODE) != 0 and chunks == 1:
                call(load(arguments + DECODE), target, count, infinity)
    return 0


@native
def argsort_run(arguments: int, begin: int, end: int) -> int:
    """Order chunks ``begin`` to ``end``."""
    size = load(arguments + ITEM_BYTES)
    n = load(arguments + N)
    chunk = load(arguments + CHUNK)
    chunks = load(arguments + CHUNKS)
    for item in range(begin, end):
        first = item % chunks * chunk
        count = n - first
        if count > chunk:
            count = chunk
        place = item // chunks * n + first
        if count > 0:
            source = load(arguments + X) + place * size
            target = load(arguments + SORTED) + place * 8
            order_chunk(arguments, source, target, count, first)
    return 0


@native
def order_chunk(
    arguments: int, source: int, target: int, count: int, first: int
) -> int:
    """Order one chunk, whose positions begin with ``first``."""
    method = load(arguments + METHOD)
    encode = load(arguments + ENCODE)
    if method == PACKED:
        call(encode, source, target, count, first, load(arguments + INFINITY))
        call(load(arguments + SORT), target, count, 0)
        if load(arguments + CHUNKS) == 1:
            call(load(arguments + DECODE), target, count, 0)
        return 0
    for k in range(count):
        store(target + 8 * k, k)
    if method == PLAIN:
        call(load(arguments + ARGSORT), source, target, count, 0)
        return 0
    keys = load(arguments + KEYS)
    call(encode, source, keys, count)
    call(load(arguments + ARGSORT), keys, target, count, 0)
    call(load(arguments + DECODE), keys, target, count, load(arguments + SORT))
    return 0


@native
def merge_run(arguments: int, begin: int, end: int) -> int:
    """Merge parts ``begin`` to ``end`` of pairs of runs."""
    size = load(arguments + MERGED_BYTES)
    n = load(arguments + LENGTH)
    run = load(arguments + RUN)
    pairs = load(arguments + PAIRS)
    part = load(arguments + PART)
    parts = load(arguments + PARTS)
    for item in range(begin, end):
        first = item // parts % pairs * 2 * run
        row = item // (parts * pairs) * n
        middle = first + run
        if middle > n:
            middle = n
        last = middle + run
        if last > n:
            last = n
        start = item % parts * part
        stop = start + part
        if stop > last - first:
            stop = last - first
        if start < stop:
            source = load(arguments + RUNS) + (row + first) * size
            target = load(arguments + MERGED) + (row + first) * size
            call(
                load(arguments + MERGE),
                source,
                middle - first,
                source + (middle - first) * size,
                last - middle,
                target,
                start,
                stop,
                load(arguments + IS_SIGNED),
            )
            if load(arguments + UNPACKED) != 0:
                place = target + start * size
                call(load(arguments + UNPACK), place, stop - start, 0)
    return 0


# The words before the arguments.

PACKERS: Final = {
    "bool": sorting_loops.pack_u8,
    "i8": sorting_loops.pack_i8,
    "u8": sorting_loops.pack_u8,
    "i16": sorting_loops.pack_i16,
    "u16": sorting_loops.pack_u16,
    "i32": sorting_loops.pack_i32,
    "u32": sorting_loops.pack_u32,
    "f16": sorting_loops.pack_halves,
    "bf16": sorting_loops.pack_halves,
    "f32": sorting_loops.pack_f32,
}
ENCODERS: Final = {
    "i64": sorting_loops.keys_i64,
    "u64": sorting_loops.keys_u64,
    "f64": sorting_loops.keys_f64,
}
_CODES: Final = {
    "f32": (dtypes.int32, sorting_loops.encode_f32, sorting_loops.decode_f32),
    "f64": (dtypes.int64, sorting_loops.encode_f64, sorting_loops.decode_f64),
}
_MERGES: Final = {4: merging.merge_32, 8: merging.merge_64}


@cache
def sort_function(dtype: DType, position: int) -> int:
    """The address of one of the functions in a dtype's table."""
    capsule = np._core._multiarray_umath._ARRAY_API  # type: ignore[attr-defined]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.c_void_p
    pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    api = int(pointer(capsule, None))
    word = ctypes.c_int64.from_address
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(
        word(api + 8 * API_GET_FUNCTIONS).value
    )
    return word(get(dtype) + 8 * position).value


def sort_words(dtype: str) -> tuple[int, ...]:
    """The words of ``sort``."""
    kind = BY_SHORT_NAME[dtype]
    narrow = kind.itemsize <= 2
    # A radix sort of the bits, made to order as integers.
    halves = kind in dtypes.HALVES
    sorted_as = dtypes.uint16 if halves else kind
    quick = sort_function(sorted_as, TABLE_SORT + QUICK)
    best = sort_function(sorted_as, TABLE_SORT + STABLE) if narrow else quick
    codes = (0, 0)
    if halves:
        codes = native_addresses(
            sorting_loops.encode_halves, sorting_loops.decode_halves
        )
    return kind.itemsize, best, *codes, quick, 0


def argsort_words(dtype: str) -> tuple[int, ...]:
    """The words of ``argsort``."""
    kind = BY_SHORT_NAME[dtype]
    integers = sort_function(dtypes.int64, TABLE_SORT + QUICK)
    if kind.kind == "c":
        order = sort_function(kind, TABLE_ARGSORT + STABLE)
        return kind.itemsize, integers, 0, 0, PLAIN, order
    if kind.itemsize == 8:
        order = sort_function(dtypes.int64, TABLE_ARGSORT + QUICK)
        loops = native_addresses(ENCODERS[dtype], sorting_loops.order_ties)
        return kind.itemsize, integers, *loops, KEYED, order
    loops = native_addresses(PACKERS[dtype], sorting_loops.unpack)
    return kind.itemsize, integers, *loops, PACKED, 0


def sort_codes_words(dtype: str) -> tuple[int, ...]:
    """The words of ``sort_codes``."""
    integers, *loops = _CODES[dtype]
    quick = sort_function(integers, TABLE_SORT + QUICK)
    codes = native_addresses(*loops)
    return integers.itemsize, quick, *codes, quick, 0


def merge_words(dtype: str) -> tuple[int, ...]:
    """The words of ``merge``."""
    kind = BY_SHORT_NAME[dtype]
    decode = _CODES[dtype][2] if dtype in _CODES else sorting_loops.unpack
    merge, unpack = native_addresses(_MERGES[kind.itemsize], decode)
    return merge, int(kind.kind != "u"), kind.itemsize, unpack


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
    """All chunks, by NumPy."""
    shape = (items // int(given["chunks"]), int(given["n"]))
    infinity = int(given["infinity"])
    x, out = (given[name].array(shape) for name in ("x", "sorted"))
    for part in _ranges(given):
        values = np.sort(values_of(x[:, part], infinity), axis=-1)
        if infinity in _HALVES:
            values = values.astype(_HALVES[infinity]).view(np.uint16)
        out[:, part] = values


def argsort_unjitted(given: Mapping[str, Any], items: int) -> None:
    """All chunks, by NumPy; elements and positions are packed if there are several."""
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
    """All pairs of runs, by NumPy."""
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
