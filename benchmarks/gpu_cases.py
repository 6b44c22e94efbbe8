"""What ``benchmarks.gpu`` measures: functions of an array module, and their inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any, Final

import jax
import ml_dtypes
import numpy as np

import arrayfn.numpy as anp
from arrayfn import lax
from benchmarks import gpu_libraries, gpu_matmuls
from benchmarks.gpu_blocks import attention, attention_gradient, transformer
from benchmarks.gpu_loops import LOOPS, SMALL, layers_loss

Array = np.ndarray[Any, Any]
WIDTHS: Final = (784, 512, 512, 10)
COMPLEX: Final = ("complex64", "complex128")
BF16: Final = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Case:
    """``function(xp, *arrays)`` on inputs of ``shapes``.

    ``bound`` is the greatest relative error, in the norm. ``flops`` is given for what
    arithmetic bounds, and not memory. A ``step`` is of gradient descent on the first
    ``parameters`` inputs, of which the function is the loss; it and what takes NumPy
    too long are compared with JAX's results. ``mode`` is arrayfn's. ``indices`` are
    inputs before the others: how many integers, and their limit. Where arrayfn is not
    asked to be ``deterministic`` the group's name says so. Of what is ``by_rows``, a
    row of the result is of the same row of the inputs: of many, some are compared.
    """

    group: str
    size: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    bound: float = 1e-5
    flops: float = 0.0
    dtype: str = "float32"
    parameters: int = 0
    by_jax: bool = False
    by_rows: bool = False
    tf32: bool = False
    mode: str | None = None
    deterministic: bool = True
    indices: tuple[tuple[int, int], ...] = ()

    @property
    def is_step(self) -> bool:
        """Whether it is a step of gradient descent."""
        return self.parameters > 0


def chain(xp: Any, x: Any, y: Any) -> Any:
    """An elementwise chain."""
    return xp.exp(-x * x) * y + xp.tanh(x)


def softmax(xp: Any, x: Any) -> Any:
    """Softmax along rows."""
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


def logsumexp(xp: Any, x: Any) -> Any:
    """The logarithm of the sum of the exponentials of rows."""
    greatest = xp.max(x, axis=-1)
    return xp.log(xp.sum(xp.exp(x - greatest[:, None]), axis=-1)) + greatest


def layernorm(xp: Any, x: Any, scale: Any, shift: Any) -> Any:
    """Layer normalisation of rows."""
    d = x - xp.mean(x, axis=-1, keepdims=True)
    variance = xp.mean(d * d, axis=-1, keepdims=True)
    return d / xp.sqrt(variance + 1e-5) * scale + shift


def branches(xp: Any, x: Any, y: Any) -> Any:
    """An elementwise function of many conditions."""
    z = xp.where(x > y, x - y, xp.where(x + y > 0, x * y, -x))
    return xp.where(xp.abs(z) < 1, z * z * z, xp.where(z > 0, xp.minimum(z, 2), -y))


def gather(xp: Any, index: Any, x: Any) -> Any:
    """Rows of a table."""
    return x[index]


def affine(xp: Any, x: Any) -> Any:
    """So little that the call itself is measured."""
    return x * 2 + 1


def mlp(xp: Any, *arrays: Any) -> Any:
    """The mean cross entropy of a perceptron with two hidden layers."""
    *parameters, x, target = arrays
    for k in range(0, len(parameters), 2):
        x = x @ parameters[k] + parameters[k + 1]
        if k + 2 < len(parameters):
            x = xp.maximum(x, 0)
    x = x - xp.max(x, axis=-1, keepdims=True)
    logp = x - xp.log(xp.sum(xp.exp(x), axis=-1, keepdims=True))
    return -xp.mean(xp.sum(logp * target, axis=-1))


def step_of(case: Case, xp: Any, value_and_grad: Any) -> Callable[..., Any]:
    """One step of gradient descent: the loss and the new parameters."""

    def step(*arrays: Any) -> Any:
        count = case.parameters
        loss = value_and_grad(
            lambda *a: case.function(xp, *a), argnums=tuple(range(count))
        )
        value, gradients = loss(*arrays)
        pairs = zip(arrays[:count], gradients, strict=True)
        return (value, *(p - (0.01 * g).astype(p.dtype) for p, g in pairs))

    return step


@lru_cache(maxsize=4)
def _normal(size: int, seed: int, dtype: str) -> Array:
    """Normal numbers, which cases of one size share, as this dtype has them."""
    rng = np.random.default_rng(seed)
    values: Array
    if dtype in COMPLEX:
        values = rng.standard_normal(2 * size).view(np.complex128).astype(dtype)
    elif dtype == "float64":
        values = rng.standard_normal(size)
    else:
        values = rng.standard_normal(size, np.float32)
    values.flags.writeable = False
    return values


def inputs_of(case: Case, seed: int) -> list[Array]:
    """Random inputs; weights are scaled, and a perceptron's targets one-hot."""
    rng = np.random.default_rng(seed)
    indices = [rng.integers(0, most, n, np.int32) for n, most in case.indices]
    if case.dtype == "int8":
        return [rng.integers(-128, 128, s).astype(np.int8) for s in case.shapes]
    drawn = case.dtype if case.dtype in ("float64", *COMPLEX) else "float32"
    arrays = [
        _normal(prod(shape), seed + k, drawn).reshape(shape)
        for k, shape in enumerate(case.shapes)
    ]
    for k in range(case.parameters):
        if arrays[k].ndim > 1:
            arrays[k] = arrays[k] / np.float32(np.sqrt(arrays[k].shape[0]))
    if case.function is mlp:
        classes = rng.integers(0, WIDTHS[-1], case.shapes[-1][0])
        arrays[-1] = np.eye(WIDTHS[-1], dtype=np.float32)[classes]
    dtype = BF16 if case.dtype == "bfloat16" else np.dtype(case.dtype)
    return [*indices, *(a.astype(dtype) for a in arrays)]


