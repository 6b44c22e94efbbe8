"""Products beside cuBLASLt's best: ``python -m benchmarks.gpu_products [dtype]``.

cuBLASLt proposes several algorithms for a product. All are timed, each repeated in a
CUDA graph on random matrices that rotate, without arrayfn around them; then the best
ones once more in turns with arrayfn's choice, made when a product was first seen on the
machine. ``best`` and ``choice`` are medians of the same rounds, and ``of best`` is the
one over the other. ``call`` is what a compiled ``x @ y`` takes, calls enqueued one
after the other: below 1024 mostly what cuBLASLt takes to enqueue. Bytes are multiplied
as arrayfn has them multiplied, with both operands along what is summed over; ``call``
copies one for that.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from itertools import cycle
from typing import Any, Final

import ml_dtypes
import numpy as np

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.backends.cuda import cublas, timing
from arrayfn.backends.cuda.device_array import device_put
from arrayfn.backends.cuda.driver import device
from arrayfn.lowering.cuda.products.names import MIN_COPIED_WORK

SECONDS: Final = 4.0  # in which all proposals are tried
TURNS: Final = 30  # of the best, short ones: the card's clock goes up and down
TURN_SECONDS: Final = 4e-3
ROUNDS: Final = 5  # of calls
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


def parameters(name: str, n: int) -> dict[str, int]:
    """A product of row-major n by n matrices, as a plan describes it."""
    extents = dict.fromkeys(("m", "n", "k", "lda", "ldb", "ldc"), n)
    others = ("transpose_a", *(f"batch_stride_{x}" for x in "abc"))
    along = int(name == "int8" and n**3 >= MIN_COPIED_WORK)
    return {**extents, **dict.fromkeys(others, 0), "transpose_b": along, "batch": 1}


def random(n: int, dtype: Any) -> np.ndarray[Any, Any]:
    """A random matrix, in all of its bits; large ones repeat a block of rows."""
    rng = np.random.default_rng(0)
    rows, kind = min(n, 512), np.dtype(dtype)
    if kind.kind == "i":
        block = rng.integers(-128, 128, (rows, n)).astype(dtype)
    elif kind.kind == "c":
        block = rng.standard_normal((rows, 2 * n)).astype(kind.char.lower()).view(kind)
    else:
        block = rng.standard_normal((rows, n)).astype(dtype)
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


def seconds_of_calls(function: Any, pairs: Sequence[tuple[Any, Any]]) -> float:
    """Seconds of one call, of many enqueued."""
    function(*pairs[0]).block_until_ready()
    count, seconds = 1, 0.0
    while seconds < ROUND_SECONDS:
        count *= 2
        start = time.perf_counter()
        for k in range(count - 1):
            function(*pairs[k % len(pairs)])
        function(*pairs[0]).block_until_ready()
        seconds = time.perf_counter() - start
    return seconds / count


def measure(name: str, n: int) -> str:
    """One line of the table."""
    provider, dtype, _ = CASES[name]
    function, p = multiply(name, dtype), parameters(name, n)
    one = random(n, dtype)
    sets = min(cublas.MAX_SETS, cublas.ROTATED_BYTES // (3 * one.nbytes))
    sets = max(cublas.MIN_SETS, sets)
    pairs = [(device_put(one), device_put(one)) for _ in range(sets)]
    result = function(*pairs[0])
    library = cublas.library()
    places = cycle(
        [y.pointer, x.pointer, result.pointer, result.pointer] for x, y in pairs
    )
    chosen = library.product(provider, p)
    every = library.proposals(provider, p)

    def way(product: cublas.PreparedProduct) -> timing.Run:
        return lambda stream: library.call(product, next(places), stream)

    times = timing.measure([way(p) for p in every], sets, SECONDS)
    described = [p.described for p in (*every, chosen)]
    own = described.index(chosen.described)
    ways, numbers = [way(p) for p in (*every, chosen)], sorted({*times, own})
    last = timing.time_in_rounds(ways, numbers, TURNS, TURN_SECONDS, sets)
    mine = last[own]
    least = min(last.values())
    call = statistics.median(seconds_of_calls(function, pairs) for _ in range(ROUNDS))
    flops = (8.0 if np.dtype(dtype).kind == "c" else 2.0) * n**3
    return (
        f"{name:11}{n:6}{len(every):9}{least * 1e6:12.1f}"
        f"{mine * 1e6:12.1f}{least / mine:8.1%}{call * 1e6:12.1f}"
        f"{flops / call / 1e12:9.1f} TFLOP/s"
    )


def main(chosen: Sequence[str]) -> None:
    """Measure the dtypes ``chosen``, or all."""
    print("command: python -m benchmarks.gpu_products", *chosen)
    print(f"card: {device().name}")
    print(
        f"{'dtype':11}{'n':>6}{'tried':>9}{'best us':>12}{'choice us':>12}"
        f"{'of best':>8}{'call us':>12}{'rate':>17}"
    )
    for name, (_, _, sizes) in CASES.items():
        if not chosen or name in chosen:
            for n in sizes:
                print(measure(name, n), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
