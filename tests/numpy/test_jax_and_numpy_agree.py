"""Calls on which NumPy, SciPy and JAX agree, found by running JAX's tests."""

import numpy as np
import pytest
import scipy.ndimage

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax, random
from arrayfn.errors import ArgumentError, DTypeError, ShapeError
from arrayfn.scipy import linalg, ndimage

Z = np.array([[1 + 2j, 1 + 3j, -4], [2, 2 - 1j, 2 + 0.5j]])
W = np.array([[1 + 1j, 2, -4 + 1j], [2, 3j, 2 - 0.5j]])


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_complex_extremum_is_numpys(name, axis):
    expected = getattr(np, name)(Z, axis)
    np.testing.assert_array_equal(getattr(anp, name)(Z, axis), expected)
    compiled = af.jit(lambda x: getattr(anp, name)(x, axis))
    np.testing.assert_array_equal(compiled(Z), expected)


@pytest.mark.parametrize("name", ["maximum", "minimum", "fmax", "fmin"])
def test_complex_elementwise_extremum_is_numpys(name):
    x, y = Z.copy(), W.copy()
    x[0, 0] = np.nan
    y[1, 1] = complex(0, np.nan)
    expected = getattr(np, name)(x, y)
    np.testing.assert_array_equal(getattr(anp, name)(x, y), expected)


def test_complex_extremum_of_nan_is_nan():
    x = np.array([1.0, complex(np.nan, 2), 3])
    assert np.isnan(anp.max(x))
    assert np.isnan(anp.min(x))


def test_grad_of_complex_max_goes_to_the_largest():
    _, tangent = af.jvp(anp.max, (Z[0],), (np.array([1j, 2j, 4j]),))
    assert tangent == 2j


def test_complex_logaddexp_is_the_principal_value():
    x, y = np.array([1 + 2j, -3 + 2j]), np.array([2 - 1j, -3 - 3j])
    expected = np.log(np.exp(x) + np.exp(y))
    np.testing.assert_allclose(anp.logaddexp(x, y), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("ours", "expected"),
    [(lax.exp2, np.exp2(2.0) ** (Z / 2)), (lax.logistic, 1 / (1 + np.exp(-Z)))],
    ids=["exp2", "logistic"],
)
def test_lax_function_of_complex(ours, expected):
    np.testing.assert_allclose(ours(Z), expected, rtol=1e-12)


def test_lax_conj_of_real_is_complex():
    assert lax.conj(np.float32(2)).dtype == np.complex64
    assert lax.conj(np.float64(2)).dtype == np.complex128
    np.testing.assert_allclose(lax.abs(Z), np.abs(Z))


def test_lax_argmax_refuses_positions_that_are_no_integers():
    with pytest.raises(DTypeError, match="index_dtype must be an integer, not float32"):
        lax.argmax(np.ones(3), 0, np.float32)


def test_put_of_no_values_changes_nothing():
    x = np.arange(4.0)
    np.testing.assert_array_equal(anp.put(x, np.array([1, 2]), np.zeros(0)), x)


@pytest.mark.parametrize(
    ("shift", "axis"),
    [
        (np.array([-2]), 0),
        (np.array([1, 2]), (0, 1)),
        (3, (0, 1)),
        ((1, 2), 1),
        (np.array(1), None),
    ],
)
def test_roll_takes_arrays_of_shifts(shift, axis):
    x = np.arange(12).reshape(3, 4)
    np.testing.assert_array_equal(anp.roll(x, shift, axis), np.roll(x, shift, axis))


def test_roll_by_traced_shifts():
    x, shifts = np.arange(12).reshape(3, 4), np.array([1, -2])
    rolled = af.jit(lambda x, s: anp.roll(x, s, (0, 1)))(x, shifts)
    np.testing.assert_array_equal(rolled, np.roll(x, shifts, (0, 1)))


@pytest.mark.parametrize("axis", [(0, 1), (2, 0), 1])
def test_average_takes_weights_of_several_axes(axis):
    x = np.arange(24.0).reshape(2, 3, 4)
    axes = axis if isinstance(axis, tuple) else (axis,)
    weights = 1 + np.arange(np.prod([x.shape[k] for k in axes]), dtype=float)
    weights = weights.reshape([x.shape[k] for k in axes])
    expected = np.average(x, axis, weights)
    np.testing.assert_allclose(anp.average(x, axis, weights), expected)


def test_average_names_weights_that_do_not_fit():
    with pytest.raises(ShapeError, match="weights for these axes"):
        anp.average(np.ones((2, 3)), 0, np.ones(3))


def test_size_along_axes_and_of_lists():
    assert anp.size(np.ones((2, 3, 4)), (0, 2)) == 8
    assert (anp.shape([1, 2]), anp.ndim([[1]]), anp.size([1, 2])) == ((2,), 2, 2)


def test_eye_and_tri_on_a_traced_diagonal():
    eye = af.jit(lambda k: anp.eye(3, 4, k))
    tri = af.jit(lambda k: anp.tri(3, 4, k))
    for k in (-5, -1, 0, 2):
        np.testing.assert_array_equal(eye(k), np.eye(3, 4, k))
        np.testing.assert_array_equal(tri(k), np.tri(3, 4, k))


def test_interp_extrapolates_the_outermost_lines():
    points = np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 40.0])
    assert anp.interp(0.5, *points, left="extrapolate") == 5
    assert anp.interp(4.0, *points, right="extrapolate") == 60
    assert anp.interp(4.0, *points, left="extrapolate") == 40


def test_map_coordinates_rounds_integers_as_scipy():
    x = np.arange(12).reshape(3, 4)
    places = [np.array([0.5, 1.5]), np.array([0.5, 1.5])]
    expected = scipy.ndimage.map_coordinates(x, places, order=1)
    np.testing.assert_array_equal(ndimage.map_coordinates(x, places, 1), expected)
    np.testing.assert_array_equal(ndimage.map_coordinates(-x, places, 1), -expected)


def test_segment_extrema_of_bools():
    data, ids = np.array([True, False, True]), np.array([0, 0, 2])
    assert af.ops.segment_min(data, ids, 4).tolist() == [False, True, True, True]
    assert af.ops.segment_max(data, ids, 4).tolist() == [True, False, True, False]


def test_helmert_without_rows_is_refused():
    with pytest.raises(ArgumentError, match="n >= 1"):
        linalg.helmert(0)


def test_full_like_takes_a_shape_and_a_dtype():
    like = af.ShapeDtypeStruct((2, 3), np.float32)
    assert anp.full_like(like, 7).tolist() == [[7.0] * 3] * 2
    assert anp.zeros_like(like).dtype == np.float32
    assert like.update(shape=(4,)) == af.ShapeDtypeStruct((4,), np.float32)
    assert af.ShapeDtypeStruct.like(np.ones((2, 3), np.float32)) == like
    subclass = type("Named", (af.ShapeDtypeStruct,), {})
    assert af.eval_shape(np.sin, subclass((2, 3), np.float32)) == like
    assert like.update(dtype=np.int8) == af.ShapeDtypeStruct((2, 3), np.int8)


def test_a_key_is_no_seed():
    with pytest.raises(DTypeError, match=r"one integer as the seed, not key<fry>\[\]"):
        random.key(random.key(3))


def test_lax_dtype_of_a_dtype():
    assert lax.dtype("float32") == lax.dtype(np.float32) == np.float32
