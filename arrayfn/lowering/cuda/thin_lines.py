"""Products of a few rows and a large matrix that lies along what is summed over.

``c[m, n] = a[m, k] @ b[n, k].T``. Each warp of a block has some lines of ``b``, and
goes along them: a lane multiplies four neighbouring elements of each with those of all
rows of ``a``. Its lines come to its own part of shared memory, the rows of ``a`` to one
that all warps read, some steps ahead. At the end lanes add up what they have, then the
blocks of a cluster, which share the lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.cuda.written import Written, indented

_LANES: Final = 4  # elements of a line that a lane has at a time: 128 bits
_STEP: Final = WARP * _LANES


@dataclass(frozen=True, slots=True)
class LinesTile:
    """How a kernel of up to ``rows`` rows is cut: ``lines`` are of a warp."""

    rows: int
    lines: int = 4
    warps: int = 8
    stages: int = 4
    cluster: int = 2

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.warps * WARP

    @property
    def columns(self) -> int:
        """Of a block: its warps' lines of b."""
        return self.warps * self.lines

    @property
    def share(self) -> int:
        """The sums that a block of a cluster makes of what the others have."""
        return self.rows * self.columns // self.cluster

    def part(self, k: int) -> int:
        """The elements of a line, of ``k``, that a block has."""
        return -(-k // (self.cluster * _STEP)) * _STEP

    def blocks(self, n: int) -> int:
        """For ``n`` columns."""
        return -(-n // self.columns) * self.cluster


def lines_text(tile: LinesTile) -> Written:
    """The kernel."""
    rows, lines, stages, threads = tile.rows, tile.lines, tile.stages, tile.threads
    own = rows * lines  # sums of a warp
    b_words, a_words = lines * _STEP, rows * _STEP  # of a step
    ring = tile.warps * stages
    body = f"""
thread = thread_index()
lane = remainder(thread, {WARP})
warp = quotient(thread, {WARP})
rank = remainder(block_index(), {tile.cluster})
strip = quotient(block_index(), {tile.cluster}) * {tile.columns}
across = lane * {_LANES}
first = rank * part
end = min_i64(first + part, k)
signals = signals_i64(1)
if thread == 0:
    signal_init(signals, 0)
    expect(signals, 0, {rows * tile.columns * 4})
cluster_arrive()
b_steps = arena_f32(0, {ring * b_words})
a_steps = arena_f32({ring * b_words * 4}, {stages * a_words})
held = shared_f32({rows * tile.columns})
received = shared_f32({rows * tile.columns})
near = registers_f32({_LANES})
b_lines = registers_f32({lines * _LANES})
sums = registers_f32({own})
for i in unrolled({own}):
    sums[i] = f32(0)
for slot in range({stages - 1}):
    step = slot + 0
    begin = first + slot * {_STEP}
{_fetched(tile, 1)}
slot = i64(0)
for now in range(first, first + part, {_STEP}):
    await_copies({stages - 2})
    barrier()
    step = remainder(slot + {stages - 1}, {stages})
    begin = now + {(stages - 1) * _STEP}
{_fetched(tile, 1)}
    own = (warp * {stages} + slot) * {b_words} + across
    for i in unrolled({lines}):
        load_f32x4(b_steps, own + i * {_STEP}, b_lines, i * {_LANES})
    for m in unrolled({rows}):
        load_f32x4(a_steps, slot * {a_words} + m * {_STEP} + across, near, 0)
        for j in unrolled({_LANES}):
            for i in unrolled({lines}):
                sum = sums[m * {lines} + i]
                sums[m * {lines} + i] = fma_f32(near[j], b_lines[i * 4 + j], sum)
    slot = remainder(slot + 1, {stages})
for i in unrolled({own}):
    sum = sums[i]
    for step in unrolled(5):
        sum = sum + shuffle_xor_f32(sum, 16 >> step)
    if lane == 0:
        held[warp * {own} + i] = sum
cluster_wait()
barrier()
for at in range(thread, {rows * tile.columns}, {threads}):
    target = rank * {tile.share} + remainder(at, {tile.share})
    send_f32(received, target, held[at], quotient(at, {tile.share}), signals, 0)
await_signal(signals, 0, 0)
for at in range(thread, {tile.share}, {threads}):
    sum = received[at]
    for other in range(1, {tile.cluster}):
        sum = sum + received[other * {tile.share} + at]
    number = rank * {tile.share} + at
    place = remainder(number, {own})
    row = quotient(place, {lines})
    column = strip + quotient(number, {own}) * {lines} + remainder(place, {lines})
    if row < rows and column < n:
        c_out[row * ldc + column] = sum
"""
    return Written(
        "thin",
        body,
        ("a_in", "b_in", "c_out"),
        ("rows", "n", "k", "lda", "ldb", "ldc", "part"),
        threads,
        f"c = a @ b.T, where a has up to {rows} rows: b is read once.",
        "a product of few rows, which takes as long as its matrix takes to read",
        shared=4 * (ring * b_words + stages * a_words),
        cluster=tile.cluster,
    )


def _fetched(tile: LinesTile, levels: int) -> str:
    """Begins to copy what belongs to ``step``: from ``begin`` on, or zeros."""
    text = f"""live = select_i64(begin + across < end, 1, 0)
for i in unrolled({tile.lines}):
    line = min_i64(strip + warp * {tile.lines} + i, n - 1)
    target = ((warp * {tile.stages} + step) * {tile.lines} + i) * {_STEP} + across
    copy_f32x4(b_in, line * ldb + begin + across, b_steps, target, live)
for at in range(warp, {tile.rows}, {tile.warps}):
    source = min_i64(at, rows - 1) * lda + begin + across
    target = (step * {tile.rows} + at) * {_STEP} + across
    copy_f32x4(a_in, source, a_steps, target, live)
close_copies()"""
    return indented(text, levels)
