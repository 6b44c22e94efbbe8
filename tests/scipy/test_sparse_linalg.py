"""Iterative solvers: solutions, what they report, and derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn.compilation.jit import jit
from arrayfn.errors import ArgumentError, ShapeError
from arrayfn.flatten_util import ravel_pytree
from arrayfn.scipy.sparse.linalg import bicgstab, cg, gmres
from arrayfn.transforms import grad, vmap

RNG = np.random.default_rng(11)
N = 12
ANY = RNG.normal(size=(N, N)) + 6.0 * np.eye(N)
POSITIVE = ANY @ ANY.T
B = RNG.normal(size=N)
METHODS = {"cg": (cg, POSITIVE), "bicgstab": (bicgstab, ANY), "gmres": (gmres, ANY)}


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> Any:
    solve, matrix = METHODS[request.param]
    return lambda *args, **options: solve(*args, tol=1e-13, **options), matrix


def test_solutions_of_real_and_complex_systems(method: Any) -> None:
    solve, matrix = method
    x, info = jit(solve)(matrix, B)
    np.testing.assert_allclose(x, np.linalg.solve(matrix, B), rtol=1e-9, atol=1e-11)
    assert info == 0
    turned = matrix + 1j * (ANY - ANY.T)
    x, info = solve(turned, B + 1j)
    np.testing.assert_allclose(
        x, np.linalg.solve(turned, B + 1j), rtol=1e-9, atol=1e-11
    )
    x, info = solve(lambda x: turned @ x, B + 1j, x0=x, M=np.diag(1 / np.diag(turned)))
    np.testing.assert_allclose(
        x, np.linalg.solve(turned, B + 1j), rtol=1e-9, atol=1e-11
    )
    assert info == 0


def test_gradients_by_the_matrix_and_the_right_hand_side(method: Any) -> None:
    solve, matrix = method
    inverse = np.linalg.inv(matrix)
    near = np.diag(1 / np.diag(matrix)) + 0.01 * ANY * (matrix is ANY)

    def score(a: Any, b: Any) -> Any:
        return (solve(a, anp.sin(b), M=near)[0] ** 2).sum()

    def direct(a: Any, b: Any) -> Any:
        return (anp.linalg.solve(a, anp.sin(b)) ** 2).sum()

    for wrap in (lambda f: f, jit):
        have = wrap(grad(score, (0, 1)))(matrix, B)
        want = grad(direct, (0, 1))(matrix, B)
        scale = np.abs(inverse).max()
        for ours, theirs in zip(have, want, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-10 * scale)


def test_second_derivatives_and_mapping(method: Any) -> None:
    solve, matrix = method

    def third(solve: Any) -> Any:
        return lambda s: (solve(matrix + s * np.eye(N), B * s) ** 2).sum()

    def direct(a: Any, b: Any) -> Any:
        return anp.linalg.solve(a, b)

    scales = np.array([0.5, 1.0])
    have = vmap(grad(grad(third(lambda a, b: solve(a, b)[0]))))(scales)
    want = vmap(grad(grad(third(direct))))(scales)
    np.testing.assert_allclose(have, want, rtol=1e-7)


def test_pytrees_and_functions_that_close_over_traced_values(method: Any) -> None:
    solve, _ = method

    def operator(k: Any) -> Any:
        def apply(x: Any) -> Any:
            p, q = x["p"], x["q"]
            return {"p": k * p + q.sum(), "q": 3.0 * q + p.sum()}

        return apply

    b = {"p": np.full((2, 1), 2.5), "q": np.arange(3.0)}

    def total(k: Any) -> Any:
        x, _ = solve(operator(k), b)
        return x["p"].sum()

    flat, unravel = ravel_pytree(b)
    rows = [ravel_pytree(operator(4.0)(unravel(e)))[0] for e in np.eye(5)]
    inverse = np.linalg.inv(np.array(rows).T)
    np.testing.assert_allclose(total(4.0), (inverse @ flat)[:2].sum(), rtol=1e-10)
    change = np.diag([1.0, 1.0, 0.0, 0.0, 0.0])
    want = -(inverse @ change @ inverse @ flat)[:2].sum()
    np.testing.assert_allclose(grad(total)(4.0), want, rtol=1e-9)


def test_what_did_not_converge_is_reported_with_the_steps() -> None:
    assert cg(POSITIVE, B, tol=1e-13, maxiter=2)[1] == 2
    assert bicgstab(ANY, B, tol=1e-13, maxiter=1)[1] == 1
    assert gmres(ANY, B, tol=1e-13, restart=2, maxiter=3)[1] == 3


def test_nothing_on_the_right_is_solved_by_nothing_also_from_elsewhere() -> None:
    for solve, matrix in METHODS.values():
        x, info = solve(matrix, np.zeros(N), x0=np.ones(N))
        np.testing.assert_array_equal(x, np.zeros(N))
        assert info == 0


def test_a_krylov_space_that_is_all_there_is_ends_well() -> None:
    # Of the identity it has one vector.
    np.testing.assert_allclose(gmres(np.eye(N), B)[0], B, rtol=1e-12)
    np.testing.assert_allclose(
        gmres(np.float32(2) * np.eye(3, dtype="f4"), np.ones(3, "f4"))[0], 0.5
    )


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ShapeError, match="cg: A is a matrix of shape"):
        cg(np.ones((3, 4)), np.ones(3))
    with pytest.raises(ArgumentError, match="structure"):
        cg(lambda x: (x, x), np.ones(3))
    with pytest.raises(ShapeError, match="gmres: x0"):
        gmres(np.eye(3), np.ones(3), x0=np.ones(4))
    with pytest.raises(ArgumentError, match="restart"):
        gmres(np.eye(3), np.ones(3), restart=0)
    with pytest.raises(ShapeError, match="6 elements"):
        ravel_pytree([np.ones(6)])[1](np.ones(5))


def test_raveled_leaves_keep_their_dtypes() -> None:
    tree = {"a": np.arange(2, dtype=np.int32), "b": np.ones((1, 2), np.float32)}
    flat, unravel = ravel_pytree(tree)
    assert flat.dtype == np.float64  # as NumPy promotes int32 and float32
    back = unravel(flat * 2)
    assert back["a"].dtype == np.int32
    assert back["b"].dtype == np.float32
    np.testing.assert_array_equal(back["a"], [0, 2])
    assert grad(lambda t: (ravel_pytree(t)[0] ** 2).sum())({"b": 3.0})["b"] == 6.0
