"""Products of few rows of float32 and a large matrix.

``c[m, n] = a[m, k] @ b[k, n]``, where ``b`` may also be the transpose of what lies in
memory. Each lane of a warp has some columns, whose products with all rows of ``a`` it
adds up in registers; lanes of other ``groups`` have the same columns and other parts
of what is summed over. Warps take parts of that round-robin. What a warp needs of ``a``
and ``b`` comes to its own part of shared memory, some steps ahead: warps wait for no
others. There a lane reads of ``b`` what it has copied itself, and of ``a`` what other
lanes of its group read too. At the end all sums of a column are added up, in the order
of lanes and warps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from arrayfn.lowering.cuda.handwritten import Handwritten, indented
from arrayfn.lowering.cuda.products.skinny_tiles import SkinnyTile, all_lanes
from arrayfn.lowering.cuda.vocabulary import WARP

LANES: Final = 4  # floats of a lane's access: 128 bits


@dataclass(frozen=True, slots=True)
class SingleTile(SkinnyTile):
    """A lane takes ``ahead`` of what is summed over at a time, for its columns.

    These are ``vectors`` times four: with more of them it reads ``a`` less often. The
    rows of ``a`` lie ``along`` what is summed over; across, they are four or more, and
    copied four at a time unless they are ``apart``.
    """

    itemsize = 4
    ahead: int = 8
    groups: int = 4
    vectors: int = 1
    along: bool = True
    apart: bool = False

    @property
    def across(self) -> int:
        """The lanes of a group: each has other columns."""
        return WARP // self.groups

    @property
    def lanes(self) -> int:
        """The columns of a lane."""
        return self.vectors * LANES

    @property
    def columns(self) -> int:
        """Columns of a block."""
        return self.across * self.lanes

    @property
    def depth(self) -> int:
        """How much of ``k`` a warp takes at a time."""
        return self.ahead * self.groups

    @property
    def a_words(self) -> int:
        """Of ``a``, that a warp takes at a time.

        Across, each four columns of it are followed by a gap of four words, so that all
        groups read from banks of their own.
        """
        return (self.rows if self.along else self.rows + 1) * self.depth

    @property
    def stage(self) -> int:
        """Words of ``a``, and then ``b``, that a warp takes at a time."""
        return self.a_words + self.ahead * self.lanes * WARP

    @property
    def words(self) -> int:
        """Words of shared memory: for all steps under way, and then for the sums."""
        return max(self.ring, self.warps * self.accumulators)


def single_text(tile: SingleTile) -> Handwritten:
    """The kernel."""
    rows, lanes = tile.rows, tile.lanes
    group, within = f"quotient(lane, {tile.across})", f"remainder(lane, {tile.across})"
    if tile.transposed:
        # Lanes that follow each other read parts of a line that do.
        group = f"remainder(lane, {tile.groups})"
        within = f"quotient(lane, {tile.groups})"
    body = f"""{tile.begin}
group = {group} * {LANES}
within = {within} * {lanes if tile.transposed else LANES}
room = dynamic_shared_f32(0, {tile.words})
near = registers_f32({LANES})
held = registers_f32({LANES * lanes})
sums = registers_f32({rows * lanes})
for i in unrolled({rows * lanes}):
    sums[i] = f32(0)
{tile.pipelined(_fetched(tile), _multiplied(tile))}
barrier()
place = warp * {tile.accumulators} + within
{_of_lanes(tile)}{tile.added_up("room")}"""
    return tile.written(body, 4 * tile.words)


def _multiplied(tile: SingleTile) -> str:
    """Adds up the products of what lies at ``place``."""
    lanes = tile.lanes
    return f"""from_b = place + {tile.a_words} + lane * {LANES}
