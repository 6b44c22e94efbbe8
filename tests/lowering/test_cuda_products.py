"""Products on a GPU: what the library does with them, and where it writes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import dtypes, lax, nn
from arrayfn.backends.cuda.emulated_plan import run_plan
from arrayfn.ir import ArrayType
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.cuda.destinations import box_of
from arrayfn.lowering.cuda.lower import lower
from arrayfn.lowering.host_steps import HOST_STEPS
from arrayfn.lowering.plan import BufferArgument, KernelCall
from arrayfn.primitives.calls import evaluate
from arrayfn.transforms import trace_function
from tests.common_functions import random, softmax
from tests.lowered_on_gpu import lowered

Array = np.ndarray[Any, Any]


def checked(function: Any, *arguments: Any, tolerance: float = 1e-5) -> list[str]:
    """The names of the plan's kernels; its results are those of the reference."""
    traced = trace_function(function, arguments, {}, abstract=True, with_values=False)
    compiled = lower(traced.program, check=True)
    results = run_plan(compiled, arguments)
    for have, want in zip(results, evaluate(traced.program, arguments), strict=True):
        assert have.dtype == want.dtype
        wide = have.astype(np.float64), np.asarray(want).astype(np.float64)
        np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance)
    return names(compiled)


def names(compiled: CompiledProgram) -> list[str]:
    return [getattr(step, "kernel", "") for step in compiled.plan.steps]


# What follows a product.

A, B, C, ROW = random(4, 6), random(6, 8, seed=1), random(4, 8, seed=2), random(8)
BATCH = random(3, 4, 6), random(3, 6, 8, seed=1), random(3, 4, 8, seed=2), ROW

FOLDED = {
    "scaled": ("gemm_f32_scaled", lambda a, b, c, r: -(a @ b * 0.25)),
    "added": ("gemm_f32_added", lambda a, b, c, r: c + a @ b),
    "subtracted": ("gemm_f32_scaled_added", lambda a, b, c, r: c - 0.1 * (a @ b)),
    "from": ("gemm_f32_added", lambda a, b, c, r: a @ b - c),
    "decayed": (
        "gemm_f32_scaled_added",
        lambda a, b, c, r: c * 0.9 - 0.1 * (a @ b),
    ),
    "added with a bias": ("gemm_f32_added_bias", lambda a, b, c, r: a @ b + r + c),
    "all": (
        "gemm_f32_scaled_added_bias_relu",
        lambda a, b, c, r: anp.maximum(2 * (a @ b) + c + r, 0),
    ),
    "a part": ("gemm_f32_added", lambda a, b, c, r: a @ b + anp.stack([c, c])[0]),
    "every other column": (
        "gemm_f32",
        lambda a, b, c, r: a @ b + anp.concatenate([c, c], axis=1)[:, ::2],
    ),
    "of halves of rows": (
        "gemm_f32_added",
        lambda a, b, c, r: anp.reshape(a @ b, (4, 2, 4)) + anp.reshape(c, (4, 2, 4)),
    ),
    "two biases": (
        "gemm_f32",
        lambda a, b, c, r: a @ b + r + r[::-1],
    ),
}


@pytest.mark.parametrize("case", FOLDED)
def test_what_follows_a_product_is_a_part_of_it(case: str) -> None:
    provider, function = FOLDED[case]
    kernels = checked(function, A, B, C, ROW)
    assert provider in kernels
    is_one = case not in ("every other column", "two biases", "a part")
    assert not is_one or kernels == [provider]


@pytest.mark.parametrize("rate", [0.5, np.float32(0.25)])
def test_a_rate_that_is_an_argument_scales_products(rate: Any) -> None:
    def updated(p: Any, q: Any, a: Any, b: Any, rate: Any) -> Any:
        gradient = a @ b
        return p - rate * gradient, q - rate * (gradient.T @ gradient) * 2

    q = random(8, 8, seed=3)
    kernels = checked(updated, C, q, A, B, rate)
    assert "gemm_f32_times_added" in kernels
    # One number, and the product that the other needs.
    assert len(kernels) <= 5


def test_a_rate_that_is_an_argument_is_one_number_for_all_products() -> None:
    def step(p: Any, q: Any, a: Any, b: Any, rate: Any) -> Any:
        return p - rate * (a @ b), q - rate * (a[::-1] @ b)

    halves = [x.astype(dtypes.bfloat16) for x in (C, C[::-1].copy(), A, B)]
    kernels = checked(step, *halves, 0.5, tolerance=3e-2)
    assert sorted(kernels) == [
        "elementwise_0",  # the rows in reverse
        "elementwise_1",  # the rate
        "gemm_bf16_times_added",
        "gemm_bf16_times_added",
    ]


