"""Convolutions on a GPU, without one: what cuDNN is asked for, with which arrays."""

from dataclasses import replace

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.backends.cuda import missing_here
from arrayfn.backends.cuda.code import kernel_ptx
from arrayfn.backends.cuda.convolution_algorithms import candidate_algorithms
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.lowering.cuda.config import GPU
from arrayfn.lowering.cuda.lower import lower
from arrayfn.lowering.cuda.windows.convolutions import program_of
from arrayfn.lowering.options import Options
from arrayfn.lowering.plan import KernelCall, LibraryKernel
from arrayfn.primitives.calls import evaluate
from arrayfn.primitives.table import TABLE
from arrayfn.transforms import trace_function
from tests.common_functions import random
from tests.lowered_on_gpu import lowered
from tests.lowering.kernels import assert_near
from tests.lowering.test_kernels_of_the_table import program_of_samples

needs_gpu = pytest.mark.skipif(bool(missing_here()), reason=missing_here())
NHWC = ("NHWC", "HWIO", "NHWC")


def traced_and_lowered(function, *arguments, gpu=GPU):
    program = trace_function(function, arguments, {}).program
    return program, lower(program, check=True, gpu=gpu)


def providers(compiled):
    return [k.provider for k in compiled.kernels if isinstance(k, LibraryKernel)]


def integers_of(compiled):
    """The integers of the first call of a library, by name."""
    kernels = {k.name: k for k in compiled.kernels}
    for step in compiled.plan.steps:
        assert isinstance(step, KernelCall)
        kernel = kernels[step.kernel]
        if isinstance(kernel, LibraryKernel):
            pairs = zip(kernel.parameters, step.arguments, strict=True)
            return {p.name: a for p, a in pairs if isinstance(a, int)}
    raise AssertionError("no library is called")


CASES = {
    "nchw": ((2, 3, 7, 8), (4, 3, 3, 3), {"padding": "SAME"}),
    "nhwc": ((2, 7, 8, 3), (3, 3, 3, 4), {"padding": "SAME", "numbers": NHWC}),
    "strided and dilated": (
        (2, 9, 8, 3),
        (3, 2, 3, 4),
        {
            "numbers": NHWC,
            "strides": (2, 1),
            "steps": (1, 2),
            "padding": ((1, 2), (0, 3)),
        },
    ),
    "groups": (
        (2, 5, 6, 4),
        (3, 3, 2, 6),
        {"numbers": NHWC, "groups": 2, "padding": "SAME"},
    ),
    "channels": (
        (2, 6, 9, 8),
        (3, 3, 1, 8),
        {"numbers": NHWC, "groups": 8, "padding": "SAME"},
    ),
    "one axis": ((2, 3, 11), (4, 3, 3), {"padding": "SAME"}),
    "three axes": ((1, 2, 4, 5, 6), (3, 2, 2, 2, 2), {"padding": "SAME"}),
    "mixed": (
        (6, 2, 5, 3),
        (4, 3, 2, 3),
        {"numbers": ("WNHC", "OIHW", "HCWN"), "padding": "VALID"},
    ),
    "borders taken away": (
        (2, 9, 8, 3),
        (3, 2, 3, 4),
        {"numbers": NHWC, "padding": ((1, -2), (0, 1))},
    ),
}


def convolution(options, ndim):
    given = dict(options)

    def run(x, w):
        return lax.conv_general_dilated(
            x,
            w,
            given.get("strides", (1,) * (ndim - 2)),
            given["padding"],
            rhs_dilation=given.get("steps"),
            dimension_numbers=given.get("numbers"),
            feature_group_count=given.get("groups", 1),
        )

    return run


@pytest.mark.parametrize("case", CASES)
def test_convolutions_and_their_gradients_equal_the_reference(case):
    shape, kernel, options = CASES[case]
    run = convolution(options, len(shape))
    x, w = random(*shape), random(*kernel, seed=1)

    def both(x, w):
        loss = lambda x, w: anp.sum(anp.sin(run(x, w)))  # noqa: E731
        return (run(x, w), *af.grad(loss, argnums=(0, 1))(x, w))

    program, compiled = traced_and_lowered(both, x, w)
    if case != "channels":
        names = ["convolution_" + gives for gives in ("output", "operand", "kernel")]
        assert sorted(p.rpartition("_")[0] for p in providers(compiled)) == sorted(
            names
        )
    results = run_plan(compiled, (x, w))
    for have, want in zip(results, evaluate(program, (x, w)), strict=True):
        np.testing.assert_allclose(have, want, 1e-4, 1e-4)


