"""Sets of traced arrays whose values are known: results are traced, and vary."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.tracing import Tracer

X = np.array([3.0, 1.0, 2.0, 1.0])


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (anp.unique, [3.0, 1.0, 2.0, 0.0]),
        (anp.unique_values, [3.0, 1.0, 2.0, 0.0]),
        (lambda x: anp.unique(x, return_counts=True)[0], [3.0, 1.0, 2.0, 0.0]),
        (lambda x: anp.union1d(x, np.array([0.0, 5.0])), [4.0, 2.0, 3.0, 0.0]),
        (lambda x: anp.setdiff1d(x, np.array([2.0])), [2.0, 1.0, 0.0, 0.0]),
        (lambda x: anp.setdiff1d(x[:3], X[2:3], True), [1.0, 2.0, 0.0, 0.0]),
        (lambda x: anp.intersect1d(x, np.array([1.0, 3.0])), [2.0, 1.0, 0.0, 0.0]),
        (lambda x: anp.setxor1d(x, np.array([1.0])), [2.0, 0.0, 1.0, 0.0]),
    ],
)
def test_derivatives_go_to_the_first_element_of_a_value(function, expected):
    def weighted(x):
        values = function(x)
        return (values * np.arange(1.0, len(values) + 1)).sum()

    assert af.grad(weighted)(X).tolist() == expected


def test_derivatives_of_distinct_rows_go_to_the_first_of_them():
    rows = np.array([[1.0, 3.0], [1.0, 2.0], [1.0, 3.0]])

    def weighted(x):
        values, counts = anp.unique(x, axis=0, return_counts=True)
        assert counts.tolist() == [1, 2]
        return (values * np.array([[1.0, 2.0], [3.0, 4.0]])).sum()

    assert af.grad(weighted)(rows).tolist() == [[3.0, 4.0], [1.0, 2.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    "function",
    [
        anp.nonzero,
        anp.flatnonzero,
        anp.argwhere,
        anp.unique_inverse,
        lambda x: anp.tril_indices(2),
        lambda x: anp.triu_indices_from(anp.outer(x, x)),
        lambda x: anp.mask_indices(2, anp.triu),
        lambda x: anp.searchsorted(anp.asarray(np.zeros(0)), x),
    ],
)
def test_indices_are_traced_beside_traced_arrays(function):
    def f(x):
        assert all(isinstance(leaf, Tracer) for leaf in af.tree.leaves(function(x)))
        return x.sum()

    assert af.grad(f)(X).tolist() == [1.0] * 4
