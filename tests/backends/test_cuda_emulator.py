"""The kernel emulator: what it computes, and what it reports."""

from dataclasses import replace

import numpy as np
import pytest

from arrayfn.backends.cuda.code import with_neutral_name
from arrayfn.backends.cuda.emulator import EmulationError, Pointer, launch
from arrayfn.backends.cuda.emulator.names import unassigned_names
from arrayfn.backends.cuda.emulator.plan import checked, run_plan
from arrayfn.backends.cuda.requirements import missing_packages
from arrayfn.lowering.cuda.vocabulary import FUNCTIONS
from tests.lowered_on_gpu import lowered

HEAD = """
from arrayfn.lowering.cuda.vocabulary import (
    atomic_add_f32, ballot, barrier, block_index, byte_i64, cluster_arrive,
    cluster_wait, divide_f32, divides_f32, dsmem_store_f32, inverse_f32, load_f32x4,
    match_any_byte, match_any_u32, mbarrier_expect_tx, mbarrier_init, mbarrier_wait,
    mbarriers_i64, registers_f32, shared_f32, shuffle_from_f32, shuffle_xor_f32,
    thread_index, warp_barrier,
)

def kernel(x, out):
    i = thread_index()
"""


def run(body, grid=1, threads=32, x=None, cluster=1):
    x = np.arange(64, dtype=np.float32) if x is None else x
    out = np.full(64, -1, np.float32)
    launch(HEAD + body, "kernel", grid, threads, [Pointer(x), Pointer(out)], cluster)
    return out


def test_a_butterfly_gives_every_lane_the_sum():
    out = run("""
    s = x[i]
    for step in range(5):
        s = s + shuffle_xor_f32(s, 16 >> step)
    out[i] = s
""")
    assert out[:32].tolist() == [496.0] * 32


def test_lanes_vote_and_find_those_with_the_same_word():
    out = run("""
    out[i] = ballot(x[i] > 28)
    out[i + 32] = match_any_u32(1000 * (i // 3)) & 255
""")
    assert out[:32].tolist() == [float(np.float32(0xE0000000 - 2**32))] * 32
    assert out[32:40].tolist() == [7, 7, 7, 56, 56, 56, 192, 192]


def test_shared_memory_is_of_the_block():
    out = run(
        """
    line = shared_f32(32)
    line[i] = x[block_index() * 32 + i]
    barrier()
    out[block_index() * 32 + i] = line[31 - i]
""",
        grid=2,
    )
    assert out[:3].tolist() == [31.0, 30.0, 29.0]
    assert out[32:35].tolist() == [63.0, 62.0, 61.0]


def test_registers_are_of_the_thread():
    out = run("""
    tile = registers_f32(4)
    if i < 8:
        load_f32x4(x, i * 4, tile, 0)
    out[i] = tile[3]
""")
    assert out[:8].tolist() == [3.0, 7.0, 11.0, 15.0, 19.0, 23.0, 27.0, 31.0]
    assert np.isnan(out[8])  # nothing is written there


REPORTED = {
    "a race between warps": (
        """
    line = shared_f32(64)
    line[i] = x[i]
    warp_barrier()
    out[i] = line[(i + 33) % 64]
""",
        "threads .* race for shared",
    ),
    "an addition to what is read": (
        """
    line = shared_f32(1)
    atomic_add_f32(line, 0, x[i])
    out[i] = line[0]
""",
        "threads .* race for shared",
    ),
    "a write to what is added to": (
        """
    atomic_add_f32(out, 0, x[i])
    if i == 3:
        out[0] = x[i]
""",
        "both written and added to",
    ),
    "a race for shared memory": (
        """
    line = shared_f32(32)
    line[i] = x[i]
    out[i] = line[31 - i]
""",
        "threads .* race for shared",
    ),
    "a write after a read": (
        """
    line = shared_f32(32)
    line[i] = x[i]
    barrier()
    out[i] = line[31 - i]
    line[i] = x[i]
""",
        "race for shared",
    ),
    "a divergent barrier": (
        """
    if i < 16:
        barrier()
""",
        "part at a barrier: .*done",
    ),
    "lanes that part": (
        """
    if i < 16:
        out[i] = shuffle_xor_f32(x[i], 1)
""",
        "lanes of a warp part",
    ),
    "a place outside": (
        """
    out[i + 40] = x[i]
""",
        r"argument 1\[64\] lies outside the 64 elements",
    ),
    "two writers": (
        """
    out[i // 2] = x[i]
""",
        r"both write argument 1\[0\]",
    ),
    "a vector off its alignment": (
        """
    tile = registers_f32(4)
    load_f32x4(x, i, tile, 0)
""",
        "is not aligned",
    ),
}


