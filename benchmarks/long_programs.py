"""Time to compile long programs; ``python -m benchmarks.long_programs``.

Loops of Python are unrolled by tracing, into programs of 1,000 to 100,000 equations.
The first table has seconds of processor time for each part of arrayfn's work: tracing,
lowering (passes, fusion, kernels, plan) and compiling the kernels, with an empty cache.
The second has loops of 400 iterations beside JAX, from the function to what can be
called, each in a fresh process. XLA takes minutes for some of them: ``--limit`` is the
most seconds that a process may take.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from arrayfn import make_program
from benchmarks.engines import load
from benchmarks.machine import describe

LENGTHS = (1000, 5000, 20_000, 100_000)
STEPS = 400
X = np.linspace(0.1, 0.9, 1000)
V = np.linspace(0.1, 0.9, 8)


def chain(xp: Any, steps: int) -> Callable[..., Any]:
    """Four equations a step."""

    def f(x: Any, y: Any) -> Any:
        for _ in range(steps):
            x = x + 0.01 * xp.sin(x) * y
        return x.sum()

    return f


def tangents(xp: Any, steps: int) -> Callable[..., Any]:
    """Four equations a step, two of them dear."""

    def f(x: Any, y: Any) -> Any:
        for _ in range(steps):
            x = xp.tanh(xp.sin(x) * y + 0.5)
        return x.sum()

    return f


def network(xp: Any, steps: int) -> Callable[..., Any]:
    """Three equations a step, one of them a product."""

    def f(w: Any, x: Any) -> Any:
        for _ in range(steps):
            x = xp.tanh(w @ x + 0.5)
        return x.sum()

    return f


def pendulum(xp: Any, steps: int) -> Callable[..., Any]:
    """Runge and Kutta's method: 34 equations a step."""

    def f(angle: Any, speed: Any) -> Any:
        h = 0.01
        for _ in range(steps):
            a, b = speed, -xp.sin(angle)
            c, d = speed + h / 2 * b, -xp.sin(angle + h / 2 * a)
            p, q = speed + h / 2 * d, -xp.sin(angle + h / 2 * c)
            r, s = speed + h * q, -xp.sin(angle + h * p)
            angle = angle + h / 6 * (a + 2 * c + 2 * p + r)
            speed = speed + h / 6 * (b + 2 * d + 2 * q + s)
        return (angle * angle + speed * speed).sum()

    return f


# By name: the function of an array module and a number of steps, its arguments, and how
# many equations a step has.
Row = tuple[Callable[[Any, int], Callable[..., Any]], tuple[Any, ...], int]
LOOPS: dict[str, Row] = {
    "recurrence": (chain, (X, X), 4),
    "tangents": (tangents, (X, X), 4),
    "network": (network, (np.eye(8) * 0.5, V), 3),
    "pendulum": (pendulum, (V, V), 34),
}


def times(engine: str, name: str, gradient: bool, steps: int) -> list[float]:
    """Seconds of processor time for each part, then of wall time for all.

    The parts are tracing (of arrayfn alone), lowering and compiling.
    """
    e = load(engine)
    make, arguments, _ = LOOPS[name]
    with e.precision("float64"):
        e.jit(lambda x: e.numpy.sin(x) * 2).lower(V).compile()
        function = make(e.numpy, steps)
        function = e.value_and_grad(function) if gradient else function
        found: list[float] = []
        if engine == "arrayfn":
            start = time.process_time()
            make_program(function)(*arguments)
            found.append(time.process_time() - start)
        start, begin = time.process_time(), time.perf_counter()
        lowered = e.jit(function).lower(*arguments)
        found.append(time.process_time() - start)
        start = time.process_time()
        lowered.compile()
        found.append(time.process_time() - start)
        return [*found, time.perf_counter() - begin]


def measured(
    engine: str, name: str, gradient: bool, steps: int, limit: float
) -> list[float] | None:
    """The times in a fresh process with an empty cache; None if it took too long."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.long_programs", "--child"]
        command += [engine, name, str(int(gradient)), str(steps)]
        try:
            done = subprocess.run(
                command,
                env={**os.environ, "ARRAYFN_CACHE_DIR": folder},
                capture_output=True,
                text=True,
                timeout=limit,
                check=True,
            )
        except subprocess.TimeoutExpired:
            return None
    return [float(word) for word in done.stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=300.0)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        engine, name, gradient, steps = chosen.child
        print(*times(engine, name, bool(int(gradient)), int(steps)))
        return
    limit = chosen.limit
    print("python -m benchmarks.long_programs")
    for key, value in describe().items():
        print(f"{key}: {value}")
    print(f"\n{'seconds of processor time':28}{'equations':>10}", end="")
    print(f"{'trace':>10}{'lower':>10}{'compile':>10}{'us an equation':>17}")
    for name, (_, _, equations) in LOOPS.items():
        for length in LENGTHS:
            found = measured("arrayfn", name, False, length // equations, limit)
            text = f"{name:28}{length:10}"
            if found is None:
                print(f"{text}   more than {limit:.0f} s")
                continue
            each = sum(found[:3]) / length * 1e6
            columns = "".join(f"{seconds:10.2f}" for seconds in found[:3])
            print(f"{text}{columns}{each:17.0f}", flush=True)
    print(f"\n{f'{STEPS} iterations, wall seconds':40}", end="")
    print(f"{'arrayfn':>10}{'JAX':>10}{'JAX is':>10}")
    for name in LOOPS:
        for gradient in (False, True):
            pair = [
                measured(engine, name, gradient, STEPS, limit)
                for engine in ("arrayfn", "jax")
            ]
            own, other = (t[-1] if t else None for t in pair)
            cells = [
                f"{t:10.2f}" if t else f"{f'> {limit:.0f}':>10}" for t in (own, other)
            ]
            ratio = f"{other / own:9.1f}x" if own and other else ""
            label = f"{name}, with its gradient" if gradient else name
            print(f"{label:40}{''.join(cells)}{ratio}", flush=True)


if __name__ == "__main__":
    main()
