"""Products beside cuBLASLt's best: ``python -m benchmarks.gpu_products [dtype]``.

cuBLASLt proposes up to 64 algorithms for a product. All are timed, each repeated in a
CUDA graph on the same random matrices, without arrayfn around them; then the best ones
once more in turns with arrayfn's choice, made when a product was first seen on the
machine. ``call`` is what a compiled ``x @ y`` takes, calls enqueued one after the other
on the same arrays. ``of best`` is cuBLASLt's best time over arrayfn's call's.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.backends.cuda import cublas, device_put, timing
from arrayfn.backends.cuda.driver import device

PROPOSALS: Final = 64
FINALISTS: Final = 4
SECONDS: Final = 4.0  # in which all proposals are tried
ROUNDS: Final = 7
ROUND_SECONDS: Final = 0.02

SIZES: Final = (512, 1024, 2048, 4096, 8192, 16384)
CASES: Final[dict[str, tuple[str, Any, Sequence[int]]]] = {
    "float32": ("gemm_f32", np.float32, SIZES[:-1]),
    "tf32": ("gemm_f32_tf32", np.float32, SIZES),
    "bfloat16": ("gemm_bf16", ml_dtypes.bfloat16, SIZES),
    "float16": ("gemm_f16", np.float16, SIZES),
    "int8": ("gemm_i8_i32", np.int8, SIZES),
    "float64": ("gemm_f64", np.float64, SIZES[:-1]),
    "complex64": ("gemm_c64", np.complex64, SIZES[:4]),
    "complex128": ("gemm_c128", np.complex128, SIZES[:4]),
}


def parameters(n: int) -> dict[str, int]:
    """A product of row-major n by n matrices, as a plan describes it."""
    extents = dict.fromkeys(("m", "n", "k", "lda", "ldb", "ldc"), n)
    others = ("transpose_a", "transpose_b", *(f"batch_stride_{x}" for x in "abc"))
    return {**extents, **dict.fromkeys(others, 0), "batch": 1}


def random(n: int, dtype: Any) -> np.ndarray[Any, Any]:
    """A random matrix; large ones repeat a block of rows."""
    rng = np.random.default_rng(0)
    rows = min(n, 512)
    if np.dtype(dtype).kind == "i":
        block = rng.integers(-128, 128, (rows, n)).astype(dtype)
    else:
        block = rng.standard_normal((rows, n), np.float32).astype(dtype)
    return np.tile(block, (n // rows, 1))


def multiply(name: str, dtype: Any) -> Any:
    """The compiled product."""
    if np.dtype(dtype).kind == "i":
        function = lambda x, y: lax.dot(x, y, preferred_element_type=np.int32)  # noqa: E731
    elif name == "tf32":
        function = lambda x, y: anp.matmul(x, y, precision="tf32")  # noqa: E731
    else:
        function = lambda x, y: x @ y  # noqa: E731
    return af.jit(function, device="cuda")


def seconds_of_calls(function: Any, x: Any, y: Any) -> float:
    """Seconds of one call, of many enqueued."""
    function(x, y).block_until_ready()
    count, seconds = 1, 0.0
    while seconds < ROUND_SECONDS:
        count *= 2
        start = time.perf_counter()
        for _ in range(count - 1):
            function(x, y)
        function(x, y).block_until_ready()
        seconds = time.perf_counter() - start
    return seconds / count


def measure(name: str, n: int) -> str:
    """One line of the table."""
    provider, dtype, _ = CASES[name]
    x, y = (device_put(random(n, dtype)) for _ in range(2))
    function = multiply(name, dtype)
    result = function(x, y)
    library = cublas.library()
    places = [y.pointer, x.pointer, result.pointer, result.pointer]
    chosen = library.product(provider, parameters(n))
    every = library.proposals(provider, parameters(n), PROPOSALS)

    def way(product: cublas.Product) -> timing.Way:
        return lambda stream: library.call(product, places, stream)

    times = timing.measured([way(p) for p in every], SECONDS)
    ranked = sorted(times, key=times.__getitem__)[:FINALISTS]
    finalists = [way(every[k]) for k in ranked]
    # In turns: the card's clock follows its temperature.
    best, own, calls = [], [], []
    for _ in range(ROUNDS):
        calls.append(seconds_of_calls(function, x, y))
        last = timing.measured([*finalists, way(chosen)], SECONDS, 9.0)
        own.append(last.pop(len(finalists)))
        best.append(min(last.values()))
    least, mine, call = (statistics.median(t) for t in (best, own, calls))
    flops = (8.0 if np.dtype(dtype).kind == "c" else 2.0) * n**3
    return (
        f"{name:11}{n:6}{len(times):5} of {len(every):2}{least * 1e6:12.1f}"
        f"{mine * 1e6:12.1f}{call * 1e6:12.1f}{flops / call / 1e12:9.1f} TFLOP/s"
        f"{least / call:8.1%}"
    )


def main(chosen: Sequence[str]) -> None:
    """Measure the dtypes ``chosen``, or all."""
    print("command: python -m benchmarks.gpu_products", *chosen)
    print(f"card: {device().name}")
    print(
        f"{'dtype':11}{'n':>6}{'tried':>11}{'best us':>12}{'choice us':>12}"
        f"{'call us':>12}{'rate':>17}{'of best':>8}"
    )
    for name, (_, _, sizes) in CASES.items():
        if not chosen or name in chosen:
            for n in sizes:
                print(measure(name, n), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
