"""Fourier transforms beside NumPy's and JAX's: ``python -m benchmarks.fourier``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import arrayfn as af
from benchmarks.side_by_side import Row, jax_run, main

CASES = (
    ("fft", (64,), "c16"),
    ("fft", (1 << 20,), "c8"),
    ("fft", (1 << 20,), "c16"),
    ("fft", (1000, 1024), "c8"),
    ("fft", (20_000, 64), "c8"),
    ("rfft", (1000, 1024), "f4"),
    ("rfft", (1 << 20,), "f4"),
    ("irfft", (1000, 513), "c8"),
    ("fft2", (1024, 1024), "c8"),
    ("fft2", (512, 512), "c16"),
    ("rfft2", (1024, 1024), "f4"),
)


def draw(shape: tuple[int, ...], dtype: str) -> Any:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(shape)
    if dtype.startswith("c"):
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


def rows() -> Iterator[Row]:
    for name, shape, dtype in CASES:
        x = draw(shape, dtype)
        run, reference = af.jit(getattr(af.fft, name)), getattr(np.fft, name)
        runs = {
            "arrayfn": lambda x=x, run=run: run(x),
            "NumPy": lambda x=x, f=reference: f(x),
            "JAX": jax_run(getattr(jax.numpy.fft, name), x),
        }
        length = np.prod(shape[-2:] if name.endswith("2") else shape[-1:])
        real = 0.5 if "r" in name else 1.0
        work = 5.0 * real * x.size * np.log2(length)
        single = dtype in ("c8", "f4")
        yield Row(f"{name} {dtype} {shape}", runs, 1e-5 if single else 1e-12, work)


if __name__ == "__main__":
    main("Fourier transforms", rows)