def cases() -> Iterator[Case]:
    """All cases, in the order of the table."""
    for n in (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 26):
        yield Case("chain", f"{n}", chain, ((n,), (n,)), by_rows=True)
    size, shapes = f"{1 << 25}", ((1 << 25,),) * 2
    yield Case("branches", size, branches, shapes, by_rows=True)
    for rows, length in ((1 << 20, 32), (1 << 15, 1024)):
        size, shapes, taken = f"{rows}x{length}", ((rows, length),), ((rows, rows),)
        yield Case("gather", size, gather, shapes, by_jax=True, indices=taken)
    yield from _rows()
    yield from _sums()
    for n in (1024, 4096, 8192):
        yield Case("x + y.T", f"{n}", lambda xp, x, y: x + y.T, ((n, n), (n, n)))
    for dtype in ("bfloat16", "int8"):
        # NumPy's would not wrap around: it computes in float64 here.
        yield Case(
            f"x + y.T {dtype}",
            "8192",
            lambda xp, x, y: x + y.T,
            ((8192, 8192),) * 2,
            0.0,
            dtype=dtype,
            by_jax=True,
        )
    yield from _sorts()
    yield from _scatters()
    yield from (Case(**fields) for fields in gpu_matmuls.rows())
    yield from _attentions()
    yield Case("call", "16", affine, ((16,),))
    for batch in (64, 4096):
        layers = list(pairwise(WIDTHS))
        parameters = [s for a, b in layers for s in ((a, b), (b,))]
        flops = 6.0 * batch * sum(a * b for a, b in layers)
        shapes = (*parameters, (batch, WIDTHS[0]), (batch, WIDTHS[-1]))
        yield Case("mlp step", f"{batch}", mlp, shapes, 1e-4, flops, parameters=6)
    yield from _transformers()
    yield from _loops()
    for group, size, function, shapes, bound, flops, dtype in gpu_libraries.rows():
        # NumPy has neither convolutions nor all of linear algebra in its namespace.
        yield Case(
            group, size, function, shapes, bound, flops, dtype=dtype, by_jax=True
        )


