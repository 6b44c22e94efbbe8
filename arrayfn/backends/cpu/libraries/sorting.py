"""Sorts, orders and merges of rows, and their first few elements.

NumPy's own sorts are called by address: those of ``PyArray_ArrFuncs``, a table for each
dtype. They take an address and a count, and touch no Python object. Those of 32 and 64
bits are the vectorised quicksorts behind ``np.sort``, those of 8 and 16 bits radix
sorts.

Elements come as the integers that hold their bits (``Array[Bits]``). A float's *code*
is a signed integer of its size, and its *key* one of 64 bits. Both order as floats do,
with all NaNs last; keys of 0.0 and -0.0 are equal. ``sign`` is the sign bit
to exchange of an unsigned integer, and ``magnitude`` the mask of all bits of a float
but its sign, ``infinity`` its infinity. Each is 0 for other dtypes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.backends.cpu.libraries.foreign import (
    Array,
    Bits,
    Constant,
    c_function,
    i32,
)
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import copy
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.native.python_objects import numpy_api
from arrayfn.dtypes import BY_SHORT_NAME, DType
from arrayfn.lowering.scalars import max_i64, min_i64

SHORT: Final = 256  # elements that a radix sort is too slow for
POSITION: Final = 0xFFFFFFFF  # of a packed element; its key is in the other bits
KEY: Final = ~POSITION
LARGEST: Final = (1 << 63) - 1


def sort(
    function: int,
    short_function: int,
    size: Constant,
    x: Array[Bits],
    sorted: Array[Bits],
    n: int,
    chunk: int,
    chunks: int,
    begin: int,
    end: int,
) -> None:
    """Sort chunks: each is copied, then sorted in place.

    ``function`` is the address of NumPy's sort of the dtype, ``short_function`` of the
    one for short chunks. An element has ``size`` integers (``Bits``): 2 for complex128,
    else 1. A row of ``n`` elements has ``chunks`` of ``chunk`` elements. Items
    ``begin`` to ``end`` are computed.
    """
    for item in range(begin, end):
        first = item % chunks * chunk
        count = min_i64(n - first, chunk)
        offset = (item // chunks * n + first) * size
        if count > 0:
            copy(sorted + offset, x + offset, count * size)
            used = short_function if count < SHORT else function
            c_function(used, sorted + offset, count, 0)


def sort_codes(
    function: int,
    short_function: int,
    magnitude: Constant,
    infinity: Constant,
    nan: Constant,
    flip: Constant,
    x: Array[Bits],
    sorted: Array[Bits],
    n: int,
    chunk: int,
    chunks: int,
    begin: int,
    end: int,
) -> None:
    """Sort chunks of floats by their codes; several of a row stay codes.

    The parameters are those of ``sort``; ``magnitude``, ``infinity`` and ``nan`` are
    bit patterns of the dtype, and codes are stored with the bits of ``flip`` inverted.
    Items ``begin`` to ``end`` are computed.
    """
    for item in range(begin, end):
        first = item % chunks * chunk
        count = min_i64(n - first, chunk)
        offset = item // chunks * n + first
        if count > 0:
            target = sorted + offset
            for k in range(count):
                bits = int(x[offset + k])
                code = bits ^ magnitude if bits < 0 else bits
                code = nan if (bits & magnitude) > infinity else code
                target[k] = code ^ flip
            used = short_function if count < SHORT else function
            c_function(used, target, count, 0)
            if chunks == 1:
                decode(target, count, magnitude, flip)


def decode(codes: Array[Any], count: int, magnitude: int, flip: int) -> None:
    """Replace ``count`` codes by floats; every NaN is the same one.

    ``magnitude`` and ``flip`` are those of ``sort_codes``.
    """
    for k in range(count):
        code = int(codes[k]) ^ flip
        codes[k] = code ^ magnitude if code < 0 else code


def key_of(bits: int, sign: int, magnitude: int, infinity: int) -> int:
    """The key of an element with these ``bits``: keys order as elements do.

    ``sign``, ``magnitude`` and ``infinity`` are bit patterns of the dtype (``_masks``).
    """
    if magnitude == 0:
        return bits ^ sign
    absolute = bits & magnitude
    if absolute > infinity:
        return magnitude
    return absolute if bits == absolute else -absolute


def pack(
    x: Array[Any],
    packed: Array[int],
    count: int,
    first: int,
    sign: int,
    magnitude: int,
    infinity: int,
) -> None:
    """Set each of ``packed`` to an element's key and, in the low 32 bits, its position.

    ``x`` are the bits of ``count`` elements of up to 32 bits, at positions from
    ``first`` on. ``sign``, ``magnitude`` and ``infinity`` are those of ``key_of``.
    """
    for k in range(count):
        key = key_of(int(x[k]), sign, magnitude, infinity)
        packed[k] = (key << 32) | (first + k)


def argsort_packed(
    sort_function: int,
    sign: Constant,
    magnitude: Constant,
    infinity: Constant,
    x: Array[Bits],
    sorted: Array[int],
    n: int,
    chunk: int,
    chunks: int,
    begin: int,
    end: int,
) -> None:
    """Argsort chunks, packed with their positions; several of a row stay packed.

    ``sort_function`` is the address of NumPy's sort of int64. A row of ``n`` elements
    has ``chunks`` of ``chunk`` elements. Items ``begin`` to ``end`` are computed.
    """
    for item in range(begin, end):
        first = item % chunks * chunk
        count = min_i64(n - first, chunk)
        offset = item // chunks * n + first
        if count > 0:
            order = sorted + offset
            pack(x + offset, order, count, first, sign, magnitude, infinity)
            c_function(sort_function, order, count, 0)
            if chunks == 1:
                for k in range(count):
                    order[k] = order[k] & POSITION


def argsort(
    argsort_function: int,
    sort_function: int,
    sign: Constant,
    magnitude: Constant,
    infinity: Constant,
    x: Array[Bits],
    sorted: Array[int],
    keys: Array[int],
    n: int,
    begin: int,
    end: int,
) -> None:
    """Argsort rows of ``n`` elements of 64 bits by their keys.

    ``argsort_function`` and ``sort_function`` are the addresses of NumPy's for int64.
    Items ``begin`` to ``end`` are computed.
    """
    for row in range(begin, end):
        order = sorted + row * n
        for k in range(n):
            order[k] = k
            keys[k] = key_of(int(x[row * n + k]), sign, magnitude, infinity)
        c_function(argsort_function, keys, order, n, 0)
        order_ties(keys, order, n, sort_function)


def argsort_complex(
    argsort_function: int,
    size: Constant,
    x: Array[Bits],
    sorted: Array[int],
    n: int,
    begin: int,
    end: int,
) -> None:
    """Argsort rows of ``n`` complex numbers by NumPy's stable sort.

    ``argsort_function`` is its address. An element has ``size`` integers (``Bits``).
    Items ``begin`` to ``end`` are computed.
    """
    for row in range(begin, end):
        order = sorted + row * n
        for k in range(n):
            order[k] = k
        c_function(argsort_function, x + row * n * size, order, n, 0)


def order_ties(
    keys: Array[int], order: Array[int], count: int, sort_function: int
) -> None:
    """Sort the positions of equal keys: ``order`` becomes that of a stable sort.

    It has ``count`` positions. ``sort_function`` is the address of NumPy's for int64.
    """
    first = 0
    while first < count:
        key = keys[order[first]]
        last = first + 1
        while last < count and keys[order[last]] == key:
            last += 1
        if last - first > 1:
            c_function(sort_function, order + first, last - first, 0)
        first = last


def merge(
    sign: Constant,
    magnitude: Constant,
    runs: Array[Bits],
    merged: Array[Bits],
    n: int,
    run: int,
    pairs: int,
    part: int,
    parts: int,
    unpack: int,
    begin: int,
    end: int,
) -> None:
    """Merge parts of pairs of runs; with ``unpack`` write elements, not codes.

    A row of ``n`` elements has sorted runs of ``run`` elements; a part is ``part``
    elements of a merged pair. Items ``begin`` to ``end`` are computed.
    """
    for item in range(begin, end):
        first = item // parts % pairs * 2 * run
        offset = item // (parts * pairs) * n + first
        middle = min_i64(first + run, n)
        last = min_i64(middle + run, n)
        start = item % parts * part
        stop = min_i64(start + part, last - first)
        if start < stop:
            a, b = runs + offset, runs + (offset + middle - first)
            target = merged + offset
            merge_part(a, middle - first, b, last - middle, target, start, stop, sign)
            if unpack != 0:
                if magnitude == 0:
                    for k in range(start, stop):
                        target[k] = int(target[k]) & POSITION
                else:
                    decode(target + start, stop - start, magnitude, 0)


def split(
    a: Array[Any], count_a: int, b: Array[Any], count_b: int, rank: int, sign: int
) -> int:
    """The number of a's elements among the first ``rank`` merged ones.

    The runs have ``count_a`` and ``count_b`` elements, which are compared with the bits
    of ``sign`` inverted. Found by bisection (Odeh et al., Merge Path, 2012).
    """
    low = max_i64(0, rank - count_b)
    high = min_i64(rank, count_a)
    while low < high:
        middle = (low + high) >> 1
        x, y = int(a[middle]), int(b[rank - 1 - middle])
        if (x ^ sign) <= (y ^ sign):
            low = middle + 1
        else:
            high = middle
    return low


def merge_part(
    a: Array[Any],
    count_a: int,
    b: Array[Any],
    count_b: int,
    target: Array[Any],
    begin: int,
    stop: int,
    sign: int,
) -> None:
    """Write elements ``begin`` to ``stop`` of two merged runs; of equal ones a's first.

    ``count_a``, ``count_b`` and ``sign`` are those of ``split``. It merges from the
    middle on, too, at the same time: each waits for its own loads.
    """
    middle = (begin + stop) >> 1
    i = split(a, count_a, b, count_b, begin, sign)
    u = split(a, count_a, b, count_b, middle, sign)
    j, v = begin - i, middle - u
    k = 0
    steps = 1
    while steps > 0:
        steps = min_i64(middle - begin - k, stop - middle - k)
        steps = min_i64(steps, min_i64(count_a - i, count_b - j))
        steps = min_i64(steps, min_i64(count_a - u, count_b - v))
        for step in range(k, k + steps):
            x, y = int(a[i]), int(b[j])
            later = (y ^ sign) < (x ^ sign)
            target[begin + step] = y if later else x
            j += int(later)
            i += 1 - int(later)
            x, y = int(a[u]), int(b[v])
            behind = (y ^ sign) < (x ^ sign)
            target[middle + step] = y if behind else x
            v += int(behind)
            u += 1 - int(behind)
        k += steps
    merge_rest(a, count_a, b, count_b, target, i, begin + k, middle, sign)
    merge_rest(a, count_a, b, count_b, target, u, middle + k, stop, sign)


def merge_rest(
    a: Array[Any],
    count_a: int,
    b: Array[Any],
    count_b: int,
    target: Array[Any],
    i: int,
    k: int,
    stop: int,
    sign: int,
) -> None:
    """Write merged elements ``k`` to ``stop``, after ``i`` elements of a.

    ``count_a``, ``count_b`` and ``sign`` are those of ``split``.
    """
    j = k - i
    while k < stop:
        steps = min_i64(stop - k, min_i64(count_a - i, count_b - j))
        if steps == 0:
            rest = a + i if i < count_a else b + j
            copy(target + k, rest, stop - k)
            k = stop
        for step in range(k, k + steps):
            x, y = int(a[i]), int(b[j])
            later = (y ^ sign) < (x ^ sign)
            target[step] = y if later else x
            j += int(later)
            i += 1 - int(later)
        k += steps


def top_k(
    sort_function: int,
    sign: Constant,
    magnitude: Constant,
    infinity: Constant,
    x: Array[Bits],
    values: Array[Bits],
    indices: Array[i32],
    keys: Array[int],
    buffer: Array[int],
    n: int,
    k: int,
    room: int,
    begin: int,
    end: int,
) -> None:
    """Select the ``k`` largest elements of rows of ``n``, of up to 32 bits.

    ``sort_function`` is the address of NumPy's sort of int64. Candidates are collected
    in a ``buffer`` with ``room`` for them. When it is full, the ``k`` largest stay, and
    only what is larger than the smallest of these joins. Items ``begin`` to ``end`` are
    computed.
    """
    for row in range(begin, end):
        pack(x + row * n, keys, n, 0, sign, magnitude, infinity)
        have, limit = 0, LARGEST
        for position in range(n):
            value = keys[position] ^ KEY
            if value < limit:
                buffer[have] = value
                have += 1
                if have == room:
                    c_function(sort_function, buffer, have, 0)
                    have = k
                    limit = buffer[k - 1]
        c_function(sort_function, buffer, have, 0)
        for rank in range(k):
            position = buffer[rank] & POSITION
            indices[row * k + rank] = position
            values[row * k + rank] = x[row * n + position]


def top_k_wide(
    argsort_function: int,
    sort_function: int,
    sign: Constant,
    magnitude: Constant,
    infinity: Constant,
    x: Array[Bits],
    values: Array[Bits],
    indices: Array[i32],
    keys: Array[int],
    buffer: Array[int],
    n: int,
    k: int,
    room: int,
    begin: int,
    end: int,
) -> None:
    """Select the ``k`` largest elements of rows of ``n``, of 64 bits.

    Whole rows are sorted. ``argsort_function`` and ``sort_function`` are the addresses
    of NumPy's for int64; ``buffer`` has ``room`` for a row. Items ``begin`` to ``end``
    are computed.
    """
    for row in range(begin, end):
        for position in range(n):
            bits = int(x[row * n + position])
            keys[position] = ~key_of(bits, sign, magnitude, infinity)
            buffer[position] = position
        c_function(argsort_function, keys, buffer, n, 0)
        order_ties(keys, buffer, n, sort_function)
        for rank in range(k):
            position = buffer[rank]
            indices[row * k + rank] = position
            values[row * k + rank] = x[row * n + position]


API_GET_FUNCTIONS: Final = 365  # a position in NumPy's table of C functions
SORT: Final = 33  # positions in a dtype's table: quick, heap, stable
ARGSORT: Final = 36
QUICK: Final = 0
STABLE: Final = 2


@cache
def numpy_sort(dtype: DType, position: int) -> int:
    """The address of a function in a dtype's table, which is PyArray_ArrFuncs.

    ``position`` is the function's number in the table.
    """
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(
        numpy_api(API_GET_FUNCTIONS)
    )
    table = (ctypes.c_int64 * (position + 1)).from_address(get(dtype))
    return table[position]


def _sorts(kind: DType) -> tuple[int, int]:
    """The addresses of NumPy's sorts of a dtype: for many elements, and for few.

    For 8 and 16 bits the stable sort is a radix sort, which pays for many.
    """
    quick = numpy_sort(kind, SORT + QUICK)
    many = numpy_sort(kind, SORT + STABLE) if kind.itemsize <= 2 else quick
    return many, quick


def _masks(dtype: str) -> tuple[int, int, int]:
    """``sign``, ``magnitude`` and ``infinity`` of a dtype: see the module's text."""
    kind = BY_SHORT_NAME[dtype]
    top = 1 << (8 * kind.itemsize - 1)
    if kind in dtypes.FLOATS:
        return 0, top - 1, _bits(np.inf, dtype)
    if kind.kind != "u" or kind.itemsize < 4:
        return 0, 0, 0
    return top - (1 << 64) if kind.itemsize == 8 else top, 0, 0


