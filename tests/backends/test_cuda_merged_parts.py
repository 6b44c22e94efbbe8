"""Long rows of two stages that merge, cut into parts: emulated, and odd rows."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn import nn
from arrayfn.backends.cuda import missing_packages
from arrayfn.backends.cuda.code import kernel_ptx
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.lowering.cuda.config import GPU, GpuConfig
from tests.backends.rows_on_gpu import odd_rows, wanted
from tests.common_functions import random
from tests.lowered_on_gpu import lowered

needs_compiler = pytest.mark.skipif(bool(missing_packages()), reason=missing_packages())

# A GPU whose blocks keep so little that short rows are long ones.
SMALL = GpuConfig(
    multiprocessors=2,
    max_threads=128,
    row_words=1,
    cluster_words=4,
    cluster_threads=64,
    max_cluster=0,
    split_chunk=32,
    merged_words=32,
    merged_threads=64,
)
COLUMNS = replace(SMALL, split_chunk=512, merged_words=512)


def logsumexp(x):
    return nn.logsumexp(x, axis=-1)


def about_the_greatest(x):
    """It has no guard against rows of infinities: they are NaN."""
    greatest = anp.max(x, axis=-1, keepdims=True)
    return anp.log(anp.sum(anp.exp(x - greatest), axis=-1)) + greatest[..., 0]


def both(x):
    return logsumexp(x), about_the_greatest(x)


def std(x):
    return anp.std(x, axis=-1)


def moments(x):
    mean = anp.mean(x, axis=-1, keepdims=True)
    d = x - mean
    return mean[..., 0], anp.mean(d * d, axis=-1), anp.max(x, axis=-1)


def of_columns(x):
    return anp.var(x, axis=0), nn.logsumexp(x, axis=0)


def of_outer_and_inner(x):
    return anp.std(x.reshape(x.shape[0], 4, -1), axis=(0, 2))


def results(function, x, gpu):
    """What the emulator makes of ``function``, and the kernels' axes."""
    compiled = lowered(function, x, gpu=gpu)
    made = run_plan(compiled, (x,))
    return [np.asarray(r).astype(np.float64) for r in made], compiled


# name: kernels, function, shape, dtype
CASES = {
    "logsumexp": (2, logsumexp, (2, 128), np.float32),
    "logsumexp of float64": (2, logsumexp, (2, 128), np.float64),
    "logsumexp of bfloat16": (2, logsumexp, (2, 128), ml_dtypes.bfloat16),
    "unequal parts": (3, both, (2, 157), np.float32),
    "std": (2, std, (2, 128), np.float32),
    "std of float64": (3, std, (2, 134), np.float64),
    "std of bfloat16": (2, std, (2, 128), ml_dtypes.bfloat16),
    "moments": (3, moments, (2, 157), np.float32),
    "outer and inner axes": (2, of_outer_and_inner, (32, 16), np.float32),
}
BOUNDS = {np.dtype(np.float64): 1e-13, np.dtype(ml_dtypes.bfloat16): 1e-2}


@pytest.mark.parametrize("case", CASES)
def test_parts_come_to_what_the_row_does(case):
    kernels, function, shape, dtype = CASES[case]
    x = (random(*shape, dtype=np.float64) * 3 + 1).astype(dtype)
    made, compiled = results(function, x, SMALL)
    assert len(compiled.plan.steps) == kernels
    bound = BOUNDS.get(x.dtype, 2e-6)
    for have, want in zip(made, wanted(function, x), strict=True):
        np.testing.assert_allclose(have, want, rtol=bound)


@pytest.mark.parametrize("shape", [(37, 40), (53, 5)])
def test_columns_have_parts_too(shape):
    x = random(*shape)
    made, compiled = results(of_columns, x, COLUMNS)
    assert len(compiled.plan.steps) == 3
    for have, want in zip(made, wanted(of_columns, x), strict=True):
        np.testing.assert_allclose(have, want, rtol=2e-6)


@pytest.mark.parametrize("function", [both, std])
def test_infinities_and_nan_are_where_numpy_has_them(function):
    n = 67
    x = odd_rows(9, n)
    x[6] = np.inf
    x[7, : n - 3] = -np.inf
    x[8, n // 2 :] += 1000
    with np.errstate(all="ignore"):
        made, _ = results(function, x, SMALL)
    for have, want in zip(made, wanted(function, x), strict=True):
        np.testing.assert_allclose(have, want, rtol=5e-6, atol=1e-6)


@pytest.mark.parametrize(("mean", "steps"), [(1e2, 0), (1e4, 0), (1e4, 3)])
def test_variances_far_from_0_are_as_exact_as_of_a_row(mean, steps):
    x = random(2, 157) + np.float32(mean) + steps * np.floor(np.arange(157) / 32)
    x = x.astype(np.float32)
    made, compiled = results(std, x, SMALL)
    whole, _ = results(std, x, replace(SMALL, row_words=64, split_chunk=1 << 20))
    assert len(compiled.plan.steps) == 3
    want = wanted(std, x)[0]
    error, bound = np.abs(made[0] / want - 1), np.abs(whole[0] / want - 1)
    assert (error <= np.maximum(bound, 1e-6)).all()


def schedules(function, shape, dtype=np.float32, gpu=GPU):
    """The names of the kernels of ``function``, and their threads."""
    x = np.empty(shape, dtype)
    made = lowered(function, x, gpu=gpu).kernels
    return [(k.name, k.threads, k.cluster) for k in made]


def test_a_softmax_of_few_long_rows_reads_them_twice():
    x = random(2, 157) * 3
    made, compiled = results(nn.softmax, x, replace(SMALL, multiprocessors=8))
    assert len(compiled.plan.steps) == 4  # parts, the rest, together; the elements
    np.testing.assert_allclose(made[0], wanted(nn.softmax, x)[0], rtol=2e-6)


def test_which_rows_are_cut_into_parts():
    for function in (logsumexp, std):
        parts = schedules(function, (512, 65536))
        assert parts == [("rows_0", 256, 1), ("rows_1", 32, 1)]
        assert len(schedules(function, (8, 1 << 20))) == 2
        assert len(schedules(function, (2048, 16384))) == 1  # a block has one
        assert len(schedules(function, (100, 32768))) == 1  # and none waits for a turn
        assert len(schedules(function, (200, 32768))) == 2
        ((_, _, blocks),) = schedules(function, (8, 65536))
        assert blocks > 1  # a cluster has one
    assert len(schedules(nn.log_softmax, (512, 65536))) == 1
    assert len(schedules(nn.log_softmax, (100, 32768))) == 1


@needs_compiler
@pytest.mark.cuda
def test_parts_are_kept_in_registers():
    x = np.empty((512, 65536), np.float32)
    for kernel in lowered(std, x).kernels:
        assert ".local" not in kernel_ptx(kernel, (9, 0))