@pytest.mark.parametrize("what", REPORTED)
def test_what_is_undefined_is_reported(what):
    body, message = REPORTED[what]
    with pytest.raises(EmulationError, match=message):
        run(body, threads=64 if "warps" in what else 32)


def test_a_barrier_stands_between_two_writers_of_a_block():
    out = run("""
    out[i] = x[i]
    barrier()
    out[31 - i] = x[i]
""")
    assert out[:3].tolist() == [31.0, 30.0, 29.0]


def test_outside_an_emulator_device_functions_say_where_they_run():
    with pytest.raises(RuntimeError, match="thread_index acts for one thread"):
        FUNCTIONS["thread_index"]()


def test_lanes_find_those_with_the_same_byte():
    out = run("""
    out[i] = match_any_byte(i % 3 + 256 * i) & 1023
""")
    assert out[:3].tolist() == [585.0, 146.0, 292.0]


def test_a_byte_of_a_word_begins_at_any_bit():
    out = run("""
    out[i] = byte_i64(-256 - i, 8 * (i % 8))
""")
    assert out[:9].tolist() == [0.0, 254.0, *[255.0] * 6, 248.0]


def test_a_barrier_of_the_warp_stands_between_its_threads():
    out = run(
        """
    line = shared_f32(64)
    line[i] = x[i]
    warp_barrier()
    out[i] = line[i ^ 31]
""",
        threads=64,
    )
    assert out[:2].tolist() == [31.0, 30.0]
    assert out[32:34].tolist() == [63.0, 62.0]


def test_threads_add_to_the_same_element():
    out = run(
        """
    total = shared_f32(2)
    if i < 2:
        total[i] = 0.0
    barrier()
    atomic_add_f32(total, i % 2, x[i])
    barrier()
    if i < 2:
        atomic_add_f32(out, 0, total[i])
""",
        grid=2,
    )
    assert out[0] == 2 * 496.0 - 1


def test_a_lane_reads_another_by_its_number():
    out = run("    out[i] = shuffle_from_f32(x[i], 5)")
    assert out[:32].tolist() == [5.0] * 32


def test_a_division_by_an_inverse_says_where_it_is_exact():
    x = np.float32([3, 1e-30, 1e30, 7] * 16)
    out = run(
        """
    y = x[3]
    out[i] = divide_f32(x[i], y, inverse_f32(y)) if divides_f32(x[i], x[i], y) else -1
""",
        x=x,
    )
    assert out[:4].tolist() == [np.float32(3) / np.float32(7), -1.0, -1.0, 1.0]


EXCHANGE = """
    mbarriers = mbarriers_i64(1)
    if i == 0:
        mbarrier_init(mbarriers, 1)
        mbarrier_expect_tx(mbarriers, 0, {expected})
    line = shared_f32(2)
    cluster_arrive()
    {wait}
    if i < {sent}:
        dsmem_store_f32(line, block_index(), x[block_index()] + 1, i, mbarriers, 0)
    mbarrier_wait(mbarriers, 0, 0)
    out[block_index() * 32 + i] = line[0] * 10 + line[1]
"""


def exchanged(expected=8, sent=2, wait="cluster_wait()"):
    body = EXCHANGE.format(expected=expected, sent=sent, wait=wait)
    return run(body, grid=2, cluster=2)


def test_blocks_of_a_cluster_send_to_each_other():
    assert exchanged().tolist() == [12.0] * 64


def test_an_mbarrier_that_waits_for_too_much_never_comes():
    with pytest.raises(EmulationError, match="of block 1 never completes: 0 bytes"):
        exchanged(sent=1)


def test_an_mbarrier_that_counts_too_much_is_of_its_next_phase():
    with pytest.raises(EmulationError, match="counts 8 bytes where 4 are expected"):
        exchanged(expected=4)


