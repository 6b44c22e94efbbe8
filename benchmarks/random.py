"""Random numbers beside JAX's, of the same keys: ``python -m benchmarks.random``.

Where arrayfn draws by another algorithm than JAX (rejection), results are not compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

import arrayfn as af
from benchmarks.side_by_side import Row, main

N = 1_000_000
Draw = Callable[[Any, Any], Any]
OTHER_ALGORITHM = math.inf
# JAX's erfinv rounds 1 - x**2, which is small there.
IN_TAILS = 2e-5

# Of a module and a key; and the difference allowed.
CASES: dict[str, tuple[Draw, float]] = {
    "bits u32": (lambda r, k: r.bits(k, (N,), np.uint32), 0.0),
    "uniform f32": (lambda r, k: r.uniform(k, (N,), np.float32), 0.0),
    "uniform f64": (lambda r, k: r.uniform(k, (N,), np.float64), 0.0),
    "normal f32": (lambda r, k: r.normal(k, (N,), np.float32), IN_TAILS),
    "normal f64": (lambda r, k: r.normal(k, (N,), np.float64), 1e-10),
    "normal f32 (1000, 1000)": (
        lambda r, k: r.normal(k, (1000, 1000), np.float32),
        IN_TAILS,
    ),
    "bernoulli": (
        lambda r, k: r.bernoulli(k, np.float32(0.3), (N,)).astype(np.uint8),
        0.0,
    ),
    "randint 0..100 i32": (lambda r, k: r.randint(k, (N,), 0, 100, np.int32), 0.0),
    "gumbel f32": (lambda r, k: r.gumbel(k, (N,), np.float32), 2e-5),
    "categorical (10000, 100) f32": (
        lambda r, k: r.categorical(k, np.zeros((10_000, 100), np.float32)),
        OTHER_ALGORITHM,
    ),
    "permutation of 1M": (lambda r, k: r.permutation(k, N), 0.0),
    "gamma f32": (
        lambda r, k: r.gamma(k, np.float32(2.5), (N,), np.float32),
        OTHER_ALGORITHM,
    ),
    "poisson of 4": (lambda r, k: r.poisson(k, 4.0, (N,)), OTHER_ALGORITHM),
    "poisson of 40": (lambda r, k: r.poisson(k, 40.0, (N,)), OTHER_ALGORITHM),
    "split into 1000": (lambda r, k: r.key_data(r.split(k, 1000)), 0.0),
}


def rows() -> Iterator[Row]:
    jax.config.update("jax_enable_x64", True)
    key, jax_key = af.random.key(0), jax.random.key(0)
    for name, (draw, tolerance) in CASES.items():
        ours = af.jit(lambda k, draw=draw: draw(af.random, k))
        theirs = jax.jit(lambda k, draw=draw: draw(jax.random, k))
        runs = {
            "arrayfn": lambda run=ours: run(key),
            "JAX": lambda run=theirs: jax.block_until_ready(run(jax_key)),
        }
        yield Row(name, runs, tolerance)


if __name__ == "__main__":
    main("Random numbers, a million each", rows)
