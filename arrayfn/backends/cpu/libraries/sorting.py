"""Providers of sorts: NumPy's functions by address, and un-jitted ones by NumPy.

NumPy's sorts are those of ``PyArray_ArrFuncs``, a table for each dtype. Those of 32 and
64 bits are the vectorised quicksorts behind ``np.sort``, those of 8 and 16 bits radix
sorts. ``sort_kernels`` has the kernels that call them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.cpu.libraries.sort_kernels import (
    argsort,
    argsort_complex,
    argsort_packed,
    merge,
    sort,
    sort_codes,
    top_k,
    top_k_wide,
)
from arrayfn.backends.native.python_objects import numpy_api
from arrayfn.dtypes import BY_SHORT_NAME, DType

API_GET_FUNCTIONS: Final = 365  # a position in NumPy's table of C functions
SORT: Final = 33  # positions in a dtype's table: quick, heap, stable
ARGSORT: Final = 36
QUICK: Final = 0
STABLE: Final = 2


@cache
def numpy_sort(dtype: DType, position: int) -> int:
    """Return the address of a function in NumPy's PyArray_ArrFuncs table of ``dtype``.

    ``position`` is the function's number in the table, such as ``SORT + QUICK``.
    """
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(
        numpy_api(API_GET_FUNCTIONS)
    )
    table = (ctypes.c_int64 * (position + 1)).from_address(get(dtype))
    return table[position]


def _sorts(kind: DType) -> tuple[int, int]:
    """Return the addresses of NumPy's sorts for many elements and for few elements.

    They differ for dtypes of 8 and 16 bits: NumPy's stable sort is then a radix sort,
    which is faster only for many elements.
    """
    quick = numpy_sort(kind, SORT + QUICK)
    many = numpy_sort(kind, SORT + STABLE) if kind.itemsize <= 2 else quick
    return many, quick


def _masks(dtype: str) -> tuple[int, int, int]:
    """Return the bit patterns ``sign``, ``magnitude`` and ``infinity`` of a dtype.

    ``sort_kernels`` defines them. ``sign`` is not 0 for unsigned integers of 32 and 64
    bits; the other two are not 0 for floats.
    """
    kind = BY_SHORT_NAME[dtype]
    top = 1 << (8 * kind.itemsize - 1)
    if kind in dtypes.FLOATS:
        return 0, top - 1, _bits(np.inf, dtype)
    if kind.kind != "u" or kind.itemsize < 4:
        return 0, 0, 0
    # The top bit of 64 bits is a negative int64.
    return top - (1 << 64) if kind.itemsize == 8 else top, 0, 0


def _bits(number: float, dtype: str) -> int:
    """Return the bits of ``number`` as a float ``dtype``, as a signed integer."""
    kind = BY_SHORT_NAME[dtype]
    return int(np.array(number, kind).view(f"i{kind.itemsize}"))


def sort_arguments(dtype: str) -> tuple[int, ...]:
    """Return the first arguments of ``sort``: two sorts, and integers per element."""
    kind = BY_SHORT_NAME[dtype]
    return *_sorts(kind), max(1, kind.itemsize // 8)


def sort_codes_arguments(dtype: str) -> tuple[int, ...]:
    """Return the first arguments of ``sort_codes`` for the float ``dtype``.

    They are function, short_function, magnitude, infinity, nan and flip.
    """
    integers = np.dtype(f"i{BY_SHORT_NAME[dtype].itemsize}")
    flip = 0
    if integers.itemsize == 2:
        # NumPy sorts unsigned integers of 16 bits faster. Inverting the sign bit makes
        # signed codes sort as unsigned.
        integers, flip = dtypes.uint16, -(1 << 15)
    _, magnitude, infinity = _masks(dtype)
    return *_sorts(integers), magnitude, infinity, _bits(np.nan, dtype), flip


def packed_arguments(dtype: str) -> tuple[int, ...]:
    """Return the first arguments of ``argsort_packed`` and ``top_k``.

    They are the address of NumPy's sort of int64, and the sign, magnitude and infinity
    of ``_masks``.
    """
    return numpy_sort(dtypes.int64, SORT + QUICK), *_masks(dtype)


def keys_arguments(dtype: str) -> tuple[int, ...]:
    """Return the first arguments of ``argsort`` and ``top_k_wide``.

    They are the address of NumPy's argsort of int64, followed by the four
    ``packed_arguments``: the address of its sort of int64, sign, magnitude, infinity.
    """
    return numpy_sort(dtypes.int64, ARGSORT + QUICK), *packed_arguments(dtype)


def merge_arguments(dtype: str) -> tuple[int, ...]:
    """Return the first arguments of ``merge`` for ``dtype``: sign and magnitude.

    Only uint64, whose sign bit is a negative number, needs ``sign``: narrower unsigned
    integers order as int64.
    """
    sign, magnitude, _ = _masks(dtype)
    return min(sign, 0), magnitude


def complex_arguments(dtype: str) -> tuple[int, ...]:
    """Return the first arguments of ``argsort_complex``.

    They are NumPy's stable argsort of ``dtype``, and the integers of 64 bits in an
    element.
    """
    kind = BY_SHORT_NAME[dtype]
    return numpy_sort(kind, ARGSORT + STABLE), kind.itemsize // 8


# Without a compiler.


def values_of(x: Any, dtype: DType) -> Any:
    """Return the elements of ``x``; float16 and bfloat16, given as bits, as float32."""
    return x.view(dtype).astype(np.float32) if dtype in dtypes.HALF_PRECISION else x


def _ranges(arguments: Mapping[str, Any]) -> list[slice]:
    """Return the slice of a row for each of its chunks."""
    chunk, chunks = int(arguments["chunk"]), int(arguments["chunks"])
    return [slice(k * chunk, (k + 1) * chunk) for k in range(chunks)]


def sort_unjitted(arguments: Mapping[str, Any], items: int) -> None:
    """Sort each chunk of each row by NumPy; ``arguments`` are by name."""
    shape = (items // int(arguments["chunks"]), int(arguments["n"]))
    dtype = BY_SHORT_NAME[arguments["dtype"]]
    x, out = (arguments[name].array(shape) for name in ("x", "sorted"))
    for part in _ranges(arguments):
        values = np.sort(values_of(x[:, part], dtype), axis=-1)
        if dtype in dtypes.HALF_PRECISION:
            values = values.astype(dtype).view(np.uint16)
        out[:, part] = values


def argsort_unjitted(arguments: Mapping[str, Any], items: int) -> None:
    """Argsort each chunk of each row by NumPy; ``arguments`` are by name.

    A row of several chunks gets words for ``merge``, as from ``argsort_packed``: the
    element's rank in the row in the high 32 bits, its position in the low ones.
    """
    chunks = int(arguments.get("chunks", 1))
    shape = (items // chunks, int(arguments["n"]))
    x = values_of(arguments["x"].array(shape), BY_SHORT_NAME[arguments["dtype"]])
    out = arguments["sorted"].array(shape)
    if chunks == 1:
        out[...] = np.argsort(x, axis=-1, kind="stable")
        return
    for row, target in zip(x, out, strict=True):
        # Equal elements have equal ranks.
        _, ranks = np.unique(row, return_inverse=True)
        packed = (ranks.astype(np.int64) << 32) | np.arange(len(row))
        for part in _ranges(arguments):
            target[part] = np.sort(packed[part])


def merge_unjitted(arguments: Mapping[str, Any], items: int) -> None:
    """Merge all pairs of runs by sorting both with NumPy; ``arguments`` are by name."""
    n, run, pairs = (int(arguments[name]) for name in ("n", "run", "pairs"))
    rows = items // (pairs * int(arguments["parts"]))
    runs, out = (arguments[name].array((rows, n)) for name in ("runs", "merged"))
    for pair in range(pairs):
        part = slice(2 * pair * run, 2 * (pair + 1) * run)
        out[:, part] = np.sort(runs[:, part], axis=-1)
    if int(arguments["unpack"]) and out.dtype == np.int64:
        out &= 0xFFFFFFFF  # the position; the upper half is the rank that was sorted by


def top_k_unjitted(arguments: Mapping[str, Any], items: int) -> None:
    """Select the k largest of each row by NumPy; ``arguments`` are by name.

    Among equal elements the first ones are taken.
    """
    n, k = int(arguments["n"]), int(arguments["k"])
    x = arguments["x"].array((items, n))
    # A stable ascending argsort of the reversed row, read backwards, is descending and
    # has equal elements in their order in the row.
    values = values_of(x, BY_SHORT_NAME[arguments["dtype"]])[:, ::-1]
    order = n - 1 - np.argsort(values, axis=-1, kind="stable")[:, ::-1][:, :k]
    arguments["indices"].array((items, k))[...] = order
    arguments["values"].array((items, k))[...] = np.take_along_axis(x, order, -1)


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
