"""A Python number takes the dtype of the arrays beside it, compiled or not."""

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import nn
from arrayfn.scipy import linalg, special
from arrayfn.scipy.stats import cauchy, chi2

VECTOR = np.linspace(0.1, 0.9, 5, dtype=np.float32)
CALLS = {
    "clip": lambda x: anp.clip(0.5, x, 1.0),
    "interp": lambda x: anp.interp(0.5, x, x),
    "interp with a period": lambda x: anp.interp(x, x, x, period=0.59),
    "geomspace": lambda x: anp.geomspace(0.5, x, 3),
    "polyadd": lambda x: anp.polyadd(0.5, x),
    "polysub": lambda x: anp.polysub(0.5, x),
    "polymul": lambda x: anp.polymul(0.5, x),
    "polydiv": lambda x: anp.polydiv(x, 0.5)[0],
    "polyval": lambda x: anp.polyval(0.5, x),
    "elu": lambda x: nn.elu(-0.5, x),
    "celu": lambda x: nn.celu(-0.5, x),
    "squareplus": nn.squareplus,
    "boxcox": lambda x: special.boxcox(0.5, x),
    "block_diag": lambda x: linalg.block_diag(0.5, x),
    "hankel": lambda x: linalg.hankel(0.5, x),
    "cauchy.ppf": cauchy.ppf,
    "cauchy.isf": cauchy.isf,
    "chi2.pdf": lambda x: chi2.pdf(0.5, x),
    "chi2.cdf of a number of degrees": lambda x: chi2.cdf(x, 3.0),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_float32_stays_float32_beside_a_number(call):
    compiled = af.jit(call)(VECTOR)
    immediate = call(VECTOR)
    assert compiled.dtype == immediate.dtype == np.float32
    np.testing.assert_allclose(immediate, compiled, rtol=1e-5, atol=1e-6)


def test_polyval_broadcasts_coefficients_as_numpy_does():
    p, x = np.arange(24.0).reshape(2, 3, 4), np.array([2.0, 3.0, 5.0, 7.0])
    np.testing.assert_array_equal(anp.polyval(p, x), np.polyval(p, x))


@pytest.mark.parametrize("name", ["arctan2", "hypot", "copysign", "nextafter"])
def test_a_python_int_makes_bools_float64(name):
    bools = np.array([True, False])
    expected = getattr(np, name)(bools, 3)
    for function in (getattr(anp, name), af.jit(getattr(anp, name))):
        result = function(bools, 3)
        assert result.dtype == expected.dtype == np.float64
        np.testing.assert_allclose(result, expected, rtol=1e-15)
