"""Pieces of text that the kernels of attention share.

Tiles of fp16 or bf16 are in shared memory, ``Form.line`` elements from row to row. A
warp has ``m_fragments`` fragments of 16 rows of a block's rows. In the accumulators of
a product each lane has pairs of neighbouring columns, 8 apart, of ``2 * m_fragments``
rows, which are 8 apart too: ``lane_row`` counts these rows, ``i`` a lane's columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from arrayfn.lowering.cuda.attention.tiles import LOG2_E, Form, Tiles
from arrayfn.lowering.cuda.handwritten import filled, indented
from arrayfn.lowering.scalars.arithmetic import HALF_PRECISION

COLUMN = "(i // 2) * 8 + i % 2 + remainder(lane, 4) * 2"
"""The text of the tile's column that is a lane's i-th."""


_TERMS: Final = """
{before}
for lane_row in range({lane_rows}):
    {of_row}
    for i in range({pairs}):
        {of_pair}
        for side in range(2):
            {of_each}
"""


def _memory(dtype: str) -> str:
    """The name of ``dtype``, a short name, in functions that access memory."""
    return "u16" if dtype in HALF_PRECISION else dtype


@dataclass(frozen=True)
class Text:
    """Pieces of the text of one kernel; methods return lines of it.

    ``rows`` and ``columns`` are the kernel's integers for how many rows and columns the
    logits have: ``"queries"`` and ``"keys"``, or the reverse. The lines share these
    names: ``thread``, ``lane`` and ``warp``; ``first_row`` and ``start``, the first row
    and column of the block's tile; ``batch`` and ``member``, the head of queries;
    ``left_part`` and ``right_part``, registers for fragments; and those that
    ``fragment_offsets``, ``sequence_ends`` and ``bias_and_mask_bases`` define. They
    contain no barriers.
    """

    form: Form
    tiles: Tiles
    rows: str = "queries"
    columns: str = "keys"

    @property
    def lane_rows(self) -> int:
        """How many rows of the tile a lane has elements of."""
        return 2 * self.tiles.m_fragments

    def fill(self, template: str, **parts: str | int | Iterable[str]) -> str:
        """``template`` with ``parts`` for the names in braces (see ``filled``).

        Parts that all kernels have need not be given: sizes of tiles and of registers,
        ``terms``, and the lines that define the common names.
        """
        tiles = self.tiles
        common: dict[str, str | int] = {
            "rows": tiles.rows,
            "last_row": tiles.rows - 1,
            "columns": tiles.columns,
            "last_column": tiles.columns - 1,
            "warp_rows": tiles.warp_rows,
            "lane_rows": self.lane_rows,
            "row_logits": tiles.columns // 4,
            "logit_at": self.register(tiles.columns),
            "logits_size": tiles.m_fragments * tiles.columns // 2,
            "left_size": 8 * tiles.m_fragments,
            "factor": self.form.factor,
            "terms": self.terms(),
            "fragment_offsets": self.fragment_offsets(),
            "sequence_ends": self.sequence_ends(),
            "bias_and_mask_bases": self.bias_and_mask_bases(),
        }
        return filled(template, **common, **parts)

    def register(self, width: int, *, pair: bool = False) -> str:
        """The index of the accumulator of row ``lane_row`` and a lane's i-th column.

        ``width`` is the number of the accumulators' columns. If ``pair``, i counts
        pairs of columns.
        """
        column = "i) * 4" if pair else "i // 2) * 4"
        index = f"((lane_row // 2) * {width // 8} + {column} + (lane_row % 2) * 2"
        return index if pair else f"{index} + i % 2"

    def copy_rows(
        self,
        array: str,
        base: str,
        limit: str,
        count: int,
        start: str = "start",
        first: str = "",
    ) -> str:
        """Copy ``count`` rows of ``array`` from row ``start`` on into its tile.

        Row n is token n of the head at ``base``; those from ``limit`` on become zeros.
        They come to the tile's rows from element ``first`` on. ``base``, ``limit``,
        ``start`` and ``first`` are expressions; the last ends in `` + `` or is empty.
        """
        form, threads, step = self.form, self.tiles.threads, f"{array}_token"
        pieces, p, line = form.head // form.piece, form.piece, form.line
        across = math.gcd(pieces, threads)
        at_once = threads // across
        if p > 1 and count % at_once == 0 and across > 1:
            # Neighbouring threads have neighbouring pieces; each goes down a column.
            return f"""
