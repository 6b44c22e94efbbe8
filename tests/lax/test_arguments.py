"""Arguments of lax functions that JAX's functions of these names take."""

import ml_dtypes
import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.errors import ArgumentError, DTypeError, InPlaceError, ShapeError

X = np.arange(24.0).reshape(4, 6)
GEOMETRY = ((2, 3), (2, 1), ((1, 1), (0, 2)), (2, 1), (1, 2))


def _larger(a, b):
    return anp.where(a > b, a, b)


@pytest.mark.parametrize(
    ("known", "equal", "init"),
    [
        (lax.add, lambda a, b: a + b, 0.0),
        (lax.max, _larger, -np.inf),
        (lax.mul, lambda a, b: a * b, 1.0),
    ],
    ids=["add", "max", "mul"],
)
def test_reduce_window_by_any_function(known, equal, init):
    def windows(function):
        return lambda x: lax.reduce_window(x, init, function, *GEOMETRY)

    np.testing.assert_allclose(af.jit(windows(equal))(X), windows(known)(X))
    _, expected = af.jvp(windows(known), (X,), (X + 1,))
    _, tangent = af.jvp(windows(equal), (X,), (X + 1,))
    np.testing.assert_allclose(tangent, expected)


def test_reduce_window_of_a_pytree():
    def larger(a, b):
        first = a["value"] >= b["value"]
        return {key: anp.where(first, a[key], b[key]) for key in a}

    def positions(x):
        found = lax.reduce_window(
            {"value": x, "place": anp.arange(4)},
            {"value": -np.inf, "place": -1},
            larger,
            (2,),
            (2,),
        )
        return found["place"]

    x = np.array([[1.0, 2.0, 3.0, 0.0], [0.0, 5.0, 1.0, 9.0]])
    np.testing.assert_array_equal(af.vmap(positions)(x), [[1, 2], [1, 3]])


def test_reduce_window_takes_an_initial_value_for_each_operand():
    with pytest.raises(ArgumentError, match="an initial value for each operand"):
        lax.reduce_window((X, X), 0.0, lax.add, (1, 1))
    with pytest.raises(ShapeError, match="operands of one shape"):
        lax.reduce_window((X, X[0]), (0.0, 0.0), lambda a, b: a, (1, 1))


WIDTHS = [
    (np.uint8, np.float32),
    (np.float16, np.int64),
    (ml_dtypes.bfloat16, np.uint32),
    (np.float32, np.float64),
]


@pytest.mark.parametrize(("narrow", "wide"), WIDTHS)
def test_bits_as_another_width_are_numpys_view(narrow, wide):
    count = np.dtype(wide).itemsize // np.dtype(narrow).itemsize
    octets = np.random.default_rng(0).integers(0, 120, (3, 16), np.uint8)
    wides, narrows = octets.view(wide), octets.view(narrow)
    parts = af.jit(lambda x: lax.bitcast_convert_type(x, narrow))(wides)
    assert parts.shape == (*wides.shape, count)
    np.testing.assert_array_equal(parts.reshape(3, -1), narrows)
    whole = af.jit(lambda x: lax.bitcast_convert_type(x, wide))(parts)
    np.testing.assert_array_equal(whole, wides)
    np.testing.assert_array_equal(af.jit(lambda x: x.view(wide))(narrows), wides)
    np.testing.assert_array_equal(af.jit(lambda x: x.view(narrow))(wides), narrows)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.complex128])
def test_byteswap_of_a_traced_array(dtype):
    x = np.arange(1, 5).astype(dtype)
    swapped = af.jit(lambda x: x.byteswap())(x)
    assert swapped.tobytes() == x.byteswap().tobytes()
    with pytest.raises(InPlaceError, match="use the result"):
        af.jit(lambda x: x.byteswap(inplace=True))(x)


def test_bits_that_do_not_fit():
    with pytest.raises(ShapeError, match="2 elements of"):
        lax.bitcast_convert_type(np.zeros(3, np.uint16), np.uint32)
    with pytest.raises(ShapeError, match="no whole number of"):
        af.jit(lambda x: x.view(np.uint32))(np.zeros(3, np.uint16))
    with pytest.raises(DTypeError, match="keep their width"):
        lax.bitcast_convert_type(np.zeros(3, complex), np.float64)


