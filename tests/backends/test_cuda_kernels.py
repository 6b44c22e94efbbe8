"""CUDA kernels without a GPU: emulated against NumPy, and compiled to PTX."""

import re

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn.backends.cuda import missing_packages
from arrayfn.backends.cuda.emulator import run_plan
from arrayfn.functions import trace_function
from arrayfn.lowering.cuda.lower import lower
from arrayfn.lowering.cuda.source import CudaKernel

ARCHITECTURES = ((8, 0), (9, 0))
needs_compiler = pytest.mark.skipif(bool(missing_packages()), reason=missing_packages())


def random(*shape, dtype=np.float32, seed=0):
    values = np.random.default_rng(seed).standard_normal(shape) * 3
    return values.astype(dtype)


def softmax(x):
    e = anp.exp(x - anp.max(x, axis=-1, keepdims=True))
    return e / anp.sum(e, axis=-1, keepdims=True)


def layernorm(x, scale):
    d = x - anp.mean(x, axis=-1, keepdims=True)
    variance = anp.mean(d * d, axis=-1, keepdims=True)
    return d / anp.sqrt(variance + 1e-5) * scale


# name: function, arguments
CASES = {
    "chain": (lambda x, y: anp.exp(x * y) + 1, (random(4, 64), random(4, 64, seed=1))),
    "chain with a tail": (lambda x: anp.tanh(x) * 2, (random(131),)),
    "scalar": (lambda x: x * 3 + 1, (random(),)),
    "broadcast row": (lambda x, y: x + y, (random(5, 12), random(12))),
    "broadcast middle": (lambda x, y: x + y, (random(5, 7, 3), random(7, 1))),
    "reversed": (lambda x: x[::-1] * x, (random(50),)),
    "half": (lambda x: x * x + x, (random(3, 40, dtype=np.float16),)),
    "compare": (
        lambda x, y: anp.where(x > y, x, -y),
        (random(8, 8), random(8, 8, seed=1)),
    ),
    "booleans": (lambda x: (x > 0) & (x < 1), (random(40),)),
    "integers": (lambda x: x // 3 + x % 5, (np.arange(-30, 34, dtype=np.int32),)),
    "complex": (lambda x: x * anp.conj(x), (random(20) + 1j * random(20, seed=1),)),
    "transpose": (lambda x: anp.transpose(x) + 1, (random(40, 50),)),
    "transpose in a batch": (lambda x: anp.swapaxes(x, 1, 2) * 2, (random(2, 33, 9),)),
    "softmax of a team": (softmax, (random(5, 12),)),
    "softmax of a warp": (softmax, (random(6, 256),)),
    "softmax of a block": (softmax, (random(2, 2048),)),
    "softmax of odd rows": (softmax, (random(3, 101),)),
    "softmax of columns": (lambda x: softmax(x.T), (random(37, 5),)),
    "layernorm": (layernorm, (random(5, 64), random(64, seed=1))),
    "row maximum": (lambda x: anp.max(x, axis=1), (random(9, 50),)),
    "row any": (lambda x: anp.any(x > 2, axis=1), (random(9, 50),)),
    "column sum": (lambda x: anp.sum(x, axis=0), (random(50, 40),)),
    "outer sum": (lambda x: anp.sum(x, axis=(0, 2)), (random(5, 6, 7),)),
    "full sum": (anp.sum, (random(50, 40),)),
    "sum of float64": (lambda x: anp.sum(x * x, axis=1), (random(4, 66, dtype=float),)),
    "sum of complex": (
        lambda x: anp.sum(x, axis=1),
        (random(3, 9) + 1j * random(3, 9),),
    ),
}
cases = pytest.mark.parametrize("case", CASES)


def lowered(case):
    function, arguments = CASES[case]
    return lower(trace_function(function, arguments, {}).program, check=True)


@cases
def test_emulated_kernels_equal_the_reference(case):
    function, arguments = CASES[case]
    (result,) = run_plan(lowered(case), arguments)
    expected = np.asarray(function(*arguments))
    assert result.dtype == expected.dtype
    tolerance = {"f": 1e-6, "c": 1e-6}.get(expected.dtype.kind, 0)
    if expected.dtype == np.float16:
        tolerance = 2e-3
    np.testing.assert_allclose(result, expected, rtol=4 * tolerance, atol=tolerance)


def test_elementwise_results_have_the_bits_of_the_reference():
    function, arguments = CASES["chain"]
    (result,) = run_plan(lowered("chain"), arguments)
    scalar = lower(
        trace_function(function, tuple(a[0, 0] for a in arguments), {}).program
    )
    (one,) = run_plan(scalar, tuple(a[0, 0] for a in arguments))
    assert result[0, 0].view(np.int32) == one.view(np.int32)


def ptx_of(case, arch):
    compile_ptx = pytest.importorskip("arrayfn.backends.cuda.numba_cuda").compile_ptx
    kernels = [k for k in lowered(case).kernels if isinstance(k, CudaKernel)]
    return [compile_ptx(kernel, arch) for kernel in kernels]


@needs_compiler
@pytest.mark.cuda
@cases
@pytest.mark.parametrize("arch", ARCHITECTURES, ids="sm_{0[0]}{0[1]}".format)
def test_kernels_compile_to_ptx(case, arch):
    for ptx in ptx_of(case, arch):
        assert f".target sm_{arch[0]}{arch[1]}" in ptx
        assert re.search(r"\.visible \.entry \w+_0\(", ptx)
        # Register tiles must be registers.
        assert ".local" not in ptx


@needs_compiler
@pytest.mark.cuda
def test_elementwise_accesses_are_of_128_bits():
    (ptx,) = ptx_of("chain", (9, 0))
    assert ptx.count("ld.global.nc.v4.f32") == 2
    assert ptx.count("st.global.v4.f32") == 1


@needs_compiler
@pytest.mark.cuda
def test_a_row_is_read_once():
    (ptx,) = ptx_of("softmax of a block", (9, 0))
    assert ptx.count("ld.global") == 4
    assert ptx.count("st.global") == 4


@needs_compiler
@pytest.mark.cuda
def test_products_are_not_contracted():
    (ptx,) = ptx_of("scalar", (9, 0))
    assert "fma" not in ptx
    assert "mul.rn.f32" in ptx
