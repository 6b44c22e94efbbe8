"""Loops outside jit: interpreted while that is quicker, then compiled."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.compilation import immediate

XS = np.linspace(-1.0, 1.0, 3000)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts of the loops that are run compiled."""
    texts: list[str] = []
    executable = immediate._executable

    def noted(text: str) -> Any:
        texts.append(text)
        return executable(text)

    monkeypatch.setattr(immediate, "_executable", noted)
    monkeypatch.setattr(immediate, "_interpreted", Counter[str]())
    return texts


def decayed(init: Any, xs: Any) -> Any:
    return lax.scan(lambda c, x: (0.9 * c + x, c), init, xs)[0]


def test_a_short_loop_is_interpreted_until_it_is_run_often(compiled: list[str]) -> None:
    want = 0.0
    for x in XS[:200]:
        want = 0.9 * want + x
    for _ in range(2):
        np.testing.assert_allclose(decayed(0.0, XS[:200]), want, 1e-12)
    assert compiled == []
    np.testing.assert_allclose(decayed(0.0, XS[:200]), want, 1e-12)
    assert len(compiled) == 1
    assert compiled[0].startswith("program scan(")


def test_a_long_loop_is_compiled_at_once(compiled: list[str]) -> None:
    decayed(0.0, XS)
    assert len(compiled) == 1


def test_a_while_loop_goes_on_compiled_from_where_it_is(compiled: list[str]) -> None:
    def halved(x: Any) -> Any:
        return lax.while_loop(lambda x: x > 1.0, lambda x: x - 1.0, x)

    assert halved(200.25) == 0.25
    assert compiled == []
    assert halved(5000.25) == 0.25
    assert len(compiled) == 1


def test_loops_inside_other_equations_count(compiled: list[str]) -> None:
    for pred in (True, False):
        lax.cond(pred, lambda x: decayed(x, XS), lambda x: x, 0.0)
    assert [text.startswith("program cond(") for text in compiled] == [True] * 2


def test_derivatives_outside_jit_run_compiled(compiled: list[str]) -> None:
    def f(x: Any) -> Any:
        return lax.scan(lambda c, y: (anp.sin(c) + y * x, None), x, XS)[0]

    slope = af.grad(f)(0.3)
    assert len(compiled) >= 2  # forwards, backwards
    np.testing.assert_allclose(slope, af.jvp(f, (0.3,), (1.0,))[1], 1e-9)


def test_operands_may_lie_in_any_order(compiled: list[str]) -> None:
    matrix = np.asfortranarray(np.stack([XS, 2 * XS], axis=1))
    np.testing.assert_allclose(
        decayed(np.zeros(2), matrix[::-1]),
        decayed(np.zeros(2), np.array(matrix[::-1], order="C")),
    )
    assert len(set(compiled)) == 1


def test_a_loop_over_rows_of_extent_one_goes_on_until_every_element_is_done(
    compiled: list[str],
) -> None:
    limit = np.array([[3.0, 10.0, 20.0, 3000.0]])

    def step(state: Any) -> Any:
        n, going = state
        return n + 1.0, going & (n < limit)

    start = (0.0, np.ones((1, 4), bool))
    for _ in range(3):
        assert lax.while_loop(lambda s: anp.any(s[1]), step, start)[0] == 3001.0
    assert len(compiled) == 3
