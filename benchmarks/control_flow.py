"""Loops beside JAX's: ``python -m benchmarks.control_flow [LABEL ...]``.

Scans, a while loop, gradients through them, and a batch of Hessians, each written once
for both engines. Results are compared first. The last columns are the peak resident
memory of a fresh process that compiles and calls the case, imports included, and what
later calls add to it.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks import machine, processes, report, throughput
from benchmarks.cases import Array, Case
from benchmarks.engines import Engine, load

STEPS = 1000


def scalar_scan(e: Engine, start: Array, xs: Array) -> Any:
    """A logistic map that is driven."""

    def step(x: Array, drive: Array) -> Any:
        x = 3.7 * x * (1.0 - x) * 0.9 + 0.01 * drive
        return x, x

    return e.lax.scan(step, start, xs)


def network(e: Engine, w: Array, u: Array, b: Array, h: Array, xs: Array) -> Array:
    """A recurrent network; the mean of its squared states."""
    anp = e.numpy

    def step(h: Array, x: Array) -> Any:
        h = anp.tanh(h @ w + x @ u + b)
        return h, anp.sum(h * h)

    _, totals = e.lax.scan(step, h, xs)
    return anp.mean(totals)


def network_gradient(
    e: Engine, w: Array, u: Array, b: Array, h: Array, xs: Array
) -> Any:
    def loss(w: Array, u: Array, b: Array) -> Array:
        return network(e, w, u, b, h, xs)

    return e.grad(loss, argnums=(0, 1, 2))(w, u, b)


def oscillators(e: Engine, y: Array, k: Array, times: Array) -> Array:
    """Coupled pendulums by the classical Runge-Kutta method; their last energy."""
    anp, n = e.numpy, y.shape[0] // 2
    dt = 0.01

    def velocity(y: Array, t: Array) -> Array:
        angle, speed = y[:n], y[n:]
        pull = anp.sin(anp.roll(angle, 1) - angle) + anp.sin(
            anp.roll(angle, -1) - angle
        )
        push = k * pull - anp.sin(angle) - 0.1 * speed + 0.2 * anp.cos(t)
        return anp.concatenate([speed, push])

    def step(y: Array, t: Array) -> Any:
        k1 = velocity(y, t)
        k2 = velocity(y + 0.5 * dt * k1, t + 0.5 * dt)
        k3 = velocity(y + 0.5 * dt * k2, t + 0.5 * dt)
        k4 = velocity(y + dt * k3, t + dt)
        return y + dt / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4), None

    y, _ = e.lax.scan(step, y, times)
    return 0.5 * anp.sum(y[n:] ** 2) - anp.sum(anp.cos(y[:n]))


def oscillators_gradient(e: Engine, y: Array, k: Array, times: Array) -> Any:
    return e.grad(lambda y, k: oscillators(e, y, k, times), argnums=(0, 1))(y, k)


def stencil(e: Engine, x: Array) -> Array:
    """Heat in a plate whose edges are kept as they are."""

    def step(_: Any, x: Array) -> Array:
        mean = 0.25 * (x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:])
        return x.at[1:-1, 1:-1].set(mean)

    return e.lax.fori_loop(0, 100, step, x)


def mandelbrot(e: Engine, real: Array, imag: Array) -> Array:
    """How long points stay, on the mean: until all are gone, or for 200 steps.

    How long a single one stays depends on the last bit, where it is near the edge.
    """
    anp = e.numpy

    def goes_on(state: Any) -> Array:
        step, _, _, inside, _ = state
        return (step < 200) & anp.any(inside)

    def body(state: Any) -> Any:
        step, x, y, inside, count = state
        new_x = anp.where(inside, x * x - y * y + real, x)
        new_y = anp.where(inside, 2.0 * x * y + imag, y)
        inside = inside & (new_x * new_x + new_y * new_y <= 4.0)
        return step + 1, new_x, new_y, inside, count + anp.where(inside, 1.0, 0.0)

    zero = anp.zeros_like(real)
    inside = real == real
    state = 0, zero, zero, inside, zero
    return anp.mean(e.lax.while_loop(goes_on, body, state)[4])


def hessians(e: Engine, w1: Array, w2: Array, xs: Array) -> Array:
    """The Hessian of a small network by its input, at each of a batch."""
    anp = e.numpy

    def energy(x: Array) -> Array:
        return anp.sum(anp.tanh(anp.tanh(x @ w1) @ w2) ** 2)

    return e.vmap(e.hessian(energy))(xs)


# -------------------------------------------------------------------------- inputs


def scan_inputs(rng: np.random.Generator, dtype: Any, steps: int) -> Any:
    return np.array(0.4, dtype), rng.random(steps).astype(dtype)


def network_inputs(
    rng: np.random.Generator, dtype: Any, steps: int, batch: int, width: int
) -> Any:
    def normal(*shape: int, scale: float = 1.0) -> Array:
        return (rng.standard_normal(shape) * scale).astype(dtype)

    scale = width**-0.5
    weights = [normal(width, width, scale=scale) for _ in range(2)]
    state = normal(batch, width)
    return *weights, normal(width, scale=0.1), state, normal(steps, batch, width)


def oscillator_inputs(
    rng: np.random.Generator, dtype: Any, steps: int, count: int
) -> Any:
    y = rng.standard_normal(2 * count).astype(dtype)
    k = rng.uniform(0.5, 2.0, count).astype(dtype)
    return y, k, (np.arange(steps) * 0.01).astype(dtype)


def plate(rng: np.random.Generator, dtype: Any, n: int, m: int) -> Any:
    return (rng.random((n, m)).astype(dtype),)


def plane(_: np.random.Generator, dtype: Any, n: int, m: int) -> Any:
    real, imag = np.meshgrid(np.linspace(-2.0, 0.6, m), np.linspace(-1.2, 1.2, n))
    return real.astype(dtype), imag.astype(dtype)


def hessian_inputs(rng: np.random.Generator, dtype: Any, batch: int, width: int) -> Any:
    w1, w2 = (rng.standard_normal((width, width)).astype(dtype) for _ in range(2))
    return w1 * width**-0.5, w2 * width**-0.5, rng.random((batch, width)).astype(dtype)


# ----------------------------------------------------------------------- the table


def _case(
    label: str, function: Any, make: Any, shape: Any, new: Any, **how: Any
) -> Case:
    how = {"gradient": True, "streams": False, "startup": True, **how}
    return Case("control", label, function, make, shape, new, **how)


CASES: tuple[Case, ...] = (
    _case("scalar scan", scalar_scan, scan_inputs, (STEPS,), (900,), tolerance=1e-2),
    _case("rnn 8x8", network, network_inputs, (STEPS, 8, 8), (900, 8, 8)),
    _case(
        "rnn 8x8 gradient",
        network_gradient,
        network_inputs,
        (STEPS, 8, 8),
        (900, 8, 8),
        tolerance=1e-3,
    ),
    _case("rnn 512", network, network_inputs, (100, 32, 512), (90, 32, 512)),
    _case(
        "rnn 512 gradient",
        network_gradient,
        network_inputs,
        (100, 32, 512),
        (90, 32, 512),
        tolerance=1e-3,
    ),
    _case(
        "rk4", oscillators, oscillator_inputs, (STEPS, 16), (900, 16), tolerance=1e-3
    ),
    _case(
        "rk4 gradient",
        oscillators_gradient,
        oscillator_inputs,
        (STEPS, 16),
        (900, 16),
        tolerance=1e-3,
    ),
    _case("stencil 100 steps", stencil, plate, (512, 512), (500, 512)),
    _case("mandelbrot", mandelbrot, plane, (512, 512), (500, 512), tolerance=1e-3),
    _case(
        "vmapped hessian", hessians, hessian_inputs, (64, 32), (60, 32), tolerance=1e-3
    ),
)


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.control_flow")
    parser.add_argument("cases", nargs="*", help="parts of the labels of cases")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each case (2)")
    parser.add_argument("--text", type=Path, metavar="FILE", help="store the tables")
    parser.add_argument("--speed", action="store_true", help="no fresh processes")
    chosen = parser.parse_args()
    console = Console(record=True, width=None if sys.stdout.isatty() else 170)
    command = shlex.join(["python", "-m", "benchmarks.control_flow", *sys.argv[1:]])
    report.header(console, machine.describe(), command)
    engines = {name: load(name) for name in ("arrayfn", "jax")}
    wanted = [
        case
        for case in CASES
        if not chosen.cases or any(part in case.label for part in chosen.cases)
    ]
    overhead = throughput.measure_overhead(engines, chosen.seconds)
    console.print(report.overhead_table(overhead))
    rows = []
    for case in wanted:
        console.print(f"[dim]{case.name}[/]")
        rows.append(throughput.measure(case, engines, chosen.seconds))
    console.print(report.throughput_table(rows))
    if not chosen.speed:
        starts = {c.name: processes.measure(c, list(engines), 1) for c in wanted}
        console.print(report.start_table(starts))
    if chosen.text:
        console.save_text(str(chosen.text))


if __name__ == "__main__":
    main()
