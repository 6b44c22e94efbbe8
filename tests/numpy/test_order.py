"""Sorting, quantiles and sets: NumPy's results, at once and traced."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.errors import AbstractValueError, ArgumentError, ShapeError
from arrayfn.transforms import trace_function

M = np.random.default_rng(1).standard_normal((3, 4))
V = np.random.default_rng(2).standard_normal(7)
HOLES = np.where(np.arange(12).reshape(3, 4) % 5 == 1, np.nan, M)
P = np.array([3, 0, 2, 2, 5, 3, -1, 0], np.int32)
Q = np.array([2, 7, 3, 3, 9], np.int32)
NANS = np.array([np.nan, 1.0, -0.0, np.nan, 0.0, 1.0])
METHODS = [
    "linear",
    "lower",
    "higher",
    "nearest",
    "midpoint",
    "hazen",
    "weibull",
    "median_unbiased",
    "normal_unbiased",
    "interpolated_inverted_cdf",
    "inverted_cdf",
    "averaged_inverted_cdf",
    "closest_observation",
]

FORMULAS = [
    ("xp.sort(x)", M),
    ("xp.sort(x, axis=0)", M.astype(np.float32)),
    ("xp.sort(x, axis=None)", M),
    ("xp.sort(x, kind='stable')", P),
    ("xp.sort(x)", NANS),
    ("xp.argsort(x, axis=0)", M),
    ("xp.argsort(x, kind='stable')", P),
    ("xp.argsort(x, axis=None)", M),
    ("xp.sort(x + 1j * x[::-1])", V),
    ("xp.sort_complex(x)", P),
    ("xp.lexsort((x, x % 3))", P),
    ("xp.lexsort(x, axis=0)", M),
    ("xp.sort(xp.partition(x, 3)[:3])", V),
    ("xp.sort(xp.partition(x, 1, axis=0)[:2], axis=0)", M),
    ("x[xp.argpartition(x, 3)[3]]", V),
    ("xp.median(x)", V),
    ("xp.median(x, axis=0)", M),
    ("xp.median(x, axis=(0, 1), keepdims=True)", M),
    ("xp.median(x)", P),
    ("xp.median(x, axis=1)", HOLES),
    ("xp.median(x)", M.astype(np.float32)),
    ("xp.nanmedian(x, axis=0)", HOLES),
    ("xp.percentile(x, 30)", V),
    ("xp.percentile(x, [10, 50.0, 100], axis=1)", M),
    ("xp.nanpercentile(x, [10, 50.0, 100], axis=1)", HOLES),
    ("xp.nanquantile(x, 0.4, axis=(0, 1), keepdims=True)", HOLES),
    ("xp.quantile(x, np.array([[0.0, 0.25], [0.5, 1.0]]), axis=0)", M),
    *((f"xp.quantile(x, [0, .2, .5, .51, 1], method='{m}')", V) for m in METHODS),
    *((f"xp.quantile(x, [0.25, 0.5], axis=1, method='{m}')", M) for m in METHODS),
    ("xp.isin(x, [2, 5, 3])", P),
    ("xp.isin(x, x[:2], invert=True)", M),
    ("xp.isin(x, np.array([np.nan, 1.0]))", NANS),
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
    (result,) = traced(function, x)
    np.testing.assert_allclose(result, function(x), rtol=1e-5)


@pytest.mark.parametrize("x", [P, NANS, V])
def test_descending_order_is_stable(x, traced):
    order = anp.argsort(x, descending=True)
    (again,) = traced(lambda x: anp.argsort(x, descending=True), x)
    np.testing.assert_array_equal(order, again)
    key = np.where(np.isnan(x), np.inf, x)
    np.testing.assert_array_equal(order, np.argsort(-key, kind="stable"))
    np.testing.assert_array_equal(anp.sort(x, descending=True), x[order])


# Sets, whose sizes are given where they are not known.


@pytest.mark.parametrize("x", [P, V, NANS, P.reshape(2, 4)])
def test_unique_with_its_own_size_is_numpys(x, traced):
    expected = np.unique(x, True, True, True)
    size = len(expected[0])
    results = [
        anp.unique(x, True, True, True, size=size),
        traced(lambda x: anp.unique(x, True, True, True, size=size), x),
        anp.unique(x, True, True, True),
    ]
    for result in results:
        for have, want in zip(result, expected, strict=True):
            np.testing.assert_array_equal(have, want)


def test_unique_fills_and_cuts():
    values, counts = anp.unique(P, return_counts=True, size=7, fill_value=99)
    np.testing.assert_array_equal(values, [-1, 0, 2, 3, 5, 99, 99])
    np.testing.assert_array_equal(counts, [1, 2, 2, 2, 1, 0, 0])
    np.testing.assert_array_equal(anp.unique(P, size=2), [-1, 0])
    np.testing.assert_array_equal(anp.unique(P, size=6), [-1, 0, 2, 3, 5, -1])


def test_unique_rows(traced):
    x = np.array([[1, 2], [0, 5], [1, 2], [0, 4]])
    expected = np.unique(x, True, True, True, axis=0)
    ours = traced(lambda x: anp.unique(x, True, True, True, axis=0, size=3), x)
    for have, want in zip(ours, expected, strict=True):
        np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize(
    "name", ["unique_all", "unique_counts", "unique_inverse", "unique_values"]
)
@pytest.mark.parametrize("x", [P, NANS])
def test_unique_of_the_array_api(name, x, traced):
    expected = getattr(np, name)(x)
    expected = expected if isinstance(expected, tuple) else (np.sort(expected),)
    size = len(expected[0])
    ours = traced(lambda x: getattr(anp, name)(x, size=size), x)
    at_once = getattr(anp, name)(x)
    at_once = at_once if isinstance(at_once, tuple) else (at_once,)
    for have, also, want in zip(ours, at_once, expected, strict=True):
        np.testing.assert_array_equal(also, want)
        np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize("name", ["union1d", "intersect1d", "setdiff1d", "setxor1d"])
def test_sets(name, traced):
    ours, expected = getattr(anp, name), getattr(np, name)(P, Q)
    np.testing.assert_array_equal(ours(P, Q), expected)
    (result,) = traced(lambda x, y: ours(x, y, size=expected.size), P, Q)
    np.testing.assert_array_equal(result, expected)
    (result,) = traced(lambda x, y: ours(x, y, size=9, fill_value=77), P, Q)
    np.testing.assert_array_equal(result[: expected.size], expected)
    assert (result[expected.size :] == 77).all()


def test_intersect1d_says_where(traced):
    expected = np.intersect1d(P, Q, return_indices=True)
    results = traced(lambda x, y: anp.intersect1d(x, y, False, True, size=2), P, Q)
    for have, want in zip(results, expected, strict=True):
        np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda x: anp.nonzero(x, size=4, fill_value=-1), [[0, 2, 3, -1]]),
        (lambda x: anp.flatnonzero(x, size=2), [[0, 2]]),
        (lambda x: anp.argwhere(x, size=4), [[[0], [2], [3], [0]]]),
        (lambda x: anp.compress(x, x, size=4, fill_value=9), [[1, 2, 3, 9]]),
        (lambda x: anp.extract(x > 1, x, size=3), [[2, 3, 0]]),
        (lambda x: anp.repeat(x, x, total_repeat_length=7), [[1, 2, 2, 3, 3, 3, 3]]),
        (lambda x: anp.repeat(x, x, total_repeat_length=4), [[1, 2, 2, 3]]),
        (lambda x: anp.bincount(x, length=3), [[1, 1, 1]]),
        (lambda x: anp.where(x > 1, size=3, fill_value=8), [[2, 3, 8]]),
    ],
)
def test_sizes_given_for_what_values_decide(function, wanted, traced):
    x = np.array([1, 0, 2, 3])
    for have, want in zip(traced(function, x), wanted, strict=True):
        np.testing.assert_array_equal(have, want)
    result = function(x)
    result = result if isinstance(result, tuple) else (result,)
    for have, want in zip(result, wanted, strict=True):
        np.testing.assert_array_equal(have, want)


def test_nonzero_with_size_of_a_matrix(traced):
    x = np.array([[0, 3, 0], [4, 0, 5]])
    for have, want in zip(
        traced(lambda x: anp.nonzero(x, size=4, fill_value=(7, 9)), x),
        ([0, 1, 1, 7], [1, 0, 2, 9]),
        strict=True,
    ):
        np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (anp.unique, r"unique\(\), whose result.*size=n"),
        (lambda x: anp.union1d(x, x), r"union1d\(\).*size=n"),
        (anp.nonzero, r"nonzero\(\).*size=n.*where\(condition, x, y\)"),
        (lambda x: anp.compress(x, x), r"compress\(\).*size=n"),
        (lambda x: anp.repeat(x, x), r"repeat\(\).*total_repeat_length=n"),
        (anp.bincount, r"bincount\(\).*length=n"),
        (anp.where, r"where\(\).*size=n"),
        (lambda x: x[x > 0], r"mask.*where\(mask, x, y\)"),
        (anp.trim_zeros, r"trim_zeros\(\).*where or a slice"),
        (lambda x: anp.delete(x, x), r"delete\(\).*make it static"),
    ],
)
def test_shapes_that_values_decide_are_errors_that_say_what_to_write(function, message):
    with pytest.raises(AbstractValueError, match=message) as caught:
        trace_function(function, (P,), {}, abstract=True)
    assert str(caught.value).startswith(f"{__file__}:")


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda: anp.quantile(V, 1.5), ArgumentError, "quantile takes fractions"),
        (lambda: anp.quantile(V, 0.5, method="no"), ArgumentError, "no method 'no'"),
        (lambda: anp.quantile(V[:0], 0.5), ArgumentError, "quantile of no elements"),
        (lambda: anp.partition(V, 7), ShapeError, "kth=7 is out of bounds"),
        (lambda: anp.lexsort(()), ArgumentError, "at least one key"),
    ],
)
def test_arguments_out_of_range(function, error, message):
    with pytest.raises(error, match=message):
        function()


def test_missing_elements_of_sets_are_the_first_found_or_zero():
    x, y = np.array([1.5, 2, 0.75]), np.array([1.0, 2])
    jitted = af.jit(lambda f, *xs: f(*xs, size=4), static_argnums=0)
    for f, want in [
        (anp.intersect1d, [2, 2, 2, 2]),
        (anp.setdiff1d, [0.75, 1.5, 0, 0]),
        (anp.setxor1d, [0.75, 1, 1.5, 0.75]),
    ]:
        np.testing.assert_array_equal(jitted(f, x, y), want)
    np.testing.assert_array_equal(jitted(anp.intersect1d, x, y + 6), [0, 0, 0, 0])
