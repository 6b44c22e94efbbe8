"""Skinny products of fp16 or bf16 by tensor cores: a few rows and a large matrix.

``c[m, n] = a[m, k] @ b[k, n]``, where ``b`` may also be the transpose of the matrix in
memory. The warps of a block split k: each multiplies tiles of ``k_tile`` of k and all
columns of the block. Copies bring a warp's tiles of ``a`` and ``b`` to a section of
shared memory that is its own, so warps do not wait for each other. There the pieces of
16 bytes of each line are swizzled, so that eight lines are read at once without bank
conflicts. At the end the sums of all warps are added in warp order.
"""

from __future__ import annotations

from typing import Final

from typing_extensions import override

from arrayfn.lowering.cuda.handwritten import Handwritten
from arrayfn.lowering.cuda.products.skinny_tiles import SkinnyTile, lane_loop
from arrayfn.records import frozen

PIECE: Final = 8
"""16-bit elements of a piece, which is what an access of 16 bytes moves."""
_ROWS: Final = 16
"""Rows of a fragment of a, and its extent along k."""


@frozen(slots=True)
class HalfTile(SkinnyTile):
    """The tile of an fp16 or bf16 kernel: ``width`` columns, ``k_tile`` of k a warp.

    ``dtype`` is that of a and b: fp16 or bf16.
    """

    itemsize = 2
    width: int = 32
    k_tile: int = 64
    dtype: str = "bf16"

    @property
    @override
    def columns(self) -> int:
        """Columns of a block."""
        return self.width

    @property
    @override
    def depth(self) -> int:
        """The extent along k of a warp's tile."""
        return self.k_tile

    @property
    @override
    def stage_elements(self) -> int:
        """Elements of a warp's tiles of a and b, which follow each other."""
        return (_ROWS + self.width) * self.k_tile

    @property
    def sum_bytes(self) -> int:
        """Bytes of shared memory for the sums of all warps, after the stages."""
        return 4 * self.warps * self.accumulators


def half_kernel(tile: HalfTile) -> Handwritten:
    """Write the kernel of ``tile``; see ``SkinnyTile`` for the names that texts share.

    A warp multiplies fragments of 16 rows of a and 16 columns of b. ``ldmatrix`` needs
    from each lane the address of a piece of a line. ``row_at`` and ``side_at`` are the
    lane's line and piece in a fragment of a; ``line_at`` and ``column_piece`` are those
    in a fragment of b. ``sums`` are the accumulators in registers, ``held`` the
    accumulators of all warps in shared memory.
    """
    b_lines, b_length = (
        (tile.width, tile.k_tile) if tile.transposed else (tile.k_tile, tile.width)
    )
    # Which line, and which piece of it, a lane addresses for ldmatrix.
    row, side = "remainder(lane, 16)", "quotient(lane, 16)"
    load, b_row, b_piece = "ldmatrix_trans", "i * 16 + line_at", "j * 2 + column_piece"
    line_at, column_piece = row, side
    if tile.transposed:
        load, b_row, b_piece = "ldmatrix", "j * 16 + line_at", "i * 2 + column_piece"
        line_at = "remainder(lane, 8) + quotient(lane, 16) * 8"
        column_piece = "remainder(quotient(lane, 8), 2)"
    multiply = f"""from_b = place + {_ROWS * tile.k_tile}
for i in unrolled({tile.k_tile // 16}):
    swizzled = {_swizzled("row_at", "(i * 2 + side_at)", tile.k_tile)}
    ldmatrix_u16(buffer, place + row_at * {tile.k_tile} + swizzled * {PIECE}, a_part, 0)
    for j in unrolled({tile.columns // 16}):
        line = {b_row}
        swizzled = {_swizzled("line", f"({b_piece})", b_length)}
        {load}_u16(buffer, from_b + line * {b_length} + swizzled * {PIECE}, b_part, 0)
        mma_{tile.dtype}(sums, j * 8, a_part, 0, b_part, 0)
        mma_{tile.dtype}(sums, j * 8 + 4, a_part, 0, b_part, 4)"""
    # ``dynamic_shared_f32`` takes the offset of ``held`` in bytes. ``sums`` have the
    # m16n8 layout of accumulators (PTX ISA).
    body = f"""{tile.prologue}
row_at = {row}
side_at = {side}
line_at = {line_at}
column_piece = {column_piece}
buffer = dynamic_shared_u16(0, {tile.ring_elements})
held = dynamic_shared_f32({2 * tile.ring_elements}, {tile.warps * tile.accumulators})
a_part = registers_u16({PIECE})
b_part = registers_u16({PIECE})
sums = registers_f32({tile.columns // 2})
for i in unrolled({tile.columns // 2}):
    sums[i] = f32(0)
{tile.pipelined(_copies(tile, b_lines, b_length), multiply)}
for i in unrolled({tile.columns // 2}):
    m = quotient(lane, 4) + i % 4 // 2 * 8
    column = i // 4 * 8 + remainder(lane, 4) * 2 + i % 2
    if m < {tile.rows}:
        held[warp * {tile.accumulators} + m * {tile.columns} + column] = sums[i]
{tile.reduction("held")}"""
    return tile.kernel(body, 2 * tile.ring_elements + tile.sum_bytes)


