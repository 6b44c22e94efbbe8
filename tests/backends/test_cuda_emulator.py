"""The kernel emulator: what it computes, and what it reports."""

import numpy as np
import pytest

from arrayfn.backends.cuda.emulator import EmulationError, Pointer, launch
from arrayfn.lowering.cuda.vocabulary import FUNCTIONS

HEAD = """
from arrayfn.lowering.cuda.vocabulary import (
    atomic_add_f32, barrier, block_index, load_f32x4, match_byte, registers_f32,
    shared_f32, shuffle_xor_f32, thread_index, warp_barrier,
)

def kernel(x, out):
    i = thread_index()
"""


def run(body, grid=1, threads=32, x=None):
    x = np.arange(64, dtype=np.float32) if x is None else x
    out = np.full(64, -1, np.float32)
    launch(HEAD + body, "kernel", grid, threads, [Pointer(x), Pointer(out)])
    return out


def test_a_butterfly_gives_every_lane_the_sum():
    out = run("""
    s = x[i]
    for step in range(5):
        s = s + shuffle_xor_f32(s, 16 >> step)
    out[i] = s
""")
    assert out[:32].tolist() == [496.0] * 32


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
    assert out[:9].tolist() == [3.0, 7.0, 11.0, 15.0, 19.0, 23.0, 27.0, 31.0, 0.0]


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


def test_outside_an_emulator_device_functions_say_where_they_run():
    with pytest.raises(RuntimeError, match="thread_index acts for one thread"):
        FUNCTIONS["thread_index"]()


def test_lanes_find_those_with_the_same_byte():
    out = run("""
    out[i] = match_byte(i % 3 + 256 * i) & 1023
""")
    assert out[:3].tolist() == [585.0, 146.0, 292.0]


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
    atomic_add_f32(total, i % 2, x[i])
    barrier()
    if i < 2:
        atomic_add_f32(out, 0, total[i])
""",
        grid=2,
    )
    assert out[0] == 2 * 496.0 - 1
