"""Products of a few rows and a large matrix: the kernel that reads the matrix once.

``c[m, n] = a[m, k] @ b[k, n]`` with few rows of ``a`` takes as long as ``b`` takes to
read. Each lane of a warp has four neighbouring columns of ``b``, whose products with
all rows of ``a`` it adds up in registers; the warps of a block take rows of ``b`` by
turns, four at a time, and the blocks of a cluster have a part of them each. What they
have is added up in the order of warps, then of blocks. All that a warp reads is copied
to its own part of shared memory, some steps ahead: warps wait for no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from arrayfn.lowering.cuda.config import GpuConfig
from arrayfn.lowering.cuda.schedule import power_of_two
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.cuda.written import Written, WrittenCall, indented
from arrayfn.lowering.libraries.calls import LibraryCall

_LANES: Final = 4  # columns of a lane, and rows of b of a step: vectors of 128 bits
_COLUMNS: Final = WARP * _LANES
_SUMMED: Final = 4  # rows of the result that a block's warps combine at a time
_BLOCKS: Final = 2  # of a multiprocessor
_FEWEST: Final = 2  # rows: of one the library makes as much


@dataclass(frozen=True, slots=True)
class ThinTile:
    """How a kernel of up to ``rows`` rows is cut.

    A block's ``warps`` have the same columns, and so have the blocks of a ``cluster``.
    What a warp multiplies is one of ``stages`` steps that are on their way to it. Many
    rows are shared by the ``halves`` of a warp: each loads fewer, for more columns.
    """

    rows: int
    warps: int = 8
    stages: int = 4
    cluster: int = 8
    halves: int = 1

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.warps * WARP

    @property
    def step(self) -> int:
        """The rows of b that the warps take at a time."""
        return self.warps * _LANES

    @property
    def share(self) -> int:
        """The sums that a block of a cluster makes of what the others have."""
        return self.rows * _COLUMNS // self.cluster

    def part(self, k: int) -> int:
        """The rows of b, of ``k``, that a block has."""
        return -(-k // (self.cluster * self.step)) * self.step

    def blocks(self, n: int) -> int:
        """For ``n`` columns."""
        return -(-n // _COLUMNS) * self.cluster


def thin_product(call: LibraryCall, gpu: GpuConfig) -> WrittenCall | None:
    """The kernel's launch for the product ``call``; None where the library is to do it.

    That is if there are many rows, or they are no vectors.
    """
    p = call.integers
    m, n, k = p["m"], p["n"], p["k"]
    a, b, c = call.reads["a"], call.reads["b"], call.writes["c"]
    size = a.array.type.dtype.itemsize
    starts = (a.offset, b.offset, p["lda"], p["ldb"], n)
    if (
        call.provider != "gemm_f32"
        or p["batch"] != 1
        or p["transpose_a"]
        or p["transpose_b"]
        or not _FEWEST <= m <= gpu.thin_rows
        or gpu.most_cluster < 2
        or k % _LANES
        or any(start * size % 16 for start in starts)
        or n * k * size < gpu.thin_bytes
    ):
        return None
    tile = tile_for(m, n, gpu)
    integers = [m, n, k, p["lda"], p["ldb"], p["ldc"], tile.part(k)]
    return WrittenCall(thin_text(tile), [a, b], [c], integers, tile.blocks(n))


def tile_for(m: int, n: int, gpu: GpuConfig) -> ThinTile:
    """As many blocks as the multiprocessors have at a time, but at least two."""
    strips, cluster = -(-n // _COLUMNS), gpu.most_cluster
    while cluster > 2 and strips * cluster > _BLOCKS * gpu.multiprocessors:
        cluster //= 2
    rows = power_of_two(m)
    return ThinTile(rows, cluster=cluster, halves=2 if rows > 8 else 1)


def thin_text(tile: ThinTile) -> Written:
    """The kernel."""
    rows, warps, stages, threads = tile.rows, tile.warps, tile.stages, tile.threads
    halves, side = tile.halves, _COLUMNS // tile.halves  # columns beside each other
    of_lane = rows // halves
    summed = min(rows, _SUMMED)
    held, each = summed * _COLUMNS, summed // halves
    b_words, a_words = _LANES * _COLUMNS, rows * _LANES  # of a step
    ring = warps * stages
    body = f"""
