"""Values that blocks post for those that begin later, and scans in parts of rows."""

from dataclasses import replace

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.backends.cuda import kernel_compiler, missing_packages
from arrayfn.backends.cuda.emulated_plan import run_plan
from arrayfn.backends.cuda.emulator import EmulationError, Pointer, launch
from arrayfn.lowering.cuda.config import GpuConfig
from arrayfn.lowering.cuda.lower import lower
from arrayfn.primitives.calls import evaluate
from arrayfn.transforms import trace_function
from tests.common_functions import random
from tests.lowered_on_gpu import lowered

needs_compiler = pytest.mark.skipif(bool(missing_packages()), reason=missing_packages())
HEAD = """
from arrayfn.lowering.cuda.vocabulary import (
    block_index, fence, post_c64, post_f32, post_f64, post_i8, posted_c64, posted_f32,
    posted_f64, posted_i8, postings_c64x4, postings_f32x4, postings_f64x4,
    postings_i8x4, registers_c64, registers_f32, registers_f64, registers_i8,
    thread_index, ticket,
)

def kernel(x, out, board, blocks):
    number = ticket(board, blocks)
    i = thread_index()
"""
RUNNING = """
    if i == 0:
        before = x[number]
        if number > 0:
            before = before + posted_T(board, number - 1)
        post_T(board, number, before)
        out[number] = before
"""


THROUGH_MEMORY = """
    if i == 0:
        before = x[number]
        if number > 0:
            number = number + posted_i8(board, number - 1) - 1
            fence()
            before = before + out[number - 1]
        out[number] = before
        fence()
        post_i8(board, number, 1)
"""


def run(body, blocks, dtype=np.float32, board=None):
    """The result of ``body`` on 0, 1, ... and a board."""
    x = np.arange(blocks).astype(dtype)
    out = np.zeros(blocks, dtype)
    board = np.zeros(1 + 4 * blocks, np.uint64) if board is None else board
    pointers = [Pointer(x), Pointer(out), Pointer(board)]
    launch(HEAD + body, "kernel", blocks, 32, [*pointers, blocks])
    return out


@pytest.mark.parametrize("dtype", ["f32", "f64", "i8", "c64"])
def test_what_a_block_posts_those_after_it_find(dtype):
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
        postings_{dtype}x4(board, number % 2, 2, number, values)
        post_{dtype}(board, number, x[number])
        out[number] = values[0] + values[1] + values[2] + values[3]
"""
    kind = {"f32": "f4", "f64": "f8", "i8": "i1", "c64": "c8"}[dtype]
    # Every other place before, and 1 for each of four that is not there.
    assert run(body, 8, kind).tolist() == [4, 4, 3, 4, 4, 6, 7, 10]


def test_what_lies_in_memory_is_there_after_two_fences():
    assert run(THROUGH_MEMORY, 5).tolist() == [0, 1, 3, 6, 10]


def test_a_board_serves_launch_after_launch():
    board = np.zeros(7, np.uint64)
    for turn in range(3):
        out = run(RUNNING.replace("_T", "_f32"), 6, board=board)
        assert out.tolist() == [0, 1, 3, 6, 10, 15]
        assert int(board[0]) == (turn + 1) << 32


def test_blocks_that_run_at_once_wait_for_later_ones():
    body = """
    if i == 0 and number < 3:
        out[number] = posted_f32(board, number + 1)
    if i == 1:
        post_f32(board, number, x[number])
"""
    x, out = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    pointers = [Pointer(x), Pointer(out), Pointer(np.zeros(9, np.uint64))]
    launch(HEAD + body, "kernel", 4, 32, [*pointers, 4], cooperative=True)
    assert out.tolist() == [1, 2, 3, 0]
    with pytest.raises(EmulationError, match="place 1 of argument 2, which no block"):
        launch(HEAD + body, "kernel", 4, 32, [*pointers, 4])


def test_blocks_take_numbers_until_there_are_none():
    text = """
from arrayfn.lowering.cuda.vocabulary import close_board, take, thread_index

def kernel(out, board, count, blocks):
    if thread_index() == 0:
        number = take(board, 1, 2)
        while number < count:
            out[number] = out[number] + 1
            out[number + 1] = out[number + 1] + 2
            number = take(board, 1, 2)
        close_board(board, 1, blocks)
"""
    out, board = np.zeros(10, np.int64), np.zeros(2, np.uint64)
    for turn in range(1, 3):
        launch(text, "kernel", 3, 32, [Pointer(out), Pointer(board), 10, 3])
        assert out.tolist() == [turn, 2 * turn] * 5
        assert board.tolist() == [turn << 32, 0]


def test_a_board_is_opened_before_anything_is_posted():
    text = """
from arrayfn.lowering.cuda.vocabulary import (
    close_board, open_board, post_f32, posted_f32, take, thread_index,
)

