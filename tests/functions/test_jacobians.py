"""jacfwd, jacrev, hessian: values, structures, and both modes against each other."""

from __future__ import annotations

import numpy as np
import pytest

from arrayfn import tree
from arrayfn.compilation.jit import jit
from arrayfn.errors import ArgumentError, DifferentiationError
from arrayfn.transforms import grad, hessian, jacfwd, jacrev, vmap

X = np.array([0.5, -1.0, 2.0])
W = np.random.default_rng(0).standard_normal((3, 4))


def layer(x):
    return np.tanh(x @ W)


LAYER = (1 - np.tanh(X @ W) ** 2)[:, None] * W.T


@pytest.mark.parametrize("jacobian", [jacfwd, jacrev])
def test_a_jacobian_has_rows_of_outputs_and_columns_of_inputs(jacobian):
    np.testing.assert_allclose(jacobian(layer)(X), LAYER, rtol=1e-13)
    np.testing.assert_allclose(jit(jacobian(layer))(X), LAYER, rtol=1e-13)
    stacked = np.stack([X, 2 * X])
    np.testing.assert_allclose(vmap(jacobian(layer))(stacked)[0], LAYER, rtol=1e-13)
    assert jacobian(np.sin)(X.astype(np.float32)).dtype == np.float32


@pytest.mark.parametrize("jacobian", [jacfwd, jacrev])
def test_jacobians_of_pytrees_are_trees_of_trees(jacobian):
    def f(p, c):
        return {"product": p["a"] * p["b"], "sum": p["a"].sum() + c}

    p = {"a": X, "b": np.array(3.0)}
    result = jacobian(f)(p, 7.0)
    np.testing.assert_array_equal(result["product"]["a"], 3 * np.eye(3))
    np.testing.assert_array_equal(result["product"]["b"], X)
    np.testing.assert_array_equal(result["sum"]["a"], np.ones(3))
    assert result["sum"]["b"] == 0.0
    by_p, by_c = jacobian(f, argnums=(0, 1))(p, 7.0)["sum"]
    assert by_p["a"].tolist() == [1.0, 1.0, 1.0]
    assert (by_c, by_c.shape) == (1.0, ())


@pytest.mark.parametrize("jacobian", [jacfwd, jacrev])
def test_aux_and_keywords_pass_through(jacobian):
    def f(x, scale=1.0):
        return scale * x**2, {"x": x, "n": 7}

    result, aux = jacobian(f, has_aux=True)(X, scale=10.0)
    np.testing.assert_array_equal(result, np.diag(20 * X))
    np.testing.assert_array_equal(aux["x"], X)
    assert aux["n"] == 7


@pytest.mark.parametrize("jacobian", [jacfwd, jacrev])
def test_matrices_by_matrices_have_all_axes(jacobian):
    a = np.arange(6.0).reshape(2, 3)
    result = jacobian(lambda a: a @ W)(a)
    assert result.shape == (2, 4, 2, 3)
    expected = np.einsum("ik,lj->ijkl", np.eye(2), W)
    np.testing.assert_allclose(result, expected, rtol=1e-14)


def test_a_function_may_branch_on_its_values():
    assert jacfwd(lambda x: x * 3 if x[0] > 0 else x)(X)[1, 1] == 3.0
    assert jacrev(lambda x: x * 3 if x[0] > 0 else x)(X)[1, 1] == 3.0


def test_hessian_against_a_formula():
    def energy(x):
        return (x[0] * x[1] ** 2 + np.exp(x[2]) * x[0]).sum()

    a, b, c = X
    expected = [
        [0.0, 2 * b, np.exp(c)],
        [2 * b, 2 * a, 0.0],
        [np.exp(c), 0.0, np.exp(c) * a],
    ]
    np.testing.assert_allclose(hessian(energy)(X), expected, rtol=1e-14)
    np.testing.assert_allclose(jit(hessian(energy))(X), expected, rtol=1e-14)
    np.testing.assert_allclose(
        jacrev(jacfwd(energy))(X), hessian(energy)(X), rtol=1e-14
    )


