"""Loops that count their turns up to a number are scans of so many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.passes.pipeline import run_passes
from arrayfn.primitives.calls import evaluate

X = np.linspace(0.1, 0.9, 4)


def loop_of(goes_on: Any, start: Any, step: Any) -> tuple[str, int | None]:
    """What a loop with a counter becomes, and of how many turns; the results stay."""

    def f(x: Any) -> Any:
        body = lambda s: (step(s[0]), anp.sin(s[1]) + s[0])  # noqa: E731
        return lax.while_loop(lambda s: goes_on(s[0]), body, (start, x))

    program = af.make_program(f)(X)
    after = run_passes(program, check=True)
    have, want = (evaluate(p, [X]) for p in (after, program))
    for a, b in zip(have, want, strict=True):
        np.testing.assert_array_equal(a, b)
    loops = [q for q in after.equations if q.subprograms()]
    if not loops:
        return "none", 0
    return loops[0].primitive.name, loops[0].params.get("length")


@pytest.mark.parametrize(
    ("goes_on", "start", "step", "turns"),
    [
        (lambda k: k < 10, 0, lambda k: k + 1, 10),
        (lambda k: k <= 10, 0, lambda k: k + 3, 4),
        (lambda k: k > -7, 3, lambda k: k - 2, 5),
        (lambda k: k >= -7, 3, lambda k: k - 2, 6),
        (lambda k: k != 12, 0, lambda k: 4 + k, 3),
        (lambda k: 5 > k, 0, lambda k: k + 1, 5),  # noqa: SIM300
        (lambda k: k < 100, np.int8(90), lambda k: k + np.int8(5), 2),
    ],
)
def test_the_turns_are_counted(goes_on, start, step, turns):
    assert loop_of(goes_on, start, step) == ("scan", turns)


def test_no_turn_is_no_loop():
    assert loop_of(lambda k: k < 0, 0, lambda k: k + 1) == ("none", 0)


@pytest.mark.parametrize(
    ("goes_on", "start", "step"),
    [
        (lambda k: k * k < 10, 0, lambda k: k + 1),
        (lambda k: k < 10, 1, lambda k: k * 2),
        (lambda k: k < 1.0, 0.0, lambda k: k + 0.25),
        (lambda k: (k & 7) != 5, 0, lambda k: k + 1),
        (lambda k: k > 0, np.int8(120), lambda k: k + np.int8(5)),
    ],
)
def test_other_conditions_are_asked_for(goes_on, start, step):
    assert loop_of(goes_on, start, step) == ("while_loop", None)


def test_the_bound_may_be_a_constant_of_the_loop():
    def f(x: Any) -> Any:
        return lax.fori_loop(0, 6, lambda k, x: x * 2 + k, x)

    program = run_passes(af.make_program(af.jit(f))(X), check=True)
    names = [q.primitive.name for q in program.equations if q.subprograms()]
    assert names == ["scan"]
