"""dce: what the outputs do not need goes; inputs stay."""

from __future__ import annotations

import numpy as np

from arrayfn.transforms.dce import dce
from tests.passes.texts import body, check_pass, parse


def test_equations_that_nothing_uses_go_with_their_operands() -> None:
    check_pass(
        dce,
        "program f(x: f64[9], y: f64[9]) -> (f64[9]) {\n"
        "  a: f64[9] = neg(y)\n"
        "  b: f64[9] = neg(x)\n"
        "  c: f64[9] = mul(a, a)\n"
        "  return b\n}\n",
        ["a: f64[9] = neg(x)", "return a"],
    )


def test_a_program_of_its_inputs_has_no_equations() -> None:
    check_pass(
        dce,
        "program f(x: f64[9], y: f64[9]) -> (f64[9], f64[9]) {\n"
        "  a: f64[9] = add(x, y)\n"
        "  return y, x\n}\n",
        ["return y, x"],
    )


def test_only_the_constants_that_are_used_stay() -> None:
    text = (
        "program f(x: f64[2]) constants (p: f64[2], q: f64[2]) -> (f64[2]) {\n"
        "  a: f64[2] = mul(x, p)\n"
        "  b: f64[2] = mul(x, q)\n"
        "  return b\n}\n"
    )
    before = parse(text, [np.array([1.0, 2.0]), np.array([3.0, 4.0])])
    after = dce(before)
    assert len(body(after)) == 2
    assert [v.tolist() for v in after.constant_values] == [[3.0, 4.0]]
