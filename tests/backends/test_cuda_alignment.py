"""Vectors of GPU kernels are aligned, wherever an array begins; by the emulator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn import lax, nn
from arrayfn.backends.cuda import attention, device_array
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.errors import VerificationError
from arrayfn.ir import ArrayType, layout
from arrayfn.lowering.cuda.lower import _CudaLowering, lower
from arrayfn.lowering.options import Options
from arrayfn.lowering.plan import Kernel
from arrayfn.primitives.calls import evaluate
from arrayfn.transforms import trace_function


def random(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def assert_emulated(
    function: Any, *arguments: Any, mode: Any = None, bound: float = 1e-4
) -> None:
    """The emulator, which refuses vectors that are not aligned, gives the same."""
    program = trace_function(function, arguments, {}).program
    have = run_plan(lower(program, options=Options(mode=mode)), arguments)
    for x, y in zip(have, evaluate(program, arguments), strict=True):
        np.testing.assert_allclose(x, y, rtol=bound, atol=bound)


# Bodies of scans that read, or write, a part of a slice that vectors divide. The next
# slice begins 33 elements further.


def scaled(c: Any, x: Any) -> Any:
    return anp.sin(x[:32]) * c, x[:32] * 2


def normalized(c: Any, x: Any) -> Any:
    return anp.cos(c), nn.softmax(c + x[:32], axis=-1)


def summed_up(c: Any, x: Any) -> Any:
    return anp.cos(c), anp.cumsum(x[:32]) + c


def put(c: Any, x: Any) -> Any:
    return anp.cos(c), anp.concatenate([c[0] * x[:32], x[:1]])


SCANS = (scaled, normalized, summed_up, put)


def scanned(body: Any) -> Any:
    weights = np.eye(32, dtype=np.float32)

    def step(c: Any, x: Any) -> Any:
        c, y = body(c, x)
        return c @ weights, y  # a product: the loop is not one thread's

    return lambda c, x: lax.scan(step, c, x)


@pytest.mark.parametrize("mode", [None, "persistent"])
@pytest.mark.parametrize("body", SCANS)
def test_slices_of_loops_are_read_in_vectors_where_all_are_aligned(
    body: Any, mode: Any
) -> None:
    assert_emulated(scanned(body), random(4, 32), random(3, 33), mode=mode)


# Kernels that take a whole array, of which a slice is one element too long.


def attended(x: Any) -> Any:
    q = x[:128].reshape(1, 8, 2, 8)
    return nn.dot_product_attention(q, q, q)


def convolved(x: Any) -> Any:
    return lax.conv_general_dilated(
        x[:576].reshape(2, 6, 6, 8),
        anp.ones((3, 3, 1, 8), x.dtype),
        (1, 1),
        "SAME",
        feature_group_count=8,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def looped(x: Any) -> Any:
    """The slice is what a loop inside begins with."""
    weights = np.eye(32, dtype=np.float32) / 2

    def step(h: Any, _: Any) -> Any:
        z = anp.sin(h[:32]) @ weights
        return anp.concatenate([z * anp.cos(h[:32]), h[:1]]), anp.tanh(h[:32])

    return lax.scan(step, x, None, length=3)


@pytest.mark.parametrize(
    ("function", "length", "dtype"),
    [
        (attended, 129, np.float16),
        (convolved, 577, np.float32),
        (looped, 33, np.float32),
    ],
)
def test_kernels_of_whole_arrays_get_slices_that_are_aligned(
    function: Any, length: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_has_cudnn", lambda: False)

    def step(c: Any, x: Any) -> Any:
        return c, function(x)

    x = random(3, length, dtype=dtype)
    bound = 1e-2 if dtype == np.float16 else 1e-4
    assert_emulated(lambda x: lax.scan(step, 0.0, x)[1], x, bound=bound)


@pytest.mark.parametrize(("length", "vectors"), [(36, True), (33, False)])
def test_slices_of_whole_vectors_are_read_in_vectors(
    length: int, vectors: bool
) -> None:
    arguments = random(4, 32), random(3, length)
    program = trace_function(scanned(scaled), arguments, {}).program
    texts = [k.source for k in lower(program).kernels if isinstance(k, Kernel)]
    (text,) = (text for text in texts if "sin_f32(" in text)
    assert ("load_f32x4(" in text) == vectors


@pytest.mark.parametrize(
    ("result", "accesses"),
    [
        (np.float32, ("load_u16x4", "store_f32x4")),
        (np.float16, ("load_u16x8", "store_u16x8")),
        (np.float64, ("load_u16x2", "store_f64x2")),
    ],
)
def test_one_store_writes_a_whole_vector_of_the_result(
    result: Any, accesses: tuple[str, str]
) -> None:
    x = random(4, 64, dtype=np.float16)
    program = trace_function(lambda x: (x * 2).astype(result), (x,), {}).program
    (kernel,) = lower(program).kernels
    for access in accesses:
        assert f"{access}(" in kernel.source
    assert_emulated(lambda x: (x * 2).astype(result), x)


def test_a_vector_of_a_slice_that_is_not_aligned_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_CudaLowering, "with_slice_strides", lambda self, nest: nest)
    program = trace_function(scanned(put), (random(4, 32), random(3, 33)), {}).program
    with pytest.raises(
        VerificationError, match=r"a vector of 4 elements of \w+ is not"
    ):
        lower(program)


FUNCTIONS = {
    "elementwise": lambda x: x * 2 + 1,
    "rows": lambda x: nn.softmax(x, axis=-1),
    "columns": lambda x: anp.sum(x * x, axis=0),
    "scan": lambda x: anp.cumsum(x, axis=-1),
    "transpose": lambda x: x.T + 1,
    "gather": lambda x: anp.take(x, np.array([1, 0, 2]), axis=0),
    "scatter": lambda x: x.at[np.array([1, 0])].add(1),
    "product": lambda x: x @ x.T,
    "part": lambda x: anp.exp(x[1:]),
}
VIEWS = {
    "rows reversed": lambda: random(9, 64)[::-1],
    "columns reversed": lambda: random(9, 64)[:, ::-1],
    "both reversed": lambda: random(5, 33)[::-1, ::-1],
    "a part, reversed": lambda: random(9, 67)[::-1, :64],
    "every other one": lambda: random(9, 130)[:, ::2],
    "one row": lambda: np.broadcast_to(random(64), (9, 64)),
    "transposed": lambda: random(64, 9)[::-1, ::-1].T,
    "from the second on": lambda: random(10, 65)[1:, 1:],
    "halves, reversed": lambda: random(9, 67, dtype=np.float16)[::-1, :64],
}


@pytest.mark.parametrize("view", VIEWS)
def test_views_are_read_in_vectors_that_are_aligned(view: str) -> None:
    x = VIEWS[view]()
    bound = 1e-2 if x.dtype == np.float16 else 1e-4
    for function in FUNCTIONS.values():
        assert_emulated(function, x, bound=bound)


@pytest.mark.parametrize(("rows", "borrowed"), [(4, True), (5, False)])
def test_memory_is_borrowed_if_its_lowest_element_is_aligned(
    rows: int, borrowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[tuple[int, int, int]] = []
    gpu = SimpleNamespace(
        block=lambda nbytes: (1 << 12, object()),
        copy=lambda *words: copies.append(words),
        synchronize=lambda: None,
    )
    monkeypatch.setattr(device_array, "device", lambda: gpu)
    type = ArrayType(
        (rows + 1,), np.dtype(np.float32), layout.from_strides((5,), (-1,))
    )
    taken = device_array._adopted(type, 1 << 16, object())
    assert taken.shared == borrowed
    lowest = (1 << 16) - 4 * rows
    assert copies == ([] if borrowed else [(1 << 12, lowest, 4 * (rows + 1))])
