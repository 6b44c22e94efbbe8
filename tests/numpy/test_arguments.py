"""Forms of arguments that NumPy's functions take, and traced ones where JAX's do."""

import ml_dtypes
import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.errors import ArgumentError, DTypeError

X = np.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize("theirs", [np.r_, np.c_], ids=["r_", "c_"])
@pytest.mark.parametrize(
    "key",
    [
        ("-1", X, X),
        ("0,2", [1, 2, 3], [4, 5, 6]),
        ("0,2,0", [1, 2, 3], [4, 5, 6]),
        ("1,2,0", [1, 2, 3], [4, 5, 6]),
        ("0,4,-1", [1, 2, 3], [4, 5, 6]),
        ("0,4,-2", [1, 2, 3], [4, 5, 6]),
        ("0,3,1", slice(0, 3)),
        ("r", [1, 2, 3], [4, 5, 6]),
        ("c", [1, 2, 3], [4, 5, 6]),
        (np.float32([1, 2]), np.float32([3, 4])),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_joining_with_a_directive_is_numpys(theirs, key):
    ours = anp.r_ if theirs is np.r_ else anp.c_
    expected = np.asarray(theirs[key])
    assert ours[key].dtype == expected.dtype
    np.testing.assert_array_equal(ours[key], expected)


def test_numbers_joined_with_an_array_take_its_dtype():
    assert anp.r_[np.float32([1, 2]), 0, 1.5].dtype == np.float32


def test_joining_refuses_a_text_that_is_no_directive():
    with pytest.raises(ArgumentError, match="up to three integers"):
        anp.r_["abc", [1, 2]]


def test_grid_of_no_axes_is_empty():
    assert anp.mgrid[()].shape == (0,)
    assert anp.ogrid[()] == ()


def test_unravel_index_of_a_traced_shape():
    found = af.jit(anp.unravel_index)(np.array([5, 11, -1]), (3, 4))
    np.testing.assert_array_equal(found, [[1, 2, 2], [1, 3, 3]])


def _fill(vector, width, axis, options):
    value = options.get("value", 10 * (axis + 1))
    vector = vector.at[: width[0]].set(value)
    return vector.at[-width[1] :].set(value)


def _numpys(vector, width, axis, options):
    value = options.get("value", 10 * (axis + 1))
    vector[: width[0]] = value
    vector[-width[1] :] = value


@pytest.mark.parametrize("x", [X, X[0]], ids=["matrix", "vector"])
@pytest.mark.parametrize("options", [{}, {"value": 7}], ids=str)
def test_pad_by_a_function(x, options):
    expected = np.pad(x, (1, 2), _numpys, **options)
    np.testing.assert_array_equal(anp.pad(x, (1, 2), _fill, **options), expected)
    compiled = af.jit(lambda x: anp.pad(x, (1, 2), _fill, **options))
    np.testing.assert_array_equal(compiled(x), expected)


def test_pad_asks_a_function_for_its_vector():
    with pytest.raises(ArgumentError, match="return vector"):
        anp.pad(X[0], 1, lambda vector, width, axis, options: None)


def test_pad_by_medians():
    expected = np.pad(X, 2, "median", stat_length=3)
    np.testing.assert_array_equal(anp.pad(X, 2, "median", stat_length=3), expected)


def test_pad_refuses_an_option_of_another_mode():
    with pytest.raises(ArgumentError, match="'edge' takes no options, not stat_length"):
        anp.pad(X, 1, "edge", stat_length=None)


@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("place", [-3, 0, 2])
def test_insert_and_delete_at_a_traced_place(axis, place):
    inserted = af.jit(lambda x, place: anp.insert(x, place, 9, axis=axis))
    np.testing.assert_array_equal(inserted(X, place), np.insert(X, place, 9, axis))
    deleted = af.jit(lambda x, place: anp.delete(x, place, axis=axis))
    np.testing.assert_array_equal(deleted(X, place), np.delete(X, place, axis))


def test_delete_at_traced_places_that_do_not_repeat():
    places = np.array([2, -4])
    deleted = af.jit(lambda x, at: anp.delete(x, at, 1, assume_unique_indices=True))
    np.testing.assert_array_equal(deleted(X, places), np.delete(X, places, 1))


def test_split_into_a_whole_float():
    np.testing.assert_array_equal(anp.split(X, 2.0, axis=1)[1], X[:, 2:])


@pytest.mark.parametrize("name", ["sum", "prod", "cumsum", "cumprod"])
@pytest.mark.parametrize("axis", [0, 1, None])
def test_sum_of_dtype_bool_is_numpys(name, axis):
    x = np.array([[0, 2, 0], [3, 0, 1]])
    found = af.jit(lambda x: getattr(anp, name)(x, axis=axis, dtype=bool))(x)
    assert found.dtype == bool
    expected = getattr(np, name)(x, axis=axis, dtype=bool)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("towards", [np.inf, -np.inf, 0, 1, np.nan])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_nextafter_of_16_bits_is_numpys(dtype, towards):
    x = np.arange(0, 65536, 37, np.uint16).view(dtype)
    y = np.full_like(x, towards)
    found = af.jit(anp.nextafter)(x, y).astype(np.float32)
    np.testing.assert_array_equal(found, np.nextafter(x, y).astype(np.float32))


def test_equality_of_lists():
    assert anp.array_equal([1, 2], [1, 2])
    assert not anp.array_equal([1, 2], [1, 2, 3])
    assert anp.array_equiv([1, 2], [[1, 2], [1, 2]])


@pytest.mark.parametrize("x", [[1j], [[1], [2j]], 3, None, "text", np.float32(1)])
def test_iscomplexobj_takes_any_object(x):
    assert anp.iscomplexobj(x) == np.iscomplexobj(x)


@pytest.mark.parametrize("function", [anp.cov, anp.corrcoef])
def test_covariance_is_of_no_integer_dtype(function):
    with pytest.raises(DTypeError, match="not int64"):
        function(X, dtype=int)


def test_flatnonzero_takes_one_fill_value_in_a_tuple():
    found = anp.flatnonzero(np.array([0, 1]), size=3, fill_value=(-1,))
    np.testing.assert_array_equal(found, [1, -1, -1])


def test_arrays_are_made_on_a_device_of_a_mesh():
    assert anp.zeros(3, device=af.devices()[0]).tolist() == [0, 0, 0]


@pytest.mark.parametrize("excluded", [{1.5}, {-1}])
def test_vectorize_excludes_positions_and_names(excluded):
    with pytest.raises(ArgumentError, match="from 0 on"):
        anp.vectorize(lambda x: x, excluded=excluded)


def test_take_along_axis_by_one_hot_reads_zeros_outside():
    found = anp.take_along_axis(X[0], np.array([1, -1, 9]), 0, mode="one_hot")
    np.testing.assert_array_equal(found, [1, 3, 0])


def test_numpys_ufunc_computes_in_a_dtype():
    x = np.float32([1.0, 2.0])
    found = af.jit(lambda x: np.subtract(x, 0.5, dtype=np.float64))(x)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, [0.5, 1.5])
    with pytest.raises(DTypeError, match="does not convert an operand of dtype"):
        af.jit(lambda x: np.add(x, 1, dtype=np.int32))(x)


def numbers_at_the_limits(dtype):
    """Zeros, subnormals, powers of two, the largest number, infinities and NaN."""
    limits = ml_dtypes.finfo(dtype)
    tiny, least = limits.tiny, limits.smallest_subnormal
    some = [0, least, tiny, tiny - least, 1, 3, limits.max, np.inf, np.nan]
    return np.array([*some, *(-x for x in some)], dtype)


def assert_same_with_signs(found, wanted):
    assert found.dtype == wanted.dtype
    found, wanted = (a.astype(np.float64) for a in (found, wanted))
    np.testing.assert_array_equal(found, wanted)
    numbers = ~np.isnan(wanted)
    np.testing.assert_array_equal(
        np.signbit(found)[numbers], np.signbit(wanted)[numbers]
    )


FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.filterwarnings("ignore")
def test_spacing_at_the_limits_is_numpys(dtype):
    x = numbers_at_the_limits(dtype)
    for function in (anp.spacing, af.jit(anp.spacing)):
        assert_same_with_signs(function(x), np.spacing(x))


@pytest.mark.filterwarnings("ignore")
def test_spacing_of_float16_is_numpys():
    x = np.arange(0, 65536, 37, np.uint16).view(np.float16)
    np.testing.assert_array_equal(anp.spacing(x), np.spacing(x))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.filterwarnings("ignore")
def test_nextafter_at_the_limits_is_numpys(dtype):
    x = numbers_at_the_limits(dtype)
    for function in (anp.nextafter, af.jit(anp.nextafter)):
        found = function(x[:, None], x[None])
        assert_same_with_signs(found, np.nextafter(x[:, None], x[None]))


def test_iscomplexobj_of_a_list_of_traced_numbers():
    seen = []
    af.jit(lambda x, y: seen.append(anp.iscomplexobj([x, y])))(1.0, 2j)
    assert seen == [True]


@pytest.mark.parametrize("options", [{}, {"left": 1j, "right": 2.0}, {"period": 3.0}])
def test_interp_of_complex_values_is_numpys(options):
    x, xp = np.array([-1.0, 0.5, 1.75, 9.0]), np.array([0.0, 1.0, 2.0])
    fp = np.array([1 + 1j, 2 - 1j, 3j])
    expected = np.interp(x, xp, fp, **options)
    found = af.jit(lambda fp: anp.interp(x, xp, fp, **options))(fp)
    np.testing.assert_allclose(found, expected, rtol=1e-14)


@pytest.mark.parametrize("dtype", [np.uint16, np.float64, np.complex64])
def test_view_of_complex_numbers_is_numpys(dtype):
    x = np.array([[1 + 2j, 3 - 4j], [5j, 6]])
    viewed = af.jit(lambda x: x.view(dtype))(x)
    np.testing.assert_array_equal(viewed, x.view(dtype))
    back = af.jit(lambda x: x.view(np.complex128))(viewed)
    np.testing.assert_array_equal(back, x)


def test_diff_with_a_number_is_numpys_also_under_jit():
    x = np.float32([1, 4])
    expected = np.diff(x, append=1)

    def appended(x):
        return anp.diff(x, append=1)

    for function in (appended, af.jit(appended)):
        assert function(x).dtype == expected.dtype
        np.testing.assert_array_equal(function(x), expected)
