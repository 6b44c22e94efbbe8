"""What a machine of many cores makes of compiled functions, beside JAX and BLAS.

``python -m benchmarks.cores``, on a machine that is otherwise idle. Each library runs
in a process of its own, and they take turns: threads of one library that look for work
after a call would slow down the next one's.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import importlib.util
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import arrayfn as af
from arrayfn.lowering.cpu.machine import openblas_kernels
from benchmarks import cases, machine
from benchmarks.engines import Engine, load
from benchmarks.side_by_side import Row, Run, compare
from benchmarks.timing import take_turns

Array = Any
Arguments = tuple[Any, ...]
ENGINES: Final = "arrayfn", "jax"
BLAS: Final = "NumPy", "SciPy"  # timed on products of two matrices
ROUNDS: Final = 5  # turns of each library
PAUSE_S: Final = 0.3  # before a turn: threads of OpenBLAS look for work for so long
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


# ------------------------------------------------------------------------ the rows


@dataclass(frozen=True)
class Case:
    """A row: a function, what makes its arguments, and a bound for its error.

    ``tolerance`` bounds the libraries' differences from arrayfn's results, relative to
    the largest element.
    """

    name: str
    function: Callable[..., Array]
    arguments: Callable[[], Arguments]
    tolerance: float

    @property
    def libraries(self) -> tuple[str, ...]:
        """The libraries to compare."""
        is_product = self.name.startswith("product")
        return (*ENGINES, *BLAS) if is_product else ENGINES


def blocks(count: int, width: int) -> Any:
    shapes = (width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)
    return tuple(tuple(draw(*shape) for shape in shapes) for _ in range(count))


def drawn(*shapes: tuple[int, ...]) -> Callable[[], Arguments]:
    """Arguments of ``shapes``."""
    return lambda: tuple(draw(*shape) for shape in shapes)


def mlp(batch: int) -> Arguments:
    rng = np.random.default_rng(0)
    return cases.mlp_inputs(rng, np.dtype(np.float32), batch, 1024)


def functions() -> Iterator[Case]:
    """The rows of the table."""
    for n in (256, 512, 1024, 2048):
        yield Case(f"product {n}", product, drawn((n, n), (n, n)), 1e-5)
    shapes = (256, 1024), (1024, 1024)
    yield Case("product 256x1024x1024", product, drawn(*shapes), 1e-5)
    shapes = (64, 128, 64), (64, 64, 128)
    yield Case("64 products 128x64x128", product, drawn(*shapes), 1e-5)
    for batch in (256, 1024):
        given = functools.partial(mlp, batch)
        yield Case(f"MLP step {batch}x1024", cases.mlp_step, given, 1e-3)

    def transformed() -> Arguments:
        return blocks(2, 512), draw(8, 128, 512)

    yield Case("transformer 2x512, 8x128", transformer, transformed, 1e-3)
    for width, hidden, out, rows in ((16, 32, 8, 2048), (8, 16, 4, 4096)):

        def perceptrons(
            width: int = width, hidden: int = hidden, out: int = out, rows: int = rows
        ) -> Arguments:
            return (draw(width, hidden), draw(hidden, out)), draw(rows, width)

        yield Case(f"Hessians of {width}, {rows} rows", hessians, perceptrons, 1e-3)
    yield Case("sort 4M", sort, drawn((1 << 22,)), 0.0)
    yield Case("argsort 4M", argsort, drawn((1 << 22,)), 0.0)
    yield Case("softmax 4096x1024", cases.softmax, drawn((4096, 1024)), 1e-4)
    for axis in (None, 0, 1):
        name = f"sum 4096x4096, axis {axis}"
        yield Case(name, cases.sum_over(axis), drawn((4096, 4096)), 1e-3)
    yield Case("chain 16M", cases.chain, drawn((1 << 24,), (1 << 24,)), 1e-5)
    yield Case("chain 100k", cases.chain, drawn((100_000,), (100_000,)), 1e-5)
    for shape, w in (
        ((8, 56, 56, 64), (3, 3, 64, 64)),
        ((8, 14, 14, 256), (3, 3, 256, 256)),
    ):

        def images(shape: tuple[int, ...] = shape, w: tuple[int, ...] = w) -> Arguments:
            return draw(*shape), draw(*w) / np.float32(np.prod(w[:-1]) ** 0.5)

        name = f"convolution 3x3 {w[-1]}"
        yield Case(name, convolution, images, 1e-4)
        yield Case(f"{name} gradient", convolution_gradient, images, 1e-3)


# ------------------------------------------------------------ a process of a library


def prepared(library: str, case: Case) -> Run:
    """A call of ``case`` on ``library``, which waits for its result."""
    given = case.arguments()
    if library in ENGINES:
        engine = load(library)
        compiled = engine.jit(functools.partial(case.function, engine))
        inputs = engine.put(given)

        def call() -> Any:
            result = compiled(*inputs)
            engine.wait(result)
            return result

        return call
    x, y = given
    if library == "NumPy":
        return lambda: x @ y
    blas: Any = importlib.import_module("scipy.linalg.blas")
    return lambda: blas.sgemm(1.0, y.T, x.T).T


def leaves_of(run: Run) -> list[Array]:
    """The arrays that ``run`` gives."""
    return [np.asarray(x) for x in af.tree.leaves(run())]


def serve(library: str, requests: Any) -> None:
    """Answer the table's requests about ``library``, until None is asked.

    ``("prepare", name)`` compiles a row and gives its result; ``("time", seconds)``
    gives medians of calls, ``("alone", seconds)`` on one thread of arrayfn; ``("bits",
    None)`` says whether 1, 2 and all threads of arrayfn give the same bits.
    """
    rows = {case.name: case for case in functions()}
    threads = af.get_num_threads()
    run: Run = list  # until a row is prepared
    while (request := requests.recv()) is not None:
        what, value = request
        if what == "prepare":
            run = prepared(library, rows[value])
            answer = leaves_of(run)
        elif what == "bits":
            of_leaves = {library: functools.partial(leaves_of, run)}
            answer = compare(Row(library, of_leaves, 0.0))
        else:
            af.set_num_threads(1 if what == "alone" else threads)
            answer = take_turns({"": run}, value, 1)[""].median
            af.set_num_threads(threads)
        requests.send(answer)


@dataclass(frozen=True)
class Server:
    """A process that serves one library, and the connection to it."""

    library: str
    connection: Any  # of multiprocessing

    def ask(self, what: str, value: Any = None) -> Any:
        """The answer to a request of ``serve``; EOFError if the process has failed."""
        self.connection.send((what, value))
        return self.connection.recv()


@contextlib.contextmanager
def served(library: str) -> Generator[Server]:
    """A process of ``library``, as long as the context lasts."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=serve, args=(library, theirs))
    process.start()
    try:
        yield Server(library, ours)
    finally:
        ours.send(None)
        process.join()


