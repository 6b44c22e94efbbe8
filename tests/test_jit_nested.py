"""jit inside and around other transformations, and what ``lower`` shows."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.errors import ArgumentError, NestingError
from arrayfn.ir import Program
from arrayfn.ir.text import format_program, parse_program
from arrayfn.lowering.plan import ExecutionPlan, Kernel
from arrayfn.primitives.table import TABLE

RNG = np.random.default_rng(3)
W = RNG.standard_normal((4, 2))
X = RNG.standard_normal((5, 4))


def loss(w: Any, x: Any) -> Any:
    return anp.mean(anp.tanh(x @ w) ** 2)


jitted_loss = af.jit(loss)


def gradient() -> np.ndarray[Any, Any]:
    """The gradient of ``loss`` by ``w``, by hand."""
    h = np.tanh(X @ W)
    return X.T @ (2 * h * (1 - h * h)) / h.size


@pytest.mark.parametrize(
    "function",
    [
        af.jit(af.grad(loss)),
        af.grad(jitted_loss),
        af.jit(af.grad(jitted_loss)),
        af.jit(af.jit(af.grad(jitted_loss))),
        af.jit(lambda w, x: af.value_and_grad(jitted_loss)(w, x)[1]),
        lambda w, x: af.vjp(lambda w: jitted_loss(w, x), w)[1](np.array(1.0))[0],
    ],
    ids=["jit grad", "grad jit", "jit grad jit", "jit jit grad jit", "value", "vjp"],
)
def test_gradients_through_and_around_jit(function: Any) -> None:
    got = function(W, X)
    assert got.flags.writeable
    np.testing.assert_allclose(got, gradient(), 1e-12)


@pytest.mark.parametrize(
    "function",
    [
        af.vmap(jitted_loss, (None, 0)),
        af.jit(af.vmap(loss, (None, 0))),
        af.jit(af.vmap(jitted_loss, (None, 0))),
    ],
    ids=["vmap jit", "jit vmap", "jit vmap jit"],
)
def test_mapping_through_and_around_jit(function: Any) -> None:
    want = [np.mean(np.tanh(row @ W) ** 2) for row in X]
    np.testing.assert_allclose(function(W, X), want, 1e-13)


def test_derivatives_of_any_order_and_direction() -> None:
    cube = af.jit(lambda x: x**3)
    assert af.grad(af.grad(cube))(2.0) == 12.0
    assert af.jit(af.grad(af.grad(af.grad(cube))))(2.0) == 6.0
    value, tangent = af.jvp(cube, (np.array(2.0),), (np.array(1.0),))
    assert (value, tangent) == (8.0, 12.0)
    jacobian = af.vmap(af.grad(cube))(np.array([1.0, 2.0]))
    assert jacobian.tolist() == [3.0, 12.0]


def test_an_inner_jit_is_a_call_in_the_program_and_fused_in_the_kernels() -> None:
    inner = af.jit(anp.exp)
    outer = af.jit(lambda x: inner(x) + inner(-x))
    lowered = outer.lower(X)
    assert str(lowered.program).count("operator_call") == 2
    assert "operator_call" not in lowered.compiled_program.text
    assert len(lowered.kernels) == 1
    np.testing.assert_allclose(outer(X), 2 * np.cosh(X), 1e-14)


def test_an_inner_jit_may_close_over_values_of_the_outer() -> None:
    @af.jit
    def outer(x: Any, y: Any) -> Any:
        captured = x * 2

        @af.jit
        def inner(z: Any) -> Any:
            return z + captured + W[0, 0]

        return inner(y), af.grad(lambda z: anp.sum(inner(z) ** 2))(y)

    total, slope = outer(1.5, np.ones(3))
    np.testing.assert_allclose(total, np.full(3, 4.0 + W[0, 0]))
    np.testing.assert_allclose(slope, np.full(3, 2 * (4.0 + W[0, 0])))


def test_static_and_keyword_arguments_of_an_inner_jit() -> None:
    @af.jit(static_argnames="n")
    def power(x: Any, *, n: int, scale: Any = 1.0) -> Any:
        assert type(n) is int
        return scale * x**n

    slope = af.grad(lambda x: power(x, n=3, scale=2.0))
    assert slope(2.0) == 24.0
    assert af.jit(slope)(2.0) == 24.0


def test_a_jitted_function_called_with_arrays_while_tracing_with_values() -> None:
    double = af.jit(lambda x: x * 2)

    def f(x: Any) -> Any:
        return anp.sum(x * double(np.ones(3)))

    assert af.grad(f)(np.zeros(3)).tolist() == [2, 2, 2]
    assert af.jit(af.grad(f))(np.zeros(3)).tolist() == [2, 2, 2]


def test_weak_numbers_stay_weak_through_an_inner_jit() -> None:
    inner = af.jit(lambda x, s: x * s)
    outer = af.jit(lambda x: inner(x, 2.0))
    assert outer(np.ones(2, np.float32)).dtype == np.float32
    returned = af.jit(lambda x, s: x * af.jit(lambda s: s + 1)(s))
    assert returned(np.ones(2, np.float32), 2.0).dtype == np.float32


# lower and compile.


def test_lower_shows_program_kernels_and_plan() -> None:
    lowered = jitted_loss.lower(W, X)
    assert isinstance(lowered.program, Program)
    assert [str(t) for t in lowered.program.input_types] == ["f64[4,2]", "f64[5,4]"]
    assert [str(t) for t in lowered.program.output_types] == ["f64[]"]
    assert str(lowered.program).startswith("program loss(w: f64[4,2], x: f64[5,4])")
    assert "test_jit_nested.py:" in str(lowered.program)
    assert isinstance(lowered.plan, ExecutionPlan)
    names = [kernel.name for kernel in lowered.kernels]
    assert names[0] == "gemm_f64"
    assert {step.kernel for step in lowered.plan.steps} == set(names)
    for kernel in lowered.kernels:
        assert kernel.reason
        assert kernel.source
        if isinstance(kernel, Kernel):
            assert f"def {kernel.name}(" in kernel.source
            compile(kernel.source, kernel.name, "exec")


def test_the_text_holds_all_of_it() -> None:
    lowered = jitted_loss.lower(W, X)
    text = lowered.text()
    for part in (
        str(lowered.program),
        lowered.compiled_program.text,
        str(lowered.plan),
    ):
        assert part in text
    for kernel in lowered.kernels:
        if isinstance(kernel, Kernel):
            assert kernel.source in text


def test_the_text_of_the_program_after_the_passes_parses_back() -> None:
    text = jitted_loss.lower(W, X).compiled_program.text
    program = parse_program(text, TABLE)
    again = parse_program(format_program(program), TABLE)
    assert format_program(program) == format_program(again)


def test_lowering_takes_types_and_runs_nothing() -> None:
    lowered = jitted_loss.lower(np.empty_like(W), np.full_like(X, np.nan))
    compiled = lowered.compile()
    np.testing.assert_allclose(compiled(W, X), loss(W, X), 1e-13)
    np.testing.assert_allclose(compiled(2 * W, X), loss(2 * W, X), 1e-13)


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("other", [X[:3], X.astype("f4")], ids=["shape", "dtype"])
def test_what_was_compiled_takes_only_its_types(device: str, other: Any) -> None:
    compiled = af.jit(loss, device=device).lower(W, X).compile()
    with pytest.raises(ArgumentError, match=r"argument 1 must be f64\[5,4\]"):
        compiled(W, other)


@pytest.mark.parametrize("other", [(W,), (W, {"x": X}), ([W, X],)], ids=len)
def test_what_was_compiled_takes_only_its_structure(other: Any) -> None:
    compiled = jitted_loss.lower(W, X).compile()
    with pytest.raises(ArgumentError, match="compiled for arguments of structure"):
        compiled(*other)


def test_static_arguments_are_left_out_of_what_was_compiled() -> None:
    power = af.jit(lambda x, n: x**n, static_argnums=1)
    compiled = power.lower(np.ones(2), 3).compile()
    assert compiled(np.array([2.0, 3.0])).tolist() == [8, 27]


def test_two_lowerings_are_the_same_text() -> None:
    assert jitted_loss.lower(W, X).text() == jitted_loss.lower(W, X).text()


def nested(depth: int) -> Any:
    function = af.jit(lambda x: x + 1)
    for _ in range(depth):
        function = af.jit(function)
    return function


def test_jits_that_are_too_deep_for_pythons_stack_say_so() -> None:
    assert nested(50)(1.0) == 2.0
    with pytest.raises(NestingError, match="setrecursionlimit") as caught:
        nested(300)(1.0)
    assert caught.value.location is not None
    assert caught.value.location.file == __file__
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        assert nested(300)(1.0) == 2.0
    finally:
        sys.setrecursionlimit(limit)


def test_functions_that_call_themselves_for_ever_are_an_error_with_the_line() -> None:
    def endless(x: Any) -> Any:
        return endless(x)

    for transform in (af.jit, af.grad, af.vmap):
        with pytest.raises(NestingError, match="endless calls functions inside"):
            transform(endless)(np.ones(2) if transform is af.vmap else 1.0)
