"""Programs of many loops and branches are transformed in time linear in their size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.passes.pipeline import run_passes
from tests.timed import timed

ROWS = np.ones((3, 2))


def loops(count: int) -> Callable[[Any], Any]:
    """A function of ``count`` scans and branches, one after the other."""

    def f(x: Any) -> Any:
        y = x
        for _ in range(count):
            y, _ = lax.scan(lambda c, row: (anp.sin(c) * x + row, None), y, ROWS)
            y = lax.cond(y[0] > 0, lambda y: y * x, lambda y: y - x, y)
        return y.sum()

    return f


def nested(depth: int) -> Callable[[Any], Any]:
    """A scan in a scan in a scan ..., whose carry does not vary at first."""
    if depth == 0:
        return anp.sin
    inner = nested(depth - 1)
    return lambda x: lax.scan(lambda c, _: (inner(c), None), x, None, length=2)[0]


TRANSFORMED: dict[str, Callable[[Any], Any]] = {
    "trace": lambda f: f,
    "grad": af.grad,
    "hvp": lambda f: lambda x: af.jvp(af.grad(f), (x,), (x,))[1],
    "vmap": lambda f: lambda x: af.vmap(f)(anp.stack([x, x])),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_many_loops_take_time_linear_in_their_number(name: str) -> None:
    def make(count: int) -> Callable[[], Any]:
        function = TRANSFORMED[name](loops(count))
        return lambda: af.make_program(function)(np.ones(2))

    # Four times as many: 16 times as long if something were quadratic.
    assert timed(make(60))[1] < 8 * timed(make(15))[1]


@pytest.mark.parametrize("name", ["grad", "hvp", "vmap"])
def test_loops_in_loops_take_time_linear_in_their_depth(name: str) -> None:
    def make(depth: int) -> Callable[[], Any]:
        function = TRANSFORMED[name](lambda x: nested(depth)(x).sum())
        return lambda: af.make_program(function)(np.ones(2))

    # Twice as deep: 8 times as long if each depth doubled the time.
    assert timed(make(6))[1] < 6 * timed(make(3))[1]


def test_loops_in_loops_are_simplified_in_time_linear_in_their_depth() -> None:
    def make(depth: int) -> Callable[[], Any]:
        gradient = af.grad(lambda x: nested(depth)(x).sum())
        program = af.make_program(gradient)(np.ones(2))
        return lambda: run_passes(program)

    assert timed(make(6))[1] < 6 * timed(make(3))[1]
