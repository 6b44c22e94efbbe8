"""assign_layouts: a relayout wherever a copy is made, and nowhere else."""

from __future__ import annotations

import pytest

from arrayfn.ir import Program
from arrayfn.passes.layout_assignment import assign_layouts
from tests.passes.texts import body, check_same_bits, parse


def assigned(text: str) -> Program:
    before = parse(text)
    after = assign_layouts(before)
    after.check()
    check_same_bits(before, after)
    return after


def program(inputs: str, output: str, *equations: str) -> str:
    lines = [f"program f({inputs}) -> ({output}) {{", *equations, "}"]
    return "\n".join(lines) + "\n"


def relayouts(after: Program) -> list[str]:
    return [line for line in body(after) if "relayout" in line]


def test_products_that_read_one_view_share_its_copy() -> None:
    after = assigned(
        program(
            "x: f32[2,3,4], y: f32[8,5], z: f32[8,6]",
            "f32[3,5], f32[3,6]",
            "a: f32[3,4,2] = transpose(x) {permutation=(1,2,0)}",
            "b: f32[4,2,5] = reshape(y) {shape=(4,2,5)}",
            "c: f32[4,2,6] = reshape(z) {shape=(4,2,6)}",
            "d: f32[3,5] = dot_general(a, b) {contract=((1,2),(0,1)), batch=((),())}",
            "e: f32[3,6] = dot_general(a, c) {contract=((1,2),(0,1)), batch=((),())}",
            "return d, e",
        )
    )
    assert len(relayouts(after)) == 1


# Outputs.


@pytest.mark.parametrize("layout", ["", "F", "S(5,1)", "S(-3,1)"])
def test_an_output_that_is_an_argument_is_a_copy_in_any_layout(layout: str) -> None:
    type = f"f32[2,3]{layout}"
    before = parse(program(f"x: {type}", type, "return x"))
    after = assign_layouts(before)
    after.check()
    check_same_bits(before, after)
    assert [str(t) for t in after.output_types] == ["f32[2,3]"]
    assert body(after) == ["a: f32[2,3] = relayout(x) {layout='C'}", "return a"]


def test_an_output_that_is_a_view_is_a_copy() -> None:
    after = assigned(
        program(
            "x: f32[2,3]",
            "f32[3,2]",
            "a: f32[3,2] = transpose(x) {permutation=(1,0)}",
            "return a",
        )
    )
    assert body(after) == [
        "a: f32[3,2] = transpose(x) {permutation=(1,0)}",
        "b: f32[3,2] = relayout(a) {layout='C'}",
        "return b",
    ]


def test_a_computed_output_is_no_copy_whatever_its_operands_layout() -> None:
    after = assigned(
        program(
            "x: f32[2,3]F, y: f32[2,3]S(6,2)",
            "f32[2,3]",
            "a: f32[2,3] = add(x, y)",
            "return a",
        )
    )
    assert body(after) == ["a: f32[2,3] = add(x, y)", "return a"]


def test_a_value_returned_twice_is_two_arrays() -> None:
    after = assigned(
        program("x: f32[9]", "f32[9], f32[9]", "a: f32[9] = neg(x)", "return a, a")
    )
    assert body(after) == [
        "a: f32[9] = neg(x)",
        "b: f32[9] = relayout(a) {layout='C'}",
        "return a, b",
    ]


def test_a_literal_returned_is_an_array() -> None:
    after = assigned(program("x: f32[9]", "f64[]", "return 2.5:f64"))
    assert body(after) == ["a: f64[] = relayout(2.5:f64) {layout='C'}", "return a"]


# Reshapes.


def test_a_reshape_of_a_row_major_array_is_a_view() -> None:
    after = assigned(
        program(
            "x: f32[2,3]",
            "f32[6]",
            "a: f32[6] = reshape(x) {shape=(6,)}",
            "b: f32[6] = neg(a)",
            "return b",
        )
    )
    assert relayouts(after) == []


