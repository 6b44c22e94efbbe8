"""Kernels made of functions of PyTorch, Triton, TileLang and numba.cuda.

Where PyTorch is not installed, a module of NumPy functions stands for what the adapters
need of it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import types

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import dtypes, nn
from arrayfn.errors import (
    ArgumentError,
    BackendError,
    KernelMismatchError,
    ShapeError,
)

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
HAS_TORCH = importlib.util.find_spec("torch") is not None


class Tensor:
    """The memory of an array, with what the adapters use of a tensor."""

    def __init__(self, array):
        self.array = array
        self.shape = array.shape
        self.dtype = array.dtype

    def data_ptr(self):
        return self.array.ctypes.data

    def copy_(self, other):
        self.array[...] = other.array

    def view(self, dtype):
        return Tensor(self.array.view(dtype))

    def __mul__(self, other):
        return Tensor(self.array * other)


def torch_of_numpy():
    streams = []

    @contextlib.contextmanager
    def stream(given):
        streams.append(given)
        yield

    module = types.ModuleType("torch")
    module.from_dlpack = lambda x: Tensor(x if isinstance(x, np.ndarray) else x.host)
    module.no_grad = contextlib.nullcontext
    module.bfloat16 = dtypes.bfloat16
    module.cuda = types.SimpleNamespace(stream=stream, default_stream=lambda: "default")
    module.streams = streams
    return module


@pytest.fixture
def fake_torch(monkeypatch):
    module = torch_of_numpy()
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


@pytest.fixture
def doubled():
    @af.operator
    def doubled(x, factor=2.0):
        return x * factor

    return doubled


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_tensors_share_the_memory_of_the_plan(fake_torch, doubled, dtype):
    seen = []

    @doubled.kernel("cpu")
    @af.adapters.torch
    def by_torch(x, factor):
        seen.append((x.dtype, x.data_ptr()))
        return x * np.asarray(factor, x.dtype)

    x = X.astype(dtypes.canonical(dtype))
    np.testing.assert_array_equal(af.jit(doubled)(x), x * np.asarray(2, x.dtype))
    assert seen[-1] == (x.dtype, x.ctypes.data)
    assert doubled.kernels[0].title == "by_torch"


def test_out_tensors_and_several_results(fake_torch):
    @af.operator
    def both(x):
        return x * 2, x * 3

    @both.kernel("cpu")
    @af.adapters.torch(results=2)
    def returned(x):
        return x * 2, x * 3

    f = af.jit(both)
    np.testing.assert_array_equal(np.stack(f(X)), np.stack([X * 2, X * 3]))

    def written(x, two, three):
        two.copy_(x * 2)
        three.copy_(x * 3)

    both.kernel("cpu", replaces="returned")(af.adapters.torch(written, out=True))
    np.testing.assert_array_equal(np.stack(f(X)), np.stack([X * 2, X * 3]))


def test_results_that_do_not_fit_are_errors(fake_torch, doubled):
    doubled.kernel("cpu")(af.adapters.torch(lambda x, factor: (x, x)))
    with pytest.raises(ArgumentError, match="2 results, not 1; pass results=2"):
        af.jit(doubled)(X)
    doubled.kernel("cpu")(
        af.adapters.torch(lambda x, factor: Tensor(np.float32([[2.0]])))
    )
    with pytest.raises(ShapeError, match=r"result 0 of shape \(1, 1\).*has \(3, 4\)"):
        af.jit(doubled)(X)


def test_a_kernel_of_a_library_that_is_missing_says_so(monkeypatch, doubled):
    monkeypatch.setitem(sys.modules, "torch", None)

    @doubled.kernel("cpu")
    @af.adapters.torch
    def by_torch(x, factor):
        return x * factor

    with pytest.raises(BackendError, match="by_torch needs torch, which is not inst"):
        af.jit(doubled)(X)


class OnGpu:
    """Stands for a DeviceArray: DLPack is all that an adapter asks of it."""

    def __init__(self, host):
        self.host = host
        self.shape, self.dtype, self.size = host.shape, host.dtype, host.size


def test_work_on_a_gpu_is_enqueued_on_the_default_stream(fake_torch):
    out = np.zeros_like(X)
    af.adapters.torch(lambda x: x * 2)(OnGpu(X), OnGpu(out))
    np.testing.assert_array_equal(out, 2 * X)
    assert fake_torch.streams == ["default"]


class TritonFunction:
    """A function of triton.jit: ``kernel[grid](*pointers, **named)``."""

    def __init__(self, fn):
        self.fn = fn
        self.launched = []

    def __getitem__(self, grid):
        def run(*arguments, **named):
            grid_of = grid(named) if callable(grid) else grid
            assert all(
                hasattr(x, "data_ptr") and hasattr(x, "dtype") for x in arguments
            )
            self.launched.append((grid_of, named))
            for program in range(grid_of[0]):
                self.fn(program, *(x.array.reshape(-1) for x in arguments), **named)

        return run


def double_rows(program, x, out, n, factor, BLOCK):
    at = slice(program * BLOCK, min(n, (program + 1) * BLOCK))
    out[at] = x[at] * factor


@pytest.mark.parametrize(
    "grid", [2, (2,), lambda meta: (-(-meta["n"] // meta["BLOCK"]),)]
)
def test_a_triton_kernel_is_launched_as_documented(fake_torch, doubled, grid):
    kernel = TritonFunction(double_rows)

    def launch(x, out, factor):
        return grid, {"n": x.size, "factor": np.float32(factor), "BLOCK": 8}

    doubled.kernel("cpu")(af.adapters.triton(kernel, launch))
    np.testing.assert_array_equal(af.jit(doubled)(X), 2 * X)
    assert kernel.launched[-1] == ((2,), {"n": 12, "factor": 2.0, "BLOCK": 8})
    assert doubled.kernels[0].title == "double_rows"


def test_a_launch_that_gives_something_else_is_an_error(fake_torch, doubled):
    doubled.kernel("cpu")(
        af.adapters.triton(TritonFunction(double_rows), lambda x, out, factor: (2,))
    )
    with pytest.raises(ArgumentError, match=r"launch of double_rows returns the grid"):
        af.jit(doubled)(X)


@pytest.mark.parametrize("has_out_idx", [False, True])
def test_a_tilelang_function_is_compiled_once_for_its_sizes(fake_torch, has_out_idx):
    @af.operator
    def product(a, b):
        return anp.matmul(a, b)

    made = []

    def matmul(M, N, K, dtype="float32"):
        made.append((M, N, K))

        def compiled(a, b, c=None):
            if c is None:
                return Tensor(a.array @ b.array)
            c.array[...] = a.array @ b.array
            return None

        if has_out_idx:
            compiled.out_idx = [-1]
        return compiled

    def sizes(a, b, out):
        return {
            "M": a.shape[0],
            "N": b.shape[1],
            "K": a.shape[1],
            "dtype": a.dtype.name,
        }

    product.kernel("cpu")(af.adapters.tilelang(matmul, sizes))
    for _ in range(2):
        np.testing.assert_allclose(af.jit(product)(X, X.T), X @ X.T, rtol=1e-6)
    assert made == [(3, 3, 4)]
    assert product.kernels[0].title == "matmul"


class CudaFunction:
    """A function of numba.cuda.jit: ``kernel[grid, block](*arrays)``."""

    def __init__(self, py_func):
        self.py_func = py_func

    def __getitem__(self, shape):
        (grid, block) = shape

        def run(*arguments):
            for thread in range(grid * block):
                self.py_func(thread, *arguments)

        return run


def test_a_cuda_kernel_is_launched_with_grid_block_arrays_and_values(doubled):
    def double(thread, x, out, factor):
        if thread < x.size:
            out.flat[thread] = x.flat[thread] * factor

    def launch(x, out, factor):
        return -(-x.size // 8), 8, np.float32(factor)

    doubled.kernel("cpu")(af.adapters.cuda_jit(CudaFunction(double), launch))
    np.testing.assert_array_equal(af.jit(doubled)(X), 2 * X)


# With PyTorch itself.

needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")


@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_softmax_of_pytorch_is_checked_against_the_body(dtype):
    import torch

    @nn.softmax.kernel("cpu", when=lambda x, where, axis: where is None)
    @af.adapters.torch
    def by_torch(x, where, axis):
        return torch.softmax(x, axis)

    x = X.astype(dtypes.canonical(dtype))
    try:
        f = af.jit(lambda x: nn.softmax(x, axis=0) * 2)
        have = f(x)
        assert "by_torch" in str(f.lower(x).kernels)
    finally:
        nn.softmax.remove("by_torch")
    wanted = np.exp(np.float64(x))
    wanted = 2 * wanted / wanted.sum(0)
    tolerance = {"float32": 1e-6, "float64": 1e-14, "bfloat16": 1e-2}[dtype]
    np.testing.assert_allclose(np.float64(have), wanted, rtol=tolerance)


@needs_torch
def test_another_function_of_pytorch_is_found_to_differ():
    import torch

    nn.gelu.kernel("cpu")(af.adapters.torch(lambda x, approximate: torch.relu(x)))
    try:
        with pytest.raises(KernelMismatchError, match=r"of operator nn\.gelu differs"):
            af.jit(nn.gelu)(X)
    finally:
        nn.gelu.remove("<lambda>")


@needs_torch
def test_attention_of_pytorch_takes_views_of_its_tensors():
    import torch

    @nn.dot_product_attention.kernel(
        "cpu", when=lambda q, k, v, *others, **static: others == (None,) * 4
    )
    @af.adapters.torch
    def by_torch(q, k, v, bias, mask, queries, keys, *, scale, is_causal, **others):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        sdpa = torch.nn.functional.scaled_dot_product_attention
        return sdpa(q, k, v, is_causal=is_causal, scale=scale).transpose(1, 2)

    q = np.random.default_rng(1).normal(size=(2, 5, 2, 4))
    try:
        have = af.jit(lambda q: nn.dot_product_attention(q, q, q, is_causal=True))(q)
    finally:
        nn.dot_product_attention.remove("by_torch")
    wanted = nn.dot_product_attention(q, q, q, is_causal=True)
    np.testing.assert_allclose(have, wanted, rtol=1e-12)
