"""CUDA kernels of long rows and running values: emulated, and compiled to PTX."""

import re
from dataclasses import replace

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn.backends.cuda import missing_packages
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.lowering.cuda.config import GpuConfig
from tests.common_functions import layernorm, random, softmax
from tests.lowered_on_gpu import lowered

needs_compiler = pytest.mark.skipif(bool(missing_packages()), reason=missing_packages())


def assert_equal(function, arguments, compiled, tolerance):
    """The emulated result is that of the function in double precision."""
    (result,) = run_plan(compiled, arguments)
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arguments]
    np.testing.assert_allclose(result, function(*wide), tolerance, 10 * tolerance)


# A GPU so small that short rows are shared by the blocks of clusters.
CLUSTERS = GpuConfig(
    multiprocessors=2,
    max_threads=128,
    split_chunk=128,
    max_cluster=4,
    row_words=1,
    cluster_words=4,
    cluster_threads=64,
    cluster_bytes=4096,
    scan_words=2,
    scan_threads=64,
    pipeline_from=1 << 20,
)
# name: blocks of a cluster, threads of a block, function, arguments
CLUSTER_CASES = {
    "softmax": (4, 64, softmax, (random(2, 520),)),
    "softmax of all threads": (4, 128, softmax, (random(2, 1040),)),
    "divided again": (4, 64, softmax, (random(2, 520) * 40,)),
    "odd rows": (2, 64, softmax, (random(3, 501),)),
    "layernorm": (4, 64, layernorm, (random(2, 520), random(520, seed=1))),
    "half": (2, 64, softmax, (random(2, 520, dtype=np.float16),)),
    "double": (4, 128, softmax, (random(2, 600, dtype=float),)),
    "one exchange": (
        4,
        64,
        lambda x: x / anp.sum(x * x, axis=1, keepdims=True),
        (random(2, 520),),
    ),
    "where the greatest is": (
        4,
        64,
        lambda x: anp.argmax(x, axis=1),
        (random(2, 520),),
    ),
    "sum of all": (4, 128, anp.sum, (random(131, 31),)),
    "greatest of each row": (
        4,
        128,
        lambda x: anp.max(x, axis=1),
        (random(1, 1000),),
    ),
}


@pytest.mark.parametrize("case", CLUSTER_CASES)
def test_blocks_of_a_cluster_share_a_row(case):
    cluster, threads, function, arguments = CLUSTER_CASES[case]
    compiled = lowered(function, *arguments, gpu=CLUSTERS)
    (kernel,) = compiled.kernels
    assert (kernel.cluster, kernel.threads) == (cluster, threads)
    tolerance = 2e-3 if case == "half" else 2e-6
    assert_equal(function, arguments, compiled, tolerance)


def test_before_clusters_a_row_is_a_block_s():
    compiled = lowered(softmax, random(2, 520), gpu=replace(CLUSTERS, max_cluster=0))
    assert {kernel.cluster for kernel in compiled.kernels} == {1}


# Four blocks of a cluster hold 4096 elements; two clusters are the GPU's 8 blocks.
@pytest.mark.parametrize(
    ("rows", "length", "cluster"), [(1, 4096, 4), (1, 4100, 1), (2, 4100, 4)]
)
def test_a_row_is_summed_by_a_cluster_if_it_is_small_or_that_is_enough_blocks(
    rows, length, cluster
):
    gpu = replace(CLUSTERS, multiprocessors=8)
    x = random(rows, length)
    compiled = lowered(lambda x: anp.sum(x, axis=1), x, gpu=gpu)
    assert compiled.kernels[0].cluster == cluster
    assert_equal(lambda x: anp.sum(x, axis=1), (x,), compiled, 2e-6)


@pytest.mark.parametrize(("rows", "cluster"), [(8, 4), (32, 1), (300, 1)])
def test_rows_for_large_blocks_are_shared_where_they_are_few(rows, cluster):
    x = np.empty((rows, 16384), np.float32)
    (kernel,) = lowered(softmax, x, gpu=GpuConfig()).kernels
    assert kernel.cluster == cluster