def test_padding_and_strides_are_the_library_s():
    run = convolution(
        {"padding": ((2, 2), (1, 1)), "strides": (2, 3), "numbers": NHWC}, 4
    )
    compiled = lowered(run, random(2, 9, 8, 3), random(3, 4, 3, 5))
    assert integers_of(compiled) == {
        "batch": 2,
        "groups": 1,
        "inner": 3,
        "outer": 5,
        "last": 1,
        "axes": 2,
        "extent0": 9,
        "size0": 3,
        "count0": 6,
        "stride0": 2,
        "dilation0": 1,
        "low0": 2,
        "high0": 2,
        "extent1": 8,
        "size1": 4,
        "count1": 3,
        "stride1": 3,
        "dilation1": 1,
        "low1": 1,
        "high1": 1,
    }
    # The kernel's turning is the only other step.
    assert len(compiled.plan.steps) == 2


def test_zeros_that_one_side_has_more_of_are_copied_first():
    run = convolution({"padding": ((2, 1), (0, 3)), "numbers": NHWC}, 4)
    arguments = random(2, 9, 8, 3), random(3, 4, 3, 5)
    compiled = lowered(run, *arguments)
    found = integers_of(compiled)
    assert [found[k] for k in ("extent0", "low0", "high0")] == [10, 1, 1]
    assert [found[k] for k in ("extent1", "low1", "high1")] == [11, 0, 0]


def test_what_the_library_refuses_is_a_product_of_windows():
    run = convolution({"padding": "SAME"}, 4)
    gpu = replace(GPU, choose_convolution=lambda provider, integers: "product")
    arguments = random(2, 3, 5, 4), random(4, 3, 3, 3)
    program, compiled = traced_and_lowered(run, *arguments, gpu=gpu)
    assert providers(compiled) == ["gemm_f32"]
    (result,) = run_plan(compiled, arguments)
    np.testing.assert_allclose(result, evaluate(program, arguments)[0], 1e-5, 1e-5)


def test_windows_of_one_element_are_a_product_that_copies_nothing():
    run = convolution({"padding": "VALID", "numbers": NHWC}, 4)
    both = af.grad(lambda x, w: anp.sum(run(x, w) ** 2), argnums=(0, 1))
    arguments = random(2, 5, 6, 8), random(1, 1, 8, 4)
    program, compiled = traced_and_lowered(both, *arguments)
    assert all(p.startswith("gemm_f32") for p in providers(compiled))
    copies = [k.name for k in compiled.kernels if "windows" in k.reason]
    assert not copies
    for have, want in zip(
        run_plan(compiled, arguments), evaluate(program, arguments), strict=True
    ):
        np.testing.assert_allclose(have, want, 1e-4, 1e-4)


@pytest.mark.parametrize("gives", ["output", "operand", "kernel"])
@pytest.mark.parametrize("case", ["strided and dilated", "groups", "nchw", "one axis"])
def test_a_call_s_integers_say_what_convolution_it_is(case, gives):
    shape, kernel, options = CASES[case]
    run = convolution(options, len(shape))
    x, w = random(*shape), random(*kernel, seed=1)
    functions = {
        "output": run,
        "operand": lambda x, w: af.vjp(lambda x: run(x, w), x)[1](run(x, w) * 2)[0],
        "kernel": lambda x, w: af.vjp(lambda w: run(x, w), w)[1](run(x, w) * 2)[0],
    }
    compiled = lowered(functions[gives], x, w)
    (own,) = (k for k in compiled.kernels if f"_{gives}_" in k.name)
    (step,) = (s for s in compiled.plan.steps if s.kernel == own.name)
    pairs = zip(own.parameters, step.arguments, strict=True)
    integers = {p.name: a for p, a in pairs if isinstance(a, int)}
    again = lower(program_of(own.provider, integers))
    assert providers(again) == [own.provider]
    assert integers_of(again) == integers


def test_ways_of_strided_convolutions_are_those_worth_being_timed():
    p = {"axes": 1, "batch": 8, "groups": 1, "inner": 3, "last": 1, "dilation0": 1}
    p |= {"count0": 5, "size0": 7, "stride0": 2}
    every = ("library", "blocks", "product", "product of blocks")
    assert candidate_algorithms("convolution_kernel_f32", p) == every
    assert candidate_algorithms("convolution_kernel_f32_any", p) == every
    assert candidate_algorithms("convolution_output_bf16", p) == every[:2]
    assert candidate_algorithms("convolution_kernel_f32_tf32_any", p) == every[:2]
    assert (
        candidate_algorithms("convolution_kernel_f32", {**p, "stride0": 1}) == every[:1]
    )
    many = {**p, "inner": 64}
    assert candidate_algorithms("convolution_kernel_f32", many) == (
        "library",
        "product",
    )
    assert (
        candidate_algorithms("convolution_output_f64", {**many, "batch": 1 << 24})
        == every[:1]
    )


