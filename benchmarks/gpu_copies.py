"""The driver's copies one after the other, as fast as they can be enqueued.

What ``benchmarks.gpu`` measures kernels against: no Python is between two copies.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from arrayfn.backends.cuda.driver import device
from arrayfn.backends.native import call, load, native
from arrayfn.backends.native.code import native_address


@native
def copy_by_turns(
    copy: int, pairs: int, sets: int, nbytes: int, stream: int, count: int
) -> int:
    """Enqueue ``count`` copies, of the pairs of target and source in turns."""
    number = 0
    for _ in range(count):
        pair = pairs + 16 * number
        status = call(copy, load(pair), load(pair + 8), nbytes, stream)
        if status & 0xFFFFFFFF:
            return status
        number += 1
        if number == sets:
            number = 0
    return 0


def copies(pairs: Sequence[tuple[int, int]], nbytes: int) -> Callable[[int], None]:
    """What enqueues so many copies of ``nbytes`` between addresses."""
    gpu = device()
    kind = ctypes.PYFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 6)
    function = kind(native_address(copy_by_turns))
    table = np.array(pairs, np.int64)
    copy = gpu.address("cuMemcpyDtoDAsync")

    def enqueue(count: int) -> None:
        gpu.enter()
        at = int(table.ctypes.data)
        gpu.check(function(copy, at, len(pairs), nbytes, gpu.stream, count))

    return enqueue
