"""Look-back flags, work queues, and scans in parts of rows."""

from dataclasses import replace

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.backends.cuda import missing_packages
from arrayfn.backends.cuda.code import kernel_ptx
from arrayfn.backends.cuda.emulator import EmulationError, Pointer, launch
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.lowering.cuda.config import GpuConfig
from arrayfn.lowering.cuda.lower import lower
from arrayfn.primitives.calls import evaluate
from arrayfn.transforms import trace_function
from tests.common_functions import random
from tests.lowered_on_gpu import lowered

needs_compiler = pytest.mark.skipif(bool(missing_packages()), reason=missing_packages())
HEAD = """
from arrayfn.lowering.cuda.vocabulary import (
    block_index, dynamic_block_id, fence, publish_c64, publish_f32, publish_f64,
    publish_i8, registers_c64, registers_f32, registers_f64, registers_i8, thread_index,
    wait_for_c64, wait_for_c64x4, wait_for_f32, wait_for_f32x4, wait_for_f64,
    wait_for_f64x4, wait_for_i8, wait_for_i8x4,
)

def kernel(x, out, flag_buffer, blocks):
    number = dynamic_block_id(flag_buffer, blocks)
    i = thread_index()
"""
RUNNING = """
    if i == 0:
        before = x[number]
        if number > 0:
            before = before + wait_for_T(flag_buffer, number - 1)
        publish_T(flag_buffer, number, before)
        out[number] = before
"""


THROUGH_MEMORY = """
    if i == 0:
        before = x[number]
        if number > 0:
            number = number + wait_for_i8(flag_buffer, number - 1) - 1
            fence()
            before = before + out[number - 1]
        out[number] = before
        fence()
        publish_i8(flag_buffer, number, 1)
"""


def run(body, blocks, dtype=np.float32, flag_buffer=None):
    """The result of ``body`` on 0, 1, ... and a flag buffer."""
    x = np.arange(blocks).astype(dtype)
    out = np.zeros(blocks, dtype)
    flag_buffer = (
        np.zeros(1 + 4 * blocks, np.uint64) if flag_buffer is None else flag_buffer
    )
    pointers = [Pointer(x), Pointer(out), Pointer(flag_buffer)]
    launch(HEAD + body, "kernel", blocks, 32, [*pointers, blocks])
    return out


@pytest.mark.parametrize("dtype", ["f32", "f64", "i8", "c64"])
def test_what_a_block_publishes_those_after_it_find(dtype):
    kind = {"f32": "f4", "f64": "f8", "i8": "i1", "c64": "c8"}[dtype]
    out = run(RUNNING.replace("_T", f"_{dtype}"), 6, kind)
    assert out.tolist() == [0, 1, 3, 6, 10, 15]


@pytest.mark.parametrize("dtype", ["f32", "f64", "i8", "c64"])
def test_several_places_are_asked_for_at_once(dtype):
    body = f"""
    values = registers_{dtype}(4)
    if i == 0:
        for k in range(4):
            values[k] = x[1]
        wait_for_{dtype}x4(flag_buffer, number % 2, 2, number, values)
        publish_{dtype}(flag_buffer, number, x[number])
        out[number] = values[0] + values[1] + values[2] + values[3]
"""
    kind = {"f32": "f4", "f64": "f8", "i8": "i1", "c64": "c8"}[dtype]
    # Every other slot before, and 1 for each of four that is not there.
    assert run(body, 8, kind).tolist() == [4, 4, 3, 4, 4, 6, 7, 10]


def test_what_lies_in_memory_is_there_after_two_fences():
    assert run(THROUGH_MEMORY, 5).tolist() == [0, 1, 3, 6, 10]


def test_a_flag_buffer_serves_launch_after_launch():
    flag_buffer = np.zeros(7, np.uint64)
    for turn in range(3):
        out = run(RUNNING.replace("_T", "_f32"), 6, flag_buffer=flag_buffer)
        assert out.tolist() == [0, 1, 3, 6, 10, 15]
        assert int(flag_buffer[0]) == (turn + 1) << 32


def test_blocks_that_run_at_once_wait_for_later_ones():
    body = """
    if i == 0 and number < 3:
        out[number] = wait_for_f32(flag_buffer, number + 1)
    if i == 1:
        publish_f32(flag_buffer, number, x[number])
"""
    x, out = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    pointers = [Pointer(x), Pointer(out), Pointer(np.zeros(9, np.uint64))]
    launch(HEAD + body, "kernel", 4, 32, [*pointers, 4], cooperative=True)
    assert out.tolist() == [1, 2, 3, 0]
    with pytest.raises(EmulationError, match="slot 1 of argument 2, which no block"):
        launch(HEAD + body, "kernel", 4, 32, [*pointers, 4])


