"""SciPy's softmax: over all axes by default, also of a number."""

from __future__ import annotations

import numpy as np
from scipy import special as reference

from arrayfn.scipy import special


def test_softmax_is_over_all_axes_by_default() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3))
    np.testing.assert_allclose(special.softmax(x), reference.softmax(x), rtol=1e-14)
    found = special.log_softmax(x)
    np.testing.assert_allclose(found, reference.log_softmax(x), rtol=1e-14)
    found = special.softmax(x, axis=1)
    np.testing.assert_allclose(found, reference.softmax(x, axis=1), rtol=1e-14)


def test_softmax_of_a_number_is_1() -> None:
    assert special.softmax(2.0) == 1.0
    assert special.log_softmax(3) == 0.0
    assert special.logsumexp(3) == 3.0