def test_a_batch_of_products_is_added_to() -> None:
    kernels = checked(lambda a, b, c, r: c - 0.5 * (a @ b), *BATCH)
    assert kernels == ["gemm_f32_scaled_added"]


def test_complex_products_are_scaled_and_added_to() -> None:
    arrays = [(x + 1j * x[::-1]).astype(np.complex64) for x in (C, A, B)]
    compiled = lowered(lambda c, a, b: c - 0.25 * (a @ b), *arrays)
    assert names(compiled) == ["gemm_c64_scaled_added"]
    (result,) = run_plan(compiled, arrays)
    c, a, b = arrays
    np.testing.assert_allclose(result, c - 0.25 * (a @ b), 1e-5)


def test_halves_are_added_to_before_they_are_rounded() -> None:
    function = lambda p, g, h: p - 0.01 * (g @ h)  # noqa: E731
    arrays = [x.astype(dtypes.bfloat16) for x in (C, A, B)]
    (result,) = run_plan(lowered(function, *arrays), arrays)
    p, g, h = (x.astype(np.float64) for x in arrays)
    np.testing.assert_allclose(result.astype(float), p - 0.01 * (g @ h), 2**-8)


def test_a_sum_of_products_is_added_up_by_them() -> None:
    def three(a: Any, b: Any, c: Any, r: Any) -> Any:
        return a @ b + (a * 2) @ b + anp.exp(a) @ b

    kernels = checked(three, A, B, C, ROW)
    products = [name for name in kernels if name.startswith("gemm")]
    assert sorted(products) == ["gemm_f32", "gemm_f32_added", "gemm_f32_added"]


def test_rows_read_the_sum_that_a_product_has_written() -> None:
    def normalised(a: Any, b: Any, c: Any, r: Any) -> Any:
        x = c + a @ b
        return x / anp.sqrt(anp.mean(x * x, axis=1, keepdims=True))

    compiled = lowered(normalised, A, B, C, ROW)
    checked(normalised, A, B, C, ROW)
    _, rows = compiled.plan.steps
    assert isinstance(rows, KernelCall)
    assert names(compiled)[0] == "gemm_f32_added"
    assert len({*rows.reads, *rows.writes}) == 1


def test_a_product_gives_relu_alone_where_its_derivative_is_taken() -> None:
    def loss(w: Any, b: Any, v: Any, x: Any) -> Any:
        return anp.sum(anp.sin(nn.relu(x @ w + b) @ v))

    for n in (4, 24):
        shapes = (6, 8 * n), (8 * n,), (8 * n, 5), (n, 6)
        arrays = [random(*shape, seed=k) for k, shape in enumerate(shapes)]
        kernels = checked(af.grad(loss, argnums=(0, 1, 2)), *arrays, tolerance=1e-3)
        assert "gemm_f32_bias_relu" in kernels


def test_a_donated_array_is_added_to_in_place() -> None:
    function = lambda p, g, h: p - 0.01 * (g @ h)  # noqa: E731
    traced = trace_function(function, (C, A, B), {}, abstract=True, with_values=False)
    plan = lower(traced.program, frozenset({0})).plan
    assert [b.donor for b in plan.buffers if b.kind == "output"] == [0]
    (step,) = plan.steps
    assert isinstance(step, KernelCall)
    assert step.kernel == "gemm_f32_scaled_added"


def test_a_product_that_two_kernels_store_differently_stays() -> None:
    def both(a: Any, b: Any, c: Any, r: Any) -> Any:
        hidden = a @ b
        return hidden + c, anp.sum(hidden * c, axis=0)

    assert "gemm_f32" in checked(both, A, B, C, ROW)


def test_what_is_added_is_read_before_it_is_written_over() -> None:
    def updated(a: Any, b: Any, c: Any, r: Any) -> Any:
        x = anp.exp(c)
        y = x + a @ b
        return y, x.at[0].set(r)

    checked(updated, A, B, C, ROW)