def test_blocks_take_numbers_until_there_are_none():
    text = """
from arrayfn.lowering.cuda.vocabulary import (
    end_work_queue, next_work_item, thread_index,
)

def kernel(out, flag_buffer, count, blocks):
    if thread_index() == 0:
        number = next_work_item(flag_buffer, 1, 2)
        while number < count:
            out[number] = out[number] + 1
            out[number + 1] = out[number + 1] + 2
            number = next_work_item(flag_buffer, 1, 2)
        end_work_queue(flag_buffer, 1, blocks)
"""
    out, flag_buffer = np.zeros(10, np.int64), np.zeros(2, np.uint64)
    for turn in range(1, 3):
        launch(text, "kernel", 3, 32, [Pointer(out), Pointer(flag_buffer), 10, 3])
        assert out.tolist() == [turn, 2 * turn] * 5
        assert flag_buffer.tolist() == [turn << 32, 0]


def test_a_launch_is_known_before_anything_is_published():
    text = """
from arrayfn.lowering.cuda.vocabulary import (
    begin_work_queue, end_work_queue, next_work_item, publish_f32, thread_index,
    wait_for_f32,
)

def kernel(out, flag_buffer, count, blocks):
    if thread_index() == 0:
        begin_work_queue(flag_buffer)
        number = next_work_item(flag_buffer, 5, 1)
        while number < count:
            publish_f32(flag_buffer, number, number)
            out[number] = wait_for_f32(flag_buffer, number // 2)
            number = next_work_item(flag_buffer, 5, 1)
        end_work_queue(flag_buffer, 5, blocks)
"""
    out, flag_buffer = np.zeros(4, np.float32), np.zeros(6, np.uint64)
    pointers = [Pointer(out), Pointer(flag_buffer)]
    for turn in range(1, 3):
        launch(text, "kernel", 3, 32, [*pointers, 4, 3])
        assert out.tolist() == [0, 0, 1, 1]
        assert flag_buffer[[0, 5]].tolist() == [turn << 32, 0]
    text = text.replace("        begin_work_queue(flag_buffer)\n", "")
    with pytest.raises(
        EmulationError, match="before dynamic_block_id or begin_work_queue"
    ):
        launch(text, "kernel", 3, 32, [*pointers, 4, 3])


REPORTED = {
    "a value that no block before publishes": (
        "wait_for_f32(flag_buffer, 5)",
        "no block",
    ),
    "a value of an earlier launch": (
        "wait_for_f32(flag_buffer, number)",
        "no block before",
    ),
    "a slot outside": ("wait_for_f32(flag_buffer, 100)", "lies outside"),
}


@pytest.mark.parametrize("case", REPORTED)
def test_what_never_comes_is_reported(case):
    value, message = REPORTED[case]
    flag_buffer = np.zeros(7, np.uint64)
    run(RUNNING.replace("_T", "_f32"), 6, flag_buffer=flag_buffer)
    with pytest.raises(EmulationError, match=message):
        run(f"    out[number] = {value}\n", 6, flag_buffer=flag_buffer)


def test_of_several_slots_the_one_that_never_comes_is_reported():
    body = """
    values = registers_f32(4)
    if i == 0:
        publish_f32(flag_buffer, number, x[number])
        if number == 2:
            wait_for_f32x4(flag_buffer, 0, 1, 5, values)
"""
    with pytest.raises(EmulationError, match="block 2 waits for slot 3"):
        run(body, 4)


def test_a_slot_is_published_once():
    with pytest.raises(EmulationError, match="published twice"):
        run("    publish_f32(flag_buffer, 0, x[0])\n", 2)


# A GPU so small that a part is 256 elements of 32 bits.
PARTS = GpuConfig(scan_threads=64, scan_words=2, part_threads=64, max_cluster=0)


def along(name, reverse=False):
    """The running value along the last axis."""
    return lambda x: getattr(lax, name)(x, x.ndim - 1, reverse)


CASES = {
    "one row": (along("cumsum"), random(1, 1024)),
    "rows": (along("cumsum"), random(2, 780)),
    "backwards": (along("cumsum", reverse=True), random(2, 777)),
    "a batch": (along("cumsum"), random(2, 2, 1028)),
    "groups of parts": (along("cumsum"), random(256 * 33 + 4, dtype=float)),
    "rows of groups": (along("cummin"), random(2, 64 * 130, dtype=float)),
    "greatest": (along("cummax"), np.where(random(2000) > 2, np.nan, random(2000))),
    "float64": (along("cumsum"), random(2, 700, dtype=float)),
    "complex": (along("cumsum"), random(600) + 1j * random(600, seed=1)),
    "integers": (along("cumsum"), np.arange(1500, dtype=np.int8)),
    "product": (along("cumprod"), 1 + random(1, 1100) / 100),
}


def scanned(case, gpu=PARTS):
    """The Program of a case, its compiled form, and its argument."""
    function, x = CASES[case]
    if "groups" in case:  # of 128 parts
        gpu = replace(gpu, part_threads=32, part_tiles=1)
    program = trace_function(function, (x,), {}).program
    return program, lower(program, check=True, gpu=gpu), x


