"""The native CPU runtime: plans written by hand, bound and called."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from arrayfn.backends.cpu import code, executable, portable_entry, runtime
from arrayfn.backends.cpu.executable import Executable, bind
from arrayfn.backends.cpu.libraries import leading_values
from arrayfn.backends.cpu.libraries.blas import blas, scipy_blas
from arrayfn.backends.cpu.libraries.linear_algebra import matrices
from arrayfn.backends.cpu.runtime import get_num_threads, set_num_threads
from arrayfn.backends.native import python_objects
from arrayfn.errors import ArgumentError, BackendError
from arrayfn.ir import ArrayType
from arrayfn.ir import layout as layouts
from arrayfn.lowering.gemm_tiles import PROVIDERS, gemm_tiles
from arrayfn.lowering.plan import (
    BufferAllocation,
    BufferArgument,
    ExecutionPlan,
    Kernel,
    KernelCall,
    LibraryKernel,
    Parameter,
    ScratchArgument,
)
from tests.common_functions import same_on_threads

f32, f64 = np.dtype(np.float32), np.dtype(np.float64)


def kernel(source: str, signature: str) -> Kernel:
    """A kernel ``k`` of ``source``; parameters as in ``"x:f32* n:i64"``."""
    parameters = tuple(Parameter(*p.split(":")) for p in signature.split())
    return Kernel("k", source, source, parameters)


MULTIPLY_ADD = kernel(
    """
def k(x, y, out, begin, end):
    for i in range(begin, end):
        out[i] = x[i] * y[i] + x[i]
""",
    "x:f32* y:f32* out:f32*",
)
ADD_ONE = kernel(
    """
def k(x, out, begin, end):
    for i in range(begin, end):
        out[i] = x[i] + 1
""",
    "x:i64* out:i64*",
)
COPY = {
    kind: kernel(
        f"# {kind}\ndef k(x, out, begin, end):\n"
        "    for i in range(begin, end):\n        out[i] = x[i]\n",
        f"x:{kind}* out:{kind}*",
    )
    for kind in ("bool", "i64", "f32", "f64", "bf16", "c64")
}


def buffer(kind: Any, index: int, type: ArrayType, **place: int) -> BufferAllocation:
    return BufferAllocation(kind, index, type, type.nbytes, **place)


def array(shape: tuple[int, ...], dtype: Any = f32, **rest: Any) -> ArrayType:
    return ArrayType(shape, np.dtype(dtype), **rest)


def call(items: int, *arguments: Any, **rest: Any) -> KernelCall:
    resolved = tuple(
        BufferArgument(int(a[1:])) if isinstance(a, str) else a for a in arguments
    )
    return KernelCall("k", resolved, items, **rest)


def multiply_add(shape: tuple[int, ...], layout: Any = layouts.C, **rest: Any) -> Any:
    kind = array(shape, layout=layout)
    buffers = (buffer("input", 0, kind), buffer("input", 1, kind))
    plan = ExecutionPlan(
        (*buffers, buffer("output", 0, kind)),
        (call(kind.size, "b0", "b1", "b2", **rest),),
    )
    return bind(plan, [MULTIPLY_ADD])


def copy(kind: ArrayType, name: str, out: ArrayType | None = None) -> Executable:
    buffers = (buffer("input", 0, kind), buffer("output", 0, out or kind))
    return bind(ExecutionPlan(buffers, (call(kind.size, "b0", "b1"),)), [COPY[name]])


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(f32)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = get_num_threads()
    set_num_threads(request.param)
    yield request.param
    set_num_threads(before)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = get_num_threads()
    set_num_threads(2)
    yield
    set_num_threads(before)


# Running


@pytest.mark.parametrize("size", [1, 7, 1000, 100_003])
def test_a_kernel_computes_every_item_once(size, threads):
    run = multiply_add((size,), grain=64)
    x, y = floats(2, size)
    (result,) = run((x, y))
    np.testing.assert_array_equal(result, x * y + x)
    assert run.call_single(x, y).tobytes() == result.tobytes()


def test_steps_run_in_order_through_the_arena(threads):
    kind = array((5000,), np.int64)
    temporary = [buffer("temporary", i, kind, offset=40_000 * i) for i in range(2)]
    buffers = (buffer("input", 0, kind), buffer("output", 0, kind), *temporary)
    steps = tuple(
        call(5000, *arguments.split(), grain=100)
        for arguments in ("b0 b2", "b2 b3", "b3 b1")
    )
    run = bind(ExecutionPlan(buffers, steps, arena=80_000), [ADD_ONE])
    x = np.arange(5000)
    for _ in range(3):
        np.testing.assert_array_equal(run((x,))[0], x + 3)


def test_an_argument_may_point_into_a_buffer():
    kind = array((10,), np.int64)
    buffers = (buffer("input", 0, kind), buffer("output", 0, array((4,), np.int64)))
    step = call(4, BufferArgument(0, offset=24), "b1")
    run = bind(ExecutionPlan(buffers, (step,)), [ADD_ONE])
    np.testing.assert_array_equal(run((np.arange(10),))[0], [4, 5, 6, 7])


def test_constants_are_read_in_place_and_kept_alive():
    kind = array((3,))
    buffers = (
        buffer("constant", 0, kind),
        buffer("input", 0, kind),
        buffer("output", 0, kind),
    )
    constant = np.array([1, 2, 3], f32)
    alive = weakref.ref(constant)
    plan = ExecutionPlan(buffers, (call(3, "b0", "b1", "b2"),))
    run = bind(plan, [MULTIPLY_ADD], [constant])
    del constant
    gc.collect()
    np.testing.assert_array_equal(run((np.full(3, 2, f32),))[0], [3, 6, 9])
    del run
    gc.collect()
    assert alive() is None


SCRATCH = kernel(
    """
