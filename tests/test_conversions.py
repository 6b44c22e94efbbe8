"""Traced values as Python numbers: where that is meant, and where it is refused."""

from __future__ import annotations

import math
from math import exp

import numpy as np
import pytest

import arrayfn as af
from arrayfn.errors import InPlaceError, TracedConversionError

X = np.array([1.0, 2.0, 3.0])


def test_numbers_that_are_asked_for_are_given():
    def loss(x):
        factor = float(x[1]) + math.sqrt(float(x[2] + 6)) + complex(x[0]).real
        return x.sum() * factor if x[0] > 0 and f"{x[1]:.1f}" == "2.0" else x[0]

    np.testing.assert_array_equal(af.grad(loss)(X), [6.0, 6.0, 6.0])


def assigned(x):
    a = np.zeros(3)
    a[0] = x[0] * 2
    return (x * a).sum()


def added(x):
    a = np.zeros(3)
    a[1] += x[0] * 2
    return (x * a).sum()


@pytest.mark.parametrize("function", [assigned, added])
def test_elements_of_numpy_arrays_are_not_assigned(function):
    with pytest.raises((ValueError, InPlaceError)) as caught:
        af.grad(function)(X)
    error = caught.value
    # NumPy says that the element is a sequence, and why it thinks so.
    cause = error if isinstance(error, InPlaceError) else error.__cause__
    assert isinstance(cause, InPlaceError)
    assert "test_conversions.py" in str(cause)
    assert "arrayfn.numpy.asarray(a).at[index].set(x)" in str(cause)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: math.sin(x[0]) * x.sum(), "math.sin"),
        (
            lambda x: (
                exp(
                    x[0],
                )
                * x.sum()
            ),
            "math.exp",
        ),
    ],
)
def test_functions_of_math_are_refused(function, name):
    with pytest.raises(TracedConversionError, match=f"Use arrayfn.numpy.{name[5:]}"):
        af.grad(function)(X)


def test_source_that_is_not_there_is_no_hindrance():
    scope = {"math": math}
    exec("def f(x):\n    return math.exp(x[0]) * x.sum()\n", scope)
    np.testing.assert_allclose(af.grad(scope["f"])(X), np.full(3, math.e))
