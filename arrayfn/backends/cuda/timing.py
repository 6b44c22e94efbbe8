"""Which of several ways to do the same is the fastest on this GPU, by its own clock."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Final

from arrayfn.backends.cuda.driver import device

ROUND_SECONDS: Final = 2e-3  # of repeated calls in a round
ROUNDS: Final = 3
LONG_SECONDS: Final = 2e-2  # what takes longer is tried once
BUDGET_SECONDS: Final = 0.5  # after which no further way is tried
WITHIN: Final = 1.5  # times as slow as the fastest: not tried again
NOISE: Final = 1.005  # what is not faster by that is not faster


def fastest(ways: Sequence[Callable[[], int]]) -> int:
    """The number of the fastest of ``ways``: each enqueues work, and gives a status.

    What fails is not taken. Of ways about as fast as each other the first is taken.
    """
    first: dict[int, float] = {}
    spent = 0.0
    for number, way in enumerate(ways):
        if way():
            continue
        first[number] = seconds_of(way, 1)
        spent += 2 * first[number]
        if spent > BUDGET_SECONDS:
            break
    if not first:
        return 0
    least = min(first.values())
    best = {k: t for k, t in first.items() if t <= WITHIN * least}
    if least < LONG_SECONDS:
        count = max(1, int(ROUND_SECONDS / least))
        best = {k: min(seconds_of(ways[k], count) for _ in range(ROUNDS)) for k in best}
    return next(k for k, t in best.items() if t <= NOISE * min(best.values()))


def seconds_of(way: Callable[[], int], count: int) -> float:
    """The seconds that the GPU takes for one of ``count`` runs of ``way``."""
    gpu = device()
    gpu.enter()
    begin, end = ctypes.c_void_p(), ctypes.c_void_p()
    stream = ctypes.c_void_p(gpu.stream)
    for event in (begin, end):
        gpu.check(gpu.library.cuEventCreate(ctypes.byref(event), 0))
    gpu.check(gpu.library.cuEventRecord(begin, stream))
    for _ in range(count):
        way()
    gpu.check(gpu.library.cuEventRecord(end, stream))
    gpu.check(gpu.waiting.cuEventSynchronize(end))
    milliseconds = ctypes.c_float()
    elapsed = getattr(gpu.library, "cuEventElapsedTime_v2", None)
    elapsed = elapsed or gpu.library.cuEventElapsedTime
    gpu.check(elapsed(ctypes.byref(milliseconds), begin, end))
    for event in (begin, end):
        gpu.check(gpu.library.cuEventDestroy_v2(event))
    return milliseconds.value / 1e3 / count
