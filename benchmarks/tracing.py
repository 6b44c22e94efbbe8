"""Time to trace and to differentiate long programs; ``python -m benchmarks.tracing``.

A function of so many equations on eight floats is traced to its program, and to that of
its gradient, by arrayfn (``make_program``) and by JAX (``make_jaxpr``), in turns in one
process. Nothing is compiled or run. Each time is of a function that was not traced
before; JAX's own caches (of the rules it compiles) are warm.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import arrayfn as af
import arrayfn.numpy as anp
from benchmarks.machine import describe

LENGTHS = (1000, 3000, 10_000)
X = np.linspace(0.1, 0.9, 8, dtype=np.float32)


def chain(xp: Any, length: int) -> Callable[[Any], Any]:
    """A function of about ``length`` equations: sines, products, sums, tangents."""

    def f(x: Any) -> Any:
        y = x
        for _ in range(length // 4):
            y = xp.tanh(xp.sin(y) * x + 0.5)
        return y.sum()

    return f


# What is timed, by name: for arrayfn and for JAX, of a function.
Trace = Callable[[Callable[[Any], Any]], Any]
TASKS: dict[str, tuple[Trace, Trace]] = {
    "trace": (
        lambda f: af.make_program(f)(X),
        lambda f: jax.make_jaxpr(f)(X),
    ),
    "gradient": (
        lambda f: af.make_program(af.grad(f))(X),
        lambda f: jax.make_jaxpr(jax.grad(f))(X),
    ),
    "gradient of vmap": (
        lambda f: af.make_program(
            af.grad(lambda x: af.vmap(f)(anp.stack([x, x])).sum())
        )(X),
        lambda f: jax.make_jaxpr(
            jax.grad(lambda x: jax.vmap(f)(jnp.stack([x, x])).sum())
        )(X),
    ),
    "hessian-vector product": (
        lambda f: af.make_program(lambda x: af.jvp(af.grad(f), (x,), (x,))[1])(X),
        lambda f: jax.make_jaxpr(lambda x: jax.jvp(jax.grad(f), (x,), (x,))[1])(X),
    ),
}


def seconds(trace: Trace, xp: Any, length: int) -> float:
    """One trace of a new function."""
    function = chain(xp, length)
    gc.collect()
    start = time.perf_counter()
    trace(function)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print("python -m benchmarks.tracing")
    for key, value in describe().items():
        print(f"{key}: {value}")
    print()
    print(
        f"{'':24}{'equations':>10}{'arrayfn':>10}{'JAX':>10}{'JAX is':>9}"
        f"{'us an equation':>17}"
    )
    for name, (ours, theirs) in TASKS.items():
        for length in LENGTHS:
            seconds(ours, anp, 40)
            seconds(theirs, jnp, 40)
            times: tuple[list[float], list[float]] = ([], [])
            for _ in range(rounds):
                times[0].append(seconds(ours, anp, length))
                times[1].append(seconds(theirs, jnp, length))
            own, other = (statistics.median(t) for t in times)
            each = [f"{t / length * 1e6:.1f}" for t in (own, other)]
            print(
                f"{name:24}{length:10}{own * 1e3:7.0f} ms{other * 1e3:7.0f} ms"
                f"{other / own:8.1f}x{each[0]:>9}{each[1]:>8}"
            )


if __name__ == "__main__":
    main()
