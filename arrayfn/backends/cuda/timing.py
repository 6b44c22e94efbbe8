"""Which of several ways to do the same is the fastest on this GPU, by its own clock."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Final

from arrayfn.backends.cuda.driver import device

ROUND_SECONDS: Final = 1e-3  # of repeated calls in a round
ROUNDS: Final = 5
LONG_SECONDS: Final = 5e-2  # what takes longer is tried twice only
BUDGET_SECONDS: Final = 1.0  # after which no further way is tried
WITHIN: Final = 1.5  # times as slow as the fastest: not tried again
NOISE: Final = 1.005  # what is not faster by that is not faster


Way = Callable[[int], int]
"""Enqueues work on a stream, and gives a status: 0 is success."""


def fastest(ways: Sequence[Way]) -> int:
    """The number of the fastest of ``ways``.

    What fails is not taken. Of ways about as fast as each other the first is taken.
    """
    times = measured(ways)
    if not times:
        return 0
    return next(k for k, t in times.items() if t <= NOISE * min(times.values()))


def measured(
    ways: Sequence[Way], budget: float = BUDGET_SECONDS, within: float = WITHIN
) -> dict[int, float]:
    """The seconds that each of ``ways`` takes, by number, at the best of some rounds.

    Left out is what fails, what is not as fast as ``within`` times the fastest, and
    what would have been tried after ``budget`` seconds.
    """
    first: dict[int, float] = {}
    spent = 0.0
    for number, way in enumerate(ways):
        if way(device().stream):
            continue
        first[number] = _seconds(lambda way=way: way(device().stream))
        spent += 2 * first[number]
        if spent > budget:
            break
    if not first:
        return {}
    least = min(first.values())
    best = {k: t for k, t in first.items() if t <= within * least}
    count = max(1, int(ROUND_SECONDS / least))
    graphs = {k: _graph(ways[k], count) for k in best}
    rounds = ROUNDS if least < LONG_SECONDS else 1
    for _ in range(rounds):
        for k, graph in graphs.items():
            seconds = _seconds(lambda graph=graph: device().launch(graph)) / count
            best[k] = min(best[k], seconds)
    for graph in graphs.values():
        device().forget(graph)
    return best


def _graph(way: Way, count: int) -> int:
    """A graph of ``count`` runs: enqueued one by one, short ones would wait."""

    def enqueue(stream: int) -> None:
        for _ in range(count):
            way(stream)

    return device().capture(enqueue)


def _seconds(enqueue: Callable[[], object]) -> float:
    """The seconds that the GPU takes for what ``enqueue`` enqueues."""
    gpu = device()
    gpu.enter()
    begin, end = ctypes.c_void_p(), ctypes.c_void_p()
    stream = ctypes.c_void_p(gpu.stream)
    for event in (begin, end):
        gpu.check(gpu.library.cuEventCreate(ctypes.byref(event), 0))
    gpu.check(gpu.library.cuEventRecord(begin, stream))
    enqueue()
    gpu.check(gpu.library.cuEventRecord(end, stream))
    gpu.check(gpu.waiting.cuEventSynchronize(end))
    milliseconds = ctypes.c_float()
    elapsed = getattr(gpu.library, "cuEventElapsedTime_v2", None)
    elapsed = elapsed or gpu.library.cuEventElapsedTime
    gpu.check(elapsed(ctypes.byref(milliseconds), begin, end))
    for event in (begin, end):
        gpu.check(gpu.library.cuEventDestroy_v2(event))
    return milliseconds.value / 1e3
