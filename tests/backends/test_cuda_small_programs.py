"""Small programs as a GPU runs them: narrow types, short rows, strided arguments.

Each is run by the emulator on the text that is compiled for a GPU, and compared with
the reference; its plan is given arguments in their own layout.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn import dtypes, lax, nn
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.backends.cuda.graphs.staging import staged_buffers
from arrayfn.lowering.cuda.lower import lower
from arrayfn.primitives.calls import evaluate
from arrayfn.transforms import trace_function
from tests.common_functions import random

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
HALF_PRECISION = (dtypes.float16, dtypes.bfloat16)
TOLERANCES = {2: 2e-2, 4: 1e-5, 8: 1e-12}  # by the bytes of a real number

Case = tuple[Callable[..., Any], Sequence[Any]]


def plan_and_results(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """The compiled program, its results, and those of the reference."""
    program = trace_function(
        function, tuple(arguments), {}, abstract=True, with_values=False
    ).program
    compiled = lower(program, check=True)
    return compiled, run_plan(compiled, arguments), evaluate(program, arguments)


def check(function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """Assert that the emulator gives what the reference gives."""
    _, results, wanted = plan_and_results(function, arguments)
    for result, expected in zip(results, map(np.asarray, wanted), strict=True):
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
        if result.dtype not in dtypes.INEXACT:
            np.testing.assert_array_equal(result, expected)
            continue
        real = dtypes.real_of(result.dtype)
        wide = np.complex128 if result.dtype in dtypes.COMPLEX else np.float64
        tolerance = TOLERANCES[real.itemsize]
        np.testing.assert_allclose(
            result.astype(wide), expected.astype(wide), tolerance, tolerance
        )


def counted(shape: Sequence[int], dtype: Any, steps: Sequence[int] = ()) -> Any:
    """1, 2, ... 119, 1, ... in a strided array of this shape."""
    steps = tuple(steps) or (1,) * len(shape)
    sizes = [n * abs(step) for n, step in zip(shape, steps, strict=True)]
    whole = (np.arange(np.prod(sizes)) % 119 + 1).reshape(sizes).astype(dtype)
    return whole[tuple(slice(None, None, step) for step in steps)]


INDEX = np.array([2, -3, 0, 1])
NARROW = counted((3, 4), np.uint8)

TAKES: dict[str, Case] = {
    "counted backwards": (
        lambda x: (x + 1)[:, anp.arange(99, -1, -3)],
        (counted((4, 100), np.int32),),
    ),
    "every third": (
        lambda x: (x + 1)[anp.arange(0, 10, 3)],
        (np.arange(10, dtype=np.int32),),
    ),
    "a list": (lambda x: (x * 2)[:, [15, 0, 10]], (random(16, 16, dtype=np.float16),)),
    "along the last axis": (
        lambda x: anp.take(~x, np.array([-1, -3, 1]), axis=1),
        (NARROW,),
    ),
    "of bools": (lambda x: (x & x)[INDEX], (np.array([True, False, True, False]),)),
    "of a test": (
        lambda x: anp.take(anp.isinf(x), np.array([1, 1, -2, -1, 3]), axis=-2),
        (np.where(random(4, 3) > 0, np.inf, 0).astype(np.float32),),
    ),
    "at what the array says": (lambda x: (y := (x * 5) % 12)[y], (np.arange(12),)),
    "of what is indexed too": (
        lambda x: (y := x * 3)[(y % 4).astype(np.int8)],
        (np.arange(4, dtype=np.int16),),
    ),
}


@pytest.mark.parametrize("case", TAKES)
def test_takes_of_what_is_computed(case: str) -> None:
    check(*TAKES[case])


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(
    "dtype", [*INTEGERS, "bool", *HALF_PRECISION, "float32", "complex64"]
)
def test_takes_along_each_axis(dtype: Any, axis: int) -> None:
    x = counted((3, 4, 5), dtype, (1, -2, 1))
    index = np.array([2, 0, -1], np.int8)
    check(lambda x, i: anp.take(x + x, i, axis=axis), (x, index))
    check(lambda x, i: anp.take(x * x, (i + 3) % 3, axis=axis), (x, index))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("steps", [(2, 4), (1, -1), (-3, 1)])
def test_loops_of_each_element_on_strided_arguments(
    dtype: str, steps: tuple[int, int]
) -> None:
    x = counted((4, 3), dtype, steps)
    check(lambda x: anp.lcm(anp.flip(x * 2, -2), x), (x,))
    check(lambda x: anp.gcd(x, anp.flip(x, 0)), (x,))


def layernorm(x: Any) -> Any:
    deviations = x - anp.mean(x, axis=-1, keepdims=True)
    return deviations / anp.sqrt(anp.var(x, axis=-1, keepdims=True) + 1e-5)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 12, 33])
@pytest.mark.parametrize("rows", [(), (1,), (2, 3)])
def test_short_rows(rows: tuple[int, ...], length: int) -> None:
    x = random(*rows, length)
    check(layernorm, (x,))
    check(nn.softmax, (x,))
    check(lambda x: nn.softmax(anp.std(x, axis=-1, keepdims=True), axis=0), (x,))


def test_softmax_of_few_deviations() -> None:
    check(lambda x: nn.softmax(anp.std(x, axis=-1)), (random(4, 3),))
    check(lambda x: anp.var(x, axis=-1), (random(3, 2, dtype=np.float16),))


def chosen(x: Any, y: Any) -> Any:
    high = anp.sum(x).real > 3
    return lax.cond(high, lambda a, b: a * 2 + b, lambda a, b: a - b, x + x, y * 2)


def remainder(x: Any, y: Any) -> Any:
    most = lax.cond(anp.max(x) > 3, lambda: anp.max(x), lambda: anp.min(x))
    return anp.remainder(most, y)


def taken_of_padded(x: Any) -> Any:
    made = lax.cond(anp.max(x) > 0, lambda: anp.pad(x, 1), lambda: anp.pad(x * 2, 1))
    return made[np.array([0, -1, 2])]


STRIDED: dict[str, Case] = {
    "a choice of uint64": (
        chosen,
        (counted((4, 3), "u8", (2, 2)), counted((4, 3), "u8")),
    ),
    "a choice of complex128": (
        chosen,
        (counted((3, 4), complex, (2, 2)), counted((3, 4), complex)),
    ),
    "a choice by a minimum": (
        lambda x: lax.cond(anp.sin(anp.nanmin(x)) > 0, lambda: x * 2, lambda: x - 1),
        (counted((16, 16), np.float32, (3, 1)),),
    ),
    "any of all": (
        lambda x: anp.any(anp.all(x, axis=(0, 1), keepdims=True), axis=(0, 1, 2)),
        (counted((2, 3, 4), np.uint64, (2, 1, 2)),),
    ),
    "a choice of two extrema": (
        remainder,
        (counted((3, 4), np.int64, (2, 3)), np.array([3, 5, 7], np.int32)),
    ),
    "rows of a choice": (taken_of_padded, (counted((3, 4), np.float32, (2, 2)),)),
    "columns first": (lambda x: x + 1, (counted((4, 3), np.int16).T,)),
}


@pytest.mark.parametrize("case", STRIDED)
def test_strided_arguments_arrive_whole(case: str) -> None:
    function, arguments = STRIDED[case]
    check(function, arguments)
    compiled, _, _ = plan_and_results(function, arguments)
    plan = compiled.plan
    inputs = [k for k, b in enumerate(plan.buffers) if b.kind == "input"]
    staged = staged_buffers(compiled.input_types, inputs, [], plan.buffers, plan.arena)
    assert staged is not None
    for buffer, x in zip(staged[0], arguments, strict=True):
        low, high = np.lib.array_utils.byte_bounds(x)
        assert buffer.nbytes == high - low


def test_any_of_what_all_left_of_an_axis() -> None:
    x = np.ones((33, 4), np.uint64)
    x[3, 0] = 0
    check(lambda x: anp.any(anp.all(x, axis=0, keepdims=True)), (x,))


def test_a_value_beside_its_reduction_over_one_element() -> None:
    def function(x: Any, y: Any) -> Any:
        both = x * anp.max(x, axis=1, keepdims=True)
        return anp.where(x == x, anp.where(both != 0, both, y), x)

    check(function, (np.ones((1, 1), bool), np.ones((1, 1), np.uint64)))


@pytest.mark.parametrize("sizes", [(3, 5, 2, 0), (0, 5, 2, 3), (3, 5, 0, 3)])
def test_products_of_empty_matrices_of_bytes(sizes: tuple[int, ...]) -> None:
    b, m, k, n = sizes
    check(anp.matmul, (counted((b, m, k), np.int8), counted((k, n), np.int8)))
