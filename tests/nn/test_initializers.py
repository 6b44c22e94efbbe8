"""Initializers: variances, bounds, and fans of any axes."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn as af
from arrayfn import random
from arrayfn.errors import ArgumentError, ShapeError
from arrayfn.nn import initializers as init

KEY = random.key(2)
SHAPE = (60, 90)
VARIANCES = {
    "glorot_uniform": 2 / 150,
    "glorot_normal": 2 / 150,
    "lecun_uniform": 1 / 60,
    "lecun_normal": 1 / 60,
    "he_uniform": 2 / 60,
    "he_normal": 2 / 60,
}


@pytest.mark.parametrize("name", VARIANCES)
def test_variances(name):
    drawn = getattr(init, name)()(KEY, SHAPE, np.float32)
    assert drawn.dtype == np.float32
    np.testing.assert_allclose(drawn.var(), VARIANCES[name], rtol=0.06)
    assert abs(drawn.mean()) < 4 * np.sqrt(VARIANCES[name] / drawn.size)
    limit = 2.0 / 0.8796 if name.endswith("normal") else np.sqrt(3.0)
    assert np.abs(drawn).max() <= limit * np.sqrt(VARIANCES[name]) * 1.0001


@pytest.mark.parametrize("mode", ["fan_in", "fan_out", "fan_avg", "fan_geo_avg"])
def test_modes(mode):
    fan = {
        "fan_in": 60,
        "fan_out": 90,
        "fan_avg": 75,
        "fan_geo_avg": np.sqrt(60 * 90),
    }[mode]
    drawn = init.variance_scaling(3.0, mode, "normal")(KEY, SHAPE)
    np.testing.assert_allclose(drawn.var(), 3.0 / fan, rtol=0.06)


def test_a_kernel_of_a_convolution_has_its_window_in_the_fans():
    drawn = init.he_normal()(KEY, (3, 3, 20, 30))
    np.testing.assert_allclose(drawn.var(), 2 / (9 * 20), rtol=0.06)
    batched = init.lecun_normal(batch_axis=0)(KEY, (8, 20, 30))
    np.testing.assert_allclose(batched.var(), 1 / 20, rtol=0.08)


def test_plain_ones():
    assert init.zeros(KEY, (2,)).tolist() == [0.0, 0.0]
    assert init.ones(KEY, (2,), np.float32).dtype == np.float32
    assert init.constant(3.0, np.float32)(KEY, (2,)).tolist() == [3.0, 3.0]
    np.testing.assert_allclose(init.normal(0.5)(KEY, SHAPE).std(), 0.5, rtol=0.05)
    assert 0.0 <= init.uniform(0.5)(KEY, SHAPE).min() < 0.01
    assert np.abs(init.truncated_normal(0.5)(KEY, SHAPE)).max() <= 1.0


def test_orthogonal_matrices_and_convolutions_with_one_in_the_middle():
    w = init.orthogonal(2.0)(KEY, (3, 4, 5))
    rows = w.reshape(12, 5)
    np.testing.assert_allclose(rows.T @ rows, 4 * np.eye(5), atol=1e-13)
    columns_first = init.orthogonal(column_axis=0)(KEY, (5, 3, 4))
    flat = columns_first.reshape(5, 12)
    np.testing.assert_allclose(flat @ flat.T, np.eye(5), atol=1e-13)
    kernel = init.delta_orthogonal()(KEY, (3, 2, 4, 6), np.float32)
    middle = kernel[1, 0]
    np.testing.assert_allclose(middle @ middle.T, np.eye(4), atol=1e-5)
    assert kernel.dtype == np.float32
    assert np.count_nonzero(kernel) == np.count_nonzero(middle)
    for make, shape in ((init.orthogonal, (3,)), (init.delta_orthogonal, (3, 6, 4))):
        with pytest.raises(ShapeError):
            make()(KEY, shape)


def test_under_jit_they_give_the_same():
    make = init.glorot_normal()
    compiled = af.jit(lambda key: make(key, SHAPE))(KEY)
    np.testing.assert_allclose(compiled, make(KEY, SHAPE), rtol=1e-12)


def test_refusals():
    with pytest.raises(ShapeError, match="axes"):
        init.he_normal()(KEY, (4,))
    with pytest.raises(ArgumentError, match="fan_in"):
        init.variance_scaling(1.0, "fan", "normal")
    with pytest.raises(ArgumentError, match="uniform"):
        init.variance_scaling(1.0, "fan_in", "cauchy")
