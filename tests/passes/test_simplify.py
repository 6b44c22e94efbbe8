"""simplify: each rule as text, with the same bits for special values."""

from __future__ import annotations

import numpy as np
import pytest

from arrayfn.ir import Program
from arrayfn.passes.simplify import RULES, simplify
from arrayfn.transforms.dce import dce
from tests.passes.texts import body, check_pass, check_same_bits, parse


def simplified(program: Program) -> Program:
    return dce(simplify(program))


def rule(
    inputs: str, output: str, equations: list[str], expected: list[str]
) -> tuple[str, list[str]]:
    """A case: a Program of ``equations``, and its equations after the pass."""
    lines = [f"program f({inputs}) -> ({output}) {{", *equations, "}"]
    return "\n".join(lines) + "\n", expected


MATRIX = "x: f32[2,3]"

ARITHMETIC = {
    "parts_padded_with_zeros_around_each_other_are_one_array": rule(
        "x: i32[2,3], y: i32[2,4], z: i32[2,1]",
        "i32[2,9]",
        [
            "a: i32[2,9] = pad(x, 0:i32) {config=((0,0,0),(5,1,0))}",
            "b: i32[2,9] = pad(y, 0:i32) {config=((0,0,0),(1,4,0))}",
            "c: i32[2,9] = add(a, b)",
            "d: i32[2,9] = pad(z, 0:i32) {config=((0,0,0),(0,8,0))}",
            "e: i32[2,9] = add(c, d)",
            "return e",
        ],
        [
            "a: i32[2,8] = concatenate(z, y, x) {axis=1}",
            "b: i32[2,9] = pad(a, 0:i32) {config=((0,0,0),(0,1,0))}",
            "return b",
        ],
    ),
    "parts_that_overlap_are_added_up": rule(
        "x: i32[3], y: i32[3]",
        "i32[5]",
        [
            "a: i32[5] = pad(x, 0:i32) {config=((0,2,0),)}",
            "b: i32[5] = pad(y, 0:i32) {config=((2,0,0),)}",
            "c: i32[5] = add(a, b)",
            "return c",
        ],
        [
            "a: i32[5] = pad(x, 0:i32) {config=((0,2,0),)}",
            "b: i32[5] = pad(y, 0:i32) {config=((2,0,0),)}",
            "c: i32[5] = add(a, b)",
            "return c",
        ],
    ),
    "a_barrier_before_what_needs_no_memory_goes": rule(
        "x: f32[9]",
        "f32[9]",
        [
            "a: f32[9] = broadcast_in_dim(2.0:f32) {shape=(9,), axes=()}",
            "b: f32[9] = optimization_barrier(a, x)",
            "c: f32[9] = atan2(x, b)",
            "return c",
        ],
        ["a: f32[9] = atan2(x, 2.0:f32)", "return a"],
    ),
    "a_barrier_before_a_value_stays": rule(
        "x: f32[9], y: f32[2]",
        "f32[9]",
        ["a: f32[9] = optimization_barrier(x, y)", "return a"],
        ["a: f32[9] = optimization_barrier(x, y)", "return a"],
    ),
    "adding_a_negation_subtracts": rule(
        "x: f32[9], y: f32[9]",
        "f32[9]",
        ["a: f32[9] = neg(y)", "b: f32[9] = add(x, a)", "return b"],
        ["a: f32[9] = sub(x, y)", "return a"],
    ),
    "adding_to_a_negation_subtracts": rule(
        "x: f32[9], y: f32[9]",
        "f32[9]",
        ["a: f32[9] = neg(x)", "b: f32[9] = add(a, y)", "return b"],
        ["a: f32[9] = sub(y, x)", "return a"],
    ),
    "subtracting_a_negation_adds": rule(
        "x: f32[9], y: f32[9]",
        "f32[9]",
        ["a: f32[9] = neg(y)", "b: f32[9] = sub(x, a)", "return b"],
        ["a: f32[9] = add(x, y)", "return a"],
    ),
    "adding_zero_to_integers_is_nothing": rule(
        "x: i32[9]",
        "i32[9]",
        ["a: i32[9] = add(x, 0:i32)", "b: i32[9] = add(0:i32, a)", "return b"],
        ["return x"],
    ),
    "adding_zero_to_floats_makes_minus_zero_zero_and_stays": rule(
        "x: f32[9]",
        "f32[9]",
        ["a: f32[9] = add(x, 0.0:f32)", "return a"],
        ["a: f32[9] = add(x, 0.0:f32)", "return a"],
    ),
    "subtracting_zero_is_nothing": rule(
        "x: f64[9]",
        "f64[9]",
        ["a: f64[9] = sub(x, 0.0:f64)", "return a"],
        ["return x"],
    ),
    "subtracting_minus_zero_stays": rule(
        "x: f64[9]",
        "f64[9]",
        ["a: f64[9] = sub(x, -0.0:f64)", "return a"],
        ["a: f64[9] = sub(x, -0.0:f64)", "return a"],
    ),
    "multiplying_by_one_is_nothing": rule(
        "x: f64[9]",
        "f64[9]",
        ["a: f64[9] = mul(x, 1.0:f64)", "b: f64[9] = mul(1.0:f64, a)", "return b"],
        ["return x"],
    ),
    "multiplying_by_zero_stays": rule(
        "x: f64[9]",
        "f64[9]",
        ["a: f64[9] = mul(x, 0.0:f64)", "return a"],
        ["a: f64[9] = mul(x, 0.0:f64)", "return a"],
    ),
    "a_product_with_itself_is_a_square": rule(
        "x: f32[9]",
        "f32[9]",
        ["a: f32[9] = mul(x, x)", "return a"],
        ["a: f32[9] = square(x)", "return a"],
    ),
    "dividing_by_one_is_nothing": rule(
        "x: f64[9]",
        "f64[9]",
        ["a: f64[9] = div(x, 1.0:f64)", "return a"],
        ["return x"],
    ),
    "dividing_by_another_number_stays": rule(
        "x: f64[9]",
        "f64[9]",
        ["a: f64[9] = div(x, 3.0:f64)", "b: f64[9] = div(a, 4.0:f64)", "return b"],
        ["a: f64[9] = div(x, 3.0:f64)", "b: f64[9] = div(a, 4.0:f64)", "return b"],
    ),
    "a_negation_of_a_negation_is_nothing": rule(
        "x: f64[9]",
        "f64[9]",
        ["a: f64[9] = neg(x)", "b: f64[9] = neg(a)", "return b"],
        ["return x"],
    ),
    "the_first_power_is_nothing": rule(
        "x: f64[9]",
        "f64[9]",
        ["a: f64[9] = pow(x, 1.0:f64)", "return a"],
        ["return x"],
    ),
    "the_second_power_is_a_square": rule(
        "x: f64[9]",
        "f64[9]",
        ["a: f64[9] = pow(x, 2.0:f64)", "return a"],
        ["a: f64[9] = square(x)", "return a"],
    ),
    "the_power_minus_one_is_a_reciprocal": rule(
        "x: f64[9]",
        "f64[9]",
        ["a: f64[9] = pow(x, -1.0:f64)", "return a"],
        ["a: f64[9] = reciprocal(x)", "return a"],
    ),
    "the_third_and_fourth_power_of_an_integer_are_products": rule(
        "x: i32[9]",
        "i32[9], i32[9]",
        ["a: i32[9] = pow(x, 3:i32)", "b: i32[9] = pow(x, 4:i32)", "return a, b"],
        [
            "a: i32[9] = square(x)",
            "b: i32[9] = mul(a, x)",
            "c: i32[9] = square(x)",
            "d: i32[9] = square(c)",
            "return b, d",
        ],
    ),
    "a_broken_power_stays": rule(
        "x: f64[9]",
        "f64[9]",
        ["a: f64[9] = pow(x, 2.5:f64)", "return a"],
        ["a: f64[9] = pow(x, 2.5:f64)", "return a"],
    ),
    "the_power_zero_of_a_scalar_is_one": rule(
        "x: f64[]",
        "f64[]",
        ["a: f64[] = pow(x, 0.0:f64)", "b: f64[] = add(a, x)", "return b"],
        ["a: f64[] = add(1.0:f64, x)", "return a"],
    ),
    "one_by_an_array_of_ones_shape_is_a_reciprocal": rule(
        "x: f64[]",
        "f64[]",
        ["a: f64[] = div(1.0:f64, x)", "return a"],
        ["a: f64[] = reciprocal(x)", "return a"],
    ),
    "literals_are_folded_in_their_dtype": rule(
        "x: f32[9]",
        "f32[9]",
        [
            "a: f32[] = div(1.0:f32, 3.0:f32)",
            "b: f32[] = neg(a)",
            "c: f32[9] = add(x, b)",
            "return c",
        ],
        ["a: f32[9] = add(x, -0.3333333432674408:f32)", "return a"],
    ),
    "integer_literals_wrap_as_numpys": rule(
        "x: i32[9]",
        "i32[9]",
        [
            "a: i32[] = add(2147483647:i32, 1:i32)",
            "b: i32[9] = max(x, a)",
            "return b",
        ],
        ["a: i32[9] = max(x, -2147483648:i32)", "return a"],
    ),
    "a_conversion_of_a_literal_is_a_literal": rule(
        "x: f32[9]",
        "f32[9]",
        [
            "a: f32[] = convert(3:i32) {dtype=f32}",
            "b: f32[9] = mul(x, a)",
            "return b",
        ],
        ["a: f32[9] = mul(x, 3.0:f32)", "return a"],
    ),
    "a_conversion_to_the_same_dtype_is_nothing": rule(
        "x: f32[9]",
        "f32[9]",
        ["a: f32[9] = convert(x) {dtype=f32}", "return a"],
        ["return x"],
    ),
    "narrowing_and_widening_stays": rule(
        "x: f64[9]",
        "f64[9]",
        [
            "a: f32[9] = convert(x) {dtype=f32}",
            "b: f64[9] = convert(a) {dtype=f64}",
            "return b",
        ],
        [
            "a: f32[9] = convert(x) {dtype=f32}",
            "b: f64[9] = convert(a) {dtype=f64}",
            "return b",
        ],
    ),
    "ones_that_are_spread_change_nothing": rule(
        "x: f32[9]",
        "f32[9]",
        [
            "a: f32[9] = broadcast_in_dim(1.0:f32) {shape=(9,), axes=()}",
            "b: f32[9] = mul(a, x)",
            "return b",
        ],
        ["return x"],
    ),
    "widening_and_narrowing_is_nothing": rule(
        "x: bf16[9], k: i32[9]",
        "bf16[9], i32[9]",
        [
            "a: f32[9] = convert(x) {dtype=f32}",
            "b: bf16[9] = convert(a) {dtype=bf16}",
            "c: i64[9] = convert(k) {dtype=i64}",
            "d: i32[9] = convert(c) {dtype=i32}",
            "return b, d",
        ],
        ["return x, k"],
    ),
    "what_is_rounded_on_the_way_stays": rule(
        "k: i32[9]",
        "i32[9]",
        [
            "a: f32[9] = convert(k) {dtype=f32}",
            "b: i32[9] = convert(a) {dtype=i32}",
            "return b",
        ],
        [
            "a: f32[9] = convert(k) {dtype=f32}",
            "b: i32[9] = convert(a) {dtype=i32}",
            "return b",
        ],
    ),
    "a_selection_by_a_literal_is_one_of_its_sides": rule(
        "x: f64[9], y: f64[9]",
        "f64[9], f64[9]",
        [
            "a: f64[9] = select(True:bool, x, y)",
            "b: f64[9] = select(False:bool, x, y)",
            "return a, b",
        ],
        ["return x, y"],
    ),
    "a_selection_of_equals_is_either": rule(
        "c: bool[9], x: f64[9]",
        "f64[9]",
        ["a: f64[9] = select(c, x, x)", "return a"],
        ["return x"],
    ),
}

