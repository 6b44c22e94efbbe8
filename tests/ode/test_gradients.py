"""Derivatives of solutions: both adjoints beside exact ones and differences."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn import tree
from arrayfn.compilation.jit import jit
from arrayfn.errors import ArgumentError
from arrayfn.ode import odeint, solve
from arrayfn.sparse import diags_array
from arrayfn.transforms import grad, jacfwd, value_and_grad, vmap

RATES = np.array([1.5, 0.4])
START = {"fish": np.array(1.0)}
TIMES = np.linspace(0.0, 2.0, 4)
WAYS = {
    "steps": {},
    "adjoint equation": {"adjoint": "backsolve"},
    "stiff": {"method": "Rodas5P"},
    "stiff, adjoint equation": {"method": "Rodas5P", "adjoint": "backsolve"},
    "dense": {"dense": True, "max_steps": 256},
}


def logistic(t: Any, y: Any, p: Any) -> Any:
    """Growth to a limit that the season changes."""
    return {"fish": y["fish"] * (p[0] - p[1] * y["fish"]) + 0.1 * anp.sin(t)}


def loss(y0: Any, ts: Any, p: Any, **options: Any) -> Any:
    found = solve(logistic, y0, ts, p, rtol=1e-9, atol=1e-9, **options)
    return (found.ys["fish"][1:] ** 2).sum()


def difference(f: Any, x: Any, step: float = 1e-5) -> Any:
    x = np.asarray(x)
    made = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        moved = np.zeros_like(x)
        moved[place] = step
        made[place] = (f(x + moved) - f(x - moved)) / (2 * step)
    return made


@pytest.fixture(autouse=True)
def unproved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops that end by computed values can neither be proved nor tried."""
    monkeypatch.setenv("ARRAYFN_VERIFY", "0")


@pytest.fixture(scope="module")
def expected() -> Any:
    value = jit(loss)
    return (
        {"fish": difference(lambda y: value({"fish": y}, TIMES, RATES), 1.0)},
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
    def grown(p: Any) -> Any:
        ts = np.array([0.0, 1.5])
        slope = lambda t, y: y * (p - y)  # noqa: E731
        return solve(slope, 0.3, ts, rtol=1e-7, method="RK23").ys[-1]

    def exact(p: Any) -> Any:
        factor = anp.exp(1.5 * p)
        return 0.3 * p * factor / (p + 0.3 * (factor - 1))

    assert_close = partial(np.testing.assert_allclose, rtol=1e-5)
    assert_close(jacfwd(grown)(1.2), grad(exact)(1.2))
    assert_close(jacfwd(grad(grown))(1.2), grad(grad(exact))(1.2))
    rates = np.array([1.2, 0.6])
    assert_close(vmap(grad(grown))(rates), vmap(grad(exact))(rates))


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
    assert lowered.plan.arena < 1 << 20


def test_a_sparse_jacobian_gives_the_same_steps_and_gradients() -> None:
    n = 24
    line = diags_array([1.0, -2.0, 1.0], offsets=[-1, 0, 1], shape=(n, n))

    def heat(t: Any, y: Any) -> Any:
        return 400.0 * (line @ y) + y * (1 - y)

    def total(y: Any, **options: Any) -> Any:
        found = solve(heat, y, np.array([0.0, 0.5]), method="Rodas5P", **options)
        return (found.ys[-1] ** 2).sum(), found.steps

    y0 = np.sin(np.linspace(0, np.pi, n))
    ours = value_and_grad(partial(total, jac_sparsity=line), has_aux=True)
    dense = value_and_grad(total, has_aux=True)
    for have, want in zip(
        tree.leaves(jit(ours)(y0)), tree.leaves(dense(y0)), strict=True
    ):
        np.testing.assert_allclose(have, want, rtol=1e-8)
    with pytest.raises(ArgumentError, match="jac_sparsity is for"):
        solve(heat, y0, np.array([0.0, 1.0]), jac_sparsity=line)


def test_a_dense_solution_has_no_backwards_adjoint() -> None:
    with pytest.raises(ArgumentError, match="leave out"):
        loss(START, TIMES, RATES, dense=True, adjoint="backsolve")