for i in unrolled({tile.ahead // LANES}):
    for j in unrolled({lanes}):
        at = from_b + (i * {lanes} + j) * {WARP * LANES}
        load_f32x4(room, at, held, j * {LANES})
{indented(_of_columns(tile), 1)}"""


def _of_columns(tile: SingleTile) -> str:
    """Adds up the products of what is held of b with the ``i``-th four columns of a."""
    rows, lanes = tile.rows, tile.lanes
    b = f"held[l * {LANES} + k]" if tile.transposed else f"held[k * {lanes} + l]"
    if tile.along:
        return f"""from_a = place + i * {tile.groups * LANES} + group
for m in unrolled({rows}):
    load_f32x4(room, from_a + m * {tile.depth}, near, 0)
    for k in unrolled({LANES}):
        for l in unrolled({lanes}):
            at = m * {lanes} + l
            sums[at] = fma_f32(near[k], {b}, sums[at])"""
    return f"""from_a = place + (i * {tile.groups * LANES} + group) * {rows + 1}
for k in unrolled({LANES}):
    for four in unrolled({rows // LANES}):
        load_f32x4(room, from_a + k * {rows} + four * {LANES}, near, 0)
        for m in unrolled({LANES}):
            for l in unrolled({lanes}):
                at = (four * {LANES} + m) * {lanes} + l
                sums[at] = fma_f32(near[m], {b}, sums[at])"""


def _fetched(tile: SingleTile) -> str:
    """Begins to copy what belongs to ``begin`` to ``place``: zeros beyond the end."""
    return f"""{_a_fetched(tile)}
for i in unrolled({tile.ahead // LANES}):
    k = begin + i * {tile.groups * LANES} + group
    target = place + {tile.a_words} + lane * {LANES} + i * {tile.lanes * WARP * LANES}
{indented(_b_fetched(tile), 1)}
cp_async_commit()"""


def _a_fetched(tile: SingleTile) -> str:
    """Begins to copy rows of a."""
    rows, deep = tile.rows, tile.depth
    if tile.along:
        pieces = deep // LANES  # of a row
        return f"""{all_lanes(rows * pieces)}
    k = remainder(at, {pieces}) * {LANES}
    m = quotient(at, {pieces})
    source = min_i64(m, rows - 1) * a_row + begin + k
    live = select_i64(begin + k < end, 1, 0)
    cp_async_f32x4(a_in, source, room, place + m * {deep} + k, live)"""
    lanes = 1 if tile.apart else LANES
    pieces = rows // lanes  # of a column
    return f"""{all_lanes(pieces * deep)}
    k = quotient(at, {pieces})
    m = remainder(at, {pieces}) * {lanes}
    source = min_i64(m, rows - {lanes}) * a_row + (begin + k) * a_step
    target = place + k * {rows} + quotient(k, {LANES}) * {LANES} + m
    live = select_i64(begin + k < end, 1, 0)
    cp_async_f32x{lanes}(a_in, source, room, target, live)"""


def _b_fetched(tile: SingleTile) -> str:
    """Begins to copy a lane's part of b: four of what is summed over, from ``k`` on."""
    if tile.transposed:
        return f"""live = select_i64(k < end, 1, 0)
for j in unrolled({tile.lanes}):
    line = min_i64(strip + within + j, n - 1)
    cp_async_f32x4(b_in, line * ldb + k, room, target + j * {WARP * LANES}, live)"""
    return f"""for j in unrolled({LANES}):
    live = select_i64(k + j < end, 1, 0)
    for v in unrolled({tile.vectors}):
        column = min_i64(strip + v * {tile.across * LANES} + within, n - {LANES})
        lies = target + (j * {tile.vectors} + v) * {WARP * LANES}
        cp_async_f32x4(b_in, (k + j) * ldb + column, room, lies, live)"""


def _of_lanes(tile: SingleTile) -> str:
    """Adds up what groups have of a column, and stores the sums at ``place``.

    Of two lanes each takes one half of the vectors that both have, while there are two
    or more; lanes of the same sums are left in the end if there are few.
    """
    nearest = 1 if tile.transposed else tile.across  # between lanes of the same columns
    apart = tile.groups * nearest // 2
    vectors, text, first = tile.rows * tile.vectors, "", "0"
    while apart >= nearest and vectors > 1:
        vectors //= 2
        half, upper = vectors * LANES, f"remainder(quotient(lane, {apart}), 2)"
        first += f" + {upper} * {vectors}"
        text += f"""is_upper = {upper} == 1
for i in unrolled({half}):
    mine = select_f32(is_upper, sums[i + {half}], sums[i])
    given = select_f32(is_upper, sums[i], sums[i + {half}])
    sums[i] = mine + shuffle_xor_f32(given, {apart})
"""
        apart //= 2
    alike = max(1, 2 * apart // nearest) * nearest
    while apart >= nearest:
        text += f"""for i in unrolled({vectors * LANES}):
    sums[i] = sums[i] + shuffle_xor_f32(sums[i], {apart})
"""
        apart //= 2
    # Vectors of sums follow each other by rows of a, and within these by columns.
    part = LANES if tile.transposed else tile.across * LANES
    return f"""{text}from_vector = {first}
for i in unrolled({vectors}):
    m = quotient(from_vector + i, {tile.vectors})
    v = remainder(from_vector + i, {tile.vectors})
    if remainder(lane, {alike}) < {nearest}:
        at = place + m * {tile.columns} + v * {part}
        store_f32x4(room, at, sums, i * {LANES})
"""