@pytest.mark.parametrize(
    ("type", "first"),
    [
        ("f32[2,3]F", None),
        ("f32[3,2]", "a: f32[2,3] = transpose(x) {permutation=(1,0)}"),
        (
            "f32[2,4]",
            "a: f32[2,3] = slice(x) {start=(0,1), limit=(2,4), strides=(1,1)}",
        ),
        ("f32[2,3]", "a: f32[2,3] = rev(x) {axes=(1,)}"),
        ("f32[3]", "a: f32[2,3] = broadcast_in_dim(x) {shape=(2,3), axes=(1,)}"),
    ],
)
def test_a_reshape_that_is_no_affine_view_copies_its_operand(
    type: str, first: str | None
) -> None:
    source = "a" if first else "x"
    lines = [first] if first else []
    lines += [
        f"b: f32[6] = reshape({source}) {{shape=(6,)}}",
        "c: f32[6] = neg(b)",
        "return c",
    ]
    after = assigned(program(f"x: {type}", "f32[6]", *lines))
    assert len(relayouts(after)) == 1
    copied = relayouts(after)[0]
    assert copied.endswith(f"f32[2,3] = relayout({source}) {{layout='C'}}")


def test_a_reshape_that_only_adds_an_axis_is_a_view_of_any_layout() -> None:
    after = assigned(
        program(
            "x: f32[2,3]F",
            "f32[2,1,3]",
            "a: f32[2,1,3] = reshape(x) {shape=(2,1,3)}",
            "b: f32[2,1,3] = neg(a)",
            "return b",
        )
    )
    assert relayouts(after) == []


def test_a_reshape_that_is_returned_is_copied_once() -> None:
    after = assigned(
        program(
            "x: f32[2,3]F",
            "f32[6]",
            "a: f32[6] = reshape(x) {shape=(6,)}",
            "return a",
        )
    )
    assert len(relayouts(after)) == 1


# Matrix products.


def product(x: str, y: str, *before: str, operands: str = "x, y") -> str:
    contract = "{contract=((1,),(0,)), batch=((),())}"
    line = f"z: f64[4,4] = dot_general({operands}) {contract}"
    return program(f"x: {x}, y: {y}", "f64[4,4]", *before, line, "return z")


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ("f64[4,3]", "f64[3,4]"),
        ("f64[4,3]F", "f64[3,4]"),
        ("f64[4,3]", "f64[3,4]F"),
        ("f64[4,3]S(8,1)", "f64[3,4]S(1,9)"),
    ],
)
def test_operands_with_one_unit_stride_go_to_blas_as_they_lie(x: str, y: str) -> None:
    assert relayouts(assigned(product(x, y))) == []


@pytest.mark.parametrize(
    ("x", "copies"),
    [
        ("f64[4,3]S(6,2)", 1),  # no unit stride
        ("f64[4,3]S(-3,1)", 1),  # backwards
        ("f64[4,3]S(0,1)", 1),  # one row four times
        ("f64[4,3]S(2,1)", 1),  # rows that overlap
    ],
)
def test_operands_that_blas_cannot_read_are_copied(x: str, copies: int) -> None:
    after = assigned(product(x, "f64[3,4]"))
    assert len(relayouts(after)) == copies


def test_transposes_and_offsets_go_into_the_call() -> None:
    after = assigned(
        product(
            "f64[3,5]",
            "f64[5,4]",
            "a: f64[5,3] = transpose(x) {permutation=(1,0)}",
            "b: f64[4,3] = slice(a) {start=(1,0), limit=(5,3), strides=(1,1)}",
            "c: f64[3,4] = slice(y) {start=(2,0), limit=(5,4), strides=(1,1)}",
            operands="b, c",
        )
    )
    assert relayouts(after) == []


# In place.

UPDATE = "dynamic_update_slice({}, u, 0:i64)"


def test_an_argument_is_copied_before_it_is_updated() -> None:
    after = assigned(
        program(
            "x: f64[9], u: f64[2]",
            "f64[9]",
            f"a: f64[9] = {UPDATE.format('x')}",
            "return a",
        )
    )
    assert relayouts(after) == ["a: f64[9] = relayout(x) {layout='C'}"]


def test_a_value_that_nothing_else_uses_is_updated_in_place() -> None:
    after = assigned(
        program(
            "x: f64[9], u: f64[2]",
            "f64[9]",
            "a: f64[9] = neg(x)",
            f"b: f64[9] = {UPDATE.format('a')}",
            "return b",
        )
    )
    assert relayouts(after) == []


def test_a_value_that_is_used_again_is_copied_before_it_is_updated() -> None:
    after = assigned(
        program(
            "x: f64[9], u: f64[2]",
            "f64[9], f64[9]",
            "a: f64[9] = neg(x)",
            f"b: f64[9] = {UPDATE.format('a')}",
            "c: f64[9] = add(a, b)",
            "return b, c",
        )
    )
    assert relayouts(after) == ["b: f64[9] = relayout(a) {layout='C'}"]
