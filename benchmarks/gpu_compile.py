"""Time to a first result on a GPU, beside JAX's: ``python -m benchmarks.gpu_compile``.

Each engine runs each program in fresh processes: with an empty disk cache, then with
what that has left there. ``start`` is what a process needs before its first program:
imports, and an array on the card; arrayfn's bytecode is on disk, where installing a
package puts it. A program's time is that of its first call, with tracing and compiling,
until its result is there. Programs of one process share what they can; ``--alone``
gives each its own process. ``kernels`` counts arrayfn's, and ``lower`` is the part of
its first call that comes before their machine code. ``--ours`` leaves JAX out.
"""

from __future__ import annotations

import compileall
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]
Program = tuple[Callable[..., Any], list[Array]]
ENGINES: Final = ("arrayfn", "JAX")


def random(*shape: int, seed: int = 0) -> Array:
    """Normal numbers in float32, scaled as weights are."""
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return values / np.float32(max(1, shape[0]) ** 0.5) if len(shape) > 1 else values


def softmax(xp: Any, x: Any) -> Any:
    """Softmax along the last axis."""
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


def normalised(xp: Any, x: Any) -> Any:
    """Rows of mean 0 and variance 1."""
    d = x - xp.mean(x, axis=-1, keepdims=True)
    return d / xp.sqrt(xp.mean(d * d, axis=-1, keepdims=True) + 1e-5)


def perceptron(xp: Any, parameters: Any, x: Any, y: Any) -> Any:
    """The mean square error of a perceptron with two hidden layers."""
    for k in range(0, len(parameters), 2):
        x = xp.tanh(x @ parameters[k] + parameters[k + 1])
    return xp.mean((x - y) ** 2)


def transformer(xp: Any, parameters: Any, x: Any, y: Any) -> Any:
    """The mean square error of transformer blocks with 4 heads."""
    batch, length, width = x.shape
    heads = 4
    for k in range(0, len(parameters), 4):
        qkv, out, up, down = parameters[k : k + 4]
        parts = (normalised(xp, x) @ qkv).reshape(batch, length, 3, heads, -1)
        q, key, v = (xp.swapaxes(parts[:, :, j], 1, 2) for j in range(3))
        weights = softmax(xp, q @ xp.swapaxes(key, 2, 3) / 8)
        x = x + xp.swapaxes(weights @ v, 1, 2).reshape(batch, length, width) @ out
        x = x + xp.maximum(normalised(xp, x) @ up, 0) @ down
    return xp.mean((x - y) ** 2)


def step(engine: Any, loss: Callable[..., Any]) -> Callable[..., Any]:
    """A step of gradient descent on ``loss(xp, parameters, x, y)``."""

    def run(*arrays: Any) -> Any:
        *parameters, x, y = arrays
        value, gradients = engine.value_and_grad(lambda p: loss(engine.numpy, p, x, y))(
            parameters
        )
        pairs = zip(parameters, gradients, strict=True)
        return value, [p - 0.01 * g for p, g in pairs]

    return run


def programs(engine: Any) -> dict[str, Program]:
    """The programs: functions of ``engine``, and their arguments."""
    xp = engine.numpy
    layers = ((784, 512), (512,), (512, 512), (512,), (512, 10), (10,))
    block = ((256, 768), (256, 256), (256, 1024), (1024, 256)) * 2
    tokens = (random(4, 128, 256), random(4, 128, 256, seed=1))

    def spectrum(x: Any, a: Any) -> Any:
        power = xp.abs(xp.fft.fft(x)) ** 2
        return xp.linalg.solve(a @ a.T + 10 * xp.eye(64), power[:64, :64])

    def recurrence(w: Any, h: Any, xs: Any) -> Any:
        last, _ = engine.lax.scan(lambda h, x: (xp.tanh(h @ w + x), None), h, xs)
        return last

    return {
        "elementwise chain": (
            lambda x, y: xp.exp(-x * x) * y + xp.tanh(x),
            [random(1 << 20), random(1 << 20, seed=1)],
        ),
        "softmax": (lambda x: softmax(xp, x), [random(4096, 1024)]),
        "mlp step": (
            step(engine, perceptron),
            [*(random(*s) for s in layers), random(64, 784), random(64, 10)],
        ),
        "transformer step": (
            step(engine, transformer),
            [*(random(*s) for s in block), *tokens],
        ),
        "fft and solve": (spectrum, [random(64, 256), random(64, 64)]),
        "scan": (
            recurrence,
            [random(128, 128), random(32, 128), random(64, 32, 128)],
        ),
    }