def test_who_sends_knows_that_the_other_block_runs():
    with pytest.raises(EmulationError, match="no cluster_wait stands before"):
        exchanged(wait="pass")


UNASSIGNED = {
    "a branch": ("if n > 3:\n    y = x[0]\nout[0] = y", ["y at line 4"]),
    "the same condition": ("if n > 3:\n    y = x[0]\nif n > 3:\n    out[0] = y", []),
    "a condition of another value": (
        "if n > 3:\n    y = x[0]\nn = n + 1\nif n > 3:\n    out[0] = y",
        ["y at line 6"],
    ),
    "both branches": ("if n > 3:\n    y = 1\nelse:\n    y = 2\nout[0] = y", []),
    "a loop that may not run": (
        "for k in range(n):\n    y = k\nout[0] = y",
        ["y at line 4"],
    ),
    "a loop that runs": ("for k in range(2):\n    y = k\nout[k] = y", []),
    "a name that is never there": (
        "if n < 0:\n    out[0] = thread",
        ["thread at line 3"],
    ),
    "a sum that begins nowhere": (
        "for k in range(4):\n    y += x[k]",
        ["y at line 3"],
    ),
    "the last iteration's value": (
        "for k in range(4):\n    out[k] = y\n    y = x[k]",
        ["y at line 3"],
    ),
}


@pytest.mark.parametrize("what", UNASSIGNED)
def test_names_that_some_path_does_not_assign(what):
    body, found = UNASSIGNED[what]
    lines = body.replace("\n", "\n    ")
    assert unassigned_names(f"def kernel(x, out, n):\n    {lines}\n") == found


def changed(old, new):
    """A kernel that doubles a vector, generated with one text in another's place."""
    (kernel,) = lowered(lambda x: x + x, np.ones(5, np.float16)).kernels
    assert old in kernel.key
    return replace(kernel, key=kernel.key.replace(old, new))


@pytest.mark.skipif(bool(missing_packages()), reason=missing_packages())
def test_a_kernel_that_stores_another_type_is_an_error():
    with pytest.raises(
        EmulationError, match="elementwise_0 does not compile: line 10: p1"
    ):
        checked(changed("convert_f32_f16(", "("))


def test_a_kernel_without_one_of_its_names_is_an_error():
    with pytest.raises(EmulationError, match="elementwise_0 reads what may not be as"):
        checked(changed("thread_index()", "thread"))


def test_a_replaced_kernel_is_compiled_by_its_own_text():
    (kernel,) = lowered(lambda x: x + x, np.ones(5, np.float32)).kernels
    kernel = replace(kernel, key=kernel.source)
    made = with_neutral_name(kernel)
    assert made.name == "kernel"
    assert "def kernel(x_in, a_out" in made.source
    assert made.source.count("elementwise_0") == 1  # in the title


def in_place(body, threads=32):
    """``body``, whose result lies where its operand does."""
    x = np.arange(64, dtype=np.float32)
    launch(HEAD + body, "kernel", 1, threads, [Pointer(x), Pointer(x)])
    return x


@pytest.mark.parametrize("threads", [32, 64])
def test_a_result_over_what_other_threads_read_is_reported(threads):
    with pytest.raises(EmulationError, match="is read by one thread and written by an"):
        in_place(f"    out[i] = x[{threads - 1} - i]", threads)


def test_a_result_over_what_has_been_read_by_then():
    assert in_place("    out[i] = x[i] + 1")[:3].tolist() == [1.0, 2.0, 3.0]
    body = "    y = x[31 - i]\n    barrier()\n    out[i] = y"
    assert in_place(body)[:3].tolist() == [31.0, 30.0, 29.0]


def test_what_a_library_reads_is_checked() -> None:
    x = np.ones((4, 5), np.float32)
    compiled = lowered(lambda x: x @ x.T, x)
    (call,) = compiled.plan.steps
    names = [p.name for p in compiled.kernels[0].parameters]
    arguments = list(call.arguments)
    arguments[names.index("lda")] = 6
    plan = replace(compiled.plan, steps=(replace(call, arguments=tuple(arguments)),))
    with pytest.raises(
        EmulationError, match=r"a has \d+ elements, and 0 to 22 are accessed"
    ):
        run_plan(replace(compiled, plan=plan), [x])
