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

# The kernels' argument ``dimensions`` has nine pairs of an extent and a stride, in
# elements of ``x``: of the problems in a batch, of four dimensions of the rows of the
# matrix of windows, and of four dimensions of its columns, outermost first.
PROBLEM_STEP: Final = 1  # index of the problems' stride
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
    """Compute ``c = w b`` for an m x k matrix w whose rows are windows of ``x``.

    A work item is ``tile`` rows of w and of ``c``; items ``begin`` to ``end`` are
    computed. The rows of w are copied to the scratch memory ``windows``, after the room
    for packed operands. ``dimensions`` says where they are in ``x``: it has nine pairs
    of an extent and a stride, one of the batch, four of the rows of w, and four of its
    columns, outermost first.

    ``b`` is k x n. Rows of ``b`` and ``c`` are ``ldb`` and ``ldc`` elements apart;
    ``transpose_b`` is as in ``gemm.option``. An element is ``parts`` numbers, 2 if
    complex. Micro-kernels, whose vectors have ``lanes`` elements, multiply; if
    ``lanes`` is 0, BLAS does. ``gemm`` and ``gemv`` are BLAS's functions, ``one`` and
    ``zero`` point to numbers.
    """
    own = windows + packed_elements(lanes, n)
    for item in range(begin, end):
        first = item * tile
        last = min_i64(first + tile, m)
        # All columns: "cut" the last dimension (3) to its full extent, which is
        # ``dimensions[COLUMNS + 6]``.
        copy_windows(x, own, first, last, dimensions, 3, dimensions[16], parts)
        target = c + first * ldc * parts
        # The zeros: w is not transposed, and its product is not added to ``target``.
        multiply_by(
            lanes, windows, gemm, one, zero, own, b, target, last - first, n, k, k, ldb,
            ldc, 0, transpose_b, 0,  # a is not transposed; c is overwritten
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
    """Compute ``c = w.T b`` for a k x m matrix w whose rows are windows of ``x``.

    The sums over the k windows are split in parts of ``part`` windows, and each part
    has its own m x n matrix in ``c``. The m rows of these are split in ``pieces``: a
    piece has ``piece`` indices of that dimension of the windows' columns whose number
    is ``cut``, with ``inner`` columns for each index. A work item is one piece of one
    part. It copies ``tile`` windows at a time and adds their products in order.

    The other parameters are those of ``windows``.
    """
    own = windows + packed_elements(lanes, n)
    step = 1 if transpose_b != 0 else ldb
    extent, stride = dimensions[COLUMNS + 2 * cut], dimensions[COLUMNS + 2 * cut + 1]
    for item in range(begin, end):
        # The number of the part, and the piece's first index of the cut dimension.
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
            # The first tile overwrites the result (``beta`` and the last argument are
            # 0), later ones are added to it. w is transposed (1).
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
    """Compute ``c = a w`` for a k x n matrix w of elements of ``x``, for each problem.

    A column of w is a window. A problem of the batch has ``tiles`` work items, one for
    each ``tile`` indices of that dimension of w's columns whose number is ``cut``; each
    index has ``inner`` columns. Items ``begin`` to ``end`` are computed.

    ``a`` is m x k. Its rows are ``lda`` elements apart, the matrices of the problems
    ``batch_stride_a``; ``transpose_a`` is as in ``gemm.option``. The other parameters
    are those of ``windows``.
    """
    own = windows + packed_elements(lanes, tile * inner)
    extent, stride = dimensions[COLUMNS + 2 * cut], dimensions[COLUMNS + 2 * cut + 1]
    for item in range(begin, end):
        # The number of the problem, and the item's first index of the cut dimension.
        problem = item // tiles
        first = item % tiles * tile
        count = min_i64(extent - first, tile)
        source = x + (problem * dimensions[PROBLEM_STEP] + first * stride) * parts
        copy_windows(source, own, 0, k, dimensions, cut, count, parts)
        own_n = count * inner
        # The zeros: w is not transposed, and the product is not added to ``c``.
        multiply_by(
            lanes, windows, gemm, one, zero, a + problem * batch_stride_a * parts, own,
            c + (problem * m * n + first * inner) * parts, m, own_n, k, lda, own_n, n,
            transpose_a, 0, 0,  # b is not transposed; c is overwritten
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
    """Compute ``c = a b`` or ``c += a b``, by micro-kernels if ``lanes`` is not 0.

    ``is_added`` not 0 means ``c += a b``, for micro-kernels; ``beta``, 0 or 1, says the
    same to BLAS. Micro-kernels pack operands in ``packed``. The other parameters are
    those of ``gemm.multiply``.
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
    """Copy rows ``first`` to ``last`` of a matrix of windows of ``x`` to ``target``.

    ``dimensions`` has the extents and strides of its rows and columns in ``x``: a row's
    number is a mixed-radix index of four dimensions, and so is a column's. Of the
    columns' dimension number ``cut``, only the first ``count`` indices are copied. An
    element is ``parts`` numbers, 2 if complex.
    """
    # All dimensions are read before the loops: the compiler must assume that the loops'
    # stores change them. n and r are the rows' extents and strides, e and s the
    # columns', ``run`` and ``step`` those of the columns' last dimension.
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
    # The indices of row ``first``, and its offset in ``x``.
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
        # The next row: count up the last index, with carries to those before.
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
    """Return the matrices of windows, an array of the axes (problem, row, column).

    ``arguments`` has the dimensions and ``x`` by name.
    """
    names = [("problem", 0), *(("row", d) for d in range(4))]
    names += [("column", d) for d in range(4)]
    extents = [int(arguments[f"{name}s_{d}"]) for name, d in names]
    strides = [int(arguments[f"{name}_step_{d}"]) for name, d in names]
    windows = arguments["x"].array(extents, strides)
    return windows.reshape(extents[0], math.prod(extents[1:5]), math.prod(extents[5:]))


def _right(arguments: Mapping[str, Any]) -> Any:
    """Return the k x n right factor of a product; ``arguments`` are by name."""
    # ``transpose_b`` is 0, 1, or 2 for the conjugate transpose.
    n, k, transposed = (int(arguments[name]) for name in ("n", "k", "transpose_b"))
    shape = (n, k) if transposed else (k, n)
    right = arguments["b"].array(shape, (int(arguments["ldb"]), 1))
    if transposed == 2:
        right = np.conj(right)
    return right.T if transposed else right


def unjitted(arguments: Mapping[str, Any], items: int) -> None:
    """Compute all of ``windows`` by one NumPy product."""
    shape = (int(arguments["m"]), int(arguments["n"]))
    out = arguments["c"].array(shape, (int(arguments["ldc"]), 1))
    out[...] = _windows(arguments)[0] @ _right(arguments)


def sums_unjitted(arguments: Mapping[str, Any], items: int) -> None:
    """Compute all parts of ``window_sums`` by NumPy products."""
    m, n, part = (int(arguments[name]) for name in ("m", "n", "part"))
    windows, right = _windows(arguments)[0], _right(arguments)
    parts = items // int(arguments["pieces"])
    out = arguments["c"].array((parts, m, n))
    for item in range(parts):
        rows = slice(item * part, (item + 1) * part)
        out[item] = windows[rows].T @ right[rows]


def right_unjitted(arguments: Mapping[str, Any], items: int) -> None:
    """Compute all of ``windows_right`` by one NumPy product."""
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
    """Return the first arguments of products by BLAS: ``lanes`` is 0."""
    return *leading_arguments(dtype), 0


def with_micro_kernels(dtype: str) -> tuple[int, ...]:
    """Return the first arguments of products by micro-kernels, with their ``lanes``."""
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