def test_what_is_computed_of_a_sum_is_computed_again_from_it() -> None:
    """The gradient reads the residual stream, not what the forward pass made of it."""

    def loss(w: Any, v: Any, x: Any) -> Any:
        total = x + x @ w
        centred = total - anp.mean(total, axis=1, keepdims=True)
        spread = anp.sqrt(anp.mean(centred * centred, axis=1, keepdims=True) + 1e-5)
        return anp.sum(anp.sin((centred / spread) @ v))

    w, v, x = random(16, 16), random(16, 16, seed=1), random(8, 16, seed=2)
    gradient = af.grad(loss, argnums=(0, 1, 2))
    kernels = checked(gradient, w, v, x, tolerance=1e-4)
    assert "gemm_f32_added" in kernels
    compiled = lowered(gradient, w, v, x)
    whole = [b for b in compiled.plan.buffers if b.type.shape == (8, 16)]
    # The sum, its normal form, two cotangents; those of rows are small.
    assert len([b for b in whole if b.kind == "temporary"]) <= 5


def test_a_sum_with_something_cheap_is_left_to_its_kernel() -> None:
    def function(a: Any, b: Any, c: Any, r: Any) -> Any:
        return anp.tanh(a @ b + (c + r))

    assert checked(function, A, B, C, ROW) == ["gemm_f32", "elementwise_0"]


# Bytes.

BYTES = {
    "words": ((8, 12), (12, 4), np.int32),
    "odd": ((5, 7), (7, 3), np.int32),
    "one_row": ((1, 8), (8, 4), np.int32),
    "a_batch": ((3, 5, 7), (3, 7, 3), np.int32),
    "narrow": ((8, 12), (12, 4), np.int8),
    "wide": ((8, 12), (12, 4), np.int64),
    "a_vector": ((8, 12), (12,), np.int32),
}


def integers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)


@pytest.mark.parametrize("case", BYTES)
def test_bytes_are_multiplied_by_the_library(case: str) -> None:
    left, right, dtype = BYTES[case]
    shared = tuple(range(len(left) - 2))
    axes = (((len(left) - 1,), (len(shared),)), (shared, shared))

    def function(x: Any, y: Any) -> Any:
        return lax.dot_general(x, y, axes, preferred_element_type=dtype)

    kernels = checked(function, integers(*left), integers(*right, seed=1))
    assert ("gemm_i8_i32" in kernels) == (case != "a_vector")


@pytest.mark.parametrize("begin", [0, 1, 4])
def test_rows_of_bytes_begin_at_words(begin: int) -> None:
    def function(x: Any, y: Any) -> Any:
        part = x[:, begin : begin + 8]
        return lax.dot(part, y, preferred_element_type=np.int32)

    kernels = checked(function, integers(4, 16), integers(8, 4, seed=1))
    assert len(kernels) == (2 if begin == 1 else 1)


LARGE = np.empty((1024, 1024), np.int8)


def multiplied(x: Any, y: Any) -> Any:
    return lax.dot(x, y, preferred_element_type=np.int32)


ALONG = {
    "as they lie": (lambda x, y: multiplied(x, y.T), ["gemm_i8_i32"]),
    "the second": (multiplied, ["transpose_0", "gemm_i8_i32"]),
    "both": (
        lambda x, y: multiplied(x.T, y),
        ["transpose_0", "transpose_0", "gemm_i8_i32"],
    ),
    "one for two": (
        lambda x, y: multiplied(x, y) + multiplied(x + 1, y),
        ["transpose_0", "elementwise_0", "gemm_i8_i32", "gemm_i8_i32", "elementwise_1"],
    ),
    "by what makes it": (
        lambda x, y: multiplied(x, y * 2 + 1),
        ["transpose_0", "gemm_i8_i32"],
    ),
    "few rows": (lambda x, y: multiplied(x[:64], y), ["gemm_i8_i32"]),
}


@pytest.mark.parametrize("case", ALONG)
def test_large_matrices_of_bytes_lie_along_what_is_summed_over(case: str) -> None:
    function, kernels = ALONG[case]
    compiled = lowered(function, LARGE, LARGE)
    assert sorted(names(compiled)) == sorted(kernels)
    for step in compiled.plan.steps:
        if step.kernel == "gemm_i8_i32" and case != "few rows":
            (kernel,) = (k for k in compiled.kernels if k.name == "gemm_i8_i32")
            given = dict(
                zip([p.name for p in kernel.parameters], step.arguments, strict=True)
            )
            assert (given["transpose_a"], given["transpose_b"]) == (0, 1)


# Destinations.

X, Y, Z = random(4, 6), random(6, 8, seed=1), random(6, 3, seed=2)
W = random(2, 6, seed=3)

