"""Time of a call: engines take turns, and the median of many samples is kept."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Run = Callable[[], object]

SAMPLE_S = 2e-4  # a sample lasts at least this long: calls of microseconds are repeated
BURST = 4  # samples a turn; the first only brings the engine's data back to the caches
ROUNDS = 5  # turns that each engine gets at least


@dataclass(frozen=True)
class Timing:
    """Seconds a call: median, and the first and third quartile."""

    median: float
    low: float
    high: float
    samples: int


def once(run: Run) -> float:
    """Seconds of one call."""
    start = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - start) * 1e-9


def take_turns(
    runs: Mapping[str, Run],
    budget_s: float,
    rounds: int = ROUNDS,
    pause_s: float = 0.0,
) -> dict[str, Timing]:
    """Time each of ``runs`` for about ``budget_s`` in all, A B A B and so on.

    Each gets at least ``rounds`` turns, and begins a turn ``pause_s`` after the one
    before: a library's threads may look for work until then. A slow moment of the
    machine falls on all of them. The garbage collector waits.
    """
    calls = {name: _calls_per_sample(run) for name, run in runs.items()}
    samples: dict[str, list[float]] = {name: [] for name in runs}
    if not runs:
        return {}
    collecting = gc.isenabled()
    gc.disable()
    try:
        stop = time.perf_counter() + budget_s
        turns = 0
        while turns < rounds or time.perf_counter() < stop:
            for name, run in runs.items():
                time.sleep(pause_s)
                _sample(run, calls[name])
                samples[name] += [_sample(run, calls[name]) for _ in range(BURST - 1)]
            turns += 1
    finally:
        if collecting:
            gc.enable()
    return {name: summary(values) for name, values in samples.items()}


def summary(values: list[float]) -> Timing:
    """Median and quartiles of some samples."""
    if len(values) == 1:
        return Timing(values[0], values[0], values[0], 1)
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Timing(median, low, high, len(values))


def _calls_per_sample(run: Run) -> int:
    run()
    return max(1, round(SAMPLE_S / min(once(run) for _ in range(3))))


def _sample(run: Run, calls: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(calls):
        run()
    return (time.perf_counter_ns() - start) * 1e-9 / calls