NAMES: Final = (
    "elementwise chain",
    "softmax",
    "mlp step",
    "transformer step",
    "fft and solve",
    "scan",
)


def work(name: str, chosen: Sequence[str]) -> dict[str, Any]:
    """In a fresh process: what ``start`` and the ``chosen`` programs take."""
    began = time.perf_counter()
    if name == "JAX":
        engine = importlib.import_module("jax")
        importlib.import_module("jax.numpy")
        engine.config.update("jax_compilation_cache_dir", os.environ["CACHE"])
        engine.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        engine.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        engine.config.update("jax_default_matmul_precision", "highest")
        wait: Callable[[Any], Any] = engine.block_until_ready
        compiled: Callable[..., Any] = engine.jit
    else:
        engine = importlib.import_module("arrayfn")
        wait = lambda r: engine.tree.map(  # noqa: E731
            lambda x: x.block_until_ready(), r
        )
        compiled = lambda f: engine.jit(f, device="cuda")  # noqa: E731
    wait(engine.device_put(np.ones(4, np.float32)))
    times: dict[str, Any] = {"start": time.perf_counter() - began}
    cases = programs(engine)
    for case in chosen:
        function, arguments = cases[case]
        given = [engine.device_put(a) for a in arguments]
        wait(given)
        run = compiled(function)
        began = time.perf_counter()
        wait(run(*given))
        times[case] = time.perf_counter() - began
        if name == "arrayfn":
            began = time.perf_counter()
            kernels = run.lower(*given).kernels
            times[f"{case} lower"] = time.perf_counter() - began
            times[f"{case} kernels"] = len(kernels)
    return times


def measure(name: str, chosen: Sequence[str], cache: Path) -> dict[str, Any]:
    """``work`` in a fresh process, with its disk cache in a directory."""
    environment = {
        **{k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
        "ARRAYFN_CACHE_DIR": str(cache),
        "CACHE": str(cache),
        "CUDA_CACHE_DISABLE": "1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    command = [sys.executable, "-m", "benchmarks.gpu_compile", "--work", name, *chosen]
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )
    if result.returncode:
        raise RuntimeError(result.stderr[-2000:])
    return json.loads(result.stdout.splitlines()[-1])


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    for package in ("arrayfn", "benchmarks"):
        compileall.compile_dir(Path(__file__).parents[1] / package, quiet=2)
    print("command: python -m benchmarks.gpu_compile", *arguments)
    groups = [[name] for name in NAMES] if "--alone" in arguments else [list(NAMES)]
    columns: list[dict[str, Any]] = []
    for engine in ENGINES[:1] if "--ours" in arguments else ENGINES:
        cold: dict[str, Any] = {}
        warm: dict[str, Any] = {}
        for group in groups:
            with tempfile.TemporaryDirectory() as directory:
                for found in (cold, warm):
                    found.update(measure(engine, group, Path(directory)))
        columns += [cold, warm]
    if len(columns) == 2:
        columns += [dict.fromkeys(columns[0], float("nan"))] * 2
    print("milliseconds       |     empty disk cache |    filled disk cache |")
    print(
        "until the result   |   arrayfn        JAX |   arrayfn        JAX |"
        " kernels  lower"
    )
    ours, ours_warm, theirs, theirs_warm = columns
    for name in ("start", *NAMES):
        cells = [1e3 * c[name] for c in (ours, theirs, ours_warm, theirs_warm)]
        first, second, third, fourth = (f"{value:10.0f}" for value in cells)
        more = ""
        if name != "start":
            lower = 1e3 * ours_warm[f"{name} lower"]
            more = f"{ours[f'{name} kernels']:8} {lower:6.0f}"
        print(f"{name:18} |{first} {second} |{third} {fourth} |{more}")
    totals = [1e3 * sum(c[name] for name in ("start", *NAMES)) for c in columns]
    first, third, second, fourth = (f"{value:10.0f}" for value in totals)
    print(f"{'all':18} |{first} {second} |{third} {fourth} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        print(json.dumps(work(sys.argv[2], sys.argv[3:])))
    else:
        main(sys.argv[1:])
