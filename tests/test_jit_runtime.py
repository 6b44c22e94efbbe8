"""jit at run time: what is compiled and when, threads, processes, equal bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import tree
from arrayfn.backends.cpu import code
from arrayfn.lowering.plan import Kernel
from tests.common_functions import (
    cross_entropy,
    layernorm,
    same_on_threads,
    softmax,
    two_layers,
)

RNG = np.random.default_rng(11)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The names of the kernels that are compiled from here on, with an empty cache."""
    monkeypatch.setenv("ARRAYFN_CACHE_DIR", str(tmp_path / "cache"))
    names: list[str] = []
    prepare = code._prepare

    def counted(kernel: Kernel, symbol: str) -> Callable[[], bytes]:
        names.append(kernel.name)
        return prepare(kernel, symbol)

    monkeypatch.setattr(code, "_prepare", counted)
    return names


def layernorm_loss(x: Any, g: Any, b: Any, w: Any) -> Any:
    return anp.sum(layernorm(x, g, b) * w)


def step(p: Any, x: Any, labels: Any) -> Any:
    value, slope = af.value_and_grad(two_layers)(p, x, labels)
    return value, tree.map(lambda p, g: p - 0.1 * g, p, slope)


def single(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def labels_of(rows: int, columns: int) -> Any:
    return RNG.integers(0, columns, rows).astype(np.int32)


def parameters(inputs: int, hidden: int, classes: int) -> Any:
    return {
        "w1": single(inputs, hidden) / 8,
        "b1": single(hidden),
        "w2": single(hidden, classes) / 8,
        "b2": single(classes),
    }


Case = tuple[Callable[..., Any], Callable[[int, int], tuple[Any, ...]]]
CASES: dict[str, Case] = {
    "chain": (
        lambda x, y: anp.tanh(x * y + 1) - x,
        lambda n, m: (single(n, m), single(n, m)),
    ),
    "softmax": (softmax, lambda n, m: (single(n, m),)),
    "layernorm gradient": (
        af.grad(layernorm_loss, argnums=(0, 1, 2)),
        lambda n, m: (single(n, m), single(m), single(m), single(n, m)),
    ),
    "cross-entropy gradient": (
        af.value_and_grad(cross_entropy),
        lambda n, m: (single(n, m), labels_of(n, m)),
    ),
    "sums over each axis": (
        lambda x: (x.sum(), x.sum(0), x.sum(1), anp.mean(x), x.max(0)),
        lambda n, m: (single(n, m),),
    ),
    "transposed add": (
        lambda x, y: x + y.T,
        lambda n, m: (single(n, m), single(m, n)),
    ),
    "training step": (
        step,
        lambda n, m: (parameters(m, 33, 10), single(n, m), labels_of(n, 10)),
    ),
}
JITTED = {name: af.jit(function) for name, (function, _) in CASES.items()}


def keys(lowered: Any) -> list[tuple[str, str]]:
    """What the compilation of a program's kernels depends on."""
    return [
        (k.key, ",".join(p.kind for p in k.parameters))
        for k in lowered.kernels
        if isinstance(k, Kernel)
    ]


# What is compiled.


@pytest.mark.parametrize("name", CASES)
def test_a_new_shape_of_the_same_rank_has_the_same_kernels(name: str) -> None:
    arguments = CASES[name][1]

    def kernels_of(shape: tuple[int, int]) -> Any:
        return keys(JITTED[name].lower(*arguments(*shape)))

    short, long = kernels_of((40, 30)), kernels_of((300, 257))
    assert kernels_of((64, 32)) == kernels_of((7, 100)) == short
    assert kernels_of((500, 270)) == long
    # A sum of more than one block adds up its blocks: another kernel.
    assert (short == long) == (name != "sums over each axis")


def test_a_new_shape_compiles_nothing(compiled: list[str]) -> None:
    @af.jit
    def f(x: Any) -> Any:
        return anp.sum(anp.arctan(x) * anp.cosh(x) - anp.log1p(x * x), axis=-1)

    f(np.ones((3, 4)))
    assert compiled == ["rows_0"]
    for shape in [(3, 5), (64, 128), (1000, 3)]:
        x = RNG.standard_normal(shape)
        want = np.sum(np.arctan(x) * np.cosh(x) - np.log1p(x * x), -1)
        np.testing.assert_allclose(f(x), want, 1e-12, 1e-12)
    assert compiled == ["rows_0"]


def test_a_second_call_neither_traces_nor_compiles(compiled: list[str]) -> None:
    traces = []

    @af.jit
    def f(p: Any, n: Any) -> Any:
        traces.append(True)
        return anp.arctan(anp.sinh(p["x"])) * n

    for n in (1.0, 2.0, 3.0):
        f({"x": np.full(3, n)}, n)
    assert (len(traces), len(compiled)) == (1, 1)


def test_equal_kernels_of_two_functions_compile_once(compiled: list[str]) -> None:
    def f(x: Any, y: Any) -> Any:
        return anp.arcsinh(x) / (anp.cosh(y) + 7)

    def g(first: Any, second: Any) -> Any:
        return anp.arcsinh(first) / (anp.cosh(second) + 3)  # a constant is an argument

    x, y = RNG.standard_normal((2, 5))
    np.testing.assert_allclose(af.jit(f)(x, y), f(x, y), 1e-13)
    np.testing.assert_allclose(af.jit(g)(x, y), g(x, y), 1e-13)
    assert compiled == ["elementwise_0"]


def test_equal_kernels_of_one_function_are_one() -> None:
    lowered = af.jit(lambda x, y: (softmax(x), softmax(y))).lower(
        single(4, 5), single(6, 7)
    )
    assert [k.name for k in lowered.kernels] == ["rows_0"]
    assert [s.kernel for s in lowered.plan.steps] == ["rows_0", "rows_0"]


def test_the_disk_holds_what_was_compiled(compiled: list[str], tmp_path: Path) -> None:
    af.jit(lambda x: anp.arctan(anp.arcsinh(x)) + x)(np.ones(3))
    assert len(compiled) == 1
    assert len(list((tmp_path / "cache").glob("??/*.o"))) == 1


# Bits.


@pytest.mark.parametrize("name", CASES)
def test_any_number_of_threads_gives_the_same_bits(name: str) -> None:
    arguments = CASES[name][1](517, 130)
    same_on_threads(lambda: JITTED[name](*arguments), (1, 2, 5))
    steps = JITTED[name].lower(*arguments).plan.steps
    assert any(s.items > s.grain for s in steps), "nothing was spread over threads"


@pytest.mark.parametrize("name", CASES)
def test_compiled_results_agree_with_the_reference(name: str) -> None:
    function, arguments = CASES[name]
    given = arguments(37, 29)
    got = tree.leaves(JITTED[name](*given))
    want = tree.leaves(af.jit(function, device="reference")(*given))
    for have, value in zip(got, want, strict=True):
        assert have.dtype == value.dtype
        np.testing.assert_allclose(have, value, 3e-5, 3e-5)


def test_rows_have_the_same_bits_wherever_they_stand() -> None:
    x = single(200, 67)
    whole = JITTED["softmax"](x)
    for rows in (slice(0, 1), slice(3, 50), slice(199, 200)):
        assert JITTED["softmax"](x[rows]).tobytes() == whole[rows].tobytes()


# Threads.


def test_calls_from_eight_threads_are_right() -> None:
    def call(seed: int) -> float:
        rng = np.random.default_rng(seed)
        worst = 0.0
        for _ in range(20):
            x = rng.standard_normal((rng.integers(1, 5) * 30, 40))
            want = np.exp(x - x.max(1, keepdims=True))
            want /= want.sum(1, keepdims=True)
            worst = max(worst, float(np.abs(JITTED["softmax"](x) - want).max()))
        return worst

    with ThreadPoolExecutor(8) as pool:
        assert max(pool.map(call, range(8))) < 1e-14


def test_eight_threads_may_compile_one_function_at_once(compiled: list[str]) -> None:
    f = af.jit(lambda x: anp.arccosh(anp.abs(x) + 1) * anp.cbrt(x))
    barrier = threading.Barrier(8)
    x = RNG.standard_normal(50)

    def call(_: int) -> Any:
        barrier.wait()
        return f(x)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(call, range(8)))
    want = np.arccosh(np.abs(x) + 1) * np.cbrt(x)
    for result in results:
        np.testing.assert_allclose(result, want, 1e-13)
        assert result.tobytes() == results[0].tobytes()
    assert compiled == ["elementwise_0"]