# ----------------------------------------------------------------------- the table


def row(case: Case, servers: list[Server], seconds: float) -> str:
    """A line of the table: medians, after the results have been compared."""
    first, *others = servers
    expected = first.ask("prepare", case.name)
    for server in others:
        for a, b in zip(expected, server.ask("prepare", case.name), strict=True):
            error = np.max(np.abs(a - b), initial=0.0)
            error /= np.max(np.abs(b), initial=0.0) or 1.0
            assert error <= case.tolerance, (case.name, server.library, error)
    same = first.ask("bits")
    times: dict[str, list[float]] = {each.library: [] for each in servers}
    for _ in range(ROUNDS):
        for each in servers:
            time.sleep(PAUSE_S)
            share = seconds / ROUNDS / len(servers)
            times[each.library].append(each.ask("time", share))
    time.sleep(PAUSE_S)
    alone = first.ask("alone", seconds / 8)
    medians = {name: statistics.median(each) for name, each in times.items()}
    ours = medians.pop(first.library)
    parts = [f"{1e3 * ours:9.3f} ms, {alone / ours:5.2f} of one thread"]
    parts += [f"{k} {1e3 * t:9.3f} ({t / ours:5.2f}x)" for k, t in medians.items()]
    bits = "same bits" if same else "DIFFERENT BITS"
    return f"{case.name:{WIDTH}}{'  '.join([*parts, bits])}"


def has(library: str) -> bool:
    """Whether ``library`` can be imported."""
    return importlib.util.find_spec(library.lower()) is not None


def _vectors() -> str:
    """The kind of processor whose kernels NumPy's OpenBLAS runs."""
    kernels = openblas_kernels() or "unknown"
    forced = os.environ.get("OPENBLAS_CORETYPE")
    note = f" (OPENBLAS_CORETYPE={forced})" if forced else ""
    return kernels + note


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
    with contextlib.ExitStack() as processes:
        found = [name for name in (*ENGINES, *BLAS) if has(name)]
        servers = [processes.enter_context(served(name)) for name in found]
        for case in functions():
            if options.names and not any(part in case.name for part in options.names):
                continue
            asked = [each for each in servers if each.library in case.libraries]
            print(row(case, asked, options.seconds), flush=True)


if __name__ == "__main__":
    main()
