"""The products of ``benchmarks.gpu``: squares of every dtype, few rows, batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import jax
import numpy as np

import arrayfn.numpy as anp
from arrayfn import lax

SIZES: Final = (512, 1024, 2048, 4096, 8192, 16384)
SQUARES: Final = (
    ("float32", "float32", 1e-5, SIZES[:-1]),
    ("tf32", "float32", 1e-3, SIZES),
    ("bfloat16", "bfloat16", 5e-3, SIZES),
    ("float16", "float16", 1e-3, SIZES),
    ("float64", "float64", 1e-13, (512, 1024, 4096)),
    ("complex64", "complex64", 1e-5, (1024,)),
    ("complex128", "complex128", 1e-13, (1024,)),
    ("int8", "int8", 0.0, SIZES),
)
"""What a group is called, the dtype, the bound of the error, and the sizes."""


def product(xp: Any, x: Any, y: Any) -> Any:
    """A matrix product; TF32 is asked for in the case's own way."""
    return x @ y


def product_turned(xp: Any, x: Any, y: Any) -> Any:
    """A product with a matrix that lies along what is summed over."""
    return x @ y.T


def product_tf32(xp: Any, x: Any, y: Any) -> Any:
    """A matrix product in TF32."""
    if xp is anp:
        return anp.matmul(x, y, precision="tf32")
    if xp is np:
        return x @ y
    return jax.numpy.matmul(x, y, precision=jax.lax.DotAlgorithmPreset.TF32_TF32_F32)


def product_int8(xp: Any, x: Any, y: Any) -> Any:
    """A matrix product of bytes, summed in int32."""
    if xp is np:
        return x @ y
    library = lax if xp is anp else jax.lax
    return library.dot(x, y, preferred_element_type=np.int32)


def rows() -> Iterator[dict[str, Any]]:
    """The fields of all cases, by name."""
    functions = {"tf32": product_tf32, "int8": product_int8}
    for name, dtype, bound, sizes in SQUARES:
        for n in sizes:
            yield {
                "group": f"matmul {name}",
                "size": f"{n}",
                "function": functions.get(name, product),
                "shapes": ((n, n), (n, n)),
                "bound": bound,
                "flops": (8.0 if dtype.startswith("complex") else 2.0) * n**3,
                "dtype": dtype,
                "by_jax": n > 4096,
                "tf32": name == "tf32",
            }
    for dtype, bound in (("float32", 1e-5), ("bfloat16", 1e-2)):
        for m in (1, 4, 16):
            for n in (4096, 16384):
                for function, suffix in ((product, ""), (product_turned, " b.T")):
                    yield {
                        "group": f"matmul thin {dtype}",
                        "size": f"{m}x{n}{suffix}",
                        "function": function,
                        "shapes": ((m, n), (n, n)),
                        "bound": bound,
                        "dtype": dtype,
                        "by_jax": n > 4096,
                    }
    for dtype, bound in (("float32", 1e-5), ("bfloat16", 5e-3)):
        # As attention's: logits of 64 heads, and what they weigh.
        for m, k, n in ((1024, 64, 1024), (1024, 1024, 64)):
            yield {
                "group": f"matmul batch {dtype}",
                "size": f"64x{m}x{k}x{n}",
                "function": product,
                "shapes": ((64, m, k), (64, k, n)),
                "bound": bound,
                "flops": 2.0 * 64 * m * k * n,
                "dtype": dtype,
                "by_jax": True,
            }
