"""Measure one case on one engine in this process: ``python -m benchmarks.worker``.

Arguments: engine, case, the directory for compiled code, and ``cold`` or ``warm``.
Prints one line of JSON. ``cold`` expects an empty directory and leaves it filled;
``warm`` finds there what a cold run left.
"""

from __future__ import annotations

import ctypes
import gc
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STARTED = time.perf_counter()

from benchmarks import cases, control_flow  # noqa: E402 (imports are part of the time)
from benchmarks.cases import Case  # noqa: E402
from benchmarks.engines import Engine, load  # noqa: E402

Status = dict[str, int]
CASES = {c.name: c for c in (*cases.CASES, cases.OVERHEAD, *control_flow.CASES)}


def status() -> Status:
    """Resident memory now (VmRSS) and at its peak (VmHWM), in bytes."""
    text = Path("/proc/self/status").read_text()
    return {
        name: int(size) * 1024
        for name, size in re.findall(r"^(VmRSS|VmHWM):\s*(\d+) kB", text, re.MULTILINE)
    }


def growth(run: Callable[[], object], calls: int = 5) -> int:
    """Bytes by which resident memory rises at most during calls after the first."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = status()["VmRSS"]
    for _ in range(calls):
        run()
    return max(0, status()["VmHWM"] - before)


def seconds(run: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def steady(run: Callable[[], object]) -> float:
    """Seconds of a call once everything is compiled."""
    return min(seconds(run) for _ in range(3))


def files(directory: str) -> int:
    """How many files there are below ``directory``."""
    return sum(path.is_file() for path in Path(directory).rglob("*"))


def measure(engine: Engine, case: Case, directory: str, mode: str) -> dict[str, Any]:
    """First call and its memory; in a warm process, a new shape's first call too."""

    def caller(shape: tuple[int, ...]) -> Callable[[], None]:
        inputs = engine.put(case.inputs(shape))
        return lambda: engine.wait(compiled(*inputs))

    if mode == "warm":
        engine.store_in(directory)
    compiled = engine.jit(lambda *inputs: case.function(engine, *inputs))
    run = caller(case.shape)
    stored = files(directory)
    record: dict[str, Any] = {
        "first_s": seconds(run),
        "numba": "numba" in sys.modules,
        "steady_s": steady(run),
        "peak_bytes": status()["VmHWM"],
        "growth_bytes": growth(run),
    }
    if mode == "cold":
        engine.store_in(directory)
        caller(case.shape)()
        return record
    run = caller(case.new_shape)
    return record | {
        "new_shape_s": seconds(run),
        "new_shape_steady_s": steady(run),
        "stored": files(directory) - stored,
    }


def main() -> None:
    """Run with the command line's engine, case, directory and mode."""
    engine_name, case_name, directory, mode = sys.argv[1:]
    case, engine = CASES[case_name], load(engine_name)
    imported = time.perf_counter() - STARTED
    with engine.precision(case.dtype):
        record = measure(engine, case, directory, mode)
    print(json.dumps({"import_s": imported, **record}))


if __name__ == "__main__":
    main()
