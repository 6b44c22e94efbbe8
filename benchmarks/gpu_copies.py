"""The driver's copies one after the other, as fast as they can be enqueued.

What ``benchmarks.gpu`` measures kernels against: no Python is between two copies.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from arrayfn.backends.cuda.driver import device
from arrayfn.backends.native import native
from arrayfn.backends.native.code import native_address
from arrayfn.backends.native.structures import Array, Struct, i32


class Pair(Struct):
    """The addresses of a copy."""

    target: int
    source: int


@native
def copy_by_turns(
    copy: Callable[[int, int, int, int], i32],
    pairs: Array[Pair],
    sets: int,
    nbytes: int,
    stream: int,
    count: int,
) -> int:
    """Enqueue ``count`` copies, of the pairs in turns: the driver's status."""
    for number in range(count):
        pair = pairs[number % sets]
        status = copy(pair.target, pair.source, nbytes, stream)
        if status:
            return status
    return 0


def copies(pairs: Sequence[tuple[int, int]], nbytes: int) -> Callable[[int], None]:
    """What enqueues so many copies of ``nbytes`` between addresses."""
    gpu = device()
    kind = ctypes.PYFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 6)
    function = kind(native_address(copy_by_turns))
    table = np.array(pairs, np.int64)
    copy = gpu.address("cuMemcpyDtoDAsync")

    def enqueue(count: int) -> None:
        gpu.make_current()
        at = int(table.ctypes.data)
        gpu.check(function(copy, at, len(pairs), nbytes, gpu.stream, count))

    return enqueue