VIEWS = {
    "an_identity_transpose_is_nothing": rule(
        MATRIX,
        "f32[2,3]",
        ["a: f32[2,3] = transpose(x) {permutation=(0,1)}", "return a"],
        ["return x"],
    ),
    "transposes_compose": rule(
        "x: f32[2,3,4]",
        "f32[3,2,4]",
        [
            "a: f32[4,2,3] = transpose(x) {permutation=(2,0,1)}",
            "b: f32[3,2,4] = transpose(a) {permutation=(2,1,0)}",
            "return b",
        ],
        ["a: f32[3,2,4] = transpose(x) {permutation=(1,0,2)}", "return a"],
    ),
    "a_transpose_and_its_inverse_are_nothing": rule(
        "x: f32[2,3,4]",
        "f32[2,3,4]",
        [
            "a: f32[4,2,3] = transpose(x) {permutation=(2,0,1)}",
            "b: f32[2,3,4] = transpose(a) {permutation=(1,2,0)}",
            "return b",
        ],
        ["return x"],
    ),
    "a_transposed_product_exchanges_its_operands": rule(
        "x: f32[2,3], y: f32[3,4]",
        "f32[4,2]",
        [
            "a: f32[2,4] = dot_general(x, y) {contract=((1,),(0,)), batch=((),())}",
            "b: f32[4,2] = transpose(a) {permutation=(1,0)}",
            "return b",
        ],
        [
            "a: f32[4,2] = dot_general(y, x) {contract=((0,),(1,)), batch=((),())}",
            "return a",
        ],
    ),
    "broadcasts_compose": rule(
        "x: f32[3]",
        "f32[4,2,3]",
        [
            "a: f32[2,3] = broadcast_in_dim(x) {shape=(2,3), axes=(1,)}",
            "b: f32[4,2,3] = broadcast_in_dim(a) {shape=(4,2,3), axes=(1,2)}",
            "return b",
        ],
        ["a: f32[4,2,3] = broadcast_in_dim(x) {shape=(4,2,3), axes=(2,)}", "return a"],
    ),
    "a_broadcast_to_its_own_shape_is_nothing": rule(
        MATRIX,
        "f32[2,3]",
        [
            "a: f32[2,3] = broadcast_in_dim(x) {shape=(2,3), axes=(0,1)}",
            "return a",
        ],
        ["return x"],
    ),
    "reshapes_compose": rule(
        MATRIX,
        "f32[3,2]",
        [
            "a: f32[6] = reshape(x) {shape=(6,)}",
            "b: f32[3,2] = reshape(a) {shape=(3,2)}",
            "return b",
        ],
        ["a: f32[3,2] = reshape(x) {shape=(3,2)}", "return a"],
    ),
    "a_reshape_there_and_back_is_nothing": rule(
        MATRIX,
        "f32[2,3]",
        [
            "a: f32[6] = reshape(x) {shape=(6,)}",
            "b: f32[2,3] = reshape(a) {shape=(2,3)}",
            "return b",
        ],
        ["return x"],
    ),
    "axes_of_extent_one_that_come_and_go_are_nothing": rule(
        "x: f32[3]",
        "f32[3]",
        [
            "a: f32[3,1] = broadcast_in_dim(x) {shape=(3,1), axes=(0,)}",
            "b: f32[3] = reshape(a) {shape=(3,)}",
            "return b",
        ],
        ["return x"],
    ),
    "a_reshape_of_a_spread_scalar_is_a_spread_scalar": rule(
        "x: f32[]",
        "f32[6]",
        [
            "a: f32[2,3] = broadcast_in_dim(x) {shape=(2,3), axes=()}",
            "b: f32[6] = reshape(a) {shape=(6,)}",
            "return b",
        ],
        ["a: f32[6] = broadcast_in_dim(x) {shape=(6,), axes=()}", "return a"],
    ),
    "a_spread_scalar_meets_an_array_as_a_scalar": rule(
        "x: f32[2,3], s: f32[]",
        "f32[2,3]",
        [
            "a: f32[2,3] = broadcast_in_dim(s) {shape=(2,3), axes=()}",
            "b: f32[2,3] = mul(x, a)",
            "return b",
        ],
        ["a: f32[2,3] = mul(x, s)", "return a"],
    ),
    "what_is_equal_along_an_axis_is_computed_once": rule(
        "x: f32[2,3], r: f32[2]",
        "f32[2,3]",
        [
            "a: f32[2,3] = broadcast_in_dim(r) {shape=(2,3), axes=(0,)}",
            "b: f32[2,3] = sqrt(a)",
            "c: f32[2,3] = mul(b, 3.0:f32)",
            "d: f32[2,3] = add(x, c)",
            "return d",
        ],
        [
            "a: f32[2] = sqrt(r)",
            "b: f32[2] = mul(a, 3.0:f32)",
            "c: f32[2,3] = broadcast_in_dim(b) {shape=(2,3), axes=(0,)}",
            "d: f32[2,3] = add(x, c)",
            "return d",
        ],
    ),
    "what_differs_along_both_axes_is_not": rule(
        "r: f32[3], s: f32[3]",
        "f32[3,3]",
        [
            "a: f32[3,3] = broadcast_in_dim(r) {shape=(3,3), axes=(0,)}",
            "b: f32[3,3] = broadcast_in_dim(s) {shape=(3,3), axes=(1,)}",
            "c: f32[3,3] = add(a, b)",
            "return c",
        ],
        [
            "a: f32[3,3] = broadcast_in_dim(r) {shape=(3,3), axes=(0,)}",
            "b: f32[3,3] = broadcast_in_dim(s) {shape=(3,3), axes=(1,)}",
            "c: f32[3,3] = add(a, b)",
            "return c",
        ],
    ),
    "reducing_an_axis_of_extent_one_drops_it": rule(
        "x: f32[3,1]",
        "f32[3]",
        ["a: f32[3] = reduce_max(x) {axes=(1,)}", "return a"],
        ["a: f32[3] = reshape(x) {shape=(3,)}", "return a"],
    ),
    **{
        f"{name}_of_one_element_drops_its_axis": rule(
            "x: bool[3,1]",
            "bool[3]",
            [f"a: bool[3] = {name}(x) {{axes=(1,)}}", "return a"],
            ["a: bool[3] = reshape(x) {shape=(3,)}", "return a"],
        )
        for name in ("reduce_and", "reduce_or")
    },
    "reducing_other_axes_too_leaves_those": rule(
        "x: f32[3,1,4]",
        "f32[3]",
        ["a: f32[3] = reduce_min(x) {axes=(1,2)}", "return a"],
        [
            "a: f32[3,4] = reshape(x) {shape=(3,4)}",
            "b: f32[3] = reduce_min(a) {axes=(1,)}",
            "return b",
        ],
    ),
    "reducing_no_axis_is_nothing": rule(
        "x: f32[3,4]",
        "f32[3,4]",
        ["a: f32[3,4] = reduce_max(x) {axes=()}", "return a"],
        ["return x"],
    ),
    "stopping_a_gradient_is_nothing_once_derivatives_are_taken": rule(
        "x: f32[3], w: bool[3]",
        "f32[3]",
        [
            "a: f32[3] = stop_gradient(x)",
            "b: f32[3] = select(w, x, a)",
            "return b",
        ],
        ["return x"],
    ),
}
_ROWS = "window_axes=(1,), collapsed_axes=(0,), indexed_axes=(0,), batch=((),())"
SCATTERS = ("scatter", *(f"scatter_{name}" for name in ("add", "mul", "min", "max")))

