"""Products of matrices by a warp, and copies of threads, as the emulator does them."""

import numpy as np
import pytest

from arrayfn import dtypes
from arrayfn.backends.cuda import missing_packages
from arrayfn.backends.cuda.emulator import EmulationError, Pointer, launch
from arrayfn.lowering.plan import Kernel, Parameter

HEAD = """
from arrayfn.lowering.cuda.vocabulary import (
    approximate_exp2_f32, approximate_exp_f32, approximate_rsqrt_f32, barrier,
    cp_async_commit, cp_async_u16x8, cp_async_wait, ldmatrix_trans_u16, ldmatrix_u16,
    max_bf16x4, min_bf16x4, mma_bf16, mma_f16, pack_f16, quotient, registers_f32,
    registers_u16, registers_u8, remainder, shared_u16, store_bf16x2, thread_index,
    transpose_u16x2, transpose_u8x4, widen_bf16x2, widen_f16x2,
)

def kernel(x, y, out):
    lane = thread_index()
"""


def run(body, x, y=None, size=128):
    out = np.zeros(size, np.float32)
    bits = [Pointer(a.reshape(-1).view(np.uint16)) for a in (x, x if y is None else y)]
    launch(HEAD + body, "kernel", 1, 32, [*bits, Pointer(out)])
    return out


PRODUCT = """
    a_tile = shared_u16(16 * 24)
    b_tile = shared_u16({columns} * 24)
    for at in range(lane, 32, 32):
        to = quotient(at, 2) * 24 + remainder(at, 2) * 8
        cp_async_u16x8(x, at * 8, a_tile, to, 1)
        cp_async_u16x8(y, at * 8, b_tile, {b_place}, 1)
    cp_async_commit()
    cp_async_wait(0)
    barrier()
    a = registers_u16(8)
    b = registers_u16(8)
    sums = registers_f32(8)
    for k in range(8):
        sums[k] = 0.0
    row = remainder(lane, 16)
    ldmatrix_u16(a_tile, row * 24 + quotient(lane, 16) * 8, a, 0)
    {load_b}
    mma_{dtype}(sums, 0, a, 0, b, 0)
    mma_{dtype}(sums, 4, a, 0, b, 4)
    for k in range(8):
        column = quotient(k, 4) * 8 + remainder(lane, 4) * 2 + remainder(k, 2)
        line = quotient(lane, 4) + remainder(quotient(k, 2), 2) * 8
        out[line * 16 + column] = sums[k]
"""
ROWS = (
    "place = (remainder(lane, 8) + quotient(lane, 16) * 8) * 24\n"
    "    place = place + remainder(quotient(lane, 8), 2) * 8\n"
    "    ldmatrix_u16(b_tile, place, b, 0)"
)
COLUMNS = "ldmatrix_trans_u16(b_tile, row * 24 + quotient(lane, 16) * 8, b, 0)"
PLACE = "quotient(at, 2) * 24 + remainder(at, 2) * 8"


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_warp_multiplies_matrices_of_16_by_16(dtype, transposed):
    kind = dtypes.float16 if dtype == "f16" else dtypes.bfloat16
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((16, 16)).astype(kind) for _ in range(2))
    body = PRODUCT.format(
        columns=16, b_place=PLACE, dtype=dtype, load_b=COLUMNS if transposed else ROWS
    )
    wide_a, wide_b = (x.astype(np.float32) for x in (a, b))
    expected = wide_a @ (wide_b if transposed else wide_b.T)
    result = run(body, a, b, 256).reshape(16, 16)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_values_are_rounded_in_pairs_and_powers_of_two_are_taken():
    out = run(
        """
    pair = registers_u16(2)
    pack_f16(1.0, 0.1, pair, 0)
    out[lane * 2] = pair[0]
    out[lane * 2 + 1] = approximate_exp2_f32(-3.0 if lane else -140.0)
    out[lane + 64] = approximate_rsqrt_f32(16.0)
""",
        np.zeros(1, np.float16),
    )
    assert out[0] == np.float16(1.0).view(np.uint16)
    assert out[1] == 0.0  # no subnormal numbers
    assert out[3] == 0.125
    assert out[64] == 0.25


def test_halves_are_widened_and_rounded_in_vectors():
    x = np.array([1.5, -0.1], dtypes.bfloat16)
    body = """
    pair, wide = registers_u16(2), registers_f32(4)
    pair[0], pair[1] = x[0], x[1]
    widen_{dtype}x2(pair, 0, wide, 2)
    if lane == 0:
        out[0], out[1] = wide[2], wide[3]
        wide[3] = 0.1
        store_bf16x2(y, 0, wide, 2)
    """
    y = np.zeros(2, dtypes.bfloat16)
    np.testing.assert_array_equal(run(body.format(dtype="bf16"), x, y)[:2], x)
    np.testing.assert_array_equal(y, np.array([1.5, 0.1], dtypes.bfloat16))
    x = np.array([1.5, -0.1], np.float16)
    np.testing.assert_array_equal(run(body.format(dtype="f16"), x, y)[:2], x)


