"""Rows that are partly in shared memory, and weights that are copied there early."""

import re

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn import nn
from arrayfn.backends.cuda import missing_packages
from arrayfn.backends.cuda.code import kernel_ptx
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.dtypes import bfloat16
from arrayfn.lowering.cuda.config import GPU, GpuConfig
from tests.common_functions import layernorm, random
from tests.lowered_on_gpu import lowered

needs_compiler = pytest.mark.skipif(bool(missing_packages()), reason=missing_packages())
ASIDE = GpuConfig(multiprocessors=2, max_threads=128, row_words=16, split_row_words=4)
EARLY = GpuConfig(multiprocessors=2, max_threads=256, row_words=8)


def root_mean_square(x, scale):
    return x / anp.sqrt(anp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * scale


def agrees(function, arguments, gpu):
    """The kernel, after its results are compared with those in float64."""
    compiled = lowered(function, *arguments, gpu=gpu)
    (kernel,) = compiled.kernels
    (made,) = run_plan(compiled, arguments)
    with np.errstate(all="ignore"):
        want = function(*(a.astype(np.float64) for a in arguments))
    tolerance = 1e-2 if arguments[0].dtype.itemsize == 2 else 4e-6
    have = np.asarray(made).astype(np.float64)
    np.testing.assert_allclose(have, want, rtol=tolerance, atol=tolerance)
    return kernel


@pytest.mark.parametrize(
    ("function", "n", "dtype"),
    [
        (nn.softmax, 2048, np.float32),
        (nn.softmax, 1900, np.float32),
        (nn.log_softmax, 4096, np.float16),
        (nn.softmax, 2512, bfloat16),
    ],
)
def test_the_last_vectors_of_a_row_lie_in_shared_memory(function, n, dtype):
    x = (random(2, n) * 3).astype(dtype)
    kernel = agrees(function, (x,), ASIDE)
    lanes = 16 // x.dtype.itemsize
    vectors = -(-n // (64 * lanes))
    assert (kernel.threads, kernel.blocks_per_multiprocessor, kernel.cached) == (
        64,
        2,
        True,
    )
    assert kernel.shared == (vectors - 1) * 64 * 16
    # Vectors in registers are asked for first, and computed before the others come.
    text = re.sub(r"\s+", " ", kernel.source)
    order = ["load_", "cp_async_", "cp_async_commit()", "cp_async_wait(0)", "barrier()"]
    places = [text.index(word, text.index("thread_index()")) for word in order]
    assert places == sorted(places)


def test_rows_aside_with_infinities_and_nan():
    x = random(5, 1100)
    x[0] = -np.inf
    x[1, :600] = -np.inf
    x[2, 1099] = np.nan
    x[3, 7] = np.inf
    x[4] *= 100
    agrees(nn.softmax, (x,), ASIDE)


@pytest.mark.parametrize(
    ("function", "shape", "dtype", "early"),
    [
        (layernorm, (2, 2048), np.float32, 3),
        (layernorm, (2, 1900), np.float32, 3),
        (layernorm, (2, 1540), np.float32, 2),
        (root_mean_square, (2, 2048), np.float32, 4),
        (layernorm, (2, 4088), np.float16, 3),
    ],
)
def test_what_rows_share_is_copied_ahead(function, shape, dtype, early):
    gpu = GpuConfig(
        multiprocessors=2, max_threads=256, row_words=8, prefetch_distance=early
    )
    x = (random(*shape) + 1).astype(dtype)
    weights = [random(shape[1], seed=k).astype(dtype) for k in (1, 2)]
    weights = weights[: 1 if function is root_mean_square else 2]
    kernel = agrees(function, (x, *weights), gpu)
    assert kernel.shared == len(weights) * early * kernel.threads * 16
    assert kernel.source.count(f"cp_async_wait({early - 1})") == 1
    begun = kernel.source.index("cp_async_commit()\n")
    assert begun < kernel.source.index("barrier()\n")


def test_a_row_that_is_divided_again_loads_what_it_shares_again():
    x = np.full((2, 2048), 2, np.float32)
    agrees(layernorm, (x, random(2048, seed=1)), EARLY)


def test_which_rows_have_what_in_shared_memory():
    def shape_of(function, n, dtype=np.float32, arguments=0, gpu=GPU):
        x = np.empty((1024, n), dtype)
        weights = (np.empty(n, dtype),) * arguments
        (kernel,) = lowered(function, x, *weights, gpu=gpu).kernels
        return kernel.threads, kernel.blocks_per_multiprocessor, kernel.shared

    assert shape_of(nn.softmax, 16384) == (512, 2, 0)
    assert shape_of(nn.softmax, 32768) == (512, 2, 13 * 512 * 16)
    assert shape_of(nn.softmax, 65536, bfloat16) == (512, 2, 13 * 512 * 16)
    assert shape_of(nn.softmax, 20000) == (512, 2, 7 * 512 * 16)
    assert shape_of(nn.softmax, 32768, gpu=GpuConfig(max_cluster=0))[2] == 0
    assert shape_of(layernorm, 16384, arguments=1) == (512, 2, 5 * 512 * 16)
    assert shape_of(layernorm, 16384, bfloat16, 1) == (512, 3, 0)
    assert shape_of(layernorm, 8192, arguments=1) == (512, 2, 0)


@needs_compiler
def test_a_row_aside_compiles_without_spills_to_local_memory():
    (kernel,) = lowered(nn.softmax, np.empty((1024, 65536), bfloat16)).kernels
    ptx = kernel_ptx(kernel, (9, 0))
    assert ptx.count("cp.async.cg.shared.global") == 13
    assert ptx.count("ld.global.v4") == 3
    assert ".local" not in ptx


def test_rows_of_a_warp_share_blocks_of_four_warps():
    for n in (512, 1024):
        (kernel,) = lowered(nn.softmax, np.empty((4096, n), np.float32)).kernels
        assert kernel.threads == 128, n


def test_what_blocks_of_a_cluster_send_is_whole_lines_of_shared_memory():
    (kernel,) = lowered(nn.softmax, np.empty((4096, 131072), np.float32)).kernels
    assert kernel.cluster == 8
    arrays = dict(re.findall(r"(\w+) = (shared_\w+\(\d+\))", kernel.source))
    assert arrays == {
        "numbers": "shared_i64(16)",  # 128 bytes each
        **dict.fromkeys(("a_warps", "e_warps"), "shared_f32(32)"),
        **dict.fromkeys(("a_sent", "e_sent"), "shared_f32(32)"),
    }
