"""Speed of one case on every engine, after its results have been compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import machine, others
from benchmarks.cases import OVERHEAD, Case
from benchmarks.engines import Engine
from benchmarks.timing import Timing, take_turns

Engines = Mapping[str, Engine]
Results = Mapping[str, list[Any]]


@dataclass(frozen=True)
class Throughput:
    """One case: times by engine, and what was checked.

    ``error`` is the largest difference of any engine from the first, relative to the
    largest element. ``nbytes`` is the least traffic: every input read once, every
    output written once; ``copy`` is the speed of a copy that moves as much, in bytes a
    second. ``same_bits`` says whether one and two threads agree on the first engine,
    None where it cannot set them.
    """

    case: str
    times: Mapping[str, Timing]
    error: float
    nbytes: int
    copy: float | None
    same_bits: bool | None


class ResultsDifferError(AssertionError):
    """The engines disagree by more than the case's tolerance."""


def measure(case: Case, engines: Engines, budget_s: float) -> Throughput:
    """Compare all results, then take times; NumPy is left out of gradients."""
    inputs = case.inputs()
    able = {
        name: engine
        for name, engine in engines.items()
        if not (case.gradient and name == "numpy")
    }
    with ExitStack() as precisions:
        for engine in able.values():
            precisions.enter_context(engine.precision(case.dtype))
        runs = {name: _caller(engine, case, inputs) for name, engine in able.items()}
        results = {name: able[name].leaves(run()) for name, run in runs.items()}
        error = _compare(case, results)
        first = next(iter(able))
        same_bits = _same_bits(able[first], runs[first])
        nbytes = _traffic(inputs, results[first])
        del results
        # Timed apart, so as not to sweep the caches between the engines compared.
        apart = {"numpy": runs.pop("numpy")} if "numpy" in runs else {}
        apart |= others.columns(case, inputs)
        times = take_turns(runs, budget_s)
        times |= take_turns(apart, budget_s / 4, rounds=1)
    copy = machine.copy_speed(nbytes // 2) if case.streams else None
    return Throughput(case.name, times, error, nbytes, copy, same_bits)


def measure_overhead(engines: Engines, budget_s: float) -> Throughput:
    """A jitted two-argument function on four elements; JAX on both kinds of arrays."""
    x, y = inputs = OVERHEAD.inputs()
    runs: dict[str, Callable[[], Any]] = {}
    results: dict[str, list[Any]] = {}
    for name, engine in engines.items():
        f = engine.jit(lambda x, y, e=engine: OVERHEAD.function(e, x, y))
        results[name] = engine.leaves(f(x, y))
        if name == "jax":
            a, b = engine.put(inputs)
            runs["jax on NumPy arrays"] = lambda f=f: f(x, y).block_until_ready()
            runs["jax on its own arrays"] = lambda f=f, a=a, b=b: f(
                a, b
            ).block_until_ready()
        else:
            runs[name] = lambda f=f: f(x, y)
    error = _compare(OVERHEAD, results)
    times = take_turns(runs, budget_s)
    return Throughput(OVERHEAD.name, times, error, _traffic(inputs, [x]), None, None)


def _caller(engine: Engine, case: Case, inputs: Any) -> Callable[[], Any]:
    compiled = engine.jit(lambda *arguments: case.function(engine, *arguments))
    arguments, wait = engine.put(inputs), engine.wait

    def run() -> Any:
        result = compiled(*arguments)
        wait(result)
        return result

    return run


def _compare(case: Case, results: Results) -> float:
    (first, expected), *rest = results.items()
    worst = 0.0
    for name, values in rest:
        for value, reference in zip(values, expected, strict=True):
            if (value.shape, value.dtype) != (reference.shape, reference.dtype):
                raise ResultsDifferError(
                    f"{case.name}: {name} gives {value.dtype}{list(value.shape)}, "
                    f"{first} {reference.dtype}{list(reference.shape)}"
                )
            scale = np.max(np.abs(reference)) or 1.0
            worst = max(worst, float(np.max(np.abs(value - reference)) / scale))
    if not worst <= case.tolerance:
        raise ResultsDifferError(
            f"{case.name}: the engines differ by {worst:.2g}, more than "
            f"{case.tolerance:.2g}"
        )
    return worst


def _same_bits(engine: Engine, run: Callable[[], Any]) -> bool | None:
    bits = []
    for threads in (1, 2):
        if not engine.set_threads(threads):
            return None
        bits.append([leaf.tobytes() for leaf in engine.leaves(run())])
    engine.set_threads(machine.usable_cpus())
    return bits[0] == bits[1]


def _traffic(inputs: Any, outputs: list[Any]) -> int:
    if isinstance(inputs, tuple):
        return sum(_traffic(part, []) for part in inputs) + sum(
            a.nbytes for a in outputs
        )
    return inputs.nbytes
