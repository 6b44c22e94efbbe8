"""Steps written out give what the loop does, in either direction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.passes.loop_unrolling import unroll_loops
from arrayfn.primitives.calls import evaluate

XS = np.random.default_rng(4).standard_normal((7, 3))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("length", "unroll", "loops"),
    [(7, 1, 1), (7, 2, 1), (7, 3, 1), (7, 4, 0), (6, 3, 1), (7, 7, 0), (1, 1, 0)],
)
def test_the_results_stay(reverse: bool, length: int, unroll: int, loops: int) -> None:
    def f(h: Any, xs: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            k, h = carry
            h = anp.sin(h * x + k)
            return (k + 1, h), (h.sum(), h)

        return lax.scan(step, (0, h), xs, reverse=reverse, unroll=unroll)

    program = af.make_program(f)(XS[0], XS[:length])
    after = unroll_loops(program)
    after.check()
    left = [q for q in after.equations if q.primitive.name == "scan"]
    assert len(left) == loops
    assert all(q.params["unroll"] == 1 for q in left)
    arguments = [XS[0], XS[:length]]
    for have, want in zip(
        evaluate(after, arguments), evaluate(program, arguments), strict=True
    ):
        np.testing.assert_array_equal(have, want)


def test_a_loop_without_arrays_or_results() -> None:
    program = af.make_program(
        lambda x: lax.fori_loop(0, 5, lambda k, x: x * 2 + k, x, unroll=True)
    )(1.0)
    after = unroll_loops(program)
    assert all(q.primitive.name != "scan" for q in after.equations)
    assert evaluate(after, [np.asarray(1.0)]) == evaluate(program, [np.asarray(1.0)])