def test_hessian_of_several_arguments_has_blocks():
    def f(x, y):
        return (x**2).sum() * y

    (xx, xy), (yx, yy) = hessian(f, argnums=(0, 1))(X, 3.0)
    np.testing.assert_array_equal(xx, 6 * np.eye(3))
    np.testing.assert_array_equal(xy, 2 * X)
    np.testing.assert_array_equal(yx, 2 * X)
    assert yy == 0.0


def test_mapped_hessians_and_third_derivatives():
    xs = np.stack([X, X + 1])
    f = hessian(lambda x: np.sum(np.sin(x) * x[::-1]))
    np.testing.assert_allclose(vmap(f)(xs), [f(x) for x in xs], rtol=1e-13)
    np.testing.assert_allclose(jit(vmap(f))(xs), vmap(f)(xs), rtol=1e-13)
    third = jacfwd(hessian(lambda x: (x**3).sum()))(X)
    assert third.shape == (3, 3, 3)
    assert third[1, 1, 1] == 6.0
    assert third.sum() == 18.0
    assert grad(lambda x: hessian(lambda y: (y**4).sum())(x).sum())(X)[0] == 12.0


def test_holomorphic_jacobians():
    z = np.array([1 + 2j, 3j])
    for jacobian in (jacfwd, jacrev):
        result = jacobian(lambda z: z**2, holomorphic=True)(z)
        np.testing.assert_allclose(result, np.diag(2 * z), rtol=1e-14)
    assert grad(lambda z: z**3, holomorphic=True)(1 + 1j) == 3 * (1 + 1j) ** 2
    with pytest.raises(DifferentiationError, match="needs holomorphic=True"):
        jacfwd(lambda z: z)(z)
    with pytest.raises(DifferentiationError, match="real outputs, but"):
        jacrev(lambda x: x * 1j)(X)
    with pytest.raises(DifferentiationError, match="which is not complex"):
        grad(lambda x: x, holomorphic=True)(1.0)


def test_arguments_that_do_not_fit():
    with pytest.raises(DifferentiationError, match=r"by argument 0, which is i64\[2\]"):
        jacfwd(lambda x: x)(np.arange(2))
    with pytest.raises(ArgumentError, match="argnums names argument 3"):
        jacrev(lambda x: x, argnums=3)(X)
    with pytest.raises(
        DifferentiationError, match=r"must return a pair \(value, aux\)"
    ):
        jacfwd(lambda x: x, has_aux=True)(X)


def test_hessians_are_those_of_the_composition():
    def f(p, c):
        return {
            "row": np.sin(p["a"] * c) * p["b"] ** 2,
            "total": (p["a"] ** 3).sum() * c,
        }

    p = {"a": X, "b": np.array([[2.0], [3.0]])}
    for argnums in (0, (0, 1), (1,)):
        expected = jacfwd(jacrev(f, argnums), argnums)(p, 1.5)
        for result in (hessian(f, argnums)(p, 1.5), jit(hessian(f, argnums))(p, 1.5)):
            assert tree.structure(result) == tree.structure(expected)
            for have, want in zip(
                tree.leaves(result), tree.leaves(expected), strict=True
            ):
                np.testing.assert_allclose(have, want, rtol=1e-13, atol=1e-13)
    assert expected["row"][0][0].shape == (2, 3)
    blocks = hessian(f)(p, 1.5)["row"]
    assert blocks["a"]["b"].shape == (2, 3, 3, 2, 1)
    assert hessian(lambda t: ())({"x": 1.0}) == ()
    assert hessian(lambda t, x: x * x)((), 3.0) == ()


def test_hessians_with_aux():
    result, aux = hessian(lambda x: ((x**3).sum(), {"x": x}), has_aux=True)(X)
    np.testing.assert_allclose(result, np.diag(6 * X))
    np.testing.assert_array_equal(aux["x"], X)
    scalar, aux = hessian(lambda x: (x**3, x), has_aux=True)(2.0)
    assert (scalar, aux) == (12.0, 2.0)
    z = np.array([1 + 1j, 2.0])
    second = hessian(lambda z: (z**3).sum(), holomorphic=True)(z)
    np.testing.assert_allclose(second, np.diag(6 * z), rtol=1e-14)
