"""Operands of two dtypes: int64 beside uint64, and bfloat16 beside integers."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.dtypes import bfloat16, promote
from tests.lowered_on_gpu import lowered

COMPARISONS = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}
SIGNED = np.array(
    [2**63 - 1, 2**63 - 1, -1, -1, -(2**63), 0, 5, 7, 2**53 + 1], np.int64
)
NATURAL = np.array([2**63, 2**63 - 1, 2**64 - 1, 0, 2**63, 0, 5, 6, 2**53], np.uint64)


@pytest.mark.parametrize("name", COMPARISONS)
def test_signed_and_unsigned_integers_compare_exactly(name: str) -> None:
    ours, plain = getattr(anp, name), getattr(np, name)
    symbol = COMPARISONS[name]
    for x, y in ((SIGNED, NATURAL), (NATURAL, SIGNED)):
        want = [symbol(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
        for function in (ours, symbol):
            assert ours(x, y).tolist() == want == plain(x, y).tolist()
            assert af.jit(function)(x, y).tolist() == want
            assert af.jit(function, device="reference")(x, y).tolist() == want
            (emulated,) = run_plan(lowered(function, x, y), (x, y))
            assert np.asarray(emulated, bool).tolist() == want


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32"])
def test_narrow_integers_compare_with_uint64_exactly(dtype: str) -> None:
    x = np.array([[-1], [0], [100]], dtype)
    y = np.array([2**64 - 1, 0, 100], np.uint64)
    for name in COMPARISONS:
        ours, plain = getattr(anp, name), getattr(np, name)
        np.testing.assert_array_equal(af.jit(ours)(x, y), plain(x, y))
        np.testing.assert_array_equal(af.jit(ours)(y, x), plain(y, x))


def test_extrema_of_signed_and_unsigned_integers_are_float64_as_numpys() -> None:
    for function in (anp.maximum, anp.minimum, anp.add):
        assert function(SIGNED, NATURAL).dtype == np.float64
        assert af.jit(function)(SIGNED, NATURAL).dtype == np.float64


@pytest.mark.parametrize("other", sorted(dtypes.INTEGERS | {dtypes.bool_}, key=str))
def test_bfloat16_stays_itself_with_integers(other: Any) -> None:
    for pair in ((bfloat16, other), (other, bfloat16)):
        assert promote((dtype, False) for dtype in pair) == (bfloat16, False)
    x = np.array([1.5, -2.0, 0.25], bfloat16)
    y = np.array([1, 0, 1], other)
    for left, right in ((x, y), (y, x)):
        for function in (anp.add, anp.multiply, anp.maximum):
            have = function(left, right)
            assert have.dtype == bfloat16
            assert af.jit(function)(left, right).dtype == bfloat16
            want = function(left.astype(np.float32), right.astype(np.float32))
            np.testing.assert_array_equal(have.astype(np.float32), want)


BY_SCALAR: dict[str, Callable[[Any], Any]] = {
    "add": lambda x: anp.add(x, 0.5),
    "power": lambda x: anp.power(anp.abs(x), 0.5),
    "multiply": lambda x: anp.multiply(2, x),
    "divide": lambda x: anp.divide(x, 3),
    "maximum": lambda x: anp.maximum(x, 0.0),
    "where": lambda x: anp.where(x > 0, x, 0.0),
    "logaddexp2": lambda x: anp.logaddexp2(x, 0.5),
    "arctan2": lambda x: anp.arctan2(x, 2),
    "matmul": lambda x: anp.matmul(x, x),
    "sum": anp.sum,
    "mean": anp.mean,
    "var": anp.var,
}


@pytest.mark.parametrize("name", BY_SCALAR)
def test_functions_of_bfloat16_have_one_dtype_inside_jit_and_outside(name: str) -> None:
    x = np.array([1.5, -2.0, 0.25], bfloat16)
    function = BY_SCALAR[name]
    assert function(x).dtype == af.jit(function)(x).dtype == bfloat16
