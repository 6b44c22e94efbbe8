"""Products of windows: some are copied to scratch memory, then multiplied.

The windows are the rows of the result, its columns, or what is summed over. They are
multiplied by BLAS, or by micro-kernels, which pack operands before the windows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from arrayfn.backends.cpu.libraries.foreign import Array, Constant, Real, Rest
from arrayfn.backends.cpu.libraries.gemm import leading_arguments, multiply
from arrayfn.backends.cpu.libraries.linear_algebra.matrices import copy
from arrayfn.backends.cpu.libraries.packed_gemm import (
    lanes_of,
    multiply_packed,
    packed_elements,
)
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.lowering.scalars import min_i64

# ``dimensions`` are pairs of an extent and a stride in elements: the problems', four of
# the windows' rows, and four of their columns, outermost first.
PROBLEM_STEP: Final = 1
ROWS: Final = 2  # index in ``dimensions`` of the rows' first pair
COLUMNS: Final = 10  # index of the columns' first pair


def windows(
    gemm: int,
    gemv: int,
    one: Array[Real],
    zero: Array[Real],
    parts: Constant,
    lanes: Constant,
    x: Array[Real],
    b: Array[Real],
    c: Array[Real],
    windows: Array[Real],
    m: int,
    n: int,
    k: int,
    ldb: int,
    ldc: int,
    transpose_b: int,
    tile: int,
    dimensions: Rest,
    begin: int,
    end: int,
) -> None:
    """Compute ``c = w b`` for a matrix w whose rows are windows of ``x``.

    ``gemm`` and ``gemv`` are BLAS's functions. w is m x k; an item is ``tile`` of its m
    rows, which are copied to ``windows`` as ``dimensions`` says. ``b`` is k x n. Rows
    of ``b`` and ``c`` are ``ldb`` and ``ldc`` elements apart; ``transpose_b`` is as in
    ``gemm.option``. An element is ``parts`` numbers, 2 if complex. Micro-kernels are
    used if their vectors' ``lanes`` are not 0. Items ``begin`` to ``end`` are computed.
    """
    own = windows + packed_elements(lanes, n)
    for item in range(begin, end):
        first = item * tile
        last = min_i64(first + tile, m)
        # All indices of the columns' last dimension (3), whose extent is number 16.
        copy_windows(x, own, first, last, dimensions, 3, dimensions[16], parts)
        target = c + first * ldc * parts
        multiply_by(
            lanes, windows, gemm, one, zero, own, b, target, last - first, n, k, k, ldb,
            ldc, 0, transpose_b, 0,
        )  # fmt: skip


def window_sums(
    gemm: int,
    gemv: int,
    one: Array[Real],
    zero: Array[Real],
    parts: Constant,
    lanes: Constant,
    x: Array[Real],
    b: Array[Real],
    c: Array[Real],
    windows: Array[Real],
    m: int,
    n: int,
    k: int,
    ldb: int,
    transpose_b: int,
    tile: int,
    part: int,
    piece: int,
    pieces: int,
    cut: int,
    inner: int,
    dimensions: Rest,
    begin: int,
    end: int,
) -> None:
    """``c = w.T b`` for a matrix w of windows of ``x``: windows are summed over.

    An item has a ``part`` of the windows, and one of ``pieces`` of the result's m rows:
    a piece is some indices of the columns' dimension that is ``cut``, of ``inner``
    columns each. Tiles (``tile`` windows) of the part are added in order. The other
    parameters are those of ``windows``: ``gemm``, ``gemv``, n, k, ``ldb``,
    ``transpose_b``, ``lanes``, ``begin``, ``end``.
    """
    own = windows + packed_elements(lanes, n)
    step = 1 if transpose_b != 0 else ldb
    extent, stride = dimensions[COLUMNS + 2 * cut], dimensions[COLUMNS + 2 * cut + 1]
    for item in range(begin, end):
        number = item // pieces
        start = item % pieces * piece
        count = min_i64(extent - start, piece)
        own_m = count * inner
        target = c + (number * m + start * inner) * n * parts
        source = x + start * stride * parts
        first = number * part
        stop = min_i64(first + part, k)
        beta = zero
        while first < stop:
            last = min_i64(first + tile, stop)
            copy_windows(source, own, first, last, dimensions, cut, count, parts)
            multiply_by(
                lanes, windows, gemm, one, beta, own, b + first * step * parts, target,
                own_m, n, last - first, own_m, ldb, n, 1, transpose_b,
                first - number * part,
            )  # fmt: skip
            beta = one
            first = last


def windows_right(
    gemm: int,
    gemv: int,
    one: Array[Real],
    zero: Array[Real],
    parts: Constant,
    lanes: Constant,
    a: Array[Real],
    x: Array[Real],
    c: Array[Real],
    windows: Array[Real],
    m: int,
    n: int,
    k: int,
    lda: int,
    transpose_a: int,
    batch_stride_a: int,
    tile: int,
    tiles: int,
    cut: int,
    inner: int,
    dimensions: Rest,
    begin: int,
    end: int,
) -> None:
    """``c = a w.T`` for a matrix w of windows of ``x``, which are the result's columns.

    An item has ``tile`` indices of the columns' dimension that is ``cut``, of ``inner``
    columns each; a problem of the batch has ``tiles`` items. Rows of ``a`` are ``lda``
    elements apart, its matrices ``batch_stride_a``; ``transpose_a`` is as in
    ``gemm.option``. The other parameters are those of ``windows``: ``gemm``, ``gemv``,
    m, n, k, ``lanes``, ``begin``, ``end``.
    """
    own = windows + packed_elements(lanes, tile * inner)
    extent, stride = dimensions[COLUMNS + 2 * cut], dimensions[COLUMNS + 2 * cut + 1]
    for item in range(begin, end):
        problem = item // tiles
        first = item % tiles * tile
        count = min_i64(extent - first, tile)
        source = x + (problem * dimensions[PROBLEM_STEP] + first * stride) * parts
        copy_windows(source, own, 0, k, dimensions, cut, count, parts)
        own_n = count * inner
        multiply_by(
            lanes, windows, gemm, one, zero, a + problem * batch_stride_a * parts, own,
            c + (problem * m * n + first * inner) * parts, m, own_n, k, lda, own_n, n,
            transpose_a, 0, 0,
        )  # fmt: skip


def multiply_by(
    lanes: int,
    packed: Array[Any],
    gemm: int,
    one: Array[Any],
    beta: Array[Any],
    a: Array[Any],
    b: Array[Any],
    c: Array[Any],
    m: int,
    n: int,
    k: int,
    lda: int,
    ldb: int,
    ldc: int,
    transpose_a: int,
    transpose_b: int,
    is_added: int,
) -> None:
    """Compute ``c = a b + beta c`` by micro-kernels, or by BLAS if ``lanes`` is 0.

    Micro-kernels pack operands in ``packed`` and add ``c`` unless ``is_added`` is 0.
    The other parameters are those of ``gemm.multiply``.
    """
    if lanes != 0:
        multiply_packed(
            lanes, a, b, c, packed, m, n, k, lda, ldb, ldc, transpose_a, transpose_b,
            is_added,
        )  # fmt: skip
    else:
        multiply(
            gemm, one, beta, a, b, c, m, n, k, lda, ldb, ldc, transpose_a, transpose_b
        )


def copy_windows(
    x: Array[Any],
    target: Array[Any],
    first: int,
    last: int,
    dimensions: Array[int],
    cut: int,
    count: int,
    parts: int,
) -> None:
    """Copy rows ``first`` to ``last`` of a matrix of windows to ``target``.

    ``dimensions`` has the extents and strides of its rows and columns in ``x``. The
    columns' dimension that is ``cut`` has ``count`` indices. An element is ``parts``
    numbers, 2 if complex.
    """
    # Read once: as far as the compiler knows, what is written may be these.
    n1, r1 = dimensions[ROWS + 2], dimensions[ROWS + 3] * parts
    n2, r2 = dimensions[ROWS + 4], dimensions[ROWS + 5] * parts
    n3, r3 = dimensions[ROWS + 6], dimensions[ROWS + 7] * parts
    r0 = dimensions[ROWS + 1] * parts
    e0 = count if cut == 0 else dimensions[COLUMNS]
    e1 = count if cut == 1 else dimensions[COLUMNS + 2]
    e2 = count if cut == 2 else dimensions[COLUMNS + 4]
    run = count if cut == 3 else dimensions[COLUMNS + 6]
    s0, s1 = dimensions[COLUMNS + 1] * parts, dimensions[COLUMNS + 3] * parts
    s2, step = dimensions[COLUMNS + 5] * parts, dimensions[COLUMNS + 7]
    i3 = first % n3
    i2 = first // n3 % n2
    i1 = first // (n3 * n2) % n1
    at = i3 * r3 + i2 * r2 + i1 * r1 + first // (n3 * n2 * n1) * r0
    output = 0
    for _ in range(first, last):
        for c0 in range(e0):
            for c1 in range(e1):
                for c2 in range(e2):
                    source = x + (at + c0 * s0 + c1 * s1 + c2 * s2)
                    if step == 1:
                        copy(target + output, source, run * parts)
                    else:
                        for k in range(run):
                            own = target + output + k * parts
                            copy(own, source + k * step * parts, parts)
                    output += run * parts
        i3 += 1
        at += r3
        if i3 == n3:
            i3 = 0
            i2 += 1
            at += r2 - n3 * r3
            if i2 == n2:
                i2 = 0
                i1 += 1
                at += r1 - n2 * r2
                if i1 == n1:
                    i1 = 0
                    at += r0 - n1 * r1


def _windows(arguments: Mapping[str, Any]) -> Any:
    """All windows as a batch of matrices; ``arguments`` are by name."""
    names = [("problem", 0), *(("row", d) for d in range(4))]
    names += [("column", d) for d in range(4)]
    extents = [int(arguments[f"{name}s_{d}"]) for name, d in names]
    strides = [int(arguments[f"{name}_step_{d}"]) for name, d in names]
    windows = arguments["x"].array(extents, strides)
    return windows.reshape(extents[0], math.prod(extents[1:5]), math.prod(extents[5:]))


def _right(arguments: Mapping[str, Any]) -> Any:
    """The right factor b of a product; ``arguments`` are by name."""
    n, k, transposed = (int(arguments[name]) for name in ("n", "k", "transpose_b"))
    shape = (n, k) if transposed else (k, n)
    right = arguments["b"].array(shape, (int(arguments["ldb"]), 1))
    if transposed == 2:
        right = np.conj(right)
    return right.T if transposed else right


def unjitted(arguments: Mapping[str, Any], items: int) -> None:
    """Compute the whole product by NumPy."""
    shape = (int(arguments["m"]), int(arguments["n"]))
    out = arguments["c"].array(shape, (int(arguments["ldc"]), 1))
    out[...] = _windows(arguments)[0] @ _right(arguments)


def sums_unjitted(arguments: Mapping[str, Any], items: int) -> None:
    """Compute all parts of the sums over windows by NumPy."""
    m, n, part = (int(arguments[name]) for name in ("m", "n", "part"))
    windows, right = _windows(arguments)[0], _right(arguments)
    parts = items // int(arguments["pieces"])
    out = arguments["c"].array((parts, m, n))
    for item in range(parts):
        rows = slice(item * part, (item + 1) * part)
        out[item] = windows[rows].T @ right[rows]


def right_unjitted(arguments: Mapping[str, Any], items: int) -> None:
    """Compute the whole product by NumPy."""
    m, n, k, step = (int(arguments[name]) for name in ("m", "n", "k", "lda"))
    batch, between = int(arguments["problems_0"]), int(arguments["batch_stride_a"])
    transposed = int(arguments["transpose_a"])
    shape = (batch, k, m) if transposed else (batch, m, k)
    left = arguments["a"].array(shape, (between, step, 1))
    if transposed == 2:
        left = np.conj(left)
    left = np.swapaxes(left, 1, 2) if transposed else left
    arguments["c"].array((batch, m, n))[...] = left @ _windows(arguments)


def with_blas(dtype: str) -> tuple[int, ...]:
    """The first arguments of products of ``dtype`` by BLAS."""
    return *leading_arguments(dtype), 0


def with_micro_kernels(dtype: str) -> tuple[int, ...]:
    """The first arguments of products of ``dtype`` by micro-kernels."""
    return *leading_arguments(dtype), lanes_of(dtype)


PROVIDERS: Final = {
    f"{name}{suffix}": Provider(kernel, arguments, unjitted_kernel, uses_blas=True)
    for name, kernel, unjitted_kernel in (
        ("windows_right", windows_right, right_unjitted),
        ("windows", windows, unjitted),
        ("window_sums", window_sums, sums_unjitted),
    )
    for suffix, arguments in (("", with_blas), ("_packed", with_micro_kernels))
}
