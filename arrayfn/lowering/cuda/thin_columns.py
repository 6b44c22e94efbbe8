"""Products of few rows and a large matrix that lies across what is summed over.

``c[m, n] = a[m, k] @ b[k, n]``. Each lane of a warp has four neighbouring columns of
``b``, whose products with all rows of ``a`` it adds up in registers. The warps of a
block take rows of ``b`` by turns, some at a time, and what they have is added up in the
order of warps. What a warp needs of ``a`` comes to its own part of shared memory, some
steps ahead: warps wait for no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from arrayfn.lowering.cuda.thin_tiles import LANES, ThinTile
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.cuda.written import Written, indented

_COLUMNS: Final = WARP * LANES  # of a warp


@dataclass(frozen=True, slots=True)
class ColumnsTile(ThinTile):
    """A warp loads ``ahead`` rows of b at once; ``beside`` warps have other columns."""

    ahead: int = 8
    beside: int = 1

    @property
    def columns(self) -> int:
        """Of a block."""
        return _COLUMNS * self.beside

    @property
    def step(self) -> int:
        """The rows of b that the warps take at a time."""
        return self.warps // self.beside * self.ahead


def columns_text(tile: ColumnsTile) -> Written:
    """The kernel."""
    rows, warps, stages, ahead = tile.rows, tile.warps, tile.stages, tile.ahead
    own = rows * _COLUMNS  # sums of a warp
    words = rows * ahead  # of a that a warp needs at a time
    words_shared = warps * max(stages * words, own)
    body = f"""{tile.begin}
side = remainder(warp, {tile.beside}) * {_COLUMNS}
from_column = min_i64(strip + side + lane * {LANES}, n - {LANES})
from_row = first + quotient(warp, {tile.beside}) * {ahead}
copied = lane * {LANES}
from_a = min_i64(quotient(copied, {ahead}), rows - 1) * a_row
from_step = remainder(copied, {ahead})
room = arena_f32(0, {words_shared})
near = registers_f32({LANES})
b_rows = registers_f32({ahead * LANES})
sums = registers_f32({rows * LANES})
for i in unrolled({rows * LANES}):
    sums[i] = f32(0)
for slot in range({stages - 1}):
    step = warp * {stages} + slot
    begin = from_row + slot * {tile.step}
{_fetched(tile, 1)}
slot = i64(0)
for row in range(from_row, end, {tile.step}):
    for i in unrolled({ahead}):
        load_f32x4(b_in, (row + i) * ldb + from_column, b_rows, i * {LANES})
    await_copies({stages - 2})
    warp_barrier()
    step = warp * {stages} + remainder(slot + {stages - 1}, {stages})
    begin = row + {(stages - 1) * tile.step}
{_fetched(tile, 1)}
    place = (warp * {stages} + slot) * {words}
    for i in unrolled({ahead // LANES}):
        for m in unrolled({rows}):
            load_f32x4(room, place + m * {ahead} + i * {LANES}, near, 0)
            for j in unrolled({LANES}):
                for l in unrolled({LANES}):
                    b = b_rows[(i * {LANES} + j) * {LANES} + l]
                    sums[m * {LANES} + l] = fma_f32(near[j], b, sums[m * {LANES} + l])
    slot = remainder(slot + 1, {stages})
await_copies(0)
barrier()
cluster_wait()
for m in unrolled({rows}):
    store_f32x4(room, warp * {own} + m * {_COLUMNS} + copied, sums, m * {LANES})
barrier()
for number in range(thread, {rows * tile.columns}, {tile.threads}):
    m = quotient(number, {tile.columns})
    column = remainder(number, {tile.columns})
    at = m * {_COLUMNS} + remainder(column, {_COLUMNS})
    at = at + quotient(column, {_COLUMNS}) * {own}
    sum = room[at]
    for other in range({tile.beside}, {warps}, {tile.beside}):
        sum = sum + room[other * {own} + at]
{indented(tile.sent, 1)}{tile.end}"""
    return tile.written(body, 4 * words_shared, "c = a @ b")


def _fetched(tile: ColumnsTile, levels: int) -> str:
    """Begins to copy what belongs to ``step`` of a: from ``begin`` on, or zeros."""
    words = tile.rows * tile.ahead
    copy = "copy_f32x4(a_in, from_a + begin + from_step, room, target, live)"
    if not tile.along:
        copy = f"""for i in unrolled({LANES}):
        source = from_a + (begin + from_step + i) * a_step
        copy_f32x1(a_in, source, room, target + i, live)"""
    text = f"""live = select_i64(begin < end, 1, 0)
if copied < {words}:
    target = step * {words} + copied
    {copy}
close_copies()"""
    return indented(text, levels)
