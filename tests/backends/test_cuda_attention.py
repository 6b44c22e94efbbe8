"""Attention's kernels: emulated against the formula in float64, and compiled."""

import re

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import dtypes, nn
from arrayfn.backends.cuda import attention as cuda_attention
from arrayfn.backends.cuda import missing_packages
from arrayfn.backends.cuda.code import kernel_ptx
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.ir import ArrayType
from arrayfn.lowering.cuda.lower import lower
from arrayfn.lowering.operator_kernels import KERNELS
from arrayfn.lowering.plan import Kernel
from arrayfn.primitives.calls import evaluate
from arrayfn.transforms import trace_function
from tests.lowered_on_gpu import lowered

needs_compiler = pytest.mark.skipif(bool(missing_packages()), reason=missing_packages())


def random(*shape, seed=0, dtype=np.float16):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def inputs(B, T, S, N, K, H, dtype=np.float16):
    shapes = (B, T, N, H), (B, S, K, H), (B, S, K, H)
    return tuple(random(*s, seed=k, dtype=dtype) for k, s in enumerate(shapes))


MASK = np.random.default_rng(3).random((2, 1, 1, 18)) < 0.6
BF16 = dtypes.bfloat16
# name: q, k and v; options
CASES = {
    "odd lengths, causal": (inputs(1, 17, 70, 1, 1, 20), {"is_causal": True}),
    "grouped heads, whole tiles": (inputs(1, 16, 64, 2, 1, 16, BF16), {}),
    "a window, an odd head": (
        inputs(1, 9, 80, 1, 1, 7),
        {"local_window_size": (3, 66), "scale": -0.3},
    ),
    "bias and mask": (
        inputs(2, 5, 18, 2, 2, 8),
        {"bias": random(2, 5, 1, seed=5), "mask": MASK},
    ),
    "bias of float32, lengths": (
        inputs(2, 6, 12, 1, 1, 12, BF16),
        {
            "bias": random(6, 12, seed=6, dtype=np.float32),
            "query_seq_lengths": np.array([4, 6]),
            "key_value_seq_lengths": np.array([11, 0]),
        },
    ),
}


