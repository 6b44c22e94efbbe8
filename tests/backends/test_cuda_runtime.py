"""The CUDA runtime on a GPU: every row's kernels, arrays, memory, other libraries."""

import gc
import threading

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import dtypes, lax, nn
from arrayfn.backends.cuda import CudaBackend, missing_here
from arrayfn.backends.cuda.device_array import DeviceArray, device_put, from_dlpack
from arrayfn.backends.cuda.this_gpu import memory_stats
from arrayfn.errors import ArgumentError, BackendError, DifferentiationError
from arrayfn.primitives.base import Tolerance
from arrayfn.primitives.calls import evaluate
from arrayfn.tracing import apply
from arrayfn.transforms import trace_function
from tests.common_functions import random, softmax
from tests.lowering.kernels import assert_near
from tests.lowering.test_kernels_of_the_table import LOWERED, program_of_samples

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(bool(missing_here()), reason=missing_here()),
]


def on_gpu(function, **options):
    return af.jit(function, device="cuda", **options)


def by_reference(function):
    return af.jit(function, device="reference")


# Kernels.


# Vectors have no sign of their own: see test_cuda_solvers, which multiplies them.
# Members of a mesh compute collectives together: tests/distributed/test_on_gpus.py.
COMPARED = [
    row
    for row in LOWERED
    if row.name not in ("eigh", "eig", "svd") and not row.is_collective
]


@pytest.mark.parametrize("row", COMPARED, ids=lambda row: row.name)
def test_every_row_agrees_with_the_reference(row):
    program, inputs, labels = program_of_samples(row)
    backend = CudaBackend()
    run = backend.load(backend.lower(program, frozenset()))
    results = run(tuple(inputs))
    expected = evaluate(program, inputs)
    # One of its samples asks for TF32.
    product = row.name == "dot_general"
    tolerance = Tolerance(float32=2e-3) if product else row.tolerance
    for label, have, want in zip(labels, results, expected, strict=True):
        assert_near(np.asarray(have), want, tolerance, label)


def gradient_of_samples(row):
    """A Program of the gradient of a row's first samples that have one, and inputs."""
    narrow = lambda s: any(x.dtype in dtypes.HALF_PRECISION for x in s.inputs)  # noqa: E731
    for sample in sorted(row.samples(), key=narrow):
        inexact = [k for k, x in enumerate(sample.inputs) if x.dtype.kind == "f"]
        chosen = inexact if sample.differentiate is None else list(sample.differentiate)
        chosen = [k for k in chosen if k in inexact]
        if not chosen:
            continue

        def loss(*values, sample=sample, chosen=tuple(chosen)):
            inputs = list(sample.inputs)
            for k, value in zip(chosen, values, strict=True):
                inputs[k] = value
            results = apply(row, *inputs, **sample.params)
            results = results if isinstance(results, tuple) else (results,)
            parts = [anp.sum(anp.sin(r)) for r in results if r.dtype.kind == "f"]
            return sum(p.astype(np.float64) for p in parts)

        values = tuple(sample.inputs[k] for k in chosen)
        try:
            gradient = af.grad(loss, argnums=tuple(range(len(values))))
            program = trace_function(
                gradient, values, {}, abstract=True, with_values=False
            ).program
        except (DifferentiationError, TypeError, AttributeError):
            return None
        return program, values
    return None


@pytest.mark.parametrize("row", COMPARED, ids=lambda row: row.name)
def test_the_gradient_of_every_row_is_the_reference_s(row):
    made = gradient_of_samples(row)
    if made is None:
        pytest.skip("it has no gradient by real arrays")
    program, values = made
    backend = CudaBackend()
    results = backend.load(backend.lower(program, frozenset()))(values)
    for have, want in zip(results, evaluate(program, values), strict=True):
        narrow = want.dtype in dtypes.HALF_PRECISION
        bound = 2e-2 if narrow else 1e-3 if want.dtype == np.float32 else 1e-8
        have, want = (np.asarray(x).astype(np.float64) for x in (have, want))
        scale = np.abs(want[np.isfinite(want)]).max(initial=1.0)
        np.testing.assert_allclose(have, want, bound, bound * scale)


