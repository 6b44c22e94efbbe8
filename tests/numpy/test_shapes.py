"""Creation, manipulation, reductions and indexing: results are NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.errors import AbstractValueError, ArgumentError, ShapeError
from arrayfn.transforms import trace_function

X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
M = np.random.default_rng(1).standard_normal((3, 4))
V = np.random.default_rng(2).standard_normal(5)
N = np.random.default_rng(3).integers(-9, 9, (3, 4)).astype(np.int32)

# A formula in xp (NumPy or arrayfn.numpy) and x, and what it is tried on.
FORMULAS = [
    ("xp.reshape(x, (4, -1))", X),
    ("xp.reshape(x, (6, 4), order='F')", X),
    ("xp.reshape(x, -1)", X),
    ("xp.ravel(x)", X),
    ("xp.ravel(x, order='F')", X),
    ("xp.transpose(x)", X),
    ("xp.transpose(x, (1, -1, 0))", X),
    ("xp.matrix_transpose(x)", X),
    ("xp.swapaxes(x, 0, -1)", X),
    ("xp.moveaxis(x, 0, -1)", X),
    ("xp.moveaxis(x, (0, 1), (-1, 0))", X),
    ("xp.rollaxis(x, 2)", X),
    ("xp.rollaxis(x, 0, 3)", X),
    ("xp.expand_dims(x, (0, -1))", X),
    ("xp.squeeze(x[:, :1, :1])", X),
    ("xp.squeeze(x[:, :1], 1)", X),
    ("xp.atleast_1d(x)", np.float64(3)),
    ("xp.atleast_2d(x)", V),
    ("xp.atleast_3d(x)", M),
    ("xp.broadcast_to(x, (2, 3, 4))", M),
    ("xp.broadcast_arrays(x, x[:1])", M),
    ("xp.concatenate([x, x[:1], x], 0)", X),
    ("xp.concatenate([x, x], axis=None)", X),
    ("xp.concat([x, x.astype('int8')], axis=-1)", X),
    ("xp.stack([x, 2 * x], axis=-1)", X),
    ("xp.vstack([x, x])", V),
    ("xp.hstack([x, x])", V),
    ("xp.hstack([x, x])", M),
    ("xp.dstack([x, x])", M),
    ("xp.column_stack([x, x])", V),
    ("xp.append(x, x, 0)", M),
    ("xp.split(x, 2, axis=-1)", M),
    ("xp.array_split(x, 3, axis=-1)", M),
    ("xp.array_split(x, [1, 3, 9], axis=1)", M),
    ("xp.vsplit(x, 3)", M),
    ("xp.hsplit(x, 2)", M),
    ("xp.unstack(x, axis=1)", X),
    ("xp.flip(x)", X),
    ("xp.flip(x, (0, 2))", X),
    ("xp.fliplr(x)", M),
    ("xp.flipud(x)", M),
    ("[xp.rot90(x, k) for k in range(-1, 4)]", M),
    ("xp.roll(x, 2)", M),
    ("xp.roll(x, (1, -2), (0, 1))", M),
    ("xp.repeat(x, 3)", M),
    ("xp.repeat(x, 2, axis=1)", M),
    ("xp.tile(x, (2, 1, 3))", M),
    ("xp.tile(x, 2)", V),
    ("xp.pad(x, ((1, 2), (0, 3)))", M),
    ("xp.pad(x, 1, constant_values=2.5)", M),
    ("xp.pad(x, (1, 2), mode='edge')", M),
    ("xp.pad(x, 2, mode='reflect')", M),
    ("xp.pad(x, 2, mode='symmetric')", M),
    ("xp.pad(x, 2, mode='wrap')", M),
    ("xp.diff(x)", M),
    ("xp.diff(x, n=2, axis=0, append=0.5)", M),
    ("xp.diff(x > 0)", M),
    ("xp.ediff1d(x)", M),
    ("xp.tril(x, -1)", X),
    ("xp.triu(x, 1)", X),
    ("xp.diag(x)", V),
    ("xp.diag(x, -2)", V),
    ("xp.diag(x, 1)", M),
    ("xp.diagonal(x, 1, 2, 0)", X),
    ("xp.diagonal(x, -1)", M),
    ("xp.trace(x)", M),
    ("xp.meshgrid(x, x[:2])", V),
    ("xp.meshgrid(x, x[:2], indexing='ij', sparse=True)", V),
    ("xp.zeros_like(x)", N),
    ("xp.full_like(x, 2.7)", N),
    ("xp.ones_like(x, dtype='float16')", N),
    ("xp.linspace(x[0], x[1], 5)", V),
    ("xp.linspace(x[:2], x[2:4], 4, endpoint=False, axis=1)", V),
    ("xp.cumsum(x)", N),
    ("xp.cumsum(x, axis=1)", X),
    ("xp.cumprod(x, axis=0)", M),
    ("xp.cumulative_sum(x, axis=1, include_initial=True)", M),
    ("xp.sum(x)", X),
    ("xp.sum(x, axis=(0, -1))", X),
    ("xp.sum(x, axis=1, keepdims=True)", X),
    ("xp.sum(x)", N),
    ("xp.sum(x > 0, axis=0)", X),
    ("xp.sum(x, dtype='float64')", X),
    ("xp.prod(x, axis=1)", N),
    ("xp.max(x, axis=1)", X),
    ("xp.min(x, axis=(0, 1), keepdims=True)", X),
    ("xp.max(x > 0, axis=0)", X),
    ("xp.ptp(x, axis=-1)", X),
    ("xp.mean(x, axis=1)", X),
    ("xp.mean(x)", N),
    ("xp.mean(x.astype('float16') + 300, axis=(0, 1))", X),
    ("xp.var(x, axis=(0, 2), ddof=1)", X),
    ("xp.var(x, axis=0, correction=1)", M),
    ("xp.var(x + 1j * x[::-1])", M),
    ("xp.std(x, axis=1, keepdims=True)", X),
    ("xp.sum(x, axis=1, where=x > 0, initial=2.0)", M),
    ("xp.sum(x, where=np.array([True, False, True, True]), keepdims=True)", M),
    ("xp.prod(x, axis=0, where=x > 0, initial=3.0)", M),
    ("xp.max(x, axis=1, where=x < 0, initial=-9.0)", M),
    ("xp.min(x, initial=-0.5, axis=(0, 1))", M),
    ("xp.max(x[:0], initial=-0.5, axis=0)", M),
    ("xp.max(x > 0, initial=False, axis=0)", M),
    ("xp.all(x > 0, axis=1, where=x > -0.5)", M),
    ("xp.any(x > 0, axis=0, where=x < 0.2)", M),
    ("xp.mean(x, axis=1, where=x < 0.6)", M),
    ("xp.mean(x, where=x > 0)", N),
    ("xp.var(x, axis=1, where=x < 0.6)", M),
    ("xp.std(x, ddof=1, where=x < 0.6, keepdims=True)", M),
    ("xp.average(x, axis=1, weights=xp.arange(4.0))", M),
    ("xp.average(x, weights=x)", M),
    ("xp.all(x > -9)", X),
    ("xp.any(x > 1, axis=-1, keepdims=True)", X),
    ("xp.all(x, axis=0)", N),
    ("xp.count_nonzero(x, axis=1)", N),
    ("xp.argmax(x)", X),
    ("xp.argmin(x, axis=1)", X),
    ("xp.argmax(x, axis=-1, keepdims=True)", X),
    ("xp.nansum(xp.where(x > 0, x, xp.nan), axis=0)", M),
    ("xp.nanmean(xp.where(x > 0, x, xp.nan), axis=1)", M),
    ("xp.nanmax(xp.where(x > 0, x, xp.nan), axis=1)", M),
    ("xp.allclose(x, x + 1e-12)", M),
    ("xp.array_equal(x, x)", M),
    ("xp.take(x, np.array([[0, 2], [-1, 1]]), axis=1)", X),
    ("xp.take(x, 3)", M),
    ("xp.take_along_axis(x, np.array([[0, 1], [-1, 0], [2, 2]]), 1)", M),
    ("xp.matmul(x, x[0].T)", X),
    ("xp.matmul(x[0], x.swapaxes(1, 2))", X),
    ("xp.matmul(x[:, None], x.swapaxes(1, 2))", X),
    ("xp.matmul(x[0, 0], x.swapaxes(1, 2))", X),
    ("xp.matmul(x, x[0, 0])", X),
    ("xp.matmul(x > 0, (x < 0.5).swapaxes(1, 2))", X),
    ("xp.dot(x, x[0].T)", X),
    ("xp.dot(x, x)", V),
    ("xp.dot(x, 2.0)", V),
    ("xp.vdot(x, 1j * x)", M),
    ("xp.inner(x, x[:2])", M),
    ("xp.outer(x, x[:3])", V),
    ("xp.vecdot(x, x[:1])", M),
    ("xp.tensordot(x, x, axes=((1, 2), (1, 2)))", X),
    ("xp.tensordot(x, x[0], axes=([1, 2], [0, 1]))", X),
    ("xp.tensordot(x, x, axes=0)", V),
    ("xp.kron(x[:2], x[:, :2])", M),
    ("xp.cross(x[:3], x[1:4])", V),
    ("xp.einsum('ijk,lk->jil', x, x[0])", X),
    ("xp.einsum('ij,jk,kl', x, x.T, x)", M),
    ("xp.einsum('...ij->...', x)", X),
    ("xp.einsum('ii->i', x[:, :3])", M),
    ("xp.einsum('ij,ij->j', x, x)", M),
    ("xp.einsum('i,j', x, x)", V),
    ("xp.einsum(x, [0, 1], x, [2, 1], [0, 2])", M),
    ("xp.einsum('ij->ji', x)", N),
    ("xp.searchsorted(x[0] * 0 + np.arange(6.0), x)", V),
    ("xp.searchsorted(np.array([0, 1, 1, 2, np.nan]), x, side='right')", V),
    (
        "xp.searchsorted(x, np.array([[1.0, 2, np.nan]]))",
        np.array([0, 1, 1, 2, np.nan]),
    ),
    (
        "xp.searchsorted(x, 3, sorter=np.array([1, 3, 4, 2, 0]))",
        np.array([9, 1, 4, 2, 3]),
    ),
    ("xp.searchsorted(x, 1.0)", np.zeros(0)),
]


def formula(text):
    return lambda xp: eval(f"lambda x: {text}", {"xp": xp, "np": np})


@pytest.mark.parametrize(("text", "x"), FORMULAS, ids=[text for text, _ in FORMULAS])
def test_formula(text, x, check):
    make = formula(text)
    check(make(anp), make(np), x)


# Named so by NumPy too, and so traced through its own functions.
@pytest.mark.parametrize(("text", "x"), FORMULAS, ids=[text for text, _ in FORMULAS])
def test_formula_of_numpy_functions_traced(text, x, traced):
    function = formula(text)(np)
    expected = function(x)
    many = isinstance(expected, (list, tuple))
    for ours, theirs in zip(
        traced(function, x), expected if many else [expected], strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3 if "16" in text else 1e-5)


CREATION = [
    "xp.zeros((2, 3))",
    "xp.zeros(3, dtype='int8')",
    "xp.ones((2,), 'complex64')",
    "xp.full((2, 3), 7)",
    "xp.full((2, 2), np.float32(1.5))",
    "xp.arange(5)",
    "xp.arange(2, 10, 3)",
    "xp.arange(5, 0, -2)",
    "xp.arange(0.5, 3.0, 0.25)",
    "xp.arange(3, dtype='float32')",
    "xp.arange(3, 1)",
    "xp.linspace(0, 1, 7)",
    "xp.linspace(2.0, -3.0, 4, endpoint=False)",
    "xp.linspace(0, 5, 3, dtype='int32')",
    "xp.logspace(0, 2, 5)",
    "xp.eye(3)",
    "xp.eye(2, 4, 1, dtype='int32')",
    "xp.identity(2)",
    "xp.tri(3, 4, -1)",
    "xp.asarray([[1, 2], [3, 4]])",
    "xp.asarray([1.5, 2], dtype='float32')",
]


@pytest.mark.parametrize("text", CREATION)
def test_creation(text, check):
    make = formula(text)
    check(lambda: make(anp)(None), lambda: make(np)(None))


def test_creation_inside_jit_stores_no_large_constants():
    def f(x):
        grid = anp.arange(10_000) + anp.zeros(10_000) + anp.eye(100).ravel()
        return x + grid.sum()

    program = trace_function(f, (1.0,), {}, abstract=True).program
    assert program.constants == ()


def test_asarray_stacks_traced_values(traced):
    (result,) = traced(lambda x: anp.asarray([[x[0], 1.0], [2.0, x[1]]]), V)
    np.testing.assert_array_equal(result, [[V[0], 1.0], [2.0, V[1]]])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda: anp.reshape(M, (5, -1)),
            r"shape \(3, 4\) has 12 elements .* \(5, -1\)",
        ),
        (lambda: anp.add(M, V), r"add: shapes \(3, 4\), \(5,\) do not broadcast"),
        (lambda: anp.matmul(M, M), r"matmul: axis 1 of f64\[3,4\] has extent 4, but"),
        (lambda: anp.matmul(M, 2.0), r"matmul takes no rank-0 operands.*use \*"),
        (lambda: anp.sum(M, axis=2), r"sum: axis 2 is out of bounds .* 2 axes"),
        (lambda: anp.sum(M, axis=(0, -2)), r"sum: an axis repeats in \(0, -2\)"),
        (lambda: anp.max(M[:0]), r"max of no elements: axes \(0, 1\) of f64\[0,4\]"),
        (lambda: anp.squeeze(M, 0), r"squeeze: axis 0 of shape \(3, 4\) has an extent"),
        (
            lambda: anp.stack([M, V]),
            r"stack takes arrays of one shape.*\(3, 4\), \(5,\)",
        ),
        (lambda: anp.concatenate([M, M[:, :2]]), r"concatenate along axis 0 takes"),
        (lambda: anp.split(V, 2), r"split: axis 0 of shape \(5,\) does not divide"),
        (
            lambda: anp.broadcast_to(M, (4, 4)),
            r"broadcast_to: shapes \(3, 4\), \(4, 4\)",
        ),
        (
            lambda: anp.full((1,), np.array([1, 2, 3])),
            r"full: fill_value of shape \(3,\) does not broadcast to \(1,\)",
        ),
        (lambda: anp.full((2,), M), r"full: shapes \(3, 4\), \(2,\) do not broadcast"),
        (lambda: anp.einsum("ij,jk", M, M), r"einsum: axis 'j' has extent 4 in one"),
        (lambda: anp.zeros((2, -1)), r"zeros|full: negative extents"),
        (
            lambda: anp.tensordot(M, M, axes=([0, 1], [0])),
            r"axes must name as many axes of a as of b, not \(\[0, 1\], \[0\]\)",
        ),
        (lambda: anp.convolve(V[:0], V), r"convolve takes two vectors, neither of"),
        (lambda: anp.convolve(V, V[:0]), r"convolve takes two vectors, neither of"),
        (lambda: anp.correlate(M, V), r"correlate takes two vectors, neither of"),
    ],
)
def test_shapes_that_do_not_fit_are_shape_errors_at_the_users_line(function, message):
    with pytest.raises(ShapeError, match=message) as caught:
        function()
    assert str(caught.value).startswith(f"{__file__}:")


@pytest.mark.parametrize("function", [anp.exp, anp.sum, anp.ravel, anp.negative])
def test_what_is_no_array_is_refused_by_name(function):
    with pytest.raises(
        ArgumentError, match=f"{function.__name__}|reshape takes arrays"
    ):
        function([1.0, 2.0])


@pytest.mark.parametrize("order", ["A", "K", "f"])
def test_orders_other_than_c_and_f_are_refused(order: str) -> None:
    match = f"reshape: order must be 'C' or 'F', not '{order}'"
    with pytest.raises(ArgumentError, match=match):
        anp.reshape(X, (6, 4), order=order)
    with pytest.raises(ArgumentError, match=match):
        af.jit(lambda x: x.ravel(order))(X)
    with pytest.raises(ArgumentError, match="unravel_index: order must be"):
        anp.unravel_index(5, (2, 3), order=order)
    with pytest.raises(ArgumentError, match="ravel_multi_index: order must be"):
        anp.ravel_multi_index((1, 2), (2, 3), order=order)


def test_integers_to_a_negative_power_are_refused():
    with pytest.raises(ArgumentError, match="integers to negative integer powers"):
        anp.power(np.arange(3), -1)


@pytest.mark.parametrize(
    "name",
    [
        "argwhere",
        "flatnonzero",
        "nonzero",
        "unique_all",
        "unique_counts",
        "unique_inverse",
        "unique_values",
    ],
)
def test_functions_of_values(name):
    ours, theirs = getattr(anp, name)(N), getattr(np, name)(N)
    many = isinstance(theirs, tuple)
    theirs = np.sort(theirs) if name == "unique_values" else theirs  # NumPy hashes
    for result, expected in zip(
        ours if many else [ours], theirs if many else [theirs], strict=True
    ):
        np.testing.assert_array_equal(result, expected)
    with pytest.raises(AbstractValueError, match=rf"{name}\(\), whose result's shape"):
        trace_function(getattr(anp, name), (N,), {}, abstract=True)


def test_from_dlpack_copies():
    result = anp.from_dlpack(V)
    np.testing.assert_array_equal(result, V)
    assert not np.shares_memory(result, V)


@pytest.mark.parametrize("shift", [0, 1, -1, 5, -7])
def test_roll_by_a_traced_shift(shift):
    x = np.arange(12.0).reshape(3, 4)
    for axis in (0, 1, None):
        rolled = af.jit(lambda x, s, axis=axis: anp.roll(x, s, axis=axis))(x, shift)
        np.testing.assert_array_equal(rolled, np.roll(x, shift, axis=axis))
    both = af.jit(lambda x, s: anp.roll(x, (s, 1), (0, 1)))(x, shift)
    np.testing.assert_array_equal(both, np.roll(x, (shift, 1), (0, 1)))
    back = af.jit(af.grad(lambda x, s: (anp.roll(x, s) * np.arange(4.0)).sum()))
    np.testing.assert_array_equal(back(x[0], shift), np.roll(np.arange(4.0), -shift))


@pytest.mark.parametrize(
    "function",
    [
        anp.eye,
        anp.tri,
        lambda n: anp.linspace(0, 1, n),
        lambda n: anp.pad(np.ones(3), (0, n)),
        lambda n: anp.diag(np.ones(3), n),
        lambda n: anp.bincount(np.arange(3), length=n),
        lambda n: af.nn.one_hot(np.arange(3), n),
        lambda n: af.lax.iota(np.int32, n),
        lambda n: af.lax.top_k(np.ones(3), n),
        lambda n: af.lax.dynamic_slice(np.ones(3), (0,), (n,)),
    ],
)
def test_a_shape_of_a_traced_value_is_an_error_that_says_so(function):
    with pytest.raises(AbstractValueError, match=r"a shape needs.*static_argnums"):
        af.jit(function)(2)
