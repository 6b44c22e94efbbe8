"""A saved training step, loaded by fresh processes: the time to load, and to call.

    python -m benchmarks.saved

The step is Adam's, of a network of three layers. It is saved with its parameters and
the state of its optimizer, once for open sizes (``Dim``), once for five sizes. A first
process makes the kernels; the figures are of those after it: milliseconds of CPU time,
medians of some processes, without the import of arrayfn.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

import arrayfn as af
import arrayfn.numpy as anp

SIZES: Final = (8, 32, 100, 333, 1024)
PROCESSES: Final = 7


def saved_step(folder: Path) -> list[Path]:
    """Two bundles of the step: one for any batch, one with five signatures."""
    rng = np.random.default_rng(0)
    shapes = ((16, 64), (64, 64), (64, 4))
    params = [
        (rng.standard_normal(s).astype("f4"), np.zeros(s[1], "f4")) for s in shapes
    ]
    optimizer = af.optim.adam(1e-3)

    def loss(p: Any, x: Any, y: Any) -> Any:
        for w, b in p[:-1]:
            x = anp.tanh(x @ w + b)
        w, b = p[-1]
        return anp.mean((x @ w + b - y) ** 2)

    def step(p: Any, state: Any, x: Any, y: Any) -> Any:
        value, slopes = af.value_and_grad(loss)(p, x, y)
        updates, state = optimizer.update(slopes, state, p)
        return value, af.optim.apply_updates(p, updates), state

    def rows(n: Any, columns: int) -> Any:
        return af.ShapeDtypeStruct((n, columns), "float32")

    state = optimizer.init(params)
    jitted = af.jit(step)
    arrays = {"params": params, "state": state}

    def lowered(n: Any) -> Any:
        return jitted.lower(params, state, rows(n, 16), rows(n, 4))

    af.save(lowered(af.Dim("n")), folder / "open", arrays=arrays)
    af.save([lowered(n) for n in SIZES], folder / "five", arrays=arrays)
    return [folder / "open", folder / "five"]


def load_and_call(folder: str) -> dict[str, Any]:
    """CPU seconds of ``load`` and of the first call for each size."""
    begin = time.process_time()
    step = af.load(folder)
    times = [time.process_time() - begin]
    params, state = step.arrays["params"], step.arrays["state"]
    for n in SIZES:
        x, y = np.ones((n, 16), "f4"), np.ones((n, 4), "f4")
        begin = time.process_time()
        step(params, state, x, y)
        times.append(time.process_time() - begin)
    return {"times": times, "has_numba": "numba" in sys.modules}


def main() -> None:
    """The table."""
    if len(sys.argv) > 1:
        sys.stdout.write(json.dumps(load_and_call(sys.argv[1])))
        return
    sizes = " ".join(f"n={n:<6d}" for n in SIZES)
    sys.stdout.write(f"{'':6s} {'load':8s} {sizes} all of it, ms of CPU time\n")
    with tempfile.TemporaryDirectory() as name:
        environment = os.environ | {"ARRAYFN_CACHE_DIR": f"{name}/cache"}
        for folder in saved_step(Path(name)):
            command = [sys.executable, "-m", "benchmarks.saved", str(folder)]
            done = [
                json.loads(subprocess.check_output(command, env=environment))
                for _ in range(1 + PROCESSES)
            ]
            runs = [[1e3 * t for t in one["times"]] for one in done[1:]]
            medians = [statistics.median(column) for column in zip(*runs, strict=True)]
            total = statistics.median(map(sum, runs))
            cells = " ".join(f"{t:<8.1f}" for t in medians)
            sys.stdout.write(f"{folder.name:6s} {cells} {total:.1f}\n")


if __name__ == "__main__":
    main()