SIZES = [(1,), (131,), (4097,), (1000003,), (3, 5), (33, 1284), (700, 900), (2, 70000)]


@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_reductions_of_many_shapes(shape):
    x = random(*shape)
    wide = x.astype(np.float64)
    results = on_gpu(
        lambda x: (anp.sum(x), anp.sum(x, axis=0), anp.max(x, axis=-1), softmax(x))
    )(x)
    e = np.exp(wide - wide.max(-1, keepdims=True))
    expected = wide.sum(), wide.sum(0), wide.max(-1), e / e.sum(-1, keepdims=True)
    scale = np.sqrt(x.size)
    for have, want in zip(results, expected, strict=True):
        np.testing.assert_allclose(have, want, rtol=2e-5, atol=1e-5 * scale)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 700, 65), (257, 130, 513)], ids=str)
def test_products_keep_their_precision(dtype, shape):
    m, k, n = shape
    x, y = random(m, k, dtype=dtype), random(k, n, dtype=dtype, seed=1)
    if dtype.startswith("c"):
        x = x + 1j * x[::-1]
    wide = x.astype(np.complex128) @ y.astype(np.complex128)
    bound = 1e-6 if dtype in ("float32", "complex64") else 1e-14
    have = np.asarray(on_gpu(lambda x, y: x @ y)(x, y))
    assert have.dtype == dtype
    assert np.linalg.norm(have - wide) <= bound * np.linalg.norm(wide)
    turned = np.asarray(on_gpu(lambda x, y: y.T @ x.T)(x, y))
    assert np.linalg.norm(turned - wide.T) <= bound * np.linalg.norm(wide)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 700, 65), (256, 128, 512)], ids=str)
def test_products_of_halves_are_summed_in_float32(dtype, shape):
    m, k, n = shape
    dtype = np.dtype(dtype)
    x, y = random(m, k, dtype=dtype), random(k, n, dtype=dtype, seed=1)
    wide = x.astype(np.float64) @ y.astype(np.float64)
    rounded = np.asarray(on_gpu(lambda x, y: x @ y)(x, y))
    assert rounded.dtype == dtype
    error = np.linalg.norm(rounded.astype(np.float64) - wide) / np.linalg.norm(wide)
    assert error <= (1e-3 if dtype == np.float16 else 4e-3)
    f = on_gpu(lambda x, y: lax.dot(x, y, preferred_element_type=np.float32))
    whole = np.asarray(f(x, y))
    assert whole.dtype == np.float32
    assert np.linalg.norm(whole - wide) <= 1e-6 * np.linalg.norm(wide)


@pytest.mark.parametrize(
    "shape",
    [(64, 96, 80), (5, 3, 7), (1, 8, 16), (40, 4, 4096), (1024, 1056, 1040)],
    ids=str,
)
def test_products_of_bytes_are_exact(shape):
    m, n, k = shape
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-128, 128, s).astype(np.int8) for s in ((m, k), (k, n)))
    for left, right in ((x, y), (x.T.copy().T, y), (x, y.T.copy().T)):
        f = on_gpu(lambda a, b: lax.dot(a, b, preferred_element_type=np.int32))
        np.testing.assert_array_equal(np.asarray(f(left, right)), x.astype(int) @ y)
    turned = on_gpu(lambda a, b: lax.dot(a.T, b.T, preferred_element_type=np.int32))
    have = np.asarray(turned(x.T.copy(), y.T.copy()))
    np.testing.assert_array_equal(have, x.astype(int) @ y)


def test_tf32_is_used_only_if_asked_for():
    x, y = random(256, 512), random(512, 384, seed=1)
    wide = x.astype(np.float64) @ y.astype(np.float64)

    def error(**options):
        have = np.asarray(on_gpu(lambda x, y: anp.matmul(x, y, **options))(x, y))
        return np.linalg.norm(have - wide) / np.linalg.norm(wide)

    assert error() <= 1e-6
    assert 1e-5 <= error(precision="tf32") <= 1e-3


