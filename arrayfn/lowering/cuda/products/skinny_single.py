"""Skinny products of float32: a few rows and a large matrix.

``c[m, n] = a[m, k] @ b[k, n]``, where ``b`` may also be the transpose of the matrix in
memory. Each lane of a warp has some columns, and keeps their sums with all rows of
``a`` in registers. The lanes of different ``groups`` have the same columns and split k;
so do the warps, round-robin. Copies bring a warp's tiles of ``a`` and ``b`` to a part
of shared memory that is its own, so warps do not wait for each other. There a lane
reads the part of ``b`` that it has copied itself, and the part of ``a`` that all lanes
of its group read. At the end the sums of a column are added in the order of lanes and
warps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from arrayfn.lowering.cuda.handwritten import Handwritten, indented
from arrayfn.lowering.cuda.products.skinny_tiles import SkinnyTile, lane_loop
from arrayfn.lowering.cuda.vocabulary import WARP

LANES: Final = 4  # floats of an access of 16 bytes


@dataclass(frozen=True, slots=True)
class SingleTile(SkinnyTile):
    """The tile of float32.

    Args:
        k_vectors: How much of k a lane takes at a time.
        groups: Groups of lanes that split k.
        vectors: A lane has so many times four columns. With more it reads ``a`` less
            often.
        contiguous: ``a`` is contiguous along k. Otherwise it is along its rows, of
            which there are four or more.
        unaligned: Rows of such an ``a`` are copied one by one, not four at a time.
    """

    itemsize = 4
    k_vectors: int = 8
    groups: int = 4
    vectors: int = 1
    contiguous: bool = True
    unaligned: bool = False

    @property
    def group_lanes(self) -> int:
        """Lanes of a group. Each has other columns."""
        return WARP // self.groups

    @property
    def lane_columns(self) -> int:
        """Columns of a lane."""
        return self.vectors * LANES

    @property
    @override
    def columns(self) -> int:
        """Columns of a block."""
        return self.group_lanes * self.lane_columns

    @property
    @override
    def depth(self) -> int:
        """The extent along k of a warp's tile."""
        return self.k_vectors * self.groups

    @property
    def a_words(self) -> int:
        """Words of a warp's tile of ``a``.

        If it is not contiguous along k, four words of padding follow each four k's,
        so that different groups read from different banks.
        """
        return (self.rows if self.contiguous else self.rows + 1) * self.depth

    @property
    @override
    def stage(self) -> int:
        """Words of a warp's tiles of ``a`` and ``b``, which follow each other."""
        return self.a_words + self.k_vectors * self.lane_columns * WARP

    @property
    def words(self) -> int:
        """Words of shared memory: for the ring of copies, and later for the sums."""
        return max(self.ring, self.warps * self.accumulators)


def single_text(tile: SingleTile) -> Handwritten:
    """The kernel of ``tile``; see ``SkinnyTile`` for the names that texts share.

    ``group`` is four times the number of the lane's group, ``within`` the lane's first
    column in the block.
    """
    rows, columns = tile.rows, tile.lane_columns
    group, within = (
        f"quotient(lane, {tile.group_lanes})",
        f"remainder(lane, {tile.group_lanes})",
    )
    if tile.transposed:
        # Neighbouring lanes copy neighbouring parts of a line along k.
        group = f"remainder(lane, {tile.groups})"
        within = f"quotient(lane, {tile.groups})"
    body = f"""{tile.begin}
group = {group} * {LANES}
within = {within} * {columns if tile.transposed else LANES}
buffer = dynamic_shared_f32(0, {tile.words})
near = registers_f32({LANES})
held = registers_f32({LANES * columns})
sums = registers_f32({rows * columns})
for i in unrolled({rows * columns}):
    sums[i] = f32(0)
{tile.pipelined(_copies(tile), _multiply(tile))}
barrier()
place = warp * {tile.accumulators} + within
{_group_sums(tile)}{tile.reduction("buffer")}"""
    return tile.kernel(body, 4 * tile.words)


def _multiply(tile: SingleTile) -> str:
    """Lines that add the products of a warp's tiles of a and b to ``sums``.

    The tiles are at ``place`` in shared memory: first ``a``'s (see ``_accumulate``),
    then ``b``'s, in which neighbouring lanes' vectors of four are neighbours. A lane
    reads the vectors that it copied, for four k's at a time, to ``held``.
    """
    columns = tile.lane_columns
    return f"""from_b = place + {tile.a_words} + lane * {LANES}
for i in unrolled({tile.k_vectors // LANES}):
    for j in unrolled({columns}):
        at = from_b + (i * {columns} + j) * {WARP * LANES}
        load_f32x4(buffer, at, held, j * {LANES})
{indented(_accumulate(tile), 1)}"""


def _accumulate(tile: SingleTile) -> str:
    """Lines that add to ``sums`` the products of a by four k's of b, in ``held``.

    Iteration ``i`` takes for the lane's group the k's from ``i * groups * 4 + group``
    on, where ``group`` is four times the group's number. The tile of a, at ``place`` in
    shared memory, is [row, k] if a is contiguous along k; else it is [k, row], with
    four words of padding after each four k's: ``rows + 1`` words a k. Its elements are
    loaded into ``near``, four at a time. ``held`` is [column, k] if b is transposed,
    else [k, column]; ``sums`` is [row, column].
    """
    rows, columns = tile.rows, tile.lane_columns
    b = f"held[l * {LANES} + k]" if tile.transposed else f"held[k * {columns} + l]"
    if tile.contiguous:
        return f"""from_a = place + i * {tile.groups * LANES} + group
for m in unrolled({rows}):
    load_f32x4(buffer, from_a + m * {tile.depth}, near, 0)
    for k in unrolled({LANES}):
        for l in unrolled({columns}):
            at = m * {columns} + l
            sums[at] = fma_f32(near[k], {b}, sums[at])"""
    return f"""from_a = place + (i * {tile.groups * LANES} + group) * {rows + 1}
for k in unrolled({LANES}):
    for four in unrolled({rows // LANES}):
        load_f32x4(buffer, from_a + k * {rows} + four * {LANES}, near, 0)
        for m in unrolled({LANES}):
            for l in unrolled({columns}):
                at = (four * {LANES} + m) * {columns} + l
                sums[at] = fma_f32(near[m], {b}, sums[at])"""


