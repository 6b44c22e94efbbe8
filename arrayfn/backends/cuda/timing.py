"""Finds the fastest of several runs that compute the same, timed by the GPU's clock."""

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
LONG_CALL_SECONDS: Final = 5e-4  # seconds of a call from which on rounds are few
LONG_ROUNDS: Final = 3  # of such a way: a clock follows the power of what ran before
LONG_ROUND_SECONDS: Final = 4e-2  # of it in a round, until its own power sets the clock
CLEAR_ROUNDS: Final = 6  # after so many, clearly slower ways are left out
CLEAR_RATIO: Final = 1.03  # clearly slower than the fastest: by this factor
TIE_RATIO: Final = 1.003  # times that differ by less are equal


Run = Callable[[int], int]
"""Enqueues work on a stream, and returns a status: 0 is success."""


def fastest(runs: Sequence[Run], sets: int = 1) -> int:
    """The index of the fastest of ``runs``, which rotate among ``sets`` of memory.

    Runs that fail are left out. Of runs about as fast as each other the first is
    chosen.
    """
    times = measure(runs, sets)
    if not times:
        return 0
    return next(k for k, t in times.items() if t <= TIE_RATIO * min(times.values()))


def measure(
    runs: Sequence[Run], sets: int = 1, budget: float = BUDGET_SECONDS
) -> dict[int, float]:
    """The seconds of the fastest of ``runs``, by their index.

    All are called a few times first. Those about as fast as the fastest are timed in
    rounds, and then the fastest of these in more rounds. A hot GPU lowers its clock,
    for some runs more than for others: runs are repeated until it is hot, long ones
    until their own power, not that of the run before, sets the clock. A run is left out
    if it fails, is much slower than the fastest in its first calls, or would
    come after ``budget`` seconds. Each run rotates among ``sets`` sets of memory.
    """
    first: dict[int, float] = {}
    spent = 0.0
    for number, run in enumerate(runs):
        if run(device().stream):
            continue
        calls: list[float] = []
        while len(calls) < FIRST_CALLS and max(calls, default=0.0) < LONG_SECONDS:
            calls.append(_seconds(lambda run=run: run(device().stream)))
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
        again = time_in_rounds(runs, candidates, 1, 0.0)
        return {k: min(first[k], t) for k, t in again.items()}
    found = time_in_rounds(runs, candidates, ROUNDS, ROUND_SECONDS, sets)
    best = min(found.values())
    finalists = [k for k, t in found.items() if t <= FINALIST_RATIO * best]
    finalists = sorted(sorted(finalists, key=found.__getitem__)[:FINALISTS])
    if len(finalists) == 1:
        return {k: found[k] for k in finalists}
    if best >= LONG_CALL_SECONDS:
        return time_in_rounds(runs, finalists, LONG_ROUNDS, LONG_ROUND_SECONDS, sets)
    seconds = ROUND_SECONDS if best < HEATING_SECONDS else HOT_ROUND_SECONDS
    rounds = int(FINAL_BUDGET / max(seconds, sets * best))
    rounds = max(CLEAR_ROUNDS, min(FINAL_ROUNDS, rounds))
    return time_in_rounds(runs, finalists, rounds, seconds, sets, CLEAR_RATIO)


def time_in_rounds(
    runs: Sequence[Run],
    numbers: Sequence[int],
    rounds: int,
    seconds: float,
    sets: int = 1,
    drop_ratio: float = math.inf,
) -> dict[int, float]:
    """The median seconds of a call of ``runs[k]``, by k in ``numbers``.

    Each of ``rounds`` repeats each run for about ``seconds``. Each round has another
    order: a run is slower after one that draws more power. Each run uses all ``sets``
    of memory, since addresses make a difference. Runs that after ``CLEAR_ROUNDS`` are
    slower than the fastest by a factor of ``drop_ratio`` are left out.
    """
    graphs: dict[int, tuple[int, int]] = {}
    times: dict[int, list[float]] = {k: [] for k in numbers}
    for k in numbers:
        once = _seconds(lambda run=runs[k]: run(device().stream))
        count = max(1, int(seconds / (sets * once))) * sets
        graphs[k] = _graph(runs[k], count), count
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
            most = drop_ratio * min(medians.values())
            times = {k: t for k, t in times.items() if medians[k] <= most}
        if len(times) == 1 < len(numbers):
            break
    for graph, _ in graphs.values():
        device().destroy_graph(graph)
    return {k: statistics.median(t) for k, t in times.items()}


def time_repeated(run: Callable[[], object]) -> float:
    """The seconds that what ``run`` enqueues takes the GPU: the best of ``ROUNDS``."""
    run()
    count = max(1, int(ROUND_SECONDS / _seconds(run)))

    def several() -> None:
        for _ in range(count):
            run()

    return min(_seconds(several) for _ in range(ROUNDS)) / count


def _graph(run: Run, count: int) -> int:
    """Capture ``count`` calls in a graph: launched singly, short ones would wait."""

    def enqueue(stream: int) -> None:
        for _ in range(count):
            run(stream)

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