FOLLOWING = {
    "scaled_added": lambda a, b, c, r: c - 0.25 * (a @ b),
    "added": lambda a, b, c, r: c + a @ b,
    "added_bias_relu": lambda a, b, c, r: anp.maximum(a @ b + c + r, 0),
    "bias": lambda a, b, c, r: a @ b + r,
}


@pytest.mark.parametrize(
    "dtype", [np.float32, float, np.float16, dtypes.bfloat16, complex]
)
def test_what_follows_a_product_is_computed_with_it(dtype):
    for name, function in FOLLOWING.items():
        if dtype is complex and "bias" in name:
            continue
        for m, n, k in ((64, 96, 80), (5, 3, 7), (1, 8, 16)):
            shapes = (m, k), (k, n), (m, n), (n,)
            arrays = [random(*s, dtype=dtype, seed=i) for i, s in enumerate(shapes)]
            f = on_gpu(function)
            assert len(f.lower(*arrays).plan.steps) == 1
            wide = [x.astype(np.result_type(dtype, np.float64)) for x in arrays]
            want = function(*wide)
            have = np.asarray(f(*arrays)).astype(want.dtype)
            bound = {2: 1e-2, 4: 1e-5}.get(np.dtype(dtype).itemsize, 1e-13)
            assert np.linalg.norm(have - want) <= bound * np.linalg.norm(want)


@pytest.mark.parametrize("dtype", [np.float32, float, np.float16, dtypes.bfloat16])
def test_a_rate_that_is_an_argument_scales_products(dtype):
    p, g, h = (random(48, 48, dtype=dtype, seed=k) for k in range(3))
    f = on_gpu(lambda p, g, h, rate: p - rate * (g @ h))
    assert f.lower(p, g, h, 0.5).plan.steps[-1].kernel.endswith("_times_added")
    wide = [x.astype(float) for x in (p, g, h)]
    bound = {2: 1e-2, 4: 1e-5, 8: 1e-13}[np.dtype(dtype).itemsize]
    for rate in (0.5, -2.0, 0.5, 0.125):
        want = wide[0] - rate * (wide[1] @ wide[2])
        have = np.asarray(f(p, g, h, rate)).astype(float)
        assert np.linalg.norm(have - want) <= bound * np.linalg.norm(want)


def test_steps_side_by_side_give_the_bits_of_steps_in_turns():
    def step(x, *weights):
        made = [anp.tanh(x @ w) for w in weights]
        total = made[0]
        for more in made[1:]:
            total = anp.sin(total + more)
        return total, *(w - 0.1 * (x.T @ m) for w, m in zip(weights, made, strict=True))

    x = af.device_put(random(64, 96, seed=9))
    weights = [af.device_put(random(96, 128, seed=k) / 10) for k in range(6)]
    f = on_gpu(step)
    first = [np.asarray(y) for y in f(x, *weights)]  # launched one by one
    for _ in range(20):
        again = f(x, *weights)
        for have, want in zip(again, first, strict=True):
            np.testing.assert_array_equal(np.asarray(have), want)


def test_relu_and_its_derivative_are_those_of_the_cpu():
    def loss(w, b, v, x):
        return anp.sum(anp.sin(nn.relu(x @ w + b) @ v))

    shapes = (32, 48), (48,), (48, 16), (24, 32)
    arrays = [random(*s, seed=k) for k, s in enumerate(shapes)]
    arrays[3][:, 0] = arrays[0][0] = 0
    step = af.value_and_grad(loss, argnums=(0, 1, 2))
    f = on_gpu(step)
    assert "gemm_f32_bias_relu" in [s.kernel for s in f.lower(*arrays).plan.steps]
    have, want = f(*arrays), af.jit(step)(*arrays)
    pairs = [(have[0], want[0]), *zip(have[1], want[1], strict=True)]
    for x, y in pairs:
        error = np.linalg.norm(np.asarray(x) - np.asarray(y))
        assert error <= 1e-4 * np.linalg.norm(y)


