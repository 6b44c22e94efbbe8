"""Large products leave loops where they can; the results stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.ir import Program
from arrayfn.passes import loop_products
from arrayfn.passes.loop_products import products_out_of_loops
from arrayfn.passes.pipeline import PIPELINE, run_passes
from arrayfn.primitives.calls import evaluate

RNG = np.random.default_rng(3)
W, U = RNG.standard_normal((2, 40, 40)) / 6
XS = RNG.standard_normal((5, 50, 40))


def products(program: Program) -> int:
    """How many products the loops of ``program`` hold."""
    return sum(
        equation.primitive.name == "dot_general"
        for loop in program.equations
        for body in loop.subprograms()
        for equation in body.equations
    )


def simplified(function: Callable[..., Any], *arguments: Any) -> Program:
    program = af.make_program(function)(*arguments)
    passes = PIPELINE[: PIPELINE.index(products_out_of_loops)]
    return run_passes(program, passes=passes)


def check(function: Callable[..., Any], *arguments: Any, left: int) -> None:
    """Assert that ``left`` products stay in loops, and all results."""
    before = simplified(function, *arguments)
    assert products(before) > left
    after = products_out_of_loops(before)
    after.check()
    assert products(after) == left
    flat = af.tree.leaves(arguments)
    for have, want in zip(evaluate(after, flat), evaluate(before, flat), strict=True):
        np.testing.assert_allclose(have, want, 1e-11, 1e-12)


@pytest.mark.parametrize("reverse", [False, True])
def test_products_of_slices_and_constants_come_before_the_loop(reverse: bool) -> None:
    def f(w: Any, u: Any, xs: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = anp.sin(h @ w + anp.tanh(x) @ (u @ u))
            return h, h.sum()

        return lax.scan(step, anp.zeros((50, 40)), xs, reverse=reverse)

    check(f, W, U, XS, left=1)


def test_products_that_are_added_up_come_after_the_loop() -> None:
    def loss(w: Any, u: Any, xs: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = anp.sin(h @ w + x @ u)
            return h, h.sum()

        last, sums = lax.scan(step, anp.zeros((50, 40)), xs)
        return last.sum() + (sums**2).sum()

    check(af.value_and_grad(loss, (0, 1)), W, U, XS, left=2)


def test_a_sum_that_begins_with_something_is_added_to_it() -> None:
    def f(total: Any, xs: Any) -> Any:
        return lax.scan(lambda c, x: (c + x.T @ anp.cos(x), None), total, xs)[0]

    check(f, np.ones((40, 40)), XS, left=0)


def test_a_sum_of_products_of_slices_is_one_product() -> None:
    def f(xs: Any) -> Any:
        return lax.scan(lambda c, x: (c + x.T @ x, None), anp.zeros((40, 40)), xs)[0]

    check(f, XS, left=0)
    program = products_out_of_loops(simplified(f, XS))
    shapes = [v.type.shape for q in program.equations for v in q.outputs]
    assert (5, 40, 40) not in shapes


def test_a_sum_that_is_read_in_the_loop_stays() -> None:
    def f(total: Any, xs: Any) -> Any:
        return lax.scan(lambda c, x: (c + x.T @ (c @ x.T).T, c[0]), total, xs)

    check_stays(f, np.ones((40, 40)), XS)


def test_a_product_of_the_carry_stays() -> None:
    def f(h: Any, w: Any) -> Any:
        return lax.scan(lambda h, _: (anp.sin(h @ w), None), h, None, length=4)

    check_stays(f, XS[0], W)


def test_small_products_stay() -> None:
    def f(xs: Any) -> Any:
        return lax.scan(lambda c, x: (c + x @ x, None), anp.zeros((3, 3)), xs)

    check_stays(f, RNG.standard_normal((4, 3, 3)))


def test_what_is_kept_for_a_sum_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_products, "MAX_BYTES", 1000)

    def f(total: Any, xs: Any) -> Any:
        return lax.scan(
            lambda c, x: ((c[0] + c[1].T @ x, anp.sin(c[1])), None), (total, xs[0]), xs
        )

    check_stays(f, np.ones((40, 40)), XS)


def check_stays(function: Callable[..., Any], *arguments: Any) -> None:
    before = simplified(function, *arguments)
    assert products(products_out_of_loops(before)) == products(before) > 0


def test_a_carry_that_begins_with_a_computed_number() -> None:
    def f(w: Any, s: Any, xs: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            return anp.sin(h + x @ w), None

        return lax.scan(step, anp.broadcast_to(s + 1.0, (50, 40)), xs)[0]

    check(f, W, np.float64(0.5), XS, left=0)
