"""The sources of kernels; `pytest --update-golden` writes them anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.lowering.plan import Kernel

X = np.zeros((6, 4), np.float32)
ROW = np.zeros(4, np.float32)
TALL = np.zeros((48, 40), np.float32)
LABELS = np.zeros(6, np.int32)


def elementwise(x: Any, row: Any) -> Any:
    scaled = anp.tanh(x * 0.5) + row
    return scaled, anp.where(scaled > 0, scaled, x)


def softmax_rows(x: Any) -> Any:
    e = anp.exp(x - anp.max(x, axis=1, keepdims=True))
    return e / anp.sum(e, axis=1, keepdims=True)


def column_sum(x: Any) -> Any:
    return anp.sum(x * x, axis=0)


def sum_of_all(x: Any) -> Any:
    return anp.mean(anp.abs(x))


def transposed_add(x: Any, y: Any) -> Any:
    return x + y.T


def one_hot(labels: Any) -> Any:
    return anp.where(labels[:, None] == anp.arange(4), 1.0, 0.0)


def half_precision(x: Any) -> Any:
    return anp.exp(x) * x


def truth(x: Any, y: Any) -> Any:
    return (x > y) & ~anp.isnan(x), anp.any(x < 0, axis=1)


def complex_numbers(z: Any) -> Any:
    return z * anp.conj(z) + 1j


def integers(n: Any) -> Any:
    return n // 3 + (n << 2), n % -5


def reversed_rows(x: Any) -> Any:
    return anp.cumsum(x[::-1, 1:], axis=1)


def network(w: Any, h: Any, xs: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = anp.tanh(h @ w + x)
        return h, anp.sum(h)

    return af.lax.scan(step, h, xs)


def paths(x: Any, steps: Any) -> Any:
    def walk(x: Any, step: Any) -> Any:
        return x + anp.sin(x) * step, None

    return af.lax.scan(walk, x, steps)[0]


def newton(x: Any) -> Any:
    def goes_on(state: Any) -> Any:
        x, step = state
        return (step < 20) & (anp.abs(x * x - 2.0) > 1e-6)

    return af.lax.while_loop(
        goes_on, lambda s: (0.5 * (s[0] + 2.0 / s[0]), s[1] + 1), (x, 0)
    )


CASES: dict[Callable[..., Any], tuple[Any, ...]] = {
    elementwise: (X, ROW),
    softmax_rows: (X,),
    column_sum: (X,),
    sum_of_all: (X,),
    transposed_add: (TALL, TALL.T.copy()),
    one_hot: (LABELS,),
    half_precision: (X.astype(ml_dtypes.bfloat16),),
    truth: (X, X),
    complex_numbers: (X.astype(np.complex64),),
    integers: (LABELS,),
    reversed_rows: (X,),
    network: (np.eye(4, dtype=np.float32), ROW, X),
    paths: (np.zeros(100_000, np.float32), np.zeros(50, np.float32)),
    newton: (np.float32(3.0),),
}


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_the_kernels_of_a_function(
    function: Callable[..., Any], golden: Callable[[str, str], None]
) -> None:
    lowered = af.jit(function).lower(*CASES[function])
    sources = [k.source for k in lowered.kernels if isinstance(k, Kernel)]
    golden(f"kernels/{function.__name__}", "\n\n".join(sources))


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_sources_are_python_whose_head_fits_a_line(
    function: Callable[..., Any],
) -> None:
    for kernel in af.jit(function).lower(*CASES[function]).kernels:
        compile(kernel.source, f"{kernel.name}.py", "exec")
        head, _, _ = kernel.source.partition("    for ")
        assert head.startswith(f"# {kernel.name}: ")
        assert max(len(line) for line in head.splitlines()) <= 88
        assert not any(line.endswith(" ") for line in kernel.source.splitlines())


def test_the_line_of_the_user_stands_beside_what_it_became() -> None:
    line = transposed_add.__code__.co_firstlineno + 1
    (kernel,) = af.jit(transposed_add).lower(X, X.T.copy()).kernels
    _, _, body = kernel.source.partition("    for ")
    marked = [text.split() for text in body.splitlines() if "#" in text]
    assert marked == [["b", "=", "x", "+", "a", "#", f"test_golden_kernels.py:{line}"]]
