"""Weights that freeze casts: their size, and the time of products with them.

    python -m benchmarks.weights

A chain of square layers is computed for one row (bound by reading weights) and for some
rows, with float32 weights and with each cast. The columns are megabytes of weights, the
milliseconds of the fastest of some calls, and the largest error of a result in terms of
the largest result.
"""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.compilation.weight_recipes import CASTS

LAYERS: Final = 4
WIDTH: Final = 4096
ROWS: Final = (1, 64)
CALLS: Final = 20


def layers(x: Any, weights: Any) -> Any:
    """The layers on rows ``x``."""
    for w in weights:
        x = anp.tanh(x @ w)
    return x


def fastest(function: Any, *args: Any) -> float:
    """Milliseconds of the fastest call."""
    times: list[float] = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        function(*args)
        times.append(time.perf_counter() - begin)
    return 1e3 * min(times)


def main() -> None:
    """Print a row for each cast."""
    rng = np.random.default_rng(0)
    shape = (LAYERS, WIDTH, WIDTH)
    weights = rng.standard_normal(shape).astype("f4") / WIDTH**0.5
    x = rng.standard_normal((max(ROWS), WIDTH)).astype("f4")
    exact = layers(x, weights)
    print(f"{'weights':14} {'MB':>6}", *(f"{n:4} rows" for n in ROWS), "   error")
    for cast in ("float32", *CASTS):
        recipes = False if cast == "float32" else cast
        function = af.jit(lambda x: layers(x, weights), freeze=recipes)
        values = function.lower(x).program.constant_values
        megabytes = sum(value.nbytes for value in values) / 1e6
        error = np.abs(function(x) - exact).max() / np.abs(exact).max()
        times = [fastest(function, x[:n]) for n in ROWS]
        shown = (f"{ms:9.2f}" for ms in times)
        print(f"{cast:14} {megabytes:6.1f}", *shown, f"{error:8.1e}")


if __name__ == "__main__":
    main()