def test_threads_trace_without_seeing_each_other() -> None:
    outer, inner = threading.Event(), threading.Event()

    def slow(x: Any) -> Any:
        outer.set()
        assert inner.wait(20)
        return x * 2

    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(af.jit(slow), np.ones(2))
        assert outer.wait(20)
        assert anp.add(np.ones(2), 1).tolist() == [2, 2]  # no trace of this thread
        assert af.jit(lambda x: x + 3)(np.ones(2)).tolist() == [4, 4]
        inner.set()
        assert pending.result().tolist() == [2, 2]


# Processes.

PROGRAM = """
    import json, sys
    import numpy as np
    import arrayfn as af, arrayfn.numpy as anp
    from arrayfn.backends.cpu import code, executable

    count, providers = [], []
    prepare, library_unit = code._prepare, executable.library_unit
    code._prepare = lambda *given: count.append(given) or prepare(*given)
    executable.library_unit = (
        lambda kernel: providers.append(kernel.provider) or library_unit(kernel)
    )

    def loss(w, x):
        return anp.mean(anp.log1p(anp.exp(x @ w)) ** 2)

    rng = np.random.default_rng(0)
    step = af.jit(af.value_and_grad(loss))
    value, slope = step(rng.standard_normal((4, 3)), rng.standard_normal((9, 4)))
    print(json.dumps({
        "compiled": len(count),
        "numba": "numba" in sys.modules,
        "providers": sorted(set(providers)),
        "bits": value.tobytes().hex() + slope.tobytes().hex(),
    }))
"""


def run(directory: Path) -> dict[str, Any]:
    environment = {**os.environ, "ARRAYFN_CACHE_DIR": str(directory)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return json.loads(done.stdout)


def test_a_warm_process_compiles_nothing_and_gives_the_same_bits(
    tmp_path: Path,
) -> None:
    cold, warm = run(tmp_path / "cache"), run(tmp_path / "cache")
    assert cold["compiled"] > 0
    assert warm["compiled"] == 0
    assert not warm["numba"]
    assert warm["bits"] == cold["bits"]


def test_a_process_has_the_library_kernels_that_its_plans_run(tmp_path: Path) -> None:
    assert run(tmp_path / "cache")["providers"] == ["gemm_f64"]
