"""Kernels of Triton, PyTorch and numba.cuda on a GPU, through ``af.adapters``."""

# Triton reads the annotations of its kernels, so they are not strings here.

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import dtypes, nn
from arrayfn.backends.cuda.requirements import missing_here
from arrayfn.errors import DroppedKernelWarning, KernelMismatchError

pytestmark = pytest.mark.skipif(bool(missing_here()), reason=missing_here())

X = np.random.default_rng(0).normal(size=(64, 301)).astype(np.float32)


def last_axis(x, where, axis):
    return where is None and axis in (-1, x.ndim - 1) and x.ndim == 2


def softmax(x):
    exponentials = np.exp(np.float64(x) - np.float64(x).max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


@pytest.fixture
def softmax_rows():
    triton = pytest.importorskip("triton")
    pytest.importorskip("torch")
    import triton.language as tl

    # Triton takes the text of a function of a module; tl is found in its globals.
    globals()["tl"] = tl

    @triton.jit
    def softmax_rows(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        at = tl.arange(0, BLOCK)
        there = at < columns
        x = tl.load(x_ptr + row * columns + at, mask=there, other=-float("inf"))
        x = x.to(tl.float32)
        exponentials = tl.exp(x - tl.max(x, axis=0))
        y = exponentials / tl.sum(exponentials, axis=0)
        tl.store(out_ptr + row * columns + at, y, mask=there)

    def launch(x, where, out, axis):
        rows, columns = x.shape
        block = triton.next_power_of_2(columns)
        return (rows,), {"columns": columns, "BLOCK": block, "num_warps": 4}

    kernel = af.adapters.triton(softmax_rows, launch)
    nn.softmax.kernel("cuda", when=last_axis)(kernel)
    yield kernel
    nn.softmax.remove("softmax_rows")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_triton_kernel_is_one_step_of_a_plan(softmax_rows, dtype):
    x = X.astype(dtypes.canonical(dtype))
    f = af.jit(lambda x: nn.softmax(x * 2, axis=-1) + 1, device="cuda")
    on_gpu = af.device_put(x, "cuda")
    tolerance = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    for _ in range(5):  # the later calls replay a graph, if the plan is captured
        have = np.asarray(f(on_gpu))
        doubled = np.float64(x * np.asarray(2, x.dtype))
        np.testing.assert_allclose(np.float64(have), softmax(doubled) + 1, tolerance)
    assert "softmax_rows" in str(f.lower(x).kernels)


def test_new_operands_of_the_same_shape_reach_the_triton_kernel(softmax_rows):
    f = af.jit(lambda x: nn.softmax(anp.sin(x), axis=-1).sum(0), device="cuda")
    for k in range(6):
        x = X + np.float32(k)
        wanted = softmax(np.sin(x)).sum(0)
        np.testing.assert_allclose(np.asarray(f(x)), wanted, rtol=2e-5)


def test_a_gradient_of_the_operator_says_that_it_uses_the_body(softmax_rows):
    weights = np.arange(X.size, dtype=np.float32).reshape(X.shape) / X.size

    def loss(x):
        return (nn.softmax(x, axis=-1) * weights).sum()

    with pytest.warns(DroppedKernelWarning, match="softmax_rows for cuda"):
        have = af.jit(af.grad(loss), device="cuda")(X)
    y = softmax(X)
    wanted = y * (weights - (weights * y).sum(-1, keepdims=True))
    np.testing.assert_allclose(np.asarray(have), wanted, atol=2e-6)


def test_a_triton_kernel_inside_a_loop(softmax_rows):
    def body(x, _):
        return nn.softmax(x, axis=-1) * 3, None

    have, _ = af.jit(lambda x: af.lax.scan(body, x, None, length=7), device="cuda")(X)
    wanted = X
    for _ in range(7):
        wanted = softmax(wanted) * 3
    np.testing.assert_allclose(np.asarray(have), wanted, rtol=1e-5)


def test_a_wrong_triton_kernel_is_refused():
    triton = pytest.importorskip("triton")
    pytest.importorskip("torch")
    import triton.language as tl

    globals()["tl"] = tl

    @triton.jit
    def one_too_many(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at, mask=at < n)
        tl.store(out_ptr + at, x + 1, mask=at < n)

    def launch(x, out):
        return (-(-x.size // 256),), {"n": x.size, "BLOCK": 256}

    @af.operator
    def doubled(x):
        return x * 2

    doubled.kernel("cuda")(af.adapters.triton(one_too_many, launch))
    with pytest.raises(KernelMismatchError, match="one_too_many"):
        af.jit(doubled, device="cuda")(X)


def test_pytorch_computes_a_softmax_on_the_gpu():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")

    @nn.softmax.kernel("cuda", when=last_axis)
    @af.adapters.torch
    def by_torch(x, where, axis):
        return torch.softmax(x, axis)

    f = af.jit(lambda x: nn.softmax(x + 1, axis=-1) * 2, device="cuda")
    try:
        for k in range(4):
            x = X * np.float32(k + 1)
            have = np.asarray(f(x))
            np.testing.assert_allclose(have, 2 * softmax(x), rtol=2e-5, atol=1e-12)
        assert "by_torch" in str(f.lower(X).kernels)
    finally:
        nn.softmax.remove("by_torch")


def test_numba_cuda_computes_on_the_stream_of_the_plan():
    from numba import cuda

    @cuda.jit
    def double(x, out, factor):
        at = cuda.grid(1)
        columns = x.shape[1]
        if at < x.size:
            out[at // columns, at % columns] = factor * x[at // columns, at % columns]

    @af.operator
    def times(x, factor=2.0):
        return x * factor

    def launch(x, out, factor):
        return -(-x.size // 128), 128, np.float32(factor)

    times.kernel("cuda")(af.adapters.cuda_jit(double, launch))
    f = af.jit(lambda x: anp.cos(times(anp.sin(x))), device="cuda")
    for k in range(4):
        x = X + np.float32(k)
        wanted = np.cos(2 * np.sin(x))
        np.testing.assert_allclose(np.asarray(f(x)), wanted, rtol=1e-5, atol=1e-6)


@pytest.fixture
def product_by_tilelang():
    tilelang = pytest.importorskip("tilelang")
    pytest.importorskip("torch")
    import tilelang.language as T  # noqa: N812 (TileLang's own name for it)

    def product_of(M, K, N):
        @T.prim_func
        def main(
            a: T.Tensor((M, K), "float16"),
            b: T.Tensor((K, N), "float16"),
            c: T.Tensor((M, N), "float16"),
        ):
            with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
                rows = T.alloc_shared((64, 32), "float16")
                columns = T.alloc_shared((32, 64), "float16")
                sums = T.alloc_fragment((64, 64), "float")
                T.clear(sums)
                for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
                    T.copy(a[by * 64, k * 32], rows)
                    T.copy(b[k * 32, bx * 64], columns)
                    T.gemm(rows, columns, sums)
                T.copy(sums, c[by * 64, bx * 64])

        return main

    return tilelang.jit(product_of)


def test_a_tilelang_kernel_multiplies(product_by_tilelang):
    @af.operator
    def product(a, b):
        return a @ b

    def sizes(a, b, out):
        return *a.shape, b.shape[1]

    product.kernel("cuda")(af.adapters.tilelang(product_by_tilelang, sizes))
    f = af.jit(lambda a, b: product(a, b) + 1, device="cuda")
    for seed in range(4):
        random = np.random.default_rng(seed)
        a = random.normal(size=(192, 96)).astype(np.float16)
        b = random.normal(size=(96, 128)).astype(np.float16)
        wanted = np.float64(a) @ np.float64(b) + 1
        have = np.float64(np.asarray(f(a, b)))
        np.testing.assert_allclose(have, wanted, rtol=4e-3, atol=4e-2)