def _swizzled(line: str, piece: str, length: int) -> str:
    """Return the expression of the index of a piece in its line in shared memory.

    For a line of 64 elements it is ``piece ^ remainder(line, 8)``: so piece i of eight
    successive lines lies in eight different groups of banks.

    Args:
        line: The expression of the line's number.
        piece: The expression of the piece's number in the line.
        length: Elements of a line.
    """
    pieces = length // PIECE
    lines = max(1, PIECE // pieces)  # lines of all banks once
    swizzle = line if lines == 1 else f"quotient({line}, {lines})"
    return f"{piece} ^ remainder({swizzle}, {min(pieces, PIECE)})"


def _copies(tile: HalfTile, b_lines: int, b_length: int) -> str:
    """Return lines that begin to copy tiles from ``begin`` along k to ``place``.

    For a transposed b, in lines of 64 k's (the tile of a is copied likewise before it):

        for iteration in unrolled(8):
            at = iteration * 32 + lane
            row = quotient(at, 8)
            piece = remainder(at, 8)
            near = min_i64(first_column + row, n - 1)
            live = select_i64(begin + piece * 8 < end, 1, 0)
            swizzled = piece ^ remainder(row, 8)
            target = place + 1024 + row * 64 + swizzled * 8
            cp_async_u16x8(b_in, near * ldb + begin + piece * 8, buffer, target, live)
        cp_async_commit()

    All copies form one commit group. Beyond ``end`` the tile is filled with zeros.

    Args:
        tile: The tile.
        b_lines: Lines of the tile of b.
        b_length: Elements of such a line.
    """
    k_pieces, pieces = tile.k_tile // PIECE, b_length // PIECE
    inside, source = "begin + row < end", "(begin + row) * ldb + near"
    near = f"min_i64(first_column + piece * {PIECE}, n - {PIECE})"
    if tile.transposed:
        inside, source = f"begin + piece * {PIECE} < end", "near * ldb + begin"
        source += f" + piece * {PIECE}"
        near = "min_i64(first_column + row, n - 1)"
    return f"""{lane_loop(_ROWS * k_pieces)}
    row = quotient(at, {k_pieces})
    piece = remainder(at, {k_pieces})
    along = begin + piece * {PIECE}
    live = select_i64(row < rows and along < end, 1, 0)
    source = min_i64(row, rows - 1) * a_row + along
    swizzled = {_swizzled("row", "piece", tile.k_tile)}
    target = place + row * {tile.k_tile} + swizzled * {PIECE}
    cp_async_u16x8(a_in, source, buffer, target, live)
{lane_loop(b_lines * pieces)}
    row = quotient(at, {pieces})
    piece = remainder(at, {pieces})
    near = {near}
    live = select_i64({inside}, 1, 0)
    swizzled = {_swizzled("row", "piece", b_length)}
    target = place + {_ROWS * tile.k_tile} + row * {b_length} + swizzled * {PIECE}
    cp_async_u16x8(b_in, {source}, buffer, target, live)
cp_async_commit()"""
