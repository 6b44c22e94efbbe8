"""Sparse products and steps of equations as kernels for a GPU, run by the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn import tree
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.ode import solve
from arrayfn.sparse import COO, CSC, CSR
from arrayfn.transforms import grad
from tests.lowered_on_gpu import lowered

RNG = np.random.default_rng(2)
A = (RNG.normal(size=(7, 5)) * (RNG.random((7, 5)) < 0.5)).astype(np.float32)
X = RNG.normal(size=5).astype(np.float32)


@pytest.mark.parametrize("form", [CSR, CSC, COO])
def test_products_and_their_gradients(form: Any) -> None:
    a = form(A)
    leaves = [*tree.leaves(a), X]
    (have,) = run_plan(lowered(lambda a, x: a @ x, a, X), leaves)
    np.testing.assert_allclose(have, A @ X, rtol=1e-5)
    gradient = grad(lambda a, x: ((a @ x) ** 2).sum(), 1)
    (have,) = run_plan(lowered(gradient, a, X), leaves)
    np.testing.assert_allclose(have, 2 * A.T @ (A @ X), rtol=1e-4, atol=1e-5)


def test_a_solution_of_a_differential_equation() -> None:
    ts = np.array([0.0, 0.5])

    def last(y: Any) -> Any:
        return solve(lambda t, y: anp.stack([y[1], -y[0]]), y, ts, rtol=1e-4).ys[-1]

    (have,) = run_plan(lowered(last, np.array([1.0, 0.0])), [np.array([1.0, 0.0])])
    np.testing.assert_allclose(have, [np.cos(0.5), -np.sin(0.5)], rtol=1e-4)