def k(x, out, scratch, n, begin, end):
    for row in range(begin, end):
        for i in range(n):
            scratch[i] = x[row * n + i] + 1
        total = scratch[0] - scratch[0]
        for i in range(n):
            total = total + scratch[n - 1 - i] * (i + 1)
        out[row] = total
""",
    "x:i64* out:i64* scratch:i64* n:i64",
)


@pytest.mark.parametrize("columns", [3, 20_000])
def test_each_thread_has_scratch_memory_of_its_own(columns, threads):
    rows = 200
    kinds = array((rows, columns), np.int64), array((rows,), np.int64)
    buffers = (buffer("input", 0, kinds[0]), buffer("output", 0, kinds[1]))
    step = call(rows, "b0", "b1", ScratchArgument(8), columns, scratch=8 * columns + 8)
    plan = ExecutionPlan(buffers, (step,), scratch=8 * columns + 8)
    run = bind(plan, [SCRATCH])
    x = np.arange(rows * columns).reshape(rows, columns)
    expected = ((x + 1)[:, ::-1] * np.arange(1, columns + 1)).sum(1)
    for _ in range(5):
        np.testing.assert_array_equal(run((x,))[0], expected)


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_arrays_without_elements(shape):
    (result,) = multiply_add(shape)((np.zeros(shape, f32), np.zeros(shape, f32)))
    assert (result.shape, result.dtype) == (shape, f32)


def test_a_plan_without_steps_returns_its_outputs():
    run = bind(ExecutionPlan((buffer("output", 0, array((2, 3), f64)),), ()), [])
    (result,) = run(())
    assert (result.shape, result.dtype) == ((2, 3), f64)


def test_rank_zero_arrays():
    result = multiply_add(())((np.array(2, f32), np.array(3, f32)))[0]
    assert (result.shape, float(result)) == ((), 8.0)


def test_equal_kernels_of_other_names_share_their_code():
    other = Kernel(
        "other",
        MULTIPLY_ADD.source.replace("def k", "def other"),
        MULTIPLY_ADD.key,
        MULTIPLY_ADD.parameters,
    )
    kind = array((2,))
    buffers = tuple(buffer("input", i, kind) for i in range(2))
    steps = (KernelCall("other", tuple(map(BufferArgument, range(3))), 2),)
    run = bind(ExecutionPlan((*buffers, buffer("output", 0, kind)), steps), [other])
    np.testing.assert_array_equal(run((np.ones(2, f32), np.ones(2, f32)))[0], [2, 2])


# Outputs


@pytest.mark.parametrize("size", [4, 1 << 16, 1 << 21])
def test_outputs_are_owned_writable_arrays(size):
    x, y = floats(2, size)
    (result,) = multiply_add((size,))((x, y))
    for flag in ("OWNDATA", "WRITEABLE", "ALIGNED", "C_CONTIGUOUS"):
        assert result.flags[flag], flag
    assert result.base is None
    result += 1
    result.resize(size // 2, refcheck=False)
    np.testing.assert_array_equal(result, (x * y + x + 1)[: size // 2])
    result.resize(3 * size, refcheck=False)
    assert not result[size:].any()


def test_memory_of_large_outputs_is_reused():
    run = multiply_add((1 << 21,))
    x, y = floats(2, 1 << 21)
    result = run.call_single(x, y)
    address = result.ctypes.data
    del result
    assert run.call_single(x, y).ctypes.data == address
    assert address % 64 == 0


def test_results_kept_alive_do_not_share_memory():
    run = multiply_add((1 << 17,))
    x, y = floats(2, 1 << 17)
    results = [run.call_single(x * i, y) for i in range(8)]
    for i, result in enumerate(results):
        np.testing.assert_array_equal(result, (x * i) * y + x * i)


def test_an_impossible_output_raises_memory_error():
    kind, huge = array((1,)), array((1 << 50,))
    buffers = (buffer("input", 0, kind), buffer("output", 0, huge))
    run = bind(ExecutionPlan(buffers, ()), [])
    with pytest.raises(MemoryError):
        run((np.zeros(1, f32),))


def test_an_impossible_workspace_raises_memory_error():
    run = bind(
        ExecutionPlan((buffer("output", 0, array((1,))),), (), arena=1 << 52), []
    )
    with pytest.raises(MemoryError):
        run(())


def test_calls_leak_neither_references_nor_memory():
    run = multiply_add((300_000,))
    x, y = floats(2, 300_000)
    counts = sys.getrefcount(x), sys.getrefcount(f32)
    for _ in range(300):
        run.call_single(x, y)
        run.call(x, y.astype(f64))
    assert (sys.getrefcount(x), sys.getrefcount(f32)) == counts
    with open("/proc/self/statm") as file:
        before = int(file.read().split()[1])
    for _ in range(300):
        run.call_single(x, y)
    with open("/proc/self/statm") as file:
        after = int(file.read().split()[1])
    assert (after - before) * os.sysconf("SC_PAGE_SIZE") < 20 * x.nbytes


@pytest.mark.parametrize(
    ("layout", "steps"),
    [
        (layouts.C, (48, 16, 4)),
        (layouts.F, (4, 8, 24)),
        (layouts.Strided((4, 8, 1)), (16, 32, 4)),
    ],
)
def test_outputs_have_the_layout_of_their_type(layout, steps):
    kind = array((2, 3, 4), layout=layout)
    (result,) = copy(array((24,)), "f32", kind)((np.arange(24, dtype=f32),))
    assert result.strides == steps
    flat = np.lib.stride_tricks.as_strided(result, (24,), (4,))
    np.testing.assert_array_equal(flat, np.arange(24))


def test_an_output_with_gaps_is_refused():
    with pytest.raises(BackendError, match="gaps or overlap"):
        copy(array((6,)), "f32", array((3, 2), layout=layouts.Strided((4, 1))))


def test_call_into_writes_given_arrays():
    run = multiply_add((4,))
    x, y = floats(2, 4)
    out = np.zeros(4, f32)
    assert run.call_into(x, y, out) == 0
    np.testing.assert_array_equal(out, x * y + x)


def test_call_into_refuses_read_only_and_other_outputs():
    run = multiply_add((4,))
    x, y = floats(2, 4)
    out = np.zeros(4, f32)
    out.flags.writeable = False
    assert run.call_into(x, y, out) == 3
    assert run.call_into(x, y, np.zeros(5, f32)) == 3
    assert run.call_into(x, y) == 3
    assert run.call_into(x, y, x, x) == 4


# Checks of inputs


class Subclass(np.ndarray):
    """Not an exact ndarray."""


def misaligned(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    storage = np.zeros(x.nbytes + 1, np.uint8)
    result = storage[1:].view(x.dtype).reshape(x.shape)
    result[...] = x
    return result


@pytest.mark.parametrize(
    "other",
    [
        lambda x: x.astype(f64),
        lambda x: x.astype(np.int32),
        lambda x: x.view(np.int32),
        lambda x: x.astype(">f4"),
        lambda x: x[:2],
        lambda x: x.reshape(12),
        lambda x: x.reshape(4, 3),
        np.asfortranarray,
        lambda x: x[:, ::-1],
        lambda x: np.repeat(x, 2, 1)[:, ::2],
        lambda x: x.view(Subclass),
        np.ma.masked_array,
        misaligned,
        lambda x: x.tolist(),
        lambda x: 1.0,
        lambda x: None,
        lambda x: np.float32(1),
    ],
)
def test_an_input_that_does_not_fit_is_numbered_and_nothing_runs(other):
    run = multiply_add((3, 4))
    x = floats(3, 4)
    out = np.full((3, 4), 7, f32)
    assert run.call(x, other(x)) == 2
    assert run.call_single(other(x), x) == 1
    assert run.call_into(x, other(x), out) == 2
    assert (out == 7).all()


def test_a_wrong_number_of_inputs_is_a_mismatch():
    run = multiply_add((3,))
    x = floats(3)
    assert [run.call(), run.call(x), run.call(x, x, x)] == [1, 2, 3]


def test_the_error_says_what_was_given_and_what_was_expected():
    run = multiply_add((3, 4))
    x = floats(3, 4)
    with pytest.raises(ArgumentError) as caught:
        run((x, x.astype(f64)[:, :3]))
    assert str(caught.value) == (
        "argument 1 is to be f32[3,4], not an array of float64 with shape (3, 3) and "
        "strides of 32,8 bytes"
    )
    with pytest.raises(ArgumentError, match=r"argument 0 is to be f32.* not a list"):
        run(([1.0], x))
    with pytest.raises(ArgumentError, match="expected 2 arrays, not 1"):
        run((x,))


def test_what_is_not_aligned_is_copied():
    run = multiply_add((3, 4))
    x = floats(3, 4)
    (have,), (want,) = run((misaligned(x), x)), run((x, x))
    np.testing.assert_array_equal(have, want)


def test_integers_of_one_size_are_one_dtype():
    run = copy(array((3,), np.int64), "i64")
    for letter in "lq":
        np.testing.assert_array_equal(run((np.array([1, 2, 3], letter),))[0], [1, 2, 3])
    assert run.call(np.zeros(3, "L")) == 1


def test_bfloat16_is_told_from_other_types_of_two_bytes():
    run = copy(array((3,), ml_dtypes.bfloat16), "bf16")
    x = np.array([1, 2, 3], ml_dtypes.bfloat16)
    np.testing.assert_array_equal(run((x,))[0], x)
    assert run.call(x.view(np.uint16)) == 1
    assert run.call(x.astype(np.float16)) == 1
    assert run.call(x.view("V2")) == 1


def test_strides_of_axes_with_one_element_do_not_matter():
    kind = array((1, 4), layout=layouts.Strided((9, 1)))
    run = copy(kind, "f32", array((4,)))
    np.testing.assert_array_equal(run((floats(1, 4),))[0], floats(4))


def test_strided_inputs_have_exactly_their_strides():
    kind = array((3, 4), layout=layouts.Strided((8, -1)))
    run = copy(kind, "f32", array((12,)))
    x = floats(3, 8)
    assert isinstance(run.call(x[:, 3::-1]), tuple)
    assert run.call(x[:, :4]) == 1
    assert run.call(np.ascontiguousarray(x[:, 3::-1])) == 1


@pytest.mark.parametrize(
    ("dtype", "name", "number"),
    [
        (f32, "f32", 0.1),
        (f32, "f32", float("inf")),
        (f64, "f64", 0.1),
        (np.int64, "i64", -(2**63)),
        (np.bool_, "bool", True),
    ],
)
def test_python_numbers_stand_for_weakly_typed_scalars(dtype, name, number):
    run = copy(array((), dtype, weak=True), name)
    assert run((number,))[0] == np.dtype(dtype).type(number)
    assert run((np.array(number, dtype),))[0] == np.dtype(dtype).type(number)


def test_numbers_that_do_not_fit_are_mismatches():
    integer = copy(array((), np.int64, weak=True), "i64")
    assert [integer.call(x) for x in (2**63, -(2**63) - 1, 1.0, True)] == [1, 1, 1, 1]
    assert copy(array((), f32, weak=True), "f32").call(1) == 1
    assert copy(array((), f32), "f32").call(1.0) == 1


# Matrix products


def product(
    m: int, n: int, k: int, dtype: Any, a: int = 0, b: int = 0, batch: int = 1
) -> Executable:
    dtype = np.dtype(dtype)
    kinds = [
        array((batch, k, m) if a else (batch, m, k), dtype),
        array((batch, n, k) if b else (batch, k, n), dtype),
        array((batch, m, n), dtype),
    ]
    tiles = gemm_tiles(m, n, k, batch, dtype)
    numbers = (m, n, k, m if a else k, k if b else n, n, a, b, batch)
    strides = (m * k, k * n, m * n, tiles.tile_m, tiles.tile_n)
    step = call(tiles.items, "b0", "b1", "b2", *numbers, *strides, grain=1)
    buffers = (
        *(buffer("input", i, kinds[i]) for i in range(2)),
        buffer("output", 0, kinds[2]),
    )
    library = LibraryKernel("k", PROVIDERS[dtype], ())
    return bind(ExecutionPlan(buffers, (step,)), [library])


def matrix(rng: np.random.Generator, shape: Any, dtype: Any) -> np.ndarray[Any, Any]:
    x = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize(
    ("m", "n", "k", "batch"),
    [
        (5, 7, 3, 1),
        (200, 150, 130, 1),
        (1, 300, 900, 1),
        (900, 1, 300, 2),
        (9, 8, 7, 5),
        (1, 1, 5, 1),
        (300, 17, 1, 1),
    ],
)
@pytest.mark.parametrize(("a", "b"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_matrix_products_have_the_same_bits_on_one_and_two_threads(
    m, n, k, batch, a, b, dtype
):
    rng = np.random.default_rng(m + n + k)
    run = product(m, n, k, dtype, a, b, batch)
    x = matrix(rng, run.input_types[0].shape, dtype)
    y = matrix(rng, run.input_types[1].shape, dtype)

    def computed():
        out = np.full(run.output_types[0].shape, np.nan, dtype)
        assert run.call_into(x, y, out) == 0
        return out

    result = same_on_threads(computed)
    left = (x.swapaxes(1, 2) if a else x).astype(np.complex128)
    right = (y.swapaxes(1, 2) if b else y).astype(np.complex128)
    scale = np.abs(left) @ np.abs(right)
    error = np.abs(result - left @ right) / scale
    assert error.max() < 4 * k * np.finfo(dtype).eps


@pytest.mark.parametrize(("m", "n"), [(4, 5), (1, 5), (4, 1)])
def test_a_product_over_no_terms_is_zero(m, n):
    run = product(m, n, 0, np.float32)
    out = np.full((1, m, n), np.nan, f32)
    assert run.call_into(np.zeros((1, m, 0), f32), np.zeros((1, 0, n), f32), out) == 0
    assert (out == 0).all()


def test_conjugated_operands():
    rng = np.random.default_rng(0)
    run = product(4, 1, 3, np.complex64, a=2, b=2)
    x, y = matrix(rng, (1, 3, 4), np.complex64), matrix(rng, (1, 1, 3), np.complex64)
    expected = x[0].conj().T @ y[0].conj().T
    np.testing.assert_allclose(run((x, y))[0][0], expected, rtol=1e-5)


def test_products_are_the_same_by_a_blas_with_integers_of_32_bits(monkeypatch):
    x, y = floats(1, 5, 7), floats(1, 7, 3)
    monkeypatch.setattr(matrices, "blas", scipy_blas)
    leading_values.cache_clear()
    result = product(5, 3, 7, np.float32)((x, y))[0]
    leading_values.cache_clear()
    np.testing.assert_allclose(result[0], x[0] @ y[0], rtol=1e-6)


def test_blas_keeps_the_threads_its_user_gave_it():
    get = ctypes.CFUNCTYPE(ctypes.c_int)(blas().get_threads)
    put = ctypes.CFUNCTYPE(None, ctypes.c_int)(blas().set_threads)
    before = get()
    put(2)
    product(64, 64, 64, np.float32)((floats(1, 64, 64), floats(1, 64, 64)))
    after = get()
    put(before)
    assert after == 2


def test_an_unknown_library_kernel_is_an_error():
    with pytest.raises(BackendError, match="no library kernel 'fft_f32'"):
        bind(ExecutionPlan((), ()), [LibraryKernel("k", "fft_f32", ())])


# Threads and processes


def test_calls_from_several_python_threads_are_right(two_threads):
    run = multiply_add((50_000,), grain=500)
    x, y = floats(2, 50_000)
    right = []

    def work(factor: float) -> None:
        mine = x * np.float32(factor)
        expected = (mine * y + mine).tobytes()
        results = (run.call_single(mine, y).tobytes() for _ in range(200))
        right.append(all(result == expected for result in results))

    workers = [threading.Thread(target=work, args=(i + 1.0,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert right == [True] * 4


SLOW = kernel(
    """
