"""Attention by each way on one GPU: ``python -m benchmarks.gpu_attention``.

On shapes that cuDNN takes: arrayfn's jitted function, which calls cuDNN; cuDNN itself,
its calls captured one after the other, so that the GPU waits for none, on two sets of
results by turns, as a program's results have memory by turns; the generated kernels;
and JAX's attention, by cuDNN, or by XLA where heads have more than 128 elements. On
others: the generated kernels, and JAX's attention by XLA. Times are of the forward
pass, and of the gradient by all of q, k and v from what that keeps; JAX's of the
gradient are those of both passes less the forward one's. A time is the median over
rounds of many calls enqueued one after the other. The ways of a line take turns, in
another order in each round: what ran before has warmed the card, whose clock follows.
Each result is compared with the first of its line.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from unittest.mock import patch

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import arrayfn as af
from arrayfn import dtypes
from arrayfn.backends.cuda import attention as cuda_attention
from arrayfn.backends.cuda.device_array import DeviceArray, device_put
from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.libraries import cudnn
from arrayfn.ir import ArrayType
from arrayfn.nn import fused_attention as fused
from benchmarks.gpu import ROUNDS, error_of, time_calls, widened

Array = np.ndarray[Any, Any]
BF16: Final = np.dtype(ml_dtypes.bfloat16)
BOUND: Final = 2e-2
CALLS: Final = 8  # of cuDNN in a CUDA graph


@dataclass(frozen=True)
class Shape:
    """Attention of q [B, T, N, H] to T keys of K heads."""

    B: int
    T: int
    N: int
    K: int
    H: int
    causal: bool = False
    bias: bool = False
    left: int | None = None
    by_cudnn: bool = True

    @property
    def label(self) -> str:
        """A name for the table."""
        heads = f"{self.N}({self.K})" if self.K != self.N else f"{self.N}"
        words = {
            " causal": self.causal,
            " bias": self.bias,
            f" window {self.left}": self.left is not None,
        }
        told = "".join(word for word, is_so in words.items() if is_so)
        return f"{self.B}x{self.T}x{heads}x{self.H}{told}"

    @property
    def flops(self) -> float:
        """Multiplications and additions of the forward pass."""
        pairs = self.T * self.T / (2 if self.causal else 1)
        if self.left is not None:
            pairs = self.T * self.left
        return 4.0 * self.B * self.N * pairs * self.H

    @property
    def static(self) -> dict[str, Any]:
        """The static arguments of arrayfn's operators."""
        right = 0 if self.causal or self.left is not None else None
        given = ("bias",) if self.bias else ()
        return {"scale": self.H**-0.5, "window": (self.left, right), "given": given}

    def arrays(self) -> list[Array]:
        """Random q, k, v, a cotangent, and perhaps a bias; the same in a batch."""
        rng = np.random.default_rng(0)
        queries, keys = ((1, self.T, n, self.H) for n in (self.N, self.K))
        shapes = [queries, keys, keys, queries]
        if self.bias:
            shapes.append((1, self.N, self.T, self.T))
        made = [rng.standard_normal(s, np.float32).astype(BF16) for s in shapes]
        return [*(np.repeat(x, self.B, 0) for x in made[:4]), *made[4:]]


def shapes() -> Iterator[Shape]:
    """Those of the table."""
    for causal in (False, True):
        yield Shape(4, 4096, 16, 16, 128, causal)
        yield Shape(16, 512, 16, 16, 64, causal)
        yield Shape(4, 2048, 32, 8, 128, causal)
    for H in (84, 192, 256):
        for causal in (False, True):
            yield Shape(4, 2048, 16, 16, H, causal, by_cudnn=H % 8 == 0)
    yield Shape(4, 2048, 16, 16, 128, bias=True, by_cudnn=False)
    yield Shape(4, 4096, 16, 16, 128, left=512, by_cudnn=False)


@dataclass(frozen=True)
class Way:
    """What runs the forward pass, and the gradient: ``calls`` of them at a time."""

    forward: Callable[[], Any]
    gradient: Callable[[], Any]
    calls: int = 1


def by_arrayfn(shape: Shape, arrays: Sequence[Array]) -> Way:
    """The jitted operators."""
    q, k, v, g, *bias = (device_put(x) for x in arrays)

    def attend(q: Any, k: Any, v: Any, *bias: Any) -> Any:
        terms = dict(zip(shape.static["given"], bias, strict=True))
        return fused.attention(q, k, v, terms, **shape.static)

    def differentiate(q: Any, k: Any, v: Any, *others: Any) -> Any:
        out, logarithms, g, *bias = others
        terms = dict(zip(shape.static["given"], bias, strict=True))
        return fused.attention_gradient(
            q, k, v, terms, out, logarithms, g, **shape.static
        )

    forward, gradient = (af.jit(f, device="cuda") for f in (attend, differentiate))
    made = forward(q, k, v, *bias)
    gradient(q, k, v, *made, g, *bias)
    return Way(
        lambda: forward(q, k, v, *bias),
        lambda: gradient(q, k, v, *made, g, *bias),
    )


