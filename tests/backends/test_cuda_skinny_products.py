"""Products of few rows on a GPU: their kernel, emulated and as PTX, and on a card."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import arrayfn as af
from arrayfn.backends.cuda import missing_here, missing_packages
from arrayfn.backends.cuda.code import kernel_ptx
from arrayfn.backends.cuda.emulator import Pointer, launch
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.lowering.cuda.config import GPU, GpuConfig
from arrayfn.lowering.cuda.handwritten import Handwritten
from arrayfn.lowering.cuda.products.skinny_half import HalfTile, half_kernel
from arrayfn.lowering.cuda.products.skinny_single import SingleTile, single_kernel
from arrayfn.lowering.plan import Kernel, KernelCall
from tests.common_functions import random
from tests.lowered_on_gpu import lowered

Array = np.ndarray[Any, Any]

needs_compiler = pytest.mark.skipif(bool(missing_packages()), reason=missing_packages())
needs_gpu = pytest.mark.skipif(bool(missing_here()), reason=missing_here())

# A GPU for which small matrices are large ones.
EAGER = replace(GPU, skinny_bytes=0, skinny_rows=6, max_cluster=2)


INTEGERS = (*("rows", "n", "k", "a_row", "a_step", "ldb", "c_row", "c_column", "part"),)


def kernel_of(text: Handwritten, dtype: str = "f32") -> Kernel:
    """The kernel of three arrays of ``dtype``."""
    arrays = dict.fromkeys(("a_in", "b_in", "c_out"), dtype)
    return text.kernel("skinny_0", arrays, INTEGERS)


def kernels_of(
    *shape: int, gpu: GpuConfig = GPU, dtype: Any = np.float32, transposed: bool = False
) -> list[str]:
    m, k, n = shape
    x, y = np.empty((m, k), dtype), np.empty((n, k) if transposed else (k, n), dtype)
    compiled = lowered(lambda x, y: x @ (y.T if transposed else y), x, y, gpu=gpu)
    return [kernel.name for kernel in compiled.kernels]


def multiplied(tile: SingleTile, m: int, k: int, n: int) -> None:
    """The product by a kernel of this tile, into a part of a larger array."""
    a, b = random(m, k), random(k, n, seed=1)
    c = np.full((m, n + 4), np.nan, np.float32)
    kernel = kernel_of(single_kernel(tile))
    given = (
        a if tile.contiguous else a.T.copy(),
        b.T.copy() if tile.transposed else b,
        c,
    )
    strides = (k, 1) if tile.contiguous else (1, m)
    arrays = [Pointer(x.reshape(-1), 0) for x in given]
    integers = [
        m,
        n,
        k,
        *strides,
        k if tile.transposed else n,
        n + 4,
        1,
        tile.k_per_block(k),
    ]
    shape = tile.blocks(n), kernel.threads
    arguments = [*arrays, *integers]
    launch(kernel.source, "skinny_0", *shape, arguments, kernel.cluster)
    assert np.isnan(c[:, n:]).all()
    np.testing.assert_allclose(c[:, :n], a.astype(float) @ b, rtol=1e-4, atol=1e-5)


TILES = {
    "columns": (SingleTile(2, warps=1, stages=2), (2, 24, 4)),
    "columns of warps": (
        SingleTile(4, warps=2, stages=3, groups=2, cluster=2),
        (3, 72, 132),
    ),
    "columns of lanes": (SingleTile(4, warps=2, groups=1), (4, 12, 136)),
    "columns, less ahead": (SingleTile(4, warps=1, k_vectors=4, stages=2), (3, 72, 36)),
    "columns, two vectors": (
        SingleTile(4, warps=2, stages=2, vectors=2, cluster=2),
        (4, 136, 132),
    ),
    "columns, two vectors of few rows": (
        SingleTile(2, warps=1, stages=2, groups=8, vectors=2),
        (2, 72, 60),
    ),
    "columns, across": (
        SingleTile(8, warps=2, stages=2, vectors=2, contiguous=False),
        (4, 72, 68),
    ),
    "columns, across and apart": (
        SingleTile(4, warps=2, stages=2, contiguous=False, unaligned=True),
        (2, 24, 8),
    ),
    "lines": (
        SingleTile(2, warps=2, stages=2, cluster=2, groups=8, transposed=True),
        (2, 136, 7),
    ),
    "lines, two vectors": (
        SingleTile(4, warps=1, stages=2, vectors=2, transposed=True),
        (3, 72, 67),
    ),
    "lines, across": (
        SingleTile(4, warps=2, groups=8, transposed=True, contiguous=False),
        (4, 136, 19),
    ),
    "lines, across and apart": (
        SingleTile(
            4, warps=1, k_vectors=4, transposed=True, contiguous=False, unaligned=True
        ),
        (3, 72, 3),
    ),
}


@pytest.mark.parametrize("case", TILES)
def test_the_kernels_multiply_what_is_no_whole_tile(case: str) -> None:
    tile, shape = TILES[case]
    multiplied(tile, *shape)


HALF_PRECISION = {
    "few columns": (HalfTile(1, warps=1, stages=2), (1, 72, 32)),
    "no whole strip": (HalfTile(4, warps=2, stages=2, cluster=2), (3, 328, 40)),
    "wider strips": (HalfTile(16, warps=1, width=64, k_tile=32), (11, 40, 72)),
    "the widest": (HalfTile(8, warps=2, width=128, k_tile=16), (8, 56, 136)),
    "transposed": (HalfTile(16, warps=2, stages=2, transposed=True), (13, 136, 35)),
    "transposed, of a cluster": (
        HalfTile(2, warps=1, stages=2, transposed=True, cluster=2, dtype="f16"),
        (2, 200, 3),
    ),
}


@pytest.mark.parametrize("case", HALF_PRECISION)
def test_halves_are_multiplied_by_tensor_cores(case: str) -> None:
    tile, (m, k, n) = HALF_PRECISION[case]
    tile = replace(tile, rounded=tile.dtype)
    dtype = np.dtype(np.float16 if tile.dtype == "f16" else ml_dtypes.bfloat16)
    a, b = (random(*s, seed=s[0]).astype(dtype) for s in ((m, k), (k, n)))
    c = np.full((m, n + 4), np.nan, dtype)
    kernel = kernel_of(half_kernel(tile), tile.dtype)
    given = a, b.T.copy() if tile.transposed else b, c
    arrays = [Pointer(x.view(np.uint16).reshape(-1), 0) for x in given]
    integers = [
        m,
        n,
        k,
        k,
        1,
        k if tile.transposed else n,
        n + 4,
        1,
        tile.k_per_block(k),
    ]
    shape = tile.blocks(n), kernel.threads
    launch(kernel.source, "skinny_0", *shape, [*arrays, *integers], kernel.cluster)
    have = c.astype(np.float32)
    assert np.isnan(have[:, n:]).all()
    want = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_allclose(have[:, :n], want, rtol=1e-2, atol=1e-3)


def test_infinities_stay_in_their_columns() -> None:
    # Nothing that is not there is multiplied by zero.
    compiled = lowered(lambda x, y: x @ y, random(2, 8), random(8, 8), gpu=EAGER)
    y = random(8, 8)
    y[7, 3] = np.inf
    x = np.abs(random(2, 8))
    (result,) = run_plan(compiled, (x, y))
    assert compiled.kernels[0].name == "skinny_0"
    assert np.isposinf(result[:, 3]).all()
    assert np.isfinite(np.delete(result, 3, axis=1)).all()


def test_large_matrices_are_read_once_for_few_rows() -> None:
    assert kernels_of(4, 4096, 4096) == ["skinny_0"]
    assert kernels_of(16, 4096, 4096) == ["skinny_0"]
    assert kernels_of(17, 4096, 4096) == ["gemm_f32"]
    assert kernels_of(1, 4096, 4096) == ["gemm_f32"]
    assert kernels_of(4, 512, 512) == ["gemm_f32"]
    assert kernels_of(4, 4096, 4097) == ["gemm_f32"]
    assert kernels_of(4, 4098, 4096) == ["gemm_f32"]
    assert kernels_of(4, 4096, 4096, gpu=replace(GPU, max_cluster=0)) == ["gemm_f32"]


def test_few_rows_of_halves_are_multiplied_by_a_kernel() -> None:
    for dtype, name in ((np.float16, "gemm_f16"), (ml_dtypes.bfloat16, "gemm_bf16")):
        assert kernels_of(1, 4096, 4096, dtype=dtype) == ["skinny_0"]
        assert kernels_of(16, 4096, 4096, dtype=dtype) == ["skinny_0"]
        assert kernels_of(17, 4096, 4096, dtype=dtype) == [name]
        assert kernels_of(4, 4096, 4100, dtype=dtype) == [name]
        assert kernels_of(4, 8192, 8192, dtype=dtype) == ["skinny_0"]
        assert kernels_of(4, 16384, 16384, dtype=dtype) == [name]
        by_transpose = kernels_of(4, 16384, 16384, dtype=dtype, transposed=True)
        assert by_transpose == ["skinny_0"]


FORMS = {
    "a @ b": (lambda a, b: a @ b, (3, 8), (8, 20), "c = a @ b,"),
    "a @ b.T": (lambda a, b: a @ b.T, (3, 8), (20, 8), "c = a @ b.T,"),
    "a.T @ b": (lambda a, b: a.T @ b, (8, 3), (8, 20), "c = a @ b,"),
    "a few columns": (lambda a, b: a @ b, (20, 8), (8, 3), "c = a @ b.T,"),
    "of a transpose": (lambda a, b: a.T @ b, (8, 20), (8, 3), "c = a @ b,"),
    "a row each": (lambda a, b: a @ b.T, (20, 8), (3, 8), "c = a @ b.T,"),
}


@pytest.mark.parametrize("form", FORMS)
def test_matrices_are_read_as_they_lie(form: str) -> None:
    function, left, right, what = FORMS[form]
    arguments = random(*left), random(*right, seed=1)
    compiled = lowered(function, *arguments, gpu=EAGER)
    assert len(compiled.plan.steps) == 1
    assert what in compiled.kernels[0].source
    if form in ("a few columns", "of a transpose"):
        (result,) = run_plan(compiled, arguments)
        np.testing.assert_allclose(result, function(*arguments), rtol=1e-4, atol=1e-5)


def test_blocks_are_those_that_run_at_a_time() -> None:
    sizes = {1024: (32, 64), 4096: (128, 128), 16384: (128, 128), 65536: (256, 256)}
    for n, blocks in sizes.items():
        y = np.empty((4096, n), np.float32)
        for m, count in zip((3, 16), blocks, strict=True):
            x = np.empty((m, 4096), np.float32)
            (step,) = lowered(lambda x, y: x @ y, x, y).plan.steps
            assert isinstance(step, KernelCall)
            assert step.items == count, (m, n)


def test_parts_of_lines_that_are_read_together_are_128_bytes() -> None:
    for m, n, columns in ((3, 4096, 32), (16, 4096, 32), (16, 2048, 16)):
        x, y = np.empty((m, 4096), np.float32), np.empty((n, 4096), np.float32)
        compiled = lowered(lambda x, y: x @ y.T, x, y)
        (step,) = compiled.plan.steps
        assert isinstance(step, KernelCall)
        assert step.items == n // columns
        assert "group = remainder(lane, 8) * 4" in compiled.kernels[0].source


@needs_compiler
def test_the_kernels_compile_to_copies_vectors_and_fused_multiply_adds() -> None:
    columns, lines = (
        kernel_ptx(kernel_of(text), (9, 0))
        for text in (
            single_kernel(SingleTile(4)),
            single_kernel(SingleTile(4, transposed=True)),
        )
    )
    assert ".local" not in columns + lines
    assert columns.count("cp.async.cg.shared.global") >= 8
    assert lines.count("cp.async.cg.shared.global") >= 4
    assert columns.count("fma.rn.f32") == lines.count("fma.rn.f32") == 128


ON_A_CARD = {
    "a @ b": lambda x, y: x @ y,
    "a @ b.T": lambda x, y: x @ y.T,
    "a few columns": lambda x, y: (y.T @ x.T).T,
    "a row each": lambda x, y: (y @ x.T).T,
}


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("form", ON_A_CARD)
def test_thin_products_on_a_gpu(form: str, dtype: Any) -> None:
    product = ON_A_CARD[form]
    for m, k, n in (
        (2, 4096, 4096),
        (3, 1304, 5000),
        (7, 16384, 1032),
        (16, 2048, 4096),
    ):
        x, y = random(m, k).astype(dtype), random(k, n, seed=1).astype(dtype)
        wide = x.astype(float) @ y.astype(float)
        bound = 1e-6 if dtype == np.float32 else 5e-3
        y = y.T.copy() if form in ("a @ b.T", "a row each") else y
        f = af.jit(product, device="cuda")
        kernels = f.lower(x, y).kernels
        assert any(k.name == "skinny_0" for k in kernels if isinstance(k, Kernel))
        have = np.asarray(f(x, y))
        error = np.linalg.norm(have.astype(float) - wide)
        assert error <= bound * np.linalg.norm(wide)
        for _ in range(3):
            np.testing.assert_array_equal(np.asarray(f(x, y)), have)