@pytest.mark.parametrize("case", CASES)
def test_parts_of_rows_equal_the_reference(case):
    program, compiled, x = scanned(case)
    (kernel,) = compiled.kernels
    assert "dynamic_block_id(flag_buffer, blocks)" in kernel.source
    (result,) = run_plan(compiled, [x])
    (expected,) = evaluate(program, [x])
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=2e-4)


# A part is 64 elements, a group 128 parts; 32 threads look at a part each.
@pytest.mark.parametrize(("parts", "groups"), [(32, 0), (33, 1), (128, 1), (129, 2)])
def test_parts_are_in_groups_where_a_block_has_fewer_threads(parts, groups):
    gpu = replace(PARTS, part_threads=32, part_tiles=1)
    compiled = lowered(along("cumsum"), random(2, 64 * parts, dtype=float), gpu=gpu)
    (kernel,), (step,) = compiled.kernels, compiled.plan.steps
    names = [p.name for p in kernel.parameters if p.kind == "i64"]
    integers = [a for a in step.arguments if isinstance(a, int)]
    given = dict(zip(names, integers, strict=True))
    assert (given["parts"], given.get("groups", 0)) == (parts, groups)


@needs_compiler
@pytest.mark.cuda
@pytest.mark.parametrize("case", ["rows of groups", "float64", "complex", "integers"])
def test_parts_of_rows_compile_to_ptx(case):
    (kernel,) = scanned(case)[1].kernels
    ptx = kernel_ptx(kernel, (8, 0))
    assert "atom.add.relaxed.gpu.global.u64" in ptx
    assert "st.relaxed.gpu.global.u64" in ptx
    assert ".local" not in ptx


# The same with copies into shared memory, by four blocks.
FETCHED = replace(
    PARTS,
    max_cluster=1,
    multiprocessors=2,
    part_blocks=2,
    part_iterations=0,
    part_tiles=2,
    max_lanes=4,
)
AHEAD = ["one row", "rows", "a batch", "groups of parts", "rows of groups", "greatest"]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("case", [*AHEAD, "float64", "complex", "product"])
def test_parts_that_are_fetched_ahead_equal_the_reference(case, together):
    program, compiled, x = scanned(case, FETCHED)
    (kernel,) = compiled.kernels
    assert "next_work_item(flag_buffer, counter, 1)" in kernel.source
    if together:  # blocks run side by side, and share the parts
        kernel = replace(kernel, cooperative=True)
        compiled = replace(compiled, kernels=(kernel,))
    (result,) = run_plan(compiled, [x])
    (expected,) = evaluate(program, [x])
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize("together", [False, True])
def test_a_flag_buffer_is_as_before_when_all_parts_were_fetched(together):
    _, compiled, x = scanned("one row", replace(FETCHED, part_slots=3))
    (kernel,), (step,) = compiled.kernels, compiled.plan.steps
    integers = [a for a in step.arguments if isinstance(a, int)]
    names = [p.name for p in kernel.parameters if p.kind == "i64"]
    flag_buffer = np.zeros(64, np.uint64)
    for turn in range(1, 4):
        out = np.zeros_like(x)
        pointers = [Pointer(a.reshape(-1)) for a in (x, out, flag_buffer)]
        shape = kernel.source, kernel.name, step.items, kernel.threads
        launch(*shape, [*pointers, *integers], cooperative=together)
        np.testing.assert_allclose(out, np.cumsum(x, axis=1), rtol=1e-4, atol=1e-4)
        counter = integers[names.index("counter")]
        assert flag_buffer[[0, counter]].tolist() == [turn << 32, 0]


def test_few_parts_are_not_fetched():
    (kernel,) = scanned("one row", replace(FETCHED, part_iterations=2))[1].kernels
    assert "dynamic_block_id(flag_buffer, blocks)" in kernel.source


@pytest.mark.parametrize("case", ["backwards", "integers"])
def test_parts_that_are_no_aligned_vectors_are_not_fetched(case):
    (kernel,) = scanned(case, FETCHED)[1].kernels
    assert "dynamic_block_id(flag_buffer, blocks)" in kernel.source


@needs_compiler
@pytest.mark.cuda
@pytest.mark.parametrize("case", ["rows of groups", "complex"])
def test_parts_that_are_fetched_ahead_compile_to_ptx(case):
    (kernel,) = scanned(case, FETCHED)[1].kernels
    ptx = kernel_ptx(kernel, (9, 0))
    assert "cp.async.bulk" in ptx
    assert "ld.relaxed.gpu.global.u64" in ptx
    assert ".local" not in ptx


def test_a_long_row_is_read_twice_of_which_once_from_the_cache():
    x = np.zeros(1 << 20, np.float32)
    (kernel,) = lowered(
        lambda x: anp.cumsum(x, axis=0), x, gpu=GpuConfig(max_cluster=0)
    ).kernels
    assert kernel.source.count("load_f32x4(x_in") == 2
