"""Derivatives of solutions: both adjoints beside exact ones and differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn import tree
from arrayfn.compilation.jit import jit
from arrayfn.errors import ArgumentError
from arrayfn.ode import odeint, solve
from arrayfn.transforms import grad, hessian, jacfwd, vmap

RATES = np.array([1.5, 1.0, 3.0])
START = {"a": np.array(10.0), "b": np.array(5.0)}
TIMES = np.linspace(0.0, 2.0, 5)
WAYS = {
    "steps": {},
    "adjoint equation": {"adjoint": "backsolve"},
    "stiff": {"method": "Rodas5P"},
    "stiff, adjoint equation": {"method": "Rodas5P", "adjoint": "backsolve"},
    "dense": {"dense": True, "max_steps": 256},
}


def animals(t: Any, y: Any, p: Any) -> Any:
    meetings = p[1] * y["a"] * y["b"]
    return {
        "a": p[0] * y["a"] - meetings,
        "b": meetings - p[2] * y["b"] + 0.1 * anp.sin(t),
    }


def loss(y0: Any, ts: Any, p: Any, **options: Any) -> Any:
    found = solve(animals, y0, ts, p, rtol=1e-9, atol=1e-9, **options)
    return (found.ys["a"][1:] ** 2).sum() + found.ys["b"][-1]


def difference(f: Any, x: Any, step: float = 1e-5) -> Any:
    x = np.asarray(x)
    made = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        moved = np.zeros_like(x)
        moved[place] = step
        made[place] = (f(x + moved) - f(x - moved)) / (2 * step)
    return made


@pytest.fixture(scope="module")
def expected() -> Any:
    value = jit(loss)
    return (
        {
            "a": difference(lambda a: value({**START, "a": a}, TIMES, RATES), 10.0),
            "b": difference(lambda b: value({**START, "b": b}, TIMES, RATES), 5.0),
        },
        difference(lambda t: value(START, t, RATES), TIMES),
        difference(lambda p: value(START, TIMES, p), RATES),
    )


@pytest.mark.parametrize("way", WAYS)
def test_gradients_by_start_times_and_parameters(way: str, expected: Any) -> None:
    options = WAYS[way]
    f = lambda y0, ts, p: loss(y0, ts, p, **options)  # noqa: E731
    have = jit(grad(f, (0, 1, 2)))(START, TIMES, RATES)
    for ours, theirs in zip(tree.leaves(have), tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-5)


def test_forward_mode_second_derivatives_and_mapping() -> None:
    of_rates = lambda p: loss(START, TIMES, p)  # noqa: E731
    gradient = jit(grad(of_rates))
    np.testing.assert_allclose(jacfwd(of_rates)(RATES), gradient(RATES), rtol=1e-9)
    want = [difference(lambda p, k=k: gradient(p)[k], RATES) for k in range(3)]
    np.testing.assert_allclose(jit(hessian(of_rates))(RATES), want, rtol=1e-4)
    both = np.stack([RATES, RATES * 1.1])
    have = jit(vmap(gradient))(both)
    np.testing.assert_allclose(have, [gradient(p) for p in both], rtol=1e-9)


@pytest.mark.parametrize("adjoint", ["direct", "backsolve"])
def test_what_f_captures_is_differentiated_by(adjoint: str) -> None:
    counts = np.array([2, 1])  # integers have no derivative

    def last(rate: Any) -> Any:
        def slope(y: Any, t: Any, n: Any) -> Any:
            return -rate * y * n

        ts = np.array([0.0, 1.0])
        return odeint(slope, np.ones(2), ts, counts, adjoint=adjoint)[-1].sum()

    want = -2 * np.exp(-2 * 0.7) - np.exp(-0.7)
    np.testing.assert_allclose(grad(last)(0.7), want, rtol=1e-6)


def test_a_long_solution_is_differentiated_in_little_memory() -> None:
    def last(rate: Any) -> Any:
        ts = np.array([0.0, 400.0])
        slope = lambda t, y: rate * anp.stack([y[1], -y[0]])  # noqa: E731
        found = solve(slope, np.array([0.0, 1.0]), ts, rtol=1e-8, atol=1e-10)
        return found.ys[-1, 0]

    lowered = jit(grad(last)).lower(1.0)
    np.testing.assert_allclose(lowered.compile()(1.0), 400 * np.cos(400.0), rtol=1e-4)
    assert lowered.plan.arena_bytes < 1 << 20


def test_a_dense_solution_has_no_backwards_adjoint() -> None:
    with pytest.raises(ArgumentError, match="leave out"):
        loss(START, TIMES, RATES, dense=True, adjoint="backsolve")
