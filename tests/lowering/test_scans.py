"""Scans of a single long row: in chunks, with the same bits for every thread count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn as af
from arrayfn.ir import ArrayType
from arrayfn.lowering.lower import lower
from arrayfn.lowering.templates.scans import CHUNK, CHUNKS
from arrayfn.primitives import cumulative
from tests.common_functions import same_on_threads
from tests.programs import build

ACCUMULATE = {
    "cumsum": np.cumsum,
    "cumprod": np.cumprod,
    "cummax": np.maximum.accumulate,
    "cummin": np.minimum.accumulate,
}
LONG = CHUNK * (CHUNKS + 1) + 77  # whole chunks, and a rest


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ACCUMULATE)
def test_a_long_row_is_scanned_as_numpy_does(name: str, reverse: bool) -> None:
    rng = np.random.default_rng(2)
    x = rng.integers(-9, 9, LONG)
    if name == "cumprod":
        x = np.sign(x - 0.5).astype(np.int64)

    @af.jit
    def run(x: Any) -> Any:
        return getattr(af.lax, name)(x, 0, reverse)

    given = x[::-1] if reverse else x
    want = ACCUMULATE[name](given)
    np.testing.assert_array_equal(run(x), want[::-1] if reverse else want)


def test_bits_do_not_depend_on_threads_and_a_nan_goes_through() -> None:
    x = np.random.default_rng(3).standard_normal(LONG).astype(np.float32)
    total = af.jit(af.lax.cumsum)
    exact = np.cumsum(x.astype(np.float64))
    np.testing.assert_allclose(same_on_threads(lambda: total(x)), exact, 1e-5, 1e-2)
    x[CHUNK + 5] = np.nan
    greatest = af.jit(af.lax.cummax)(x)
    assert not np.isnan(greatest[: CHUNK + 5]).any()
    assert np.isnan(greatest[CHUNK + 5 :]).all()


def test_a_long_row_is_several_kernels_and_short_ones_are_one() -> None:
    def steps(shape: tuple[int, ...]) -> int:
        def emit(x: Any) -> Any:
            return cumulative.cumsum(x, axis=len(shape) - 1, reverse=False)

        program = build(emit, ArrayType(shape, np.dtype(np.float32)))
        return len(lower(program).plan.steps)

    assert steps((LONG,)) == 5
    assert steps((2, LONG)) == 1
    assert steps((1000,)) == 1
