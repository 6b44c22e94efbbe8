"""cuBLASLt's algorithms with all of their tiles: for which products, and on a card."""

from __future__ import annotations

import numpy as np
import pytest

from arrayfn.backends.cuda import cublas, missing_here
from arrayfn.backends.cuda.device_array import device_put
from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.product_forms import RANDOM_NUMBERS, form_of
from arrayfn.backends.cuda.product_tiles import tries_all_tiles

needs_gpu = pytest.mark.skipif(bool(missing_here()), reason=missing_here())


def batch(count: int, m: int, n: int, k: int) -> dict[str, int]:
    """The parameters of ``count`` products of row-major matrices."""
    sizes = {"m": m, "n": n, "k": k, "lda": k, "ldb": n, "ldc": n, "batch": count}
    strides = {
        "batch_stride_a": m * k,
        "batch_stride_b": k * n,
        "batch_stride_c": m * n,
    }
    return {**sizes, **strides, "transpose_a": 0, "transpose_b": 0}


def test_all_tiles_are_tried_for_large_batches_of_float32_alone() -> None:
    large, small = batch(64, 1024, 1024, 64), batch(64, 64, 64, 64)
    assert tries_all_tiles(form_of("gemm_f32"), large)
    assert tries_all_tiles(form_of("gemm_f32_scaled"), large)
    assert not tries_all_tiles(form_of("gemm_f32"), small)
    assert not tries_all_tiles(form_of("gemm_f32"), batch(1, 4096, 4096, 4096))
    for provider in ("gemm_f32_tf32", "gemm_bf16", "gemm_f16", "gemm_f64"):
        assert not tries_all_tiles(form_of(provider), large)


def test_no_row_of_a_matrix_repeats_within_the_numbers_it_is_timed_with() -> None:
    for width in (1024, 8192, 3 * 4096):
        rows = {row * width % RANDOM_NUMBERS for row in range(4096)}
        assert len(rows) == 4096


@pytest.mark.cuda
@needs_gpu
def test_each_tile_computes_the_product() -> None:
    p = batch(64, 512, 512, 64)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s, np.float32) for s in ((64, 512, 64), (64, 64, 512)))
    want = np.matmul(a, b)
    x, y, z = device_put(a), device_put(b), device_put(want)
    library = cublas.library()
    products = library.proposals("gemm_f32", p)
    assert len(products) > 2 * cublas.MAX_SETS
    for product in products:
        device().fill(z.pointer, 0, want.nbytes)
        places = [y.pointer, x.pointer, z.pointer, z.pointer]
        assert library.call(product, places, device().stream) == 0
        np.testing.assert_allclose(np.asarray(z), want, rtol=1e-4, atol=1e-4)