def by_cudnn(shape: Shape, arrays: Sequence[Array]) -> Way:
    """cuDNN's graphs alone, on arrays that stay."""
    q, k, v, g = (device_put(x) for x in arrays)
    of_q, of_k = (ArrayType(x.shape, x.dtype) for x in arrays[:2])
    of_bounds = ArrayType((shape.B, shape.N, shape.T), dtypes.float32)
    scale = shape.static["scale"]
    forward = cudnn.attention(of_q, of_k, of_k, of_q, of_bounds, scale, shape.causal)
    types = (of_q, of_k, of_k, of_q, of_bounds, of_q, of_q, of_k, of_k)
    gradient = cudnn.attention_gradient(*types, scale, shape.causal, True)
    bounds = np.zeros(of_bounds.shape, np.float32)
    passes = [[device_put(x) for x in (arrays[0], bounds)] for _ in range(2)]
    gradients = [[device_put(x) for x in arrays[:3]] for _ in range(2)]
    return Way(
        captured(forward, (q, k, v), passes),
        captured(gradient, (q, k, v, *passes[0], g), gradients),
        CALLS,
    )


@dataclass(frozen=True)
class Captured:
    """CALLS calls as one CUDA graph, and the arrays that they touch."""

    graph: int
    given: Sequence[DeviceArray]
    results: Sequence[Sequence[DeviceArray]]

    def __call__(self) -> Sequence[DeviceArray]:
        """Enqueue them: the results of the first."""
        device().launch_graph(self.graph)
        return self.results[0]


def captured(
    enqueue: Callable[..., None],
    given: Sequence[DeviceArray],
    results: Sequence[Sequence[DeviceArray]],
) -> Captured:
    """The calls of ``enqueue``, which have the ``results`` by turns."""
    sets = [[x.pointer for x in (*given, *made)] for made in results]
    enqueue(device().stream, *sets[0])

    def capture(stream: int) -> None:
        for number in range(CALLS):
            enqueue(stream, *sets[number % len(sets)])

    return Captured(device().executable_graph(capture), given, results)


def by_jax(shape: Shape, arrays: Sequence[Array]) -> Way:
    """JAX's attention, and both passes of it."""
    q, k, v, g, *bias = (jnp.asarray(x) for x in arrays)
    attend = partial(
        jax.nn.dot_product_attention,
        is_causal=shape.causal,
        local_window_size=None if shape.left is None else (shape.left, 0),
        implementation="cudnn" if shape.by_cudnn and shape.H <= 128 else "xla",
    )
    forward = jax.jit(lambda q, k, v, *bias: (attend(q, k, v, *bias), q))

    def both(q: Any, k: Any, v: Any, g: Any, *bias: Any) -> Any:
        _, back = jax.vjp(lambda q, k, v: attend(q, k, v, *bias), q, k, v)
        return back(g)

    gradient = jax.jit(both)
    return Way(lambda: forward(q, k, v, *bias), lambda: gradient(q, k, v, g, *bias))


def wait(result: Any) -> None:
    """Wait for one of our results, or of JAX's."""
    if isinstance(result[0], jax.Array):
        jax.block_until_ready(result)
    else:
        device().synchronize()


def _some(result: Any) -> Array:
    """The first of a batch."""
    return widened(np.asarray(result)[:1])


def main(chosen: Sequence[str]) -> None:
    """Measure the shapes whose labels begin with one of ``chosen``, or all."""
    print("command: python -m benchmarks.gpu_attention", *chosen)
    print(f"card: {device().name}; JAX {jax.__version__}")
    print("TFLOP/s, forward / gradient (2.5 times the work of the forward pass)")
    for shape in shapes():
        if not chosen or any(shape.label.startswith(name) for name in chosen):
            print(f"{shape.label:26}", *measured(shape), sep="  ", flush=True)


def measured(shape: Shape) -> Iterator[str]:
    """What the table says of each way."""
    arrays = shape.arrays()
    makers = {"arrayfn": by_arrayfn, "cuDNN": by_cudnn} if shape.by_cudnn else {}
    makers |= {"kernels": by_arrayfn, "JAX": by_jax}
    ways: dict[str, Way] = {}
    told: dict[str, str] = {}
    first: list[Array] = []
    for name, make in makers.items():
        is_ours = name != "kernels" and shape.by_cudnn
        with patch.object(cuda_attention, "_has_cudnn", lambda has=is_ours: has):
            try:
                way = make(shape, arrays)
                results = [_some(x) for x in (way.forward()[0], *way.gradient()[:3])]
            except Exception as error:  # noqa: BLE001 - the table says what went wrong
                told[name] = f"FAILED ({str(error)[:60]})"
                continue
        ways[name] = way
        first = first or results
        error = max(error_of(x, y) for x, y in zip(results, first, strict=True))
        told[name] = "" if error < BOUND else f" WRONG {error:.1e}"
    for name, (forward, gradient) in in_turns(ways).items():
        if name == "JAX":
            gradient -= forward
        rates = shape.flops / forward / 1e12, 2.5 * shape.flops / gradient / 1e12
        told[name] = f"{rates[0]:.0f} / {rates[1]:.0f}{told[name]}"
    return (f"{name} {words}" for name, words in told.items())


def in_turns(ways: Mapping[str, Way]) -> dict[str, tuple[float, float]]:
    """Median seconds of both passes by each way, which take turns."""
    times: dict[str, tuple[list[float], list[float]]] = {n: ([], []) for n in ways}
    order = list(ways)
    shuffle = random.Random(0).shuffle
    for _ in range(ROUNDS):
        for which in range(2):
            shuffle(order)
            for name in order:
                way = ways[name]
                run = (way.forward, way.gradient)[which]
                seconds = time_calls(lambda _, run=run: run(), wait) / way.calls
                times[name][which].append(seconds)
    return {
        name: (statistics.median(forward), statistics.median(gradient))
        for name, (forward, gradient) in times.items()
    }


if __name__ == "__main__":
    main(sys.argv[1:])