DESTINATIONS = {
    "columns": lambda x, y, z, w: anp.concatenate([x @ y, x @ z], axis=1),
    "rows": lambda x, y, z, w: anp.concatenate([x @ y, w @ y], axis=0),
    "relu": lambda x, y, z, w: anp.concatenate([anp.maximum(x @ y, 0), w @ y], axis=0),
}


@pytest.mark.parametrize("case", DESTINATIONS)
def test_products_are_written_into_the_array_that_they_are_parts_of(case: str) -> None:
    kernels = checked(DESTINATIONS[case], X, Y, Z, W)
    assert [name.partition("_")[0] for name in kernels] == ["gemm", "gemm"]


def turned(x: Any, angle: Any) -> Any:
    first, second = x[..., :3], x[..., 3:]
    c, s = anp.cos(angle), anp.sin(angle)
    return anp.concatenate([first * c - second * s, first * s + second * c], axis=-1)


KERNELS = {
    "halves": (turned, (random(4, 5, 6), random(5, 3)), 2),
    "rows": (lambda x, y: anp.stack([softmax(x), x * y]), (X, random(4, 6)), 1),
    "columns": (lambda x: anp.stack([softmax(x), -x], axis=-1), (X,), 1),
    "inputs": (lambda x: (anp.stack([x, x]), x + 1), (X,), 3),
    "factors": (lambda x, y: (x @ y, anp.stack([x, x + 1])), (X, Y), 3),
    "sums": (
        lambda x: anp.concatenate([anp.sum(x, axis=1), anp.sum(x * x, axis=1)]),
        (X,),
        1,
    ),
    "an_output_too": (
        lambda x: (y := anp.tanh(x), anp.concatenate([y, x], axis=1)),
        (X,),
        3,
    ),
}


@pytest.mark.parametrize("case", KERNELS)
def test_kernels_write_the_parts_of_an_array(case: str) -> None:
    function, arguments, count = KERNELS[case]
    assert len(checked(function, *arguments)) == count


def test_a_part_is_not_written_by_the_kernel_that_copies_the_whole() -> None:
    """Another thread of it writes the element that the part replaces."""

    def replaced(x: Any) -> Any:
        return x.at[4].set(anp.sum(x))

    assert len(checked(replaced, np.arange(5.0, dtype=np.float32))) == 2


def test_a_product_that_is_needed_itself_is_copied() -> None:
    def parts(x: Any, y: Any, z: Any) -> Any:
        first = x @ y
        return first, anp.concatenate([first, x @ z], axis=1)

    assert checked(parts, X, Y, Z) == ["gemm_f32", "gemm_f32", "elementwise_0"]


# Operators.


def in_pairs(type: ArrayType, offset: int) -> bool:
    strides = type.layout.strides(type.shape)
    return strides[-1] == 1 and offset % 2 == 0


@af.operator(name="test_swapped_halves")
def swapped(x: Any, y: Any) -> Any:
    return y * 2, x * 2


@swapped.kernel("cuda", prepared=True, views=in_pairs)
def swapped_anywhere(*types: ArrayType) -> Any:
    """Never called here."""


def last_step(compiled: CompiledProgram) -> Any:
    kernel = next(k for k in compiled.kernels if k.name.startswith("operator_"))
    return HOST_STEPS.find(int(kernel.name.rpartition("_")[2]))


def test_an_operator_takes_views_as_they_lie_and_writes_parts() -> None:
    def function(x: Any) -> Any:
        first, second = swapped(x[:, :4], x[:, 4:])
        return anp.concatenate([first, second], axis=1)

    compiled = lowered(function, random(3, 8))
    (step,) = compiled.plan.steps
    assert isinstance(step, KernelCall)
    pointers = [a for a in step.arguments if isinstance(a, BufferArgument)]
    places = [(a.buffer, a.offset) for a in pointers]
    assert places == [(0, 0), (0, 16), (1, 0), (1, 16)]
    host = last_step(compiled)
    texts = [str(t) for t in (*host.operands, *host.results)]
    assert texts == ["f32[3,4] S(8,1)"] * 4


def test_what_an_operator_does_not_take_as_it_lies_is_copied_once() -> None:
    def function(x: Any) -> Any:
        first, second = swapped(x[:, 1:5], x[:, 1:5])
        return first + second

    kernels = names(lowered(function, random(3, 8)))
    assert [name.partition("_")[0] for name in kernels] == [
        "elementwise",
        "operator",
        "elementwise",
    ]


