"""Products of few fp16 or bf16 rows and a large matrix, by tensor cores.

``c[m, n] = a[m, k] @ b[k, n]``, where ``b`` may also be the transpose of what lies in
memory. Warps go along what is summed over, each ``deep`` of it at a time, for all
columns of the block. What a warp needs of ``a`` and ``b`` comes to its own part of
shared memory, some steps ahead: warps wait for no others. There pieces of 16 bytes of a
line are swizzled, so that eight lines are read at once without bank conflicts. At the
end the sums of all warps are added up, in their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from arrayfn.lowering.cuda.handwritten import Handwritten
from arrayfn.lowering.cuda.products.skinny_tiles import SkinnyTile, all_lanes

PIECE: Final = 8  # 16-bit elements: 128 bits
_ROWS: Final = 16  # of a fragment of a, and so many of what is summed over


@dataclass(frozen=True, slots=True)
class HalfTile(SkinnyTile):
    """A block has ``strip`` columns, and a warp takes ``deep`` of ``k`` at a time.

    Its elements are of ``dtype``, fp16 or bf16.
    """

    itemsize = 2
    strip: int = 32
    deep: int = 64
    dtype: str = "bf16"

    @property
    def columns(self) -> int:
        """Columns of a block."""
        return self.strip

    @property
    def depth(self) -> int:
        """How much of ``k`` a warp takes at a time."""
        return self.deep

    @property
    def stage(self) -> int:
        """Elements of a, and then b, that a warp takes at a time."""
        return (_ROWS + self.strip) * self.deep

    @property
    def held_bytes(self) -> int:
        """Bytes of shared memory for the sums of all warps."""
        return 4 * self.warps * self.accumulators


def half_text(tile: HalfTile) -> Handwritten:
    """The kernel."""
    lines, line = (
        (tile.strip, tile.deep) if tile.transposed else (tile.deep, tile.strip)
    )
    # Which line of a lane's matrix, and which piece of it, as fragments want them.
    row, side = "remainder(lane, 16)", "quotient(lane, 16)"
    load, b_row, b_piece = "ldmatrix_trans", "i * 16 + line_at", "j * 2 + column_piece"
    line_at, column_piece = row, side
    if tile.transposed:
        load, b_row, b_piece = "ldmatrix", "j * 16 + line_at", "i * 2 + column_piece"
        line_at = "remainder(lane, 8) + quotient(lane, 16) * 8"
        column_piece = "remainder(quotient(lane, 8), 2)"
    multiplied = f"""from_b = place + {_ROWS * tile.deep}
for i in unrolled({tile.deep // 16}):
    lies = {_exchanged("row_at", "(i * 2 + side_at)", tile.deep)}
    ldmatrix_u16(room, place + row_at * {tile.deep} + lies * {PIECE}, a_part, 0)
    for j in unrolled({tile.columns // 16}):
        line = {b_row}
        lies = {_exchanged("line", f"({b_piece})", line)}
        {load}_u16(room, from_b + line * {line} + lies * {PIECE}, b_part, 0)
        mma_{tile.dtype}(sums, j * 8, a_part, 0, b_part, 0)
        mma_{tile.dtype}(sums, j * 8 + 4, a_part, 0, b_part, 4)"""
    body = f"""{tile.begin}
row_at = {row}
side_at = {side}
line_at = {line_at}
column_piece = {column_piece}
room = dynamic_shared_u16(0, {tile.ring})
held = dynamic_shared_f32({2 * tile.ring}, {tile.warps * tile.accumulators})
a_part = registers_u16({PIECE})
b_part = registers_u16({PIECE})
sums = registers_f32({tile.columns // 2})
for i in unrolled({tile.columns // 2}):
    sums[i] = f32(0)
{tile.pipelined(_fetched(tile, lines, line), multiplied)}
for i in unrolled({tile.columns // 2}):
    m = quotient(lane, 4) + i % 4 // 2 * 8
    column = i // 4 * 8 + remainder(lane, 4) * 2 + i % 2
    if m < {tile.rows}:
        held[warp * {tile.accumulators} + m * {tile.columns} + column] = sums[i]
{tile.added_up("held")}"""
    return tile.written(body, 2 * tile.ring + tile.held_bytes)


def _exchanged(line: str, piece: str, length: int) -> str:
    """Where a piece of a line of ``length`` elements is: swizzled over the banks."""
    pieces = length // PIECE
    lines = max(1, PIECE // pieces)  # lines of all banks once
    swizzle = line if lines == 1 else f"quotient({line}, {lines})"
    return f"{piece} ^ remainder({swizzle}, {min(pieces, PIECE)})"


def _fetched(tile: HalfTile, lines: int, line: int) -> str:
    """Begins to copy what belongs to ``begin`` to ``place``: zeros beyond the end."""
    deep, pieces = tile.deep // PIECE, line // PIECE
    inside, source = "begin + row < end", "(begin + row) * ldb + near"
    near = f"min_i64(strip + piece * {PIECE}, n - {PIECE})"
    if tile.transposed:
        inside, source = f"begin + piece * {PIECE} < end", "near * ldb + begin"
        source += f" + piece * {PIECE}"
        near = "min_i64(strip + row, n - 1)"
    return f"""{all_lanes(_ROWS * deep)}
    row = quotient(at, {deep})
    piece = remainder(at, {deep})
    along = begin + piece * {PIECE}
    live = select_i64(row < rows and along < end, 1, 0)
    source = min_i64(row, rows - 1) * a_row + along
    lies = {_exchanged("row", "piece", tile.deep)}
    target = place + row * {tile.deep} + lies * {PIECE}
    cp_async_u16x8(a_in, source, room, target, live)
{all_lanes(lines * pieces)}
    row = quotient(at, {pieces})
    piece = remainder(at, {pieces})
    near = {near}
    live = select_i64({inside}, 1, 0)
    lies = {_exchanged("row", "piece", line)}
    target = place + {_ROWS * tile.deep} + row * {line} + lies * {PIECE}
    cp_async_u16x8(b_in, {source}, room, target, live)
cp_async_commit()"""
