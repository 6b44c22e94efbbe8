"""Linear algebra beside NumPy, SciPy, JAX: ``python -m benchmarks.linear_algebra``.

Milliseconds a call, of single matrices and of batches of small ones. NumPy computes
float32 in double precision (but for products), and its BLAS and SciPy's use as many
threads as there are cores. All engines' results are compared first: factors by their
product, eigenvectors by their equation.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
from rich.console import Console
from rich.table import Table

import arrayfn as af
from benchmarks import machine, report, timing

Array = Any
Function = Callable[..., Any]
ENGINES = ("arrayfn", "numpy", "scipy", "jax")
SIZES = (16, 128, 1024)
BATCHES = ((1000, 4), (1000, 16), (32, 128))
SLOW = 0.1  # seconds of a call, from which few of each engine are timed
FEW = 5
# Threads of a BLAS look for work for some 25 ms after a call, on cores that are needed.
PAUSE = 0.05
TURNS = 10


@dataclass(frozen=True)
class Problem:
    """A function of NumPy's and JAX's ``linalg``, and SciPy's, which has no batches."""

    name: str
    function: Callable[[Any], Function]
    scipy: Function
    positive: bool = False
    symmetric: bool = False
    sides: int = 0
    largest: int = 1024

    def inputs(self, shape: tuple[int, ...], dtype: Any) -> list[Array]:
        """A matrix or a batch, and right-hand sides."""
        rng = np.random.default_rng(0)
        x = rng.standard_normal((*shape, shape[-1])) / np.sqrt(shape[-1])
        if self.positive:
            x = x @ x.swapaxes(-1, -2) + np.eye(shape[-1])
        if self.symmetric:
            x = x + x.swapaxes(-1, -2)
        given = [x]
        if self.sides:
            given.append(rng.standard_normal((*shape, self.sides)))
        return [x.astype(dtype) for x in given]


PROBLEMS = (
    Problem(
        "cholesky",
        lambda la: la.cholesky,
        lambda x: scipy.linalg.cholesky(x, lower=True, check_finite=False),
        positive=True,
    ),
    Problem(
        "solve, 1 side",
        lambda la: la.solve,
        lambda a, b: scipy.linalg.solve(a, b, check_finite=False),
        sides=1,
    ),
    Problem(
        "solve, n sides",
        lambda la: la.inv,
        lambda x: scipy.linalg.inv(x, check_finite=False),
    ),
    Problem(
        "qr",
        lambda la: lambda x: tuple(la.qr(x)),
        lambda x: scipy.linalg.qr(x, mode="economic", check_finite=False),
    ),
    Problem(
        "svd",
        lambda la: lambda x: tuple(la.svd(x, full_matrices=False)),
        lambda x: scipy.linalg.svd(x, full_matrices=False, check_finite=False),
    ),
    Problem(
        "eigh",
        lambda la: lambda x: tuple(la.eigh(x)),
        lambda x: scipy.linalg.eigh(x, driver="evd", check_finite=False),
        symmetric=True,
    ),
    Problem(
        "eigvals",
        lambda la: la.eigvals,
        lambda x: scipy.linalg.eigvals(x, check_finite=False),
        largest=128,
    ),
)


def engines(problem: Problem, given: list[Array]) -> dict[str, Function]:
    """How each engine calls ``problem`` on its own arrays, to the end."""
    import jax

    jax.config.update("jax_enable_x64", val=True)
    ours = af.jit(problem.function(af.linalg))
    theirs = jax.jit(problem.function(jax.numpy.linalg))
    moved = [jax.device_put(x) for x in given]
    runs: dict[str, Function] = {
        "arrayfn": lambda: ours(*given),
        "numpy": lambda: problem.function(np.linalg)(*given),
        "jax": lambda: jax.block_until_ready(theirs(*moved)),
    }
    if given[0].ndim == 2:
        runs["scipy"] = lambda: problem.scipy(*given)
    return runs


def check(problem: Problem, given: list[Array], runs: dict[str, Function]) -> None:
    """Raise AssertionError unless all engines solve the problem."""
    single = given[0].dtype == np.float32
    bound = 2e-2 if single else 1e-8
    for name, run in runs.items():
        results = run()
        parts = results if isinstance(results, tuple | list) else (results,)
        parts = [np.asarray(part) for part in parts]
        have, want = residual(problem.name, given, parts)
        error = np.abs(have - want).max() / max(1.0, np.abs(want).max())
        assert error < bound, f"{problem.name} of {name}: {error}"


def residual(name: str, given: list[Array], parts: list[Array]) -> tuple[Array, Array]:
    """What two things should be equal, if ``parts`` solve the problem."""
    x = given[0]
    if name == "cholesky":
        return parts[0] @ parts[0].swapaxes(-1, -2), x
    if name.startswith("solve"):
        product = x @ parts[0]
        return product, given[1] if len(given) > 1 else np.eye(len(product[-1]))
    if name == "qr":
        return parts[0] @ parts[1], x
    if name == "svd":
        return parts[0] * parts[1][..., None, :] @ parts[2], x
    if name == "eigh":
        return x @ parts[1], parts[1] * parts[0][..., None, :]
    return parts[0].sum(axis=-1).real, np.trace(x, axis1=-2, axis2=-1)


def measure(
    problem: Problem, shape: tuple[int, ...], dtype: str, seconds: float
) -> dict[str, timing.Timing]:
    """Times of all engines, in turns."""
    given = problem.inputs(shape, dtype)
    runs = engines(problem, given)
    check(problem, given, runs)
    if max(timing.once(run) for run in runs.values()) < SLOW:
        return timing.take_turns(runs, seconds, TURNS, PAUSE)
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(FEW):
        for name, run in runs.items():
            time.sleep(PAUSE)
            samples[name].append(timing.once(run))
    return {name: timing.summary(values) for name, values in samples.items()}


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.linear_algebra")
    parser.add_argument("problems", nargs="*", help="parts of the names of problems")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each row (1)")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float64"])
    parser.add_argument("--no-batches", action="store_true")
    parser.add_argument("--text", type=Path, metavar="FILE", help="store the table")
    chosen = parser.parse_args()
    console = Console(record=True, width=None if sys.stdout.isatty() else 120)
    command = shlex.join(["python", "-m", "benchmarks.linear_algebra", *sys.argv[1:]])
    report.header(console, machine.describe(), command)
    ratios = "numpy / arrayfn", "best of others / arrayfn"
    table = Table("problem", "shape", "dtype", *ENGINES, *ratios)
    shapes: list[tuple[int, ...]] = [(n,) for n in chosen.sizes]
    shapes += [] if chosen.no_batches else BATCHES
    warnings.simplefilter("ignore")
    for problem in PROBLEMS:
        if chosen.problems and not any(p in problem.name for p in chosen.problems):
            continue
        for dtype in chosen.dtypes:
            for shape in (s for s in shapes if s[-1] <= problem.largest):
                times = measure(problem, shape, dtype, chosen.seconds)
                cells = [
                    f"{times[name].median * 1e3:.3f}" if name in times else ""
                    for name in ENGINES
                ]
                ours = times.pop("arrayfn").median
                others = times["numpy"], min(times.values(), key=lambda t: t.median)
                than = [f"{t.median / ours:.2f}" for t in others]
                named = " x ".join(map(str, (*shape, shape[-1])))
                table.add_row(problem.name, named, dtype, *cells, *than)
                line = " ".join([problem.name, named, dtype, *than])
                console.print(f"[dim]{line}[/]")
    console.print(table)
    if chosen.text:
        console.save_text(str(chosen.text))


if __name__ == "__main__":
    main()
