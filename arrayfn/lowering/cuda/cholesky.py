"""Cholesky factors by kernels: of small matrices by a block of threads, else by tiles.

A block factors a tile in shared memory, eight columns at a time. Four lanes share a
row, of which each has every fourth element in registers. Of the eight rows in which the
columns meet the diagonal every thread has all elements: it factors them by itself, and
with them its own row, so that threads meet but twice. Then the columns after these are
freed of them, and move up in the registers: one text serves all steps. Columns are
scaled at the end.

A pivot that is not positive is NaN from there on, so the last one tells of all.
"""

from __future__ import annotations

import math
from typing import Final

from arrayfn import dtypes
from arrayfn.dtypes import DType, short_name
from arrayfn.ir import Var
from arrayfn.lowering.cuda.written import Written, WrittenCall
from arrayfn.lowering.libraries.calls import Place

LANES: Final = 4
"""That share a row."""
LEAST_TILE: Final = 8
_PANEL: Final = 8
"""Columns that are factored at a time."""
_SHARE: Final = _PANEL // LANES
MOST_SMALL: Final = {dtypes.float32: 128, dtypes.float64: 64}
"""Rows of what is factored by one block."""
VECTOR_BYTES: Final = 16


def is_small(dtype: DType, n: int) -> bool:
    """Whether one block factors matrices of ``n`` rows."""
    return 0 < n <= MOST_SMALL.get(dtype, 0)


def small_factors(matrices: Var) -> WrittenCall:
    """The lower factors of ``matrices`` [..., n, n], in place; NaN if there is none."""
    dtype, n = matrices.type.dtype, matrices.type.shape[-1]
    size = LEAST_TILE
    while size < n:
        size *= 2
    count = math.prod(matrices.type.shape[:-2])
    return WrittenCall(_text(dtype, size), (), (Place(matrices),), (n,), count)


def _text(dtype: DType, size: int) -> Written:
    """The kernel of matrices of up to ``size`` rows."""
    t, threads, pitch = short_name(dtype), size * LANES, size + 1
    body = f"""
thread = thread_index()
row = quotient(thread, {LANES})
lane = remainder(thread, {LANES})
begin = block_index() * n * n
tile = arena_{t}(0, {size * pitch})
{memory(dtype, size)}
# All loads are on their way before the first is waited for.
for j in unrolled({size // LANES}):
    x = min_i64(j * {LANES} + lane, n - 1)
    own[j] = a[begin + min_i64(row, n - 1) * n + x]
{factoring(dtype, size, "n")}
for at in range(thread, n * n, {threads}):
    i = quotient(at, n)
    j = at - i * n
    value = {t}(0)
    if j <= i:
        value = tile[i * {pitch} + j] * pivots[j]
    if failed:
        value = {t.upper()}_NAN
    a[begin + at] = value
"""
    return Written(
        "cholesky",
        body,
        ("a",),
        ("n",),
        threads,
        f"Factors a matrix of up to {size} rows.",
        "Cholesky factors of small matrices, a block for each",
        shared=size * pitch * dtype.itemsize,
    )


def memory(dtype: DType, size: int) -> str:
    """What ``factoring`` needs besides the tile."""
    t = short_name(dtype)
    return f"""raw = shared_{t}({size * _pitch(dtype)})
panel = shared_{t}({_PANEL * LANES * _group(dtype, size)})
pivots = shared_{t}({size})
near = registers_{t}({_vector(dtype, size)})
own = registers_{t}({size // LANES + _SHARE})
corner = registers_{t}({_PANEL * _PANEL})
mine = registers_{t}({_PANEL})
factors = registers_{t}({_PANEL})"""


def _pitch(dtype: DType) -> int:
    """From a row of a panel to the next, which begins in another bank."""
    return _PANEL + VECTOR_BYTES // dtype.itemsize


def _vector(dtype: DType, size: int) -> int:
    """Elements of a column that are read at a time."""
    return min(size // LANES, VECTOR_BYTES // dtype.itemsize)


def _group(dtype: DType, size: int) -> int:
    """Those of a column that a lane reads, and some to be in another bank."""
    return size // LANES + _vector(dtype, size)


def factoring(dtype: DType, size: int, count: str) -> str:
    """The first ``count`` columns of a factor, unscaled, in ``tile``.

    ``own`` are the elements of the matrix that a lane has of its row. ``tile`` has
    ``size`` rows, ``size`` + 1 elements apart. ``pivots`` are what the columns are to
    be multiplied by; ``failed`` says that there is no factor.
    """
    t, each, pitch = short_name(dtype), size // LANES, size + 1
    wide, vector = VECTOR_BYTES // dtype.itemsize, _vector(dtype, size)
    group, rows = _group(dtype, size), _pitch(dtype)
    kept = LANES * group
    return f"""for j in unrolled({_SHARE}):
    own[{each} + j] = {t}(0)
for first in range(quotient({count} + {_PANEL - 1}, {_PANEL})):
    for j in unrolled({_SHARE}):
        raw[row * {rows} + j * {LANES} + lane] = own[j]
    barrier()
    for part in unrolled({_PANEL // wide}):
        for i in unrolled({_PANEL}):
            place = (first * {_PANEL} + i) * {rows} + part * {wide}
            load_{t}x{wide}(raw, place, corner, i * {_PANEL} + part * {wide})
        load_{t}x{wide}(raw, row * {rows} + part * {wide}, mine, part * {wide})
    for k in unrolled({_PANEL}):
        pivot = corner[k * {_PANEL} + k]
        if not (pivot > {t}(0)):
            pivot = {t.upper()}_NAN
        if thread == 0:
            pivots[first * {_PANEL} + k] = pivot
        inverse = {t}(1) / pivot
        factors[k] = neg_{t}(mine[k] * inverse)
        for j in unrolled({_PANEL}):
            if j > k:
                below = corner[j * {_PANEL} + k]
                mine[j] = fma_{t}(factors[k], below, mine[j])
                factor = neg_{t}(below * inverse)
                for i in unrolled({_PANEL}):
                    if (i > k) and (i <= j):
                        old = corner[j * {_PANEL} + i]
                        above = corner[i * {_PANEL} + k]
                        corner[j * {_PANEL} + i] = fma_{t}(factor, above, old)
    ahead = quotient(row, {LANES}) - (first + 1) * {_SHARE}
    spot = remainder(row, {LANES}) * {group} + ahead
    for k in unrolled({_PANEL}):
        if lane == k % {LANES}:
            tile[row * {pitch} + first * {_PANEL} + k] = mine[k]
            if ahead >= 0:
                panel[k * {kept} + spot] = mine[k]
    barrier()
    for j in unrolled({each}):
        own[j] = own[j + {_SHARE}]
    for part in unrolled({each // vector}):
        if part * {vector} + (first + 1) * {_SHARE} < {each}:
            for k in unrolled({_PANEL}):
                place = k * {kept} + lane * {group} + part * {vector}
                load_{t}x{vector}(panel, place, near, 0)
                for j in unrolled({vector}):
                    old = own[part * {vector} + j]
                    own[part * {vector} + j] = fma_{t}(factors[k], near[j], old)
barrier()
failed = isnan_{t}(pivots[{count} - 1])
barrier()
if thread < {count}:
    pivots[thread] = {t}(1) / sqrt_{t}(pivots[thread])
barrier()"""
