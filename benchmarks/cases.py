"""What is measured: functions written once against an engine, and their inputs.

A case's function takes the engine first and reads ``e.numpy`` as its NumPy, so that
every engine runs the same source. ``make`` turns a shape into NumPy inputs (pytrees
allowed).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.engines import Engine

Array = Any


@dataclass(frozen=True)
class Case:
    """One row of the tables.

    ``group`` selects it on the command line. ``new_shape`` has the rank of ``shape``.
    ``gradient`` cases have no NumPy column. Those with ``startup`` are also measured in
    fresh processes. ``tolerance`` bounds the largest difference between engines,
    relative to the largest element of each result. ``streams`` says that memory traffic
    is the bound, so that GB/s means something.
    """

    group: str
    label: str
    function: Callable[..., Any]
    make: Callable[..., tuple[Any, ...]]
    shape: tuple[int, ...]
    new_shape: tuple[int, ...]
    dtype: str = "float32"
    gradient: bool = False
    startup: bool = False
    streams: bool = True
    tolerance: float = 2e-5

    @property
    def name(self) -> str:
        """Unique among all cases."""
        short = {"float32": "f32", "float64": "f64"}[self.dtype]
        return f"{self.group} {self.label} {short}"

    def inputs(self, shape: tuple[int, ...] | None = None) -> tuple[Any, ...]:
        """The same NumPy arrays in every process."""
        rng = np.random.default_rng(0)
        return self.make(rng, np.dtype(self.dtype), *(shape or self.shape))


# ----------------------------------------------------------------------- functions


def overhead(e: Engine, x: Array, y: Array) -> Array:
    return x * y + x


def chain(e: Engine, x: Array, y: Array) -> Array:
    return (x * 2.0 + y) * x - y * 0.5


def chain_math(e: Engine, x: Array, y: Array) -> Array:
    anp = e.numpy
    return anp.exp(-x * x) * anp.tanh(y) + anp.where(y > 0.0, x, y * 0.5)


def softmax(e: Engine, x: Array) -> Array:
    anp = e.numpy
    p = anp.exp(x - anp.max(x, axis=-1, keepdims=True))
    return p / anp.sum(p, axis=-1, keepdims=True)


def layernorm(e: Engine, x: Array, scale: Array, shift: Array) -> Array:
    anp = e.numpy
    centred = x - anp.mean(x, axis=-1, keepdims=True)
    variance = anp.mean(centred * centred, axis=-1, keepdims=True)
    return centred / anp.sqrt(variance + 1e-5) * scale + shift


def layernorm_gradient(
    e: Engine, x: Array, scale: Array, shift: Array, weight: Array
) -> Array:
    def loss(x: Array, scale: Array, shift: Array) -> Array:
        return e.numpy.sum(layernorm(e, x, scale, shift) * weight)

    return e.grad(loss, argnums=(0, 1, 2))(x, scale, shift)


def cross_entropy(e: Engine, logits: Array, labels: Array) -> Array:
    anp = e.numpy
    shifted = logits - anp.max(logits, axis=-1, keepdims=True)
    norm = anp.log(anp.sum(anp.exp(shifted), axis=-1, keepdims=True))
    picked = anp.take_along_axis(shifted - norm, labels[:, None], axis=1)
    return -anp.mean(picked)


def cross_entropy_gradient(e: Engine, logits: Array, labels: Array) -> Array:
    return e.grad(lambda z: cross_entropy(e, z, labels))(logits)


def sum_over(axis: int | None) -> Callable[..., Array]:
    def total(e: Engine, x: Array) -> Array:
        return e.numpy.sum(x, axis=axis)

    return total


def transposed_add(e: Engine, x: Array, y: Array) -> Array:
    return x + y.T


def mlp_step(e: Engine, params: Any, x: Array, labels: Array) -> Any:
    """One SGD step of 784-hidden-hidden-10; returns the loss and the new parameters."""
    anp = e.numpy

    def loss(params: Any) -> Array:
        h = x
        for w, b in params[:-1]:
            h = anp.tanh(h @ w + b)
        w, b = params[-1]
        return cross_entropy(e, h @ w + b, labels)

    value, grads = e.value_and_grad(loss)(params)
    moved = tuple(
        (w - 0.1 * dw, b - 0.1 * db)
        for (w, b), (dw, db) in zip(params, grads, strict=True)
    )
    return value, moved


def black_scholes(e: Engine, spot: Array, strike: Array, years: Array) -> Array:
    """Price of a European call and put; rate 2 %, volatility 30 %."""
    anp, rate, volatility = e.numpy, 0.02, 0.3

    def cdf(z: Array) -> Array:
        return 0.5 + 0.5 * e.erf(z * 0.7071067811865476)

    spread = volatility * anp.sqrt(years)
    d1 = (anp.log(spot / strike) + (rate + 0.5 * volatility**2) * years) / spread
    d2 = d1 - spread
    discounted = strike * anp.exp(-rate * years)
    call = spot * cdf(d1) - discounted * cdf(d2)
    return call, call - spot + discounted


# -------------------------------------------------------------------------- inputs


def normals(count: int) -> Callable[..., tuple[Array, ...]]:
    """``count`` standard normal arrays of the case's shape."""

    def make(rng: np.random.Generator, dtype: Any, *shape: int) -> tuple[Array, ...]:
        return tuple(
            rng.standard_normal(shape, dtype=np.float32).astype(dtype)
            for _ in range(count)
        )

    return make


def rows_and_vectors(arrays: int) -> Callable[..., tuple[Array, ...]]:
    """x, then a scale and a shift per column, then ``arrays - 1`` more like x."""

    def make(rng: np.random.Generator, dtype: Any, n: int, m: int) -> tuple[Array, ...]:
        x, *more = normals(arrays)(rng, dtype, n, m)
        return (x, *normals(2)(rng, dtype, m), *more)

    return make