def k(x, out, n, begin, end):
    for i in range(begin, end):
        s = x[i]
        for j in range(n):
            s = s / (x[i] + s)
        out[i] = s
""",
    "x:f64* out:f64* n:i64",
)


def test_a_long_plan_runs_without_the_gil():
    before = get_num_threads()
    set_num_threads(1)
    kind = array((8,), f64)
    buffers = (buffer("input", 0, kind), buffer("output", 0, kind))
    run = bind(ExecutionPlan(buffers, (call(8, "b0", "b1", 4_000_000),)), [SLOW])
    x = np.ones(8)
    worker = threading.Thread(target=lambda: run.call(x))
    turns = 0
    worker.start()
    while worker.is_alive():
        time.sleep(0.001)
        turns += 1
    set_num_threads(before)
    assert turns > 20


def test_a_forked_child_makes_threads_of_its_own(two_threads):
    run = multiply_add((100_000,), grain=100)
    x, y = floats(2, 100_000)
    expected = run.call_single(x, y)
    child = os.fork()
    if child == 0:
        same = run.call_single(x, y).tobytes() == expected.tobytes()
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert run.call_single(x, y).tobytes() == expected.tobytes()


def test_the_number_of_threads_can_change_between_calls():
    run = multiply_add((10_000,), grain=10)
    x, y = floats(2, 10_000)
    before = get_num_threads()
    for count in (1, 4, 2, 3, 1):
        set_num_threads(count)
        assert get_num_threads() == count
        np.testing.assert_array_equal(run.call_single(x, y), x * y + x)
    set_num_threads(before)


@pytest.mark.parametrize("count", [0, -1, 257, 2.0, True, "2"])
def test_a_bad_number_of_threads_is_an_error(count):
    with pytest.raises(ArgumentError, match="number of threads"):
        set_num_threads(count)


WARM = '''
import sys
import numpy as np
from arrayfn.backends.cpu.executable import bind
from arrayfn.ir import ArrayType
from arrayfn.lowering.plan import *
source = """def k(x, out, begin, end):
    for i in range(begin, end):
        out[i] = x[i] + x[i] if x[i] else x[i]
