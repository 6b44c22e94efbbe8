"""Operators over engines and sizes: errors and times, as tables and a plot.

    python -m benchmarks.operators                       # all operators, one size
    python -m benchmarks.operators nn.softmax --sizes 64 512 4096 --plot softmax.svg

Engines are arrayfn's kernels on a CPU, its NumPy interpreter, NumPy, and JAX and
PyTorch where they are installed (``pip install arrayfn[bench]``).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

import numpy as np

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax, nn
from arrayfn.tools.engines import COUNTERPARTS, ENGINES

Inputs = Callable[[int], Any]


def normal(*shape: int) -> Any:
    """Standard normal numbers, float32, the same ones for each shape."""
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _labels(n: int) -> Any:
    return np.random.default_rng(0).integers(0, n, 256)


def _rows(n: int) -> Any:
    return normal(256, n)


def _columns(n: int) -> Any:
    return normal(n, 256)


def _heads(n: int) -> Any:
    return normal(1, n, 4, 64)


def _image(n: int) -> Any:
    return normal(1, 8, n // 8, n // 8)


def _filters(n: int) -> Any:
    return normal(8, 8, 3, 3)


CASES: Final[dict[str, tuple[Any, tuple[Inputs, ...], dict[str, Any]]]] = {
    "nn.softmax": (nn.softmax, (_rows,), {}),
    "nn.log_softmax": (nn.log_softmax, (_rows,), {}),
    "nn.layer_norm": (nn.layer_norm, (_rows, normal, normal), {}),
    "nn.rms_norm": (nn.rms_norm, (_rows, normal), {}),
    "nn.gelu": (nn.gelu, (_rows,), {}),
    "nn.cross_entropy": (nn.cross_entropy, (_rows, _labels), {}),
    "nn.embedding": (nn.embedding, (_columns, _labels), {}),
    "nn.dot_product_attention": (nn.dot_product_attention, (_heads,) * 3, {}),
    "numpy.matmul": (anp.matmul, (_rows, _columns), {}),
    "lax.conv_general_dilated": (
        lax.conv_general_dilated,
        (_image, _filters),
        {"window_strides": (1, 1), "padding": "SAME"},
    ),
}


def main() -> None:
    """Print a table for each operator; draw the last one's times if asked."""
    parser = argparse.ArgumentParser("benchmarks.operators")
    parser.add_argument("operators", nargs="*", default=list(CASES), metavar="operator")
    parser.add_argument("--sizes", nargs="+", type=int, default=[1024])
    parser.add_argument("--dtypes", nargs="+", default=["float32"])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--plot", help="a file for the plot of the last operator")
    options = parser.parse_args()
    installed = [
        name for name in ("numpy", "jax", "torch") if ENGINES[name].is_installed
    ]
    for name in options.operators:
        function, inputs, static = CASES[name]
        engines = [x for x in installed if x in COUNTERPARTS[name]]
        swept = af.compare(
            function,
            *inputs,
            sizes=options.sizes,
            dtypes=options.dtypes,
            backends=["cpu", "reference", *engines],
            repeats=options.repeats,
            **static,
        )
        print(f"{name}\n{swept}\n")
        if options.plot:
            swept.plot().figure.savefig(options.plot)


if __name__ == "__main__":
    main()
