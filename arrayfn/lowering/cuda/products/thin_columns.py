"""Products of few rows and a large matrix that lies across what is summed over.

``c[m, n] = a[m, k] @ b[k, n]``. Each lane of a warp has four neighbouring columns of
``b``, whose products with all rows of ``a`` it adds up in registers; a strip of columns
may take a part of a warp, whose other lanes then have other rows of ``b``. Warps take
rows of ``b`` by turns. What a warp needs of ``a`` and ``b`` comes to its own part of
shared memory, some steps ahead: warps wait for no others. At the end all sums of a
column are added up, in the order of lanes and warps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from arrayfn.lowering.cuda.products.thin_tiles import LANES, ThinTile, all_lanes
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.cuda.written import Written, indented

_COLUMNS: Final = WARP * LANES  # of a warp all of whose lanes have others


@dataclass(frozen=True, slots=True)
class ColumnsTile(ThinTile):
    """A lane takes ``ahead`` rows of b at a time; ``across`` lanes have a strip."""

    ahead: int = 8
    across: int = 8

    @property
    def columns(self) -> int:
        """Of a block."""
        return self.across * LANES

    @property
    def deep(self) -> int:
        """The rows of b that a warp takes at a time."""
        return self.ahead * WARP // self.across

    @property
    def step(self) -> int:
        """The rows of b that the warps take at a time."""
        return self.warps * self.deep

    @property
    def stage_bytes(self) -> int:
        """Of shared memory, that a step of all warps takes."""
        return 4 * self.warps * (self.rows * self.deep + self.ahead * _COLUMNS)

    @property
    def words(self) -> int:
        """Of shared memory: all steps that are on their way, and then the sums."""
        own = self.warps * self.rows * self.columns
        return max(self.stages * self.stage_bytes // 4, own)


def columns_text(tile: ColumnsTile) -> Written:
    """The kernel."""
    rows, warps, stages, ahead = tile.rows, tile.warps, tile.stages, tile.ahead
    own = rows * tile.columns  # sums of a warp
    words = rows * tile.deep  # of a that a warp needs at a time
    stage = words + ahead * _COLUMNS
    body = f"""{tile.begin}
group = quotient(lane, {tile.across})
within = remainder(lane, {tile.across}) * {LANES}
from_column = min_i64(strip + within, n - {LANES})
from_row = first + warp * {tile.deep}
room = arena_f32(0, {tile.words})
near = registers_f32({LANES})
b_rows = registers_f32({LANES * LANES})
sums = registers_f32({rows * LANES})
for i in unrolled({rows * LANES}):
    sums[i] = f32(0)
for slot in range({stages - 1}):
    place = (warp * {stages} + slot) * {stage}
    begin = from_row + slot * {tile.step}
{_fetched(tile, 1)}
slot = i64(0)
for row in range(from_row, end, {tile.step}):
    await_copies({stages - 2})
    warp_barrier()
    place = (warp * {stages} + remainder(slot + {stages - 1}, {stages})) * {stage}
    begin = row + {(stages - 1) * tile.step}
{_fetched(tile, 1)}
    place = (warp * {stages} + slot) * {stage}
    from_b = place + {words} + lane * {LANES}
    from_a = place + group * {ahead}
    for i in unrolled({ahead // LANES}):
        for j in unrolled({LANES}):
            at = from_b + (i * {LANES} + j) * {_COLUMNS}
            load_f32x4(room, at, b_rows, j * {LANES})
        for m in unrolled({rows}):
            load_f32x4(room, from_a + m * {tile.deep} + i * {LANES}, near, 0)
            for j in unrolled({LANES}):
                for l in unrolled({LANES}):
                    b = b_rows[j * {LANES} + l]
                    sums[m * {LANES} + l] = fma_f32(near[j], b, sums[m * {LANES} + l])
    slot = remainder(slot + 1, {stages})
await_copies(0)
{_of_lanes(tile)}barrier()
if group == 0:
    for m in unrolled({rows}):
        place = warp * {own} + m * {tile.columns} + within
        store_f32x4(room, place, sums, m * {LANES})
{tile.joined}barrier()
for number in range(thread, {own}, {tile.threads}):
    sum = room[number]
    for other in range(1, {warps}):
        sum = sum + room[other * {own} + number]
{indented(tile.given, 1)}{tile.end}"""
    return tile.written(body, 4 * tile.words, "c = a @ b")


def _fetched(tile: ColumnsTile, levels: int) -> str:
    """Begins to copy what belongs to ``begin`` to ``place``: zeros beyond the end."""
    rows, deep, ahead = tile.rows, tile.deep, tile.ahead
    if tile.along:
        lanes, source = LANES, "m * a_row + begin + k"
        m, k = f"quotient(at, {deep // LANES})", f"remainder(at, {deep // LANES})"
    else:
        # Neighbouring lanes have rows that lie side by side.
        lanes, source = 1, "m * a_row + (begin + k) * a_step"
        m, k = f"remainder(at, {rows})", f"quotient(at, {rows})"
    text = f"""{all_lanes(rows * deep // lanes)}
    k = {k} * {lanes}
    m = {m}
    target = place + m * {deep} + k
    m = min_i64(m, rows - 1)
    live = select_i64(begin + k < end, 1, 0)
    copy_f32x{lanes}(a_in, {source}, room, target, live)
for i in unrolled({ahead}):
    k = begin + group * {ahead} + i
    live = select_i64(k < end, 1, 0)
    target = place + {rows * deep} + i * {_COLUMNS} + lane * {LANES}
    copy_f32x4(b_in, k * ldb + from_column, room, target, live)
close_copies()"""
    return indented(text, levels)


def _of_lanes(tile: ColumnsTile) -> str:
    """Adds up what lanes have of a column."""
    if tile.across == WARP:
        return ""
    steps = (WARP // tile.across).bit_length() - 1
    return f"""for i in unrolled({tile.rows * LANES}):
    for step in unrolled({steps}):
        sums[i] = sums[i] + shuffle_xor_f32(sums[i], {WARP // 2} >> step)
"""
