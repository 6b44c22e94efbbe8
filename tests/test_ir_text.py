"""The textual form: what is printed parses back to a Program that prints the same."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrayfn import dtypes, lax
from arrayfn.errors import ProgramError, SourceLocation
from arrayfn.ir import ArrayType, Equation, Literal, Program, Var
from arrayfn.ir import layout as layouts
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.ir.format import variable_names
from arrayfn.ir.text import format_program, parse_program
from arrayfn.primitives import calls, contraction, discrete, reductions, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.calls import evaluate
from arrayfn.primitives.table import TABLE
from arrayfn.transforms import make_program

LOSS = """\
program loss(a: f32[4,3], b: f32[2,4]) constants (c: f32[2]) -> (f32[]) {
  d: f32[2,3] = dot_general(b, a) {contract=((1,),(0,)), batch=((),())}  # train.py:14
  e: f32[2,3] = mul(d, 0.5:f32)
  f: f32[] = reduce_sum(e) {axes=(0,1)}
  return f
}
"""
CONSTANT = np.ones(2, np.float32)


def test_a_program_prints_as_it_was_written() -> None:
    program = parse_program(LOSS, TABLE, [CONSTANT])
    assert format_program(program) == LOSS


def test_a_comment_with_a_line_is_the_source() -> None:
    program = parse_program(LOSS, TABLE, [CONSTANT])
    assert program.equations[0].source == SourceLocation("train.py", 14)
    assert program.equations[1].source is None
    assert "train.py" not in format_program(program, comments=False)


def test_white_space_and_line_breaks_do_not_matter() -> None:
    flat = " ".join(line.partition("#")[0] for line in LOSS.splitlines())
    program = parse_program(flat, TABLE, [CONSTANT])
    assert format_program(program) == LOSS.replace("  # train.py:14", "")


def test_a_nested_program_prints_below_its_equation() -> None:
    builder = ProgramBuilder("outer")
    inner = ProgramBuilder("twice")
    with inner:
        y = inner.input(ArrayType((3,), dtypes.float32))
        body = inner.build([e.add(y, y)])
    with builder:
        x = builder.input(ArrayType((3,), dtypes.float32))
        builder.source = SourceLocation("model.py", 7)
        (out,) = builder.emit(calls.operator_call, [x], {"name": "twice", "body": body})
        program = builder.build([e.neg(out)])
    text = format_program(program)
    mark = "# model.py:7"
    assert text == (
        "program outer(a: f32[3]) -> (f32[3]) {\n"
        f"  b: f32[3] = operator_call(a) {{name='twice'}}                     {mark}\n"
        "    body = program twice(a: f32[3]) -> (f32[3]) {\n"
        "      b: f32[3] = add(a, a)\n"
        "      return b\n"
        "    }\n"
        f"  c: f32[3] = neg(b)                                              {mark}\n"
        "  return c\n"
        "}\n"
    )
    parsed = parse_program(text, TABLE)
    assert format_program(parsed) == text
    x = np.array([1.0, 2.0, 3.0], np.float32)
    np.testing.assert_array_equal(evaluate(parsed, [x])[0], [-2.0, -4.0, -6.0])


LITERALS = st.one_of(
    st.tuples(st.booleans(), st.just(dtypes.bool_)),
    st.tuples(st.integers(-(2**63), 2**63 - 1), st.just(dtypes.int64)),
    st.tuples(st.integers(0, 2**64 - 1), st.just(dtypes.uint64)),
    st.tuples(st.floats(), st.just(dtypes.float64)),
    st.tuples(st.integers(-5, 5), st.just(dtypes.float32)),
    st.tuples(st.complex_numbers(allow_nan=True), st.just(dtypes.complex128)),
    st.tuples(st.builds(complex, st.floats(), st.floats()), st.just(dtypes.complex128)),
)


def same_bits(x: object, y: object) -> bool:
    if isinstance(x, complex) and isinstance(y, complex):
        return same_bits(x.real, y.real) and same_bits(x.imag, y.imag)
    if isinstance(x, float) and isinstance(y, float):
        both_nan = math.isnan(x) and math.isnan(y)
        return both_nan or (x == y and math.copysign(1, x) == math.copysign(1, y))
    return type(x) is type(y) and x == y


@given(LITERALS, st.booleans())
def test_literals_come_back_as_they_were(literal: tuple, weak: bool) -> None:
    value, dtype = literal
    program = Program("p", (), (), (Literal(value, dtype, weak),))
    (back,) = parse_program(format_program(program), TABLE).outputs
    assert isinstance(back, Literal)
    assert same_bits(back.value, value)
    assert back.type == ArrayType((), dtype, weak=weak)


TYPES = st.builds(
    lambda shape, dtype, layout, weak: ArrayType(
        tuple(shape),
        dtype,
        layouts.Strided(tuple(7 - k for k in shape)) if layout is None else layout,
        weak,
    ),
    st.lists(st.integers(0, 9), max_size=3),
    st.sampled_from(list(dtypes.SHORT_NAMES)),
    st.sampled_from([layouts.C, layouts.F, None]),
    st.booleans(),
)


@given(st.lists(TYPES, max_size=4))
def test_types_come_back_as_they_were(types: list[ArrayType]) -> None:
    inputs = tuple(Var(t) for t in types)
    program = Program("p", inputs, (), inputs)
    parsed = parse_program(format_program(program), TABLE)
    assert list(parsed.input_types) == types
    assert list(parsed.output_types) == types


class AnyParams:
    """A primitive without operands that takes any params."""

    name = "any"

    def result_types(
        self, inputs: object, params: object, source: object = None
    ) -> tuple[ArrayType, ...]:
        return (ArrayType((), dtypes.float32),)


PARAMS = st.dictionaries(
    st.sampled_from(["axis", "shape", "dtype", "mode", "name"]),
    st.recursive(
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(allow_nan=False),
            st.complex_numbers(allow_nan=False),
            st.text(max_size=8),
            st.sampled_from(list(dtypes.SHORT_NAMES)),
        ),
        lambda inner: st.lists(inner, max_size=3).map(tuple),
        max_leaves=8,
    ),
)


@given(PARAMS)
def test_params_come_back_as_they_were(params: dict) -> None:
    equation = Equation.infer(AnyParams(), (), params)
    program = Program("p", (), (equation,), equation.outputs)
    parsed = parse_program(format_program(program), {"any": AnyParams()})
    back = dict(parsed.equations[0].params)
    assert repr(back) == repr(params)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Programs of a few equations over float64 matrices, nested one deep."""
    builder = ProgramBuilder("random")
    with builder:
        values = [builder.input(ArrayType((2, 3), dtypes.float64)) for _ in range(2)]
        values.append(builder.constant(np.full((2, 3), 0.25)))
        for _ in range(draw(st.integers(0, 6))):
            x, y = draw(st.sampled_from(values)), draw(st.sampled_from(values))
            builder.source = draw(
                st.none()
                | st.builds(SourceLocation, st.just("f.py"), st.integers(1, 99))
            )
            choice = draw(st.integers(0, 4))
            if choice == 0:
                values.append(e.mul(x, draw(st.floats(-9, 9))))
            elif choice == 1:
                values.append(e.select(discrete.lt(x, y), x, y))
            elif choice == 2:
                total = reductions.reduce_sum(x, axes=(1,))
                values.append(views.broadcast_in_dim(total, shape=(2, 3), axes=(0,)))
            elif choice == 3:
                square = contraction.dot_general(
                    x, y, contract=((1,), (1,)), batch=((), ())
                )
                values.append(
                    contraction.dot_general(
                        square, y, contract=((1,), (0,)), batch=((), ())
                    )
                )
            else:
                inner = ProgramBuilder("inner")
                with inner:
                    u = inner.input(ArrayType((2, 3), dtypes.float64))
                    body = inner.build([e.neg(u)])
                (out,) = builder.emit(
                    calls.operator_call, [x], {"name": "inner", "body": body}
                )
                values.append(out)
        return builder.build([values[-1], draw(st.sampled_from(values))])


