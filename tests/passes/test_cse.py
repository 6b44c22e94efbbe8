"""cse: equal equations once, and only equal ones."""

from __future__ import annotations

import pytest

from arrayfn.passes.cse import cse
from tests.passes.texts import check_pass, parse


def test_equal_equations_are_computed_once_and_so_is_what_follows() -> None:
    check_pass(
        cse,
        "program f(x: f64[9], y: f64[9]) -> (f64[9]) {\n"
        "  a: f64[9] = mul(x, y)\n"
        "  b: f64[9] = mul(x, y)\n"
        "  c: f64[9] = neg(a)\n"
        "  d: f64[9] = neg(b)\n"
        "  e: f64[9] = add(c, d)\n"
        "  return e\n}\n",
        [
            "a: f64[9] = mul(x, y)",
            "b: f64[9] = neg(a)",
            "c: f64[9] = add(b, b)",
            "return c",
        ],
    )


def test_outputs_of_equal_equations_are_one_value() -> None:
    check_pass(
        cse,
        "program f(x: f64[9]) -> (f64[9], f64[9]) {\n"
        "  a: f64[9] = neg(x)\n"
        "  b: f64[9] = neg(x)\n"
        "  return a, b\n}\n",
        ["a: f64[9] = neg(x)", "return a, a"],
    )


DIFFERENT = {
    "zeros_of_two_signs": (
        "a: f64[9] = add(x, 0.0:f64)",
        "b: f64[9] = add(x, -0.0:f64)",
    ),
    "operands_the_other_way_round": (
        "a: f64[9] = sub(x, y)",
        "b: f64[9] = sub(y, x)",
    ),
    "other_params": (
        "a: f64[9] = rev(x) {axes=(0,)}",
        "b: f64[9] = rev(x) {axes=()}",
    ),
    "literals_of_two_dtypes": (
        "a: i64[9] = convert(x) {dtype=i64}",
        "b: i32[9] = convert(x) {dtype=i32}",
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_equations_stay(name: str) -> None:
    first, second = DIFFERENT[name]
    types = [line.split(" = ")[0].split(": ")[1] for line in (first, second)]
    text = (
        f"program f(x: f64[9], y: f64[9]) -> ({', '.join(types)}) {{\n"
        f"  {first}\n  {second}\n  return a, b\n}}\n"
    )
    check_pass(cse, text, [first, second, "return a, b"])


def test_literals_that_differ_in_dtype_alone_are_not_one() -> None:
    before = parse(
        "program f(c: bool[3]) -> (f32[3], f64[3]) {\n"
        "  a: f32[3] = select(c, 1.0:f32, 0.0:f32)\n"
        "  b: f64[3] = select(c, 1.0:f64, 0.0:f64)\n"
        "  return a, b\n}\n"
    )
    assert len(cse(before).equations) == 2


def test_nan_literals_are_one() -> None:
    check_pass(
        cse,
        "program f(x: f64[9]) -> (f64[9], f64[9]) {\n"
        "  a: f64[9] = mul(x, nan:f64)\n"
        "  b: f64[9] = mul(x, nan:f64)\n"
        "  return a, b\n}\n",
        ["a: f64[9] = mul(x, nan:f64)", "return a, a"],
    )
