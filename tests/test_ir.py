"""Programs and their parts: types, construction, checks, and building."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

import arrayfn as af
from arrayfn import dtypes, lax
from arrayfn.errors import ProgramError, ShapeError, SourceLocation
from arrayfn.ir import ArrayType, Equation, Literal, Program, Var, type_of
from arrayfn.ir import layout as layouts
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.calls import evaluate, operator_call

F32 = ArrayType((2, 3), dtypes.float32)


# Types.


@pytest.mark.parametrize(
    ("type", "text"),
    [
        (F32, "f32[2,3]"),
        (ArrayType((), dtypes.bool_), "bool[]"),
        (ArrayType((4,), dtypes.bfloat16, weak=True), "~bf16[4]"),
        (ArrayType((2, 3), dtypes.int64, layouts.F), "i64[2,3] F"),
        (
            ArrayType((2, 3), dtypes.complex64, layouts.Strided((-3, 1))),
            "c64[2,3] S(-3,1)",
        ),
    ],
)
def test_the_text_of_a_type(type: ArrayType, text: str) -> None:
    assert str(type) == text


def test_the_numbers_of_a_type() -> None:
    assert (F32.ndim, F32.size, F32.nbytes) == (2, 6, 24)
    assert F32.with_shape([4]) == ArrayType((4,), dtypes.float32)
    assert F32.with_dtype(dtypes.int8) == ArrayType((2, 3), dtypes.int8)


def test_the_type_of_a_value_has_its_layout() -> None:
    x = np.zeros((4, 6), np.float32)
    assert type_of(x) == ArrayType((4, 6), dtypes.float32)
    assert type_of(x.T) == ArrayType((6, 4), dtypes.float32, layouts.F)
    assert type_of(x[:, ::2]).layout == layouts.Strided((6, 2))
    assert type_of(x[::-1]).layout == layouts.Strided((-6, 1))
    assert type_of(np.float16(1)) == ArrayType((), dtypes.float16)


@pytest.mark.parametrize(
    ("scalar", "dtype"),
    [
        (True, dtypes.bool_),
        (1, dtypes.int64),
        (1.0, dtypes.float64),
        (1j, dtypes.complex128),
    ],
)
def test_python_scalars_are_weak(scalar: complex, dtype: dtypes.DType) -> None:
    assert type_of(scalar) == ArrayType((), dtype, weak=True)


def test_weakness_ends_where_a_strong_operand_joins() -> None:
    builder = ProgramBuilder("p")
    with builder:
        weak = builder.input(ArrayType((), dtypes.float64, weak=True))
        strong = builder.input(ArrayType((2,), dtypes.float64))
        assert e.mul(weak, weak).type.weak
        assert e.neg(weak).type.weak
        assert not e.mul(weak, strong).type.weak


def test_literals_are_equal_by_their_bits() -> None:
    def key(value: float) -> object:
        return Literal(value, dtypes.float64).key()

    assert key(0.0) != key(-0.0)
    assert key(float("nan")) == key(float("nan"))
    assert key(1.0) != Literal(1.0, dtypes.float32).key()


# Programs are checked on construction.


def test_a_value_is_defined_before_it_is_used() -> None:
    x, y = Var(F32), Var(F32)
    late = Equation(e.neg, (y,), {}, (Var(F32),), SourceLocation("model.py", 3))
    with pytest.raises(ProgramError, match=r"model.py:3: p: neg uses a value before"):
        Program("p", (x,), (late,), (x,))
    with pytest.raises(ProgramError, match="an output is not defined"):
        Program("p", (x,), (), (y,))


def test_a_value_is_defined_once() -> None:
    x = Var(F32)
    again = Equation(e.neg, (x,), {}, (x,))
    with pytest.raises(ProgramError, match="defined twice"):
        Program("p", (x,), (again,), (x,))
    with pytest.raises(ProgramError, match="defined twice"):
        Program("p", (x, x), (), (x,))


def test_check_finds_a_wrong_type_also_in_nested_programs() -> None:
    x = Var(F32)
    wrong = Equation(e.neg, (x,), {}, (Var(F32.with_shape((3, 2))),))
    inner = Program("inner", (x,), (wrong,), wrong.outputs)
    with pytest.raises(ProgramError, match=r"neg gives f32\[2,3\].*typed f32\[3,2\]"):
        inner.check()
    y = Var(F32)
    params = {"name": "inner", "body": inner}
    call = Equation.infer(operator_call, (y,), params)
    assert call.subprograms() == (inner,)
    with pytest.raises(ProgramError, match="neg gives"):
        Program("outer", (y,), (call,), call.outputs).check()


def test_a_layout_is_no_matter_of_type_rules() -> None:
    x, y = Var(F32), Var(ArrayType((2, 3), dtypes.float32, layouts.F))
    Program("p", (x,), (Equation(e.neg, (x,), {}, (y,)),), (y,)).check()


def test_params_are_frozen() -> None:
    equation = Equation.infer(e.neg, (Var(F32),), {})
    with pytest.raises(TypeError):
        equation.params["axis"] = 0  # type: ignore[index]


# Building.


def test_equations_carry_the_line_that_is_current() -> None:
    builder = ProgramBuilder("p")
    with builder:
        x = builder.input(F32)
        builder.source = SourceLocation("model.py", 7)
        e.neg(x)
    assert builder.equations[0].source == SourceLocation("model.py", 7)


def test_an_equation_alone_is_shown_as_in_a_program() -> None:
    def looped(x):
        return lax.fori_loop(0, 3, lambda k, x: x * 2.0 - x, x)

    (product,) = af.make_program(lambda x, y: x * y + 0)(F32, F32).equations[:1]
    assert str(product).startswith("c: f32[2,3] = mul(a, b)  ")
    assert str(product).endswith(f"# {product.source}")
    assert repr(product) == f"<Equation {product}>"
    (loop,) = af.make_program(looped)(F32).equations
    assert ": f32[2,3] = mul(" in str(loop)
    assert repr(loop).count("\n") == 0


def test_an_error_of_a_rule_names_the_users_line() -> None:
    builder = ProgramBuilder("p")
    with builder:
        x, y = builder.input(F32), builder.input(F32.with_shape((4,)))
        with pytest.raises(ShapeError, match=r"test_ir.py:\d+: add takes") as caught:
            e.add(x, y)
    assert caught.value.location is not None


def test_a_constant_is_held_once() -> None:
    array = np.ones((2, 3), np.float32)
    builder = ProgramBuilder("p")
    with builder:
        a, b = builder.constant(array), builder.constant(array)
        assert a is b
        program = builder.build([e.add(a, b)])
    assert program.constants == (a,)
    assert program.constant_values[0] is array
    np.testing.assert_array_equal(evaluate(program, [])[0], 2 * array)


def test_inlining_renames_and_keeps_constants() -> None:
    array = np.full((2, 3), 2.0, np.float32)
    inner = ProgramBuilder("inner")
    with inner:
        x = inner.input(F32)
        body = inner.build([e.mul(x, inner.constant(array)), x])
    outer = ProgramBuilder("outer")
    with outer:
        y = outer.input(F32)
        first = outer.inline(body, [y])
        second = outer.inline(body, [first[0]])
        program = outer.build(second)
    assert first[1] is y
    assert len(program.constants) == 1
    ones = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(evaluate(program, [ones])[0], 4 * ones)


def test_the_interpreter_gives_literals_their_dtype() -> None:
    program = Program(
        "p", (), (), (Literal(3, dtypes.bfloat16), Literal(1, dtypes.bool_))
    )
    x, flag = evaluate(program, [])
    assert (x.dtype, float(x)) == (dtypes.bfloat16, 3.0)
    assert (flag.dtype, bool(flag)) == (dtypes.bool_, True)


@pytest.mark.parametrize("value", [Var(F32), Literal(1, dtypes.int32)])
@pytest.mark.parametrize("name", ["type", "hint", "value", "other"])
def test_values_are_immutable(value: Var | Literal, name: str) -> None:
    before = value.type
    with pytest.raises(FrozenInstanceError, match="is immutable"):
        setattr(value, name, None)
    with pytest.raises(FrozenInstanceError, match="is immutable"):
        delattr(value, name)
    assert value.type is before


def test_a_copied_program_keeps_which_values_are_the_same() -> None:
    builder = ProgramBuilder("f")
    x = builder.input(F32)
    copied = pickle.loads(pickle.dumps((x, x, Literal(2.5, dtypes.float32, True))))
    assert copied[0] is copied[1]
    assert (copied[0].type, copied[0].hint) == (x.type, x.hint)
    assert copied[2].key() == Literal(2.5, dtypes.float32).key()
    assert copied[2].type.weak
