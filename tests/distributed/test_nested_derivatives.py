"""Derivatives of nested loops, branches and calls in shard_map: the members' sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import PartitionSpec as P
from arrayfn import lax
from arrayfn.custom_batching import sequential_vmap

A = np.array([[1.0, -2.0, 3.0], [-1.0, 2.0, 1.0]])  # a row for each member
C = np.array([[2.0, 3.0, 4.0]])  # the same for both members

Function = Callable[[Any, Any], Any]


def product(c: Any, x: Any) -> Any:
    return x * c * c


SQUARES: dict[str, Function] = {
    "for": lambda c, x: lax.fori_loop(0, 2, lambda _, y: c * y, x),
    "while": lambda c, x: lax.while_loop(
        lambda s: s[0] < 2, lambda s: (s[0] + 1, s[1] * c), (0, x)
    )[1],
    "cond": lambda c, x: lax.cond(c[0, 0] > 0, lambda: x * c * c, lambda: x),
    "scan": lambda c, x: lax.scan(lambda k, _: (k, c * c * x / 2), 0.0, None, 2)[1].sum(
        0
    ),
}
"""Functions of c and x that compute x * c * c in different ways."""


def linear_call(square: Function) -> Function:
    return lambda a, c: lax.linear_call(square, square, c, a)


def solved(square: Function) -> Function:
    def solve(_: Any, b: Any, a: Any, c: Any) -> Any:
        return b / a / c / c

    def solution(a: Any, c: Any) -> Any:
        solver = lambda m, b: solve(m, b, a, c)  # noqa: E731
        return lax.custom_linear_solve(
            lambda x: a * square(c, x), anp.ones((1, 3)), solver, solver
        )

    return solution


def root(square: Function) -> Function:
    return lambda a, c: lax.custom_root(
        lambda x: a * square(c, x) - 1,
        np.ones((1, 3)),
        lambda f, x: 1 / a / c / c,
        lambda g, y: y / g(anp.ones_like(y)),
    )


def branch(square: Function) -> Function:
    return lambda a, c: lax.cond(a[0, 0] > 0, lambda: square(c, c), lambda: c * 1.0)


def loop(square: Function) -> Function:
    """The members run different numbers of iterations."""
    return lambda a, c: lax.while_loop(
        lambda x: x[0, 0] < 3 + a[0, 0], lambda x: square(c, x), c
    )


def checkpoint(square: Function) -> Function:
    return lambda a, c: af.checkpoint(lambda a: square(c, a))(a)


def batching_rule(square: Function) -> Function:
    mapped = af.vmap(sequential_vmap(square))
    return lambda a, c: mapped(c[None], a[None])[0]


WANTED: dict[Callable[[Function], Function], Function] = {
    linear_call: lambda a, c: product(c, a),
    solved: lambda a, c: 1 / product(c, a),
    root: lambda a, c: 1 / product(c, a),
    branch: lambda a, c: anp.where(a[0, 0] > 0, product(c, c), c),
    loop: lambda a, c: anp.where(3 + a[0, 0] > 2, product(c, c), c),
    checkpoint: lambda a, c: product(c, a),
    batching_rule: lambda a, c: product(c, a),
}


def gradients(function: Function, order: int) -> list[Any]:
    """The gradients of the sum over members of ``function(a, c) ** 2``.

    For order 2, the gradients of the sum of the gradient by c.
    """
    total = af.shard_map(
        lambda a, c: lax.psum((function(a, c) ** 2).sum(), "i"),
        mesh=af.Mesh((2,), ("i",)),
        in_specs=(P("i"), P()),
        out_specs=P(),
    )
    if order == 2:
        first = af.grad(total, 1)
        return [
            np.asarray(g) for g in af.grad(lambda a, c: first(a, c).sum(), (0, 1))(A, C)
        ]
    return [np.asarray(g) for g in af.grad(total, (0, 1))(A, C)]


CASES = [(nest, square, 1) for nest in WANTED for square in SQUARES]
# Second derivatives of loops of several trip counts take long to compile.
CASES += [(nest, "cond", 2) for nest in (linear_call, solved, root, checkpoint)]
CASES += [(checkpoint, "while", 2)]


@pytest.mark.parametrize(("nest", "square", "order"), CASES)
def test_derivatives_by_what_members_share_are_summed_once(
    nest: Callable[[Function], Function], square: str, order: int
) -> None:
    have = gradients(nest(SQUARES[square]), order)
    want = gradients(WANTED[nest], order)
    for one, other in zip(have, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
