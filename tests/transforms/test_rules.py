"""Primitives that hold Programs, under every transformation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from arrayfn import dtypes
from arrayfn.errors import DifferentiationError
from arrayfn.ir import ArrayType, Program
from arrayfn.ir.builder import current_builder
from arrayfn.primitives import (
    calls,
    contraction,
    custom_rules,
    discrete,
    reductions,
    special,
)
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.calls import evaluate
from arrayfn.transforms.batching import batch
from arrayfn.transforms.forward_mode import jvp
from arrayfn.transforms.linearization import linearize
from arrayfn.transforms.transposition import transpose, value_and_grad, vjp
from tests.programs import build, check_derivatives

VECTOR = ArrayType((3,), dtypes.float64)
X = np.array([0.3, -0.7, 1.9])
Y = np.array([2.0, 0.5, -1.0])


def wave(x: Any, y: Any) -> Any:
    return e.mul(special.sin(x), y)


BODY = build(wave, VECTOR, VECTOR, name="wave")


def called(x: Any, y: Any) -> Any:
    return calls.operator_call(x, y, name="wave", body=BODY)


def with_jvp(x: Any, y: Any) -> Any:
    """Of ``wave``, with 10 times its derivative."""

    def rule(x: Any, y: Any, dx: Any, dy: Any) -> list[Any]:
        tangent = e.add(e.mul(e.mul(special.cos(x), y), dx), e.mul(special.sin(x), dy))
        return [wave(x, y), e.mul(tangent, 10)]

    jvp_body = build(rule, VECTOR, VECTOR, VECTOR, VECTOR, name="wave_jvp")
    return custom_rules.custom_jvp(x, y, name="wave", body=BODY, jvp_body=jvp_body)


def with_vjp(x: Any, y: Any) -> Any:
    """Of ``wave``, with 10 times its derivative."""

    def backward(slope: Any, sine: Any, ct: Any) -> list[Any]:
        ten = e.mul(ct, 10)
        return [e.mul(ten, slope), e.mul(ten, sine)]

    def forward(x: Any, y: Any) -> list[Any]:
        sine = special.sin(x)
        return [e.mul(sine, y), e.mul(special.cos(x), y), sine]

    return custom_rules.custom_vjp(
        x,
        y,
        name="wave",
        body=BODY,
        forward=build(forward, VECTOR, VECTOR, name="wave_forward"),
        backward=build(backward, VECTOR, VECTOR, VECTOR, name="wave_backward"),
    )


def program_of(function: Any) -> Program:
    def total(x: Any, y: Any) -> Any:
        return reductions.reduce_sum(function(x, e.square(y)), axes=(0,))

    return build(total, VECTOR, VECTOR)


# The gradient of sum(sin(x) y^2).
TO_X, TO_Y = np.cos(X) * Y**2, np.sin(X) * 2 * Y
RULES = {"operator_call": (called, 1), "custom_jvp": (with_jvp, 10)}
REVERSE = {**RULES, "custom_vjp": (with_vjp, 10)}


@pytest.mark.parametrize("name", REVERSE)
def test_the_value_is_the_body_s(name: str) -> None:
    function, _ = REVERSE[name]
    (value,) = evaluate(program_of(function), [X, Y])
    assert value == pytest.approx(np.sum(np.sin(X) * Y**2), rel=1e-15)


@pytest.mark.parametrize("name", REVERSE)
def test_reverse_mode_uses_the_rule(name: str) -> None:
    function, factor = REVERSE[name]
    program = value_and_grad(program_of(function), [True, True])
    program.check()
    value, to_x, to_y = evaluate(program, [X, Y])
    assert value == pytest.approx(np.sum(np.sin(X) * Y**2), rel=1e-15)
    np.testing.assert_allclose(to_x, factor * TO_X, rtol=1e-14)
    np.testing.assert_allclose(to_y, factor * TO_Y, rtol=1e-14)


@pytest.mark.parametrize("name", REVERSE)
def test_reverse_mode_by_one_argument_alone(name: str) -> None:
    function, factor = REVERSE[name]
    _, to_y = evaluate(value_and_grad(program_of(function), [False, True]), [X, Y])
    np.testing.assert_allclose(to_y, factor * TO_Y, rtol=1e-14)


@pytest.mark.parametrize("name", RULES)
def test_forward_mode_uses_the_rule(name: str) -> None:
    function, factor = RULES[name]
    _, tangent = evaluate(jvp(program_of(function), [True, True]), [X, Y, Y, X])
    expected = factor * np.sum(TO_X * Y + TO_Y * X)
    assert tangent == pytest.approx(expected, rel=1e-14)


def test_forward_mode_of_a_custom_vjp_names_the_function() -> None:
    program = jvp(program_of(with_vjp), [True, True])
    with pytest.raises(DifferentiationError, match="wave has a custom_vjp rule"):
        evaluate(program, [X, Y, Y, X])
    with pytest.raises(DifferentiationError, match="reverse-mode derivatives only"):
        jvp(program, [True] * 4)


@pytest.mark.parametrize("name", REVERSE)
def test_second_derivatives_differentiate_the_rule(name: str) -> None:
    function, _ = REVERSE[name]
    gradient = value_and_grad(program_of(function), [True, True])
    check_derivatives(gradient, [X, Y], [True, True])


@pytest.mark.parametrize("name", REVERSE)
@pytest.mark.parametrize("dims", [(0, 0), (1, 0), (0, None), (None, 1)])
def test_mapped_rules(name: str, dims: tuple[int | None, int | None]) -> None:
    function, factor = REVERSE[name]
    xs = [np.stack([v, v + 1, v - 1, 2 * v]) for v in (X, Y)]
    given = [
        v if dim is None else np.moveaxis(stack, 0, dim)
        for v, stack, dim in zip((X, Y), xs, dims, strict=True)
    ]
    x, y = (
        np.stack([v] * 4) if dim is None else stack
        for v, stack, dim in zip((X, Y), xs, dims, strict=True)
    )
    program = value_and_grad(program_of(function), [True, True])
    mapped = batch(program, 4, dims, [0, 0, 0])
    mapped.check()
    _, to_x, to_y = evaluate(mapped, given)
    np.testing.assert_allclose(to_x, factor * np.cos(x) * y**2, rtol=1e-13)
    np.testing.assert_allclose(to_y, factor * np.sin(x) * 2 * y, rtol=1e-13)
    # And the other way round: the gradient of the mapped function.
    summed = build(
        lambda *operands: reductions.reduce_sum(
            *_inlined(batch(program_of(function), 4, dims, [0]), operands), axes=(0,)
        ),
        *[ArrayType(v.shape, v.dtype) for v in given],
    )
    _, to_x, _ = evaluate(value_and_grad(summed, [True, True]), given)
    want = factor * np.cos(x) * y**2
    want = want.sum(0) if dims[0] is None else np.moveaxis(want, 0, dims[0])
    np.testing.assert_allclose(to_x, want, rtol=1e-13)


def _inlined(program: Program, operands: Any) -> list[Any]:
    return current_builder().inline(program, operands)


def test_a_mapped_call_does_not_repeat_what_is_not_mapped() -> None:
    matrix = ArrayType((3, 3), dtypes.float64)

    def product(x: Any, w: Any) -> Any:
        return contraction.dot_general(x, w, contract=((0,), (0,)), batch=((), ()))

    body = build(product, VECTOR, matrix, name="product")
    program = build(
        lambda x, w: calls.operator_call(x, w, name="product", body=body),
        VECTOR,
        matrix,
    )
    mapped = batch(program, 5, [0, None], [0])
    assert mapped.equations[0].inputs[1] is mapped.inputs[1]
    xs, w = np.arange(15.0).reshape(5, 3), np.arange(9.0).reshape(3, 3)
    np.testing.assert_allclose(evaluate(mapped, [xs, w])[0], xs @ w)


@pytest.mark.parametrize("name", RULES)
def test_linearize_splits_a_rule(name: str) -> None:
    function, factor = RULES[name]
    split = linearize(program_of(function), [True, True])
    split.known.check()
    split.linear.check()
    value, *residuals = evaluate(split.known, [X, Y])
    assert len(residuals) == split.residuals
    assert value == pytest.approx(np.sum(np.sin(X) * Y**2), rel=1e-15)
    (tangent,) = evaluate(split.linear, [*residuals, Y, X])
    assert tangent == pytest.approx(factor * np.sum(TO_X * Y + TO_Y * X), rel=1e-14)
    backward = transpose(split.linear, split.residuals)
    to_x, to_y = evaluate(backward, [*residuals, np.array(1.0)])
    np.testing.assert_allclose(to_x, factor * TO_X, rtol=1e-14)
    np.testing.assert_allclose(to_y, factor * TO_Y, rtol=1e-14)


def test_a_linear_call_transposes_through_its_body() -> None:
    scaled = build(lambda c, x: e.mul(c, e.neg(x)), VECTOR, VECTOR, name="scaled")
    program = build(
        lambda c, x: calls.operator_call(c, x, name="scaled", body=scaled),
        VECTOR,
        VECTOR,
    )
    (ct,) = evaluate(transpose(program, 1), [Y, X])
    np.testing.assert_array_equal(ct, -Y * X)


def test_an_output_that_does_not_vary_has_a_zero_derivative() -> None:
    program = build(
        lambda x: [special.sin(x), discrete.floor(x), discrete.lt(x, 0.0)], VECTOR
    )
    *_, cosine, zero, no = evaluate(jvp(program, [True]), [X, np.ones(3)])
    np.testing.assert_array_equal(cosine, np.cos(X))
    np.testing.assert_array_equal(zero, np.zeros(3))
    assert no.dtype == np.bool_
    reverse = vjp(program, [True])
    *_, ct = evaluate(reverse, [X, np.ones(3), np.ones(3), np.zeros(3, bool)])
    np.testing.assert_array_equal(ct, np.cos(X))
