"""minimize: SciPy's minima, at once, under jit and mapped."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.errors import ArgumentError, DTypeError, ShapeError
from arrayfn.scipy.integrate import trapezoid
from arrayfn.scipy.optimize import minimize


def rosenbrock(x):
    return anp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def himmelblau(p):
    x, y = p[0], p[1]
    return (x**2 + y - 11.0) ** 2 + (x + y**2 - 7.0) ** 2


def matyas(p):
    return 0.26 * anp.sum(p**2) - 0.48 * p[0] * p[1]


CASES = [
    (rosenbrock, np.array([-1.2, 1.0])),
    (rosenbrock, np.array([1.3, 0.7, 0.8, 1.9, 1.2])),
    (himmelblau, np.array([1.0, 1.0])),
    (matyas, np.array([3.0, -4.0])),
]


@pytest.mark.parametrize(("function", "start"), CASES)
def test_the_minimum_is_scipys(function, start):
    expected = scipy.optimize.minimize(function, start, method="BFGS")
    found = minimize(function, start, tol=1e-6)
    assert found.success
    assert found.status == 0
    np.testing.assert_allclose(found.x, expected.x, atol=2e-5)
    np.testing.assert_allclose(found.fun, function(found.x), rtol=1e-12)
    assert np.abs(found.jac).max() <= 1e-6
    assert found.nit < 80
    assert found.nfev < 4 * found.nit + 10


def test_under_jit_and_with_arguments():
    def square(x, centre, weight):
        return anp.sum(weight * (x - centre) ** 2)

    centre = np.array([2.0, -1.0, 5.0])

    @af.jit
    def solve(start, centre):
        return minimize(square, start, (centre, 3.0)).x

    np.testing.assert_allclose(solve(np.zeros(3), centre), centre, atol=1e-6)


def test_many_at_once():
    starts = np.array([[-1.2, 1.0], [2.0, 2.0], [0.0, 0.5]])
    found = af.jit(af.vmap(lambda x: minimize(rosenbrock, x, tol=1e-6)))(starts)
    np.testing.assert_allclose(found.x, np.ones((3, 2)), atol=1e-5)
    assert found.success.all()


def test_the_inverse_hessian_of_a_parabola():
    matrix = np.array([[3.0, 1.0], [1.0, 2.0]])
    found = minimize(lambda x: 0.5 * x @ matrix @ x, np.array([1.0, 4.0]), tol=1e-9)
    np.testing.assert_allclose(found.hess_inv, np.linalg.inv(matrix), atol=1e-3)


def test_float32_stays_float32():
    found = minimize(matyas, np.array([3.0, -4.0], np.float32))
    assert found.x.dtype == found.fun.dtype == np.float32
    assert found.success


def test_too_few_steps_are_told():
    found = minimize(rosenbrock, np.array([-1.2, 1.0]), options={"maxiter": 3})
    assert not found.success
    assert found.status == 1
    assert found.nit == 3


def test_a_start_at_the_minimum_takes_no_step():
    found = minimize(matyas, np.zeros(2))
    assert found.success
    assert found.nit == 0


def test_a_value_that_is_not_a_number_ends_the_search():
    found = minimize(lambda x: anp.log(x[0]) * anp.nan, np.array([1.0]))
    assert not found.success
    assert found.status == 2


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: minimize(matyas, np.zeros((2, 2))),
            ShapeError,
            "needs a vector to begin at",
        ),
        (lambda: minimize(matyas, np.zeros(2, int)), DTypeError, "not int64"),
        (
            lambda: minimize(matyas, np.zeros(2), method="CG"),
            ArgumentError,
            "method 'BFGS', not 'CG'",
        ),
        (
            lambda: minimize(matyas, np.zeros(2), options={"eps": 1}),
            ArgumentError,
            r"no options \['eps'\]",
        ),
    ],
)
def test_bad_arguments_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_trapezoid():
    assert trapezoid(np.array([1.0, 2.0, 3.0]), dx=2.0) == 8.0
