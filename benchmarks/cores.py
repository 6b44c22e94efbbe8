"""What a machine of many cores makes of compiled functions, beside JAX and BLAS.

``python -m benchmarks.cores``, on a machine that is otherwise idle.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from scipy.linalg import blas

import arrayfn as af
from benchmarks import cases, machine
from benchmarks.engines import Engine, load
from benchmarks.side_by_side import Row, Run, compare
from benchmarks.timing import take_turns

Array = Any
PAUSE_S: Final = 0.002
BLAS_PAUSE_S: Final = 0.05  # OpenBLAS's threads look for work that long
WIDTH: Final = 30
NHWC: Final = "NHWC", "HWIO", "NHWC"


def draw(*shape: int) -> Array:
    values = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    return values / np.float32(shape[-1] ** 0.5) if len(shape) == 2 else values


# ----------------------------------------------------------------------- functions


def product(e: Engine, x: Array, y: Array) -> Array:
    return x @ y


def transformer(e: Engine, params: Any, x: Array) -> Array:
    """Blocks of causal attention and a perceptron, normalised before each."""
    anp, heads = e.numpy, 8
    batch, length, width = x.shape
    mask = anp.tril(anp.ones((length, length), bool))

    def normalised(x: Array) -> Array:
        centred = x - anp.mean(x, axis=-1, keepdims=True)
        spread = anp.mean(centred * centred, axis=-1, keepdims=True)
        return centred / anp.sqrt(spread + 1e-5)

    def split(x: Array) -> Array:
        shape = batch, length, heads, width // heads
        return anp.transpose(anp.reshape(x, shape), (0, 2, 1, 3))

    for qkv, out, up, down in params:
        q, k, v = map(split, anp.split(normalised(x) @ qkv, 3, axis=-1))
        scores = q @ anp.swapaxes(k, -1, -2) / (width // heads) ** 0.5
        p = cases.softmax(e, anp.where(mask, scores, -1e9))
        merged = anp.reshape(anp.transpose(p @ v, (0, 2, 1, 3)), x.shape)
        x = x + merged @ out
        x = x + anp.tanh(normalised(x) @ up) @ down
    return x


def hessians(e: Engine, params: Any, x: Array) -> Array:
    """The Hessian of a small perceptron at each row."""
    anp, (first, second) = e.numpy, params

    def f(x: Array) -> Array:
        return anp.sum(anp.tanh(anp.tanh(x @ first) @ second))

    return e.vmap(e.hessian(f))(x)


def sort(e: Engine, x: Array) -> Array:
    return e.numpy.sort(x)


def argsort(e: Engine, x: Array) -> Array:
    return e.numpy.argsort(x)


def convolution(e: Engine, x: Array, w: Array) -> Array:
    return e.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC)


def convolution_gradient(e: Engine, x: Array, w: Array) -> Array:
    def loss(x: Array, w: Array) -> Array:
        return e.numpy.sum(e.numpy.tanh(convolution(e, x, w)))

    return e.grad(loss, argnums=(0, 1))(x, w)


# ---------------------------------------------------------------------- the table


def blocks(count: int, width: int) -> Any:
    shapes = (width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)
    return tuple(tuple(draw(*shape) for shape in shapes) for _ in range(count))


def mlp(batch: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    return cases.mlp_inputs(rng, np.dtype(np.float32), batch, 1024)


def functions() -> Iterator[tuple[str, Callable[..., Array], tuple[Any, ...], float]]:
    """Name, function, arguments, tolerance."""
    for n in (256, 512, 1024, 2048):
        yield f"product {n}", product, (draw(n, n), draw(n, n)), 1e-5
    yield "product 256x1024x1024", product, (draw(256, 1024), draw(1024, 1024)), 1e-5
    batched = draw(64, 128, 64), draw(64, 64, 128)
    yield "64 products 128x64x128", product, batched, 1e-5
    for batch in (256, 1024):
        yield f"MLP step {batch}x1024", cases.mlp_step, mlp(batch), 1e-3
    given = blocks(2, 512), draw(8, 128, 512)
    yield "transformer 2x512, 8x128", transformer, given, 1e-3
    given = (draw(16, 32), draw(32, 8)), draw(2048, 16)
    yield "Hessians of 16, 2048 rows", hessians, given, 1e-3
    given = (draw(8, 16), draw(16, 4)), draw(4096, 8)
    yield "Hessians of 8, 4096 rows", hessians, given, 1e-3
    yield "sort 4M", sort, (draw(1 << 22),), 0.0
    yield "argsort 4M", argsort, (draw(1 << 22),), 0.0
    yield "softmax 4096x1024", cases.softmax, (draw(4096, 1024),), 1e-4
    for axis in (None, 0, 1):
        name = f"sum 4096x4096, axis {axis}"
        yield name, cases.sum_over(axis), (draw(4096, 4096),), 1e-3
    yield "chain 16M", cases.chain, (draw(1 << 24), draw(1 << 24)), 1e-5
    yield "chain 100k", cases.chain, (draw(100_000), draw(100_000)), 1e-5
    for shape, w in (
        ((8, 56, 56, 64), (3, 3, 64, 64)),
        ((8, 14, 14, 256), (3, 3, 256, 256)),
    ):
        given = draw(*shape), draw(*w) / np.float32(np.prod(w[:-1]) ** 0.5)
        yield f"convolution 3x3 {w[-1]}", convolution, given, 1e-4
        yield f"convolution 3x3 {w[-1]} gradient", convolution_gradient, given, 1e-3


def libraries(x: Array, y: Array) -> dict[str, Run]:
    """A product by each BLAS there is, on all its threads."""
    sgemm: Any = getattr(blas, "sgemm")  # noqa: B009 (checkers do not see it)
    runs: dict[str, Run] = {
        "NumPy": lambda: x @ y,
        "SciPy": lambda: sgemm(1.0, y.T, x.T).T,
    }
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return runs
    a, b = torch.from_numpy(x), torch.from_numpy(y)
    return runs | {"torch": lambda: torch.mm(a, b).numpy()}


def compiled(engine: Engine, function: Callable[..., Array], given: Any) -> Run:
    run, inputs = engine.jit(functools.partial(function, engine)), engine.put(given)

    def call() -> Any:
        result = run(*inputs)
        engine.wait(result)
        return result

    return call


def row(name: str, runs: Mapping[str, Run], tolerance: float, seconds: float) -> str:
    """A line of the table: medians; arrayfn on one thread too."""
    count = af.get_num_threads()
    leaves = {k: functools.partial(_leaves, run) for k, run in runs.items()}
    same = compare(Row(name, leaves, tolerance))
    pause = BLAS_PAUSE_S if "NumPy" in runs else PAUSE_S
    times = {k: t.median for k, t in take_turns(runs, seconds, 3, pause).items()}
    af.set_num_threads(1)
    alone = take_turns({"": runs["arrayfn"]}, seconds / 4, 3)[""].median
    af.set_num_threads(count)
    ours = times.pop("arrayfn")
    parts = [f"{1e3 * ours:9.3f} ms, {alone / ours:5.2f} of one thread"]
    parts += [f"{k} {1e3 * t:9.3f} ({t / ours:5.2f}x)" for k, t in times.items()]
    bits = "same bits" if same else "DIFFERENT BITS"
    return f"{name:{WIDTH}}{'  '.join([*parts, bits])}"


def _leaves(run: Run) -> tuple[Any, ...]:
    return tuple(np.asarray(x) for x in af.tree.leaves(run()))


def _vectors() -> str:
    """The kind of processor whose kernels NumPy's OpenBLAS runs."""
    core = importlib.import_module("numpy._core._multiarray_umath")
    try:
        name = ctypes.CDLL(str(core.__file__)).scipy_openblas_get_corename64_
    except AttributeError:
        return "unknown"
    name.restype = ctypes.c_char_p
    forced = os.environ.get("OPENBLAS_CORETYPE")
    note = f" (OPENBLAS_CORETYPE={forced})" if forced else ""
    return name().decode() + note


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names of rows; all if none")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each row")
    options = parser.parse_args()
    print("# command: python -m benchmarks.cores")
    for key, value in machine.describe().items():
        print(f"# {key}: {value}")
    print(f"# OpenBLAS's kernels: {_vectors()}; arrayfn's threads: ", end="")
    print(f"{af.get_num_threads()}; 'x' is that library's time over arrayfn's")
    engines = [load("arrayfn")]
    try:
        engines.append(load("jax"))
    except ImportError:
        print("# without JAX")
    for name, function, given, tolerance in functions():
        if options.names and not any(part in name for part in options.names):
            continue
        runs = {e.name: compiled(e, function, given) for e in engines}
        if function is product and given[0].ndim == 2:
            runs |= libraries(*given)
        print(row(name, runs, tolerance, options.seconds), flush=True)


if __name__ == "__main__":
    main()
