"""Interpolation beside SciPy's, with its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.ndimage

import arrayfn as af
from arrayfn.errors import ArgumentError
from arrayfn.scipy.ndimage import MODES, map_coordinates

RNG = np.random.default_rng(41)
X = RNG.standard_normal((5, 7))
PLACES = [RNG.uniform(-3, 8, (4, 6)), RNG.uniform(-3, 10, (4, 6))]


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_interpolation_is_that_of_scipy(mode: str, order: int) -> None:
    options = {"order": order, "mode": mode, "cval": 2.5}
    for x, places in (
        (X, PLACES),
        (X, [RNG.uniform(-30, 30, 200), RNG.uniform(-30, 30, 200)]),
        (X, [np.array([-5.0, 0.0, 4.0, 8.0]), np.array([0.0, 6.0, -6.0, 12.0])]),
        (X[:1], PLACES),
    ):
        want = scipy.ndimage.map_coordinates(x, places, **options)
        have = af.jit(lambda x, *p: map_coordinates(x, p, order, mode, 2.5))(x, *places)
        np.testing.assert_allclose(have, want, 1e-11, 1e-11)


def test_infinitely_far_is_the_constant() -> None:
    far = [np.array([np.inf, -np.inf, 1.0]), np.array([1.0, 1.0, np.inf])]
    np.testing.assert_array_equal(map_coordinates(X, far, 1, "constant", 2.5), 2.5)


@pytest.mark.parametrize("order", [0, 1])
def test_inside_it_is_that_of_scipy(order: int) -> None:
    places = [RNG.uniform(0, 4, 50), RNG.uniform(0, 6, 50)]
    want = scipy.ndimage.map_coordinates(X, places, order=order)
    np.testing.assert_allclose(map_coordinates(X, places, order), want, 1e-12, 1e-12)
    whole = (X * 10).astype(np.int32)
    have = map_coordinates(whole, places, order)
    assert have.dtype == np.int32


def test_gradients_by_values_and_places() -> None:
    x = np.array([1.0, 4.0, 9.0])

    def value(x: Any, place: Any) -> Any:
        return map_coordinates(x, [place], 1)

    by_x, by_place = af.grad(value, (0, 1))(x, np.array(1.25))
    np.testing.assert_allclose(by_x, [0.0, 0.75, 0.25])
    np.testing.assert_allclose(by_place, 5.0)


def test_what_is_not_supported_is_refused() -> None:
    with pytest.raises(ArgumentError, match="order 0 or 1"):
        map_coordinates(X, PLACES, 3)
    with pytest.raises(ArgumentError, match="coordinates for each of 2 axes"):
        map_coordinates(X, PLACES[:1], 1)
    with pytest.raises(ArgumentError, match="modes constant"):
        map_coordinates(X, PLACES, 1, "edge")
