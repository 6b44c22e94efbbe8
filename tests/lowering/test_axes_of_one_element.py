"""Axes of one element, which reductions drop, between axes that are reduced."""

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp

X = np.ones((33, 4), np.uint64)
X[5, 0] = 0
CASES = {
    "a reduction that kept its axis, reduced again": (
        lambda x: anp.any(anp.all(x, axis=0, keepdims=True)),
        (X,),
    ),
    "one element each, and the sum of all": (
        lambda x: (y := anp.any(x, axis=1, keepdims=True), anp.sum(y)),
        (X.reshape(33, 1, 4),),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_reductions_beside_axes_of_one_element(case):
    function, arguments = CASES[case]
    results = af.tree.leaves(af.jit(function)(*arguments))
    expected = af.tree.leaves(function(*arguments))
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, wanted)