NOTHING = {
    "reading_an_empty_array_fills": rule(
        "x: f32[0,2], i: i64[3,1]",
        "f32[3,2]",
        [
            (
                "a: f32[3,2] = gather(x, i) {sizes=(1,2), mode='fill', fill_value=3.0, "
                f"{_ROWS}}}"
            ),
            "return a",
        ],
        [
            "a: f32[3,2] = broadcast_in_dim(3.0:f32) {shape=(3,2), axes=()}",
            "return a",
        ],
    ),
    **{
        f"a_{name}_of_an_empty_array_is_that": rule(
            "x: f32[0,2], i: i64[3,1], u: f32[3,2]",
            "f32[0,2]",
            [
                (
                    f"a: f32[0,2] = {name}(x, i, u) "
                    f"{{mode='drop', unique_indices=False, {_ROWS}}}"
                ),
                "return a",
            ],
            ["return x"],
        )
        for name in SCATTERS
    },
}

CASES = {**ARITHMETIC, **VIEWS, **NOTHING}


@pytest.mark.parametrize("name", CASES)
def test_a_rule_gives_this_text_and_the_same_bits(name: str) -> None:
    check_pass(simplified, *CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_a_second_run_changes_nothing(name: str) -> None:
    text, _ = CASES[name]
    once = simplified(parse(text))
    assert body(simplified(once)) == body(once)


@pytest.mark.parametrize("axes", ["(1,)", "()"])
def test_sums_of_one_element_keep_numpys_zero(axes: str) -> None:
    shape = "[3]" if axes == "(1,)" else "[3,1]"
    before = parse(
        f"program f(x: f32[3,1]) -> (f32{shape}) {{\n"
        f"  a: f32{shape} = reduce_sum(x) {{axes={axes}}}\n"
        "  return a\n}\n"
    )
    check_same_bits(before, simplified(before))


def test_rules_see_what_rules_made() -> None:
    before = parse(
        """
        program f(x: f32[3]) -> (f32[3]) {
          a: f32[3] = mul(x, 1.0:f32)
          b: f32[3] = neg(a)
          c: f32[3] = div(b, 1.0:f32)
          d: f32[3] = neg(c)
          e: f32[3] = reshape(d) {shape=(3,)}
          return e
        }
        """.lstrip()
    )
    after = simplified(before)
    assert body(after) == ["return x"]
    check_same_bits(before, after)


def test_equations_keep_their_line_and_the_inputs_stay() -> None:
    before = parse(
        """
        program f(x: f32[3], unused: f32[7]) -> (f32[3]) {
          a: f32[3] = mul(x, x)
          return a
        }
        """.lstrip()
    )
    after = simplified(before)
    assert [str(t) for t in after.input_types] == ["f32[3]", "f32[7]"]
    assert after.name == "f"


def test_folding_what_has_no_finite_value_warns_of_nothing() -> None:
    before = parse(
        """
        program f(x: f64[2]) -> (f64[2]) {
          a: f64[] = reciprocal(0.0:f64)
          b: f64[2] = mul(x, a)
          return b
        }
        """.lstrip()
    )
    with np.errstate(all="warn"):  # and a warning is an error in these tests
        assert body(simplified(before)) == ["a: f64[2] = mul(x, inf:f64)", "return a"]


def test_each_rule_of_the_table_is_tested_here() -> None:
    texts = "".join(text for text, _ in CASES.values())
    assert [name for name in RULES if f"= {name}(" not in texts] == []
