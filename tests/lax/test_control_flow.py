"""What control flow computes: structures, dtypes, closures, and the errors' texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.errors import ArgumentError, ArrayfnError, DTypeError, ShapeError

XS = np.arange(6.0).reshape(3, 2)


def add(total: Any, x: Any) -> Any:
    return total + x, total


# scan


def test_scan_carries_and_stacks_trees() -> None:
    def step(carry: Any, x: Any) -> Any:
        return {"sum": carry["sum"] + x["a"], "n": carry["n"] + 1}, (x["b"], carry["n"])

    xs = {"a": XS, "b": np.array([1, 2, 3], np.int32)}
    carry, (bs, ns) = lax.scan(step, {"sum": np.zeros(2), "n": 0}, xs)
    np.testing.assert_array_equal(carry["sum"], [6.0, 9.0])
    assert carry["n"] == 3
    np.testing.assert_array_equal(bs, [1, 2, 3])
    np.testing.assert_array_equal(ns, [0, 1, 2])
    assert bs.dtype == np.int32


def test_scan_in_reverse_puts_each_result_where_its_slice_is() -> None:
    carry, totals = lax.scan(add, 0.0, np.array([1.0, 2.0, 3.0]), reverse=True)
    assert carry == 6.0
    np.testing.assert_array_equal(totals, [5.0, 3.0, 0.0])


def test_scan_without_arrays_counts() -> None:
    carry, ys = lax.scan(lambda x, _: (2 * x, None), 1, None, length=5)
    assert carry == 32
    assert ys is None


def test_scan_of_nothing() -> None:
    carry, ys = lax.scan(add, np.ones(2), np.zeros((0, 2)))
    np.testing.assert_array_equal(carry, np.ones(2))
    assert ys.shape == (0, 2)


def test_scan_with_no_carry_and_no_results() -> None:
    assert lax.scan(lambda c, x: ((), None), (), XS) == ((), None)


@pytest.mark.parametrize("unroll", [1, 2, 3, True])
def test_unrolling_does_not_change_the_result(unroll: int) -> None:
    carry, ys = lax.scan(add, np.zeros(2), XS, unroll=unroll)
    np.testing.assert_array_equal(carry, XS.sum(0))
    np.testing.assert_array_equal(ys, [[0, 0], [0, 1], [2, 4]])


@pytest.mark.parametrize(
    ("init", "dtype"),
    [
        (0, np.float32),
        (0.0, np.float32),
        (np.float64(0), np.float64),
        (np.zeros((), np.float32), np.float32),
    ],
)
def test_a_number_takes_the_dtype_that_the_body_gives(init: Any, dtype: Any) -> None:
    xs = np.ones(3, np.float32)
    carry, _ = lax.scan(lambda c, x: (c + x, None), init, xs)
    assert carry.dtype == dtype
    assert carry == 3


def test_a_number_that_meets_numbers_stays_one() -> None:
    half, _ = lax.scan(lambda c, _: (c * 0.5, None), 1, None, length=2)
    assert half == 0.25
    assert half.dtype == np.float64


# Branches.


def test_cond_takes_numbers_for_truth_values() -> None:
    assert lax.cond(np.int32(2), lambda: 1.0, lambda: 0.0) == 1.0
    assert lax.cond(0.0, lambda: 1.0, lambda: 0.0) == 0.0


def test_branches_promote_numbers_but_nothing_else() -> None:
    x = np.float32(3.0)
    result = lax.cond(False, lambda x: x, lambda x: 1.0, x)
    assert result == 1.0
    assert result.dtype == np.float32


@pytest.mark.parametrize(("index", "want"), [(-3, 0), (0, 0), (1, 1), (2, 2), (9, 2)])
@pytest.mark.parametrize("convert", [int, np.int8, np.uint32])
def test_switch_clamps_its_index(
    index: int, want: int, convert: Callable[..., Any]
) -> None:
    if index < 0 and convert is np.uint32:
        return
    branches = [lambda k=k: k for k in range(3)]
    assert lax.switch(convert(index), branches) == want


def test_branches_close_over_what_they_use() -> None:
    def f(x: Any, y: Any) -> Any:
        return lax.cond(x.sum() > 0, lambda: x * 2, lambda: y * 3)

    for run in (f, af.jit(f, device="reference")):
        np.testing.assert_array_equal(run(np.ones(2), np.ones(2)), [2, 2])
        np.testing.assert_array_equal(run(-np.ones(2), np.ones(2)), [3, 3])


def test_only_the_branch_that_is_chosen_is_computed() -> None:
    def forever(x: Any) -> Any:
        return lax.while_loop(lambda x: x > 0, lambda x: x + 1, x)

    assert lax.cond(False, forever, lambda x: x, 1) == 1


# Loops.


def test_while_loop_carries_trees() -> None:
    k, names = lax.while_loop(
        lambda s: s[0] < 4, lambda s: (s[0] + 1, {"x": s[1]["x"] * 2}), (0, {"x": 1.0})
    )
    assert k == 4
    assert names["x"] == 16.0


@pytest.mark.parametrize("bounds", [(0, 0), (3, 1), (-2, 3)])
def test_fori_loop_counts_as_range_does(bounds: tuple[int, int]) -> None:
    want = sum(range(*bounds))
    assert lax.fori_loop(*bounds, lambda i, x: x + i, 0) == want
    dynamic = af.jit(
        lambda a, b: lax.fori_loop(a, b, lambda i, x: x + i, 0), device="reference"
    )
    assert dynamic(*bounds) == want


def test_the_counter_of_numbers_is_a_number() -> None:
    x = np.ones(2, np.float32)
    assert lax.fori_loop(0, 3, lambda i, x: x + i, x).dtype == np.float32


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scan_combines_in_order(length: int, reverse: bool) -> None:
    # Not commutative: x -> a x + b.
    rng = np.random.default_rng(length)
    a, b = rng.standard_normal((2, 3, length))

    def combine(first: Any, second: Any) -> Any:
        return first[0] * second[0], second[0] * first[1] + second[1]

    _, have = lax.associative_scan(combine, (a, b), reverse=reverse, axis=-1)
    want, state = np.zeros((3, length)), np.zeros(3)
    for k in reversed(range(length)) if reverse else range(length):
        state = want[:, k] = a[:, k] * state + b[:, k]
    np.testing.assert_allclose(have, want, 1e-12)


@pytest.mark.parametrize("batch_size", [None, 1, 2, 3, 5])
def test_map_is_a_loop(batch_size: int | None) -> None:
    have = lax.map(lambda x: (x * 2, x.sum()), XS, batch_size=batch_size)
    np.testing.assert_array_equal(have[0], XS * 2)
    np.testing.assert_array_equal(have[1], XS.sum(1))


# Errors: each says where, what was given, and what to write.


def raised(error: type[ArrayfnError], call: Callable[[], Any]) -> str:
    with pytest.raises(error) as caught:
        call()
    assert caught.value.location is not None
    assert caught.value.location.file == __file__
    return re.sub(r":\d+", ":LINE", str(caught.value)).split(":LINE: ", 1)[1]


def test_a_carry_that_changes_dtype_is_named_with_its_line() -> None:
    def step(carry: Any, x: Any) -> Any:
        return {"h": carry["h"] + x}, None

    init = {"h": np.zeros(2, np.float32)}
    assert raised(DTypeError, lambda: lax.scan(step, init, XS)) == (
        "scan: step (test_control_flow.py:LINE) changes the type of what it carries, "
        "and the next step could not take it. carry['h'] comes in as f32[2] and goes "
        "out as f64[2], computed at test_control_flow.py:LINE: convert it with "
        ".astype('float32'), or begin with f64"
    )


def test_a_carry_that_changes_shape_is_named() -> None:
    def step(x: Any) -> Any:
        return anp.concatenate([x, x])

    text = raised(ShapeError, lambda: lax.while_loop(lambda x: True, step, np.zeros(2)))
    assert text == (
        "while_loop: step (test_control_flow.py:LINE) changes the type of what it "
        "carries, and the next step could not take it. the carry comes in as f64[2] "
        "and goes out as f64[4], computed at test_control_flow.py:LINE: begin with an "
        "array of the shape that is returned"
    )


def test_a_carry_of_fori_loop_is_named_as_the_body_knows_it() -> None:
    def body(k: Any, x: Any) -> Any:
        return {"a": x["a"] * np.ones(2)}

    text = raised(ShapeError, lambda: lax.fori_loop(0, 3, body, {"a": np.float64(1)}))
    assert text.startswith("fori_loop: body (test_control_flow.py:LINE) changes")
    assert "carry['a'] comes in as f64[] and goes out as f64[2]" in text


def test_a_carry_that_changes_structure() -> None:
    text = raised(
        ArgumentError, lambda: lax.scan(lambda c, x: ((c, c), None), 0.0, XS[:, 0])
    )
    assert "returned a carry of structure (*, *), but was given" in text


@pytest.mark.parametrize(
    "loop",
    [
        lambda: lax.scan(lambda c, x: (c, "text"), 0.0, XS),
        lambda: lax.while_loop(lambda x: True, lambda x: "text", 0.0),
        lambda: lax.fori_loop(0, 3, lambda k, x: "text", 0.0),
        lambda: lax.cond(True, lambda x: "text", lambda x: x, 0.0),
    ],
)
def test_a_lambda_that_gives_no_array_is_named_by_its_line(loop: Any) -> None:
    assert raised(ArgumentError, loop).startswith(
        "<lambda> (test_control_flow.py:LINE) returned a str ('text'), not an array"
    )


def test_a_body_that_gives_no_pair() -> None:
    assert raised(ArgumentError, lambda: lax.scan(lambda c, x: c, 0.0, XS)) == (
        "scan: <lambda> (test_control_flow.py:LINE) must return a pair (carry, y), "
        "but returned Tracer; return (carry, None) if there is no y"
    )


def test_branches_that_differ_are_shown_side_by_side() -> None:
    text = raised(
        ShapeError,
        lambda: lax.cond(True, lambda x: {"a": x}, lambda x: {"a": x[0]}, np.zeros(2)),
    )
    assert text == (
        "cond: the branches return different types at ['a']: <lambda> "
        "(test_control_flow.py:LINE) gives f64[], computed at "
        "test_control_flow.py:LINE; <lambda> (test_control_flow.py:LINE) gives f64[2]; "
        "give both one shape, with arrayfn.numpy.broadcast_to, say"
    )
    text = raised(
        DTypeError,
        lambda: lax.cond(True, lambda x: x, lambda x: x.astype("float32"), np.zeros(2)),
    )
    assert "convert with .astype('float64')" in text
    text = raised(
        ArgumentError, lambda: lax.cond(True, lambda x: x, lambda x: (x, x), 1.0)
    )
    assert "the branches return different structures" in text


def test_a_predicate_that_is_no_scalar() -> None:
    text = raised(ShapeError, lambda: lax.cond(XS > 0, lambda: 1.0, lambda: 2.0))
    assert text == (
        "cond: pred must be a scalar, not bool[3,2]; to choose element by element, "
        "write arrayfn.numpy.where(condition, x, y)"
    )
    text = raised(
        ShapeError, lambda: lax.while_loop(lambda x: x > 0, lambda x: x - 1, XS)
    )
    assert "must give a scalar, but gave bool[3,2]" in text
    assert "reduce it with .any() or .all()" in text
    text = raised(DTypeError, lambda: lax.while_loop(lambda x: x, lambda x: x - 1, 3.0))
    assert "must give a bool, but gave" in text
    text = raised(DTypeError, lambda: lax.switch(1.5, [lambda: 1, lambda: 2]))
    assert text == (
        "switch: the index is an integer, not ~f64[]; for a truth value use cond"
    )


def test_arrays_of_different_lengths() -> None:
    xs = {"a": np.zeros(3), "b": np.zeros((4, 2))}
    text = raised(ShapeError, lambda: lax.scan(lambda c, x: (c, None), 0, xs))
    assert text == (
        "scan: the arrays of xs are cut along axis 0, so that they have one length, "
        "but xs['a'] is f64[3], xs['b'] is f64[4,2]"
    )
    text = raised(ShapeError, lambda: lax.scan(lambda c, x: (c, None), 0, XS, length=4))
    assert text == "scan: length is 4, but xs is f64[3,2]; leave length out"


def test_a_length_that_is_not_known() -> None:
    text = raised(ArgumentError, lambda: lax.scan(lambda c, x: (c, None), 0))
    assert text == "scan: without xs the number of steps is not known; give length="
    jitted = af.jit(
        lambda n: lax.scan(lambda c, x: (c, None), 0, None, n), device="reference"
    )
    with pytest.raises(ArgumentError, match="use while_loop or fori_loop"):
        jitted(3)


def test_a_number_to_be_scanned() -> None:
    text = raised(ShapeError, lambda: lax.scan(lambda c, x: (c, None), 0, {"a": 1.0}))
    assert text.startswith("scan: xs['a'] is ~f64[], which has no axis to be cut along")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: lax.cond(True, 1.0, 2.0), "cond: true_fun must be a function, but"),
        (lambda: lax.while_loop(1, 2, 3), "while_loop: cond_fun must be a function"),
        (lambda: lax.scan(None, 0, XS), "scan: f must be a function, but is NoneType"),
        (lambda: lax.switch(0, []), "switch: there is no branch to choose"),
        (
            lambda: lax.switch(0, [abs, 3], 1.0),
            r"switch: branches\[1\] must be a function",
        ),
        (lambda: lax.scan(add, "a", XS), "scan: the first carry is str"),
        (lambda: lax.fori_loop(0, 1.5j, add, 0), "fori_loop: upper is a scalar, an"),
        (lambda: lax.map(abs, XS, batch_size=0), "map: batch_size is 0"),
        (
            lambda: lax.scan(add, 0.0, XS[:, 0], unroll=-1),
            "scan: unroll must be a number",
        ),
        (
            lambda: lax.associative_scan(add, (XS, XS[:2])),
            "associative_scan: the arrays have one number of elements",
        ),
    ],
)
def test_arguments_that_cannot_be(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(ArrayfnError, match=text):
        call()


def test_a_python_branch_in_a_body_is_told_what_to_write() -> None:
    def step(x: Any) -> Any:
        return x - 1 if x > 3 else x - 2

    text = raised(
        ArrayfnError, lambda: lax.while_loop(lambda x: x > 0, step, np.array(9.0))
    )
    assert "lax.cond" in text


def test_a_python_loop_of_unknown_length_is_told_what_to_write() -> None:
    @af.jit
    def power(x: Any, n: Any) -> Any:
        for _ in range(n):
            x = x * x
        return x

    text = raised(ArrayfnError, lambda: power(2.0, 3))
    assert "only known as ~i64[] while 'power' is traced" in text
    assert "arrayfn.lax.fori_loop(0, n, body, value)" in text


def test_a_value_of_a_body_does_not_get_out() -> None:
    kept: list[Any] = []

    def step(x: Any) -> Any:
        kept.append(x)
        return x - 1

    lax.while_loop(lambda x: x > 0, step, np.array(3.0))
    text = raised(ArrayfnError, lambda: kept[0] + 1)
    assert "is used after 'step', the function it belongs to, has returned" in text


@pytest.mark.parametrize("columns", [3, 131, 5000])
def test_the_initial_value_may_be_a_view_of_what_is_scanned(columns):
    def running(x):
        def add(total, row):
            return total + row, anp.exp(row) * 2

        return lax.scan(add, x[0], x)

    x = np.random.default_rng(0).normal(size=(3, columns)).astype(np.float32)
    total, rows = af.jit(running)(x)
    np.testing.assert_allclose(total, x[0] + x[0] + x[1] + x[2], 1e-5, 1e-5)
    np.testing.assert_allclose(rows, np.exp(x) * 2, 1e-5)
