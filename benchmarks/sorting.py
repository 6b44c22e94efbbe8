"""Sorts and cumulative functions beside NumPy's and JAX's.

``python -m benchmarks.sorting``
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import arrayfn as af
from arrayfn import lax
from arrayfn.primitives import sorting
from arrayfn.tracing import apply
from benchmarks.side_by_side import Row, jax_run, main

SORTED = ((1 << 20,), (1000, 1000), (100_000, 8))
SCANNED = (((1 << 22,), 0), ((2048, 2048), 1), ((2048, 2048), 0), ((4, 1 << 20), 1))


def draw(shape: tuple[int, ...], dtype: str) -> Any:
    values = np.random.default_rng(0).standard_normal(shape)
    return (values * (1 if dtype.startswith("f") else 1e6)).astype(dtype)


def rows() -> Iterator[Row]:
    sort = af.jit(lambda x: apply(sorting.sort, x))
    argsort = af.jit(lambda x: apply(sorting.argsort, x))
    top = af.jit(lambda x: lax.top_k(x, 10))
    for dtype in ("f4", "f8", "i4", "i8", "f2"):
        for shape in SORTED:
            x = draw(shape, dtype)
            runs = {
                "arrayfn": lambda x=x: sort(x),
                "NumPy": lambda x=x: np.sort(x),
                "JAX": jax_run(jax.numpy.sort, x),
            }
            yield Row(f"sort {dtype} {shape}", runs, 0.0)
    for dtype in ("f4", "f8"):
        for shape in SORTED:
            x = draw(shape, dtype)
            runs = {
                "arrayfn": lambda x=x: argsort(x),
                "NumPy, stable": lambda x=x: np.argsort(x, kind="stable"),
                "JAX": jax_run(jax.numpy.argsort, x),
            }
            yield Row(f"argsort {dtype} {shape}", runs, 0.0)
    x = draw((1000, 1000), "f4")
    runs = {
        "arrayfn": lambda: top(x),
        "JAX": jax_run(lambda x: jax.lax.top_k(x, 10), x),
    }
    yield Row(f"top_k of 10 f4 {x.shape}", runs, 0.0)
    accumulate = {"cumsum": np.cumsum, "cummax": np.maximum.accumulate}
    for name, reference in accumulate.items():
        for shape, axis in SCANNED:
            for dtype in ("f4", "f8"):
                x = draw(shape, dtype)
                run = af.jit(lambda x, n=name, a=axis: getattr(lax, n)(x, a))
                runs = {
                    "arrayfn": lambda x=x, run=run: run(x),
                    "NumPy": lambda x=x, f=reference, a=axis: f(x, axis=a),
                    "JAX": jax_run(
                        lambda x, n=name, a=axis: getattr(jax.lax, n)(x, a), x
                    ),
                }
                label = f"{name} {dtype} {shape} axis {axis}"
                yield Row(label, runs, 1e-3 if dtype == "f4" else 1e-11)


if __name__ == "__main__":
    main("Sorts and cumulative functions", rows)
