"""arrayfn beside JAX on one GPU: ``python -m benchmarks.gpu``.

Each case is one function of an array module, run by both engines on their own arrays,
and by NumPy in float64, with which both results are compared before anything is timed
(rows that do not depend on each other in part: the first, the last and those between).
Engines take turns; a time is the median over rounds of many calls enqueued one after
the other, waited for once. Inputs rotate, so that they come from memory and not from
its cache, where they are large enough to. ``of copy`` is the case's least traffic
(inputs read once, outputs written once) over its time, as a share of the rate at which
the card copies as many bytes, enqueued by native code. JAX computes products in full
float32, as arrayfn does, except where TF32 is asked of both. Steps, attention and the
largest products are compared with JAX's results, whose own error is then not known.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.backends.cuda.device_array import DeviceArray, device_put
from arrayfn.backends.cuda.driver import device
from arrayfn.errors import ArrayfnError
from benchmarks.gpu_cases import Case, affine, inputs_of, of_group, step_of
from benchmarks.gpu_copies import copies

jax.config.update("jax_default_matmul_precision", "highest")

Array = np.ndarray[Any, Any]
WIDE: Final = ("float64", "complex128")
ROUNDS: Final = 5
ROUND_SECONDS: Final = 0.02
ROTATED_BYTES: Final = 512 << 20
MOST_SETS: Final = 8
COMPARED_ELEMENTS: Final = 1 << 22  # of what is computed by rows


@dataclass(frozen=True)
class Engine:
    """How a library makes arrays and functions, and waits for a result."""

    name: str
    xp: Any
    jit: Callable[[Callable[..., Any], Case | None], Callable[..., Any]]
    put: Callable[[Array], Any]
    wait: Callable[[Any], Any]
    value_and_grad: Any

    def function(self, case: Case) -> Callable[..., Any]:
        """The compiled function of ``case``."""
        if case.is_step:
            step = step_of(case, self.xp, self.value_and_grad)
            return self.jit(step, case)
        return self.jit(lambda *a: case.function(self.xp, *a), case)


def wait_for_arrayfn(result: Any) -> None:
    """Wait for a result, or the first of several."""
    first: DeviceArray = result[0] if isinstance(result, tuple) else result
    first.block_until_ready()


def jitted(function: Callable[..., Any], case: Case | None) -> Callable[..., Any]:
    """``function`` on the GPU as the case says."""
    if case is None:
        return af.jit(function, device="cuda")
    options: dict[str, Any] = {"mode": case.mode, "deterministic": case.deterministic}
    return af.jit(function, device="cuda", **options)


ENGINES: Final = (
    Engine(
        "arrayfn",
        anp,
        jitted,
        device_put,
        wait_for_arrayfn,
        af.value_and_grad,
    ),
    Engine(
        "JAX",
        jnp,
        lambda f, case: jax.jit(f),
        jnp.asarray,
        jax.block_until_ready,
        jax.value_and_grad,
    ),
)


def error_of(have: Any, want: Array) -> float:
    """The relative error, in the norm; 0 for nothing."""
    wide = np.result_type(want.dtype, np.float64)
    have = np.asarray(have).astype(wide)
    if not np.isfinite(have).all():
        return float("inf")
    return float(np.linalg.norm(have - want) / (np.linalg.norm(want) or 1.0))


def widened(array: Any) -> Array:
    """An array in double precision."""
    host = np.asarray(array)
    return host.astype(np.complex128 if host.dtype.kind == "c" else np.float64)


def check(case: Case, results: Sequence[Any], arrays: Sequence[Array]) -> list[float]:
    """Each engine's error against NumPy in float64, or ours against JAX."""
    if case.is_step or case.by_jax:
        ours, theirs = (r if isinstance(r, (tuple, list)) else (r,) for r in results)
        pairs = zip(map(_some, ours), map(_some, theirs), strict=True)
        return [max(error_of(x, widened(y)) for x, y in pairs), 0.0]
    rows = compared_rows(arrays[0]) if case.by_rows else slice(None)
    is_cut = [case.by_rows and a.shape == arrays[0].shape for a in arrays]
    operands = (a[rows] if cut else a for a, cut in zip(arrays, is_cut, strict=True))
    reference = case.function(np, *map(widened, operands))
    if case.by_rows:
        results = [np.asarray(result)[rows] for result in results]
    return [error_of(result, reference) for result in results]


