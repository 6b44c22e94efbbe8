"""Functions beside the primitives': windows by index, shapes, reductions, bits.

Expected values of gather and scatter are written out from their definition; those of
``reduce_precision`` are ml_dtypes' and NumPy's conversions.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from arrayfn import lax
from arrayfn.errors import ArgumentError, DTypeError, ShapeError
from arrayfn.primitives.calls import evaluate
from arrayfn.transforms import grad, trace_function, vmap

X = np.arange(12.0).reshape(3, 4)


def traced(function, *args):
    program = trace_function(function, args, {}, abstract=True).program
    (result,) = evaluate(program, list(args))
    return result


ROWS = lax.GatherDimensionNumbers((1,), (0,), (0,))


def test_gather_reads_rows_and_fills_beyond_the_end():
    places = np.array([[2], [0], [3]])

    def rows(x, places):
        return lax.gather(x, places, ROWS, (1, 4), fill_value=-1)

    expected = np.stack([X[2], X[0], np.full(4, -1.0)])
    np.testing.assert_array_equal(rows(X, places), expected)
    np.testing.assert_array_equal(traced(rows, X, places), expected)
    clipped = lax.gather(X, places, ROWS, (1, 4), mode="clip")
    np.testing.assert_array_equal(clipped, X[[2, 0, 2]])
    clipped = lax.gather(X, places, ROWS, (1, 4), mode=lax.GatherScatterMode.CLIP)
    np.testing.assert_array_equal(clipped, X[[2, 0, 2]])
    with pytest.raises(ArgumentError, match="no mode 'wrap'"):
        lax.gather(X, places, ROWS, (1, 4), mode="wrap")


NUMBERS = lax.ScatterDimensionNumbers((1,), (0,), (0,))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lax.scatter, [[5, 5], [1, 1], [7, 7]]),
        (lax.scatter_add, [[1, 1], [1, 1], [13, 13]]),
        (lax.scatter_sub, [[1, 1], [1, 1], [-11, -11]]),
        (lax.scatter_mul, [[1, 1], [1, 1], [35, 35]]),
        (lax.scatter_min, [[1, 1], [1, 1], [1, 1]]),
        (lax.scatter_max, [[1, 1], [1, 1], [7, 7]]),
    ],
)
def test_scatters_combine_where_windows_meet(function, expected):
    x = np.ones((3, 2))
    places = np.array([[2], [2], [3]])
    updates = np.array([[5.0, 5], [7, 7], [9, 9]])
    if function is lax.scatter:
        expected = [[1, 1], [1, 1], [7, 7]]
    result = function(x, places, updates, NUMBERS)
    np.testing.assert_array_equal(result, expected)
    again = traced(lambda *given: function(*given, NUMBERS), x, places, updates)
    np.testing.assert_array_equal(again, expected)


def test_scatter_apply_applies_once():
    result = lax.scatter_apply(
        np.array([1.0, 2, 3]),
        np.array([[0], [2], [2]]),
        lambda v: 10 * v,
        lax.ScatterDimensionNumbers((), (0,), (0,)),
        update_shape=(3,),
    )
    np.testing.assert_array_equal(result, [10, 2, 30])


def test_shapes():
    assert lax.broadcast_to_rank(X, 4).shape == (1, 1, 3, 4)
    assert lax.collapse(np.zeros((2, 3, 4, 5)), 1, 3).shape == (2, 12, 5)
    assert lax.collapse(np.zeros((2, 3, 4)), 1).shape == (2, 12)
    assert lax.broadcast_like(1.0, X).shape == (3, 4)
    assert lax.dtype(np.float32(1)) == np.float32
    assert lax.dtype(1) == np.int64
    assert lax.empty((2, 0), "int8").dtype == np.int8
    np.testing.assert_array_equal(lax.index_in_dim(X, -1, keepdims=False), X[-1])
    np.testing.assert_array_equal(lax.index_in_dim(X, 1, axis=1), X[:, 1:2])
    parts = lax.split(X, (1, 3), axis=1)
    np.testing.assert_array_equal(parts[1], X[:, 1:])
    new = lax.dynamic_update_index_in_dim(X, np.zeros(3), 2, axis=1)
    np.testing.assert_array_equal(new[:, 2], 0)
    np.testing.assert_array_equal(new[:, 3], X[:, 3])
    np.testing.assert_array_equal(lax.batch_matmul(X[None], X.T[None])[0], X @ X.T)
    rows, columns = np.array([0, 2]), np.array([3, 1])
    taken = lax.index_take(X, (rows, columns), (0, 1))
    np.testing.assert_array_equal(taken, X[rows, columns])
    taken = traced(lambda x: lax.index_take(x, (columns,), (1,)), X)
    np.testing.assert_array_equal(taken, X.T[columns])
    with pytest.raises(ShapeError, match="do not add up"):
        lax.split(X, (1, 2), axis=1)
    with pytest.raises(ShapeError, match="more than 1 axis"):
        lax.broadcast_to_rank(X, 1)


def test_reduce_takes_any_associative_function_of_pytrees():
    def longest(a, b):
        first = a[0] >= b[0]
        return np.where(first, a[0], b[0]), np.where(first, a[1], b[1])

    values = np.array([[3.0, 9, 2, 6, 1], [5, 4, 8, 0, 7]])
    places = np.broadcast_to(np.arange(5), (2, 5))

    def both(values, places):
        return lax.reduce((values, places), (-np.inf, -1), longest, (1,))

    best, where = both(values, places)
    np.testing.assert_array_equal(best, [9, 8])
    np.testing.assert_array_equal(where, [1, 2])
    total = traced(lambda x: lax.reduce(x, 0.0, lax.add, (0, 1)), X)
    assert total == X.sum()
    np.testing.assert_array_equal(lax.reduce(X[:0], 0.0, lax.add, (0,)), np.zeros(4))


def test_reduce_xor():
    x = np.random.default_rng(0).integers(0, 255, (5, 7)).astype(np.uint8)
    expected = np.bitwise_xor.reduce(x, axis=1)
    np.testing.assert_array_equal(lax.reduce_xor(x, (1,)), expected)
    np.testing.assert_array_equal(
        traced(lambda x: lax.reduce_xor(x, (1,)), x), expected
    )


def test_cumlogsumexp():
    expected = np.logaddexp.accumulate(X, axis=1)
    np.testing.assert_allclose(lax.cumlogsumexp(X, axis=1), expected, rtol=1e-15)


@pytest.mark.parametrize(
    "dtype", ["int8", "uint16", "int32", "uint32", "int64", "uint64"]
)
def test_mulhi_is_the_upper_half(dtype):
    info = np.iinfo(dtype)
    rng = np.random.default_rng(3)
    x = rng.integers(info.min, info.max, 40, dtype, endpoint=True)
    y = rng.integers(info.min, info.max, 40, dtype, endpoint=True)
    x[:2], y[:2] = info.min, (info.min, info.max)
    expected = [(int(a) * int(b)) >> info.bits for a, b in zip(x, y, strict=True)]
    np.testing.assert_array_equal(lax.mulhi(x, y), np.array(expected, dtype))
    np.testing.assert_array_equal(traced(lax.mulhi, x, y), np.array(expected, dtype))
    with pytest.raises(DTypeError, match="mulhi takes integers"):
        lax.mulhi(1.0, 2.0)


@pytest.mark.parametrize(
    ("bits", "like"), [((8, 7), ml_dtypes.bfloat16), ((5, 10), np.float16)]
)
def test_reduce_precision_rounds_as_conversions_do(bits, like):
    rng = np.random.default_rng(1)
    x = (rng.standard_normal(500) * 10.0 ** rng.uniform(-3, 3, 500)).astype(np.float32)
    x[:6] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e30]
    with np.errstate(over="ignore"):
        expected = x.astype(like).astype(np.float32)
    tiny = np.abs(expected) < float(ml_dtypes.finfo(like).smallest_normal)
    expected = np.where(tiny, np.copysign(np.float32(0), expected), expected)
    result = lax.reduce_precision(x, *bits)
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(np.signbit(result), np.signbit(expected))
    again = traced(lambda x: lax.reduce_precision(x, *bits), x)
    np.testing.assert_array_equal(again, expected)


def test_the_derivative_of_reduce_precision_is_that_of_its_operand():
    slope = grad(lambda x: lax.reduce_precision(x, 8, 7) ** 2)
    assert slope(1.001) == 2.0


def test_select_n():
    cases = [np.full(3, float(k)) for k in range(3)]
    result = lax.select_n(np.array([2, 0, 1], np.int32), *cases)
    np.testing.assert_array_equal(result, [2, 0, 1])
    result = lax.select_n(np.array([True, False, True]), *cases[:2])
    np.testing.assert_array_equal(result, [1, 0, 1])
    with pytest.raises(ArgumentError, match="between two cases, not 3"):
        lax.select_n(np.array([True, False, True]), *cases)


def test_fft_of_the_last_axes():
    x = X + 1j
    np.testing.assert_allclose(lax.fft(x, "FFT", (3, 4)), np.fft.fft2(x), rtol=1e-13)
    result = lax.fft(X, lax.FftType.RFFT, (4,))
    np.testing.assert_allclose(result, np.fft.rfft(X), rtol=1e-13, atol=1e-13)


def test_precision_goes_by_its_name():
    program = trace_function(
        lambda x: lax.dot(x, x.T, precision=lax.Precision.HIGH), (X,), {}, abstract=True
    ).program
    assert program.equations[-1].params["precision"] == "tf32"
    result = lax.dot(X, X.T, precision=lax.Precision.HIGHEST)
    np.testing.assert_array_equal(result, X @ X.T)


def test_optimization_barrier_keeps_values_and_derivatives():
    def f(x):
        y, z = lax.optimization_barrier((x * x, 2.0 * x))
        return (y * z).sum()

    assert grad(f)(3.0) == 6 * 3.0**2
    np.testing.assert_array_equal(lax.optimization_barrier([X])[0], X)


def test_members_of_a_named_axis_are_shuffled_and_swapped():
    x = np.arange(9.0).reshape(3, 3)
    turned = vmap(lambda v: lax.pshuffle(v, "i", [2, 0, 1]), axis_name="i")(x)
    np.testing.assert_array_equal(turned, x[[2, 0, 1]])
    swapped = vmap(lambda v: lax.pswapaxes(v, "i", 0), axis_name="i")(x)
    np.testing.assert_array_equal(swapped, x.T)
