"""Cholesky factors of small matrices by a kernel: a block of threads for each.

A thread has a row of the matrix in registers. Each step takes one column of the factor
from the columns after it, which all threads read from shared memory, and moves the row
by one, so that its next element is always the first: one text serves all steps, and
there is one barrier in each. Two columns lie in shared memory by turns.
"""

from __future__ import annotations

import math
from typing import Final

from arrayfn import dtypes
from arrayfn.dtypes import DType, short_name
from arrayfn.ir import Var
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.cuda.written import Written, WrittenCall
from arrayfn.lowering.libraries.calls import Place

_MOST: Final = {dtypes.float32: 128, dtypes.float64: 64}
"""Rows of a matrix, of which a thread has one in registers."""
_VECTOR_BYTES: Final = 16
LEAST_ROWS: Final = 8


def is_small(dtype: DType, n: int) -> bool:
    """Whether the kernel factors matrices of ``n`` rows."""
    return 0 < n <= _MOST.get(dtype, 0)


def factor(matrices: Var) -> WrittenCall:
    """The lower factors of ``matrices`` [..., n, n], in place; NaN if there is none."""
    dtype, n = matrices.type.dtype, matrices.type.shape[-1]
    size = LEAST_ROWS
    while size < n:
        size *= 2
    count = math.prod(matrices.type.shape[:-2])
    return WrittenCall(_text(dtype, size), (), (Place(matrices),), (n,), count)


def _text(dtype: DType, size: int) -> Written:
    """The kernel of matrices of up to ``size`` rows."""
    t, itemsize = short_name(dtype), dtype.itemsize
    threads, pitch, lanes = max(WARP, size), size + 1, _VECTOR_BYTES // itemsize
    tile_bytes = -(-size * pitch * itemsize // _VECTOR_BYTES) * _VECTOR_BYTES
    body = f"""
thread = thread_index()
own = min_i64(thread, {size - 1})
begin = block_index() * n * n
tile = arena_{t}(0, {size * pitch})
columns = arena_{t}({tile_bytes}, {2 * size})
pivots = shared_{t}(2)
near = registers_{t}({lanes})
row = registers_{t}({size + 1})
for at in range(thread, n * n, {threads}):
    i = quotient(at, n)
    tile[i * {pitch} + at - i * n] = a[begin + at]
barrier()
for j in unrolled({size}):
    row[j] = tile[own * {pitch} + j]
row[{size}] = {t}(0)
failures = i64(0)
for k in range(n):
    here = remainder(k, 2)
    if thread == k:
        pivots[here] = row[0]
    if (thread > k) and (thread < n):
        columns[here * {size} + thread - k - 1] = row[0]
    barrier()
    pivot = pivots[here]
    if not gt_{t}(pivot, {t}(0)):
        failures = i64(1)
    factor = row[0] / pivot
    if (thread >= k) and (thread < n):
        tile[thread * {pitch} + k] = factor * sqrt_{t}(pivot)
    factor = neg_{t}(factor)
    for part in unrolled({size // lanes}):
        load_{t}x{lanes}(columns, here * {size} + part * {lanes}, near, 0)
        for lane in unrolled({lanes}):
            j = part * {lanes} + lane
            row[j] = fma_{t}(factor, near[lane], row[j + 1])
barrier()
for at in range(thread, n * n, {threads}):
    i = quotient(at, n)
    j = at - i * n
    value = {t}(0)
    if j <= i:
        value = tile[i * {pitch} + j]
    if failures > 0:
        value = {t.upper()}_NAN
    a[begin + at] = value
"""
    return Written(
        "cholesky",
        body,
        ("a",),
        ("n",),
        threads,
        f"Factors a matrix of up to {size} rows, each a thread's.",
        "Cholesky factors of small matrices, a block for each",
        shared=tile_bytes + 2 * size * itemsize,
    )