PIPELINE_CASES = {
    "layernorm": (layernorm, (random(3, 292), random(292, seed=1))),
    "layernorm in a cluster": (layernorm, (random(2, 1100), random(1100, seed=1))),
    "divided again": (layernorm, (random(3, 1) + random(3, 292) * 0, random(292))),
    "float64": (
        layernorm,
        (random(3, 262, dtype=float), random(262, dtype=float, seed=1)),
    ),
    "half": (
        layernorm,
        (random(4, 528, dtype=np.float16), random(528, dtype=np.float16, seed=1)),
    ),
    "a batch": (layernorm, (random(2, 3, 260), random(260, seed=1))),
    "two rows at once": (
        lambda x, y, scale: x * scale * (y - anp.sum(x * y, axis=1, keepdims=True)),
        (random(3, 260), random(3, 260, seed=1), random(260, seed=2)),
    ),
}
PIPELINES = GpuConfig(
    multiprocessors=2,
    max_threads=128,
    shared_bytes=8 << 10,
    row_words=1,
    pipeline_from=255,
    pipeline_words=8,
    pipeline_threads=128,
    max_cluster=4,
)


@pytest.mark.parametrize("case", PIPELINE_CASES)
def test_long_rows_are_fetched_ahead(case):
    function, arguments = PIPELINE_CASES[case]
    compiled = lowered(function, *arguments, gpu=PIPELINES)
    (kernel,) = compiled.kernels
    assert kernel.shared > 0
    assert (kernel.cluster > 1) == ("cluster" in case)
    (result,) = run_plan(compiled, arguments)
    # The mean of halves is one.
    tolerance = 2e-3 if case == "half" else 2e-5
    want = function(*(a.astype(np.float64) for a in arguments))
    np.testing.assert_allclose(result, want, rtol=tolerance, atol=tolerance)


# name: function, arguments, room for the block's memory, rows ahead, vectors spared
PLACES_CASES = {
    "two rows": (softmax, (random(7, 2048),), 227 << 10, 2, 0),
    "one row": (softmax, (random(7, 2048),), 4 << 10, 1, 0),
    "weights": (layernorm, (random(7, 2048), random(2048, seed=1)), 227 << 10, 2, 0),
    "spared": (layernorm, (random(7, 4096), random(4096, seed=1)), 23 << 9, 2, 1),
    "ragged": (layernorm, (random(7, 1804), random(1804, seed=1)), 227 << 10, 2, 0),
    "ragged, one row": (
        layernorm,
        (random(7, 1804), random(1804, seed=1)),
        6 << 10,
        1,
        0,
    ),
    "a slice is nobody's": (softmax, (random(7, 1200),), 227 << 10, 2, 0),
}


@pytest.mark.parametrize("case", PLACES_CASES)
def test_as_many_rows_are_ahead_as_there_is_room_for(case):
    function, arguments, room, ahead, spared = PLACES_CASES[case]
    gpu = replace(
        PIPELINES,
        multiprocessors=4,
        clustered_multiprocessors=4,
        pipeline_bytes=arguments[0].shape[1],
        pipeline_shared=room,
        broadcast_register_tiles=1,
        pipeline_words=16,
    )
    compiled = lowered(function, *arguments, gpu=gpu)
    (kernel,) = compiled.kernels
    assert kernel.cluster > 1
    # Of each row that is fetched before the first turn.
    assert len(re.findall(r"\n {8}if following < n\d:", kernel.source)) == ahead
    assert ("_registers = registers_f32(4)" in kernel.source) == bool(spared)
    assert_equal(function, arguments, compiled, 2e-5)


def test_a_pipeline_computes_roughly_what_becomes_halves_once_a_row():
    arguments = random(4, 528, dtype=np.float16), random(528, dtype=np.float16, seed=1)
    (kernel,) = lowered(layernorm, *arguments, gpu=PIPELINES).kernels
    assert kernel.shared > 0
    # Two means and an inverse are divided.
    assert kernel.source.count("= approximate_divide_f32(") == 3
    assert kernel.source.count("= approximate_sqrt_f32(") == 1
    wide = [a.astype(np.float32) for a in arguments]
    (kernel,) = lowered(layernorm, *wide, gpu=PIPELINES).kernels
    assert "approximate" not in kernel.source


