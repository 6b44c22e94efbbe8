"""inline_calls: calls become their bodies, however deep, unless they are kept."""

from __future__ import annotations

from typing import Any

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Equation, Program
from arrayfn.passes.inline_calls import inline_calls
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.calls import operator_call
from tests.passes.texts import body, check_same_bits
from tests.programs import build

VECTOR = ArrayType((9,), dtypes.float64)


def nested() -> Program:
    """``outer(inner(x) * y)``, where ``outer`` calls ``inner`` too."""
    inner = build(e.neg, VECTOR, name="inner")

    def outer_body(x: Any) -> Any:
        return e.square(operator_call(x, name="inner", body=inner))

    outer = build(outer_body, VECTOR, name="outer")

    def program(x: Any, y: Any) -> Any:
        product = e.mul(operator_call(x, name="inner", body=inner), y)
        return operator_call(product, name="outer", body=outer)

    return build(program, VECTOR, VECTOR)


def test_calls_in_calls_become_their_bodies() -> None:
    before = nested()
    after = inline_calls(before)
    after.check()
    assert body(after) == [
        "c: f64[9] = neg(a)",
        "d: f64[9] = mul(c, b)",
        "e: f64[9] = neg(d)",
        "f: f64[9] = square(e)",
        "return f",
    ]
    check_same_bits(before, after)


def test_a_kept_call_stays_and_the_others_go() -> None:
    def keep(equation: Equation) -> bool:
        return equation.params["name"] == "outer"

    before = nested()
    after = inline_calls(before, keep)
    assert [eq.primitive.name for eq in after.equations] == [
        "neg",
        "mul",
        "operator_call",
    ]
    check_same_bits(before, after)


def test_a_body_that_returns_its_argument_leaves_nothing() -> None:
    same = build(lambda x, y: [y, x], VECTOR, VECTOR, name="swap")

    def program(x: Any, y: Any) -> Any:
        return list(operator_call(x, y, name="swap", body=same))

    after = inline_calls(build(program, VECTOR, VECTOR))
    assert body(after) == ["return b, a"]
