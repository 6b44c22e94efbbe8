"""Products of few rows and a large matrix that lies across what is summed over.

``c[m, n] = a[m, k] @ b[k, n]``. Each lane of a warp has four neighbouring columns of
``b``, whose products with all rows of ``a`` it adds up in registers. The warps of a
block take rows of ``b`` by turns, four at a time, and what they have is added up in the
order of warps. All that a warp multiplies comes to its own part of shared memory:
warps wait for no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from arrayfn.lowering.cuda.thin_tiles import LANES, ThinTile
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.cuda.written import Written, indented

_COLUMNS: Final = WARP * LANES


@dataclass(frozen=True, slots=True)
class ColumnsTile(ThinTile):
    """Many rows are shared by the ``halves`` of a warp, each with fewer rows."""

    halves: int = 1

    @property
    def columns(self) -> int:
        """Of a block, and of each of its warps."""
        return _COLUMNS

    @property
    def step(self) -> int:
        """The rows of b that the warps take at a time."""
        return self.warps * LANES


def columns_text(tile: ColumnsTile) -> Written:
    """The kernel."""
    rows, warps, stages = tile.rows, tile.warps, tile.stages
    halves, side = tile.halves, _COLUMNS // tile.halves  # columns beside each other
    of_lane, wide = rows // halves, LANES * halves
    held = rows * _COLUMNS  # sums of a warp
    b_words, a_words = LANES * _COLUMNS, rows * LANES  # of a step
    ring = warps * stages
    body = f"""{tile.begin}
copied = lane * {LANES}
from_column = min_i64(strip + copied, n - {LANES})
from_a = min_i64(lane, rows - 1) * a_row
half = quotient(lane, {WARP // halves})
across = remainder(lane, {WARP // halves}) * {LANES}
b_steps = arena_f32(0, {ring * b_words})
a_steps = arena_f32({ring * b_words * 4}, {ring * a_words})
held = arena_f32(0, {warps * held})
near = registers_f32({LANES})
b_rows = registers_f32({LANES * wide})
sums = registers_f32({of_lane * wide})
for i in unrolled({of_lane * wide}):
    sums[i] = f32(0)
own = warp * {stages}
for slot in range({stages - 1}):
    step = own + slot
    row = first + warp * {LANES} + slot * {tile.step}
{_fetched(tile, 1)}
slot = i64(0)
for now in range(first + warp * {LANES}, first + part, {tile.step}):
    await_copies({stages - 2})
    warp_barrier()
    step = own + remainder(slot + {stages - 1}, {stages})
    row = now + {(stages - 1) * tile.step}
{_fetched(tile, 1)}
    place = (own + slot) * {b_words} + across
    for i in unrolled({wide}):
        load_f32x4(b_steps, place + i * {side}, b_rows, i * {LANES})
    place = (own + slot) * {a_words} + half * {of_lane * LANES}
    for m in unrolled({of_lane}):
        load_f32x4(a_steps, place + m * {LANES}, near, 0)
        for i in unrolled({LANES}):
            for j in unrolled({wide}):
                b = b_rows[i * {wide} + j]
                sums[m * {wide} + j] = fma_f32(near[i], b, sums[m * {wide} + j])
    slot = remainder(slot + 1, {stages})
await_copies(0)
barrier()
cluster_wait()
for i in unrolled({rows}):
    line = half * {of_lane} + i // {halves}
    at = warp * {held} + line * {_COLUMNS} + i % {halves} * {side} + across
    store_f32x4(held, at, sums, i * {LANES})
barrier()
for number in range(thread, {held}, {tile.threads}):
    sum = held[number]
    for other in range(1, {warps}):
        sum = sum + held[other * {held} + number]
{indented(tile.sent, 1)}{tile.end}"""
    shared = 4 * max(ring * (b_words + a_words), warps * held)
    return tile.written(body, shared, "c = a @ b")


def _fetched(tile: ColumnsTile, levels: int) -> str:
    """Begins to copy what belongs to ``step``: from ``row`` of b on, or zeros."""
    a_copy = "copy_f32x4(a_in, from_a + row, a_steps, target, live)"
    if not tile.along:
        a_copy = f"""for i in unrolled({LANES}):
        copy_f32x1(a_in, from_a + (row + i) * a_step, a_steps, target + i, live)"""
    text = f"""live = select_i64(row < end, 1, 0)
for i in unrolled({LANES}):
    target = step * {LANES * _COLUMNS} + i * {_COLUMNS} + copied
    copy_f32x4(b_in, (row + i) * ldb + from_column, b_steps, target, live)
if lane < {tile.rows}:
    target = step * {tile.rows * LANES} + copied
    {a_copy}
close_copies()"""
    return indented(text, levels)
