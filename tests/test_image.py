"""Resized images: JAX's values, and derivatives."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn as af
from arrayfn.errors import ArgumentError, ShapeError
from arrayfn.image import ResizeMethod, resize, scale_and_translate
from arrayfn.test_util import check_grads

X = np.round(np.random.default_rng(0).normal(size=(5, 4)), 3)
SCALE, MOVED = np.array([1.3, 0.7]), np.array([0.4, -0.8])


@pytest.mark.parametrize(
    ("method", "shape", "antialias", "row"),
    [
        # The second rows of jax.image.resize 0.10.2 in float64.
        ("nearest", (7, 3), True, [-0.536, 1.304, 0.947]),
        ("linear", (2, 4), True, [-1.308591, -0.461182, -0.460955, 0.084773]),
        ("linear", (2, 4), False, [-1.87975, -0.24325, -0.8315, -0.28825]),
        ("cubic", (7, 3), True, [-0.163934, 0.73094, 0.811507]),
        ("lanczos3", (7, 3), False, [-0.214163, 0.919327, 0.725216]),
    ],
)
def test_images_are_resized_as_in_jax(method, shape, antialias, row):
    made = resize(X, shape, method, antialias)
    assert made.shape == shape
    np.testing.assert_allclose(made[1], row, atol=1e-6)
    compiled = af.jit(lambda x: resize(x, shape, method, antialias))(X)
    np.testing.assert_allclose(compiled, made, rtol=1e-12, atol=1e-14)


def test_images_are_scaled_and_moved():
    made = scale_and_translate(X, (6, 5), (0, 1), SCALE, MOVED, "bicubic")
    np.testing.assert_allclose(made[:2, :3].ravel(), EXPECTED, atol=1e-6)
    check_grads(
        lambda x, s, t: scale_and_translate(x, (6, 5), (0, 1), s, t, "lanczos3"),
        (X, SCALE, MOVED),
        order=1,
    )


EXPECTED = [0.132151, 0.215484, 0.0, 0.412576, 0.585883, 0.0]


def test_dtypes_and_axes_that_stay():
    images = np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3)
    assert resize(images, (1, 4, 4, 3), "nearest").dtype == np.uint8
    assert resize(images, (1, 4, 4, 3), "linear").dtype == np.float16
    half = resize(images.astype(np.float16), (1, 4, 2, 3), ResizeMethod.LINEAR)
    assert half.dtype == np.float16
    same = resize(images.astype(np.float32), images.shape, "cubic")
    np.testing.assert_array_equal(same, images)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: resize(X, (3,), "linear"), ShapeError, "the same number of axes"),
        (lambda: resize(X, (3, 3), "box"), ArgumentError, "no method 'box'"),
        (
            lambda: scale_and_translate(X, (3, 4), (0,), SCALE, MOVED, "nearest"),
            ArgumentError,
            "has no derivative",
        ),
    ],
)
def test_refusals(call, error, match):
    with pytest.raises(error, match=match):
        call()