BLOCKS = {
    "a stem": (12, 7, 2, "SAME"),
    "odd": (11, 7, 2, "SAME"),
    "by three": (13, 5, 3, "SAME"),
    "no border": (12, 3, 2, "VALID"),
    "a part of windows": (13, 4, 2, ((2, 2), (2, 2))),
    "by four": (12, 11, 4, ((2, 2), (2, 2))),
    "one side": (9, 3, 2, ((0, 1), (1, 0))),
}


@pytest.mark.parametrize(
    ("case", "way", "dtype"),
    [
        *((case, "blocks", np.float32) for case in BLOCKS),
        ("a stem", "blocks", dtypes.bfloat16),
        ("one side", "product of blocks", np.float32),
    ],
    ids=str,
)
def test_strided_convolutions_of_few_channels_are_ones_of_blocks(case, way, dtype):
    n, size, stride, padding = BLOCKS[case]
    options = {"numbers": NHWC, "strides": (stride, stride), "padding": padding}
    run = convolution(options, 4)
    x, w = random(2, n, n + 1, 3, dtype=dtype), random(size, size, 3, 4, dtype=dtype)

    def both(x, w):
        loss = lambda x, w: anp.sum(anp.sin(run(x, w).astype("f") / 8))  # noqa: E731
        return (run(x, w), *af.grad(loss, argnums=(0, 1))(x, w))

    gpu = replace(GPU, choose_convolution=lambda provider, integers: way)
    program, compiled = traced_and_lowered(both, x, w, gpu=gpu)
    if way == "blocks":
        assert len(providers(compiled)) == 3
        assert "strides=(1,1), dilations" in compiled.text
    else:
        assert all(p.startswith("gemm") for p in providers(compiled))
    bound = 1e-4 if dtype == np.float32 else 3e-2
    results = run_plan(compiled, (x, w))
    for have, want in zip(results, evaluate(program, (x, w)), strict=True):
        have, want = (v.astype(np.float64) for v in (have, want))
        assert np.linalg.norm(have - want) <= bound * np.linalg.norm(want)


DEPTHWISE = {
    "same": ((2, 5, 6, 8), (3, 3, 1, 8), {"padding": "SAME"}),
    "strided": ((2, 9, 7, 8), (3, 2, 1, 8), {"padding": "SAME", "strides": (2, 1)}),
    "dilated": ((1, 6, 9, 8), (2, 3, 1, 8), {"padding": "VALID", "steps": (2, 2)}),
}