def _bits(number: float, dtype: str) -> int:
    kind = BY_SHORT_NAME[dtype]
    return int(np.array(number, kind).view(f"i{kind.itemsize}"))


def sort_arguments(dtype: str) -> tuple[int, ...]:
    """The first arguments of ``sort`` for ``dtype``."""
    kind = BY_SHORT_NAME[dtype]
    return *_sorts(kind), max(1, kind.itemsize // 8)


def sort_codes_arguments(dtype: str) -> tuple[int, ...]:
    """The first arguments of ``sort_codes`` for ``dtype``."""
    integers = np.dtype(f"i{BY_SHORT_NAME[dtype].itemsize}")
    flip = 0
    if integers.itemsize == 2:  # NumPy's sort of unsigned ones is faster
        integers, flip = dtypes.uint16, -(1 << 15)
    return *_sorts(integers), *_masks(dtype)[1:], _bits(np.nan, dtype), flip


def packed_arguments(dtype: str) -> tuple[int, ...]:
    """The first arguments of ``argsort_packed`` and ``top_k``."""
    return numpy_sort(dtypes.int64, SORT + QUICK), *_masks(dtype)


def keys_arguments(dtype: str) -> tuple[int, ...]:
    """The first arguments of ``argsort`` and ``top_k_wide``."""
    return numpy_sort(dtypes.int64, ARGSORT + QUICK), *packed_arguments(dtype)


def merge_arguments(dtype: str) -> tuple[int, ...]:
    """The first arguments of ``merge`` for ``dtype``.

    Narrow unsigned integers need no ``sign``.
    """
    sign, magnitude, _ = _masks(dtype)
    return min(sign, 0), magnitude


def complex_arguments(dtype: str) -> tuple[int, ...]:
    """The first arguments of ``argsort_complex`` for ``dtype``."""
    kind = BY_SHORT_NAME[dtype]
    return numpy_sort(kind, ARGSORT + STABLE), kind.itemsize // 8


# Without a compiler.


def values_of(x: Any, dtype: DType) -> Any:
    """Elements as NumPy sorts them; float16 and bfloat16 come as bits."""
    return x.view(dtype).astype(np.float32) if dtype in dtypes.HALF_PRECISION else x


def _ranges(given: Mapping[str, Any]) -> list[slice]:
    chunk, chunks = int(given["chunk"]), int(given["chunks"])
    return [slice(k * chunk, (k + 1) * chunk) for k in range(chunks)]


def sort_unjitted(given: Mapping[str, Any], items: int) -> None:
    """Sort all chunks, by NumPy.

    ``given`` has the arguments by name; ``items`` is the number of chunks.
    """
    shape = (items // int(given["chunks"]), int(given["n"]))
    dtype = BY_SHORT_NAME[given["dtype"]]
    x, out = (given[name].array(shape) for name in ("x", "sorted"))
    for part in _ranges(given):
        values = np.sort(values_of(x[:, part], dtype), axis=-1)
        if dtype in dtypes.HALF_PRECISION:
            values = values.astype(dtype).view(np.uint16)
        out[:, part] = values


def argsort_unjitted(given: Mapping[str, Any], items: int) -> None:
    """Argsort all chunks, by NumPy; several are packed with their positions.

    ``given`` has the arguments by name; ``items`` is the number of chunks.
    """
    chunks = int(given.get("chunks", 1))
    shape = (items // chunks, int(given["n"]))
    x = values_of(given["x"].array(shape), BY_SHORT_NAME[given["dtype"]])
    out = given["sorted"].array(shape)
    if chunks == 1:
        out[...] = np.argsort(x, axis=-1, kind="stable")
        return
    # Ranks order as elements do.
    for row, target in zip(x, out, strict=True):
        ranks = np.unique(row, return_inverse=True)[1].astype(np.int64)
        packed = (ranks << 32) | np.arange(len(row))
        for part in _ranges(given):
            target[part] = np.sort(packed[part])


def merge_unjitted(given: Mapping[str, Any], items: int) -> None:
    """Merge all pairs of runs, by NumPy.

    ``given`` has the arguments by name; ``items`` is the number of parts.
    """
    n, run, pairs = (int(given[name]) for name in ("n", "run", "pairs"))
    rows = items // (pairs * int(given["parts"]))
    runs, out = (given[name].array((rows, n)) for name in ("runs", "merged"))
    for pair in range(pairs):
        part = slice(2 * pair * run, 2 * (pair + 1) * run)
        out[:, part] = np.sort(runs[:, part], axis=-1)
    if int(given["unpack"]) and out.dtype == np.int64:
        out &= 0xFFFFFFFF


def top_k_unjitted(given: Mapping[str, Any], items: int) -> None:
    """Select from all rows, by NumPy.

    ``given`` has the arguments by name; ``items`` is the number of rows.
    """
    n, k = int(given["n"]), int(given["k"])
    x = given["x"].array((items, n))
    # Descending is the reverse of ascending; among equal elements too, if reversed.
    values = values_of(x, BY_SHORT_NAME[given["dtype"]])[:, ::-1]
    order = n - 1 - np.argsort(values, axis=-1, kind="stable")[:, ::-1][:, :k]
    given["indices"].array((items, k))[...] = order
    given["values"].array((items, k))[...] = np.take_along_axis(x, order, -1)


PROVIDERS: Final = {
    "sort": Provider(sort, sort_arguments, sort_unjitted),
    "sort_codes": Provider(sort_codes, sort_codes_arguments, sort_unjitted),
    "argsort_packed": Provider(argsort_packed, packed_arguments, argsort_unjitted),
    "argsort": Provider(argsort, keys_arguments, argsort_unjitted),
    "argsort_complex": Provider(argsort_complex, complex_arguments, argsort_unjitted),
    "merge": Provider(merge, merge_arguments, merge_unjitted),
    "top_k": Provider(top_k, packed_arguments, top_k_unjitted),
    "top_k_wide": Provider(top_k_wide, keys_arguments, top_k_unjitted),
}
