"""Parameters of NumPy's functions and their names: NumPy's values, JAX's names too."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn import jit, lax, linalg, random
from arrayfn.errors import ArgumentError, DTypeError, ShapeError
from arrayfn.numpy._parameters import also_takes

R = np.random.default_rng(0)
X = R.normal(size=(4, 3))
W = R.integers(1, 4, size=(4, 3)).astype(float)
W[0, 0] = W[2, 1] = 0.0
V = R.normal(size=(2, 4, 3))


@pytest.mark.parametrize(
    "call",
    [
        lambda np: np.sum(a=X, axis=0, out=None, keepdims=True),
        lambda np: np.sum(X, 0, None, None, True),
        lambda np: np.max(X, 1, None, True, 0.5),
        lambda np: np.concatenate((X, X), axis=1, out=None),
        lambda np: np.concatenate((X, X), dtype="f4", casting="same_kind"),
        lambda np: np.stack([X, X], 1, None, dtype="c16"),
        lambda np: np.hstack([X, X], dtype="f4"),
        lambda np: np.eye(N=3, M=2, order="C"),
        lambda np: np.array(2.0, ndmin=3),
        lambda np: np.cross(V[0].T, V[1], axisa=0, axisc=0),
        lambda np: np.std(X, 0, mean=np.mean(X, 0, keepdims=True) + 1),
        lambda np: np.nanvar(X, 1, mean=np.mean(X, 1, keepdims=True)),
        lambda np: np.trim_zeros(np.pad(X, 2)),
        lambda np: np.trim_zeros(np.pad(X, 2), "f", axis=1),
        lambda np: np.trim_zeros(0 * X),
        lambda np: np.vectorize(lambda x: x + 1, "f")(X),
        lambda np: np.take(X, [1, 2], 0, None, "clip"),
        lambda np: np.clip(X, 0.0, a_max=0.5),
        lambda np: np.zeros_like(X, None, "K", True, (2, 2)),
        lambda np: np.can_cast("f8", "f4", casting="same_kind"),
        lambda np: np.linalg.inv(a=X[:3]),
        lambda np: np.fft.fft(a=X, n=4, axis=0, norm=None, out=None),
        lambda np: np.unravel_index(indices=5, shape=(2, 3)),
    ],
)
def test_parameters_are_numpys(call):
    expected, result = call(np), call(anp)
    if np.any(expected):
        np.testing.assert_allclose(result, expected, rtol=1e-6)
    assert np.asarray(result).dtype == np.asarray(expected).dtype


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("q", [0.0, 0.3, [0.1, 0.5, 1.0]])
def test_quantiles_count_weights(q, axis):
    options = {"axis": axis, "method": "inverted_cdf", "weights": W, "keepdims": True}
    expected = np.quantile(X, q, **options)
    np.testing.assert_array_equal(anp.quantile(X, np.array(q), **options), expected)
    with_nan = np.where(X > 1, np.nan, X)
    for name in ("quantile", "nanquantile"):
        expected = getattr(np, name)(with_nan, q, **options)
        result = jit(lambda x, n=name: getattr(anp, n)(x, np.array(q), **options))
        np.testing.assert_array_equal(result(with_nan), expected)


def test_weights_of_quantiles_fit_the_method_and_the_axes():
    row = np.percentile(X, 40, 1, method="inverted_cdf", weights=W[0])
    result = anp.percentile(X, 40, 1, method="inverted_cdf", weights=W[0])
    np.testing.assert_array_equal(result, row)
    with pytest.raises(ArgumentError, match="weights are for method='inverted_cdf'"):
        anp.quantile(X, 0.5, weights=W)
    with pytest.raises(ShapeError, match=r"weights f64.3. have neither the shape"):
        anp.quantile(X, 0.5, weights=W[0], method="inverted_cdf")


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: anp.sum(X, out=X), ArgumentError, "sum returns a new array"),
        (lambda: anp.zeros(3, order="F"), ArgumentError, "order is 'C', 'K' or 'A'"),
        (
            lambda: anp.concatenate([X], dtype="i4"),
            DTypeError,
            "does not convert to int32 under casting='same_kind'",
        ),
        (
            lambda: anp.vectorize(lambda x: (x, x), "f")(X),
            ArgumentError,
            "otypes has 1 dtypes, but the function returned a tuple of 2",
        ),
        (lambda: random.key(0, impl="rbg"), ArgumentError, "'threefry2x32', not 'rbg'"),
        (
            lambda: lax.cond(True, abs, abs, 1.0, operand=2.0),
            ArgumentError,
            "operands by position, or one as operand=",
        ),
    ],
)
def test_refusals_name_the_remedy(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_names_of_jax_are_taken():
    x = np.arange(6.0).reshape(2, 3)
    start = lax.dynamic_slice(operand=x, start_indices=(0, 1), slice_sizes=(1, 2))
    assert start.tolist() == [[1.0, 2.0]]
    clamped = lax.dynamic_slice(x, (0, -1), (1, 2), allow_negative_indices=False)
    assert clamped.tolist() == [[0.0, 1.0]]
    values, places = lax.top_k(x, 1, axis=0)
    assert (values.tolist(), places.tolist()) == ([[3.0, 4.0, 5.0]], [[1, 1, 1]])
    assert lax.cond(False, abs, lambda y: y - 1, operand=-2.0) == -3.0
    assert lax.reshape(x, (6,), dimensions=(1, 0)).tolist() == [0, 3, 1, 4, 2, 5]
    assert lax.stack(operands=[x, x]).shape == (2, 2, 3)
    assert lax.add(x=x[:, :1], y=x[:1]).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert linalg.matrix_rank(M=x) == 2
    assert anp.concatenate(axis=1, arrays=(x, x)).shape == (2, 6)
    assert anp.sum(np.ones(3, np.int8), promote_integers=False).dtype == np.int8
    wide = anp.dot(x, x.T, preferred_element_type=np.complex128)
    assert wide.dtype == np.complex128
    assert anp.polymul([0.0, 1.0], [0.0, 2.0], trim_leading_zeros=True).tolist() == [
        2.0
    ]


def test_two_names_of_one_argument_are_refused():
    @also_takes("hint", M="A")
    def rank(A, tol=0.0):
        return A, tol

    assert rank(1.0, hint=3) == (1.0, 0.0)
    assert rank(M=2.0) == (2.0, 0.0)
    with pytest.raises(ArgumentError, match="rank was given M and A"):
        rank(A=1.0, M=2.0)
    with pytest.raises(TypeError, match="unexpected keyword"):
        rank(1.0, other=2)