@pytest.mark.parametrize("dtype", [np.float32, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("case", DEPTHWISE)
def test_channels_by_themselves_are_a_kernel_s(case, dtype):
    shape, kernel, options = DEPTHWISE[case]
    run = convolution({**options, "numbers": NHWC, "groups": 8}, 4)

    def both(x, w):
        loss = lambda x, w: anp.sum(anp.sin(run(x, w).astype("f")))  # noqa: E731
        return (run(x, w), *af.grad(loss, argnums=(0, 1))(x, w))

    arguments = (
        random(*shape, dtype=dtype),
        random(*kernel, seed=1, dtype=dtype),
    )
    program, compiled = traced_and_lowered(both, *arguments)
    kernels = [k for k in compiled.kernels if k.name.startswith("depthwise")]
    # The kernel's cotangent takes two; cuDNN has the operand's of strided windows.
    assert len(kernels) == (3 if case == "strided" else 4)
    assert all("gemm" not in name for name in providers(compiled))
    results = run_plan(compiled, arguments)
    bound = 1e-5 if dtype == np.float32 else 2e-2
    for have, want in zip(results, evaluate(program, arguments), strict=True):
        have, want = (v.astype(np.float64) for v in (have, want))
        np.testing.assert_allclose(have, want, bound, bound)


@pytest.mark.cuda
def test_the_kernel_of_channels_keeps_its_sums_in_registers():
    pytest.importorskip("numba_cuda")
    run = convolution({"padding": "SAME", "numbers": NHWC, "groups": 128}, 4)
    compiled = lowered(run, random(2, 9, 9, 128), random(3, 3, 1, 128))
    (kernel,) = compiled.kernels
    assert ".local" not in kernel_ptx(kernel, (9, 0))


def test_tensorfloat_is_taken_where_it_is_asked_for():
    run = lambda x, w: lax.conv_general_dilated(  # noqa: E731
        x, w, (1, 1), "SAME", precision="tf32"
    )
    compiled = lowered(run, random(2, 3, 5, 4), random(4, 3, 3, 3))
    assert providers(compiled) == ["convolution_output_f32_tf32"]


def test_sums_in_any_order_are_taken_where_they_are_asked_for():
    run = convolution({"padding": "SAME"}, 4)
    arguments = random(2, 3, 5, 4), random(4, 3, 3, 3)
    compiled = lowered(run, *arguments, options=Options(deterministic=False))
    assert providers(compiled) == ["convolution_output_f32_any"]


@pytest.mark.parametrize("name", ["padded_convolution", "conv_general"])
def test_the_row_s_samples_equal_the_reference(name):
    row = TABLE[name]
    program, inputs, labels = program_of_samples(row)
    results = run_plan(lower(program, check=True), [np.asarray(x) for x in inputs])
    for label, have, want in zip(
        labels, results, evaluate(program, inputs), strict=True
    ):
        assert_near(have, want, row.tolerance, label)


def test_a_mapped_convolution_is_one_call():
    run = convolution({"padding": "SAME"}, 4)
    x, w = random(3, 2, 4, 5, 5), random(3, 6, 4, 3, 3, seed=1)
    for axes, groups in (((0, None), 1), ((None, 0), 1), ((0, 0), 3)):
        arguments = tuple(
            v if axis == 0 else v[0] for v, axis in zip((x, w), axes, strict=True)
        )
        program, compiled = traced_and_lowered(af.vmap(run, axes), *arguments)
        assert providers(compiled) == ["convolution_output_f32"]
        assert integers_of(compiled)["groups"] == groups
        (result,) = run_plan(compiled, arguments)
        want = evaluate(program, arguments)[0]
        np.testing.assert_allclose(result, want, 1e-4, 1e-4)


BOUNDS = {"float32": 3e-6, "float64": 1e-14, "float16": 4e-3, "bfloat16": 3e-2}


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("case", CASES)
def test_on_a_gpu_convolutions_and_gradients_equal_the_reference(case, dtype):
    pytest.importorskip("cudnn")
    shape, kernel, options = CASES[case]
    run = convolution(options, len(shape))
    dtype = dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    x, w = random(*shape, dtype=dtype), random(*kernel, seed=1, dtype=dtype)

    def both(x, w):
        wide = anp.float64 if x.dtype == np.float64 else anp.float32
        loss = lambda x, w: anp.sum(anp.sin(run(x, w).astype(wide)))  # noqa: E731
        return (run(x, w), *af.grad(loss, argnums=(0, 1))(x, w))

    results = af.jit(both, device="cuda")(x, w)
    again = af.jit(both, device="cuda")(x, w)
    wide = [v.astype(np.float64) for v in (x, w)]
    expected = af.jit(both, device="reference")(*wide)
    for have, repeated, want in zip(results, again, expected, strict=True):
        have = np.asarray(have)
        assert have.tobytes() == np.asarray(repeated).tobytes()
        error = np.linalg.norm(have.astype(np.float64) - want)
        assert error <= BOUNDS[str(dtype)] * np.linalg.norm(want)


@pytest.mark.parametrize("size", [(2, 2), (3, 2), (3, 1), (2, 3)], ids=str)
def test_gradients_of_the_greatest_of_windows_scatter_nothing(size):
    window, stride = ((1, n, n, 1) for n in size)

    def pooled(x):
        return lax.reduce_window(
            x, np.float32(-np.inf), lax.max, window, stride, "SAME"
        )

    x = random(2, 9, 8, 4)
    gradient = af.grad(lambda x: anp.sum(pooled(x) ** 2))
    program, compiled = traced_and_lowered(gradient, x)
    assert "scatter" not in compiled.text
    (result,) = run_plan(compiled, (x,))
    np.testing.assert_allclose(result, evaluate(program, (x,))[0], 1e-5, 1e-5)


def test_gradients_of_long_windows_are_scattered():
    window, stride = (1, 9, 9, 1), (1, 1, 1, 1)
    pooled = lambda x: lax.reduce_window(  # noqa: E731
        x, np.float32(-np.inf), lax.max, window, stride, "VALID"
    )
    gradient = af.grad(lambda x: anp.sum(pooled(x) ** 2))
    compiled = lowered(gradient, random(1, 12, 12, 2))
    assert "scatter_add" in compiled.text
