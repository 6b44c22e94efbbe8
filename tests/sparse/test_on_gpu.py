"""Sparse products and steps of equations as kernels for a GPU, run by the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.sparse.linalg import MatrixRankWarning

import arrayfn.numpy as anp
from arrayfn import clear_caches, device_put, jit, tree, vmap
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.backends.cuda.libraries.shared import open_library
from arrayfn.backends.cuda.requirements import missing_here
from arrayfn.errors import BackendError
from arrayfn.ode import solve
from arrayfn.scipy.sparse.linalg import spsolve
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


def _missing() -> str:
    """Why cuDSS cannot be tested here; empty if it can."""
    if missing_here():
        return missing_here()
    try:
        open_library("cudss", "spsolve", "nvidia-cudss-cu13")
    except BackendError as error:
        return str(error)
    return ""


needs_cudss = pytest.mark.skipif(bool(_missing()), reason=_missing())
N = 40
DENSE = RNG.normal(size=(N, N)) * (RNG.random((N, N)) < 0.1) + 3 * np.eye(N)
B = RNG.normal(size=(N, 3))


@needs_cudss
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("form", [CSR, CSC, COO])
def test_solutions_by_cudss_and_their_derivatives(form: Any, dtype: str) -> None:
    dense = DENSE.astype(dtype) * (1 + 0.5j if dtype[0] == "c" else 1)
    dense = dense.astype(dtype)
    a = form(dense)
    bound = 1e-4 if dtype in {"float32", "complex64"} else 1e-11

    def square(a: Any, b: Any) -> Any:
        return (anp.abs(spsolve(a, b)) ** 2).sum()

    for b in (B[:, 0].astype(dtype), B.astype(dtype)):
        want = np.linalg.solve(dense, b)
        for solve_ in (spsolve, jit(spsolve, device="cuda")):
            have = np.asarray(solve_(device_put(a, "cuda"), device_put(b, "cuda")))
            np.testing.assert_allclose(have, want, bound, bound)
        slope = grad(square, (0, 1))
        have, want = jit(slope, device="cuda")(a, b), slope(a, b)
        for x, y in zip(tree.leaves(have), tree.leaves(want), strict=True):
            np.testing.assert_allclose(np.asarray(x), y, 10 * bound, 10 * bound)


@needs_cudss
def test_cudss_solves_for_mapped_matrices_and_sides() -> None:
    a = CSR(DENSE)
    entries = np.stack([a.data, 2 * a.data, 3 * a.data])

    def solve_with(entries: Any, b: Any) -> Any:
        return spsolve(a.with_data(entries), b)

    for axes, first in (((None, 1), a.data), ((0, None), entries), ((0, 1), entries)):
        f = vmap(solve_with, axes)
        have = np.asarray(jit(f, device="cuda")(first, B))
        np.testing.assert_allclose(have, f(first, B), 1e-9, 1e-9)


@needs_cudss
def test_bits_of_solutions_are_the_same_in_each_run() -> None:
    from arrayfn.backends.cuda.libraries import cudss

    f, a = jit(spsolve, device="cuda"), CSR(DENSE)
    first = np.asarray(f(a, B)).tobytes()
    for _ in range(5):
        cudss._factor_cache(True)._known.clear()
        assert np.asarray(f(a, B)).tobytes() == first
    faster = jit(spsolve, device="cuda", deterministic=False)
    np.testing.assert_allclose(np.asarray(faster(a, B)), np.linalg.solve(DENSE, B))


@needs_cudss
def test_cudss_keeps_factors_and_analyses() -> None:
    from arrayfn.backends.cuda.libraries import cudss

    phases: list[int] = []
    execute = cudss._Factors._execute

    def noted(self: Any, phase: int, *rest: Any) -> None:
        phases.append(phase)
        execute(self, phase, *rest)

    clear_caches()  # of the matrices of other tests
    f, a, b = jit(spsolve, device="cuda"), CSR(DENSE + np.eye(N)), B[:, 0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cudss._Factors, "_execute", noted)
        f(a, b)
        assert phases == [cudss._ANALYSIS, cudss._FACTORIZATION, cudss._SOLUTION]
        f(a, B[:, 1])
        assert phases[3:] == [cudss._SOLUTION]
        have = f(a.with_data(2 * a.data), b)
        assert phases[4:] == [cudss._FACTORIZATION, cudss._SOLUTION]
        np.testing.assert_allclose(have, np.asarray(f(a, b)) / 2)
    clear_caches()
    assert not cudss._factor_cache(True)._known


@needs_cudss
def test_cudss_gives_nan_for_singular_matrices_alone() -> None:
    f = jit(spsolve, device="cuda")
    singular = DENSE.copy()
    singular[3] = singular[4]
    with pytest.warns(MatrixRankWarning, match="the matrix is singular"):
        assert np.isnan(np.asarray(f(CSR(singular), B))).all()
    small = np.array([[1e-20, 1.0], [1.0, 0.0]])
    have = f(CSR(small), np.array([1.0, 2.0]))
    np.testing.assert_allclose(np.asarray(have), [2.0, 1.0])
    assert f(CSR(np.zeros((0, 0))), np.zeros(0)).shape == (0,)