def test_a_pipeline_takes_exponentials_of_halves_once():
    compiled = lowered(softmax, random(3, 528, dtype=np.float16), gpu=PIPELINES)
    (kernel,) = compiled.kernels
    assert kernel.shared > 0
    assert kernel.source.count("= approximate_exp_f32(") == 1


def test_the_warp_that_sends_a_blocks_results_alone_combines_them():
    compiled = lowered(softmax, random(2, 1100), gpu=PIPELINES)
    (kernel,) = compiled.kernels
    assert kernel.cluster > 1
    combined = re.findall(r"( +if member < 32:\n)? +\w = (\w)_warps\[", kernel.source)
    assert [bool(alone) for alone, _ in combined] == [True, True]


# name: clusters at a time, function, arguments
TAKEN_CASES = {
    "by blocks": (4, softmax, (random(13, 292),)),
    "by clusters": (2, layernorm, (random(9, 1100), random(1100, seed=1))),
    "by clusters in one exchange": (2, softmax, (random(13, 1040),)),
}


@pytest.mark.parametrize("case", TAKEN_CASES)
def test_rows_are_taken_as_blocks_come_to_them(case):
    clusters, function, arguments = TAKEN_CASES[case]
    gpu = replace(
        PIPELINES,
        multiprocessors=2 * clusters,
        clustered_multiprocessors=2 * clusters,
        merged_threads=64,
    )
    compiled = lowered(function, *arguments, gpu=gpu)
    (kernel,) = compiled.kernels
    # In each turn: the first rows are nobody's to take.
    assert kernel.source.count("= next_work_item(flag_buffer, 1, 1)") == 1
    assert kernel.source.count("end_work_queue(flag_buffer, 1, clusters)") == 1
    assert_equal(function, arguments, compiled, 2e-5)


@needs_compiler
@pytest.mark.cuda
def test_rows_fetched_ahead_pass_through_shared_memory():
    code = pytest.importorskip("arrayfn.backends.cuda.code")
    arguments = random(320, 32768), random(32768, seed=1)
    (kernel,) = lowered(layernorm, *arguments).kernels
    ptx = code.kernel_ptx(kernel, (9, 0))
    assert ".local" not in ptx
    assert f".reqnctapercluster {kernel.cluster}, 1, 1" in ptx
    assert "cp.async.bulk.shared::cluster.global" in ptx
    # Kernels before are waited for once: after what needs nothing of theirs, and then
    # the first row is asked for before blocks wait for each other.
    assert code.with_dependent_launch(ptx).count("griddepcontrol.wait") == 1
    copies = "cp.async.bulk", "cluster.wait"
    steps = [ptx.index(text) for text in ("mbarrier.init", "griddepcontrol", *copies)]
    assert steps == sorted(steps)
    assert "ld.global" not in ptx


# name: blocks of a cluster, function, arguments
SCAN_CASES = {
    "rows": (1, lambda x: anp.cumsum(x, axis=1), (random(2, 300),)),
    "rows of a warp each": (1, lambda x: anp.cumsum(x, axis=1), (random(5, 100),)),
    "float64": (1, anp.cumsum, (random(1100, dtype=float),)),
    "half": (1, lambda x: anp.cumsum(x, axis=1), (random(3, 264, dtype=np.float16),)),
    "product": (1, lambda x: anp.cumprod(x, axis=1), (random(2, 100) / 9 + 1,)),
    "backwards": (1, lambda x: anp.cumsum(x[::-1])[::-1], (np.arange(300),)),
    "in a cluster": (4, lambda x: anp.cumsum(x, axis=1), (random(2, 520),)),
    "odd rows in a cluster": (4, lambda x: anp.cumsum(x, axis=1), (random(2, 701),)),
    "greatest in a cluster": (
        4,
        lambda x: anp.cummax(x, axis=1),
        (random(2, 900),),
    ),
}


@pytest.mark.parametrize("case", SCAN_CASES)
def test_running_values_are_shared_by_a_group(case):
    cluster, function, arguments = SCAN_CASES[case]
    compiled = lowered(
        function, *arguments, gpu=CLUSTERS if cluster > 1 else GpuConfig()
    )
    assert compiled.kernels[0].threads >= 32
    assert compiled.kernels[0].cluster == cluster
    tolerance = 2e-3 if case == "half" else 2e-5
    assert_equal(function, arguments, compiled, tolerance)
