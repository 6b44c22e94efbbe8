"""Windows with channels last on a GPU, without one: a kernel each, and no copies."""

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.backends.cuda import missing_here, missing_packages
from arrayfn.backends.cuda.code import kernel_ptx
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.lowering.cuda.lower import lower
from arrayfn.primitives.calls import evaluate
from arrayfn.transforms import trace_function
from tests.lowered_on_gpu import lowered

needs_compiler = pytest.mark.skipif(bool(missing_packages()), reason=missing_packages())

needs_gpu = pytest.mark.skipif(bool(missing_here()), reason=missing_here())

CASES = {
    "max": (lax.max, (3, 3), (2, 2), "SAME", np.float32),
    "max of halves": (lax.max, (3, 3), (2, 2), "SAME", dtypes.bfloat16),
    "min": (lax.min, (3, 2), (2, 2), "SAME", np.float64),
    "sum": (lax.add, (3, 3), (2, 2), "SAME", np.float32),
    "sum of halves": (lax.add, (3, 3), (2, 2), "SAME", dtypes.bfloat16),
    "without a border": (lax.max, (3, 3), (2, 1), "VALID", np.float32),
    "borders that differ": (lax.max, (2, 2), (2, 2), ((1, 1), (1, 0)), np.float32),
}


def operand(case, shape=(1, 17, 17, 16)):
    op, *_, dtype = CASES[case]
    x = np.random.default_rng(0).integers(-4, 4, shape).astype(dtype)
    if op is not lax.add:
        x[0, 3, 3, 2] = x[0, 1, 1, 1] = np.nan
        x[0, :3, :3, 3] = -np.inf
    return x


def pooled(case):
    op, sizes, strides, padding, dtype = CASES[case]
    first = {lax.max: -np.inf, lax.min: np.inf, lax.add: 0.0}[op]
    init = np.asarray(first).astype(dtype)[()]
    if not isinstance(padding, str):
        padding = ((0, 0), *padding, (0, 0))

    def run(x):
        return lax.reduce_window(x, init, op, (1, *sizes, 1), (1, *strides, 1), padding)

    return run


def with_gradient(case):
    run = pooled(case)

    def both(x):
        loss = lambda x: anp.sum(anp.sin(run(x).astype("f")))  # noqa: E731
        return run(x), af.grad(loss)(x)

    return both


@pytest.mark.parametrize("case", CASES)
def test_windows_and_their_gradients_equal_the_reference(case):
    x = operand(case)
    program = trace_function(with_gradient(case), (x,), {}).program
    compiled = lower(program, check=True)
    assert any(k.name.startswith("windows") for k in compiled.kernels)
    bound = 3e-2 if x.dtype == dtypes.bfloat16 else 1e-5
    results = run_plan(compiled, (x,))
    for have, want in zip(results, evaluate(program, (x,)), strict=True):
        have, want = (v.astype(np.float64) for v in (have, want))
        np.testing.assert_allclose(have, want, bound, bound)


def test_a_pool_and_its_gradient_copy_nothing():
    both, x = with_gradient("max"), operand("max")
    compiled = lowered(both, x)
    names = [k.name.rpartition("_")[0] for k in compiled.kernels]
    # The extrema and their positions, the loss's derivative, and what is put back.
    assert sorted(names) == ["elementwise", "windows", "windows"]
    assert "pad" not in compiled.text.replace("padding", "")


def test_few_windows_fuse_with_what_is_around_them():
    x, run = operand("max", (1, 4, 4, 4)), pooled("max")
    compiled = lowered(lambda x: run(x) * 2, x)
    assert not any(k.name.startswith("windows") for k in compiled.kernels)


@needs_compiler
@pytest.mark.parametrize("case", ["max", "max of halves"])
def test_kernels_of_windows_keep_their_values_in_registers(case):
    kernels = [
        k
        for k in lowered(with_gradient(case), operand(case)).kernels
        if k.name.startswith("windows")
    ]
    assert len(kernels) == 2
    for kernel in kernels:
        assert ".local" not in kernel_ptx(kernel, (9, 0))


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("case", CASES)
def test_windows_on_the_gpu_equal_the_reference(case):
    x, both = operand(case), with_gradient(case)
    program = trace_function(both, (x,), {}).program
    bound = 3e-2 if x.dtype == dtypes.bfloat16 else 1e-5
    results = af.jit(both, device="cuda")(x)
    for have, want in zip(results, evaluate(program, (x,)), strict=True):
        have, want = (np.asarray(v).astype(np.float64) for v in (have, want))
        np.testing.assert_allclose(have, want, bound, bound)
