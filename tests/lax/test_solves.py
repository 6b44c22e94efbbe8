"""custom_linear_solve and custom_root: values and derivatives, wherever they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.compilation.jit import jit
from arrayfn.errors import ArgumentError, DifferentiationError, DTypeError, ShapeError
from arrayfn.transforms import grad, hessian, jacfwd, jacrev, jvp, vmap

RNG = np.random.default_rng(7)
A = RNG.normal(size=(4, 4)) + 5.0 * np.eye(4)
B = RNG.normal(size=4)


def jacobi(matvec: Any, b: Any) -> Any:
    """A loop that no derivative in reverse mode goes through quickly."""
    diagonal = matvec(anp.ones_like(b)) * 0.0 + 5.0

    def step(state: Any) -> Any:
        x, count = state
        return x + (b - matvec(x)) / diagonal, count + 1

    return lax.while_loop(lambda s: s[1] < 400, step, (anp.zeros_like(b), 0))[0]


def solved(a: Any, b: Any) -> Any:
    return lax.custom_linear_solve(lambda x: a @ x, b, jacobi, jacobi)


def direct(a: Any, b: Any) -> Any:
    return anp.linalg.solve(a, b)


def score(solve: Any) -> Any:
    return lambda a, b: (solve(a, anp.sin(b)) ** 3).sum()


@pytest.mark.parametrize("wrap", [lambda f: f, jit], ids=["at once", "jit"])
def test_a_solution_and_its_derivatives_are_those_of_the_direct_one(wrap: Any) -> None:
    ours, theirs = score(solved), score(direct)
    np.testing.assert_allclose(wrap(ours)(A, B), theirs(A, B), rtol=1e-12)
    for n in (0, 1):
        have, want = wrap(grad(ours, n))(A, B), grad(theirs, n)(A, B)
        np.testing.assert_allclose(have, want, rtol=1e-10, atol=1e-12)
    given, change = (A, B), (np.cos(A), np.cos(B))
    have = wrap(lambda: jvp(ours, given, change)[1])()
    np.testing.assert_allclose(have, jvp(theirs, given, change)[1], rtol=1e-10)


def test_second_derivatives_in_every_mode() -> None:
    want = hessian(score(direct), 1)(A, B)
    for outer, inner in ((jacfwd, jacrev), (jacrev, jacrev), (jacfwd, jacfwd)):
        have = outer(inner(score(solved), 1), 1)(A, B)
        np.testing.assert_allclose(have, want, rtol=1e-9, atol=1e-11)
    have = jit(jacrev(grad(score(solved)), 1))(A, B)
    want = jacrev(grad(score(direct)), 1)(A, B)
    np.testing.assert_allclose(have, want, rtol=1e-9, atol=1e-11)


def test_mapped_over_the_matrix_the_right_hand_side_and_both() -> None:
    many = A + RNG.normal(size=(3, 4, 4)) * 0.1
    sides = RNG.normal(size=(3, 4))
    for axes, a, b in (((0, None), many, B), ((None, 0), A, sides), (0, many, sides)):
        have = vmap(grad(score(solved), (0, 1)), axes)(a, b)
        want = vmap(grad(score(direct), (0, 1)), axes)(a, b)
        for ours, theirs in zip(have, want, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)


def test_trees_auxiliary_results_and_a_symmetric_operator() -> None:
    def operator(x: Any) -> Any:
        return {"p": 2.0 * x["p"] + x["q"], "q": x["p"] + 3.0 * x["q"]}

    def solve(_: Any, b: Any) -> Any:
        x = {
            "p": (3.0 * b["p"] - b["q"]) / 5.0,
            "q": (2.0 * b["q"] - b["p"]) / 5.0,
        }
        return x, {"steps": 1}

    def f(p: Any, q: Any) -> Any:
        x, aux = lax.custom_linear_solve(
            operator, {"p": p, "q": q}, solve, symmetric=True, has_aux=True
        )
        return x["p"] * x["q"] + aux["steps"]

    np.testing.assert_allclose(f(1.0, 2.0), 0.2 * 0.6 + 1)
    for wrap in (lambda g: g, jit):
        have = wrap(grad(f, (0, 1)))(1.0, 2.0)
        np.testing.assert_allclose(
            have, (0.6 * 0.6 - 0.2 * 0.2, -0.2 * 0.6 + 0.4 * 0.2)
        )


def test_without_a_transposed_solver_there_is_forward_mode_alone() -> None:
    def f(b: Any) -> Any:
        return lax.custom_linear_solve(lambda x: A @ x, b, jacobi).sum()

    want = np.linalg.solve(A, B).sum()
    np.testing.assert_allclose(jvp(f, (B,), (B,))[1], want, rtol=1e-12)
    with pytest.raises(DifferentiationError, match="transpose_solve"):
        grad(f)(B)


def test_the_solver_is_not_differentiated_through() -> None:
    def rough(matvec: Any, b: Any) -> Any:
        # Its derivative by a would be something else: the steps are too few.
        return lax.stop_gradient(anp.linalg.inv(A)) @ b

    def f(a: Any) -> Any:
        return lax.custom_linear_solve(lambda x: a @ x, B, rough, rough).sum()

    inverse = np.linalg.inv(A)
    want = -np.outer(inverse @ np.ones(4), inverse @ B)
    np.testing.assert_allclose(grad(f)(A), want, rtol=1e-12)


def test_what_has_another_form_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"f64\[2\].*not f64\[4\]"):
        lax.custom_linear_solve(lambda x: x[:2], B, jacobi)
    with pytest.raises(DTypeError, match="f32"):
        lax.custom_linear_solve(lambda x: x, B, lambda m, b: anp.astype(b, "float32"))
    with pytest.raises(ArgumentError, match="structure"):
        lax.custom_linear_solve(lambda x: x, B, lambda m, b: (b, b))
    with pytest.raises(ArgumentError, match="pair"):
        lax.custom_linear_solve(lambda x: x, B, lambda m, b: b, has_aux=True)
    with pytest.raises(ArgumentError, match="solve must be a function"):
        lax.custom_root(lambda x: x, B, 1, lambda g, y: y)


# custom_root


def newton(f: Any, x: Any) -> Any:
    def step(x: Any) -> Any:
        value, slope = jvp(f, (x,), (anp.ones_like(x),))
        return x - value / slope

    return lax.while_loop(lambda x: anp.abs(f(x)).max() > 1e-13, step, x)


def cube_root(y: Any) -> Any:
    return lax.custom_root(
        lambda x: x**3 - y, anp.ones_like(y), newton, lambda g, t: t / g(1.0)
    )


def test_a_root_and_its_derivatives_of_every_order() -> None:
    np.testing.assert_allclose(cube_root(8.0), 2.0)
    np.testing.assert_allclose(grad(cube_root)(8.0), 1 / 12)
    np.testing.assert_allclose(grad(grad(cube_root))(8.0), -1 / 144)
    np.testing.assert_allclose(
        grad(grad(grad(cube_root)))(8.0), 10 / 27 * 8 ** (-8 / 3)
    )
    np.testing.assert_allclose(jit(grad(grad(cube_root)))(8.0), -1 / 144)
    np.testing.assert_allclose(jvp(cube_root, (8.0,), (1.0,))[1], 1 / 12)
    ys = np.array([1.0, 8.0, 27.0])
    np.testing.assert_allclose(vmap(cube_root)(ys), [1.0, 2.0, 3.0])
    np.testing.assert_allclose(vmap(jit(grad(cube_root)))(ys), 1 / 3 / ys ** (2 / 3))


def test_a_root_of_several_arrays_with_auxiliary_results() -> None:
    def solve(f: Any, guess: Any) -> Any:
        # x^2 + y = a and x y = b, by Newton's method on both together.
        def step(_: Any, x: Any) -> Any:
            u, v = x
            p, q = f(x)
            determinant = 2 * u * u - v
            return u - (u * p - q) / determinant, v - (2 * u * q - v * p) / determinant

        return lax.fori_loop(0, 20, step, guess), {"steps": 20}

    def tangent_solve(g: Any, y: Any) -> Any:
        one = anp.ones_like(y[0])
        (a, c), (b, d) = g((one, 0 * one)), g((0 * one, one))
        determinant = a * d - b * c
        return (
            (d * y[0] - b * y[1]) / determinant,
            (a * y[1] - c * y[0]) / determinant,
        )

    def roots(a: Any, b: Any) -> Any:
        x, aux = lax.custom_root(
            lambda x: (x[0] ** 2 + x[1] - a, x[0] * x[1] - b),
            (anp.asarray(1.5), anp.asarray(0.5)),
            solve,
            tangent_solve,
            has_aux=True,
        )
        return anp.stack(x), aux["steps"]

    value, steps = roots(5.0, 2.0)
    np.testing.assert_allclose(value, [2.0, 1.0], rtol=1e-12)
    assert steps == 20
    # Of the inverse of [[2 x, 1], [y, x]] at (2, 1).
    want = np.linalg.inv([[4.0, 1.0], [1.0, 2.0]])
    for by in (jacfwd, jacrev):
        have = by(lambda p: roots(p[0], p[1])[0])(np.array([5.0, 2.0]))
        np.testing.assert_allclose(have, want, rtol=1e-12)
