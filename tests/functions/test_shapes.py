"""eval_shape, ShapeDtypeStruct, make_program: nothing is run."""

from __future__ import annotations

import numpy as np
import pytest

from arrayfn.compilation.jit import jit
from arrayfn.errors import AbstractValueError, ArgumentError
from arrayfn.ir import Program
from arrayfn.transforms import ShapeDtypeStruct, eval_shape, grad, make_program

S = ShapeDtypeStruct


def test_shapes_of_a_function_that_is_not_run():
    def f(p, n):
        return {"y": p["x"] @ p["x"].T, "n": n * 2}

    huge = S((100_000, 3), "float32")
    result = eval_shape(f, {"x": huge}, 3)
    assert result["y"] == S((100_000, 100_000), np.float32)
    assert result["n"] == S((), np.int64, weak_type=True)
    assert (result["y"].ndim, result["y"].size, len(result["y"])) == (2, 10**10, 10**5)


def test_a_struct_is_hashable_and_prints_as_it_is_written():
    a = S([2, 3], np.float32)
    assert {a: 1}[S((2, 3), "float32")] == 1
    assert a != S((2, 3), "float64")
    assert repr(a) == "ShapeDtypeStruct(shape=(2, 3), dtype=float32)"


def test_a_struct_has_no_elements():
    for call in (jit(lambda x: x + 1), grad(lambda x: x.sum())):
        with pytest.raises(AbstractValueError, match="has no elements; pass an array"):
            call(S((3,), "float64"))


def test_lowering_takes_structs():
    lowered = jit(lambda x: x + 1).lower(S((3,), "float32"))
    assert lowered.program.input_types == (lowered.program.output_types[0],)


def test_a_program_and_its_result_types():
    program, shape = make_program(lambda x, k: x[:k] * 2, 1, return_shape=True)(
        np.ones(3), 2
    )
    assert isinstance(program, Program)
    assert [e.primitive.name for e in program.equations] == ["slice", "mul"]
    assert shape == S((2,), np.float64)
    nested = make_program(grad(lambda x: np.sin(x).sum()))(np.ones(3))
    assert "cos" in [e.primitive.name for e in nested.equations]


def test_a_program_is_abstract():
    with pytest.raises(AbstractValueError, match="a truth value"):
        make_program(lambda x: x if x > 0 else -x)(1.0)
    with pytest.raises(ArgumentError, match="not an array or number"):
        make_program(lambda x: x)("text")


def test_eval_shape_of_a_function_that_gives_structs_to_jitted_functions():
    inner = jit(lambda x: np.sum(x, axis=0))
    matrix = S((3, 4), np.float32)
    assert eval_shape(lambda: inner(matrix)) == S((4,), np.float32)
    gradient = eval_shape(lambda: grad(lambda x: inner(x).sum())(matrix))
    assert gradient == matrix
    with pytest.raises(AbstractValueError, match="has no elements"):
        jit(lambda: inner(matrix))()
