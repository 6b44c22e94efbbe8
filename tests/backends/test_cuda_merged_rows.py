"""Rows whose stages share an exchange: emulated, and what becomes of odd rows."""

import re
from dataclasses import replace

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import nn
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.lowering.cuda.config import GpuConfig
from tests.backends.rows_on_gpu import odd_rows, wanted
from tests.common_functions import random
from tests.lowered_on_gpu import lowered

BLOCKS = GpuConfig(multiprocessors=2, merged_threads=64)
CLUSTERS = replace(
    BLOCKS,
    max_threads=128,
    max_cluster=2,
    row_words=1,
    cluster_words=4,
    cluster_threads=64,
    pipeline_from=1 << 20,
)
PIPELINES = replace(
    BLOCKS,
    multiprocessors=1,
    clustered_multiprocessors=4,
    max_threads=128,
    shared_bytes=8 << 10,
    row_words=1,
    pipeline_from=127,
    pipeline_words=8,
    pipeline_threads=128,
    max_cluster=4,
)
SHAPES = {
    "block": (BLOCKS, (2, 1536)),
    "ragged block": (BLOCKS, (2, 601)),
    "cluster": (CLUSTERS, (2, 512)),
    "ragged cluster": (CLUSTERS, (2, 264)),
    "pipeline": (PIPELINES, (3, 512)),
    "ragged pipeline": (PIPELINES, (3, 292)),
    "pipeline of clusters": (PIPELINES, (5, 1100)),
}


def normalized(x):
    d = x - anp.mean(x, axis=-1, keepdims=True)
    return d / anp.sqrt(anp.mean(d * d, axis=-1, keepdims=True) + 1e-5)


def logsumexp_and_greatest(x):
    return nn.logsumexp(x, axis=-1), anp.max(x, axis=-1)


def scaled_softmax(x):
    return nn.softmax(anp.tanh(x) * 8)


def gradient(x):
    return af.grad(lambda x: anp.sum(nn.softmax(x) ** 2))(x)


FUNCTIONS = {
    "softmax": nn.softmax,
    "scaled softmax": scaled_softmax,
    "log_softmax": nn.log_softmax,
    "logsumexp": logsumexp_and_greatest,
}
CASES = [
    *((name, "ragged cluster") for name in FUNCTIONS),
    *(("softmax", shape) for shape in SHAPES if "pipeline" not in shape),
    *(("log_softmax", shape) for shape in SHAPES if "pipeline" in shape),
]


def results(function, x, gpu):
    """What the emulator makes of ``function``, and the kernel."""
    compiled = lowered(function, x, gpu=gpu)
    (kernel,) = compiled.kernels
    made = run_plan(compiled, (x,))
    return [np.asarray(r).astype(np.float64) for r in made], kernel


def exchanges(kernel):
    """How often the blocks of a row, or its warps, wait for each other."""
    leaders = (
        r"\w+ < \d+:\n +dsmem_store_" if kernel.cluster > 1 else r"remainder.*\) == 0:"
    )
    return len(re.findall(f"    if {leaders}", kernel.source))