@pytest.mark.parametrize(("word", "lanes"), [("u8", 4), ("u16", 2)])
def test_words_of_elements_are_turned_in_registers(word, lanes):
    body = f"""
    tile = registers_{word}({lanes * lanes + 1})
    for k in range({lanes * lanes}):
        tile[1 + k] = k
    transpose_{word}x{lanes}(tile, 1)
    for k in range({lanes * lanes}):
        out[lane * {lanes * lanes} + k] = tile[1 + k]
    """
    out = run(body, np.zeros(1, np.float16), size=32 * lanes * lanes)
    expected = np.arange(lanes * lanes).reshape(lanes, lanes).T
    np.testing.assert_array_equal(out[-lanes * lanes :], expected.ravel())


@pytest.mark.parametrize("last", [4.0, np.nan])
def test_extremes_of_halves_and_of_what_was_found_before(last):
    x = np.array([1.5, -2.0, 0.5, last], dtypes.bfloat16)
    body = """
    tile = registers_u16(4)
    for k in range(4):
        tile[k] = x[k]
    out[lane * 2] = max_bf16x4(tile, 0, -9.0 + lane)
    out[lane * 2 + 1] = min_bf16x4(tile, 0, -9.0 + lane)
    """
    out = run(body, x)
    np.testing.assert_array_equal(out[:2], [last, np.nan if np.isnan(last) else -9.0])
    expected = [np.nan, np.nan] if np.isnan(last) else [22.0, -2.0]
    np.testing.assert_array_equal(out[62:64], expected)


def test_an_approximate_exponential_has_more_than_the_bits_of_halves():
    points = np.linspace(-80, 80, 32, dtype=np.float32)
    listed = ", ".join(map(repr, points.tolist()))
    out = run(f"    out[lane] = approximate_exp_f32([{listed}][lane])", points)
    np.testing.assert_allclose(out[:32], np.exp(points, dtype=float), rtol=2.0**-17)


COPY = """
    tile = shared_u16(256)
    cp_async_u16x8(x, lane * 8, tile, lane * 8, quotient(lane, 16))
    cp_async_commit()
    {wait}
    out[lane] = tile[{at}]
"""


def test_copies_are_there_after_their_wait_and_zeros_where_they_are_not_live():
    x = np.arange(256, dtype=np.uint16)
    wait = "cp_async_wait(0)\n    barrier()"
    out = run(COPY.format(wait=wait, at="255 - lane"), x, size=32)
    np.testing.assert_array_equal(out[:16], x[:239:-1])
    out = run(COPY.format(wait=wait, at="lane"), x, size=32)
    np.testing.assert_array_equal(out, np.zeros(32))
    early = run(COPY.format(wait="cp_async_wait(1)", at="lane * 8"), x, size=32)
    np.testing.assert_array_equal(early, np.full(32, 65535))  # still under way


def test_copies_without_a_barrier_are_a_race():
    x = np.arange(256, dtype=np.uint16)
    # Each thread runs until they meet: a later one finds what an earlier one did.
    with pytest.raises(EmulationError, match="is copied to while thread 15"):
        run(COPY.format(wait="cp_async_wait(0)", at="255 - lane * 8"), x, size=32)
    with pytest.raises(EmulationError, match="race"):
        run(
            COPY.format(wait="cp_async_wait(0)", at="quotient(lane, 2) * 8"), x, size=32
        )
    body = COPY.format(wait="cp_async_wait(0)\n    barrier()", at="lane")
    again = "    cp_async_u16x8(x, 0, tile, 8 * (31 - lane), 1)\n"
    with pytest.raises(EmulationError, match="is copied to while thread"):
        run(body + again, x, size=32)


LOOPS = """
from arrayfn.lowering.cuda.vocabulary import shuffle_xor_f32, thread_index, unrolled

def kernel(x, n):
    s = x[thread_index()]
    for j in range(n):
        for k in unrolled(300):
            s = s * s + shuffle_xor_f32(s, 1)
            if k == 7:
                s = s + s
    x[thread_index()] = s
"""


@pytest.mark.skipif(bool(missing_packages()), reason=missing_packages())
def test_unrolled_loops_are_written_out():
    kernel_ptx = pytest.importorskip("arrayfn.backends.cuda.code").kernel_ptx
    parameters = Parameter("x", "f32*"), Parameter("n", "i64")
    kernel = Kernel("kernel", LOOPS, LOOPS, parameters, threads=32)
    assert kernel_ptx(kernel, (8, 0)).count("shfl.sync") == 300
    x = np.ones(32, np.float32)
    launch(LOOPS, "kernel", 1, 32, [Pointer(x), 0])
    assert x.tolist() == [1.0] * 32
