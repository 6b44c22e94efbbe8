"""cuBLASLt's algorithms with all of their tiles: for which products, and on a card."""

from __future__ import annotations

import numpy as np
import pytest

from arrayfn.backends.cuda import cublas, missing_here
from arrayfn.backends.cuda.device_array import device_put
from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.product_forms import form_of
from arrayfn.backends.cuda.product_tiles import choose_candidates

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
    assert choose_candidates(form_of("gemm_f32"), large) == "all tiles"
    assert choose_candidates(form_of("gemm_f32_scaled"), large) == "all tiles"
    assert choose_candidates(form_of("gemm_f32"), small) == "proposals"
    assert (
        choose_candidates(form_of("gemm_f32"), batch(1, 4096, 4096, 4096))
        == "proposals"
    )
    assert choose_candidates(form_of("gemm_f32_tf32"), large) == "proposals"
    assert choose_candidates(form_of("gemm_bf16"), large) == "proposals"
    assert choose_candidates(form_of("gemm_f64"), large) == "proposals"


def test_low_power_tiles_are_tried_for_large_products_of_halves_alone() -> None:
    large, small = batch(1, 4096, 4096, 4096), batch(1, 2048, 2048, 2048)
    assert choose_candidates(form_of("gemm_f16"), large) == "low power"
    assert choose_candidates(form_of("gemm_bf16_f32_bias"), large) == "low power"
    assert choose_candidates(form_of("gemm_bf16"), small) == "proposals"
    assert choose_candidates(form_of("gemm_i8_i32"), large) == "proposals"
    assert choose_candidates(form_of("gemm_f32_tf32"), large) == "proposals"


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


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("provider", ["gemm_f16", "gemm_f16_f32"])
def test_each_low_power_tile_computes_the_product(provider: str) -> None:
    # So wide that it is a large one.
    m, k, n = 192, 1 << 14, 1 << 15
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s, np.float32) / 16 for s in ((m, k), (k, n)))
    a, b = a.astype(np.float16), b.astype(np.float16)
    dtype = np.float32 if provider.endswith("f32") else np.float16
    want = np.matmul(a[:8].astype(np.float32), b[:, :64].astype(np.float32))
    nothing = np.zeros((m, n), dtype)
    x, y, z = device_put(a), device_put(b), device_put(nothing)
    library = cublas.library()
    for product in library.proposals(provider, batch(1, m, n, k)):
        device().fill(z.pointer, 0, nothing.nbytes)
        places = [y.pointer, x.pointer, z.pointer, z.pointer]
        assert library.call(product, places, device().stream) == 0
        have = np.asarray(z)[:8, :64]
        np.testing.assert_allclose(have, want, rtol=1e-2, atol=1e-2)
