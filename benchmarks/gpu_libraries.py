"""Cases of ``benchmarks.gpu`` that NVIDIA's libraries compute, for both engines.

Convolutions as in a ResNet, forward and their gradients, and windows; linear algebra of
one matrix and of many. Results are compared with JAX's: where they are unique, as
they are, and else what they give back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import jax
import numpy as np

import arrayfn as af
from arrayfn import lax

NHWC: Final = ("NHWC", "HWIO", "NHWC")
Shape = tuple[int, ...]
Row = tuple[str, str, Callable[..., Any], tuple[Shape, ...], float, float, str]
"""Group, size, function, shapes, bound, operations, dtype."""
_BATCH: Final = 32
_LAYERS: Final[tuple[tuple[str, Shape, Shape, int, int], ...]] = (
    ("3x3 64@56", (_BATCH, 56, 56, 64), (3, 3, 64, 64), 1, 1),
    ("3x3 128@28", (_BATCH, 28, 28, 128), (3, 3, 128, 128), 1, 1),
    ("3x3 256@14", (_BATCH, 14, 14, 256), (3, 3, 256, 256), 1, 1),
    ("3x3 512@7", (_BATCH, 7, 7, 512), (3, 3, 512, 512), 1, 1),
    ("1x1 256>64@56", (_BATCH, 56, 56, 256), (1, 1, 256, 64), 1, 1),
    ("3x3/2 128@56", (_BATCH, 56, 56, 128), (3, 3, 128, 128), 2, 1),
    ("7x7/2 3>64@224", (_BATCH, 224, 224, 3), (7, 7, 3, 64), 2, 1),
    ("depthwise 128@56", (_BATCH, 56, 56, 128), (3, 3, 1, 128), 1, 128),
)
"""Size, operand, kernel, stride and groups."""


def _of(xp: Any) -> Any:
    """The engine of an array module; NumPy's is ours."""
    return jax if xp is jax.numpy else af


def _convolution(stride: int, groups: int) -> Callable[..., Any]:
    def convolve(xp: Any, x: Any, w: Any) -> Any:
        engine = jax.lax if xp is jax.numpy else lax
        return engine.conv_general_dilated(
            x,
            w,
            (stride, stride),
            "SAME",
            dimension_numbers=NHWC,
            feature_group_count=groups,
        )

    return convolve


def _cotangent(convolve: Callable[..., Any], number: int) -> Callable[..., Any]:
    """By its operand or its kernel, of the cotangent in the place of it."""

    def gradient(xp: Any, x: Any, w: Any, ct: Any) -> Any:
        def own(value: Any) -> Any:
            return convolve(xp, *((value, w) if number == 0 else (x, value)))

        return _of(xp).vjp(own, (x, w)[number])[1](ct)[0]

    return gradient


def convolutions() -> Iterator[Row]:
    """Layers of a ResNet, forward and backward."""
    for dtype, bound, layers in (
        ("bfloat16", 1e-2, _LAYERS),
        ("float32", 1e-5, (_LAYERS[1], *_LAYERS[5:])),
    ):
        for size, x, w, stride, groups in layers:
            out = (_BATCH, *(-(-n // stride) for n in x[1:3]), w[3])
            flops = 2.0 * math.prod(out) * math.prod(w[:3])
            run = _convolution(stride, groups)
            group = f"convolution {dtype}"
            yield group, size, run, (x, w), bound, flops, dtype
            for number, of in enumerate(("operand", "kernel")):
                function = _cotangent(run, number)
                yield (
                    f"{group} by {of}",
                    size,
                    function,
                    (x, w, out),
                    bound,
                    flops,
                    dtype,
                )


def _pooled(xp: Any, x: Any) -> Any:
    engine = jax.lax if xp is jax.numpy else lax
    return engine.reduce_window(
        x,
        -np.inf if xp is jax.numpy else np.float32(-np.inf),
        engine.max,
        (1, 3, 3, 1),
        (1, 2, 2, 1),
        "SAME",
    )


def _pooled_back(xp: Any, x: Any) -> Any:
    return _of(xp).grad(lambda x: xp.sum(_pooled(xp, x) ** 2))(x)


def pools() -> Iterator[Row]:
    """The greatest of windows, and its gradient."""
    x = (_BATCH, 112, 112, 64)
    yield "max pool", "3x3/2 64@112", _pooled, (x,), 1e-6, 0.0, "float32"
    yield "max pool by x", "3x3/2 64@112", _pooled_back, (x,), 1e-6, 0.0, "float32"


def _positive(xp: Any, x: Any) -> Any:
    return x @ xp.swapaxes(x, -1, -2) + x.shape[-1] * xp.eye(x.shape[-1], dtype=x.dtype)


def _cholesky(xp: Any, x: Any) -> Any:
    return xp.linalg.cholesky(_positive(xp, x))


def _solved(xp: Any, x: Any, b: Any) -> Any:
    return xp.linalg.solve(_positive(xp, x), b)


def _given_back_by_qr(xp: Any, x: Any) -> Any:
    q, r = xp.linalg.qr(x)
    return q @ r


def _eigenvalues(xp: Any, x: Any) -> Any:
    values, vectors = xp.linalg.eigh(_positive(xp, x))
    return (vectors * values[..., None, :]) @ xp.swapaxes(vectors, -1, -2)


def _given_back_by_svd(xp: Any, x: Any) -> Any:
    u, s, vh = xp.linalg.svd(x, full_matrices=False)
    return (u * s[..., None, :]) @ vh


def _solved_triangle(xp: Any, x: Any, b: Any) -> Any:
    a = xp.tril(x) + x.shape[-1] * xp.eye(x.shape[-1], dtype=x.dtype)
    if xp is jax.numpy:
        return jax.lax.linalg.triangular_solve(a, b, left_side=True, lower=True)
    return lax.linalg.triangular_solve(a, b, left_side=True, lower=True)


def linear_algebra() -> Iterator[Row]:
    """Factorizations of one matrix, and of many small ones."""
    functions: tuple[tuple[str, Callable[..., Any], bool, int], ...] = (
        ("cholesky", _cholesky, False, 4096),
        ("triangular solve", _solved_triangle, True, 4096),
        ("solve", _solved, True, 2048),
        ("qr", _given_back_by_qr, False, 2048),
        ("eigh", _eigenvalues, False, 1024),
        ("svd", _given_back_by_svd, False, 512),
    )
    shapes: tuple[Shape, ...] = (
        (512, 512),
        (2048, 2048),
        (256, 64, 64),
        (1000, 16, 16),
    )
    for name, function, has_sides, most in functions:
        for shape in shapes:
            # JAX's goes from matrix to matrix, which takes seconds.
            if shape[-1] > most or (name == "svd" and shape[-1] == 64):
                continue
            sides = ((*shape[:-1], 8),) if has_sides else ()
            size = "x".join(map(str, shape))
            bound = 3e-4 if name == "svd" else 3e-5
            yield name, size, function, (shape, *sides), bound, 0.0, "float32"


def rows() -> Iterator[Row]:
    """All of them."""
    yield from convolutions()
    yield from pools()
    yield from linear_algebra()