def _rows() -> Iterator[Case]:
    lengths = (128, 1024, 4096, 8192, 16384, 32768, 65536, 131072)
    for group, function in (("softmax", softmax), ("layernorm", layernorm)):
        for length in lengths:
            rows = (1 << 25) // length
            weights = ((length,), (length,)) if group == "layernorm" else ()
            for name, count, dtype, bound in (
                (group, rows, "float32", 1e-5),
                (f"{group} bf16", 2 * rows, "bfloat16", 1e-2),
            ):
                size, shapes = f"{count}x{length}", ((count, length), *weights)
                yield Case(
                    name, size, function, shapes, bound, dtype=dtype, by_rows=True
                )
    for rows, length in ((1, 131072), (8, 65536), (32, 16384)):
        yield Case("softmax", f"{rows}x{length}", softmax, ((rows, length),))
    for rows, length in ((2048, 16384), (512, 65536), (256, 131072), (8, 1 << 20)):
        shapes = ((rows, length),)
        yield Case("logsumexp", f"{rows}x{length}", logsumexp, shapes, by_rows=True)
    for axis, shape in ((1, (512, 65536)), (0, (65536, 512)), (None, (8192, 4096))):
        std = lambda xp, x, axis=axis: xp.std(x, axis=axis)  # noqa: E731
        label = "all" if axis is None else f"axis {axis}"
        yield Case(f"std {label}", f"{shape[0]}x{shape[1]}", std, (shape,))
    scanned = ((262144, 128), (4096, 8192), (64, 65536), (256, 131072), (1, 1 << 25))
    for rows, length in scanned:
        cumsum = lambda xp, x: xp.cumsum(x, axis=1)  # noqa: E731
        shapes = ((rows, length),)
        yield Case("cumsum", f"{rows}x{length}", cumsum, shapes, by_rows=True)
    for axis in (0, 1):
        argmax = lambda xp, x, axis=axis: xp.argmax(x, axis=axis)  # noqa: E731
        yield Case(f"argmax axis {axis}", "8192x8192", argmax, ((8192, 8192),))


def _sums() -> Iterator[Case]:
    sizes = (8192, 8192), (512, 131072), (262144, 256), (131, 4099), (1 << 21, 16)
    for rows, columns in sizes:
        shape = (rows, columns)
        for axis in (None, 0, 1):
            label = "all" if axis is None else f"axis {axis}"
            yield Case(
                f"sum {label}",
                f"{rows}x{columns}",
                lambda xp, x, axis=axis: xp.sum(x, axis=axis),
                (shape,),
            )


def top_k(xp: Any, x: Any, k: int) -> Any:
    """The greatest few of each row, and where they are."""
    return (lax if xp is anp else jax.lax).top_k(x, k)


def _sorts() -> Iterator[Case]:
    for shape, dtype in (
        ((1 << 24,), "float32"),
        ((1 << 22,), "float64"),
        ((4096, 8192), "float32"),
        ((64, 65536), "float32"),
    ):
        size = "x".join(map(str, shape)) + (" f64" if dtype == "float64" else "")
        sort = lambda xp, x: xp.sort(x)  # noqa: E731
        yield Case("sort", size, sort, (shape,), dtype=dtype, by_jax=True)
    argsort = lambda xp, x: xp.argsort(x)  # noqa: E731
    yield Case("argsort", f"{1 << 24}", argsort, ((1 << 24,),), by_jax=True)
    few = lambda xp, x: top_k(xp, x, 50)  # noqa: E731
    yield Case("top_k of 50", "512x50257", few, ((512, 50257),), by_jax=True)


def _scatters() -> Iterator[Case]:
    many = 1 << 20, 1 << 24, 0
    for n, limit, width, fixed in (
        (1 << 16, 50257, 1024, True),
        (*many, True),
        (*many, False),
    ):
        inner = (width,) if width else ()
        yield Case(
            "scatter-add" if fixed else "scatter-add, any order",
            f"{n} of {limit}",
            lambda xp, i, x, u: x.at[i].add(u),
            ((limit, *inner), (n, *inner)),
            by_jax=True,
            deterministic=fixed,
            indices=((n, limit),),
        )
    bins = ((1 << 20, 1000),)
    for group, function, given in (
        ("histogram", lambda xp, i: xp.bincount(i, length=1000), ()),
        (
            "weighted bins",
            lambda xp, i, w: xp.bincount(i, weights=w, length=1000),
            ((1 << 20,),),
        ),
    ):
        size = f"{1 << 20} of 1000"
        yield Case(group, size, function, given, 1e-4, by_jax=True, indices=bins)


