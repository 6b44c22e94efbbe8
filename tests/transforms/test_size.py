"""Transformed Programs, and the time to make them, grow as the Programs do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.ir import ArrayType, Program
from arrayfn.ir.text import format_program, parse_program
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import special
from arrayfn.primitives.table import TABLE
from arrayfn.transforms import grad, make_program, vmap
from arrayfn.transforms.batching import batch
from arrayfn.transforms.forward_mode import jvp
from arrayfn.transforms.transposition import value_and_grad
from tests.programs import build
from tests.timed import timed

SCALAR = ArrayType((), dtypes.float64)
X = np.linspace(0.0, 1.0, 4)
MOST_GROWTH = 20  # of time, if a Program is 8 times as long; quadratic would be 64


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


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_a_long_program_is_transformed_in_linear_time(name: str) -> None:
    function = TRANSFORMATIONS[name]
    short, of_short = timed(partial(function, chain(1000)))
    long, of_long = timed(partial(function, chain(8000)))
    growth = len(long.equations) / len(short.equations)
    assert growth == pytest.approx(8.0, rel=0.02)
    assert of_long < MOST_GROWTH * of_short


def long_function(length: int) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        y = x
        for _ in range(length // 4):
            y = anp.tanh(anp.sin(y) * x + 0.5)
        return y

    return f


FUNCTIONS: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "trace": lambda f: make_program(f)(0.5),
    "gradient": lambda f: make_program(grad(f))(0.5),
    "mapped gradient": lambda f: make_program(vmap(grad(f)))(X),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_long_function_is_traced_in_linear_time(name: str) -> None:
    make = FUNCTIONS[name]
    short, of_short = timed(partial(make, long_function(500)))
    long, of_long = timed(partial(make, long_function(4000)))
    growth = len(long.equations) / len(short.equations)
    assert growth == pytest.approx(8.0, rel=0.02)
    assert of_long < MOST_GROWTH * of_short


def test_derivatives_share_the_equations_of_the_function() -> None:
    program = make_program(long_function(400))(0.5)
    shared = set(program.equations) & set(jvp(program, [True]).equations)
    assert shared == set(program.equations)


def test_ten_thousand_equations_differentiate() -> None:
    program = value_and_grad(chain(10_000), [True])
    assert len(program.equations) < 60_000
    program.check()