def test_gradients_of_slices_are_written_side_by_side() -> None:
    def loss(x: Any, w: Any) -> Any:
        parts = (x @ w).reshape(4, 3, 2)
        first, second, third = (parts[:, k] for k in range(3))
        return anp.sum(first * second + third * first)

    x, w = random(4, 5), random(5, 6, seed=1)
    traced = trace_function(af.grad(loss, argnums=1), (x, w), {})
    text = str(traced.program)
    assert "pad" in text
    compiled = lower(traced.program, check=True)
    assert "pad" not in compiled.text
    (result,) = run_plan(compiled, (x, w))
    (expected,) = evaluate(traced.program, (x, w))
    np.testing.assert_allclose(result, expected, 1e-5)


# Random programs of what is folded, redirected, and written over.

OPERATIONS = (
    lambda x, y, r, rate: x @ y / 3,
    lambda x, y, r, rate: y.T @ x / 3,
    lambda x, y, r, rate: x + y,
    lambda x, y, r, rate: x - rate * y,
    lambda x, y, r, rate: x * 0.9 - 0.3 * y,
    lambda x, y, r, rate: nn.relu(x),
    lambda x, y, r, rate: x + r,
    lambda x, y, r, rate: anp.concatenate([x[:3], y[3:]], axis=0),
    lambda x, y, r, rate: anp.concatenate([x[:, :2], anp.tanh(y)[:, 2:]], axis=1),
    lambda x, y, r, rate: x - anp.mean(x, axis=1, keepdims=True),
    lambda x, y, r, rate: lax.pad(anp.cos(x)[:3, 3:], 0.0, ((1, 0, 1), (0, 1, 1))),
)


def random_program(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    steps = [rng.integers(0, 1 << 16, 3) for _ in range(rng.integers(3, 9))]

    def run(a: Any, b: Any, c: Any, row: Any, rate: Any) -> Any:
        made = [a, b, c]
        for which, i, j in steps:
            x, y = made[i % len(made)], made[j % len(made)]
            operation = OPERATIONS[min(which % 15, len(OPERATIONS) - 1)]
            made.append(operation(x, y, row, rate))
        return made[-1], made[-2]

    def gradients(*arrays: Any) -> Any:
        loss = lambda *given: anp.sum(anp.sin(run(*given)[0]))  # noqa: E731
        return af.grad(loss, argnums=(0, 1, 2))(*arrays)

    return gradients if seed % 2 else run


@pytest.mark.parametrize("seed", range(24))
def test_random_programs_give_the_reference_s_results(seed: int) -> None:
    arrays = [random(6, 6, seed=seed + k) for k in range(3)]
    given = (*arrays, random(6, seed=seed), np.array(0.5, np.float32))
    function = random_program(seed)
    traced = trace_function(function, given, {}, abstract=True, with_values=False)
    donated = frozenset(range(seed % 4))
    results = run_plan(lower(traced.program, donated, check=True), given)
    for have, want in zip(results, evaluate(traced.program, given), strict=True):
        np.testing.assert_allclose(have, want, 2e-3, 2e-3)


def test_zeros_around_are_written_before_what_is_between_them() -> None:
    x = random(5, 7)
    checked(lambda x: lax.pad(anp.cos(x[1:4, ::3]), 0.0, ((1, 1, 0), (0, 0, 2))), x)
    checked(af.grad(lambda x: anp.sum(anp.sin(x[1:4, ::3]))), x)


@pytest.mark.parametrize(
    ("axes", "offset", "shape", "box"),
    [
        ([(2, 12), (4, 1)], 4, (2, 3, 4), ((0, 1), (1, 1), (0, 3))),
        ([(24, 1)], 0, (2, 3, 4), ((0, 1), (0, 2), (0, 3))),
        ([(12, 1)], 12, (2, 3, 4), ((1, 1), (0, 2), (0, 3))),
        ([(6, 1)], 2, (2, 3, 4), ((0, 0), (0, 1), (0, 3))),
        ([(3, 7), (3, 3)], 7, (5, 7), ((1, 3), (0, 6))),
        ([(3, -1)], 9, (5, 7), ((1, 1), (0, 2))),
        ([], 3, (1, 7), ((0, 0), (3, 3))),
    ],
)
def test_the_box_that_is_written(axes: Any, offset: int, shape: Any, box: Any) -> None:
    assert box_of(axes, offset, ArrayType(shape, dtypes.float32)) == box
