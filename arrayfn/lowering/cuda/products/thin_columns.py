"""Products of few rows and a large matrix that lies across what is summed over.

``c[m, n] = a[m, k] @ b[k, n]``. Each lane of a warp has four neighbouring columns of
``b``, or twice four, whose products with all rows of ``a`` it adds up in registers; a
strip of columns may take a part of a warp, whose other lanes then have other rows of
``b``. Warps take rows of ``b`` by turns. What a warp needs of ``a`` and ``b`` comes to
its own part of shared memory, some steps ahead: warps wait for no others. At the end
all sums of a column are added up, in the order of lanes and warps.
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
    """A lane takes ``ahead`` rows of b at a time; ``across`` lanes have a strip.

    Of a row a lane has so many ``vectors``, in parts of the strip that lie side by
    side: with more of them it reads ``a`` less often.
    """

    ahead: int = 8
    across: int = 8
    vectors: int = 1

    @property
    def part_columns(self) -> int:
        """Of a part of the strip, of which each lane has a vector."""
        return self.across * LANES

    @property
    def columns(self) -> int:
        """Of a block."""
        return self.part_columns * self.vectors

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
        return 4 * self.warps * self.stage_words

    @property
    def stage_words(self) -> int:
        """Of these, what a warp takes: parts of a, and then of b."""
        return self.rows * self.deep + self.ahead * self.vectors * _COLUMNS

    @property
    def words(self) -> int:
        """Of shared memory: all steps that are on their way, and then the sums."""
        own = self.warps * self.rows * self.columns
        return max(self.stages * self.stage_bytes // 4, own)


def columns_text(tile: ColumnsTile) -> Written:
    """The kernel."""
    rows, warps, stages, vectors = tile.rows, tile.warps, tile.stages, tile.vectors
    own = rows * tile.columns  # sums of a warp
    words = rows * tile.deep  # of a that a warp needs at a time
    stage, lanes = tile.stage_words, vectors * LANES
    body = f"""{tile.begin}
group = quotient(lane, {tile.across})
within = remainder(lane, {tile.across}) * {LANES}
from_row = first + warp * {tile.deep}
room = arena_f32(0, {tile.words})
near = registers_f32({LANES})
b_rows = registers_f32({LANES * lanes})
sums = registers_f32({rows * lanes})
for i in unrolled({rows * lanes}):
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
    from_a = place + group * {tile.ahead}
    for i in unrolled({tile.ahead // LANES}):
        for j in unrolled({LANES * vectors}):
            at = from_b + (i * {LANES * vectors} + j) * {_COLUMNS}
            load_f32x4(room, at, b_rows, j * {LANES})
        for m in unrolled({rows}):
            load_f32x4(room, from_a + m * {tile.deep} + i * {LANES}, near, 0)
            for j in unrolled({LANES}):
                for l in unrolled({lanes}):
                    b = b_rows[j * {lanes} + l]
                    sums[m * {lanes} + l] = fma_f32(near[j], b, sums[m * {lanes} + l])
    slot = remainder(slot + 1, {stages})
await_copies(0)
barrier()
place = warp * {own} + within
{_of_lanes(tile)}{tile.joined}barrier()
for number in range(thread, {own}, {tile.threads}):
    sum = room[number]
    for other in range(1, {warps}):
        sum = sum + room[other * {own} + number]
{indented(tile.given, 1)}{tile.end}"""
    return tile.written(body, 4 * tile.words, "c = a @ b")


def _fetched(tile: ColumnsTile, levels: int) -> str:
    """Begins to copy what belongs to ``begin`` to ``place``: zeros beyond the end."""
    rows, deep, ahead, vectors = tile.rows, tile.deep, tile.ahead, tile.vectors
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
    for j in unrolled({vectors}):
        column = min_i64(strip + j * {tile.part_columns} + within, n - {LANES})
        target = place + {rows * deep} + (i * {vectors} + j) * {_COLUMNS}
        copy_f32x4(b_in, k * ldb + column, room, target + lane * {LANES}, live)
close_copies()"""
    return indented(text, levels)


def _of_lanes(tile: ColumnsTile) -> str:
    """Adds up what lanes have of a column, and stores the sums at ``place``.

    Of two lanes each takes one half of the vectors that both have, while there are two
    or more; lanes of the same sums are left in the end if there are few.
    """
    vectors, apart, text, begin = tile.rows * tile.vectors, WARP // 2, "", "0"
    while apart >= tile.across and vectors > 1:
        vectors //= 2
        half, upper = vectors * LANES, f"remainder(quotient(lane, {apart}), 2)"
        begin += f" + {upper} * {vectors}"
        text += f"""is_upper = {upper} == 1
for i in unrolled({half}):
    mine = select_f32(is_upper, sums[i + {half}], sums[i])
    given = select_f32(is_upper, sums[i], sums[i + {half}])
    sums[i] = mine + shuffle_xor_f32(given, {apart})
"""
        apart //= 2
    alike = max(1, 2 * apart // tile.across)
    while apart >= tile.across:
        text += f"""for i in unrolled({vectors * LANES}):
    sums[i] = sums[i] + shuffle_xor_f32(sums[i], {apart})
"""
        apart //= 2
    # Vectors of sums follow each other by rows of a, and within these by parts.
    return f"""{text}begin = {begin}
for i in unrolled({vectors}):
    m = quotient(begin + i, {tile.vectors})
    j = remainder(begin + i, {tile.vectors})
    if remainder(group, {alike}) == 0:
        at = place + m * {tile.columns} + j * {tile.part_columns}
        store_f32x4(room, at, sums, i * {LANES})
"""
