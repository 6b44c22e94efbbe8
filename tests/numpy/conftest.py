"""Fixtures that compare a function with NumPy's: at once, and traced."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from arrayfn import tree
from arrayfn.primitives.calls import evaluate
from arrayfn.tracing import ArrayOnDevice
from arrayfn.transforms import trace_function

RTOL = {"float16": 2e-3, "float32": 2e-6, "complex64": 2e-6}


def run_traced(function: Callable[..., Any], *args: Any) -> list[np.ndarray]:
    """The results of ``function``'s Program, interpreted."""
    flat = trace_function(function, args, {}, abstract=True)
    flat.program.check()
    operands = [*tree.leaves(args), *flat.trace.captured]
    return [np.asarray(x) for x in evaluate(flat.program, operands)]


def dependent(function: Callable[..., Any], *args: Any) -> list[bool]:
    """Which results of ``function`` are computed from its arguments."""
    program = trace_function(function, args, {}, abstract=True).program
    known = set(program.inputs[: len(tree.leaves(args))])
    for equation in program.equations:
        if known.intersection(equation.inputs):
            known.update(equation.outputs)
    return [output in known for output in program.outputs]


def assert_same(result: Any, expected: Any, what: str) -> None:
    """Equal dtype, shape and (within rounding) values."""
    result, expected = np.asarray(result), np.asarray(expected)
    assert result.dtype == expected.dtype, what
    assert result.shape == expected.shape, what
    rtol = RTOL.get(expected.dtype.name, 1e-14)
    np.testing.assert_allclose(result, expected, rtol=rtol, atol=rtol, err_msg=what)


def compare(
    there: Callable[[Any], Any],
    ours: Callable[..., Any],
    theirs: Callable[..., Any],
    *args: Any,
) -> None:
    """``ours`` gives what ``theirs`` does, in new arrays, and so does its Program.

    So it does on a device, where ``there`` puts arrays.
    """
    before = [np.array(x) for x in args]
    with np.errstate(all="ignore"):
        expected = tree.leaves(theirs(*args))
    results = tree.leaves(ours(*args))
    assert len(results) == len(expected)
    for result, wanted in zip(results, expected, strict=True):
        assert_same(result, wanted, "at once")
        if isinstance(result, np.ndarray):
            assert result.flags.c_contiguous
            assert result.flags.writeable
            assert result.flags.owndata
            assert not any(np.shares_memory(result, x) for x in args)
    for result, wanted in zip(run_traced(ours, *args), expected, strict=True):
        assert_same(result, wanted, "traced")
    moved = tree.leaves(ours(*map(there, args)))
    depends = dependent(ours, *args)
    for result, wanted, is_computed in zip(moved, expected, depends, strict=True):
        assert isinstance(result, ArrayOnDevice) or not is_computed, "on a device"
        assert_same(result, wanted, "on a device")
    for x, kept in zip(args, before, strict=True):
        np.testing.assert_array_equal(x, kept)


@pytest.fixture
def check(there: Callable[[Any], Any]) -> Callable[..., None]:
    """``check(ours, theirs, *arrays)``: see ``compare``."""
    return functools.partial(compare, there)


@pytest.fixture
def traced() -> Callable[..., list[np.ndarray]]:
    """``traced(function, *arrays)``: see ``run_traced``."""
    return run_traced
