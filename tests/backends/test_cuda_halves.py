"""Rows of halves on a GPU: what is computed in fewer bits, and stays two to a word."""

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.backends.cuda import missing_packages
from arrayfn.backends.cuda.emulator.plan import run_plan
from tests.common_functions import random, softmax
from tests.lowered_on_gpu import lowered

needs_compiler = pytest.mark.skipif(bool(missing_packages()), reason=missing_packages())
HALF_PRECISION = {
    "float16": (np.float16, 2.0**-11),
    "bfloat16": (dtypes.bfloat16, 2.0**-8),
}


@pytest.mark.parametrize("name", HALF_PRECISION)
def test_a_softmax_is_rounded_once(name):
    dtype, bound = HALF_PRECISION[name]
    x = (random(3, 96) * 5).astype(dtype)
    compiled = lowered(softmax, x)
    source = compiled.kernels[0].source
    for word in ("widen_", "approximate_exp_f32", "* e_reciprocal", "store_"):
        assert word in source
    (result,) = run_plan(compiled, (x,))
    want = softmax(x.astype(float))
    normal = want > np.finfo(np.float32).tiny if dtype != np.float16 else want > 1e-4
    error = np.abs(result.astype(float) - want)[normal] / want[normal]
    assert error.max() < bound * 1.02


def test_what_is_divided_by_the_ends_of_the_range_is_what_divisions_give():
    ends = np.array([[0.0, 1e38, 3e38, 1e-38, np.inf, np.nan]], dtypes.bfloat16)
    x = np.concatenate([ends] * 8, 1)
    for number in (0.0, 2.0**-126, 2.0**127, -3e38, np.inf, np.nan):
        y = np.full((1, 1), number, dtypes.bfloat16)
        compiled = lowered(lambda x, y: x / anp.sum(y, axis=1, keepdims=True), x, y)
        with np.errstate(all="ignore"):
            want = x.astype(np.float32) / y.astype(np.float32)
            (result,) = run_plan(compiled, (x, y))
        rounded = want.astype(dtypes.bfloat16).astype(np.float32)
        np.testing.assert_array_equal(result.astype(np.float32), rounded)


def test_a_row_of_halves_takes_half_the_registers():
    rows = random(200, 32768).astype(dtypes.bfloat16)
    (kernel,) = lowered(softmax, rows).kernels
    assert "x_tile = registers_u16(64)" in kernel.source
    assert (kernel.threads, kernel.blocks_per_multiprocessor, kernel.cluster) == (
        512,
        2,
        1,
    )


def test_the_greatest_of_a_long_row_of_halves():
    x = random(1, 40000).astype(dtypes.bfloat16)
    compiled = lowered(lambda x: anp.max(x, axis=1), x)
    (result,) = run_plan(compiled, (x,))
    np.testing.assert_array_equal(result, x.max(axis=1))


def test_sums_of_products_of_halves_are_fused():
    def scaled(x, scale, shift):
        d = x - anp.mean(x, axis=-1, keepdims=True)
        # A sum of halves; a mean converts its operand, which is a half then.
        variance = anp.sum(d * d, axis=-1, keepdims=True) / 512
        return d / anp.sqrt(variance) * scale + shift

    x = random(5, 512).astype(np.float16)
    scale, shift = random(2, 512, seed=1).astype(np.float16)
    compiled = lowered(scaled, x, scale, shift)
    (kernel,) = compiled.kernels
    # Squares and their sum; what is scaled and shifted. Products have no line.
    assert kernel.source.count("fma_rn_f32(") == 2
    (result,) = run_plan(compiled, (x, scale, shift))
    want = scaled(*(a.astype(np.float64) for a in (x, scale, shift)))
    np.testing.assert_allclose(result, want, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("total", [anp.sum, anp.mean])
def test_a_product_that_is_needed_elsewhere_is_not_fused(total):
    """A mean converts its operand: the product has another name there."""

    def both(x):
        square = x * x
        return total(square, axis=-1), square

    x = random(5, 512).astype(np.float16)
    compiled = lowered(both, x)
    assert all("fma_rn_f32(" not in kernel.source for kernel in compiled.kernels)
    for have, want in zip(
        run_plan(compiled, (x,)), both(x.astype(np.float64)), strict=True
    ):
        np.testing.assert_allclose(have, want, rtol=2e-3, atol=1e-3)


@needs_compiler
@pytest.mark.cuda
def test_halves_are_rounded_in_pairs_and_nothing_is_spilled():
    kernel_ptx = pytest.importorskip("arrayfn.backends.cuda.code").kernel_ptx
    x = random(200, 4096).astype(dtypes.bfloat16)
    (kernel,) = lowered(softmax, x).kernels
    ptx = kernel_ptx(kernel, (9, 0))
    assert "cvt.rn.bf16x2.f32" in ptx
    assert "ex2.approx.ftz.f32" in ptx
    assert "rcp.rn.f32" in ptx  # once a row
    assert ".local" not in ptx
