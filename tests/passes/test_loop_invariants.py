"""What is costly and the same in each step is computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.ir import Program
from arrayfn.passes.loop_invariants import loop_invariants
from arrayfn.passes.pipeline import PIPELINE, run_passes
from arrayfn.primitives.calls import evaluate

RNG = np.random.default_rng(6)
W = RNG.standard_normal((20, 20)) / 5


def before(function: Callable[..., Any], *arguments: Any) -> Program:
    program = af.make_program(function)(*arguments)
    return run_passes(program, passes=PIPELINE[: PIPELINE.index(loop_invariants)])


def inside(program: Program) -> list[str]:
    """The primitives of loops' bodies."""
    return [
        inner.primitive.name
        for equation in program.equations
        for body in equation.subprograms()
        for inner in body.equations
    ]


def scanned(w: Any, x: Any) -> Any:
    def step(c: Any, _: Any) -> Any:
        return anp.sin(c) @ anp.exp(w.T @ w) + w.sum(), None

    return lax.scan(step, x, None, length=3)[0]


def repeated(w: Any, x: Any) -> Any:
    def step(state: Any) -> Any:
        k, c = state
        return k + 1, anp.sin(c) @ anp.exp(w.T @ w) + w.sum()

    return lax.while_loop(lambda s: s[0] < 3, step, (0, x))[1]


@pytest.mark.parametrize("function", [scanned, repeated])
def test_what_follows_from_constants_comes_before_the_loop(
    function: Callable[..., Any],
) -> None:
    program = before(function, W, W)
    after = loop_invariants(program)
    after.check()
    assert inside(program).count("dot_general") == 2
    assert inside(after).count("dot_general") == 1
    assert "exp" not in inside(after)
    assert "reduce_sum" not in inside(after)
    assert "sin" in inside(after)
    (have,), (want,) = evaluate(after, [W, W]), evaluate(program, [W, W])
    np.testing.assert_array_equal(have, want)


def test_what_is_cheap_stays() -> None:
    def f(w: Any, x: Any) -> Any:
        step = lambda c, _: (c * (w + 1.0) + anp.exp(x[0, 0]), None)  # noqa: E731
        return lax.scan(step, x, None, length=3)[0]

    program = before(f, W, W)
    assert loop_invariants(program) is program


def test_a_square_root_comes_before_the_loop_and_a_quotient_stays() -> None:
    def f(w: Any, x: Any) -> Any:
        step = lambda c, _: (c * anp.sqrt(w) + x / w, None)  # noqa: E731
        return lax.scan(step, x, None, length=3)[0]

    after = loop_invariants(before(f, W, W))
    assert "sqrt" not in inside(after)
    assert "div" in inside(after)
