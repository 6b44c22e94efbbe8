"""Products on a GPU: what the library does with them, and where it writes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.backends.cuda.emulated_plan import run_plan
from arrayfn.functions import trace_function
from arrayfn.ir import ArrayType
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.cuda.lower import lower
from arrayfn.lowering.host_steps import HOST_STEPS
from arrayfn.lowering.plan import BufferArgument, KernelCall
from arrayfn.primitives.calls import evaluate

Array = np.ndarray[Any, Any]


def random(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    values = np.random.default_rng(seed).standard_normal(shape)
    return values.astype(dtype)


def lowered(function: Any, *arguments: Any) -> CompiledProgram:
    traced = trace_function(function, arguments, {}, abstract=True, with_values=False)
    return lower(traced.program, check=True)


def checked(function: Any, *arguments: Any, tolerance: float = 1e-5) -> list[str]:
    """The names of the plan's kernels; its results are those of the reference."""
    traced = trace_function(function, arguments, {}, abstract=True, with_values=False)
    compiled = lower(traced.program, check=True)
    results = run_plan(compiled, arguments)
    for have, want in zip(results, evaluate(traced.program, arguments), strict=True):
        assert have.dtype == want.dtype
        wide = have.astype(np.float64), np.asarray(want).astype(np.float64)
        np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance)
    return names(compiled)


def names(compiled: CompiledProgram) -> list[str]:
    return [getattr(step, "kernel", "") for step in compiled.plan.steps]


# Destinations.

X, Y, Z = random(4, 6), random(6, 8, seed=1), random(6, 3, seed=2)
W = random(2, 6, seed=3)

DESTINATIONS = {
    "columns": lambda x, y, z, w: anp.concatenate([x @ y, x @ z], axis=1),
    "rows": lambda x, y, z, w: anp.concatenate([x @ y, w @ y], axis=0),
    "relu": lambda x, y, z, w: anp.concatenate([anp.maximum(x @ y, 0), w @ y], axis=0),
}


@pytest.mark.parametrize("case", DESTINATIONS)
def test_products_are_written_into_the_array_that_they_are_parts_of(case: str) -> None:
    kernels = checked(DESTINATIONS[case], X, Y, Z, W)
    assert [name.partition("_")[0] for name in kernels] == ["gemm", "gemm"]


def test_a_product_that_is_needed_itself_is_copied() -> None:
    def parts(x: Any, y: Any, z: Any) -> Any:
        first = x @ y
        return first, anp.concatenate([first, x @ z], axis=1)

    assert checked(parts, X, Y, Z) == ["gemm_f32", "gemm_f32", "elementwise_0"]


# Operators.


def in_pairs(type: ArrayType, offset: int) -> bool:
    strides = type.layout.strides(type.shape)
    return strides[-1] == 1 and offset % 2 == 0


@af.operator(name="test_swapped_halves")
def swapped(x: Any, y: Any) -> Any:
    return y * 2, x * 2


@swapped.kernel("cuda", prepared=True, views=in_pairs)
def swapped_anywhere(*types: ArrayType) -> Any:
    """Never called here."""


def last_step(compiled: CompiledProgram) -> Any:
    kernel = next(k for k in compiled.kernels if k.name.startswith("operator_"))
    return HOST_STEPS.find(int(kernel.name.rpartition("_")[2]))


def test_an_operator_takes_views_as_they_lie_and_writes_parts() -> None:
    def function(x: Any) -> Any:
        first, second = swapped(x[:, :4], x[:, 4:])
        return anp.concatenate([first, second], axis=1)

    compiled = lowered(function, random(3, 8))
    (step,) = compiled.plan.steps
    assert isinstance(step, KernelCall)
    pointers = [a for a in step.arguments if isinstance(a, BufferArgument)]
    places = [(a.buffer, a.offset) for a in pointers]
    assert places == [(0, 0), (0, 16), (1, 0), (1, 16)]
    host = last_step(compiled)
    texts = [str(t) for t in (*host.operands, *host.results)]
    assert texts == ["f32[3,4] S(8,1)"] * 4


def test_what_an_operator_does_not_take_as_it_lies_is_copied_once() -> None:
    def function(x: Any) -> Any:
        first, second = swapped(x[:, 1:5], x[:, 1:5])
        return first + second

    kernels = names(lowered(function, random(3, 8)))
    assert [name.partition("_")[0] for name in kernels] == [
        "elementwise",
        "operator",
        "elementwise",
    ]


def test_gradients_of_slices_are_written_side_by_side() -> None:
    def loss(x: Any, w: Any) -> Any:
        parts = (x @ w).reshape(4, 3, 2)
        first, second, third = (parts[:, k] for k in range(3))
        return anp.sum(first * second + third * first)

    x, w = random(4, 5), random(5, 6, seed=1)
    traced = trace_function(af.grad(loss, argnums=1), (x, w), {})
    text = str(traced.program)
    assert "pad" in text
    compiled = lower(traced.program, check=True)
    assert "pad" not in compiled.text
    (result,) = run_plan(compiled, (x, w))
    (expected,) = evaluate(traced.program, (x, w))
    np.testing.assert_allclose(result, expected, 1e-5)
