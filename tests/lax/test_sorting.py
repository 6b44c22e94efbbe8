"""Sorting: every dtype, NaN and ties, long rows in chunks, several operands, top_k."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.errors import ArgumentError, ShapeError
from arrayfn.primitives import sorting
from arrayfn.tracing import apply
from arrayfn.transforms import trace_function
from tests.common_functions import same_on_threads

RNG = np.random.default_rng(11)
LONG = 150_001  # cut into chunks, the last of them shorter


@af.jit
def sort(x: Any) -> Any:
    return apply(sorting.sort, x)


@af.jit
def argsort(x: Any) -> Any:
    return apply(sorting.argsort, x)


def draw(dtype: Any, shape: Any) -> Any:
    """Numbers with ties; of floats, NaN of either sign, zeros and infinities."""
    values = RNG.standard_normal(shape) * 50
    if dtype == dtypes.bool_:
        return values > 0
    if dtype in dtypes.INTEGERS:
        limits = np.iinfo(dtype)
        high = min(int(limits.max), 10**15)
        return RNG.integers(max(int(limits.min), -high), high, shape).astype(dtype)
    x = values.astype(np.complex128 if dtype in dtypes.COMPLEX else np.float64)
    if dtype in dtypes.COMPLEX:
        x = np.round(x) + 1j * np.round(RNG.standard_normal(shape))
    flat = x.reshape(-1)
    special = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0]
    if dtype in dtypes.FLOATS:
        for k, value in enumerate(special):
            flat[k :: 7 * len(special)] = value
    return x.astype(dtype)


def comparable(x: Any) -> Any:
    return x.astype(np.float32) if x.dtype == dtypes.bfloat16 else x


@pytest.mark.parametrize("dtype", dtypes.COMPUTED, ids=str)
@pytest.mark.parametrize("shape", [(5,), (4, 300), (LONG,), (0,), (2, 0), (3, 1)])
def test_sorts_as_numpy_does(dtype: Any, shape: Any) -> None:
    x = draw(dtype, shape)
    want = comparable(x)
    np.testing.assert_array_equal(comparable(sort(x)), np.sort(want, axis=-1))
    have = argsort(x)
    np.testing.assert_array_equal(have, np.argsort(want, axis=-1, kind="stable"))
    assert have.dtype == np.int64


def test_threads_do_not_change_the_bits() -> None:
    x = draw(dtypes.float32, (LONG,))
    same_on_threads(lambda: (sort(x), argsort(x)))


def test_sorting_along_any_axis() -> None:
    x = draw(dtypes.float64, (4, 5, 3))
    for axis in (0, 1, -1):
        have = af.jit(lambda x, axis=axis: lax.sort(x, axis))(x)
        np.testing.assert_array_equal(have, np.sort(x, axis))
        np.testing.assert_array_equal(lax.sort(x, axis), have)


def test_several_operands_are_sorted_by_the_first_keys() -> None:
    a = RNG.integers(0, 3, (2, 40)).astype(np.int32)
    b = RNG.integers(0, 4, (2, 40)).astype(np.float32)
    c = np.arange(80).reshape(2, 40)
    for keys in (1, 2, 3):
        have = af.jit(lambda *xs, k=keys: lax.sort(xs, num_keys=k))(a, b, c)
        for row in range(2):
            given = (a[row], b[row], c[row])
            order = np.lexsort(given[keys - 1 :: -1])
            for part, x in zip(have, given, strict=True):
                np.testing.assert_array_equal(part[row], x[order])
    keys, values = lax.sort_key_val(np.array([3, 1, 2]), np.array([0, 1, 2]))
    np.testing.assert_array_equal(np.stack([keys, values]), [[1, 2, 3], [1, 2, 0]])


def test_gradients_follow_the_elements() -> None:
    x = np.array([3.0, 1.0, 2.0])
    weights = np.array([1.0, 10.0, 100.0])

    def total(x: Any) -> Any:
        return af.numpy.sum(lax.sort(x) * weights * x[0])

    expected = af.jit(af.grad(total))(x)
    # 321 from x[0] itself, and its weight times x[0]
    np.testing.assert_allclose(expected, [321.0 + 300.0, 3.0, 30.0])
    _, tangents = af.jvp(lambda x: lax.top_k(x, 2)[0], (x,), (weights,))
    np.testing.assert_array_equal(tangents, [1.0, 100.0])


def test_top_k_takes_the_first_of_equal_elements() -> None:
    x = np.array([[1.0, 4.0, 4.0, 2.0], [0.0, np.nan, 3.0, 3.0]], np.float32)
    values, places = af.jit(lambda x: lax.top_k(x, 3))(x)
    np.testing.assert_array_equal(values, [[4, 4, 2], [np.nan, 3, 3]])
    np.testing.assert_array_equal(places, [[1, 2, 3], [1, 2, 3]])
    assert places.dtype == np.int32
    with pytest.raises(ArgumentError, match="0 to 4 elements"):
        lax.top_k(x, 5)


def test_what_cannot_be_sorted_is_refused() -> None:
    with pytest.raises(ShapeError, match="at least one axis"):
        apply(sorting.sort, np.float32(1.0))
    with pytest.raises(ShapeError, match="one shape"):
        lax.sort((np.zeros(3), np.zeros(4)))
    with pytest.raises(ArgumentError, match="1 to 2 keys"):
        lax.sort((np.zeros(3), np.zeros(3)), num_keys=3)


@pytest.mark.parametrize("dtype", ["f4", "f8", "i2"])
def test_top_k_of_long_rows_in_every_order(dtype: str) -> None:
    x = RNG.standard_normal(3000) * 100
    rows = np.stack([x, np.sort(x), np.sort(x)[::-1], np.round(x / 50)]).astype(dtype)
    for k in (1, 7, 900, 3000):
        values, places = af.jit(lambda x, k=k: lax.top_k(x, k))(rows)
        order = 2999 - np.argsort(rows[:, ::-1], axis=-1, kind="stable")[:, ::-1]
        np.testing.assert_array_equal(places, order[:, :k])
        want = np.take_along_axis(rows, order[:, :k], -1)
        np.testing.assert_array_equal(values, want)


def test_the_gradient_of_a_sort_puts_elements_back_where_no_two_meet():
    x = np.array([[3.0, 1.0, 2.0], [1.0, 3.0, 2.0]])
    weights = np.array([1.0, 10.0, 100.0])

    def weighted(x):
        return anp.sum(anp.sort(x) * weights)

    program = trace_function(af.grad(weighted), (x,), {}).program
    (back,) = (eq for eq in program.equations if eq.primitive.name == "scatter_add")
    assert back.params["unique_indices"]
    assert af.grad(weighted)(x).tolist() == [[100.0, 1.0, 10.0], [1.0, 100.0, 10.0]]


def test_several_orders_of_one_operand_meet():
    numbers = lax.GatherDimensionNumbers((), (0,), (0,))
    orders = np.array([[2, 0, 1], [1, 0, 2]])

    def permuted(x, order):
        where = anp.reshape(order, (3, 1))
        return lax.gather(x, where, numbers, (1,), unique_indices=True, mode="clip")

    weights = np.array([1.0, 10.0, 100.0])
    total = af.grad(
        lambda x: anp.sum(af.vmap(permuted, in_axes=(None, 0))(x, orders) * weights)
    )
    assert total(np.zeros(3)).tolist() == [20.0, 101.0, 101.0]
