"""The passes together: types hold between them, and the result is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.ir import Equation, Program
from arrayfn.passes.pipeline import PIPELINE, name_of, run_passes
from arrayfn.primitives.base import Composition, Primitive
from arrayfn.primitives.calls import evaluate
from arrayfn.transforms.dce import dce
from tests.passes.texts import show

X = np.random.default_rng(0).standard_normal((4, 6))
LABELS = np.array([5, 0, -1, 2], np.int32)


def layer(x: Any) -> Any:
    return anp.tanh(x @ x.T) / 4.0


def picked(x: Any) -> Any:
    logs = anp.log(anp.sum(anp.exp(x), axis=1, keepdims=True))
    return anp.mean(anp.take_along_axis(x - logs, LABELS[:, None], axis=1))


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "layer": layer,
    "picked": picked,
    "gradient": af.grad(picked),
    "second derivative": af.grad(lambda x: anp.sum(af.grad(picked)(x) ** 2)),
    "mapped": af.vmap(lambda x: anp.cumsum(x)[::-1] + anp.argmax(x)),
    "nested jit": lambda x: af.jit(layer)(x) + af.jit(layer)(x),
    "integers": lambda x: anp.floor(x).astype("int32") @ anp.ones((6, 2), "int32"),
    "update": lambda x: (x * 2).at[0].set(1.0)[::-1].reshape(-1),
}


def traced(name: str) -> Program:
    return af.jit(FUNCTIONS[name], device="reference").lower(X).program


@pytest.mark.parametrize("name", FUNCTIONS)
def test_types_hold_between_the_passes_and_values_stay(name: str) -> None:
    program = traced(name)
    after = run_passes(program, check=True)
    assert after.input_types == program.input_types
    for have, want in zip(evaluate(after, [X]), evaluate(program, [X]), strict=True):
        assert np.asarray(have).dtype == np.asarray(want).dtype
        np.testing.assert_allclose(have, want, 1e-12, 1e-12)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_each_pass_promises_holds_at_the_end(name: str) -> None:
    after = run_passes(traced(name))

    def form(equation: Equation) -> Any:
        assert isinstance(equation.primitive, Primitive)
        return equation.primitive.kernel

    assert not any(isinstance(form(eq), Composition) for eq in after.equations)
    assert "operator_call" not in show(after)
    assert show(dce(after)) == show(after)


def test_the_order_of_the_passes() -> None:
    assert [name_of(apply) for apply in PIPELINE] == [
        "inline_calls",
        "storage_as_bytes",
        "cut_long_transforms",
        "expand",
        "simplify",
        "single_index",
        "cse",
        "simplify",
        "dce",
        "unroll_loops",
        "simplify_control_flow",
        "loop_invariants",
        "products_out_of_loops",
        "small_loops",
        "dce",
        "assign_layouts",
    ]


def test_lines_of_the_user_stay_on_equations() -> None:
    after = run_passes(traced("layer"))
    files = {eq.source.file for eq in after.equations if eq.source is not None}
    assert files == {__file__}
    assert all(eq.source is not None for eq in after.equations)
