"""Derivatives of NumPy's functions, first and second, against finite differences."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.transforms import grad, trace_function
from arrayfn.transforms.transposition import vjp
from tests.programs import check_derivatives, noise

V = np.array([0.7, -1.3, 2.1, 0.4, -0.6, 1.6, -2.4])
M = np.random.default_rng(1).standard_normal((3, 4))
S = np.random.default_rng(5).standard_normal((3, 3)) + 3 * np.eye(3)
P = np.array([0.7, 1.3, 2.1, 0.4])

# Formulas in anp and x. Nothing lies where a derivative jumps.
FORMULAS = [
    # Shapes and places.
    ("anp.pad(x, 2, mode='reflect')", M),
    ("anp.pad(x, (9, 4), mode='symmetric', reflect_type='odd')", V),
    ("anp.pad(x, 2, mode='linear_ramp')", M),
    ("anp.pad(x, 2, mode='mean', stat_length=2)", M),
    ("anp.pad(x, 1, mode='maximum')", M),
    ("anp.repeat(x, np.array([1, 2, 0]), axis=0)", M),
    ("anp.roll(anp.tile(x, 2), 1) * x[0]", V),
    ("anp.insert(x, [1, 3], x[:2] ** 2)", V),
    ("anp.delete(x, 2) ** 2", V),
    ("anp.resize(x, (4, 5)) ** 2", V),
    ("anp.block([[x, x * x], [x[:1], 2 * x[1:2]]])", M),
    ("anp.put_along_axis(x, np.array([[1], [0], [3]]), x[:, :1] ** 2, axis=1)", M),
    ("anp.take_along_axis(x * x, np.array([[1], [0], [3]]), axis=1)", M),
    ("anp.fill_diagonal(x, x[0] * x[1])", S),
    ("anp.place(x, x > 0, x[:2] ** 2)", V),
    ("anp.compress(x > 0, x * x, size=6)", V),
    ("anp.choose(np.array([0, 1, 2, 1]), (x, x * x, x**3))", P),
    ("anp.select([x > 1, x > 0], [x * x, x**3], 5.0)", V),
    # Updates.
    ("anp.at(x)[np.array([1, 1, 3])].add(x[:3] ** 2)", V),
    ("anp.at(x)[np.array([1, 2, 3])].multiply(x[:3])", V),
    ("anp.at(x)[np.array([1, 4, 3])].divide(x[:3])", V),
    ("anp.at(x)[np.array([1, 2, 3])].power(x[1:4])", P),
    ("anp.at(x)[1:6:2].set(x[:3] ** 2)", V),
    ("anp.at(x)[1:4].max(x[2:5] ** 3)", V),
    ("anp.at(x)[np.array([1, 4])].max(np.array([0.3, -9.0])) ** 2", V),
    ("anp.at(np.arange(7.0) - 3.2)[1:4].min(x[2:5]) ** 2", V),
    ("lax.pad(np.ones((2, 3)), x[0] ** 2, [(1, 0, 0), (0, 2, 1)])", V),
    ("lax.pad(x * x, x[0, 0], [(1, -1, 0), (0, 2, 1)])", M),
    ("anp.at(x)[np.array([1, 9])].set(x[:2] ** 2, mode='drop')", V),
    ("anp.at(x * x)[np.array([1, 9])].get(mode='clip')", V),
    # Order.
    ("anp.sort(x, axis=0) ** 2", M),
    ("anp.sort(x, descending=True) ** 2", V),
    ("anp.median(x, axis=1) ** 2", M),
    ("anp.quantile(x, np.array([0.2, 0.7]), axis=1) ** 2", M),
    ("anp.nanpercentile(x, 40) ** 2", V),
    # Counts with weights.
    ("anp.bincount(np.array([0, 2, 2, 1]), x * x, length=3)", P),
    ("anp.histogram(np.array([0.1, 0.5, 0.9, 0.4]), 3, (0, 1), weights=x**2)[0]", P),
    # Neighbours.
    ("anp.gradient(x * x, 0.5, edge_order=2)", V),
    ("anp.gradient(np.sin(np.arange(4.0)), anp.cumsum(x * x))", P),
    ("anp.trapezoid(x * x, anp.cumsum(x))", P),
    (
        "anp.interp(x, np.array([-3.0, 0.1, 1.0, 4.0]), np.array([1.0, 4, 9, 2])) ** 2",
        V,
    ),
    ("anp.interp(np.array([0.3, 1.2]), anp.cumsum(x), x * x)", P),
    ("anp.unwrap(4 * x) ** 2", V),
    ("anp.diff(x * x, n=2, prepend=x[0])", V),
    # Representation.
    ("anp.ldexp(x * x, np.array([1, -2, 3, 0, 5, -1, 2]))", V),
    ("anp.frexp(x)[0] ** 2", V),
    ("anp.modf(x)[0] ** 2", V),
    ("anp.nan_to_num(anp.where(x > 0, x * x, anp.nan))", V),
    ("anp.sinc(x)", V),
    ("anp.i0(x)", V),
    ("anp.logaddexp2(x, x * x)", V),
    ("anp.heaviside(x, 0.5) * x * x", V),
    # Statistics.
    ("anp.cov(x)", M),
    ("anp.corrcoef(x)", M),
    ("anp.var(x, axis=1, where=np.array([True, False, True, True]))", M),
    ("anp.nanvar(anp.where(x > 1.2, anp.nan, x * x))", V),
    ("anp.nanstd(x, axis=0)", M),
    ("anp.nancumprod(x)", V),
    ("anp.average(x, axis=0, weights=x[:, 0] ** 2)", M),
    ("anp.prod(x, axis=1, where=np.array([True, False, True, True]))", M),
    ("anp.max(x, axis=1, initial=0.1, where=x < 1) ** 2", M),
    # Polynomials.
    ("anp.polyval(x[:4], x[4:])", V),
    ("anp.polydiv(x, x[1:4])[0]", V),
    ("anp.polymul(x, x[:3])", V),
    ("anp.polyint(x * x, 2)", V),
    ("anp.poly(x)", P),
    ("anp.polyfit(np.arange(7.0), x * x, 2)", V),
    ("anp.vander(x, 4)", P),
    # Products.
    ("anp.convolve(x, x[:3])", V),
    ("anp.correlate(x, x[:3] ** 2, 'same')", V),
    ("anp.kron(x[:2], x)", S),
    ("anp.cross(x[0], x[1]) @ x", S),
    ("anp.matvec(x, x[0])", S),
    ("anp.vecdot(x, x * x)", M),
    ("anp.einsum('ij,jk,ik->i', x, x, x)", S),
    ("anp.trace(x @ x, 1)", S),
    # Sequences and functions.
    ("anp.geomspace(x[0], x[1], 5)", P),
    ("anp.logspace(x[0], x[1], 4)", P),
    ("anp.linspace(x, x * x, 3, axis=-1)", P),
    ("anp.apply_along_axis(lambda v: v * v[0], 0, x)", M),
    ("anp.vectorize(lambda a, b: a * b * b)(x, x[:1])", M),
    ("anp.piecewise(x, [x < 0, x > 1], [lambda v: v**3, anp.sin, 7.0])", V),
]


@pytest.mark.parametrize(("text", "x"), FORMULAS, ids=[text for text, _ in FORMULAS])
def test_derivatives(text, x):
    function = eval(f"lambda x: {text}", {"anp": anp, "np": np, "lax": lax})
    program = trace_function(function, (x,), {}, abstract=True).program
    check_derivatives(program, [x], [True])
    rng = np.random.default_rng(2)
    cotangents = [noise(rng, t) for t in program.output_types]
    second = vjp(program, [True])
    wrt = [True] * (1 + len(cotangents))
    check_derivatives(second, [x, *cotangents], wrt, rtol=2e-5, atol=2e-6)


def test_nan_left_out_leaves_no_nan_in_gradients():
    x = np.array([1.0, np.nan, 3.0])
    for function in (anp.nansum, anp.nanmean, anp.nanvar, anp.nanstd, anp.nanmax):
        assert np.isfinite(grad(lambda x, f=function: f(x))(x)).all()


def test_the_gradient_of_sinc_at_zero_is_zero():
    assert grad(anp.sinc)(0.0) == 0.0


@pytest.mark.parametrize("method", ["max", "min"])
def test_updates_that_equal_the_element_share_its_derivative(method):
    x, u = np.array([1.0, 2.0]), np.array([2.0, 2.0, 5.0])

    def f(x, u):
        y = getattr(anp.at(x)[np.array([1, 1])], method)(u[:2])
        return 3.0 * y[1]

    by_x, by_u = grad(f, argnums=(0, 1))(x, u)
    np.testing.assert_allclose(by_x, [0.0, 1.0])
    np.testing.assert_allclose(by_u, [1.0, 1.0, 0.0])