@pytest.fixture(autouse=True)
def without_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generated kernels take what cuDNN would."""
    monkeypatch.setattr(cuda_attention, "_has_cudnn", lambda: False)


@pytest.mark.parametrize("case", CASES)
def test_one_kernel_computes_attention(case):
    arguments, options = CASES[case]

    def attend(q, k, v):
        return nn.dot_product_attention(q, k, v, **options)

    compiled = lowered(attend, *arguments)
    kernels = [k for k in compiled.kernels if k.name.startswith("attention")]
    assert [k.reason for k in kernels] == ["attention by tiles of queries"]
    (result,) = run_plan(compiled, arguments)
    expected = attend(*(x.astype(np.float64) for x in arguments))
    assert result.dtype == arguments[0].dtype
    bound = 2e-3 if result.dtype == np.float16 else 1.6e-2
    np.testing.assert_allclose(result.astype(float), expected, rtol=bound, atol=bound)


def test_slices_of_one_array_are_read_as_they_lie():
    x = random(2, 9, 3, 2, 12)
    weights = random(2, 9, 2, 12, seed=1, dtype=np.float32)

    def loss(x):
        q, k, v = (x[:, :, j] for j in range(3))
        mixed = nn.dot_product_attention(q, k, v, local_window_size=4)
        return anp.sum(anp.multiply(mixed.astype(np.float32), weights))

    gradient = af.grad(loss)
    compiled = lowered(gradient, x)
    assert not any("relayout" in k.reason for k in compiled.kernels)
    (have,) = run_plan(compiled, (x,))
    want = gradient(x.astype(np.float64))
    error = np.linalg.norm(have.astype(float) - want) / np.linalg.norm(want)
    assert error < 2e-3


def test_the_kernel_keeps_logarithms_of_the_denominators():
    q, k, v = inputs(1, 5, 9, 1, 1, 8)

    def both(q, k, v):
        static = {"scale": 0.5, "window": (None, 0), "given": ()}
        return nn.fused_attention.attention(q, k, v, {}, **static)

    program = trace_function(both, (q, k, v), {}, abstract=True).program
    _, logarithms = run_plan(lower(program), (q, k, v))
    expected = evaluate(program, (q, k, v))[1]
    np.testing.assert_allclose(logarithms, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("head", "static", "there", "chosen"),
    [
        (64, {}, True, "cudnn_attention"),
        (64, {"window": (None, 0)}, True, "cudnn_attention"),
        (64, {}, False, "generated_attention"),
        (192, {}, True, "cudnn_attention"),
        (84, {}, True, "generated_attention"),
        (64, {"window": (16, 0)}, True, "generated_attention"),
        (64, {"given": ("bias",)}, True, "generated_attention"),
        (300, {}, True, None),
    ],
)
def test_cudnn_goes_before_the_kernels_and_these_before_the_body(
    head, static, there, chosen, monkeypatch
):
    monkeypatch.setattr(cuda_attention, "_has_cudnn", lambda: there)
    types = [ArrayType((2, 8, 4, head), BF16)] * 3
    static = {"scale": 1.0, "window": (None, None), "given": (), **static}
    found = KERNELS.find("nn.attention", "cuda", types, static)
    assert chosen == (found and found.function.__name__)


@pytest.mark.parametrize(("head", "dtype"), [(264, np.float16), (16, np.float32)])
def test_the_body_runs_where_no_kernel_takes_the_heads(head, dtype):
    arguments = inputs(1, 4, 4, 1, 1, head, dtype)
    reasons = [k.reason for k in lowered(nn.dot_product_attention, *arguments).kernels]
    assert not any("tiles" in reason for reason in reasons)


# name: q, k and v; options; the kernels of the gradient
GRADIENTS = {
    "grouped heads, causal": (
        inputs(1, 17, 33, 2, 1, 20),
        {"is_causal": True},
        ["dk and dv", "dq"],
    ),
    "bias, mask and a window": (
        inputs(1, 9, 33, 2, 2, 7),
        {
            "bias": random(2, 1, 33, seed=5),
            "mask": np.random.default_rng(3).random((9, 33)) < 0.7,
            "local_window_size": (5, 20),
        },
        ["dk and dv", "dq"],
    ),
    "lengths, a long head": (
        inputs(1, 5, 9, 1, 1, 130),
        {
            "scale": -0.1,
            "query_seq_lengths": np.array([4]),
            "key_value_seq_lengths": np.array([8]),
        },
        ["dk", "dq", "dv"],
    ),
}


@pytest.mark.parametrize("case", GRADIENTS)
def test_kernels_compute_the_gradient(case):
    arguments, options, names = GRADIENTS[case]
    weights = random(*arguments[0].shape, seed=9, dtype=np.float32)

    def loss(q, k, v):
        result = nn.dot_product_attention(q, k, v, **options)
        return anp.sum(anp.multiply(result.astype(np.float32), weights))

    gradient = af.grad(loss, argnums=(0, 1, 2))
    compiled = lowered(gradient, *arguments)
    tiled = [k.reason for k in compiled.kernels if k.reason.endswith("by tiles")]
    assert sorted(tiled) == [f"{name} of attention by tiles" for name in names]
    wide = [x.astype(np.float64) for x in arguments]
    expected = gradient(*wide)
    for have, want in zip(run_plan(compiled, arguments), expected, strict=True):
        assert have.dtype == arguments[0].dtype
        error = np.linalg.norm(have.astype(float) - want) / np.linalg.norm(want)
        assert error < 2e-3


# name: the bias; q, k and v; options
BIASES = {
    "shared by the batch": (
        random(1, 2, 9, 20, seed=4),
        inputs(2, 9, 20, 2, 1, 20),
        {},
    ),
    "shared by queries": (
        random(1, 1, 1, 18, seed=4, dtype=np.float32),
        inputs(1, 70, 18, 1, 1, 8),
        {"is_causal": True},
    ),
    "of positions, a window": (
        random(9, 33, seed=4, dtype=BF16),
        inputs(1, 9, 33, 2, 2, 7),
        {"local_window_size": (3, 20), "query_seq_lengths": np.array([7])},
    ),
}


@pytest.mark.parametrize("case", BIASES)
def test_a_kernel_adds_up_the_gradient_by_a_bias(case):
    bias, arguments, options = BIASES[case]
    weights = random(*arguments[0].shape, seed=9, dtype=np.float32)

    def loss(bias, *arguments):
        result = nn.dot_product_attention(*arguments, bias, **options)
        return anp.sum(anp.multiply(result.astype(np.float32), weights))

    gradient = af.grad(loss)
    compiled = lowered(gradient, bias, *arguments)
    tiled = [k.reason for k in compiled.kernels if k.reason.endswith("by tiles")]
    assert tiled == ["the bias's cotangent of attention by tiles"]
    (have,) = run_plan(compiled, (bias, *arguments))
    want = gradient(*(x.astype(np.float64) for x in (bias, *arguments)))
    assert have.shape == bias.shape
    assert have.dtype == bias.dtype
    error = np.linalg.norm(have.astype(float) - want) / np.linalg.norm(want)
    assert error < (4e-3 if bias.dtype == BF16 else 1e-3)


def test_the_gradient_by_a_bias_that_keys_share_is_by_its_body():
    q, k, v = inputs(2, 5, 7, 2, 1, 8)
    bias = random(1, 2, 5, 1, seed=4)

    def loss(bias, q, k, v):
        return anp.sum(nn.dot_product_attention(q, k, v, bias).astype(np.float32) ** 2)

    kernels = lowered(af.grad(loss), bias, q, k, v).kernels
    tiled = [k.reason for k in kernels if "tiles" in k.reason]
    assert tiled == ["attention by tiles of queries"]


def test_the_body_of_the_gradient_by_a_bias_is_the_formula():
    q, k, v = inputs(2, 5, 7, 2, 1, 8)
    bias = random(1, 2, 1, 7, seed=4)

    def loss(bias, q, k, v):
        return anp.sum(nn.dot_product_attention(q, k, v, bias).astype(np.float32) ** 2)

    have = af.jit(af.grad(loss))(bias, q, k, v)
    want = af.grad(loss)(*(x.astype(np.float64) for x in (bias, q, k, v)))
    np.testing.assert_allclose(have.astype(float), want, rtol=2e-2, atol=2e-3)


def test_the_gradient_that_adds_in_any_order_is_for_those_who_allow_it(monkeypatch):
    monkeypatch.setattr(cuda_attention, "_has_cudnn", lambda: True)
    types = [ArrayType((2, 8, 4, 64), BF16)] * 3
    static = {"scale": 1.0, "window": (None, 0), "given": ()}
    names = [
        KERNELS.find("nn.attention_gradient", "cuda", types, static, fixed)
        for fixed in (True, False)
    ]
    assert [found and found.function.__name__ for found in names] == [
        "cudnn_attention_gradient",
        "cudnn_attention_gradient_in_any_order",
    ]


@needs_compiler
@pytest.mark.parametrize("arch", [(8, 0), (9, 0)])
def test_kernels_compile_to_tensor_core_instructions(arch):
    def loss(q, k, v, bias):
        mixed = nn.dot_product_attention(q, k, v, bias, local_window_size=9)
        return anp.sum(mixed.astype(np.float32))

    arguments = (*inputs(1, 80, 80, 1, 1, 16, BF16), random(80, 80, dtype=BF16))
    gradient = af.value_and_grad(loss, argnums=(0, 1, 2, 3))
    kernels = [
        k for k in lowered(gradient, *arguments).kernels if "by tiles" in k.reason
    ]
    assert len(kernels) == 4
    for kernel in kernels:
        assert isinstance(kernel, Kernel)
        ptx = kernel_ptx(kernel, arch)
        assert re.search(r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16", ptx)
        assert "ldmatrix.sync" in ptx
        assert "cp.async.cg.shared.global" in ptx
        assert ".local" not in ptx  # fragments are in registers
