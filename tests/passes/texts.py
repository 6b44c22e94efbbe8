"""Programs of these tests, as text: parse, run a pass, compare text and bits."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.ir import Program
from arrayfn.ir.text import format_program, parse_program
from arrayfn.primitives.calls import evaluate
from arrayfn.primitives.table import TABLE

SPECIAL = [-0.0, 0.0, 1.0, -2.5, np.nan, np.inf, -np.inf, 1e-310, 3e38]
INTEGERS = [0, 1, -1, 7, -128, 127, 2**31 - 1, -(2**31), 5]
COMPLEX = [complex(x, y) for x, y in [(-0.0, 0.0), (1.0, -2.0), (-0.5, -0.0)] * 3]


def parse(text: str, constants: Sequence[Any] = ()) -> Program:
    """The Program of an indented text."""
    return parse_program(textwrap.dedent(text), TABLE, constants)


def show(program: Program) -> str:
    return format_program(program, comments=False)


def body(program: Program) -> list[str]:
    """The equations and the return of a Program, without the types of values."""
    lines = show(program).strip().splitlines()[1:-1]
    return [line.strip() for line in lines]


def samples(program: Program) -> list[Any]:
    """An array of special values for each input; two inputs meet in other orders."""
    made: list[Any] = []
    for position, type in enumerate(program.input_types):
        if type.dtype == dtypes.bool_:
            values = np.array([True, False, True])
        elif type.dtype in dtypes.INTEGERS:
            values = np.array(INTEGERS).astype(type.dtype)
        elif type.dtype in dtypes.COMPLEX:
            values = np.array(COMPLEX)
        else:
            values = np.array(SPECIAL)
        flat = np.resize(np.roll(values, -position), (max(type.size, 1),))
        with np.errstate(all="ignore"):
            made.append(flat[: type.size].reshape(type.shape).astype(type.dtype))
    return made


def bits(value: Any) -> bytes:
    """The bits of an array, any NaN like another."""
    array = np.array(value)
    if array.dtype in dtypes.COMPLEX:
        array = array.reshape(-1).view(array.real.dtype)
    if array.dtype in dtypes.INEXACT:
        array[np.isnan(array)] = np.nan
    return array.tobytes()


def check_same_bits(before: Program, after: Program) -> None:
    """Assert that both Programs give the same bits for special values."""
    arguments = samples(before)
    with np.errstate(all="ignore"):
        pairs = zip(
            evaluate(before, arguments), evaluate(after, arguments), strict=True
        )
        for want, have in pairs:
            assert np.asarray(have).dtype == np.asarray(want).dtype
            assert np.shape(have) == np.shape(want)
            assert bits(have) == bits(want), f"{have} is not {want}"


def check_pass(
    apply: Callable[[Program], Program], text: str, expected: Sequence[str]
) -> None:
    """Assert the equations after a pass, that types fit, and that no bit changes."""
    before = parse(text)
    after = apply(before)
    after.check()
    assert body(after) == list(expected)
    assert after.input_types == before.input_types
    assert after.output_types == before.output_types
    check_same_bits(before, after)