thread = thread_index()
lane = remainder(thread, {WARP})
warp = quotient(thread, {WARP})
rank = remainder(block_index(), {tile.cluster})
strip = quotient(block_index(), {tile.cluster}) * {_COLUMNS}
copied = lane * {_LANES}
column = min_i64(strip + copied, n - {_LANES})
a_row = min_i64(lane, rows - 1)
half = quotient(lane, {WARP // halves})
across = remainder(lane, {WARP // halves}) * {_LANES}
first = rank * part
end = min_i64(first + part, k)
signals = signals_i64(1)
if thread == 0:
    signal_init(signals, 0)
    expect(signals, 0, {rows * _COLUMNS * 4})
cluster_arrive()
b_steps = arena_f32(0, {ring * b_words})
a_steps = arena_f32({ring * b_words * 4}, {ring * a_words})
held = arena_f32(0, {warps * held})
received = shared_f32({rows * _COLUMNS})
near = registers_f32({_LANES})
b_rows = registers_f32({_LANES * _LANES * halves})
sums = registers_f32({of_lane * _LANES * halves})
for i in unrolled({of_lane * _LANES * halves}):
    sums[i] = f32(0)
own = warp * {stages}
row = first + warp * {_LANES}
for slot in range({stages - 1}):
    step = own + slot
    from_row = row + slot * {tile.step}
{_fetched(tile, 1)}
slot = i64(0)
for row in range(first + warp * {_LANES}, first + part, {tile.step}):
    await_copies({stages - 2})
    warp_barrier()
    step = own + remainder(slot + {stages - 1}, {stages})
    from_row = row + {(stages - 1) * tile.step}
{_fetched(tile, 1)}
    place = (own + slot) * {b_words} + across
    for i in unrolled({_LANES * halves}):
        load_f32x4(b_steps, place + i * {side}, b_rows, i * {_LANES})
    place = (own + slot) * {a_words} + half * {of_lane * _LANES}
    for m in unrolled({of_lane}):
        load_f32x4(a_steps, place + m * {_LANES}, near, 0)
        for i in unrolled({_LANES}):
            for j in unrolled({_LANES * halves}):
                sum = sums[m * {_LANES * halves} + j]
                b = b_rows[i * {_LANES * halves} + j]
                sums[m * {_LANES * halves} + j] = fma_f32(near[i], b, sum)
    slot = remainder(slot + 1, {stages})
await_copies(0)
barrier()
cluster_wait()
for group in unrolled({rows // summed}):
    for i in unrolled({summed}):
        at = (half * {each} + i // {halves}) * {_COLUMNS} + i % {halves} * {side}
        at = warp * {held} + at + across
        store_f32x4(held, at, sums, (group * {summed} + i) * {_LANES})
    barrier()
    for at in range(thread, {held}, {threads}):
        sum = held[at]
        for other in range(1, {warps}):
            sum = sum + held[other * {held} + at]
        line = quotient(at, {_COLUMNS})
        m = quotient(line, {each}) * {of_lane} + remainder(line, {each})
        number = (group * {each} + m) * {_COLUMNS} + remainder(at, {_COLUMNS})
        owner = quotient(number, {tile.share})
        target = rank * {tile.share} + remainder(number, {tile.share})
        send_f32(received, target, sum, owner, signals, 0)
    barrier()
await_signal(signals, 0, 0)
for at in range(thread, {tile.share}, {threads}):
    sum = received[at]
    for other in range(1, {tile.cluster}):
        sum = sum + received[other * {tile.share} + at]
    number = rank * {tile.share} + at
    m = quotient(number, {_COLUMNS})
    column = strip + remainder(number, {_COLUMNS})
    if m < rows and column < n:
        c_out[m * ldc + column] = sum
"""
    return Written(
        "thin",
        body,
        ("a_in", "b_in", "c_out"),
        ("rows", "n", "k", "lda", "ldb", "ldc", "part"),
        threads,
        f"c = a @ b, where a has up to {rows} rows: b is read once.",
        "a product of few rows, which takes as long as its matrix takes to read",
        shared=4 * max(ring * (b_words + a_words), warps * held),
        together=_BLOCKS,
        cluster=tile.cluster,
    )


def _fetched(tile: ThinTile, levels: int) -> str:
    """Begins to copy what belongs to ``step``: rows ``from_row`` on, or zeros."""
    text = f"""live = select_i64(from_row < end, 1, 0)
for i in unrolled({_LANES}):
    source = (from_row + i) * ldb + column
    target = step * {_LANES * _COLUMNS} + i * {_COLUMNS} + copied
    copy_f32x4(b_in, source, b_steps, target, live)
if lane < {tile.rows}:
    target = step * {tile.rows * _LANES} + copied
    copy_f32x4(a_in, a_row * lda + from_row, a_steps, target, live)
close_copies()"""
    return indented(text, levels)
