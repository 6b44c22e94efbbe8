"""Bad input to jitted functions: where it was, what it was, what to write instead."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.errors import (
    AbstractValueError,
    ArgumentError,
    ArrayfnError,
    InPlaceError,
    OutOfMemoryError,
    ShapeError,
    TracerLeakError,
)

X = np.arange(6.0).reshape(2, 3)


@af.jit
def mixed(p: Any, *rest: Any, scale: Any = 1.0) -> Any:
    return [x * scale for x in (p["a"], *rest)]


MASKED = np.ma.array([1.0, 2.0], mask=[0, 1])
OBJECTS = np.array([None, 1], object)


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        (({"a": "no"},), {}, r"mixed: argument 0\['a'\] is str \('no'\), not an array"),
        (({"a": X}, 1.0, OBJECTS), {}, r"argument 2 is an array of object"),
        (({"a": X}, [X, (X, b"")]), {}, r"argument 1\[1\]\[1\] is bytes \(b''\)"),
        (
            ({"a": X},),
            {"scale": {"s": Fraction(1, 2)}},
            r"'scale'.*\['s'\] is Fraction",
        ),
        (({"a": np.zeros(2, "M8[s]")},), {}, r"\['a'\] is an array of datetime64\[s\]"),
        (({"a": np.zeros(2, "i4,f4")},), {}, r"\['a'\] is an array of \[\('f0'"),
        (({"a": np.zeros(2, "U3")},), {}, r"\['a'\] is an array of <U3"),
        (({"a": MASKED},), {}, r"\['a'\] is a masked array, whose mask would be lost"),
        (({"a": {1, 2}},), {}, r"\['a'\] is set \(\{1, 2\}\), not an array"),
    ],
    ids=str,
)
def test_what_is_no_array_is_named_by_its_path(
    args: Any, kwargs: Any, text: str
) -> None:
    with pytest.raises(ArgumentError, match=text) as caught:
        mixed(*args, **kwargs)
    assert caught.value.location is not None
    assert caught.value.location.file == __file__
    with pytest.raises(ArgumentError, match=text):
        mixed.lower(*args, **kwargs)


def test_the_remedy_for_what_is_no_array_is_said() -> None:
    with pytest.raises(ArgumentError, match=r"numpy\.asarray, or make the argument st"):
        mixed({"a": "no"})


def test_an_error_leaves_the_function_usable() -> None:
    plus = af.jit(lambda x: x + 1)
    assert plus(X)[0, 0] == 1
    with pytest.raises(ArgumentError):
        plus("no")
    assert plus(X)[0, 0] == 1

    @af.jit
    def fails_once(x: Any) -> Any:
        if not tried:
            tried.append(True)
            raise RuntimeError("the user's own")
        return x + 1

    tried: list[bool] = []
    with pytest.raises(RuntimeError, match="the user's own"):
        fails_once(X)
    assert fails_once(X)[0, 0] == 1
    assert anp.add(X, 1)[0, 0] == 1  # and no trace is left open


@pytest.mark.parametrize(
    "result",
    ["text", object(), {"a": {1}}, [np.array("x")]],
    ids=["text", "object", "set", "array of text"],
)
def test_a_result_that_is_no_array_is_an_error(result: Any) -> None:
    with pytest.raises(ArgumentError, match=r"<lambda> \(.*\) returned a .*not|which"):
        af.jit(lambda x: result)(X)


def line_of(error: ArrayfnError, text: str) -> bool:
    """Whether the line that ``error`` names holds ``text``."""
    assert error.location is not None
    assert error.location.file == __file__
    with open(__file__, encoding="utf-8") as file:
        return text in file.readlines()[error.location.line - 1]


def branch(x: Any) -> Any:
    if anp.sum(x) > 0:  # here
        return x
    return -x


@pytest.mark.parametrize(
    ("function", "here", "remedy"),
    [
        (branch, "# here", r"arrayfn\.numpy\.where\(condition, x, y\)"),
        (
            lambda x: float(x[0, 0]),
            "float(x",
            "Keep it an array, or make the argument ",
        ),
        (lambda x: x * int(x[0, 0]), "int(x", "static"),
        (lambda x: [1, 2][x[0, 0]], "[1, 2]", "static"),
        (lambda x: x[0, 0].item(), ".item()", "static"),
        (lambda x: x and x, "x and x", r"arrayfn\.numpy\.where"),
        (lambda x: [0 for _ in range(x[0, 0])], "range(x", "static"),
    ],
    ids=["if", "float", "int", "index", "item", "and", "range"],
)
def test_asking_for_a_value_while_tracing_names_the_line_and_the_remedy(
    function: Any, here: str, remedy: str
) -> None:
    with pytest.raises(AbstractValueError, match=remedy) as caught:
        af.jit(function)(X)
    assert line_of(caught.value, here)
    assert f"while '{function.__name__}" in str(caught.value)
    assert "is traced" in str(caught.value)


def test_in_place_assignment_names_the_functional_form() -> None:
    def assign(x: Any) -> Any:
        x[0] = 1.0  # here
        return x

    with pytest.raises(InPlaceError, match=r"x = x\.at\[index\]\.set\(y\)") as caught:
        af.jit(assign)(X)
    assert line_of(caught.value, "# here")


def test_leaving_the_trace_by_numpy_is_an_error() -> None:
    def leave(x: Any) -> Any:
        return np.asarray(x) + 1  # here

    with pytest.raises(ArgumentError, match="Use functions of arrayfn") as caught:
        af.jit(leave)(X)
    assert line_of(caught.value, "# here")


@pytest.mark.parametrize(
    "use",
    [
        lambda leaked: leaked + 1,
        anp.exp,
        lambda leaked: af.jit(lambda x: x + leaked)(X),
        lambda leaked: af.grad(lambda x: anp.sum(x * leaked))(X),
        af.jit(anp.exp),
        af.vmap(anp.exp),
    ],
    ids=["operator", "function", "captured", "grad", "jit", "vmap"],
)
def test_a_leaked_tracer_names_its_function_and_the_remedy(use: Any) -> None:
    kept: list[Any] = []

    def leaky(x: Any) -> Any:
        kept.append(x * 2)
        return x

    af.jit(leaky)(X)
    with pytest.raises(TracerLeakError, match=r"'leaky'.*has returned.*Return it from"):
        use(kept[0])


def test_an_error_while_tracing_points_to_the_users_line() -> None:
    def product(x: Any) -> Any:
        return x @ x  # here

    with pytest.raises(ShapeError, match=r"\[2,3\]") as caught:
        af.jit(product)(X)
    assert line_of(caught.value, "# here")


@pytest.mark.parametrize("argnums", [0.5, "x", (0, None)])
def test_static_positions_are_integers(argnums: Any) -> None:
    with pytest.raises(ArgumentError, match="by their positions, integers"):
        af.jit(lambda x: x, static_argnums=argnums)(X)


def test_too_few_arguments_are_pythons_own_error() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'y'"):
        af.jit(lambda x, y: x + y)(X)


@pytest.mark.parametrize(
    ("f", "result"),
    [
        (lambda x: anp.arange(2**61)[x], r"iota would give i64\[2305843009213693952\]"),
        (lambda x: anp.eye(2**32)[x, x], r"iota would give i64\[4294967296,4294967296"),
        (lambda x: anp.ones((2**32, 2**32)).sum(), "which has 147,573,952,589,676,412"),
        (lambda x: anp.pad(anp.ones(2), 2**62)[x], r"pad would give f64\[92233720368"),
    ],
)
def test_arrays_that_64_bits_cannot_address(f: Any, result: str) -> None:
    with pytest.raises(ShapeError, match=rf"{result}.*an array has fewer than 2\*\*63"):
        af.jit(f)(5)


def test_temporaries_that_no_machine_has() -> None:
    f = af.jit(lambda x: anp.sort(anp.zeros((2**30, 2**24)) + x, axis=1)[0, 0])
    with pytest.raises(OutOfMemoryError, match="288,230,376,151,711,744 bytes for its"):
        f(1.0)