def logits_and_labels(
    rng: np.random.Generator, dtype: Any, n: int, m: int
) -> tuple[Array, ...]:
    (logits,) = normals(1)(rng, dtype, n, m)
    return logits, rng.integers(0, m, n, dtype=np.int32)


def square_pair(rng: np.random.Generator, dtype: Any, n: int, m: int) -> Any:
    return normals(1)(rng, dtype, n, m) + normals(1)(rng, dtype, m, n)


def mlp_inputs(
    rng: np.random.Generator, dtype: Any, batch: int, hidden: int
) -> tuple[Any, ...]:
    widths = (784, hidden, hidden, 10)
    params = tuple(
        ((rng.standard_normal((n, m)) / n**0.5).astype(dtype), np.zeros(m, dtype))
        for n, m in pairwise(widths)
    )
    x = rng.random((batch, 784), dtype=np.float32).astype(dtype)
    return params, x, rng.integers(0, 10, batch, dtype=np.int32)


def options(rng: np.random.Generator, dtype: Any, n: int) -> tuple[Array, ...]:
    bounds = ((50.0, 150.0), (50.0, 150.0), (0.1, 2.0))
    return tuple(rng.uniform(low, high, n).astype(dtype) for low, high in bounds)


# ----------------------------------------------------------------------- the table


def _cases() -> tuple[Case, ...]:
    million, pair = 1 << 20, normals(2)
    f64 = {"dtype": "float64", "tolerance": 1e-12}
    rows, wide = (4096, 1024), (8192, 4096)
    rows_, wide_ = (4001, 1000), (8001, 4000)
    square, square_ = (4096, 4096), (4000, 4001)
    cube, cube_ = (256, 256, 256), (250, 251, 252)
    heavy = {"gradient": True, "streams": False, "tolerance": 2e-4}
    return (
        Case("chain", "1k", chain, pair, (1024,), (1000,)),
        Case("chain", "1M", chain, pair, (million,), (999_999,), startup=True),
        Case("chain", "16M", chain, pair, (16 * million,), (15_000_001,)),
        Case("chain", "1M", chain, pair, (million,), (999_999,), **f64),
        Case("chain", "16M", chain, pair, (16 * million,), (15_000_001,), **f64),
        Case("chain_math", "1k", chain_math, pair, (1024,), (1000,)),
        Case(
            "chain_math", "1M", chain_math, pair, (million,), (999_999,), startup=True
        ),
        Case("chain_math", "16M", chain_math, pair, (16 * million,), (15_000_001,)),
        Case("chain_math", "1M", chain_math, pair, (million,), (999_999,), **f64),
        Case("softmax", "4096x1024", softmax, normals(1), rows, rows_, startup=True),
        Case("softmax", "8192x4096", softmax, normals(1), wide, wide_),
        Case("softmax", "4096x1024", softmax, normals(1), rows, rows_, **f64),
        Case(
            "layernorm",
            "4096x1024",
            layernorm,
            rows_and_vectors(1),
            rows,
            rows_,
            startup=True,
        ),
        Case("layernorm", "8192x4096", layernorm, rows_and_vectors(1), wide, wide_),
        Case(
            "layernorm_grad",
            "4096x1024",
            layernorm_gradient,
            rows_and_vectors(2),
            rows,
            rows_,
            gradient=True,
            startup=True,
            tolerance=2e-4,
        ),
        Case(
            "layernorm_grad",
            "8192x4096",
            layernorm_gradient,
            rows_and_vectors(2),
            wide,
            wide_,
            gradient=True,
            tolerance=2e-4,
        ),
        Case(
            "cross_entropy_grad",
            "8192x1024",
            cross_entropy_gradient,
            logits_and_labels,
            (8192, 1024),
            (8001, 1000),
            gradient=True,
            startup=True,
        ),
        Case(
            "cross_entropy_grad",
            "512x10",
            cross_entropy_gradient,
            logits_and_labels,
            (512, 10),
            (500, 12),
            gradient=True,
        ),
        *(
            Case(
                "sum",
                f"4096x4096 axis {axis}",
                sum_over(axis),
                normals(1),
                square,
                square_,
                startup=axis == 0,
                tolerance=2e-4,
            )
            for axis in (0, 1, None)
        ),
        *(
            Case(
                "sum",
                f"256x256x256 axis {axis}",
                sum_over(axis),
                normals(1),
                cube,
                cube_,
                tolerance=2e-4,
            )
            for axis in (0, 1, 2)
        ),
        Case(
            "transposed_add",
            "4096x4096",
            transposed_add,
            square_pair,
            square,
            square_,
            startup=True,
        ),
        Case(
            "transposed_add",
            "2048x2048",
            transposed_add,
            square_pair,
            (2048, 2048),
            (2000, 2001),
            **f64,
        ),
        Case(
            "mlp",
            "batch 32 hidden 64",
            mlp_step,
            mlp_inputs,
            (32, 64),
            (48, 64),
            startup=True,
            **heavy,
        ),
        Case(
            "mlp",
            "batch 256 hidden 1024",
            mlp_step,
            mlp_inputs,
            (256, 1024),
            (192, 1024),
            startup=True,
            **heavy,
        ),
        Case("black_scholes", "1M", black_scholes, options, (million,), (999_999,)),
        Case(
            "black_scholes",
            "1M",
            black_scholes,
            options,
            (million,),
            (999_999,),
            startup=True,
            **f64,
        ),
    )


CASES = _cases()
OVERHEAD = Case("overhead", "4", overhead, normals(2), (4,), (5,))
GROUPS = ("overhead", *dict.fromkeys(case.group for case in CASES))