@pytest.mark.parametrize(("name", "shape"), dict.fromkeys(CASES))
def test_two_stages_share_an_exchange(name, shape):
    function, (gpu, extents) = FUNCTIONS[name], SHAPES[shape]
    x = random(*extents) * 3 + 1
    made, kernel = results(function, x, gpu)
    assert (kernel.cluster > 1) == ("cluster" in shape)
    assert (kernel.shared > 0) == ("pipeline" in shape)
    assert exchanges(kernel) == 1
    for have, want in zip(made, wanted(function, x), strict=True):
        np.testing.assert_allclose(have, want, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_rows_with_infinities_and_nan_have_them_where_one_warp_would(name):
    gpu, (_, n) = SHAPES["ragged cluster"]
    x = odd_rows(7, n)
    x[6] *= 100
    with np.errstate(all="ignore"):
        made, _ = results(FUNCTIONS[name], x, gpu)
    for have, want in zip(made, wanted(FUNCTIONS[name], x), strict=True):
        np.testing.assert_allclose(have, want, rtol=5e-6, atol=2e-7)


@pytest.mark.parametrize(
    ("name", "dtype", "n"),
    [
        ("softmax", np.float16, 520),
        ("logsumexp", np.float16, 520),
        ("softmax", np.float64, 264),
    ],
)
def test_other_dtypes_share_an_exchange(name, dtype, n):
    gpu, _ = SHAPES["cluster"]
    x = random(2, n, dtype=dtype)
    made, kernel = results(FUNCTIONS[name], x, gpu)
    assert exchanges(kernel) == 1
    tolerance = 4e-3 if dtype == np.float16 else 1e-13
    for have, want in zip(made, wanted(FUNCTIONS[name], x), strict=True):
        np.testing.assert_allclose(have, want, rtol=tolerance, atol=tolerance)


def test_a_later_stage_that_needs_both_has_an_exchange_of_its_own():
    gpu, (_, n) = SHAPES["ragged cluster"]
    x = random(2, n)
    made, kernel = results(gradient, x, gpu)
    assert exchanges(kernel) == 2
    p = np.exp(x - x.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    want = 2 * p * (p - np.sum(p * p, axis=1, keepdims=True))
    np.testing.assert_allclose(made[0], want, rtol=1e-5, atol=1e-7)


def test_what_is_stored_meanwhile_is_not_taken_about_a_part_s_number():
    def parts(x):
        e = anp.exp(x - anp.max(x, axis=-1, keepdims=True))
        return e, anp.sum(e, axis=-1)

    gpu, extents = SHAPES["ragged cluster"]
    x = random(*extents)
    made, kernel = results(parts, x, gpu)
    assert exchanges(kernel) == 2
    for have, want in zip(made, wanted(parts, x), strict=True):
        np.testing.assert_allclose(have, want, rtol=2e-6)


def test_a_kept_exponential_is_moved_and_divided_by_one_product():
    (kernel,) = lowered(nn.softmax, random(2, 1024), gpu=CLUSTERS).kernels
    assert "d_share = div_f32(d_factor, e)" in kernel.source
    assert re.search(r"d = d_row\[lane\]\n +g = d \* d_share", kernel.source)
    # Of each element, a warp's sum, a block's, and the factor.
    assert kernel.source.count("exp_f32(") == 4


def test_a_kept_exponential_that_is_not_only_divided_is_moved():
    def both(x):
        e = anp.exp(x - anp.max(x, axis=-1, keepdims=True))
        total = anp.sum(e, axis=-1, keepdims=True)
        return e / total - e

    gpu, extents = SHAPES["cluster"]
    x = random(*extents) * 3
    made, kernel = results(both, x, gpu)
    assert exchanges(kernel) == 1
    assert "] * d_factor" in kernel.source
    for have, want in zip(made, wanted(both, x), strict=True):
        np.testing.assert_allclose(have, want, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("cluster", [1, 4])
def test_squares_are_moved_between_warps_and_blocks(cluster):
    gpu = replace(PIPELINES, pipeline_bytes=2048, max_cluster=cluster)
    x = random(5, 512 * cluster)
    x[1] += 1000
    x[2] *= 1e-6
    x[3, 0] = 1e6
    x[4, 5] = np.nan
    made, kernel = results(normalized, x, gpu)
    assert kernel.cluster == cluster
    assert exchanges(kernel) == 1
    assert "difference * difference" in kernel.source
    for have, want in zip(made, wanted(normalized, x), strict=True):
        # Far from 0 what the mean is rounded by is left.
        np.testing.assert_allclose(have[[0, 2, 3, 4]], want[[0, 2, 3, 4]], 2e-5, 2e-6)
        np.testing.assert_allclose(have[1], want[1], rtol=0, atol=2e-4)


def test_what_is_merged_where_it_is_worth_its_arithmetic():
    def merges(function, rows, n):
        x = np.empty((rows, n), np.float32)
        (kernel,) = lowered(function, x).kernels
        return exchanges(kernel)

    assert merges(nn.softmax, 512, 65536) == 1
    assert merges(nn.log_softmax, 512, 65536) == 1
    assert merges(nn.softmax, 2048, 16384) == 1
    assert merges(nn.softmax, 8192, 4096) == 2
    # Squares are moved between warps that have as much of the row.
    assert merges(normalized, 512, 65536) == 1
    assert merges(normalized, 512, 65532) == 2
    assert merges(normalized, 8192, 4096) == 2
