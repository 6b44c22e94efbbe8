"""Products of few rows on a GPU: their kernel, emulated and as PTX, and on a card."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.backends.cuda import kernel_compiler, missing_here, missing_packages
from arrayfn.backends.cuda.emulated_plan import run_plan
from arrayfn.backends.cuda.emulator import Pointer, launch
from arrayfn.functions import trace_function
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.cuda.config import GPU, GpuConfig
from arrayfn.lowering.cuda.lower import lower
from arrayfn.lowering.cuda.thin_products import ThinTile, thin_text, tile_for
from arrayfn.lowering.plan import Kernel

Array = np.ndarray[Any, Any]

needs_compiler = pytest.mark.skipif(bool(missing_packages()), reason=missing_packages())
needs_gpu = pytest.mark.skipif(bool(missing_here()), reason=missing_here())

# A GPU for which small matrices are large ones.
EAGER = replace(GPU, thin_bytes=0, most_cluster=2)


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def lowered(function: Any, *arguments: Any, gpu: GpuConfig = GPU) -> CompiledProgram:
    traced = trace_function(function, arguments, {}, abstract=True, with_values=False)
    return lower(traced.program, check=True, gpu=gpu)


def kernels_of(*shape: int, gpu: GpuConfig = GPU) -> list[str]:
    m, k, n = shape
    x, y = np.empty((m, k), np.float32), np.empty((k, n), np.float32)
    compiled = lowered(lambda x, y: x @ y, x, y, gpu=gpu)
    return [kernel.name for kernel in compiled.kernels]


def emulated(tile: ThinTile, m: int, k: int, n: int) -> Array:
    """The product by a kernel of this tile, in a part of a larger array."""
    a, b = random(m, k), random(k, n, seed=1)
    c = np.full((m, n + 4), np.nan, np.float32)
    kernel = thin_text(tile).kernel("thin_0", ["f32"] * 3)
    arrays = [Pointer(x.reshape(-1), 0) for x in (a, b, c)]
    arguments = [*arrays, m, n, k, k, n, n + 4, tile.part(k)]
    shape = tile.blocks(n), kernel.threads
    launch(kernel.source, "thin_0", *shape, arguments, kernel.cluster)
    assert np.isnan(c[:, n:]).all()
    np.testing.assert_allclose(c[:, :n], a.astype(float) @ b, rtol=1e-4, atol=1e-5)
    return c[:, :n]


@pytest.mark.parametrize(
    ("tile", "shape"),
    [
        (ThinTile(2, warps=1, stages=2, cluster=2), (2, 24, 4)),
        (ThinTile(4, warps=2, stages=3, cluster=2), (3, 44, 132)),
        (ThinTile(8, warps=2, stages=4, cluster=2, halves=2), (7, 20, 136)),
    ],
    ids=str,
)
def test_the_kernel_multiplies_what_is_no_whole_tile(
    tile: ThinTile, shape: tuple[int, int, int]
) -> None:
    emulated(tile, *shape)


def test_infinities_stay_in_their_columns() -> None:
    # Nothing that is not there is multiplied by zero.
    compiled = lowered(lambda x, y: x @ y, random(2, 8), random(8, 8), gpu=EAGER)
    y = random(8, 8)
    y[7, 3] = np.inf
    x = np.abs(random(2, 8))
    (result,) = run_plan(compiled, (x, y))
    assert compiled.kernels[0].name == "thin_0"
    assert np.isposinf(result[:, 3]).all()
    assert np.isfinite(np.delete(result, 3, axis=1)).all()


def test_large_matrices_are_read_once_for_few_rows() -> None:
    assert kernels_of(4, 4096, 4096) == ["thin_0"]
    assert kernels_of(16, 4096, 4096) == ["thin_0"]
    assert kernels_of(17, 4096, 4096) == ["gemm_f32"]
    assert kernels_of(1, 4096, 4096) == ["gemm_f32"]
    assert kernels_of(4, 512, 512) == ["gemm_f32"]
    assert kernels_of(4, 4096, 4097) == ["gemm_f32"]
    assert kernels_of(4, 4098, 4096) == ["gemm_f32"]
    assert kernels_of(4, 4096, 4096, gpu=replace(GPU, most_cluster=0)) == ["gemm_f32"]


def test_kernels_differ_by_powers_of_two_of_rows() -> None:
    tiles = [tile_for(m, 4096, GPU).rows for m in (2, 3, 4, 5, 9, 16)]
    assert tiles == [2, 4, 4, 8, 16, 16]
    clusters = [tile_for(4, n, GPU).cluster for n in (1024, 4096, 8192, 16384, 65536)]
    assert clusters == [8, 8, 4, 2, 2]


@needs_compiler
def test_the_kernel_compiles_to_vectors_and_fused_multiply_adds() -> None:
    tile = tile_for(4, 4096, GPU)
    kernel = thin_text(tile).kernel("thin_0", ["f32"] * 3)
    ptx = kernel_compiler.compile_ptx(kernel, (9, 0))
    assert ".local" not in ptx
    assert ptx.count("cp.async.cg.shared.global") == 5 * tile.stages
    assert ptx.count("ld.shared.v4.f32") == 4 + tile.rows
    assert ptx.count("fma.rn.f32") == 16 * tile.rows


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("m", [2, 3, 7, 16])
def test_thin_products_on_a_gpu(m: int) -> None:
    for k, n in ((4096, 4096), (1304, 5000), (16384, 1028)):
        x, y = random(m, k), random(k, n, seed=1)
        f = af.jit(lambda x, y: anp.matmul(x, y) * 2, device="cuda")
        kernels = f.lower(x, y).kernels
        assert any(k.name == "thin_0" for k in kernels if isinstance(k, Kernel))
        have = np.asarray(f(x, y))
        wide = x.astype(float) @ y * 2
        assert np.linalg.norm(have - wide) <= 1e-6 * np.linalg.norm(wide)
        for _ in range(3):
            np.testing.assert_array_equal(np.asarray(f(x, y)), have)