def _copies(tile: SingleTile) -> str:
    """Lines that begin to copy a warp's tiles of a and b to shared memory.

    They begin at ``begin`` along k and go to ``place``: see ``SkinnyTile`` for the
    names that lines share. They are one commit group. Zeros are stored for k's from
    ``end`` on. Iteration ``i`` copies four k's of b for each group, from the lane's
    ``k`` on: see ``_accumulate``.
    """
    columns = tile.lane_columns
    return f"""{_a_copies(tile)}
for i in unrolled({tile.k_vectors // LANES}):
    k = begin + i * {tile.groups * LANES} + group
    target = place + {tile.a_words} + lane * {LANES} + i * {columns * WARP * LANES}
{indented(_b_copies(tile), 1)}
cp_async_commit()"""


def _a_copies(tile: SingleTile) -> str:
    """Lines that begin to copy a warp's tile of a, from ``begin`` along k on.

    The tile is [row, k] at ``place`` if a is contiguous along k, else [k, row] with
    padding: see ``SingleTile.a_words``. Rows beyond the last are read from the last
    ones; their sums are not stored. k's from ``end`` on become zeros (``live``).
    """
    rows, depth = tile.rows, tile.depth
    if tile.contiguous:
        pieces = depth // LANES  # of a row
        return f"""{lane_loop(rows * pieces)}
    k = remainder(at, {pieces}) * {LANES}
    m = quotient(at, {pieces})
    source = min_i64(m, rows - 1) * a_row + begin + k
    live = select_i64(begin + k < end, 1, 0)
    cp_async_f32x4(a_in, source, buffer, place + m * {depth} + k, live)"""
    floats = 1 if tile.unaligned else LANES  # of a copy
    pieces = rows // floats  # of a column of a
    return f"""{lane_loop(pieces * depth)}
    k = quotient(at, {pieces})
    m = remainder(at, {pieces}) * {floats}
    source = min_i64(m, rows - {floats}) * a_row + (begin + k) * a_step
    target = place + k * {rows} + quotient(k, {LANES}) * {LANES} + m
    live = select_i64(begin + k < end, 1, 0)
    cp_async_f32x{floats}(a_in, source, buffer, target, live)"""


def _b_copies(tile: SingleTile) -> str:
    """Lines that begin to copy a lane's part of b, four elements of k from ``k`` on.

    They go to ``target`` in shared memory; neighbouring lanes' vectors are neighbours
    there. The text reads ``first_column`` of the block, and ``within``, the lane's
    first column in the block. Columns beyond the last are read from the last ones;
    their sums are not stored. k's from ``end`` on become zeros (``live``).
    """
    if tile.transposed:
        return f"""live = select_i64(k < end, 1, 0)
for j in unrolled({tile.lane_columns}):
    line = min_i64(first_column + within + j, n - 1)
    cp_async_f32x4(b_in, line * ldb + k, buffer, target + j * {WARP * LANES}, live)"""
    stride = tile.group_lanes * LANES  # between a lane's vectors
    return f"""for j in unrolled({LANES}):
    live = select_i64(k + j < end, 1, 0)
    for v in unrolled({tile.vectors}):
        column = min_i64(first_column + v * {stride} + within, n - {LANES})
        copy_at = target + (j * {tile.vectors} + v) * {WARP * LANES}
        cp_async_f32x4(b_in, (k + j) * ldb + column, buffer, copy_at, live)"""


def _group_sums(tile: SingleTile) -> str:
    """Lines that add the sums of all groups of ``tile``, and store them in ``buffer``.

    Lanes of different groups have sums of the same elements of c, over other parts of
    k. ``place``, a variable of the kernel, is the index of the lane's first total.

    A butterfly: two lanes with the same vectors of sums each keep one half of them, and
    send the other half. When one vector is left, lanes add and all keep it; one of them
    stores.
    """
    # The smallest distance of two lanes with the same columns.
    nearest = 1 if tile.transposed else tile.group_lanes
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
    # Of so many neighbouring lanes the first ``nearest`` have all different totals.
    alike = max(1, 2 * apart // nearest) * nearest
    while apart >= nearest:
        text += f"""for i in unrolled({vectors * LANES}):
    sums[i] = sums[i] + shuffle_xor_f32(sums[i], {apart})
"""
        apart //= 2
    # Vectors of sums follow each other by rows of a, and within these by columns.
    part = LANES if tile.transposed else tile.group_lanes * LANES
    return f"""{text}from_vector = {first}
for i in unrolled({vectors}):
    m = quotient(from_vector + i, {tile.vectors})
    v = remainder(from_vector + i, {tile.vectors})
    if remainder(lane, {alike}) < {nearest}:
        at = place + m * {tile.columns} + v * {part}
        store_f32x4(buffer, at, sums, i * {LANES})
"""