"""
kernel = Kernel("k", source, source, (Parameter("x", "f32*"), Parameter("out", "f32*")))
kind = ArrayType((3,), np.dtype(np.float32))
buffers = tuple(BufferAllocation(k, 0, kind, 12) for k in ("input", "output"))
steps = (KernelCall("k", (BufferArgument(0), BufferArgument(1)), 3),)
run = bind(ExecutionPlan(buffers, steps), [kernel])
print(run((np.array([1, 2, 3], np.float32),))[0], "numba" in sys.modules)
'''


def test_a_process_that_finds_its_kernels_cached_imports_no_numba(tmp_path):
    environment = {**os.environ, "ARRAYFN_CACHE_DIR": str(tmp_path / "cache")}
    outputs = [
        subprocess.run(  # the conditional expression is for Numba
            [sys.executable, "-W", "error", "-c", WARM],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    ]
    assert outputs == ["[2. 4. 6.] True\n", "[2. 4. 6.] False\n"]


@pytest.fixture
def portable(monkeypatch):
    """What is bound then has its call entries in Python."""
    other = dataclasses.replace(runtime.runtime(), entries=portable_entry.entries)
    monkeypatch.setattr(executable, "runtime", lambda: other)


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (python_objects, "KNOWN_NUMPY", 3),
        (python_objects, "KNOWN_PYTHON", ((4, 0), (4, 1))),
        (python_objects, "_fits", lambda: False),
    ],
)
def test_an_unknown_interpreter_is_said_and_not_read(monkeypatch, module, name, value):
    monkeypatch.setattr(module, name, value)
    with pytest.warns(RuntimeWarning, match="does not know how cpython .* NumPy"):
        assert not python_objects.reads_objects.__wrapped__()


def test_an_interpreter_without_the_gil_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "abiflags", "t")
    with pytest.raises(BackendError, match="CPython with the GIL"):
        python_objects.reads_objects.__wrapped__()


@pytest.mark.parametrize(
    "layout", [layouts.C, layouts.F, layouts.Strided((12, 1, 3))], ids=str
)
def test_entries_in_python_answer_as_native_ones(portable, layout):
    shape = (2, 3, 4)
    run = multiply_add(shape, layout)
    strides = [4 * n for n in layout.strides(shape)]
    x = np.ndarray(shape, f32, np.zeros(24, f32), strides=strides)
    x[...] = floats(*shape)
    (made,) = run.call(x, x)
    np.testing.assert_array_equal(made, x * x + x)
    assert made.strides == run.call_single(x, x).strides == x.strides
    assert run.call_into(x, x, made) == 0
    made.flags.writeable = False
    assert run.call_into(x, x, made) == 3
    assert (run.call(x, x, x), run.call(x), run.call_into(x, x)) == (3, 2, 3)
    for other in (x.astype(f64), x[:1], x[:, ::-1], x.reshape(6, 4), 1.5, None):
        assert run.call(x, other) == 2


@pytest.mark.parametrize(
    ("dtype", "name", "number", "others"),
    [
        ("f4", "f32", 1.5, (2, True)),
        ("f8", "f64", -2.5, (2, None)),
        ("i8", "i64", -(2**63), (2**63, 1.0, True)),
        ("?", "bool", True, (1, 0.0)),
    ],
)
def test_entries_in_python_take_numbers(portable, dtype, name, number, others):
    run = copy(array((), dtype, weak=True), name, array((), dtype))
    assert run.call_single(number) == np.array(number, dtype)
    assert run.call_single(np.array(number, dtype)) == np.array(number, dtype)
    assert [run.call(other) for other in others] == [1] * len(others)


def test_a_bad_number_of_threads_in_the_environment_is_an_error():
    done = subprocess.run(
        [sys.executable, "-c", WARM],
        env={**os.environ, "ARRAYFN_NUM_THREADS": "many"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "ARRAYFN_NUM_THREADS='many': it is a number from 1 to 256" in done.stderr


# Compilation


def test_what_numba_cannot_compile_is_an_error_with_the_kernels_name_and_line():
    source = "def k(x, begin, end):\n    x[begin] = open(end)\n"
    with pytest.raises(BackendError, match=r"(?s)cannot compile kernel k.*line 2"):
        bind(ExecutionPlan((), ()), [kernel(source, "x:f32*")])


@pytest.mark.parametrize("part", ["_numba_version", "toolchain"])
def test_code_of_other_versions_of_the_compiler_is_not_loaded(part, monkeypatch):
    def key():
        code._compiler.cache_clear()
        return code.kernel_unit(ADD_ONE).key

    before = key()
    with monkeypatch.context() as changed:
        changed.setattr(code, part, lambda: "another")
        assert key() != before
    assert key() == before


def test_a_plan_with_a_missing_kernel_is_an_error():
    with pytest.raises(BackendError, match=r"does not have: \['k'\]"):
        bind(ExecutionPlan((), (call(1),)), [])


ON_ONE_CORE = """
import os, time
import numpy as np
import arrayfn as af

def tasks():
    return {int(name) for name in os.listdir("/proc/self/task")}

def core(task):
    with open(f"/proc/self/task/{task}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[36])

af.set_num_threads(2)
x = np.ones(1 << 20)
f = af.jit(lambda x: af.numpy.exp(x))
f.lower(x).compile()  # threads that compile come and go
before = tasks()
f(x)
(worker,) = tasks() - before
cores = os.sched_getaffinity(0)
one = min(cores)
os.sched_setaffinity(0, {one})
os.sched_setaffinity(worker, {one})
f(x)
os.sched_setaffinity(worker, cores)
stop, left = time.monotonic() + 30, False
while not left and time.monotonic() < stop:
    f(x)
    left = core(worker) != one  # once: the system may bring it back
assert left
# It moves by allowing itself the other cores alone, for a moment.
while os.sched_getaffinity(worker) != cores and time.monotonic() < stop:
    f(x)
assert os.sched_getaffinity(worker) == cores
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or len(os.sched_getaffinity(0)) < 2,
    reason="needs two cores, and Linux, to see which one a thread runs on",
)
def test_a_worker_leaves_the_core_of_the_launching_thread() -> None:
    subprocess.run([sys.executable, "-c", ON_ONE_CORE], check=True)
