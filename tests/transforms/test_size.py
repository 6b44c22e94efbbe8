"""Transformed Programs, and the time to make them, grow as the Programs do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Program
from arrayfn.ir_text import format_program, parse_program
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import special
from arrayfn.primitives.table import TABLE
from arrayfn.transforms.batch import batch
from arrayfn.transforms.jvp import jvp
from arrayfn.transforms.transpose import value_and_grad
from tests.programs import build

SCALAR = ArrayType((), dtypes.float64)


def chain(length: int) -> Program:
    """A Program of ``length`` equations that also uses early values late."""

    def emit(x: Any) -> Any:
        values = [x]
        for k in range(length // 2):
            values.append(special.sin(values[-1]))
            values.append(e.mul(values[-1], values[k]))
        return values[-1]

    return build(emit, SCALAR)


def read_back(program: Program) -> Program:
    return parse_program(format_program(program), TABLE)


TRANSFORMATIONS: dict[str, Callable[[Program], Program]] = {
    "jvp": lambda p: jvp(p, [True]),
    "value_and_grad": lambda p: value_and_grad(p, [True]),
    "batch": lambda p: batch(p, 4, [0], [0]),
    "text": read_back,
}


def seconds(function: Callable[[Program], Program], program: Program) -> float:
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        function(program)
        best = min(best, time.process_time() - start)
    return best


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_a_long_program_is_transformed_in_linear_time(name: str) -> None:
    function = TRANSFORMATIONS[name]
    short, long = chain(1000), chain(8000)
    growth = len(function(long).equations) / len(function(short).equations)
    assert growth == pytest.approx(8.0, rel=0.02)
    # Quadratic time would be a factor of 64.
    assert seconds(function, long) < 24 * seconds(function, short)


def test_ten_thousand_equations_differentiate() -> None:
    program = value_and_grad(chain(10_000), [True])
    assert len(program.equations) < 60_000
    program.check()
