"""Cholesky factors by kernels: of small matrices by a block of threads, else by tiles.

A block factors a tile in shared memory. Four lanes share a row, of which each has every
fourth element in registers. Each step takes one column of the factor from the columns
after it, which all threads read from shared memory; each fourth one moves the row, so
that its next elements are always the first: one text serves all steps, with a barrier
in each. Columns lie in shared memory by turns, and are scaled at the end.

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
for at in range(thread, n * n, {threads}):
    i = quotient(at, n)
    tile[i * {pitch} + at - i * n] = a[begin + at]
{memory(dtype, size)}
barrier()
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
    t, each = short_name(dtype), size // LANES
    return f"""columns = shared_{t}({2 * LANES * _group(dtype, size)})
pivots = shared_{t}({size})
near = registers_{t}({_vector(dtype, size)})
own = registers_{t}({each + 1})"""


def _vector(dtype: DType, size: int) -> int:
    """Elements of a column that are read at a time."""
    return min(size // LANES, VECTOR_BYTES // dtype.itemsize)


def _group(dtype: DType, size: int) -> int:
    """Those of a column that a lane reads, and some to be in another bank."""
    return size // LANES + _vector(dtype, size)


def factoring(dtype: DType, size: int, count: str) -> str:
    """The first ``count`` columns of ``tile`` become those of its factor, unscaled.

    It has ``size`` rows, ``size`` + 1 elements apart. ``pivots`` are what the columns
    are to be multiplied by; ``failed`` says that there is no factor.
    """
    t, each, pitch = short_name(dtype), size // LANES, size + 1
    vector, group = _vector(dtype, size), _group(dtype, size)
    kept = LANES * group
    return f"""for j in unrolled({each}):
    own[j] = tile[row * {pitch} + j * {LANES} + lane]
own[{each}] = {t}(0)
for first in range(quotient({count} + {LANES - 1}, {LANES})):
    ahead = quotient(row, {LANES}) - first
    spot = remainder(row, {LANES}) * {group} + max_i64(ahead, 0)
    for k in unrolled({LANES}):
        here = remainder(k, 2) * {kept}
        mine = (lane == k) and (ahead >= 0)
        if mine:
            columns[here + spot] = own[0]
        barrier()
        pivot = columns[here + k * {group}]
        value = columns[here + spot]
        if not (pivot > {t}(0)):
            pivot = {t.upper()}_NAN
        if mine:
            tile[row * {pitch} + first * {LANES} + k] = value
        if thread == 0:
            pivots[first * {LANES} + k] = pivot
        factor = neg_{t}(value / pivot)
        for part in unrolled({each // vector}):
            place = here + lane * {group} + part * {vector}
            load_{t}x{vector}(columns, place, near, 0)
            for j in unrolled({vector}):
                old = own[part * {vector} + j]
                own[part * {vector} + j] = fma_{t}(factor, near[j], old)
    for j in unrolled({each}):
        own[j] = own[j + 1]
barrier()
failed = isnan_{t}(pivots[{count} - 1])
barrier()
if thread < {count}:
    pivots[thread] = {t}(1) / sqrt_{t}(pivots[thread])
barrier()"""
