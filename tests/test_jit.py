"""jit: what a call takes and gives, whatever its arguments look like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.errors import ArgumentError

RNG = np.random.default_rng(7)
X = RNG.standard_normal((3, 4))
ROW = RNG.standard_normal(4)


class Pair(NamedTuple):
    left: Any
    right: Any


@af.jit
def affine(x: Any, y: Any) -> Any:
    return x * y + 1.0


@af.jit
def identity(x: Any) -> Any:
    return x


@af.jit
def double(x: Any) -> Any:
    return x * 2


# Structures.


@af.jit
def structured(p: Any, pair: Any, *, scale: Any = 1.0) -> Any:
    w, (b, *rest) = p["w"], p["b"]
    y = anp.tanh(pair.left @ w + b) * scale
    return {"y": [y, (y.sum(), None)], "rest": rest, "pair": Pair(pair.right, -b)}


@pytest.mark.parametrize("keywords", [{}, {"scale": 2.0}, {"scale": np.float64(3)}])
def test_pytrees_go_in_and_out_and_keywords_too(keywords: dict[str, Any]) -> None:
    w, left = RNG.standard_normal((4, 2)), X
    p = {"w": w, "b": (np.ones(2), 3, np.arange(2))}
    got = structured(p, Pair(left, 5.0), **keywords)
    y = np.tanh(left @ w + 1) * float(keywords.get("scale", 1.0))
    assert list(got) == ["pair", "rest", "y"] or list(got) == ["y", "rest", "pair"]
    np.testing.assert_allclose(got["y"][0], y, 1e-14)
    np.testing.assert_allclose(got["y"][1][0], y.sum(), 1e-13)
    assert got["y"][1][1] is None
    assert [x.tolist() for x in got["rest"]] == [3, [0, 1]]
    assert isinstance(got["pair"], Pair)
    assert got["pair"].left == 5.0
    assert got["pair"].right.tolist() == [-1.0, -1.0]


def test_keywords_in_any_order_are_one_signature() -> None:
    calls = []

    @af.jit
    def f(x: Any, a: Any, b: Any) -> Any:
        calls.append(x)
        return a - b + x

    for _ in range(2):
        assert f(0, a=np.ones(2), b=np.zeros(2)).tolist() == [1, 1]
        assert f(0, b=np.ones(2), a=np.zeros(2)).tolist() == [-1, -1]
    assert len(calls) == 1


def in_turn(values: Any) -> Any:
    """A number whose digits are ``values``, in the order in which they come."""
    number = 0
    for value in values:
        number = number * 10 + value
    return number


def test_the_order_of_a_dict_is_that_of_this_call() -> None:
    f = af.jit(lambda tree: in_turn(tree[0].values()))
    g = af.jit(lambda **kwargs: in_turn(kwargs.values()))
    up, down = {"a": 1, "b": 2, "c": 3}, {"c": 3, "b": 2, "a": 1}
    for tree, digits in [(up, 123), (down, 321), (down, 321), (up, 123), (up, 123)]:
        assert f([tree]) == digits
        assert g(**tree) == digits
    same = np.ones(2)
    h = af.jit(lambda tree: {k: x * 2 for k, x in tree.items()})
    for keys in ("ba", "ab", "ba"):
        for _ in range(2):
            assert list(h(dict.fromkeys(keys, same))) == list(keys)


def test_leaves_of_unsorted_dicts_reach_their_places_in_later_calls() -> None:
    f = af.jit(lambda d, x: (d["b"] - x, Pair(d["a"]["z"], d["a"]["y"])))
    for k in range(3):
        d = {"b": k + 10, "a": {"z": k + 20, "y": k + 30}}
        first, pair = f(d, k)
        assert (first, pair.left, pair.right) == (10, k + 20, k + 30)


def test_a_function_without_arguments_or_without_arrays() -> None:
    assert af.jit(lambda: anp.arange(3) * 2)().tolist() == [0, 2, 4]
    assert af.jit(lambda x: None)(X) is None
    assert af.jit(lambda x: (3.0, [True]))(X) == (3.0, [True])


def test_the_name_and_the_documentation_stay() -> None:
    def named(x: Any) -> Any:
        """What it does."""
        return x

    assert af.jit(named).__name__ == "named"
    assert af.jit(named).__doc__ == "What it does."


def test_jit_with_options_is_a_decorator() -> None:
    @af.jit(device="reference", static_argnums=1)
    def power(x: Any, n: int) -> Any:
        assert type(n) is int
        return x**n

    assert power(np.array([2.0, 3.0]), 2).tolist() == [4, 9]


# Python numbers.


def test_numbers_adapt_to_the_arrays_beside_them() -> None:
    single = np.ones(3, np.float32)
    assert affine(single, 2.0).dtype == np.float32
    assert affine(single, 2).dtype == np.float32
    assert affine(single, True).dtype == np.float32
    assert affine(single, 2j).dtype == np.complex64
    assert affine(np.ones(3, np.int32), 2.0).dtype == np.float64
    assert double(np.ones(3, np.int8)).dtype == np.int8


def test_numbers_of_numpy_and_arrays_of_rank_zero_do_not() -> None:
    single = np.ones(3, np.float32)
    assert affine(single, 2.0).dtype == np.float32  # then the short way is taken
    assert affine(single, np.float64(2)).dtype == np.float64
    assert affine(single, np.array(2.0)).dtype == np.float64
    assert affine(single, np.float32(2)).dtype == np.float32
    assert affine(single, np.int64(2)).dtype == np.float64
    assert affine(single, 2.0).dtype == np.float32


def test_numbers_are_arguments_and_not_part_of_the_program() -> None:
    traces = []

    @af.jit
    def scaled(x: Any, factor: Any) -> Any:
        traces.append(factor)
        return x * factor

    for factor in (2.0, 3.0, -0.0, float("inf")):
        got = scaled(np.array([1.0, -2.0], np.float32), factor)
        want = np.array([1.0, -2.0], np.float32) * np.float32(factor)
        assert got.dtype == np.float32
        assert got.tobytes() == want.tobytes()
    assert len(traces) == 1
    assert scaled(np.array([1.0, -2.0], np.float32), 2).tolist() == [2, -4]
    assert len(traces) == 2  # an int is another type


@pytest.mark.parametrize("number", [True, -5, 2.5, 1 - 2j, 2**63 - 1, -(2**63)])
def test_a_number_comes_back_as_an_array_of_rank_zero(number: Any) -> None:
    got = identity(number)
    assert type(got) is np.ndarray
    assert got.shape == ()
    assert got.dtype == np.asarray(number).dtype
    assert got == number


def test_an_int_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(ArgumentError, match=r"2\*\*64|18446744073709551616.*int64"):
        identity(2**64)


# Arrays that lie in other ways.

LAYOUTS: dict[str, Callable[[], Any]] = {
    "C": lambda: X,
    "F": lambda: np.asfortranarray(X),
    "every second column": lambda: np.repeat(X, 2, 1)[:, ::2],
    "every second row": lambda: np.repeat(X, 2, 0)[::2],
    "backwards": lambda: np.ascontiguousarray(X[::-1, ::-1])[::-1, ::-1],
    "turned and backwards": lambda: np.ascontiguousarray(X.T[:, ::-1])[:, ::-1].T,
    "part of a larger array": lambda: np.pad(X, 3)[3:-3, 3:-3],
    "one row many times": lambda: np.broadcast_to(X[0], (3, 4)),
    "one number many times": lambda: np.broadcast_to(X[0, 0], (3, 4)),
    "overlapping rows": lambda: np.lib.stride_tricks.sliding_window_view(X[0], 2),
    "no rows": lambda: X[:0],
    "no columns": lambda: X[:, :0],
    "no columns, backwards": lambda: X[::-1, :0],
    "one row": lambda: X[1:2],
    "one column": lambda: X[:, 1:2],
    "rank zero, of a larger array": lambda: X[1, 2:3].reshape(()),
    "three axes, turned": lambda: np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1),
    "a subclass": lambda: X.view(np.recarray).view(type("Mine", (np.ndarray,), {})),
}


@af.jit
def all_ways(x: Any) -> Any:
    return x.T, x[..., 1:], x[..., ::-1], x.reshape(-1), x.sum(0), x + x.T.T


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_are_read_as_they_lie(layout: str) -> None:
    x = LAYOUTS[layout]()
    for function in (identity, double, all_ways) if x.ndim else (identity, double):
        got, want = function(x), function.__wrapped__(np.array(x))
        single = not isinstance(got, tuple)
        for have, value in zip(
            [got] if single else got, [want] if single else want, strict=True
        ):
            assert type(have) is np.ndarray
            np.testing.assert_allclose(have, value, 1e-14)
            assert have.flags.c_contiguous
            assert have.flags.owndata
            assert have.flags.writeable
            assert not np.shares_memory(have, x)


def test_a_read_only_array_is_read_and_its_result_is_writable() -> None:
    x = X.copy()
    x.flags.writeable = False
    for got in (identity(x), double(x)):
        assert got.flags.writeable
        got[:] = 0.0
    assert np.array_equal(x, X)


def unaligned() -> Any:
    buffer = np.zeros(8 * 3 + 1, np.uint8)
    x = buffer[1:].view(np.float64)
    x[:] = [1, 2, 3]
    return x


def packed_field() -> Any:
    records = np.zeros(3, [("z", np.complex64), ("n", np.int32)])
    records["z"] = [1, 2, 3]
    return records["z"]  # aligned, but its stride is a element and a half


@pytest.mark.parametrize("make", [unaligned, packed_field])
def test_elements_off_their_grid_are_copied(make: Callable[[], Any]) -> None:
    x = make()
    for _ in range(2):
        assert double(x).tolist() == [2, 4, 6]
        assert double(np.array(x)).tolist() == [2, 4, 6]
    assert anp.multiply(x, 2).tolist() == [2, 4, 6]
    captured = af.jit(lambda y: y + x)
    assert captured(np.ones(3, x.dtype)).tolist() == [2, 3, 4]
    assert double.lower(x).compile()(x).tolist() == [2, 4, 6]
    donated = af.jit(lambda x: x * 2, donate_argnums=0)
    assert donated(x).tolist() == [2, 4, 6]
    assert x.tolist() == [1, 2, 3]


def test_matrices_off_their_grid_are_copied_as_they_lie() -> None:
    buffer = np.zeros(8 * 6 + 1, np.uint8)
    x = buffer[1:].view(np.float64).reshape(2, 3)
    x[:] = [[1, 2, 3], [4, 5, 6]]
    want = (x.T @ x).tolist()
    product = af.jit(lambda x: x.T @ x)
    assert product(x).tolist() == want
    assert af.jit(lambda y: y @ y.T)(x.T).tolist() == want
    assert af.jit(lambda y: y + x.T)(np.zeros((3, 2))).tolist() == x.T.tolist()
    assert af.grad(lambda x: anp.sum(x * x))(x).tolist() == (2 * x).tolist()


@pytest.mark.parametrize("dtype", [">f4", ">i2", ">c16"])
def test_captured_arrays_of_another_byte_order_are_converted(dtype: str) -> None:
    x = np.array([[1.0, 2, -3], [4, 5, 6]], dtype)
    zeros = np.zeros(x.shape, x.dtype.newbyteorder("="))
    for captured in (x, x[:, ::-1]):
        result = af.jit(lambda y, captured=captured: y + captured)(zeros)
        assert result.tolist() == captured.tolist()
    assert anp.max(x).tolist() == x.max().tolist()
    bits = af.lax.bitcast_convert_type(x[:1].real, np.uint8)
    assert bits.tobytes() == x[:1].real.astype(zeros.real.dtype).tobytes()
    assert anp.asarray(x).dtype.isnative
    assert af.jit(anp.negative)(anp.asarray(x)).tolist() == (-x).tolist()


def test_another_byte_order_is_an_error_that_says_so() -> None:
    with pytest.raises(ArgumentError, match="argument 0 is an array of >f8"):
        double(X.astype(">f8"))


@pytest.mark.parametrize(
    "dtype", ["bool", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "c8"]
)
def test_dtypes_are_the_callers(dtype: str) -> None:
    x = np.array([0, 1, 3], dtype)
    assert identity(x).dtype == x.dtype
    assert identity(x).tolist() == x.tolist()
    assert double(x).dtype == (x * 2).dtype
    assert double(x).tolist() == (x * 2).tolist()


def test_sums_over_nothing_are_zero_and_products_one() -> None:
    def over_nothing(x: Any) -> Any:
        return x.sum(), x.sum(0), x.sum(1), x.prod(1), x @ x.T

    got = af.jit(over_nothing)(np.zeros((2, 0), np.float32))
    assert [y.tolist() for y in got] == [0, [], [0, 0], [1, 1], [[0, 0], [0, 0]]]
    assert all(y.dtype == np.float32 for y in got)


# Results belong to the caller.


def test_a_value_returned_twice_is_two_arrays() -> None:
    @af.jit
    def twice(x: Any) -> Any:
        y = x + 1
        return x, x, y, y, x.T.T

    results = twice(X)
    for k, one in enumerate(results):
        assert not any(np.shares_memory(one, other) for other in results[:k])
    results[0][:] = 0
    assert np.array_equal(results[1], X)


def test_changing_a_result_changes_no_later_one() -> None:
    constant = np.arange(3.0)

    @af.jit
    def with_constant(x: Any) -> Any:
        return constant, anp.arange(3), x + constant

    first = with_constant(1.0)
    for array in first:
        array[:] = -1
    second = with_constant(1.0)
    assert [y.tolist() for y in second] == [[0, 1, 2], [0, 1, 2], [1, 2, 3]]


def test_a_captured_array_is_copied() -> None:
    captured = np.arange(3.0)
    plus = af.jit(lambda x: x + captured)
    assert plus(np.zeros(3)).tolist() == [0, 1, 2]
    captured[:] = 9.0
    assert plus(np.zeros(3)).tolist() == [0, 1, 2]
    assert plus(np.zeros((2, 3)))[0].tolist() == [9, 9, 9]  # a new trace


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_captured_array_may_lie_in_any_way(device: str) -> None:
    for captured in (X.T, np.asfortranarray(X), X[::-1, ::2], X[1, 2], X[:0]):
        got = af.jit(lambda c=captured: c * 2, device=device)
        np.testing.assert_array_equal(got(), captured * 2)


def test_donated_arguments_may_be_overwritten_and_the_result_is_right() -> None:
    x, y = X.copy(), np.ones_like(X)
    update = af.jit(lambda x, y: x - 0.5 * y, donate_argnums=0)
    np.testing.assert_array_equal(update(x, y), X - 0.5)
    assert np.array_equal(y, np.ones_like(X))


# Static arguments.


def test_static_arguments_are_python_values() -> None:
    seen = []

    @af.jit(static_argnums=(1,), static_argnames="mode")
    def f(x: Any, n: int, mode: str = "plus") -> Any:
        seen.append((n, mode))
        return x + n if mode == "plus" else x * n

    assert f(np.ones(2), 3).tolist() == [4, 4]
    assert f(np.zeros(2), 3).tolist() == [3, 3]
    assert f(np.ones(2), 3, mode="times").tolist() == [3, 3]
    assert f(np.ones(2), n=4).tolist() == [5, 5]
    assert seen == [(3, "plus"), (3, "times"), (4, "plus")]


@pytest.mark.parametrize(
    "values",
    [
        [1, True, 1.0],
        [0.0, False, 0],
        [(1, 2), (True, 2)],
        ["1", 1],
        [0.0, -0.0],
    ],
    ids=str,
)
def test_static_values_that_only_compare_equal_are_told_apart(
    values: list[Any],
) -> None:
    shown = af.jit(lambda x, v: x + len(repr(v)), static_argnums=1)
    for value in values:
        assert shown(0.0, value) == len(repr(value))


@pytest.mark.parametrize("position", [-1, 1])
def test_a_static_position_may_be_negative_or_given_by_name(position: int) -> None:
    f = af.jit(lambda x, n: x * len(n), static_argnums=position)
    assert f(np.ones(1), "abc").tolist() == [3]
    assert f(np.ones(1), n="abc").tolist() == [3]
    assert f(n="abcd", x=np.ones(1)).tolist() == [4]


def test_a_static_name_may_be_given_by_position() -> None:
    f = af.jit(lambda x, n: x * len(n), static_argnames=("n",))
    assert f(np.ones(1), n="abc").tolist() == [3]
    assert f(np.ones(1), "ab").tolist() == [2]


def test_the_middle_argument_may_be_static() -> None:
    f = af.jit(lambda x, shape, y: x.reshape(shape) + y, static_argnums=1)
    assert f(np.arange(4), (2, 2), 10).tolist() == [[10, 11], [12, 13]]
    assert f(np.arange(4), (4,), np.arange(4)).tolist() == [0, 2, 4, 6]


def test_an_unhashable_static_argument_is_named_with_the_remedy() -> None:
    f = af.jit(lambda x, shape: x.reshape(shape), static_argnums=1)
    with pytest.raises(ArgumentError, match=r"static argument 1 is a list, which is "):
        f(np.arange(4), [2, 2])
    g = af.jit(lambda x, *, shape: x.reshape(shape), static_argnames="shape")
    with pytest.raises(ArgumentError, match=r"'shape' is a list.*pass a tuple"):
        g(np.arange(4), shape=[2, 2])


def test_without_determinism_a_cpu_does_the_same() -> None:
    x = np.linspace(0, 1, 1000, dtype=np.float32).reshape(10, 100)
    free = af.jit(lambda x: (x.sum(), x.T @ x), deterministic=False)
    fixed = af.jit(free.__wrapped__)
    assert str(free.lower(x).plan) == str(fixed.lower(x).plan)
    for have, want in zip(free(x), fixed(x), strict=True):
        np.testing.assert_array_equal(have, want)
