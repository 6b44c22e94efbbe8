"""Indexing and changed copies: NumPy's results, and gradients that put them back."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn.compilation.jit import jit
from arrayfn.errors import AbstractValueError, ArgumentError, ShapeError
from arrayfn.transforms import grad, trace_function

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 5, 6))
I = np.array([3, -1, 0])
J = np.array([[1], [2]], dtype=np.int32)
MASK = X[..., 0] > 0
ALL = slice(None)

INDICES = [
    (0,),
    (-1, 2),
    (slice(1, 3),),
    (Ellipsis, -1),
    (None, slice(None, None, -2)),
    (slice(3, 3),),
    (slice(9, -9, -3), ALL, slice(-2, None)),
    (I,),
    (I, I),
    (ALL, I),
    (I, ALL, I),
    (I, slice(1, 4, 2), I),
    (0, ALL, I),
    (0, I),
    (J, I, 0),
    (MASK,),
    (ALL, MASK[0]),
    (I, None, 1),
    (Ellipsis, I),
    ([0, 1], [2, 3]),
    (np.int64(2), slice(2, 4)),
    (J, slice(None, None, -1), slice(1, 3)),
    (slice(1, 3), I, slice(2, 5)),
    (None, I, slice(0, 2), None, 1),
    (True,),
    (np.array(False),),
]


def with_arrays(index, arrays):
    """``index`` with its arrays of integers replaced by ``arrays``."""
    rest = iter(arrays)
    return tuple(next(rest) if is_positions(entry) else entry for entry in index)


def is_positions(entry):
    return isinstance(entry, np.ndarray) and entry.dtype != bool


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_reading_gives_what_numpy_gives(index, check):
    check(lambda x: anp.getitem(x, index), lambda x: x[index], X)


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_reading_at_traced_positions(index, check):
    arrays = [entry for entry in index if is_positions(entry)]

    def read(x, *arrays):
        return x[with_arrays(index, arrays)]

    check(lambda x, *a: anp.getitem(x, with_arrays(index, a)), read, X, *arrays)


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_the_gradient_of_reading_adds_at_the_places_read(index):
    weights = RNG.standard_normal(X[index].shape)
    expected = np.zeros_like(X)
    np.add.at(expected, index, weights)
    result = grad(lambda x: (x[index] * weights).sum())(X)
    np.testing.assert_allclose(result, expected, rtol=1e-14)


UPDATES = {
    "set": None,
    "add": np.add,
    "multiply": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


@pytest.mark.parametrize("method", UPDATES)
@pytest.mark.parametrize("index", INDICES, ids=str)
def test_changed_copies(index, method, check):
    y = RNG.standard_normal(X[index].shape)
    arrays = [entry for entry in index if is_positions(entry)]

    def ours(x, y, *arrays):
        return getattr(anp.at(x)[with_arrays(index, arrays)], method)(y)

    def theirs(x, y, *arrays):
        result = x.copy()
        if UPDATES[method] is None:
            result[index] = y
        else:
            UPDATES[method].at(result, index, y)
        return result

    check(ours, theirs, X, y, *arrays)


def test_other_changes():
    x = np.arange(1.0, 5.0)

    def f(x):
        at = x.at[1:3]
        return [at.subtract(1), at.divide(2), at.power(2), at.apply(np.exp), at.get()]

    results = grad(lambda x: (x.sum(), f(x)), has_aux=True)(x)[1]
    expected = [
        [1, 1, 2, 4],
        [1, 1, 1.5, 4],
        [1, 4, 9, 4],
        [1, np.exp(2), np.exp(3), 4],
        [2, 3],
    ]
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-15)


def test_updates_broadcast_and_take_the_dtype(check):
    x = np.zeros((3, 4), np.float32)

    def change(x):
        return anp.at(x)[1:].set(np.arange(4))

    check(change, lambda x: np.vstack([x[:1], [np.arange(4)] * 2]).astype("f4"), x)


def test_gradients_of_set_by_both_operands():
    x, y = np.arange(4.0), np.array([5.0, 6.0])
    weights = np.array([1.0, 10.0, 100.0, 1000.0])
    index = np.array([2, 0])

    def f(x, y):
        return (anp.at(x)[index].set(y) * weights).sum()

    by_x, by_y = grad(f, argnums=(0, 1))(x, y)
    np.testing.assert_array_equal(by_x, [0, 10, 0, 1000])
    np.testing.assert_array_equal(by_y, [100, 1])


OUTSIDE = [
    (lambda x: anp.getitem(x, 4), "index 4 is out of bounds for axis 0 with size 4"),
    (lambda x: anp.getitem(x, (0, np.array([1, -6]))), "index -6 is out of bounds"),
    (lambda x: anp.at(x)[np.array([7])].set(0), "index 7 is out of bounds for axis 0"),
    (lambda x: anp.take_along_axis(x, np.full((1, 5, 6), 4), 0), "index 4 is out"),
    (lambda x: anp.getitem(x, (0, 0, 0, 0)), "too many indices .* 4 were indexed"),
    (lambda x: anp.getitem(x, (..., 0, ...)), "an index can only have a single ellip"),
    (lambda x: anp.getitem(x, np.array([0.5])), "must be of integer .* not float64"),
]


@pytest.mark.parametrize(("function", "message"), OUTSIDE)
@pytest.mark.parametrize("abstract", [False, True])
def test_known_indices_out_of_bounds_are_index_errors(function, message, abstract):
    with pytest.raises(IndexError, match=message):
        function(X)
    with pytest.raises(IndexError, match=message):
        trace_function(function, (X,), {}, abstract=abstract)


def test_a_value_known_while_tracing_is_checked_too():
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        grad(lambda x, i: x[i].sum())(X, np.array([9]))


def test_unknown_indices_out_of_bounds_read_a_fill_value_and_write_nothing(traced):
    x, i = np.arange(3.0), np.array([0, 3, -1, -4])
    np.testing.assert_array_equal(
        traced(lambda x, i: x[i], x, i)[0], [0, np.nan, 2, np.nan]
    )
    (result,) = traced(lambda x, i: x.at[i].add(10.0), x, i)
    np.testing.assert_array_equal(result, [10, 1, 12])


def test_modes_of_take():
    x, i = np.arange(3), np.array([-4, -1, 5])
    assert anp.take(x, i, mode="clip").tolist() == [0, 0, 2]
    assert anp.take(x, i, mode="wrap").tolist() == [2, 2, 2]
    assert anp.take(x, i, mode="fill", fill_value=-7).tolist() == [-7, 2, -7]
    with pytest.raises(ArgumentError, match="take has no mode 'raise'"):
        anp.take(x, i, mode="raise")


def test_take_along_axis_broadcasts():
    x = np.arange(6.0).reshape(2, 3)
    assert anp.take_along_axis(x, np.array([[1]]), 1).tolist() == [[1.0], [4.0]]
    with pytest.raises(ShapeError, match="the same number of axes, but was given"):
        anp.take_along_axis(x, np.array([1]), 1)


def test_a_mask_that_is_not_known_says_what_to_write():
    with pytest.raises(AbstractValueError, match=r"where\(mask, x, y\)") as caught:
        trace_function(lambda x: x[x > 0], (X,), {}, abstract=True)
    assert "test_indexing.py" in str(caught.value)


def test_a_mask_that_is_known_takes_the_path():
    np.testing.assert_array_equal(
        grad(lambda x: (x[x > 0] ** 2).sum())(X), np.where(X > 0, 2 * X, 0)
    )


@pytest.mark.parametrize("chosen", [True, False, np.bool_(True), np.array(False)])
def test_updates_where_a_single_bool_is_true(chosen, traced):
    for change in (
        lambda x: anp.at(x)[chosen].set(x[:1, 0] * 2.0),
        lambda x: anp.at(x)[chosen].add(anp.ones((1, *X.shape))),
        lambda x: anp.at(x)[chosen].apply(anp.sin),
    ):
        (result,) = traced(change, X)
        np.testing.assert_array_equal(result, change(X) if chosen else X)
    expected = X.copy()
    expected[chosen] += 1.0
    np.testing.assert_array_equal(anp.at(X)[chosen].add(1.0), expected)


def test_indices_of_other_types_are_refused():
    with pytest.raises(ArgumentError, match="not indexed by str; indices are integers"):
        grad(lambda x: x["a"].sum())(X)


# Out of bounds, as a mode has it.


V = np.arange(5.0)
BEYOND = np.array([1, 7, -9, -1])


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: anp.at(x)[BEYOND].get(mode="clip"), [1, 4, 0, 4]),
        (lambda x: anp.at(x)[BEYOND].get(mode="fill", fill_value=9), [1, 9, 9, 4]),
        (lambda x: anp.at(x)[7].get(mode="clip"), 4),
        (lambda x: anp.at(x)[BEYOND].set(6, mode="drop"), [0, 6, 2, 3, 6]),
        (lambda x: anp.at(x)[BEYOND].set(6, mode="clip"), [6, 6, 2, 3, 6]),
        (lambda x: anp.at(x)[BEYOND].add(10, mode="fill"), [0, 11, 2, 3, 14]),
        (lambda x: anp.at(x)[BEYOND].add(10, mode="clip"), [10, 11, 2, 3, 24]),
        (lambda x: anp.at(x)[BEYOND].subtract(10, mode="drop"), [0, -9, 2, 3, -6]),
        (lambda x: anp.at(x)[BEYOND].multiply(2, mode="clip"), [0, 2, 2, 3, 16]),
        (lambda x: anp.at(x)[BEYOND].divide(2, mode="drop"), [0, 0.5, 2, 3, 2]),
        (lambda x: anp.at(x)[BEYOND].min(-1, mode="drop"), [0, -1, 2, 3, -1]),
        (lambda x: anp.at(x)[BEYOND].max(9, mode="drop"), [0, 9, 2, 3, 9]),
        (lambda x: anp.at(x)[9].set(6, mode="drop"), [0, 1, 2, 3, 4]),
        (lambda x: anp.at(x)[1:3].set(6, mode="drop"), [0, 6, 6, 3, 4]),
    ],
)
def test_modes_say_what_becomes_of_an_index_out_of_bounds(function, expected, traced):
    np.testing.assert_array_equal(function(V), expected)
    (result,) = traced(function, V)
    np.testing.assert_array_equal(result, expected)


def test_modes_and_slices_with_steps():
    x = np.zeros((3, 4))
    changed = anp.at(x)[np.array([0, 5]), ::2].set(1.0, mode="drop")
    np.testing.assert_array_equal(changed, [[1, 0, 1, 0], [0] * 4, [0] * 4])


def test_a_mode_that_there_is_not_is_refused():
    with pytest.raises(ArgumentError, match=r"x\.at\[...\] has no mode 'wrap'"):
        anp.at(V)[0].set(1.0, mode="wrap")


def test_divide_by_updates_that_meet():
    result = anp.at(V)[np.array([4, 4, 2])].divide(np.array([2.0, 4.0, 2.0]))
    np.testing.assert_array_equal(result, [0, 1, 1, 3, 0.5])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: anp.at(x)[x > 2].set(9.0),
        lambda x: anp.at(x)[(x > 2,)].add(9.0),
        lambda x: anp.at(x)[x > 2].subtract(1.0),
        lambda x: anp.at(x)[x > 2].multiply(2.0),
        lambda x: anp.at(x)[x > 2].divide(2.0),
        lambda x: anp.at(x)[x > 2].power(2.0),
        lambda x: anp.at(x)[x > 2].min(2.5),
        lambda x: anp.at(x)[x > 2].max(3.5),
        lambda x: anp.at(x)[x > 2].apply(anp.square),
    ],
)
def test_updates_where_a_mask_is_true(function, traced):
    (result,) = traced(function, V)
    np.testing.assert_array_equal(result, function(V))


def test_a_mask_of_leading_axes_takes_updates_of_the_others(traced):
    x, row = np.arange(12.0).reshape(3, 4), np.arange(4.0)

    def change(x):
        return anp.at(x)[x[:, 0] > 2].set(row)

    (result,) = traced(change, x)
    np.testing.assert_array_equal(result, change(x))


def test_a_mask_that_is_not_known_takes_no_updates_one_by_one():
    with pytest.raises(AbstractValueError, match=r"where\(mask, y, x\)"):
        trace_function(lambda x: anp.at(x)[x > 2].set(x[:2]), (V,), {}, abstract=True)
    with pytest.raises(IndexError, match="boolean index of shape"):
        trace_function(lambda x: anp.at(x)[x[:2] > 2].set(0.0), (V,), {}, abstract=True)


def test_lists_of_an_index_may_hold_traced_positions():
    x = np.arange(12.0).reshape(3, 4)
    taken = jit(lambda i, j: anp.asarray(x)[[i, 1], (j, 0)])(2, 3)
    assert taken.tolist() == [11.0, 4.0]
    set_there = jit(lambda i: anp.asarray(x).at[[i, i + 1]].set(0.0))(1)
    assert set_there.tolist() == [[0.0, 1.0, 2.0, 3.0], [0.0] * 4, [0.0] * 4]


@pytest.mark.parametrize(
    "index",
    [
        *((..., True), (..., False), (slice(None), True), (None, True, ...)),
        *((slice(1), False, slice(1, None)), (..., np.array(True))),
        *((True, 0), (False, 1), (True, [0, 1, 0]), (0, True, np.array([1, 2]))),
        *((np.array([1, 0]), None, True), (True, [True, False], True)),
    ],
    ids=str,
)
def test_a_bool_beside_other_indices_is_a_new_axis(index):
    x = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(jit(lambda x: x[index])(x), x[index], strict=True)
    expected = x.copy()
    expected[index] = 7.0
    np.testing.assert_array_equal(jit(lambda x: x.at[index].set(7.0))(x), expected)
    np.testing.assert_array_equal(anp.at(x)[index].set(7.0), expected)
