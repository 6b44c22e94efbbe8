"""Special matrices: SciPy's, and traced where they are functions of arrays."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg

import arrayfn as af
from arrayfn.errors import ArgumentError, ShapeError
from arrayfn.scipy import linalg

V = np.array([2.0, -1.0, 3.0, 0.5, 4.0])

OF_ARRAYS = [
    ("fiedler", (V,)),
    ("fiedler_companion", (V,)),
    ("fiedler_companion", (V[:2],)),
    ("fiedler_companion", (V[:3],)),
    ("fiedler_companion", (V[:4],)),
]


@pytest.mark.parametrize(("name", "arrays"), OF_ARRAYS)
def test_matrices_of_arrays(name, arrays):
    expected = getattr(scipy.linalg, name)(*arrays)
    ours = getattr(linalg, name)
    np.testing.assert_allclose(ours(*arrays), expected, rtol=1e-15)
    np.testing.assert_allclose(af.jit(ours)(*arrays), expected, rtol=1e-15)


OF_NUMBERS = [
    ("invhilbert", (6,)),
    ("invhilbert", (4, True)),
    ("invpascal", (5,)),
    ("invpascal", (5, "lower")),
    ("invpascal", (5, "upper", False)),
]


@pytest.mark.parametrize(("name", "numbers"), OF_NUMBERS)
def test_matrices_of_numbers(name, numbers):
    expected = getattr(scipy.linalg, name)(*numbers)
    result = getattr(linalg, name)(*numbers)
    assert result.dtype.kind == expected.dtype.kind or expected.dtype.kind == "u"
    np.testing.assert_allclose(result, expected.astype(result.dtype), atol=1e-15)


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("n", [2, 3, 8])
def test_a_convolution_is_a_product(mode, n):
    v = np.arange(1.0, n + 1)
    matrix = linalg.convolution_matrix(V[:4], n, mode)
    np.testing.assert_allclose(matrix @ v, np.convolve(V[:4], v, mode))
    expected = scipy.linalg.convolution_matrix(V[:4], n, mode)
    np.testing.assert_array_equal(matrix, expected)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: linalg.invpascal(3, "x"), ArgumentError, "kind must be 'symmetric'"),
        (lambda: linalg.fiedler_companion(V[:0]), ShapeError, "at least 1 element"),
        (lambda: linalg.invhilbert(20, True), ArgumentError, "beyond int64"),
    ],
)
def test_bad_arguments_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def _batched(name, c, module):
    of_two = {"toeplitz": (c, c[..., ::-1]), "leslie": (c, c[..., 1:])}
    more = {"convolution_matrix": (c, 4, "same")}
    return getattr(module, name)(*(of_two | more).get(name, (c,)))


@pytest.mark.parametrize("shape", [(2, 3), (2, 2, 4)])
@pytest.mark.parametrize(
    "name",
    [
        "circulant",
        "companion",
        "convolution_matrix",
        "fiedler",
        "fiedler_companion",
        "leslie",
        "toeplitz",
    ],
)
def test_leading_axes_are_those_of_a_batch(name, shape):
    c = np.random.default_rng(0).normal(size=shape)
    expected = _batched(name, c, scipy.linalg)
    found = _batched(name, c, linalg)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-15)


def test_hankel_has_a_batch_and_broadcasts_it():
    c, r = np.arange(6.0).reshape(2, 3), np.arange(4.0)
    expected = [scipy.linalg.hankel(row, r) for row in c]
    np.testing.assert_array_equal(linalg.hankel(c, r), expected)
    expected = [scipy.linalg.hankel(row) for row in c]
    np.testing.assert_array_equal(linalg.hankel(c), expected)
