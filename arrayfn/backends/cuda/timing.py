"""Times several ways to compute the same on this GPU, by its own clock."""

from __future__ import annotations

import ctypes
import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Final

from arrayfn.backends.cuda.driver import device

# First calls of all ways.
FIRST_CALLS: Final = 3  # of each: another process may use the GPU during one of them
LONG_SECONDS: Final = 5e-2  # a way that takes longer is called twice only
BUDGET_SECONDS: Final = 1.0  # after which no further way is tried
CANDIDATE_RATIO: Final = 1.5  # ways slower than the fastest by this factor are left out
ENQUEUE_SECONDS: Final = 2e-5  # of a call, which its measured time may include
# Rounds of repeated calls.
ROUNDS: Final = 8
CANDIDATES: Final = 12  # ways in them, at most
ROUND_SECONDS: Final = 6e-4  # of a way in a round
FINALIST_RATIO: Final = 1.06  # ways slower than the fastest by this factor are left out
# Final rounds: more of them, since the card's clock goes up and down.
FINAL_ROUNDS: Final = 24  # at most
FINALISTS: Final = 4  # ways in them, at most
FINAL_BUDGET: Final = 0.1  # seconds of a way in all of them
HEATING_SECONDS: Final = 4e-5  # seconds of a call from which on it heats the card
HOT_ROUND_SECONDS: Final = 2e-3  # of such a way in a round
CLEAR_ROUNDS: Final = 6  # after so many, clearly slower ways are left out
CLEAR_RATIO: Final = 1.03  # clearly slower than the fastest: by this factor
TIE_RATIO: Final = 1.003  # times that differ by less are equal


Run = Callable[[int], int]
"""Enqueues work on a stream, and gives a status: 0 is success."""


def fastest(ways: Sequence[Run], sets: int = 1) -> int:
    """The number of the fastest of ``ways``, whose memory rotates among ``sets``.

    What fails is not taken. Of ways about as fast as each other the first is taken.
    """
    times = measured(ways, sets)
    if not times:
        return 0
    return next(k for k, t in times.items() if t <= TIE_RATIO * min(times.values()))


def measured(
    ways: Sequence[Run], sets: int = 1, budget: float = BUDGET_SECONDS
) -> dict[int, float]:
    """The seconds that the fastest of ``ways`` take, by number.

    Ways that are about as fast in their first calls are timed in rounds, and then the
    fastest of these in more rounds. A hot card lowers its clock, for some ways more
    than for others: long ways run until it is hot. A way is left out if it fails, is
    much slower than the fastest in its first calls, or would come after ``budget``
    seconds. Each way rotates among ``sets`` sets of memory.
    """
    first: dict[int, float] = {}
    spent = 0.0
    for number, way in enumerate(ways):
        if way(device().stream):
            continue
        calls: list[float] = []
        while len(calls) < FIRST_CALLS and max(calls, default=0.0) < LONG_SECONDS:
            calls.append(_seconds(lambda way=way: way(device().stream)))
        first[number] = min(calls)
        spent += sum(calls) + first[number]
        if spent > budget:
            break
    if not first:
        return {}
    best = min(first.values())
    candidates = [
        k for k, t in first.items() if t <= CANDIDATE_RATIO * best + ENQUEUE_SECONDS
    ]
    candidates = sorted(sorted(candidates, key=first.__getitem__)[:CANDIDATES])
    if best >= LONG_SECONDS:
        again = alternating(ways, candidates, 1, 0.0)
        return {k: min(first[k], t) for k, t in again.items()}
    found = alternating(ways, candidates, ROUNDS, ROUND_SECONDS, sets)
    best = min(found.values())
    finalists = [k for k, t in found.items() if t <= FINALIST_RATIO * best]
    finalists = sorted(sorted(finalists, key=found.__getitem__)[:FINALISTS])
    if len(finalists) == 1:
        return {k: found[k] for k in finalists}
    seconds = ROUND_SECONDS if best < HEATING_SECONDS else HOT_ROUND_SECONDS
    rounds = int(FINAL_BUDGET / max(seconds, sets * best))
    rounds = max(CLEAR_ROUNDS, min(FINAL_ROUNDS, rounds))
    return alternating(ways, finalists, rounds, seconds, sets, CLEAR_RATIO)


def alternating(
    ways: Sequence[Run],
    numbers: Sequence[int],
    rounds: int,
    seconds: float,
    sets: int = 1,
    behind: float = math.inf,
) -> dict[int, float]:
    """The median seconds of the ways ``numbers``, over rounds of so many seconds.

    Each round has another order: a way is slower after one that draws more power. Each
    way is run on all ``sets`` of memory, since addresses make a difference. Ways that
    after some rounds are slower than the fastest by a factor of ``behind`` are left
    out.
    """
    graphs: dict[int, tuple[int, int]] = {}
    times: dict[int, list[float]] = {k: [] for k in numbers}
    for k in numbers:
        once = _seconds(lambda way=ways[k]: way(device().stream))
        count = max(1, int(seconds / (sets * once))) * sets
        graphs[k] = _graph(ways[k], count), count
    shuffle = random.Random(0).shuffle
    for number in range(rounds):
        order = list(times)
        shuffle(order)
        for k in order:
            graph, count = graphs[k]
            took = _seconds(lambda graph=graph: device().launch_graph(graph))
            times[k].append(took / count)
        medians = {k: statistics.median(t) for k, t in times.items()}
        if number + 1 >= CLEAR_ROUNDS:
            most = behind * min(medians.values())
            times = {k: t for k, t in times.items() if medians[k] <= most}
        if len(times) == 1 < len(numbers):
            break
    for graph, _ in graphs.values():
        device().destroy_graph(graph)
    return {k: statistics.median(t) for k, t in times.items()}


def repeated(run: Callable[[], object]) -> float:
    """The seconds that the GPU takes for what ``run`` enqueues, at the best of some."""
    run()
    count = max(1, int(ROUND_SECONDS / _seconds(run)))

    def several() -> None:
        for _ in range(count):
            run()

    return min(_seconds(several) for _ in range(ROUNDS)) / count


def _graph(way: Run, count: int) -> int:
    """A graph of ``count`` runs: enqueued one by one, short ones would wait."""

    def enqueue(stream: int) -> None:
        for _ in range(count):
            way(stream)

    return device().executable_graph(enqueue)


def _seconds(enqueue: Callable[[], object]) -> float:
    """The seconds that the GPU takes for what ``enqueue`` enqueues."""
    gpu = device()
    gpu.make_current()
    begin, end = (gpu.new_event(with_time=True) for _ in range(2))
    gpu.record(begin, gpu.stream)
    enqueue()
    gpu.record(end, gpu.stream)
    gpu.check(gpu.waiting.cuEventSynchronize(end))
    seconds = elapsed(begin, end)
    for event in (begin, end):
        gpu.destroy_event(event)
    return seconds


def elapsed(begin: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
    """The seconds between two events that have happened."""
    gpu = device()
    milliseconds = ctypes.c_float()
    ask = getattr(gpu.library, "cuEventElapsedTime_v2", None)
    ask = ask or gpu.library.cuEventElapsedTime
    gpu.check(ask(ctypes.byref(milliseconds), begin, end))
    return milliseconds.value / 1e3