def compared_rows(array: Array) -> Array:
    """Numbers of rows, the first and last ones too; all if ``array`` is small."""
    rows = array.shape[0]
    count = max(2, rows * COMPARED_ELEMENTS // array.size)
    return np.unique(np.linspace(0, rows - 1, min(count, rows)).astype(np.int64))


def _some(result: Any) -> Array:
    """A result, or the first rows of a large one."""
    host = np.asarray(result)
    return host[:1024] if host.ndim == 2 else host


def time_calls(call: Callable[[int], Any], wait: Callable[[Any], Any]) -> float:
    """Seconds of one call, of many enqueued."""

    def enqueue(count: int) -> Any:
        result = None
        for k in range(count):
            result = call(k)
        return result

    return time_many(enqueue, wait)


def time_many(enqueue: Callable[[int], Any], wait: Callable[[Any], Any]) -> float:
    """Seconds of one call, of many that ``enqueue`` makes."""
    count = 1
    while True:
        wait(enqueue(1))
        start = time.perf_counter()
        wait(enqueue(count))
        seconds = time.perf_counter() - start
        if seconds >= ROUND_SECONDS or count >= 1 << 14:
            return seconds / count
        count *= 4 if seconds < ROUND_SECONDS / 8 else 2


def copy_seconds(nbytes: int) -> float:
    """How long the card takes to read and write ``nbytes`` in all."""
    gpu = device()
    half = max(1, nbytes // 2)
    sets = max(1, min(MOST_SETS, ROTATED_BYTES // nbytes))
    memory = [(gpu.allocate(half), gpu.allocate(half)) for _ in range(sets)]
    enqueue = copies(memory, half)
    times = [time_many(enqueue, lambda _: gpu.synchronize()) for _ in range(3)]
    for pair in memory:
        for pointer in pair:
            gpu.free(pointer)
    return statistics.median(times)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    case: Case
    seconds: tuple[float, ...]
    first: tuple[float, ...]
    errors: tuple[float, ...]
    nbytes: int
    copy: float


def bytes_of(result: Any) -> int:
    """The bytes of a result, or of several."""
    parts = result if isinstance(result, tuple) else (result,)
    return sum(int(np.prod(p.shape)) * np.dtype(p.dtype).itemsize for p in parts)


def measure(case: Case) -> Row:
    """Check ``case``, and time it."""
    one = inputs_of(case, 0)
    nbytes = sum(a.nbytes for a in one)
    sets = max(1, min(MOST_SETS, ROTATED_BYTES // nbytes))
    functions, given, results, first = [], [], [], []
    for engine in ENGINES:
        function = engine.function(case)
        arrays = [[engine.put(a) for a in one]]
        start = time.perf_counter()
        results.append(function(*arrays[0]))
        engine.wait(results[-1])
        first.append(time.perf_counter() - start)
        functions.append(function)
        given.append(arrays)
    nbytes += bytes_of(results[0])
    errors = check(case, results, one)
    for _ in range(1, sets):
        # The values may be the same: what rotates is memory.
        for engine, arrays in zip(ENGINES, given, strict=True):
            arrays.append([engine.put(a) for a in one])
    results.clear()
    times: list[list[float]] = [[] for _ in ENGINES]
    for _ in range(ROUNDS):
        for k, engine in enumerate(ENGINES):
            function, arrays = functions[k], given[k]
            call = lambda n, f=function, a=arrays: f(*a[n % len(a)])  # noqa: E731
            times[k].append(time_calls(call, engine.wait))
    copy = 0.0 if case.flops else copy_seconds(nbytes)
    medians = tuple(statistics.median(t) for t in times)
    return Row(case, medians, tuple(first), tuple(errors), nbytes, copy)


def line(row: Row) -> str:
    """One line of the table."""
    case, (ours, theirs) = row.case, row.seconds
    worst = max(row.errors)
    rate = (
        f"{case.flops / ours / 1e12:8.1f} TFLOP/s"
        if case.flops
        else f"{row.nbytes / ours / 1e9:8.0f} GB/s   "
    )
    share = f"{row.copy / ours:7.0%}" if row.copy else "      -"
    wrong = "" if worst <= case.bound else f"  WRONG (bound {case.bound:.0e})"
    return (
        f"{case.group:15} {case.size:>13} {ours * 1e6:10.1f} {theirs * 1e6:10.1f}"
        f" {theirs / ours:7.2f}x {rate} {share} {row.errors[0]:9.1e}"
        f" {row.errors[1]:9.1e}{wrong}"
    )


def latency() -> str:
    """A call that is waited for, and one that is not."""
    lines = []
    for engine in ENGINES:
        function = engine.jit(lambda x, xp=engine.xp: affine(xp, x), None)
        x = engine.put(np.ones(16, np.float32))
        engine.wait(function(x))
        waited, enqueued = [], []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            for _ in range(1000):
                engine.wait(function(x))
            waited.append((time.perf_counter() - start) / 1000)
            start = time.perf_counter()
            result = function(x)
            for _ in range(999):
                result = function(x)
            enqueued.append((time.perf_counter() - start) / 1000)
            engine.wait(result)
        both = [statistics.median(times) * 1e6 for times in (enqueued, waited)]
        lines.append(
            f"{engine.name:8} call of 16 elements: {both[0]:.1f} us to enqueue, "
            f"{both[1]:.1f} us waited for"
        )
    return "\n".join(lines)


def first_calls(cases: Sequence[Case]) -> None:
    """Have both engines compile ``cases``; what they store serves later runs."""
    for case in cases:
        jax.config.update("jax_enable_x64", case.dtype == "float64")
        one = inputs_of(case, 0)
        for engine in ENGINES:
            try:
                engine.wait(engine.function(case)(*(engine.put(a) for a in one)))
            except (ArrayfnError, RuntimeError) as error:
                print(f"{engine.name} {case.group} {case.size}: {error}", flush=True)


def main(chosen: Sequence[str]) -> None:
    """Measure the groups whose names begin with one of ``chosen``, or all."""
    print("command: python -m benchmarks.gpu", *chosen)
    print(
        f"card: {device().name}; Python {platform.python_version()}, NumPy "
        f"{np.__version__}, JAX {jax.__version__}"
    )
    print(latency())
    print(
        f"{'case':15} {'size':>13} {'arrayfn us':>10} {'JAX us':>10} {'faster':>8}"
        f" {'arrayfn rate':>16} {'of copy':>7} {'error':>9} {'JAX err':>9}",
        flush=True,
    )
    first = [0.0 for _ in ENGINES]
    for case in of_group(chosen):
        jax.config.update("jax_enable_x64", case.dtype in WIDE)
        try:
            row = measure(case)
        except ArrayfnError as error:
            print(f"{case.group:15} {case.size:>13} FAILED: {error}", flush=True)
            continue
        first = [a + b for a, b in zip(first, row.first, strict=True)]
        print(line(row), flush=True)
    totals = ", ".join(
        f"{e.name} {seconds:.1f} s" for e, seconds in zip(ENGINES, first, strict=True)
    )
    print(f"first calls together: {totals}")


def parsed(arguments: Sequence[str]) -> tuple[list[str], tuple[int, int] | None]:
    """The groups, and which part of how many is only to be compiled."""
    parser = argparse.ArgumentParser(description="arrayfn beside JAX on one GPU")
    parser.add_argument("groups", nargs="*", help="what names of groups begin with")
    parser.add_argument(
        "--compile",
        metavar="K/N",
        help="only compile every N-th case from K on; several processes at a time may "
        "so fill the disk caches (JAX's is where JAX_COMPILATION_CACHE_DIR says)",
    )
    given = parser.parse_args(arguments)
    if given.compile is None:
        return given.groups, None
    part, count = map(int, given.compile.split("/"))
    return given.groups, (part, count)


if __name__ == "__main__":
    groups, part = parsed(sys.argv[1:])
    if part is None:
        main(groups)
    else:
        first_calls(list(of_group(groups))[part[0] :: part[1]])