@given(programs())
def test_programs_round_trip_and_mean_the_same(program: Program) -> None:
    text = format_program(program)
    parsed = parse_program(text, TABLE, program.constant_values)
    assert format_program(parsed) == text
    arguments = [np.arange(6.0).reshape(2, 3), np.full((2, 3), -1.5)]
    for x, y in zip(
        evaluate(program, arguments), evaluate(parsed, arguments), strict=True
    ):
        np.testing.assert_array_equal(x, y)


def test_names_of_many_values_are_distinct_and_readable_back() -> None:
    names = [name for name, _ in zip(variable_names(), range(20000), strict=False)]
    assert len(set(names)) == len(names)
    assert not {"in", "if", "as", "nan", "inf", "nanj", "infj", "def"} & set(names)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "reduce_sum",
            "reduce_sun",
            "line 4: there is no primitive 'reduce_sun'; is it",
        ),
        ("mul(d,", "mul(x,", "line 3: x is not defined"),
        ("e: f32[2,3]", "d: f32[2,3]", "line 3: d is defined twice"),
        ("mul(d,", "mul(e,", "line 3: e is not defined"),
        ("e: f32[2,3]", "e: f32[3,2]", "line 3: mul: mul gives f32[2,3], but its"),
        ("0.5:f32", "0.5:f64", "line 3: mul: "),
        ("0.5:f32", "0.5", "line 3: expected ':', found ')'"),
        ("0.5:f32", "0.5:f31", "line 3: there is no data type 'f31'"),
        ("axes=(0,1)", "axes=(0,1), axes=()", "line 4: parameter axes is given twice"),
        ("axes=(0,1)", "axis=(0,1)", "line 4: reduce_sum: "),
        ("axes=(0,1)", "axes=f", "line 4: expected a parameter's value, found 'f'"),
        ("axes=(0,1)", "axes=" + "(" * 500, "line 4: nested more than"),
        ("-> (f32[])", "-> (f32[2])", "line 5: loss returns f32[], not f32[2]"),
        ("f32[4,3]", "f32[4,-3]", "line 1: an extent cannot be negative: -3"),
        ("f32[4,3]", "f32[4,3] S(1)", "line 1: 1 strides for 2 axes"),
        ("f32[4,3]", "f32[4,3.0]", "line 1: expected an integer, found '3.0'"),
        (
            "c: f32[2]",
            "c: f32[3]",
            "line 1: the program has f32[3], but was given f32[2]",
        ),
        ("return f", "", "line 6: expected the name of a value, found '}'"),
        ("\n}\n", "\n", "line 6: expected '}', found 'the end of the text'"),
        ("\n}\n", "\n} loss", "line 6: expected the end of the text, found 'loss'"),
        ("program", "function", "line 1: expected 'program', found 'function'"),
        ("f: f32[]", "f; f32[]", "line 4: cannot read '; f32[] = reduce_sum"),
    ],
)
def test_malformed_text_names_the_line(old: str, new: str, message: str) -> None:
    assert old in LOSS
    with pytest.raises(ProgramError) as caught:
        parse_program(LOSS.replace(old, new, 1), TABLE, [CONSTANT])
    assert message in str(caught.value)


def test_missing_constants_are_an_error() -> None:
    with pytest.raises(ProgramError, match="but was given none"):
        parse_program(LOSS, TABLE)


def test_an_array_that_is_not_aligned_is_one_constant():
    memory = np.zeros(8 * 4 + 1, np.uint8)
    array = memory[1:].view(np.float64)
    builder = ProgramBuilder("f")
    first, second = builder.constant(array), builder.constant(array)
    assert first is second


def test_equations_of_deeply_nested_programs_have_their_lines() -> None:
    def nested(x: Any, depth: int) -> Any:
        if depth == 0:
            return x
        return lax.cond(x > 0, lambda: nested(x, depth - 1), lambda: x + 1)

    lines = str(make_program(lambda x: nested(x, 20))(1.0)).splitlines()
    deepest = max(lines, key=lambda line: len(line) - len(line.lstrip()))
    assert re.search(r"  # .*test_ir_text.py:\d+$", deepest)
