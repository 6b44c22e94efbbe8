"""Convolutions and pooling beside JAX's and torch's.

``python -m benchmarks.convolution``
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch

import arrayfn as af
from arrayfn import nn
from benchmarks.side_by_side import Row, jax_run, main

NHWC = ("NHWC", "HWIO", "NHWC")
NCHW = ("NCHW", "OIHW", "NCHW")


@dataclass(frozen=True)
class Case:
    """A convolution of float32, with padding "SAME"."""

    name: str
    operand: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    layout: tuple[str, str, str]
    groups: int = 1

    def function(self, library: Any) -> Callable[..., Any]:
        return lambda x, w: library.lax.conv_general_dilated(
            x,
            w,
            self.strides,
            "SAME",
            dimension_numbers=self.layout,
            feature_group_count=self.groups,
        )

    def work(self, out: Any) -> float:
        """Multiplications and additions."""
        features = self.kernel[self.layout[1].index("O")]
        return 2.0 * out.size * float(np.prod(self.kernel)) / features


CASES = (
    Case("3x3 64 NHWC", (8, 56, 56, 64), (3, 3, 64, 64), (1, 1), NHWC),
    Case("3x3 64 NCHW", (8, 64, 56, 56), (64, 64, 3, 3), (1, 1), NCHW),
    Case("3x3 256 NHWC", (8, 14, 14, 256), (3, 3, 256, 256), (1, 1), NHWC),
    Case("7x7/2 3 NHWC", (8, 224, 224, 3), (7, 7, 3, 64), (2, 2), NHWC),
    Case("1x1 128 NHWC", (8, 28, 28, 128), (1, 1, 128, 256), (1, 1), NHWC),
    Case("depthwise 3x3 NHWC", (8, 56, 56, 128), (3, 3, 1, 128), (1, 1), NHWC, 128),
    Case("depthwise 3x3 NCHW", (8, 128, 56, 56), (128, 1, 3, 3), (1, 1), NCHW, 128),
    Case("4 groups 3x3 NHWC", (8, 28, 28, 128), (3, 3, 32, 128), (1, 1), NHWC, 4),
    Case("1d 9 NHC", (8, 16000, 16), (9, 16, 32), (1,), ("NHC", "HIO", "NHC")),
)


def draw(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def pulled(library: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients by operand and kernel."""
    return lambda x, w, ct: library.vjp(function, x, w)[1](ct)


def rows() -> Iterator[Row]:
    torch.set_num_threads(2)
    for case in CASES:
        x, w = draw(*case.operand), draw(*case.kernel)
        ours, theirs = case.function(af), case.function(jax)
        run = af.jit(ours)
        out = run(x, w)
        runs = {
            "arrayfn": lambda run=run, x=x, w=w: run(x, w),
            "JAX": jax_run(theirs, x, w),
        }
        yield Row(case.name, runs, 1e-4, case.work(out))

        back = af.jit(pulled(af, ours))
        runs = {
            "arrayfn": lambda back=back, x=x, w=w, ct=out: back(x, w, ct),
            "JAX": jax_run(pulled(jax, theirs), x, w, out),
        }
        yield Row(f"{case.name}, gradients", runs, 1e-3, 2 * case.work(out))
    x = draw(8, 112, 112, 64)
    pool = af.jit(lambda x: nn.max_pool(x, (3, 3), (2, 2)))
    given = torch.tensor(np.ascontiguousarray(np.moveaxis(x, -1, 1)))

    def of_torch() -> Any:
        pooled = torch.nn.functional.max_pool2d(given, 3, 2)
        return np.moveaxis(pooled.numpy(), 1, -1)

    def of_jax(x: Any) -> Any:
        window, strides = (1, 3, 3, 1), (1, 2, 2, 1)
        return jax.lax.reduce_window(x, -np.inf, jax.lax.max, window, strides, "VALID")

    runs = {"arrayfn": lambda: pool(x), "JAX": jax_run(of_jax, x), "torch": of_torch}
    yield Row("max_pool 3x3/2 NHWC", runs, 0.0)
    back = af.jit(lambda x, ct: af.vjp(pool, x)[1](ct)[0])
    ct = pool(x)
    runs = {
        "arrayfn": lambda: back(x, ct),
        "JAX": jax_run(lambda x, ct: jax.vjp(of_jax, x)[1](ct)[0], x, ct),
    }
    yield Row("max_pool 3x3/2 NHWC, gradient", runs, 1e-5)


if __name__ == "__main__":
    main("Convolutions and pooling", rows)
