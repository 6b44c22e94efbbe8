"""Cold compile, warm start, new shape and peak memory, each in fresh processes."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.cases import Case


@dataclass(frozen=True)
class Start:
    """Medians over processes: seconds and bytes of one engine on one case.

    ``cold`` and ``warm`` are the first call without and with compiled code on disk,
    less the time of a later call: tracing and compiling. ``new_shape`` is the same for
    the first call with another shape, in a warm process. ``cold_total`` and
    ``warm_total`` are imports and the whole first call. ``peak`` is the resident memory
    of the cold process after its first calls, ``growth`` what later calls add at most.
    ``compiled_warm`` counts the files of compiled code that the warm process and its
    new shape added.
    """

    cold: float
    warm: float
    new_shape: float
    cold_total: float
    warm_total: float
    peak: int
    growth: int
    compiled_warm: int


def measure(case: Case, engines: Sequence[str], repeats: int) -> dict[str, Start]:
    """Engines take turns ``repeats`` times; each turn is a cold and a warm process."""
    records: dict[str, list[tuple[Any, Any]]] = {name: [] for name in engines}
    for _ in range(repeats):
        for name in engines:
            with tempfile.TemporaryDirectory(prefix="arrayfn-bench-") as directory:
                cold = _worker(name, case, directory, "cold")
                records[name].append((cold, _worker(name, case, directory, "warm")))
    return {name: _start(turns) for name, turns in records.items()}


def _worker(engine: str, case: Case, directory: str, mode: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.worker"]
    done = subprocess.run(
        [*command, engine, case.name, directory, mode],
        env=os.environ | {"ARRAYFN_CACHE_DIR": directory},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{engine}, {case.name}, {mode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def _start(turns: list[tuple[Any, Any]]) -> Start:
    def median(value: Any) -> Any:
        return statistics.median(value(cold, warm) for cold, warm in turns)

    return Start(
        cold=median(lambda cold, _: cold["first_s"] - cold["steady_s"]),
        warm=median(lambda _, warm: warm["first_s"] - warm["steady_s"]),
        new_shape=median(
            lambda _, warm: warm["new_shape_s"] - warm["new_shape_steady_s"]
        ),
        cold_total=median(lambda cold, _: cold["import_s"] + cold["first_s"]),
        warm_total=median(lambda _, warm: warm["import_s"] + warm["first_s"]),
        peak=int(median(lambda cold, _: cold["peak_bytes"])),
        growth=int(median(lambda _, warm: warm["growth_bytes"])),
        compiled_warm=int(median(lambda _, warm: warm["stored"])),
    )
