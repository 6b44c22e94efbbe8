"""The texts of transformed Programs; `pytest --update-golden` writes them anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Program
from arrayfn.ir.text import format_program, parse_program
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import reductions, special, views
from arrayfn.primitives.calls import operator_call
from arrayfn.primitives.table import TABLE
from arrayfn.transforms.batching import batch
from arrayfn.transforms.forward_mode import jvp
from arrayfn.transforms.linearization import linearize
from arrayfn.transforms.transposition import transpose, value_and_grad, vjp
from tests.programs import build

MATRIX = ArrayType((2, 3), dtypes.float32)
WEIGHTS = ArrayType((3, 4), dtypes.float32)
LABELS = ArrayType((2, 1), dtypes.int32)


def layer(x: Any, w: Any) -> Any:
    dot = TABLE["dot_general"]
    hidden = dot(x, w, contract=((1,), (0,)), batch=((), ()))
    return reductions.reduce_sum(special.tanh(hidden), axes=(0, 1))


def softmax(x: Any) -> Any:
    highest = views.broadcast_in_dim(
        reductions.reduce_max(x, axes=(1,)), shape=(2, 3), axes=(0,)
    )
    exponentials = special.exp(e.sub(x, highest))
    total = reductions.reduce_sum(exponentials, axes=(1,))
    return e.div(exponentials, views.broadcast_in_dim(total, shape=(2, 3), axes=(0,)))


def picked(x: Any, labels: Any) -> Any:
    rows = TABLE["gather"](
        x,
        labels,
        window_axes=(),
        collapsed_axes=(1,),
        indexed_axes=(1,),
        batch=((0,), (0,)),
        sizes=(1, 1),
        mode="clip",
        fill_value=None,
    )
    return reductions.reduce_sum(special.log(rows), axes=(0,))


def called(x: Any, y: Any) -> Any:
    body = build(lambda a, b: e.mul(special.sin(a), b), MATRIX, MATRIX, name="wave")
    (value,) = (operator_call(x, y, name="wave", body=body),)
    return reductions.reduce_sum(value, axes=(0, 1))


PROGRAMS = {
    "layer": build(layer, MATRIX, WEIGHTS, name="layer"),
    "softmax": build(softmax, MATRIX, name="softmax"),
    "picked": build(picked, MATRIX, LABELS, name="picked"),
    "called": build(called, MATRIX, MATRIX, name="called"),
}
Golden = Callable[[str, str], None]


def differentiable(program: Program) -> list[bool]:
    return [t.dtype in dtypes.INEXACT for t in program.input_types]


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, golden: Golden) -> None:
    golden(name, format_program(PROGRAMS[name]))


@pytest.mark.parametrize("name", PROGRAMS)
def test_jvp(name: str, golden: Golden) -> None:
    program = PROGRAMS[name]
    golden(f"{name}_jvp", checked(jvp(program, differentiable(program))))


@pytest.mark.parametrize("name", PROGRAMS)
def test_linearize_and_transpose(name: str, golden: Golden) -> None:
    program = PROGRAMS[name]
    split = linearize(program, differentiable(program))
    parts = [split.known, split.linear, transpose(split.linear, split.residuals)]
    golden(f"{name}_linearize", "\n".join(map(checked, parts)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_reverse_mode(name: str, golden: Golden) -> None:
    program = PROGRAMS[name]
    scalar = not program.output_types[0].shape
    reverse = value_and_grad if scalar else vjp
    golden(f"{name}_grad", checked(reverse(program, differentiable(program))))


@pytest.mark.parametrize("name", PROGRAMS)
def test_batch(name: str, golden: Golden) -> None:
    program = PROGRAMS[name]
    dims = [1, *[None] * (len(program.inputs) - 1)]
    golden(f"{name}_batch", checked(batch(program, 5, dims, [0])))


def checked(program: Program) -> str:
    """The text of a Program whose types are right, which parses back."""
    program.check()
    text = format_program(program)
    assert format_program(parse_program(text, TABLE, program.constant_values)) == text
    return text
