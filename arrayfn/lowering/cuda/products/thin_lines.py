"""Products of few rows and a large matrix that lies along what is summed over.

``c[m, n] = a[m, k] @ b[n, k].T``. Each warp of a block has some lines of ``b``, and
goes along them: a lane multiplies four neighbouring elements of each with those of all
rows of ``a``. Its lines come to its own part of shared memory, the rows of ``a`` to one
that all warps read. At the end lanes add up what they have, in a tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from arrayfn.lowering.cuda.products.thin_tiles import LANES, ThinTile
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.cuda.written import Written, indented

_STEP: Final = WARP * LANES


@dataclass(frozen=True, slots=True)
class LinesTile(ThinTile):
    """A warp has ``lines`` of b."""

    lines: int = 4

    @property
    def columns(self) -> int:
        """Of a block: its warps' lines of b."""
        return self.warps * self.lines

    @property
    def step(self) -> int:
        """The elements of a line that a warp takes at a time."""
        return _STEP


def lines_text(tile: LinesTile) -> Written:
    """The kernel."""
    rows, lines, stages = tile.rows, tile.lines, tile.stages
    own = rows * lines  # sums of a warp
    b_words, a_words = lines * _STEP, rows * _STEP  # of a step
    ring = tile.warps * stages
    body = f"""{tile.begin}
across = lane * {LANES}
b_steps = arena_f32(0, {ring * b_words})
a_steps = arena_f32({ring * b_words * 4}, {stages * a_words})
held = shared_f32({rows * tile.columns})
near = registers_f32({LANES})
b_lines = registers_f32({lines * LANES})
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
    place = (warp * {stages} + slot) * {b_words} + across
    for i in unrolled({lines}):
        load_f32x4(b_steps, place + i * {_STEP}, b_lines, i * {LANES})
    for m in unrolled({rows}):
        load_f32x4(a_steps, slot * {a_words} + m * {_STEP} + across, near, 0)
        for j in unrolled({LANES}):
            for i in unrolled({lines}):
                b = b_lines[i * {LANES} + j]
                sums[m * {lines} + i] = fma_f32(near[j], b, sums[m * {lines} + i])
    slot = remainder(slot + 1, {stages})
for i in unrolled({own}):
    sum = sums[i]
    for step in unrolled(5):
        sum = sum + shuffle_xor_f32(sum, 16 >> step)
    if lane == 0:
        held[i // {lines} * {tile.columns} + warp * {lines} + i % {lines}] = sum
{tile.joined}barrier()
for number in range(thread, {rows * tile.columns}, {tile.threads}):
    sum = held[number]
{indented(tile.given, 1)}{tile.end}"""
    shared = 4 * (ring * b_words + stages * a_words)
    return tile.written(body, shared, "c = a @ b.T")


def _fetched(tile: LinesTile, levels: int) -> str:
    """Begins to copy what belongs to ``step``: from ``begin`` on, or zeros."""
    rows, warps = tile.rows, tile.warps
    a_copy = f"""for at in range(warp, {rows}, {warps}):
    source = min_i64(at, rows - 1) * a_row + begin + across
    target = (step * {rows} + at) * {_STEP} + across
    copy_f32x4(a_in, source, a_steps, target, live)"""
    if not tile.along:
        a_copy = f"""for at in range(thread, {rows * _STEP}, {tile.threads}):
    place = begin + quotient(at, {rows})
    source = min_i64(remainder(at, {rows}), rows - 1) * a_row + place * a_step
    target = (step * {rows} + remainder(at, {rows})) * {_STEP} + quotient(at, {rows})
    copy_f32x1(a_in, source, a_steps, target, select_i64(place < end, 1, 0))"""
    text = f"""live = select_i64(begin + across < end, 1, 0)
for i in unrolled({tile.lines}):
    line = min_i64(strip + warp * {tile.lines} + i, n - 1)
    target = ((warp * {tile.stages} + step) * {tile.lines} + i) * {_STEP} + across
    copy_f32x4(b_in, line * ldb + begin + across, b_steps, target, live)
{a_copy}
close_copies()"""
    return indented(text, levels)