def _attentions() -> Iterator[Case]:
    for causal in (False, True):
        for shape in ((4, 4096, 16, 16, 128), (16, 512, 16, 16, 64)):
            yield _attention("attention", shape, causal=causal)
    for fixed in (True, False):
        yield _attention(
            "attention grad", (4, 4096, 16, 16, 128), causal=True, deterministic=fixed
        )
    # What cuDNN does not take, or JAX does not give to it: more in gpu_attention.
    yield _attention("attention", (2, 2048, 16, 16, 84), causal=True, by="xla")
    yield _attention("attention grad", (2, 2048, 16, 16, 192), causal=True, by="xla")
    yield _attention("attention bias", (2, 1024, 16, 16, 128), bias=True, by="xla")
    shape = (2, 1024, 16, 16, 128)
    yield _attention("attention bias grad", shape, bias=True, by="xla")
    yield _attention("attention window", (2, 2048, 16, 16, 128), left=256, by="xla")


def _attention(
    group: str,
    shape: tuple[int, int, int, int, int],
    *,
    bias: bool = False,
    deterministic: bool = True,
    **options: Any,
) -> Case:
    """A case of q [B, T, N, H] and keys of K heads."""
    B, T, N, K, H = shape
    arrays = [(B, T, N, H), (B, T, K, H), (B, T, K, H)]
    if bias:
        arrays.append((1, N, T, T))
    gradient = group.endswith("grad")
    if gradient:
        arrays.append(arrays[0])
    function = attention_gradient if gradient else attention
    pairs = T * T / (2 if options.get("causal") else 1)
    if "left" in options:
        pairs = T * options["left"]
    heads = f"{N}" if N == K else f"{N}({K})"
    if options.get("causal"):
        group += " causal"
    return Case(
        group if deterministic else f"{group}, any order",
        f"{B}x{T}x{heads}x{H}",
        lambda xp, *a: function(xp, *a, **options),
        tuple(arrays),
        2e-2,
        (14.0 if gradient else 4.0) * B * N * pairs * H,
        dtype="bfloat16",
        by_jax=True,
        deterministic=deterministic,
    )


def _transformers() -> Iterator[Case]:
    for size, B, T, D, heads, layers in (
        ("small", 4, 128, 256, 4, 2),
        ("large", 8, 1024, 1024, 16, 4),
    ):
        block = ((D, 3 * D), (D, D), (D, 4 * D), (4 * D, D))
        tokens = ((B, T, D), (B, T, D))
        flops = layers * (6.0 * B * T * 12 * D * D + 6.0 * B * T * T * D)
        yield Case(
            "transformer step",
            size,
            lambda xp, *a, heads=heads: transformer(xp, *a, heads=heads),
            (*(block * layers), *tokens),
            5e-2,
            flops,
            dtype="bfloat16",
            parameters=4 * layers,
        )


def _loops() -> Iterator[Case]:
    for name, function, shapes in LOOPS:
        yield Case("loops", name, function, shapes, 1e-3, by_jax=True)
    for name, function, shapes in SMALL:
        yield Case(
            "persistent", name, function, shapes, 1e-3, by_jax=True, mode="persistent"
        )
    shapes = (*((128, 128),) * 3, (16, 128), (16, 128))
    for group, mode in (("loops", None), ("persistent", "persistent")):
        yield Case(
            group,
            "step 16x128",
            layers_loss,
            shapes,
            1e-3,
            parameters=3,
            by_jax=True,
            mode=mode,
        )


def of_group(chosen: Sequence[str]) -> Iterator[Case]:
    """The cases whose group begins with one of ``chosen``, or all."""
    for case in cases():
        if not chosen or any(case.group.startswith(name) for name in chosen):
            yield case