def kernel(out, board, count, blocks):
    if thread_index() == 0:
        open_board(board)
        number = take(board, 5, 1)
        while number < count:
            post_f32(board, number, number)
            out[number] = posted_f32(board, number // 2)
            number = take(board, 5, 1)
        close_board(board, 5, blocks)
"""
    out, board = np.zeros(4, np.float32), np.zeros(6, np.uint64)
    pointers = [Pointer(out), Pointer(board)]
    for turn in range(1, 3):
        launch(text, "kernel", 3, 32, [*pointers, 4, 3])
        assert out.tolist() == [0, 0, 1, 1]
        assert board[[0, 5]].tolist() == [turn << 32, 0]
    text = text.replace("        open_board(board)\n", "")
    with pytest.raises(EmulationError, match="before a ticket, or open_board"):
        launch(text, "kernel", 3, 32, [*pointers, 4, 3])


REPORTED = {
    "a value that no block before posts": ("posted_f32(board, 5)", "no block"),
    "a value of an earlier launch": ("posted_f32(board, number)", "no block before"),
    "a place outside": ("posted_f32(board, 100)", "lies outside"),
}


@pytest.mark.parametrize("case", REPORTED)
def test_what_never_comes_is_reported(case):
    value, message = REPORTED[case]
    board = np.zeros(7, np.uint64)
    run(RUNNING.replace("_T", "_f32"), 6, board=board)
    with pytest.raises(EmulationError, match=message):
        run(f"    out[number] = {value}\n", 6, board=board)


def test_of_several_places_the_one_that_never_comes_is_reported():
    body = """
    values = registers_f32(4)
    if i == 0:
        post_f32(board, number, x[number])
        if number == 2:
            postings_f32x4(board, 0, 1, 5, values)
"""
    with pytest.raises(EmulationError, match="block 2 waits for place 3"):
        run(body, 4)


def test_a_place_is_posted_to_once():
    with pytest.raises(EmulationError, match="posted to twice"):
        run("    post_f32(board, 0, x[0])\n", 2)


# A GPU so small that a part is 256 elements of 32 bits.
PARTS = GpuConfig(scan_threads=64, scan_words=2, part_threads=64, most_cluster=0)


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
    assert "ticket(board, blocks)" in kernel.source
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
    ptx = kernel_compiler.compile_ptx(kernel, (8, 0))
    assert "atom.add.relaxed.gpu.global.u64" in ptx
    assert "st.relaxed.gpu.global.u64" in ptx
    assert ".local" not in ptx


# The same with copies into shared memory, by four blocks.
FETCHED = replace(
    PARTS,
    most_cluster=1,
    multiprocessors=2,
    part_blocks=2,
    part_turns=0,
    part_tiles=2,
    max_lanes=4,
)
AHEAD = ["one row", "rows", "a batch", "groups of parts", "rows of groups", "greatest"]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("case", [*AHEAD, "float64", "complex", "product"])
def test_parts_that_are_fetched_ahead_equal_the_reference(case, together):
    program, compiled, x = scanned(case, FETCHED)
    (kernel,) = compiled.kernels
    assert "take(board, counter, 1)" in kernel.source
    if together:  # blocks run side by side, and share the parts
        kernel = replace(kernel, cooperative=True)
        compiled = replace(compiled, kernels=(kernel,))
    (result,) = run_plan(compiled, [x])
    (expected,) = evaluate(program, [x])
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize("together", [False, True])
def test_a_board_is_as_before_when_all_parts_were_fetched(together):
    _, compiled, x = scanned("one row", replace(FETCHED, part_slots=3))
    (kernel,), (step,) = compiled.kernels, compiled.plan.steps
    integers = [a for a in step.arguments if isinstance(a, int)]
    names = [p.name for p in kernel.parameters if p.kind == "i64"]
    board = np.zeros(64, np.uint64)
    for turn in range(1, 4):
        out = np.zeros_like(x)
        pointers = [Pointer(a.reshape(-1)) for a in (x, out, board)]
        shape = kernel.source, kernel.name, step.items, kernel.threads
        launch(*shape, [*pointers, *integers], cooperative=together)
        np.testing.assert_allclose(out, np.cumsum(x, axis=1), rtol=1e-4, atol=1e-4)
        counter = integers[names.index("counter")]
        assert board[[0, counter]].tolist() == [turn << 32, 0]


def test_few_parts_are_not_fetched():
    (kernel,) = scanned("one row", replace(FETCHED, part_turns=2))[1].kernels
    assert "ticket(board, blocks)" in kernel.source


@pytest.mark.parametrize("case", ["backwards", "integers"])
def test_parts_that_are_no_aligned_vectors_are_not_fetched(case):
    (kernel,) = scanned(case, FETCHED)[1].kernels
    assert "ticket(board, blocks)" in kernel.source


@needs_compiler
@pytest.mark.cuda
@pytest.mark.parametrize("case", ["rows of groups", "complex"])
def test_parts_that_are_fetched_ahead_compile_to_ptx(case):
    (kernel,) = scanned(case, FETCHED)[1].kernels
    ptx = kernel_compiler.compile_ptx(kernel, (9, 0))
    assert "cp.async.bulk" in ptx
    assert "ld.relaxed.gpu.global.u64" in ptx
    assert ".local" not in ptx


def test_a_long_row_is_read_twice_of_which_once_from_the_cache():
    x = np.zeros(1 << 20, np.float32)
    (kernel,) = lowered(
        lambda x: anp.cumsum(x, axis=0), x, gpu=GpuConfig(most_cluster=0)
    ).kernels
    assert kernel.source.count("load_f32x4(x_in") == 2
