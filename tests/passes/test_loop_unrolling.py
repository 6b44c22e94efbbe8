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
    after = unroll_loops(program, lambda body: body)
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
    after = unroll_loops(program, lambda body: body)
    assert all(q.primitive.name != "scan" for q in after.equations)
    assert evaluate(after, [np.asarray(1.0)]) == evaluate(program, [np.asarray(1.0)])


@pytest.mark.parametrize(("length", "unroll"), [(1, 1), (4, 2), (5, True)])
def test_calls_in_a_body_that_is_written_out_are_compiled(
    length: int, unroll: int
) -> None:
    @af.custom_jvp
    def f(x: Any) -> Any:
        return anp.sin(x)

    f.defjvps(lambda t, y, x: t * anp.cos(x))

    def inner(x: Any, y: Any) -> Any:
        return lax.scan(lambda c, z: (f(c) + z, None), x, y[None])[0]

    def g(x: Any, ys: Any) -> Any:
        return lax.scan(
            lambda c, y: (af.jit(inner)(c, y), anp.linalg.det(c[:1, None])),
            x,
            ys,
            unroll=unroll,
        )

    arguments = (XS[0], XS[:length])
    for have, want in zip(
        af.jit(g)(*arguments), af.jit(g, device="reference")(*arguments), strict=True
    ):
        np.testing.assert_allclose(have, want, rtol=1e-13)
