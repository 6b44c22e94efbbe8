"""scipy.fft's cosines, interpolation on grids, nearest codes: SciPy's values."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.cluster.vq
import scipy.fft
import scipy.interpolate

import arrayfn as af
from arrayfn.errors import ArgumentError, ShapeError
from arrayfn.scipy import fft
from arrayfn.scipy.cluster.vq import vq
from arrayfn.scipy.fft import dct, dctn, idctn
from arrayfn.scipy.interpolate import RegularGridInterpolator

X = np.random.default_rng(0).standard_normal((4, 7))


@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
@pytest.mark.parametrize("type", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["dct", "idct", "dst", "idst"])
def test_cosine_and_sine_transforms_are_scipys(name, type, norm):
    ours, theirs = getattr(fft, name), getattr(scipy.fft, name)
    for options in (
        {},
        {"n": 6, "axis": 0},
        {"orthogonalize": True},
        {"orthogonalize": False},
    ):
        expected = theirs(X, type, norm=norm, **options)
        result = ours(X, type, norm=norm, **options)
        np.testing.assert_allclose(result, expected, atol=1e-13)


def test_cosine_transforms_of_several_axes():
    expected = scipy.fft.dctn(X, s=(5, 3), axes=(1, 0))
    result = af.jit(lambda x: dctn(x, s=(5, 3), axes=(1, 0)))(X)
    np.testing.assert_allclose(result, expected, atol=1e-13)
    np.testing.assert_allclose(
        idctn(dctn(X, norm="ortho"), norm="ortho"), X, atol=1e-13
    )
    expected = scipy.fft.dstn(X, s=5, axes=1, type=3)
    np.testing.assert_allclose(fft.dstn(X, 3, 5, np.int64(1)), expected, atol=1e-13)
    np.testing.assert_allclose(fft.idstn(fft.dstn(X)), X, atol=1e-13)


def test_the_cosine_transform_is_its_own_derivative():
    slope = af.grad(lambda x: dct(x)[3])(X[0])
    np.testing.assert_allclose(slope, scipy.fft.dct(np.eye(7))[:, 3], atol=1e-13)


def test_cosine_transforms_refuse():
    with pytest.raises(ArgumentError, match="types 1 to 4, not 5"):
        dct(X, 5)
    with pytest.raises(ShapeError, match="takes more than 1"):
        dct(X[:, :1], 1)


GRID = (np.array([0.0, 1.0, 2.5]), np.array([-1.0, 0.5, 0.75, 2.0]))
VALUES = np.random.default_rng(1).standard_normal((3, 4, 2))
POINTS = np.random.default_rng(2).uniform(-1.5, 3.0, (6, 5, 2))


@pytest.mark.parametrize("fill_value", [np.nan, 7.0, None])
@pytest.mark.parametrize("method", ["linear", "nearest"])
def test_a_grid_is_interpolated_as_scipys(method, fill_value):
    options = {"method": method, "fill_value": fill_value, "bounds_error": False}
    expected = scipy.interpolate.RegularGridInterpolator(GRID, VALUES, **options)
    ours = RegularGridInterpolator(GRID, VALUES, **options)
    np.testing.assert_allclose(ours(POINTS), expected(POINTS), rtol=1e-12)
    compiled = af.jit(ours.__call__)(POINTS)
    np.testing.assert_allclose(compiled, expected(POINTS), rtol=1e-12)
    flat = RegularGridInterpolator(GRID, VALUES[..., 0], **options)
    x, y = POINTS[0, :, 0], POINTS[0, :, 1]
    np.testing.assert_allclose(flat((x, y)), expected(POINTS[0])[:, 0], rtol=1e-12)


def test_a_vector_is_of_points_one_after_the_other():
    x, y = np.array([0.0, 1.0, 3.0]), np.array([0.0, 2.0])
    line, plane = x**2, x[:, None] + 10 * y
    at = np.array([0.5, 1.5, 2.0, 1.0])
    for grid, values in (((x,), line), ((x, y), plane)):
        expected = scipy.interpolate.RegularGridInterpolator(grid, values)(at)
        found = RegularGridInterpolator(grid, values)(at)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_the_slope_of_an_interpolated_line():
    f = RegularGridInterpolator((np.array([0.0, 2.0]),), np.array([1.0, 7.0]))
    assert af.grad(lambda x: f(x)[0])(np.array([[0.5]])) == 3.0


def test_interpolators_refuse():
    with pytest.raises(ShapeError, match="do not fit values"):
        RegularGridInterpolator(GRID, VALUES[:2])
    with pytest.raises(ArgumentError, match="'cubic'"):
        RegularGridInterpolator(GRID, VALUES, method="cubic")
    with pytest.raises(ArgumentError, match="fill_value"):
        RegularGridInterpolator(GRID, VALUES, bounds_error=True)
    with pytest.raises(ShapeError, match="2 coordinates"):
        RegularGridInterpolator(GRID, VALUES)(np.zeros(3))


def test_the_nearest_code_is_scipys():
    codes = np.random.default_rng(3).standard_normal((3, 7))
    expected = scipy.cluster.vq.vq(X, codes)
    for result in (vq(X, codes), af.jit(vq)(X, codes)):
        np.testing.assert_array_equal(result[0], expected[0])
        np.testing.assert_allclose(result[1], expected[1], rtol=1e-14)
    with pytest.raises(ShapeError, match="codes of 6"):
        vq(X, codes[:, :6])
