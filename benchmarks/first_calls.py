"""First calls of one engine in this process: ``python -m benchmarks.first_calls jax``.

Prints one line of JSON: for each of ``PROGRAMS`` the wall and CPU seconds (of all
threads) of its first call, less those of a later one. ``compiler`` runs it.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from benchmarks.cases import CASES, Case
from benchmarks.engines import Engine, load

PROGRAMS: Final = (
    "mlp batch 256 hidden 1024 f32",
    "chain 1M f32",
    "softmax 4096x1024 f32",
    "layernorm_grad 4096x1024 f32",
    "black_scholes 1M f32",
)
Times = list[tuple[float, float]]


def now() -> tuple[float, float]:
    """Wall and CPU seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter(), used.ru_utime + used.ru_stime


def spent(run: Callable[[], Any]) -> tuple[float, float]:
    """Wall and CPU seconds of ``run``."""
    before = now()
    run()
    after = now()
    return after[0] - before[0], after[1] - before[1]


def first_call(engine: Engine, case: Case) -> tuple[float, float]:
    """The first call of a case, less a later one."""
    compiled = engine.jit(lambda *inputs: case.function(engine, *inputs))
    inputs = engine.put(case.inputs())

    def run() -> None:
        engine.wait(compiled(*inputs))

    first, later = spent(run), min(spent(run) for _ in range(3))
    return first[0] - later[0], first[1] - later[1]


def main() -> None:
    """Run the programs with the command line's engine."""
    engine = load(sys.argv[1])
    named = {case.name: case for case in CASES}
    print(json.dumps([first_call(engine, named[name]) for name in PROGRAMS]))


if __name__ == "__main__":
    main()
