"""One function on arrayfn and beside it on others: results compared, times in turns."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import arrayfn as af
from benchmarks import machine
from benchmarks.timing import take_turns

Run = Callable[[], Any]
WIDTH = 34


@dataclass(frozen=True)
class Row:
    """A line of the table: what each library computes, the first of them arrayfn's.

    ``tolerance`` bounds the difference from arrayfn's results, relative to the largest
    element. ``work`` is the number of operations, for a column of GFLOP/s, or 0.
    """

    name: str
    runs: Mapping[str, Run]
    tolerance: float
    work: float = 0.0


def main(title: str, rows: Callable[[], Iterable[Row]]) -> None:
    """Print the table of ``rows``; the arguments select some by name."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("names", nargs="*", help="parts of names of rows; all if none")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each row")
    options = parser.parse_args()
    print(f"# {title}")
    for key, value in machine.describe().items():
        print(f"# {key}: {value}")
    print("# milliseconds, medians; 'x' is that library's time over arrayfn's")
    for row in rows():
        if options.names and not any(name in row.name for name in options.names):
            continue
        print(line(row, options.seconds), flush=True)


def line(row: Row, seconds: float) -> str:
    """Check the results of ``row``, and time it."""
    same = compare(row)
    times = take_turns(row.runs, seconds, rounds=3)
    first, *others = row.runs
    base = times[first].median
    parts = [f"{first} {1e3 * base:9.3f}"]
    parts += [
        f"{name} {1e3 * times[name].median:9.3f} ({times[name].median / base:5.2f}x)"
        for name in others
    ]
    if row.work:
        parts.append(f"{row.work / base / 1e9:6.1f} GFLOP/s")
    bits = "same bits" if same else "DIFFERENT BITS"
    return f"{row.name:{WIDTH}} " + "  ".join([*parts, bits])


def compare(row: Row) -> bool:
    """Whether one thread, two and all agree in bits; AssertionError if libraries don't.

    NaNs are compared too, and complex numbers.
    """
    first, *others = row.runs
    before = af.get_num_threads()
    results = []
    for threads in (1, 2, before):
        af.set_num_threads(threads)
        results.append(_leaves(row.runs[first]()))
    af.set_num_threads(before)
    for name in others:
        for a, b in zip(results[0], _leaves(row.runs[name]()), strict=True):
            assert a.shape == b.shape, (row.name, name, a.shape, b.shape)
            finite = np.isfinite(b)
            scale = np.max(np.abs(b[finite]), initial=0.0) or 1.0
            assert np.array_equal(finite, np.isfinite(a)), (row.name, name)
            error = np.max(np.abs(a[finite] - b[finite]), initial=0.0) / scale
            assert error <= row.tolerance, (row.name, name, error)
    return len({tuple(x.tobytes() for x in result) for result in results}) == 1


def _leaves(value: Any) -> list[Any]:
    values = value if isinstance(value, (tuple, list)) else [value]
    return [np.asarray(x) for x in values]


def jax_run(function: Callable[..., Any], *arguments: Any) -> Run:
    """``function`` under JAX's jit, on its own arrays."""
    import jax  # the other columns do without

    jax.config.update("jax_enable_x64", True)
    compiled = jax.jit(function)
    given = [jax.numpy.asarray(x) for x in arguments]
    return lambda: jax.block_until_ready(compiled(*given))
