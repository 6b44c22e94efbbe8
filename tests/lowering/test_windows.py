"""Products of windows: the windows are copied tile by tile, or not at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn as af
from arrayfn import lax
from arrayfn.ir import ArrayType
from arrayfn.lowering.lower import lower
from arrayfn.primitives.base import Tolerance
from arrayfn.primitives.contraction import dot_general
from arrayfn.primitives.convolution import conv_general
from arrayfn.primitives.windowed import sliding_windows
from tests.common_functions import same_on_threads
from tests.lowering.kernels import check_kernels
from tests.programs import build

NHWC = (
    ((), (0,), (3,), (1, 2)),
    ((), (3,), (2,), (0, 1)),
    ((), (0,), (3,), (1, 2)),
)
CASES = [
    ("f4", (2, 30, 30, 8), (3, 3, 8, 5), (1, 1), (1, 1)),
    ("f8", (4, 41, 40, 3), (7, 5, 3, 8), (2, 3), (1, 2)),
    ("c8", (2, 40, 30, 4), (3, 5, 4, 6), (1, 1), (2, 1)),
    ("c16", (3, 40, 60, 2), (4, 4, 2, 6), (1, 2), (1, 1)),
]


def program_of(dtype: Any, x: Any, w: Any, strides: Any, dilations: Any) -> Any:
    roles = dict(zip(("lhs", "rhs", "out"), NHWC, strict=True))

    def emit(x: Any, w: Any) -> Any:
        return conv_general(x, w, **roles, strides=strides, dilations=dilations)

    return build(emit, *[ArrayType(shape, np.dtype(dtype)) for shape in (x, w)])


def draw(dtype: str, shape: tuple[int, ...], seed: int) -> Any:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape)
    if dtype.startswith("c"):
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_a_convolution_copies_its_windows_tile_by_tile(case: Any) -> None:
    dtype, x, w, *_ = case
    program = program_of(*case)
    inputs = [draw(dtype, x, 1), draw(dtype, w, 2)]
    # Un-jitted and compiled.
    compiled = check_kernels(program, inputs, conv_general.tolerance)
    providers = [k.name for k in compiled.kernels]
    assert providers[0].startswith("windows_")
    assert len(compiled.plan.steps) == 1, "no copy of all windows"
    assert compiled.plan.arena == 0


def test_a_convolution_has_the_same_bits_on_every_number_of_threads() -> None:
    x, w = draw("f4", (4, 60, 60, 16), 3), draw("f4", (3, 3, 16, 32), 4)

    @af.jit
    def run(x: Any, w: Any) -> Any:
        names = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=names)

    same_on_threads(lambda: run(x, w))


def test_windows_that_something_else_reads_are_copied() -> None:
    geometry = {"axes": (0,), "sizes": (64,), "strides": (1,), "dilations": (1,)}

    def emit(x: Any, w: Any) -> Any:
        windows = sliding_windows(x, **geometry, order=(0, 1))
        product = dot_general(windows, w, contract=((1,), (0,)), batch=((), ()))
        return product, windows

    real = np.dtype(np.float32)
    program = build(emit, ArrayType((3000,), real), ArrayType((64, 8), real))
    names = [k.name for k in lower(program).kernels]
    assert "gemm_f32" in names
    assert not any(name.startswith("windows_") for name in names)


def test_a_few_windows_are_copied_at_once() -> None:
    program = program_of("f4", (1, 6, 6, 2), (3, 3, 2, 4), (1, 1), (1, 1))
    assert "gemm_f32" in [k.name for k in lower(program).kernels]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_a_sum_over_windows_is_made_of_fixed_parts(case: Any) -> None:
    dtype, x, w, strides, dilations = case
    (out,) = program_of(*case).output_types
    lhs, rhs, result = NHWC

    def emit(x: Any, ct: Any) -> Any:
        # The cotangent of the kernel: what is summed over are the result's pixels.
        return conv_general(
            x,
            ct,
            lhs=(lhs[0], lhs[2], lhs[1], lhs[3]),
            rhs=(result[0], result[2], result[1], result[3]),
            out=(rhs[0], rhs[2], rhs[1], rhs[3]),
            strides=dilations,
            dilations=strides,
        )

    real = np.dtype(dtype)
    limit = [
        (n - 1) * s + (k - 1) * d + 1
        for n, s, k, d in zip(out.shape[1:3], strides, w[:2], dilations, strict=True)
    ]
    shape = (x[0], *limit, x[3])
    program = build(emit, ArrayType(shape, real), ArrayType(out.shape, real))
    assert program.output_types[0].shape == w
    inputs = [draw(dtype, shape, 5), draw(dtype, out.shape, 6)]
    compiled = check_kernels(program, inputs, Tolerance(1e-4, 1e-12))
    names = [k.name for k in compiled.kernels]
    assert names[0].startswith("window_sums_")
    assert len(names) == 2


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("dtype", ["f4", "c16"])
def test_windows_of_channels_first_are_the_columns(dtype: str, batch: int) -> None:
    roles = (((), (0,), (1,), (2, 3)), ((), (0,), (1,), (2, 3)))
    options = {"lhs": roles[0], "rhs": roles[1], "out": roles[0]}

    def emit(x: Any, w: Any) -> Any:
        return conv_general(x, w, **options, strides=(1, 2), dilations=(2, 1))

    shapes = (batch, 6, 50, 61), (7, 6, 3, 4)
    program = build(emit, *[ArrayType(shape, np.dtype(dtype)) for shape in shapes])
    inputs = [draw(dtype, shape, k) for k, shape in enumerate(shapes)]
    compiled = check_kernels(program, inputs, conv_general.tolerance)
    names = [k.name for k in compiled.kernels]
    assert names[0].startswith("windows_right_")
    assert len(compiled.plan.steps) == 1, "no copy of all windows"


@pytest.mark.parametrize("count", [1, 2])
def test_windows_of_one_element_have_a_jacobian(count: int) -> None:
    def greatest(x: Any) -> Any:
        return lax.reduce_window(x, np.float32(-np.inf), lax.max, (1,), (1,), "SAME")

    x = np.arange(count, dtype=np.float32)
    for derivative in (af.jacfwd, af.jacrev):
        found = af.jit(derivative(greatest))(x)
        assert np.array_equal(found, np.eye(count))
