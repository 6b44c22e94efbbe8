"""Sparse systems: solutions, derivatives, and how often matrices are factored."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.sparse.linalg import MatrixRankWarning

import arrayfn.numpy as anp
from arrayfn import tree
from arrayfn.compilation.jit import jit
from arrayfn.errors import ArgumentError, BackendError, ShapeError
from arrayfn.scipy.sparse.linalg import bicgstab, cg, factorized, gmres, norm, spsolve
from arrayfn.sparse import COO, CSC, CSR, diags_array
from arrayfn.sparse.solves import FACTORS
from arrayfn.transforms import grad, jacfwd, vmap
from tests.lowered_on_gpu import lowered

RNG = np.random.default_rng(4)
N = 8
DENSE = RNG.normal(size=(N, N)) * (RNG.random((N, N)) < 0.4) + 6.0 * np.eye(N)
POSITIVE = DENSE @ DENSE.T
B = RNG.normal(size=(N, 2))


def same(have: Any, want: Any, rtol: float = 1e-10) -> None:
    have = have.toarray() if hasattr(have, "toarray") else have
    np.testing.assert_allclose(have, want, rtol=rtol, atol=1e-12)


def squares(solve: Any) -> Any:
    return lambda a, b: (solve(a, anp.sin(b)) ** 2).sum()


def direct(a: Any, b: Any) -> Any:
    return anp.linalg.solve(a, b)


@pytest.mark.parametrize("form", [CSR, CSC, COO])
@pytest.mark.parametrize("wrap", [lambda f: f, jit])
def test_solutions_and_gradients_are_the_dense_ones(form: Any, wrap: Any) -> None:
    a = form(DENSE)
    for b in (B, B[:, 0]):
        same(wrap(spsolve)(a, b), np.linalg.solve(DENSE, b))
        have = wrap(grad(squares(spsolve), (0, 1)))(a, b)
        want = grad(squares(direct), (0, 1))(DENSE, b)
        same(have[0], want[0] * (DENSE != 0))
        same(have[1], want[1])


def test_second_derivatives_forward_mode_and_complex_matrices() -> None:
    a = CSC(DENSE)

    def third(solve: Any, matrix: Any) -> Any:
        return lambda s: (solve(matrix * s, B * s**2) ** 2).sum()

    have, want = third(spsolve, a), third(direct, DENSE)
    same(grad(grad(have))(1.5), grad(grad(want))(1.5))
    same(jacfwd(have)(1.5), jacfwd(want)(1.5))
    turned = DENSE * (1 + 0.5j)
    same(spsolve(CSC(turned), B), np.linalg.solve(turned, B))
    same(
        grad(lambda b: anp.abs(spsolve(CSC(turned), b)).sum())(B),
        grad(lambda b: anp.abs(anp.linalg.solve(turned, b)).sum())(B),
    )


def test_mapping_solves_for_all_sides_at_once_and_for_each_matrix() -> None:
    a = CSR(DENSE)
    FACTORS.clear()
    before = FACTORS.computed
    same(jit(vmap(spsolve, (None, 1), 1))(a, B), np.linalg.solve(DENSE, B))
    same(
        vmap(vmap(spsolve, (None, 0)), (None, 0))(a, B[None].swapaxes(1, 2))[0].T,
        np.linalg.solve(DENSE, B),
    )
    assert FACTORS.computed == before + 1
    both = tree.map(lambda *x: np.stack(x), a, 2 * a)
    want = np.linalg.solve(DENSE, B)
    same(vmap(spsolve, (0, None))(both, B), [want, want / 2])


def test_a_matrix_is_factored_once_for_a_solution_and_its_gradient() -> None:
    FACTORS.clear()
    before = FACTORS.computed
    step = jit(grad(squares(spsolve), (0, 1)))
    a = CSR(DENSE)
    for _ in range(2):
        step(a, B)
    assert FACTORS.computed == before + 1
    step(2 * a, B)
    assert FACTORS.computed == before + 2
    solve = factorized(a)
    same(solve(B), np.linalg.solve(DENSE, B))
    assert FACTORS.computed == before + 2


@pytest.mark.parametrize(
    ("solve", "matrix"), [(cg, POSITIVE), (bicgstab, DENSE), (gmres, DENSE)]
)
def test_iterative_solvers_take_sparse_matrices(solve: Any, matrix: Any) -> None:
    a, b = CSR(matrix), B[:, 0]
    nearly = diags_array(1 / matrix.diagonal())

    def solved(a: Any, b: Any) -> Any:
        return solve(a, b, tol=1e-13, M=nearly)[0]

    same(jit(solved)(a, b), np.linalg.solve(matrix, b), 1e-8)
    have = jit(grad(squares(solved), (0, 1)))(a, b)
    want = grad(squares(direct), (0, 1))(matrix, b)
    np.testing.assert_allclose(
        have[0].toarray(), want[0] * (matrix != 0), rtol=1e-7, atol=1e-9
    )
    np.testing.assert_allclose(have[1], want[1], rtol=1e-7, atol=1e-9)


def test_norms() -> None:
    a = CSR(DENSE)
    for ord in ("fro", 1, -1, np.inf, -np.inf):
        same(norm(a, ord), np.linalg.norm(DENSE, ord))
    with pytest.raises(ArgumentError, match="ord must be"):
        norm(a, 2)


def test_the_order_of_columns_is_not_chosen_on_a_gpu() -> None:
    with pytest.raises(BackendError, match="leave out permc_spec='NATURAL' there"):
        lowered(partial(spsolve, permc_spec="NATURAL"), CSR(DENSE), B)
    kernels = str(lowered(spsolve, CSR(DENSE), B).kernels)
    assert "solve_by_cudss" in kernels


def test_a_singular_matrix_gives_nan_and_what_does_not_fit_is_refused() -> None:
    singular = CSR((np.ones(1), np.array([0]), np.array([0, 1, 1])), (2, 2))
    with pytest.warns(MatrixRankWarning, match="the matrix is singular"):
        assert np.isnan(spsolve(singular, np.ones(2))).all()
    with pytest.raises(ShapeError, match=r"a matrix \(n, n\) and b"):
        spsolve(CSR(DENSE), np.ones(3))
    with pytest.raises(ArgumentError, match="takes a sparse matrix"):
        spsolve(DENSE, B)
    with pytest.raises(ArgumentError, match="permc_spec"):
        spsolve(CSR(DENSE), B, permc_spec="none")
    with pytest.raises(ShapeError, match="takes no vector like b"):
        cg(CSR(DENSE), np.ones(3))