row = quotient(thread, {across})
column = remainder(thread, {across}) * {p}
at = {base} + ({start} + row) * {step} + column
place = {first}row * {line} + column
for iteration in range({count // at_once}):
    live = select_i64({start} + row + iteration * {at_once} < {limit}, 1, 0)
    for side in range({pieces // across}):
        cp_async_u16x{p}(
            {array}, at + iteration * {at_once} * {step} + side * {across * p},
            {array}_tile,
            place + iteration * {at_once * line} + side * {across * p}, live,
        )
"""
        source = f"{base} + ({start} + row) * {step} + column"
        target = f"{first}row * {line} + column"
        copy = f"cp_async_u16x{p}({array}, {source}, {array}_tile, {target}, live)"
        if p == 1:
            read = f"{array}[{source}] if live > 0 else u16(0)"
            copy = f"{array}_tile[{target}] = {read}"
        return f"""
for at in range(thread, {count * pieces}, {threads}):
    row = quotient(at, {pieces})
    column = remainder(at, {pieces}) * {p}
    live = select_i64({start} + row < {limit}, 1, 0)
    {copy}
"""

    def zero_padding(self, tiles: Sequence[tuple[str, int]]) -> str:
        """Store zeros between the end of a head and the padded end of tiles' rows.

        ``tiles`` are names of shared arrays, and how many rows each has.
        """
        form, threads = self.form, self.tiles.threads
        width = form.padded - form.head
        if not width:
            return ""
        parts = [
            f"for at in range(thread, {rows * width}, {threads}):\n"
            f"    row = quotient(at, {width})\n"
            f"    column = {form.head} + remainder(at, {width})\n"
            f"    {tile}[row * {form.line} + column] = u16(0)"
            for tile, rows in tiles
        ]
        return "\n".join(parts)

    def zeros(self, *sums: str, width: int) -> str:
        """Set the accumulators ``sums``, of ``width`` columns, to zero."""
        count = self.tiles.m_fragments * width // 2
        lines = [f"for i in range({count}):"]
        lines += [f"    {name}[i] = f32(0)" for name in sums]
        return "\n".join(lines)

    def multiply_transposed(
        self, sums: str, left: str, right: str, first: str = ""
    ) -> str:
        """``sums += left @ right.T``, over the elements of a head, by tensor cores.

        ``sums`` are accumulators. ``left`` and ``right`` are tiles in shared memory;
        the latter begins at element ``first``, an expression that ends in `` + `` or is
        empty.
        """
        line, m_fragments = self.form.line, self.tiles.m_fragments
        return f"""
for step in unrolled({self.form.padded // 16}):
    for m in range({m_fragments}):
        at = row_at + m * {16 * line} + step * 16
        ldmatrix_u16({left}, at, left_part, m * 8)
    for pair in range({self.tiles.columns // 16}):
        at = {first}column_at + pair * {16 * line} + step * 16
        ldmatrix_u16({right}, at, right_part, 0)
        for m in range({m_fragments}):
            for side in range(2):
                mma_{self.form.dtype}(
                    {sums}, (m * {self.tiles.columns // 8} + pair * 2 + side) * 4,
                    left_part, m * 8, right_part, side * 4,
                )
"""

    def multiply(self, sums: str, weights: str, tile: str, first: str = "") -> str:
        """``sums += weights @ tile``, over the columns of logits, by tensor cores.

        ``sums`` and ``weights`` are accumulators; the latter are rounded to fp16 or
        bf16. ``tile`` is in shared memory from element ``first`` on, an expression that
        ends in `` + `` or is empty.
        """
        line, m_fragments = self.form.line, self.tiles.m_fragments
        return f"""
for step in range({self.tiles.columns // 16}):
    for m in range({m_fragments}):
        for pair in range(4):
            at = (m * {self.tiles.columns // 8} + step * 2) * 4 + pair * 2
            place = m * 8 + pair * 2
            pack_{self.form.dtype}({weights}[at], {weights}[at + 1], left_part, place)
    for pair in range({self.form.padded // 16}):
        at = {first}across_at + step * {16 * line} + pair * 16
        ldmatrix_trans_u16({tile}, at, right_part, 0)
        for m in range({m_fragments}):
            for side in range(2):
                mma_{self.form.dtype}(
                    {sums}, (m * {self.form.padded // 8} + pair * 2 + side) * 4,
                    left_part, m * 8, right_part, side * 4,
                )
"""

    def fragment_offsets(self) -> str:
        """Define where a lane's rows for ``ldmatrix`` begin in tiles.

        ``row_at`` is for left operands, ``column_at`` for right ones that are
        transposed, ``across_at`` for right ones that are not.
        """
        line, rows = self.form.line, self.tiles.warp_rows
        return f"""
row_at = (warp * {rows} + remainder(lane, 16)) * {line} + quotient(lane, 16) * 8
column_at = (remainder(lane, 8) + quotient(lane, 16) * 8) * {line}
column_at = column_at + remainder(quotient(lane, 8), 2) * 8
across_at = remainder(lane, 16) * {line} + quotient(lane, 16) * 8
"""

    def sequence_ends(self) -> str:
        """Define ``query_end`` and ``key_end``, the lengths of a batch's sequences."""
        form = self.form
        queries = "min_i64(queries, i64(query_lengths[batch]))"
        keys = "min_i64(keys, i64(key_lengths[batch]))"
        return (
            f"query_end = {queries if form.query_lengths else 'queries'}\n"
            f"key_end = {keys if form.key_lengths else 'keys'}"
        )

    def bias_and_mask_bases(self) -> str:
        """Define ``bias_base`` and ``mask_base``, where those of a head begin."""
        return "\n".join(
            f"{x}_base = batch * {x}_batch + member * {x}_head"
            for x, is_there in (("bias", self.form.bias), ("mask", self.form.mask))
            if is_there
        )

    def terms(self) -> str:
        """Scale ``logits``, add the bias and apply the mask, where there are any.

        The bias and the mask are read element by element, or two columns at once if the
        form has them ``paired``. Where columns of the tile are queries, as for the
        cotangents of keys, their rows and columns are exchanged, and nothing is paired.
        """
        form = self.form
        if not (form.scales_first or form.mask):
            return ""
        across = self.rows == "keys"  # the bias's rows are this kernel's columns
        rows, columns = ("column", "row") if across else ("row", "column")
        paired = () if across else form.paired
        before: list[str] = []
        of_row = [
            f"row = warp * {self.tiles.warp_rows} + lane_row * 8 + quotient(lane, 4)",
            f"row = min_i64(first_row + row, {self.rows} - 1)",
        ]
        of_pair = [
            f"at = {self.register(self.tiles.columns, pair=True)}",
            "column = start + i * 8 + remainder(lane, 4) * 2",
        ]
        of_each: list[str] = []
        if (form.bias and "bias" not in paired) or (form.mask and "mask" not in paired):
            of_each.append(f"place = min_i64(column + side, {self.columns} - 1)")
        for name, kind in (("bias", _memory(form.bias)), ("mask", "u8" * form.mask)):
            if not kind:
                continue
            of_row.append(f"{name}_at = {name}_base + row * {name}_{rows}")
            value = f"{name}[{name}_at + place * {name}_{columns}]"
            if name in paired:
                value = f"{name}_pair[side]"
                before.append(f"{name}_pair = registers_{kind}(2)")
                of_pair += [
                    f"place = {name}_at + min_i64(column, {self.columns} - 2)",
                    f"load_{kind}x2({name}, place, {name}_pair, 0)",
                ]
            if name == "bias":
                if kind != "f32":
                    value = f"convert_{form.bias}_f32({value})"
                of_each += [
                    f"added = {value} * f32({LOG2_E!r})",
                    "logits[at + side] = fma_f32(logits[at + side], factor, added)",
                ]
        if form.scales_first and not form.bias:
            of_each.append("logits[at + side] = logits[at + side] * factor")
        if form.mask:
            index = f"mask_at + place * mask_{columns}"
            shown = "mask_pair[side]" if "mask" in paired else f"mask[{index}]"
            of_each += [
                f"logit = select_f32({shown} == 0, F32_NEG_INF, logits[at + side])",
                "logits[at + side] = logit",
            ]
        return filled(
            _TERMS,
            before=before,
            lane_rows=self.lane_rows,
            of_row=of_row,
            pairs=self.tiles.columns // 8,
            of_pair=of_pair,
            of_each=of_each,
        )

    def limits(self, before: str, after: str, row_end: str, column_end: str) -> str:
        """Set ``logits`` outside of the window and of the sequences to -inf.

        A row attends to columns from ``before`` it to ``after`` it, of those below
        ``column_end``; rows from ``row_end`` on attend to none. All are expressions.
        Tiles that lie inside skip this.
        """
        rows, columns = self.tiles.rows, self.tiles.columns
        return f"""
inside = (start + {columns} <= {column_end}) & (first_row + {rows} <= {row_end})
inside = inside & (start + {columns} <= first_row + {after} + 1)
inside = inside & (start >= first_row + {rows - 1} - {before})
if not inside:
    for lane_row in range({self.lane_rows}):
        row = warp * {self.tiles.warp_rows} + lane_row * 8 + quotient(lane, 4)
        row = first_row + row
        last = min_i64(row + {after} + 1, {column_end})
        last = select_i64(row < {row_end}, last, 0)
        for i in range({columns // 4}):
            at = {self.register(columns)}
            column = start + {COLUMN}
            beyond = (column < row - {before}) | (column >= last)
            logits[at] = select_f32(beyond, F32_NEG_INF, logits[at])
"""

    def round_to_tile(self, sums: str, factor: str, tile: str) -> str:
        """Store the accumulators ``sums`` times ``factor`` in a tile, rounded.

        ``tile`` is in shared memory; ``factor`` is an expression.
        """
        form = self.form
        return f"""
for lane_row in range({self.lane_rows}):
    line = warp * {self.tiles.warp_rows} + lane_row * 8 + quotient(lane, 4)
    for i in range({form.padded // 8}):
        place = {self.register(form.padded, pair=True)}
        first = {sums}[place] * {factor}
        pack_{form.dtype}(first, {sums}[place + 1] * {factor}, left_part, 0)
        at = line * {form.line} + i * 8 + remainder(lane, 4) * 2
        {tile}[at] = left_part[0]
        {tile}[at + 1] = left_part[1]
"""

    def store_rows(self, array: str, tile: str, base: str, step: str) -> str:
        """Store the rows of the shared array ``tile`` in the result ``array``.

        ``base`` is the index of row 0 of the head in the result, ``step`` the distance
        from row to row.
        """
        form, tiles = self.form, self.tiles
        pieces, p = form.head // form.piece, form.piece
        target = f"{base} + (first_row + row) * {step} + column"
        source = f"row * {form.line} + column"
        move = [f"{array}[{target}] = {tile}[{source}]"]
        if p > 1:
            move = [
                f"load_u16x{p}({tile}, {source}, right_part, 0)",
                f"place = {target}",
                f"store_u16x{p}({array}, place, right_part, 0)",
            ]
        lines = [
            f"for at in range(thread, {tiles.rows * pieces}, {tiles.threads}):",
            f"    row = quotient(at, {pieces})",
            f"    column = remainder(at, {pieces}) * {form.piece}",
            f"    if first_row + row < {self.rows}:",
        ]
        return "\n".join([*lines, indented(move, 2)])
