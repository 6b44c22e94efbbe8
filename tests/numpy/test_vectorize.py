"""``vectorize``: results are what the signature says of them."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn.errors import ArgumentError, ShapeError

X = np.arange(6.0).reshape(2, 3)

WRONG = {
    "too many": ("(n)->(n)", lambda x: (x, x), "1 result, but .* a tuple of 2"),
    "a tuple of one": ("(n)->(n)", lambda x: (x,), "1 result, but .* a tuple of 1"),
    "too few": ("(n)->(n),(n)", lambda x: x, "2 results, but .* returned one"),
    "rank": ("(n)->()", lambda x: x, r"shape \(3,\) does not have the axes \(\)"),
    "extent": ("(n)->(n)", lambda x: x[:2], "axis 'n' .* extents 3 and 2"),
    "results": ("(n)->(k),(k)", lambda x: (x, x[:2]), "axis 'k' .* extents 3 and 2"),
    "number": ("(n)->(4)", lambda x: x, "axis '4' .* extents 4 and 3"),
    "number of operand": ("(4)->()", lambda x: x[0], "axis '4' .* extents 4 and 3"),
}


@pytest.mark.parametrize("name", WRONG)
def test_results_that_are_not_what_the_signature_says(name):
    signature, function, message = WRONG[name]
    with pytest.raises((ArgumentError, ShapeError), match=message):
        anp.vectorize(function, signature=signature)(X)


def test_results_that_are():
    outer = anp.vectorize(lambda x: (x[:2], x.sum()), signature="(n)->(k),()")
    parts, sums = outer(X)
    np.testing.assert_array_equal(parts, X[:, :2])
    np.testing.assert_array_equal(sums, X.sum(1))
    np.testing.assert_array_equal(
        anp.vectorize(lambda x: x[:2], signature="(n)->(2)")(X), X[:, :2]
    )
