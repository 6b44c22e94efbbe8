"""Cold compiles beside JAX and another checkout: ``python -m benchmarks.compiler``.

Each engine runs the programs of ``first_calls`` one after the other in a fresh process,
with nothing cached: so the first has what a process pays once, such as importing Numba.
Medians over ``--repeats`` processes, in which engines take turns. A second table has
the parts of a kernel's compilation: Numba's front end and LLVM, beside ``numba.njit``
on the same text. ``--baseline`` is the folder of another checkout of arrayfn; ``--jax``
the Python to run JAX with.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numba
from rich.console import Console
from rich.table import Table

from arrayfn.backends.cpu import kernel_compiler, vocabulary
from arrayfn.backends.native import target
from arrayfn.backends.numba.functions import printed_function
from arrayfn.lowering import scalars
from arrayfn.lowering.plan import Kernel
from benchmarks.cases import CASES
from benchmarks.engines import load
from benchmarks.first_calls import PROGRAMS, Times, spent

HERE: Final = Path(__file__).parents[1]
VOCABULARIES: Final = {kernel_compiler.VOCABULARY: scalars}


def kernels() -> Iterator[tuple[str, Kernel]]:
    """The kernels of the programs, with a name for each."""
    engine = load("arrayfn")
    seen: set[str] = set()
    for case in (case for case in CASES if case.name in PROGRAMS):
        jitted: Any = engine.jit(lambda *x, c=case: c.function(engine, *x))
        for kernel in jitted.lower(*case.inputs()).kernels:
            if isinstance(kernel, Kernel) and kernel.key not in seen:
                seen.add(kernel.key)
                yield f"{case.group} {kernel.name}", kernel


def parts(kernel: Kernel) -> list[float]:
    """CPU seconds of a kernel's front end, of LLVM, and of ``numba.njit``."""
    kinds = [vocabulary.DIALECT.parameter_type(p.kind) for p in kernel.parameters]
    text = kernel.key, kernel.compiled_name

    def front_end() -> str:
        return kernel_compiler.kernel_ir(*text, kernel.parameters, "entry")

    def optimise() -> bytes:
        return target.prepare_vectorized(module, interleave=False).compile()

    def stock() -> None:
        function = numba.njit(printed_function(*text, VOCABULARIES))
        function.compile((*kinds, numba.types.int64, numba.types.int64))

    module = front_end()
    runs: tuple[Callable[[], Any], ...] = front_end, optimise, stock
    return [min(spent(run)[1] for _ in range(3)) for run in runs]


def measure(engine: str, python: str, checkout: Path) -> Times:
    """The programs in a fresh process of ``python``, with arrayfn of ``checkout``."""
    with tempfile.TemporaryDirectory(prefix="arrayfn-compiler-") as directory:
        environment = os.environ | {
            "ARRAYFN_CACHE_DIR": directory,
            "PYTHONPATH": str(checkout),
        }
        done = subprocess.run(
            [python, "-P", str(HERE / "benchmarks" / "first_calls.py"), engine],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{engine}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compiler")
    parser.add_argument("--baseline", type=Path, help="another checkout of arrayfn")
    parser.add_argument("--jax", default=sys.executable, help="the Python that has JAX")
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    engines = {"arrayfn": ("arrayfn", sys.executable, HERE)}
    if chosen.baseline:
        engines["baseline"] = ("arrayfn", sys.executable, chosen.baseline)
    engines["JAX"] = ("jax", chosen.jax, HERE)
    turns: dict[str, list[Times]] = {name: [] for name in engines}
    for _ in range(chosen.repeats):
        for name, engine in engines.items():
            turns[name].append(measure(*engine))
    console = Console(width=120)
    columns = [f"{name} {kind}, ms" for name in engines for kind in ("wall", "CPU")]
    title = "First calls in one process, nothing cached"
    table = Table("program", *columns, title=title)
    for k, program in enumerate(PROGRAMS):
        figures = [
            statistics.median(turn[k][kind] for turn in turns[name])
            for name in engines
            for kind in range(2)
        ]
        table.add_row(program, *(f"{1e3 * figure:.0f}" for figure in figures))
    console.print(table)
    titles = ("kernel", "front end, CPU ms", "LLVM", "numba.njit")
    table = Table(*titles, title="Compiling a kernel")
    rows = [(name, parts(kernel)) for name, kernel in kernels()]
    sums = [sum(row[k] for _, row in rows) for k in range(3)]
    rows.append(("all", sums))
    for name, figures in rows:
        table.add_row(name, *(f"{1e3 * figure:.1f}" for figure in figures))
    console.print(table)


if __name__ == "__main__":
    main()