def test_a_step_of_descent_is_taken_in_place():
    p, g, h = (random(64, 64, seed=k) for k in range(3))
    step = af.jit(lambda p, g, h: p - 0.5 * (g @ h), device="cuda", donate_argnums=0)
    given = af.device_put(p)
    for _ in range(3):
        given = step(given, g, h)
    want = p - 1.5 * (g.astype(np.float64) @ h)
    np.testing.assert_allclose(np.asarray(given), want, 1e-4, 1e-3)


def test_relu_folded_into_a_product_keeps_nan():
    x = random(16, 32)
    x[3] = np.nan
    f = on_gpu(lambda x, y, b: anp.maximum(x @ y + b, 0))
    y, b = random(32, 16, seed=1), random(16, seed=2)
    assert f.lower(x, y, b).plan.steps[0].kernel == "gemm_f32_bias_relu"
    result = np.asarray(f(x, y, b))
    assert np.isnan(result[3]).all()
    wide = np.maximum(x.astype(np.float64) @ y + b, 0)
    np.testing.assert_allclose(result, wide, 1e-4, 1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_decompositions(dtype):
    x = random(2, 24, 24, dtype=dtype)
    if dtype.startswith("c"):
        x = x + 1j * x[:, ::-1]
    a = x @ x.conj().swapaxes(1, 2) + 50 * np.eye(24, dtype=dtype)
    bound = 1e-4 if dtype == "float32" else 1e-11
    factor = np.asarray(on_gpu(anp.linalg.cholesky)(a))
    np.testing.assert_allclose(factor, np.linalg.cholesky(a), bound, bound * 10)
    assert np.isnan(np.asarray(on_gpu(anp.linalg.cholesky)(-a))).all()
    values, vectors = map(np.asarray, on_gpu(lambda a: tuple(anp.linalg.eigh(a)))(a))
    np.testing.assert_allclose(values, np.linalg.eigvalsh(a), bound, bound * 100)
    again = vectors * values[:, None, :] @ vectors.conj().swapaxes(1, 2)
    np.testing.assert_allclose(again, a, bound, bound * 1000)
    solved = np.asarray(on_gpu(anp.linalg.solve)(a, x))
    np.testing.assert_allclose(a @ solved, x, bound, bound * 100)


def test_attention_is_cudnn_s_and_has_gradients():
    pytest.importorskip("cudnn")
    q, k, v = (random(2, 40, n, 64, dtype=dtypes.bfloat16) / 3 for n in (4, 2, 2))
    wide = [x.astype(np.float64) for x in (q, k, v)]

    def attend(*arrays):
        return nn.dot_product_attention(*arrays, is_causal=True)

    def loss(*arrays):
        return anp.sum(anp.sin(attend(*arrays).astype(np.float64)))

    f = on_gpu(attend)
    assert [k.reason for k in f.lower(q, k, v).kernels] == [
        "nn.attention by cudnn_attention"
    ]
    pairs = [(f(q, k, v), attend(*wide))]
    gradients = on_gpu(af.grad(loss, argnums=(0, 1, 2)))(q, k, v)
    expected = by_reference(af.grad(loss, argnums=(0, 1, 2)))(*wide)
    pairs += zip(gradients, expected, strict=True)
    for have, want in pairs:
        error = np.linalg.norm(np.asarray(have).astype(np.float64) - want)
        assert error <= 1e-2 * np.linalg.norm(want)


# Heads [B, T, S, N, K, H], and options.
GENERATED = {
    "causal, an odd head": ((2, 130, 77, 4, 2, 33), {"is_causal": True}),
    "a long head": ((1, 257, 300, 2, 2, 200), {"local_window_size": (100, 40)}),
    "bias and mask": (
        (2, 65, 190, 2, 1, 84),
        {"bias": random(2, 65, 1), "mask": random(2, 1, 1, 190) < 1},
    ),
    "lengths": (
        (2, 300, 100, 2, 2, 128),
        {
            "query_seq_lengths": np.array([300, 7]),
            "key_value_seq_lengths": np.array([20, 100]),
        },
    ),
}


@pytest.mark.parametrize("dtype", [np.float16, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("case", GENERATED)
def test_attention_is_a_generated_kernel_s_where_cudnn_takes_none(case, dtype):
    (B, T, S, N, K, H), options = GENERATED[case]
    q = random(B, T, N, H, dtype=dtype) / 3
    k, v = (random(B, S, K, H, dtype=dtype, seed=s) / 3 for s in (1, 2))

    def loss(q, k, v):
        mixed = nn.dot_product_attention(q, k, v, **options)
        return anp.sum(anp.sin(mixed.astype(q.dtype))), mixed

    step = af.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
    f = on_gpu(step)
    (_, mixed), gradients = f(q, k, v)
    assert "attention by tiles" in " ".join(
        kernel.reason for kernel in f.lower(q, k, v).kernels
    )
    (_, known), expected = step(*(x.astype(np.float64) for x in (q, k, v)))
    for have, want in zip((mixed, *gradients), (known, *expected), strict=True):
        error = np.linalg.norm(np.asarray(have).astype(np.float64) - want)
        assert error <= 1e-2 * np.linalg.norm(want)
    again = f(q, k, v)
    for x, y in zip((mixed, *gradients), (again[0][1], *again[1]), strict=True):
        np.testing.assert_array_equal(*(np.asarray(a).view(np.uint16) for a in (x, y)))


def test_kernels_of_operators_are_called_with_arrays_of_the_gpu():
    cupy = pytest.importorskip("cupy")

    @af.operator(name="test_tripled")
    def tripled(x):
        return x * 3

    @tripled.kernel("cuda")
    def tripled_by_cupy(x, out):
        cupy.multiply(cupy.asarray(x), 3, out=cupy.asarray(out))

    f = on_gpu(lambda x: tripled(x + 1) - 1)
    x = random(50, 70)
    for _ in range(5):
        np.testing.assert_array_equal(f(x), (x + 1) * 3 - 1)


LENGTHS = [(40, 8192), (500, 12288), (300, 16384), (3, 65536), (2, 100000)]


@pytest.mark.parametrize("shape", LENGTHS, ids=str)
def test_long_rows(shape):
    x, scale = random(*shape), random(shape[1], seed=1)

    def layernorm(x, scale):
        d = x - anp.mean(x, axis=1, keepdims=True)
        return d / anp.sqrt(anp.mean(d * d, axis=1, keepdims=True) + 1e-5) * scale

    wide = x.astype(np.float64)
    np.testing.assert_allclose(on_gpu(softmax)(x), softmax(wide), 2e-5, 1e-9)
    have = np.asarray(on_gpu(layernorm)(x, scale))
    np.testing.assert_allclose(have, layernorm(wide, scale), 1e-4, 1e-4)


def test_running_values_of_long_rows():
    x = random(3, 50_001)
    have = np.asarray(on_gpu(lambda x: anp.cumsum(x, axis=1))(x))
    want = np.cumsum(x.astype(np.float64), axis=1)
    np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-2)


def test_loops_and_branches():
    @on_gpu
    def run(x, k):
        _, y = lax.scan(lambda c, row: (c + row @ row, c + row), x[0].sum(), x)
        z = lax.while_loop(lambda s: s.sum() < 1000, lambda s: s * 2, anp.abs(x) + 1)
        return y, z, lax.cond(k > 0, anp.sin, anp.cos, x)

    x, k = random(30, 300), np.int64(1)
    expected = by_reference(run.__wrapped__)(x, k)
    for have, want in zip(run(x, k), expected, strict=True):
        np.testing.assert_allclose(have, want, 1e-4, 1e-4)


def test_a_product_over_nothing_is_zero():
    result = on_gpu(lambda x, y: x @ y)(random(4, 0), random(0, 3))
    assert np.asarray(result).tolist() == [[0.0] * 3] * 4


def test_gradients_are_those_of_the_cpu():
    def loss(w, b, x):
        return anp.sum(anp.tanh(x @ w + b) ** 2)

    arguments = random(30, 20) / 10, random(20), random(50, 30, seed=1)
    step = af.value_and_grad(loss, argnums=(0, 1))
    value, (dw, db) = on_gpu(step)(*arguments)
    wanted, (cpu_dw, cpu_db) = by_reference(step)(*arguments)
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    np.testing.assert_allclose(dw, cpu_dw, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(db, cpu_db, rtol=1e-4, atol=1e-4)


def test_repeated_runs_give_the_same_bits():
    x = device_put(random(300, 5000))
    f = on_gpu(lambda x: (softmax(x), anp.sum(x), anp.sum(x, axis=0), x.T @ x))
    first = [np.asarray(r).tobytes() for r in f(x)]
    for _ in range(5):
        assert [np.asarray(r).tobytes() for r in f(x)] == first


def test_repeated_calls_of_many_steps_are_graphs():
    def steps(x, y):
        for _ in range(3):
            x = anp.tanh(x @ y) + anp.sum(x, axis=0)
        return x

    f = on_gpu(steps)
    inputs = [device_put(random(64, 64, seed=k)) for k in range(3)]
    y = device_put(random(64, 64, seed=9) / 8)
    first = [np.asarray(f(x, y)).tobytes() for x in inputs]
    kept = []
    for n in range(100):
        result = f(inputs[n % 3], y)
        assert np.asarray(result).tobytes() == first[n % 3]
        if n % 10 == 0:
            kept.append((n % 3, result))
    for number, result in kept:
        assert np.asarray(result).tobytes() == first[number]


def test_threads_may_call_at_once():
    f = on_gpu(lambda x: anp.exp(x) * 2 + anp.sum(x))
    inputs = [random(5000, seed=k) for k in range(8)]
    expected = [np.asarray(f(x)) for x in inputs]
    results = {}

    def work(k):
        for _ in range(50):
            results[k] = np.asarray(f(inputs[k]))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, want in enumerate(expected):
        np.testing.assert_array_equal(results[k], want)


# Arrays.


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "complex128"])
def test_arrays_go_there_and_back(dtype):
    x = (np.arange(24) % 7).reshape(2, 3, 4).astype(dtype)
    for given in (x, x.T, x[:, ::-1], x[..., ::2], x[1, 2, 3], x[:0]):
        put = device_put(given)
        assert (put.shape, put.dtype, put.device) == (given.shape, given.dtype, "cuda")
        np.testing.assert_array_equal(np.asarray(put), given)


def test_a_call_takes_arrays_of_any_layout():
    f = on_gpu(lambda x: x * 2 + 1)
    x = random(40, 60)
    for given in (x, x.T, x[::-1], x[:, ::3], np.asfortranarray(x)):
        np.testing.assert_array_equal(f(given), given * 2 + 1)
        np.testing.assert_array_equal(f(device_put(given)), given * 2 + 1)


def test_a_result_is_an_argument():
    f = on_gpu(lambda x, c: x * c)
    x = f(f(np.float32([1, 2]), 3.0), 0.5)
    assert isinstance(x, DeviceArray)
    assert repr(x) == "DeviceArray([1.5, 3. ], dtype=float32)"
    assert x.block_until_ready() is x
    assert x.tolist() == [1.5, 3.0]
    assert len(x) == 2
    assert float(on_gpu(anp.sum)(x)) == 4.5


def test_numbers_of_any_value_are_passed():
    f = on_gpu(lambda x, c: x * c)
    x = np.float32([1, 2])
    assert [f(x, c).tolist() for c in (2.0, 2.0, 3.0, -0.0)] == [
        [2.0, 4.0],
        [2.0, 4.0],
        [3.0, 6.0],
        [-0.0, -0.0],
    ]


def test_a_donated_array_is_gone():
    f = on_gpu(lambda x, y: x + y, donate_argnums=0)
    x, y = device_put(random(1000)), device_put(random(1000, seed=1))
    expected = np.asarray(x) + np.asarray(y)
    pointer = x.pointer
    result = f(x, y)
    assert result.pointer == pointer
    np.testing.assert_array_equal(result, expected)
    assert x.is_deleted
    with pytest.raises(ArgumentError, match=r"f32\[1000\] was donated"):
        np.asarray(x)
    with pytest.raises(ArgumentError, match="passed as another argument too"):
        f(y, y)


# Memory.


def test_memory_is_returned_when_values_die():
    f = on_gpu(lambda x: softmax(x) @ x.T)
    x = device_put(random(500, 500))
    f(x).block_until_ready()
    gc.collect()
    before = memory_stats().in_use
    for _ in range(10_000):
        f(x)
    device_put(0.0).block_until_ready()
    gc.collect()
    assert memory_stats().in_use <= before + 64


def test_out_of_memory_leaves_the_process_usable():
    many = memory_stats().total // 4
    f = on_gpu(lambda x: anp.broadcast_to(x, (many, 2)) * anp.float32(2))
    with pytest.raises(BackendError, match=r"out of GPU memory: [\d,]+ bytes were"):
        f(np.float32(1))
    assert on_gpu(lambda x: x + 1)(np.float32([1])).tolist() == [2.0]


# Other libraries.


def test_cupy_shares_the_memory():
    cupy = pytest.importorskip("cupy")
    x = on_gpu(lambda x: x * 2)(random(3, 4))
    for theirs in (cupy.asarray(x), cupy.from_dlpack(x)):
        assert theirs.data.ptr == x.pointer
        np.testing.assert_array_equal(cupy.asnumpy(theirs), np.asarray(x))
    own = cupy.arange(12, dtype=np.float32).reshape(3, 4)
    for ours in (device_put(own), from_dlpack(own)):
        assert ours.pointer == own.data.ptr
        np.testing.assert_array_equal(on_gpu(lambda x: x + 1)(ours), own.get() + 1)
    assert device_put(own.T).tolist() == own.T.get().tolist()
    # Off the alignment of vectors: copied.
    assert device_put(own[0, 1:]).tolist() == [1.0, 2.0, 3.0]


def test_torch_shares_the_memory():
    torch = pytest.importorskip("torch")
    x = on_gpu(lambda x: x * 2)(random(3, 4))
    theirs = torch.from_dlpack(x)
    assert theirs.data_ptr() == x.pointer
    np.testing.assert_array_equal(theirs.cpu().numpy(), np.asarray(x))
    own = torch.arange(12, dtype=torch.float32, device="cuda").reshape(3, 4)
    ours = from_dlpack(own)
    assert ours.pointer == own.data_ptr()
    np.testing.assert_array_equal(ours, own.cpu().numpy())
    # The memory outlives the array that it came from.
    del x
    gc.collect()
    on_gpu(lambda x: x * 0)(random(3, 4))
    np.testing.assert_array_equal(theirs.cpu().numpy(), 2 * random(3, 4))


def test_a_changed_copy_of_a_device_array():
    x = np.arange(12.0).reshape(3, 4)
    on_device = af.device_put(x)
    rows = np.array([2, 0])
    changed = on_device.at[rows, 1:3].add(10.0)
    assert isinstance(changed, af.DeviceArray)
    expected = x.copy()
    expected[rows, 1:3] += 10.0
    np.testing.assert_array_equal(np.asarray(changed), expected)
    np.testing.assert_array_equal(np.asarray(on_device), x)
    clipped = on_device.at[np.array([1, 9])].get(mode="clip")
    np.testing.assert_array_equal(np.asarray(clipped), x[[1, 2]])