def test_numbers_are_converted_as_arrays_are():
    assert lax.convert_element_type(2**32, np.int32) == 0
    assert lax.convert_element_type(np.nan, np.int32) == 0


@pytest.mark.parametrize("precision", [("high", "highest"), "F32_F32_F32", "DEFAULT"])
def test_precisions_that_are_float32(precision):
    def product(x):
        return lax.dot(x, x.T, precision=precision)

    assert "precision" not in str(af.make_program(product)(np.ones((2, 3), "f4")))


@pytest.mark.parametrize("precision", [("high", "high"), "TF32_TF32_F32"])
def test_precisions_that_allow_tf32(precision):
    def product(x):
        return lax.dot(x, x.T, precision=precision)

    assert "tf32" in str(af.make_program(product)(np.ones((2, 3), "f4")))


@pytest.mark.parametrize("precision", [("high",), ("high", "high", "high")])
def test_a_precision_has_one_value_or_a_pair(precision):
    with pytest.raises(ArgumentError, match=rf"a pair, not {len(precision)} value"):
        lax.dot(np.ones((2, 3)), np.ones((3, 2)), precision=precision)


def test_dot_promotes_its_operands():
    found = lax.dot(np.ones(3, np.float32), np.full(3, 2j, np.complex64))
    assert found == 6j
    assert found.dtype == np.complex64


def test_pow_by_a_traced_integer():
    jacobian = af.jacrev(af.jit(lax.pow))(np.arange(4, dtype=np.float32), 2)
    np.testing.assert_array_equal(jacobian, np.diag([0.0, 2.0, 4.0, 6.0]))


def test_derivatives_of_reduce_precision_are_rounded():
    def rounded(x):
        return lax.reduce_precision(x, 8, 7)

    assert af.grad(lambda x: np.pi * rounded(x))(np.pi) == 3.140625
    assert af.jvp(rounded, (np.pi,), (np.pi,))[1] == 3.140625


def test_fori_loop_between_real_numbers():
    def total(low, high):
        return lax.fori_loop(low, high, lambda i, c: c + i, 0.0)

    assert total(0.5, 3.0) == 4.5
    assert af.jit(total)(0.5, 3.0) == 4.5
    assert af.grad(total)(0.5, 3.0) == 3.0


def test_fori_loop_is_unrolled_between_known_bounds():
    def total(high):
        return lax.fori_loop(0, high, lambda i, c: c + i, 0, unroll=2)

    with pytest.raises(ArgumentError, match="if both bounds are known"):
        af.jit(total)(4)


def test_composite_takes_arrays_by_name():
    scaled = lax.composite(lambda x, *, by, plus: x * by + plus, "my.scaled")
    x, by = np.ones(2), np.array([2.0, 3.0])
    np.testing.assert_array_equal(scaled(x, by=by, plus=1), [3, 4])
    traced = af.jit(lambda x, by: scaled(x, by=by, plus=1))
    np.testing.assert_array_equal(traced(x, by), [3, 4])


def test_refused_arguments():
    with pytest.raises(ArgumentError, match="not the function"):
        lax.stop_gradient(np.sin)
    with pytest.raises(ArgumentError, match="int32 positions"):
        af.eval_shape(
            lambda x: lax.top_k(x, 3), af.ShapeDtypeStruct((2**31 + 1,), np.float32)
        )
    with pytest.raises(ArgumentError, match="an initial value for each operand"):
        lax.reduce({"x": X}, {"y": 0.0}, lambda a, b: a, [0])


def test_slice_in_dim_counts_from_the_end():
    np.testing.assert_array_equal(lax.slice_in_dim(X, 1, -2, axis=1), X[:, 1:-2])
    np.testing.assert_array_equal(lax.slice_in_dim(X, -3, None), X[-3:])


def test_reduce_over_no_axis_combines_with_the_initial_value():
    found = lax.reduce(X, 2.0, lambda a, b: a + b, ())
    np.testing.assert_array_equal(found, X + 2)


def test_while_loop_refuses_true_for_a_number():
    with pytest.raises(DTypeError, match="comes in as f32"):
        lax.while_loop(lambda c: True, lambda c: True, np.float32(0))
