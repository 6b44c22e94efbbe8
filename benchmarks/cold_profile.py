"""Where the first call of a training step goes: ``python -m benchmarks.cold_profile``.

Runs the step's first call in this process with an empty cache, and prints the time of
each part. LLVM works in threads beside the rest, so its row is time summed over them.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

os.environ["ARRAYFN_CACHE_DIR"] = tempfile.mkdtemp(prefix="arrayfn-cold-")
_BEGIN = time.perf_counter()

from arrayfn.backends.cpu import code, executable  # noqa: E402
from arrayfn.backends.native import compiler as native_compiler  # noqa: E402
from arrayfn.backends.native import target  # noqa: E402
from arrayfn.compilation import compiler  # noqa: E402
from arrayfn.lowering import lower  # noqa: E402
from arrayfn.transforms import gradients  # noqa: E402
from benchmarks.cases import CASES  # noqa: E402
from benchmarks.engines.with_arrayfn import ENGINE  # noqa: E402

_IMPORTED = time.perf_counter()
_TOTALS: dict[str, float] = {}
_LOCK = threading.Lock()


def timed(label: str, module: Any, name: str) -> None:
    """Add the time of every call of ``module.name`` to ``label``."""
    function: Callable[..., Any] = getattr(module, name)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            with _LOCK:
                spent = time.perf_counter() - begin
                _TOTALS[label] = _TOTALS.get(label, 0.0) + spent

    setattr(module, name, wrapper)


def main() -> None:
    """Print the table for the larger training step."""
    timed("trace the step (with its gradient)", compiler, "trace_function")
    timed("  of which: differentiate the loss", gradients, "grad_program")
    timed("passes", lower, "run_passes")
    timed("fuse", lower, "fuse")
    timed("nests of fused groups", lower, "build_nest")
    timed("print kernels", lower, "print_kernel")
    timed("start the runtime (compiles it, too)", executable, "runtime")
    timed("native routines to LLVM IR", native_compiler, "compile_module")
    timed("kernels to LLVM IR", code, "_ir")
    timed("LLVM, summed over threads", target.PreparedModule, "compile")
    (case,) = (c for c in CASES if c.name == "mlp batch 256 hidden 1024 f32")
    engine = ENGINE()
    step = engine.jit(lambda *inputs: case.function(engine, *inputs))
    inputs = case.inputs()
    begin = time.perf_counter()
    step(*inputs)
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    step(*inputs)
    again = time.perf_counter() - begin
    table = Table("part", "ms", title=f"First call of {case.name}, nothing cached")
    table.add_row("import arrayfn", f"{(_IMPORTED - _BEGIN) * 1e3:.0f}")
    for label, spent in _TOTALS.items():
        table.add_row(label, f"{spent * 1e3:.1f}")
    table.add_row("first call", f"{first * 1e3:.0f}")
    table.add_row("second call", f"{again * 1e3:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
