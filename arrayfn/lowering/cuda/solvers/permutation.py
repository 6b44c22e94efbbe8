"""Applies the row swaps of LU factorizations to permutations, a block for each.

Each swap depends on those before it, so one thread makes them all. Permutations of up
to ``NEAREST`` elements are in shared memory, where a swap takes a tenth of the time.
"""

from __future__ import annotations

import math
from typing import Final

from arrayfn.ir import Var
from arrayfn.lowering.cuda.handwritten import Handwritten, HandwrittenCall
from arrayfn.lowering.cuda.schedule import power_of_two
from arrayfn.lowering.libraries.calls import Pointer

NEAREST: Final = 8192
"""Elements of the longest permutation that is computed in shared memory."""
_THREADS: Final = 128
"""Threads of a block; they copy, and one of them swaps."""

_NEAR: Final = """
thread = thread_index()
first = block_index() * count
row = block_index() * n
order = dynamic_shared_i32(0, {size})
swaps = dynamic_shared_i32({bytes}, {size})
for at in range(thread, n, {threads}):
    order[at] = convert_i64_i32(at)
for at in range(thread, count, {threads}):
    swaps[at] = pivots_in[first + at]
barrier()
if thread == 0:
    for at in range(count):
        other = convert_i32_i64(swaps[at])
        if other >= 0 and other < n:
            kept = order[at]
            order[at] = order[other]
            order[other] = kept
barrier()
for at in range(thread, n, {threads}):
    permutation_out[row + at] = order[at]
"""
_FAR: Final = """
first = block_index() * count
row = block_index() * n
if thread_index() == 0:
    for at in range(n):
        permutation_out[row + at] = convert_i64_i32(at)
    for at in range(count):
        other = convert_i32_i64(pivots_in[first + at])
        if other >= 0 and other < n:
            kept = permutation_out[row + at]
            permutation_out[row + at] = permutation_out[row + other]
            permutation_out[row + other] = kept
"""


def permuted(pivots: Pointer, permutation: Var) -> HandwrittenCall:
    """Return the call that swaps elements of the identity by ``pivots``.

    For each i in order, elements i and ``pivots[i]`` of each row of ``permutation``
    [..., n] are swapped. Rows of up to ``NEAREST`` elements are swapped in shared
    memory.
    """
    *batch, n = permutation.type.shape
    size = max(32, power_of_two(n)) if n <= NEAREST else 0
    body = _NEAR.format(size=size, bytes=4 * size, threads=_THREADS)
    text = Handwritten(
        "permutation",
        body if size else _FAR,
        _THREADS,
        "Swaps rows one after the other.",
        "a block for each matrix, one thread of which swaps",
        shared=8 * size,
    )
    return HandwrittenCall(
        text,
        reads={"pivots_in": pivots},
        writes={"permutation_out": Pointer(permutation)},
        integers={"n": n, "count": pivots.array.type.shape[-1]},
        blocks=math.prod(batch) if n else 0,
    )
