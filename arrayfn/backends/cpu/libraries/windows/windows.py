"""Products of windows: some are copied to scratch memory, then multiplied by BLAS.

The windows are the rows of the result, its columns, or what is summed over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from arrayfn.backends.cpu.libraries.gemm import (
    Multiplier,
    Product,
    multiply,
    words,
)
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.cpu.libraries.windows.window_loops import (
    Windows,
    copy_windows,
    memcpy,
)
from arrayfn.backends.native import cast, local, native, size_of
from arrayfn.backends.native.structures import Inline, Struct

# The arguments of the three products are those of ``lowering.libraries.windows``.


class ByRows(Struct):
    """Windows are the rows of the result: an item has ``tile`` of them."""

    blas: Inline[Multiplier]
    x: int
    b: int
    c: int
    windows: int  # scratch memory, for the copy
    m: int
    n: int
    k: int
    ldb: int
    ldc: int
    transpose_b: int
    tile: int
    dimensions: Inline[Windows]


class BySums(Struct):
    """Windows are summed over: an item has a part of them, and a piece of its rows.

    A piece is some indices of the columns' dimension that is ``cut``, of ``inner``
    columns each.
    """

    blas: Inline[Multiplier]
    x: int
    b: int
    c: int
    windows: int
    m: int
    n: int
    k: int
    ldb: int
    transpose_b: int
    tile: int
    part: int
    piece: int
    pieces: int
    cut: int
    inner: int
    dimensions: Inline[Windows]


class ByColumns(Struct):
    """Windows are the columns of the result: an item has ``tile`` indices of an axis.

    It is the columns' dimension that is ``cut``, of ``inner`` columns each.
    """

    blas: Inline[Multiplier]
    a: int
    x: int
    c: int
    windows: int
    m: int
    n: int
    k: int
    lda: int
    transpose_a: int
    batch_stride_a: int
    tile: int
    tiles: int
    cut: int
    inner: int
    dimensions: Inline[Windows]


@native
def windows_run(given: ByRows, begin: int, end: int) -> None:
    """Compute the rows of items ``begin`` to ``end``."""
    size = given.blas.item_bytes
    p = local(Product, 1)[0]
    p.blas = given.blas
    p.a = given.windows
    p.b = given.b
    p.n = given.n
    p.k = given.k
    p.lda = given.k
    p.ldb = given.ldb
    p.ldc = given.ldc
    p.transpose_a = 0
    p.transpose_b = given.transpose_b
    for item in range(begin, end):
        first = item * given.tile
        last = min(first + given.tile, given.m)
        copy_windows(given.x, given.windows, first, last, given.dimensions, size)
        p.c = given.c + first * given.ldc * size
        p.m = last - first
        multiply(p, 0.0)


@native
def window_sums_run(given: BySums, begin: int, end: int) -> None:
    """Compute the sums of items ``begin`` to ``end``, tile by tile."""
    size = given.blas.item_bytes
    step = 1 if given.transpose_b else given.ldb
    p = local(Product, 1)[0]
    p.blas = given.blas
    p.a = given.windows
    p.n = given.n
    p.ldb = given.ldb
    p.ldc = given.n
    p.transpose_a = 1
    p.transpose_b = given.transpose_b
    own = local(Windows, 1)[0]
    memcpy(cast(int, own), cast(int, given.dimensions), size_of(Windows))
    whole = given.dimensions.columns[given.cut]
    for item in range(begin, end):
        part = item // given.pieces
        start = item % given.pieces * given.piece
        count = min(whole.extent - start, given.piece)
        own.columns[given.cut].extent = count
        p.m = count * given.inner
        p.lda = p.m
        p.c = given.c + (part * given.m + start * given.inner) * given.n * size
        x = given.x + start * whole.step * size
        first = part * given.part
        stop = min(first + given.part, given.k)
        onto = 0.0
        while first < stop:
            last = min(first + given.tile, stop)
            copy_windows(x, given.windows, first, last, own, size)
            p.k = last - first
            p.b = given.b + first * step * size
            multiply(p, onto)
            onto = 1.0
            first = last


@native
def windows_right_run(given: ByColumns, begin: int, end: int) -> None:
    """Compute the columns of items ``begin`` to ``end``."""
    size = given.blas.item_bytes
    p = local(Product, 1)[0]
    p.blas = given.blas
    p.b = given.windows
    p.m = given.m
    p.k = given.k
    p.lda = given.lda
    p.ldc = given.n
    p.transpose_a = given.transpose_a
    p.transpose_b = 0
    own = local(Windows, 1)[0]
    memcpy(cast(int, own), cast(int, given.dimensions), size_of(Windows))
    whole = given.dimensions.columns[given.cut]
    for item in range(begin, end):
        problem = item // given.tiles
        first = item % given.tiles * given.tile
        count = min(whole.extent - first, given.tile)
        own.columns[given.cut].extent = count
        offset = problem * given.dimensions.problem.step + first * whole.step
        copy_windows(given.x + offset * size, given.windows, 0, given.k, own, size)
        p.n = count * given.inner
        p.ldb = p.n
        p.a = given.a + problem * given.batch_stride_a * size
        p.c = given.c + (problem * given.m * given.n + first * given.inner) * size
        multiply(p, 0.0)


def _windows(given: Mapping[str, Any]) -> Any:
    """All windows, as a batch of matrices."""
    names = [("problem", 0), *(("row", d) for d in range(4))]
    names += [("column", d) for d in range(4)]
    extents = [int(given[f"{name}s_{d}"]) for name, d in names]
    strides = [int(given[f"{name}_step_{d}"]) for name, d in names]
    windows = given["x"].array(extents, strides)
    return windows.reshape(extents[0], math.prod(extents[1:5]), math.prod(extents[5:]))


def _right(given: Mapping[str, Any]) -> Any:
    n, k, transposed = (int(given[name]) for name in ("n", "k", "transpose_b"))
    shape = (n, k) if transposed else (k, n)
    right = given["b"].array(shape, (int(given["ldb"]), 1))
    if transposed == 2:
        right = np.conj(right)
    return right.T if transposed else right


def unjitted(given: Mapping[str, Any], items: int) -> None:
    """Compute the whole product, by NumPy."""
    shape = (int(given["m"]), int(given["n"]))
    out = given["c"].array(shape, (int(given["ldc"]), 1))
    out[...] = _windows(given)[0] @ _right(given)


def sums_unjitted(given: Mapping[str, Any], items: int) -> None:
    """Compute all parts, by NumPy."""
    m, n, part = (int(given[name]) for name in ("m", "n", "part"))
    windows, right = _windows(given)[0], _right(given)
    parts = items // int(given["pieces"])
    out = given["c"].array((parts, m, n))
    for item in range(parts):
        rows = slice(item * part, (item + 1) * part)
        out[item] = windows[rows].T @ right[rows]


def right_unjitted(given: Mapping[str, Any], items: int) -> None:
    """Compute the whole product, by NumPy."""
    m, n, k, step = (int(given[name]) for name in ("m", "n", "k", "lda"))
    batch, between = int(given["problems_0"]), int(given["batch_stride_a"])
    transposed = int(given["transpose_a"])
    shape = (batch, k, m) if transposed else (batch, m, k)
    left = given["a"].array(shape, (between, step, 1))
    if transposed == 2:
        left = np.conj(left)
    left = np.swapaxes(left, 1, 2) if transposed else left
    given["c"].array((batch, m, n))[...] = left @ _windows(given)


PROVIDERS: Final = {
    "windows_right": Provider(windows_right_run, words, right_unjitted, uses_blas=True),
    "windows": Provider(windows_run, words, unjitted, uses_blas=True),
    "window_sums": Provider(window_sums_run, words, sums_unjitted, uses_blas=True),
}
