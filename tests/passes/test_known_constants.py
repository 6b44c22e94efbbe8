"""What depends on captured arrays alone is computed once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax, linalg
from arrayfn.backends.cpu.unjitted import run_unjitted
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.lowering.plan import kernel_calls
from arrayfn.passes.known_constants import MAX_GROWTH, split_known

RNG = np.random.default_rng(4)
W = RNG.standard_normal((40, 40)) / 9 + np.eye(40)
X = RNG.standard_normal((3, 40))


def test_the_inverse_of_a_captured_matrix_is_computed_once() -> None:
    function = af.jit(lambda x: x @ linalg.inv(W))
    lowered = function.lower(X)
    assert [k.name for k in lowered.kernels] == ["gemm_f64"]
    assert lowered.memory().constants == W.nbytes
    assert "getrf_f64" in {
        k.name for k in lowered.compiled_program.once.program.kernels
    }
    np.testing.assert_allclose(function(X), X @ np.linalg.inv(W), rtol=1e-10)
    np.testing.assert_array_equal(function(X), lowered.compile()(X))
    text = str(af.explain(function, X))
    assert "computed once, from captured arrays:\n  f64[40,40] (12.5 KiB): " in text
    assert f"({Path(__file__).name}:" in text
    assert "# computed once, from captured arrays\nprogram function_once()" in (
        lowered.text()
    )


def test_a_program_is_split_at_its_costly_values() -> None:
    function = lambda x: anp.sum(anp.exp(W) * x) + anp.sum(W * 2)  # noqa: E731
    program = af.make_program(function)(X[0])
    first, rest = split_known(program)
    assert first is not None
    assert [q.primitive.name for q in first.equations][:1] == ["exp"]
    assert "exp" not in {q.primitive.name for q in rest.equations}
    assert split_known(first)[0] is not None  # it is not split where it is lowered
    assert split_known(rest)[0] is None


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2 + W[:3],  # cheap
        lambda x: x @ W.T + W[0],  # depends on the argument
        lambda x: x + anp.sin(anp.arange(40.0)),  # depends on no captured array
    ],
)
def test_what_stays(function: Any) -> None:
    assert af.jit(function).lower(X).compiled_program.once is None


def test_values_much_larger_than_captured_arrays_stay() -> None:
    side = int((MAX_GROWTH / 8) ** 0.5) + 9
    small = RNG.standard_normal(side)
    lowered = af.jit(
        lambda i: anp.exp(anp.multiply(small[:, None], small))[i].sum()
    ).lower(0)
    assert lowered.compiled_program.once is None


def test_results_are_arrays_of_their_own() -> None:
    function = af.jit(lambda i: (anp.exp(W), anp.exp(W).at[i].set(0.0), W))
    first = function(2)
    for result in first:
        result[:] = 7
    again = function(3)
    np.testing.assert_allclose(again[0], np.exp(W), rtol=1e-14)
    np.testing.assert_array_equal(again[1][3], 0)
    np.testing.assert_allclose(again[1][2], np.exp(W)[2], rtol=1e-14)
    np.testing.assert_array_equal(again[2], W)


def test_values_in_loops_and_of_loops_are_computed_once() -> None:
    def power(x: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, x: x @ linalg.inv(W), x)

    lowered = af.jit(power).lower(X)
    assert {c.kernel for c in kernel_calls(lowered.plan.steps)} == {"gemm_f64"}
    inverse = np.linalg.inv(W)
    np.testing.assert_allclose(
        lowered.compile()(X), X @ inverse @ inverse @ inverse, rtol=1e-9
    )
    halved = af.jit(lambda x: x + lax.fori_loop(0, 5, lambda _, c: c / 2, W)[0])
    assert halved.lower(X).compiled_program.once is not None
    np.testing.assert_allclose(halved(X), X + W[0] / 32)


def test_captured_arrays_are_those_of_the_first_call() -> None:
    captured = W.copy()
    function = af.jit(lambda x: x @ linalg.inv(captured))
    before = function(X)
    captured[:] = np.eye(40)
    np.testing.assert_array_equal(function(X), before)
    np.testing.assert_allclose(function(X[:2]), X[:2], rtol=1e-12)  # another signature


def test_checks_look_at_what_is_computed_once() -> None:
    singular = np.zeros((20, 20))
    function = af.jit(lambda x: x + anp.log(singular), checks="inf")
    for _ in range(2):
        with pytest.raises(af.errors.NotFiniteError):
            function(1.0)


def test_gradients_and_interpreters() -> None:
    def loss(x: Any) -> Any:
        return anp.sum(anp.tanh(x @ linalg.inv(W)) ** 2)

    slope = af.jit(af.grad(loss))
    np.testing.assert_allclose(slope(X), af.grad(loss)(X), rtol=1e-9)
    np.testing.assert_allclose(
        run_unjitted(slope.lower(X).compiled_program, [X])[0], slope(X), rtol=1e-9
    )


def test_a_gpu_computes_it_once() -> None:
    table = RNG.standard_normal((8, 16)).astype("f4")
    function = lambda x: x * anp.exp(table) + anp.tanh(table).sum()  # noqa: E731
    lowered = af.jit(function, device="cuda").lower(table)
    assert lowered.compiled_program.once is not None
    (have,) = run_plan(lowered.compiled_program, [table])
    want = table * np.exp(table) + np.tanh(table).sum()
    np.testing.assert_allclose(have, want, rtol=1e-5)


def test_saved_functions_compute_it_at_their_first_call(tmp_path: Path) -> None:
    function = af.jit(lambda x: x @ linalg.inv(W))
    af.save(function.lower(X), tmp_path / "f")
    for _ in range(2):  # lowered, then from the disk cache
        loaded = af.load(tmp_path / "f")
        np.testing.assert_array_equal(loaded(X), function(X))
