"""Skinny products of float32: a few rows and a large matrix.

``c[m, n] = a[m, k] @ b[k, n]``, where ``b`` may also be the transpose of the matrix in
memory. Each lane of a warp computes some columns, with the sums of all rows of ``a`` in
registers. The lanes of different ``groups`` have the same columns and split k; so do
the warps, round-robin. Copies bring a warp's tiles of ``a`` and ``b`` to a section of
shared memory that is its own, so warps do not wait for each other. A lane reads from
there the elements of ``b`` that it has copied itself, and the elements of ``a`` that
all lanes of its group read. At the end the sums of a column are added in the order of
lanes and warps.
"""

from __future__ import annotations

from typing import Final

from typing_extensions import override

from arrayfn.lowering.cuda.handwritten import Handwritten, indented
from arrayfn.lowering.cuda.products.skinny_tiles import SkinnyTile, lane_loop
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.records import frozen

LANES: Final = 4
"""Floats of an access of 16 bytes: a vector."""


@frozen(slots=True)
class SingleTile(SkinnyTile):
    """The tile of a kernel for float32.

    Args:
        k_vectors: The extent along k that a group of lanes multiplies at a time.
        groups: Groups of lanes of a warp, which split k.
        vectors: Vectors of four columns for each lane. With more vectors, a lane reads
            ``a`` less often.
        contiguous: Whether ``a`` is contiguous along k. Otherwise its tile has four
            rows or more, and is copied along m.
        unaligned: Whether such an ``a`` is copied one element at a time, not four,
            because it is not contiguous and aligned along m.
    """

    itemsize = 4
    k_vectors: int = 8
    groups: int = 4
    vectors: int = 1
    contiguous: bool = True
    unaligned: bool = False

    @property
    def group_lanes(self) -> int:
        """Lanes of a group. Each lane computes other columns."""
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
        """32-bit words of a warp's tile of ``a``.

        If ``a`` is not contiguous along k, four words of padding follow each four k's,
        so that different groups read from different banks.
        """
        return (self.rows if self.contiguous else self.rows + 1) * self.depth

    @property
    @override
    def stage_elements(self) -> int:
        """Words of a warp's tiles of ``a`` and ``b``, which follow each other."""
        return self.a_words + self.k_vectors * self.lane_columns * WARP

    @property
    def words(self) -> int:
        """Words of shared memory: for the ring of copies, later for warps' sums."""
        return max(self.ring_elements, self.warps * self.accumulators)


def single_kernel(tile: SingleTile) -> Handwritten:
    """Write the kernel of ``tile``; see ``SkinnyTile`` for the names that texts share.

    ``group`` is four times the number of the lane's group, ``within`` the lane's first
    column in the block. ``buffer`` is the shared memory of all stages. In registers,
    ``held`` has the lane's vectors of b, ``near`` its vector of a, and ``sums`` its
    sums, [row, column].
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
    body = f"""{tile.prologue}
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
    """Return lines that add the products of a warp's tiles of a and b to ``sums``.

    At ``place`` in shared memory is the tile of a, and after it the tile of b, in which
    neighbouring lanes' vectors are neighbours. A lane reads the vectors of b that it
    copied itself, for four k's at a time.
    """
    columns = tile.lane_columns
    return f"""from_b = place + {tile.a_words} + lane * {LANES}
for i in unrolled({tile.k_vectors // LANES}):
    for j in unrolled({columns}):
        at = from_b + (i * {columns} + j) * {WARP * LANES}
        load_f32x4(buffer, at, held, j * {LANES})
{indented(_accumulate(tile), 1)}"""


def _accumulate(tile: SingleTile) -> str:
    """Return lines that multiply a by the four k's of b in ``held``, into ``sums``.

    For four rows of a that are contiguous along k:

        from_a = place + i * 8 + group
        for m in unrolled(4):
            load_f32x4(buffer, from_a + m * 16, near, 0)
            for k in unrolled(4):
                for l in unrolled(8):
                    at = m * 8 + l
                    sums[at] = fma_f32(near[k], held[k * 8 + l], sums[at])

    The tile of a is then [row, k]. Otherwise it is [k, row], with four words of padding
    after each four k's. ``held`` is [column, k] if b is transposed, else [k, column].
    In iteration ``i`` a group multiplies the four k's from ``i * groups * 4 + group``
    on.
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
    """Return lines that begin to copy a warp's tiles, from ``begin`` along k on.

    The tiles of a and b go to ``place`` and are one commit group. Iteration ``i``
    copies four k's of b for each group: see ``_accumulate``.
    """
    columns = tile.lane_columns
    return f"""{_a_copies(tile)}
for i in unrolled({tile.k_vectors // LANES}):
    k = begin + i * {tile.groups * LANES} + group
    target = place + {tile.a_words} + lane * {LANES} + i * {columns * WARP * LANES}
{indented(_b_copies(tile), 1)}
cp_async_commit()"""


def _a_copies(tile: SingleTile) -> str:
    """Return lines that begin to copy a warp's tile of a, from ``begin`` along k on.

    For 8 rows that are contiguous along k, and a tile of 16 k's:

        for iteration in unrolled(1):
            at = iteration * 32 + lane
            k = remainder(at, 4) * 4
            m = quotient(at, 4)
            source = min_i64(m, rows - 1) * a_row + begin + k
            live = select_i64(begin + k < end, 1, 0)
            cp_async_f32x4(a_in, source, buffer, place + m * 16 + k, live)

    The layout of the tile is in ``_accumulate``. Rows beyond the last are read from the
    last ones; their sums are not stored. k's from ``end`` on become zeros (``live``).
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
    """Return lines that begin to copy a lane's elements of b, four k's from ``k`` on.

    They go to ``target``; the lane's first column is ``first_column + within``. For a
    transposed b and 8 columns a lane, each with a vector along k:

        live = select_i64(k < end, 1, 0)
        for j in unrolled(8):
            line = min_i64(first_column + within + j, n - 1)
            cp_async_f32x4(b_in, line * ldb + k, buffer, target + j * 128, live)

    Otherwise each k has vectors along the columns. Columns beyond the last are read
    from the last ones; their sums are not stored. k's from ``end`` on become zeros
    (``live``).
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
    """Return lines that add the sums of all groups of lanes, into ``buffer``.

    Lanes of different groups have sums of the same elements of c, over other parts of
    k. They are added by a butterfly: of two lanes with the same vectors of sums, each
    keeps one half of them, and sends the other half. For two groups, four rows and 8
    columns a lane:

        is_upper = remainder(quotient(lane, 16), 2) == 1
        for i in unrolled(16):
            mine = select_f32(is_upper, sums[i + 16], sums[i])
            given = select_f32(is_upper, sums[i], sums[i + 16])
            sums[i] = mine + shuffle_xor_f32(given, 16)
        from_vector = 0 + remainder(quotient(lane, 16), 2) * 4
        for i in unrolled(4):
            m = quotient(from_vector + i, 2)
            v = remainder(from_vector + i, 2)
            if remainder(lane, 16) < 16:
                at = place + m * 128 + v * 64
                store_f32x4(buffer, at, sums, i * 4)

    When one vector is left but several groups are, lanes add without halving, and one
    of them stores. The variable ``place`` is the index of the lane's first total.
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
    # Where lanes add without halving, several have the same totals: of each ``alike``
    # neighbouring lanes, the first ``nearest`` have all different totals.
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
