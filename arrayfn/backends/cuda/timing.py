"""Finds the fastest of several runs that compute the same, timed by the GPU's clock.

A *run* is a function that enqueues one way of the computation. A *set* is memory for
all operands of a run; successive calls of a run use different sets.
"""

from __future__ import annotations

import ctypes
import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Final

from arrayfn.backends.cuda.driver import device

# First, each run is called alone a few times.
FIRST_CALLS: Final = 3  # timed calls: another process may use the GPU during one
LONG_SECONDS: Final = 5e-2  # a run that takes longer is timed only once
BUDGET_SECONDS: Final = 1.0  # after which no further run is tried
CANDIDATE_RATIO: Final = 1.5  # runs slower than the fastest by this factor are left out
ENQUEUE_SECONDS: Final = 2e-5  # of the host, which a call's measured time may include
# Then come rounds, in each of which each run is repeated.
ROUNDS: Final = 8
CANDIDATES: Final = 12  # runs in these rounds at most
ROUND_SECONDS: Final = 6e-4  # for which a run is repeated in a round
FINALIST_RATIO: Final = 1.06  # runs slower than the fastest by this factor are left out
# Final rounds are more, since the card's clock goes up and down.
FINAL_ROUNDS: Final = 24  # at most
FINALISTS: Final = 4  # runs in these rounds at most
FINAL_BUDGET: Final = 0.1  # seconds of a run in all final rounds
HEATING_SECONDS: Final = 4e-5  # a call that takes longer heats the card
HOT_ROUND_SECONDS: Final = 2e-3  # for which such a run is repeated in a round
# Long calls are repeated until their own power sets the clock, not the last run's.
LONG_CALL_SECONDS: Final = 5e-4  # a call that takes longer is long
LONG_ROUND_SECONDS: Final = 4e-2  # for which such a run is repeated in a round
LONG_ROUNDS: Final = 3
CLEAR_ROUNDS: Final = 6  # after so many rounds, clearly slower runs are left out
CLEAR_RATIO: Final = 1.03  # a run slower than the fastest by this factor is so clearly
TIE_RATIO: Final = 1.003  # times that differ by less than this factor are equal


Run = Callable[[int], int]
"""Enqueues work on a stream, and returns a status: 0 is success."""


def fastest(runs: Sequence[Run], sets: int = 1) -> int:
    """Return the index of the fastest of ``runs``; 0 if all of them fail.

    Of runs that are about as fast, the first is chosen. ``sets`` is the number of sets
    of memory that a run's calls rotate among.
    """
    times = measure(runs, sets)
    if not times:
        return 0
    return next(k for k, t in times.items() if t <= TIE_RATIO * min(times.values()))


def measure(
    runs: Sequence[Run], sets: int = 1, budget: float = BUDGET_SECONDS
) -> dict[int, float]:
    """Return the seconds that a call of each of the fastest ``runs`` takes, by index.

    All runs are called a few times first. Those that are about as fast as the fastest
    are timed in rounds, and the fastest of these in more rounds. A hot GPU lowers its
    clock, for some runs more than for others; so runs that heat it are repeated longer
    in a round, and runs of long calls until their own power sets the clock. A run is
    left out if it fails, is much slower than the fastest in its
    first calls, or would come after ``budget`` seconds. ``sets`` is the number of sets
    of memory that a run's calls rotate among.
    """
    first: dict[int, float] = {}
    spent = 0.0
    for number, run in enumerate(runs):
        if run(device().stream):  # failed; the first call also loads the kernels
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
    # The fastest few, in the order of ``runs``.
    candidates = sorted(sorted(candidates, key=first.__getitem__)[:CANDIDATES])
    if best >= LONG_SECONDS:
        # Even the fastest run is long, so one more call of each is enough.
        again = time_in_rounds(runs, candidates, rounds=1, seconds=0.0)
        return {k: min(first[k], t) for k, t in again.items()}
    medians = time_in_rounds(runs, candidates, ROUNDS, ROUND_SECONDS, sets)
    best = min(medians.values())
    finalists = [k for k, t in medians.items() if t <= FINALIST_RATIO * best]
    finalists = sorted(sorted(finalists, key=medians.__getitem__)[:FINALISTS])
    if len(finalists) == 1:
        return {k: medians[k] for k in finalists}
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
    """Return the median seconds of a call of ``runs[k]``, by k in ``numbers``.

    Each of the ``rounds`` repeats each run for about ``seconds``, in a CUDA graph. The
    rounds have different orders, because a run is slower after one that draws more
    power. The repetitions of a run are a multiple of ``sets``, so that the run uses all
    its sets of memory: addresses make a difference. After ``CLEAR_ROUNDS`` rounds, runs
    that are slower than the fastest by a factor of ``drop_ratio`` are left out; if one
    of several runs is left, the rounds end.
    """
    graphs: dict[int, tuple[int, int]] = {}
    times: dict[int, list[float]] = {k: [] for k in numbers}
    for k in numbers:
        per_call = _seconds(lambda run=runs[k]: run(device().stream))
        count = max(1, int(seconds / (sets * per_call))) * sets
        graphs[k] = _graph(runs[k], count), count
    shuffle = random.Random(0).shuffle
    for number in range(rounds):
        order = list(times)
        shuffle(order)
        for k in order:
            graph, count = graphs[k]
            graph_seconds = _seconds(lambda graph=graph: device().launch_graph(graph))
            times[k].append(graph_seconds / count)
        medians = {k: statistics.median(t) for k, t in times.items()}
        if number + 1 >= CLEAR_ROUNDS:
            bound = drop_ratio * min(medians.values())
            times = {k: t for k, t in times.items() if medians[k] <= bound}
        if len(times) == 1 and len(numbers) > 1:
            break
    for graph, _ in graphs.values():
        device().destroy_graph(graph)
    return {k: statistics.median(t) for k, t in times.items()}


def time_repeated(run: Callable[[], object]) -> float:
    """Return the GPU's seconds for the work of ``run()``: the best of ``ROUNDS``."""
    run()
    count = max(1, int(ROUND_SECONDS / _seconds(run)))

    def several() -> None:
        """Enqueue ``count`` calls of ``run``."""
        for _ in range(count):
            run()

    return min(_seconds(several) for _ in range(ROUNDS)) / count


def _graph(run: Run, count: int) -> int:
    """Capture ``count`` calls of ``run`` as an executable graph.

    Without a graph the GPU would wait for the host between short calls.
    """

    def enqueue(stream: int) -> None:
        """Enqueue all calls on ``stream``, which is being captured."""
        for _ in range(count):
            run(stream)

    return device().executable_graph(enqueue)


def _seconds(enqueue: Callable[[], object]) -> float:
    """Return the seconds that the GPU takes for the work that ``enqueue()`` enqueues.

    Waits for the work.
    """
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
    """Return the seconds between two events that have happened."""
    gpu = device()
    milliseconds = ctypes.c_float()
    # Drivers before 12.8 have the first version only.
    ask = getattr(gpu.library, "cuEventElapsedTime_v2", None)
    ask = ask or gpu.library.cuEventElapsedTime
    gpu.check(ask(ctypes.byref(milliseconds), begin, end))
    return milliseconds.value / 1e3
