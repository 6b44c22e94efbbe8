"""Pieces of text that the kernels of attention share.

Tiles of fp16 or bf16 are in shared memory, ``Form.line`` elements from row to row. A
warp has ``m_fragments`` fragments of 16 rows of a block's rows. The accumulators of a
product are registers in the layout of ``mma.m16n8k16``: each lane has pairs of
neighbouring columns, 8 apart, of ``2 * m_fragments`` rows, which are 8 apart too.
``lane_row`` counts these rows, ``i`` a lane's columns (or pairs of them).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from arrayfn.lowering.cuda.attention.scores import PLACES, SCORE
from arrayfn.lowering.cuda.attention.tiles import LOG2_E, Form, Tiles
from arrayfn.lowering.cuda.handwritten import fill_template, indented
from arrayfn.lowering.scalars.arithmetic import HALF_PRECISION
from arrayfn.records import frozen

COLUMN = "(i // 2) * 8 + i % 2 + remainder(lane, 4) * 2"
"""The expression of the tile's column that is a lane's i-th."""


_SCALE_AND_MASK: Final = """
{of_head}
{before}
for lane_row in {loop}({lane_rows}):
    row = warp * {warp_rows} + lane_row * 8 + quotient(lane, 4)
    row = min_i64(first_row + row, {rows} - 1)
    {of_row}
    for i in {loop}({pairs}):
        at = {at}
        column = start + i * 8 + remainder(lane, 4) * 2
        {of_pair}
        for side in {loop}(2):
            {of_each}
"""


@frozen
class _Term:
    """How the kernel reads the bias or the mask of a logit: expressions and lines.

    Args:
        value: The expression of the element for a logit, in float32 if it is a bias.
        before: Lines that declare registers.
        of_row: The line that finds a row of the bias or mask.
        of_pair: Lines that read a pair of neighbouring elements; none if elements are
            read one by one.
    """

    value: str
    before: Sequence[str]
    of_row: str
    of_pair: Sequence[str]


@frozen
class Text:
    """Pieces of the text of one kernel; methods return lines of it, without barriers.

    The lines share these names: ``thread``, ``lane`` and ``warp``; ``first_row`` and
    ``start``, the first row and column of the block's tile of logits; ``batch`` and
    ``member``, the head of queries; ``left_part`` and ``right_part``, registers for
    fragments; and those that ``fragment_offsets``, ``sequence_ends`` and
    ``bias_and_mask_bases`` define.

    Args:
        form: What the text depends on, besides the tiles.
        tiles: The sizes of tiles.
        rows: The kernel's integer for how many rows the logits have: ``"queries"``, or
            ``"keys"`` in the kernel of the keys' cotangents.
        columns: The kernel's integer for how many columns the logits have: the other of
            these two.
        mean: In a kernel that computes cotangents of logits, the expression of the
            ``delta`` of a logit's query, for ``lane_row``, ``column`` and ``side``.
    """

    form: Form
    tiles: Tiles
    rows: str = "queries"
    columns: str = "keys"
    mean: str = ""

    @property
    def lane_rows(self) -> int:
        """How many rows of the tile a lane has elements of."""
        return 2 * self.tiles.m_fragments

    def fill(self, template: str, **parts: str | int | Iterable[str]) -> str:
        """Return ``template`` with ``parts`` for the names in braces.

        Parts that all kernels have need not be given: sizes of tiles and of registers,
        ``scale_and_mask``, and the lines that define the common names. See
        ``fill_template``.
        """
        tiles = self.tiles
        score = self.form.score
        common: dict[str, str | int] = {
            "rows": tiles.rows,
            "last_row": tiles.rows - 1,
            "columns": tiles.columns,
            "last_column": tiles.columns - 1,
            "warp_rows": tiles.warp_rows,
            "lane_rows": self.lane_rows,
            "row_logits": tiles.columns // 4,
            "logit_at": self.accumulator(tiles.columns),
            "logits_size": tiles.m_fragments * tiles.columns // 2,
            "left_size": 8 * tiles.m_fragments,
            "factor": self.form.factor,
            "scale_and_mask": self.scale_and_mask(),
            "fragment_offsets": self.fragment_offsets(),
            "sequence_ends": self.sequence_ends(),
            "bias_and_mask_bases": self.bias_and_mask_bases(),
            "score_constants": "\n".join(score.constants) if score else "",
        }
        return fill_template(template, **common, **parts)

    def accumulator(self, width: int, *, pair: bool = False) -> str:
        """Return the index of the accumulator of row ``lane_row`` and column i.

        ``lane_row`` and i count a lane's rows and columns. For 64 columns:

            ((lane_row // 2) * 8 + i // 2) * 4 + (lane_row % 2) * 2 + i % 2

        An accumulator fragment of 16 by 8 has four registers a lane: two rows, of two
        columns each.

        Args:
            width: The number of columns of the product.
            pair: Whether i counts pairs of columns: then the index is that of the
                first.
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

        For 64 rows of heads of 40 elements, as 5 pieces of 8, by 128 threads:

            for at in range(thread, 320, 128):
                row = quotient(at, 5)
                column = remainder(at, 5) * 8
                live = select_i64(start + row < end, 1, 0)
                cp_async_u16x8(k, k_base + ..., k_tile, row * 56 + column, live)

        Args:
            array: The name of the array, here ``k``; the tile is ``k_tile``.
            base: The index in the array at which the head begins, an expression.
            limit: The first token that is not copied: from it on zeros are stored.
            count: How many rows.
            start: The token that is the first row, an expression.
            first: Where the rows begin in the tile: an expression and `` + ``, or
                empty.
        """
        form, threads, step = self.form, self.tiles.threads, f"{array}_token"
        pieces, p, line = form.head // form.piece, form.piece, form.line
        # Threads that share a row's pieces evenly; ``at_once`` rows are copied by all
        # threads in an iteration.
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
        """Multiply on tensor cores: ``sums += left @ right.T``.

        The sum of each product is over the elements of a head. The kernel has defined
        ``row_at`` and ``column_at`` (where a lane reads its first fragments in a tile)
        and the registers ``left_part`` and ``right_part`` (for fragments).

        Args:
            sums: The name of the accumulators, here ``logits``.
            left: The tile of rows in shared memory, here ``q_tile``.
            right: The tile of columns, here ``k_tile``.
            first: Where the tile of columns begins in its array: an expression and `` +
                ``, or empty.
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
        """Multiply on tensor cores: ``sums += weights @ tile``.

        The sum of each product is over the columns of logits.

        Args:
            sums: The name of the accumulators of the result.
            weights: The name of the accumulators of the left factor, here ``logits``;
                they are rounded to 16 bits.
            tile: The right factor in shared memory, here ``v_tile``.
            first: Where the right factor begins in its array: an expression and
                `` + ``, or empty.
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
        """Define where in a tile a lane's row for ``ldmatrix`` begins.

        ``row_at`` is for left factors, ``column_at`` for right factors that are
        transposed, ``across_at`` for right factors that are not.

        ``ldmatrix`` loads four matrices of 8 by 8: lanes 0 to 7 give the rows of the
        first, lanes 8 to 15 those of the second, and so on.
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
        """Define where the bias and the mask of a head begin, if there are any.

        For example ``bias_base = batch * bias_batch + member * bias_head``.
        """
        return "\n".join(
            f"{x}_base = batch * {x}_batch + member * {x}_head"
            for x, is_there in (("bias", self.form.bias), ("mask", self.form.mask))
            if is_there
        )

    @property
    def is_transposed(self) -> bool:
        """Whether rows of the tile are keys and columns queries."""
        return self.rows == "keys"

    def scale_and_mask(self) -> str:
        """Scale ``logits``, add the bias and apply the mask, where there are any.

        The score function is applied after the bias and before the mask. In a kernel
        that computes cotangents (``mean``), the score function also changes ``dp``:
        from cotangents of scores to cotangents of logits, both without the factor of
        the logit's weight. Empty if logits are scaled later and there is no mask. For a
        float32 bias:

            for lane_row in range(4):
                row = warp * 32 + lane_row * 8 + quotient(lane, 4)
                row = min_i64(first_row + row, queries - 1)
                bias_at = bias_base + row * bias_row
                for i in range(8):
                    at = ((lane_row // 2) * 8 + i) * 4 + (lane_row % 2) * 2
                    column = start + i * 8 + remainder(lane, 4) * 2
                    for side in range(2):
                        place = min_i64(column + side, keys - 1)
                        added = bias[bias_at + place * bias_column] * f32(1.44...)
                        logits[at + side] = fma_f32(logits[at + side], factor, added)
        """
        form = self.form
        score = form.score
        if not (form.scales_first or form.mask):
            return ""
        dtypes = {"bias": form.bias, "mask": "u8" if form.mask else ""}
        terms = {name: self._term(name, t) for name, t in dtypes.items() if t}
        # Lines for each logit. ``place`` is its column, clamped to the array.
        of_each: list[str] = []
        if score or any(not term.of_pair for term in terms.values()):
            of_each.append(f"place = min_i64(column + side, {self.columns} - 1)")
        if score:
            of_each += self._score(terms["bias"].value if "bias" in terms else "")
        elif "bias" in terms:
            of_each += [
                f"added = {terms['bias'].value} * f32({LOG2_E!r})",
                "logits[at + side] = fma_f32(logits[at + side], factor, added)",
            ]
        elif form.scales_first:
            of_each.append("logits[at + side] = logits[at + side] * factor")
        if "mask" in terms:
            is_hidden = f"{terms['mask'].value} == 0"
            of_each += [
                f"logit = select_f32({is_hidden}, F32_NEG_INF, logits[at + side])",
                "logits[at + side] = logit",
            ]
        of_row = [term.of_row for term in terms.values()]
        # Lines of the score function that depend only on the head, or on the row.
        of_head: list[str] = []
        if score:
            *outer, query, key = PLACES
            along = key if self.is_transposed else query
            of_tile, of_each_row, _ = score.in_loops(along)
            of_head += [f"s_{x} = convert_i64_i32({x})" for x in outer]
            of_head += of_tile
            of_row += [f"s_{along} = convert_i64_i32(row)", *of_each_row]
        return fill_template(
            _SCALE_AND_MASK,
            of_head=of_head,
            # The compiler would not unroll a loop over a long score function, and then
            # keep the registers that it indexes in memory.
            loop="unrolled" if score else "range",
            before=[line for term in terms.values() for line in term.before],
            lane_rows=self.lane_rows,
            warp_rows=self.tiles.warp_rows,
            rows=self.rows,
            of_row=of_row,
            pairs=self.tiles.columns // 8,
            at=self.accumulator(self.tiles.columns, pair=True),
            of_pair=[line for term in terms.values() for line in term.of_pair],
            of_each=of_each,
        )

    def _score(self, bias: str) -> list[str]:
        """Return the lines that put a logit through the score function.

        For ``20 * tanh(score / 20)``, in a kernel of cotangents:

            s_key = convert_i64_i32(place)
            s_score = logits[at + side] * f32(0.125)
            s_e = div_f32(s_score, c0)
            s_f = tanh_f32(s_e)
            s_g = c1 * s_f
            s_h = f32(1) - s_f * s_f
            logits[at + side] = s_g * f32(1.44...)
            dp[at + side] = (dp[at + side] - row_delta[lane_row]) * s_h

        Args:
            bias: The expression of the bias, which is added to the scaled logit; empty
                if there is none.
        """
        score = self.form.score
        assert score is not None
        # What the tile's rows and columns are.
        query, key = PLACES[2:]
        along, across = (key, query) if self.is_transposed else (query, key)
        added = f" + {bias}" if bias else ""
        *_, of_each = score.in_loops(along)
        lines = [
            f"s_{across} = convert_i64_i32(place)",
            f"{SCORE} = logits[at + side] * f32({self.form.scale!r}){added}",
            *of_each,
            f"logits[at + side] = {score.value} * f32({LOG2_E!r})",
        ]
        if self.mean:
            difference = f"dp[at + side] - {self.mean}"
            if score.slope:
                difference = f"({difference}) * {score.slope}"
            lines.append(f"dp[at + side] = {difference}")
        return lines

    def logit_cotangent(self, mean: str) -> str:
        """Return the expression of a logit's cotangent, from ``weight`` and ``dp[at]``.

        ``mean`` is the ``delta`` of its query. With a score function,
        ``scale_and_mask`` has subtracted it already and has multiplied by the
        function's derivative, which may be infinite where a key is not attended to.
        """
        if self.form.score is None:
            return f"weight * (dp[at] - {mean})"
        return "select_f32(weight == f32(0), f32(0), weight * dp[at])"

    def _term(self, name: str, dtype: str) -> _Term:
        """Return how ``scale_and_mask`` reads an element of the bias or mask.

        Where columns of the tile are queries, as for the cotangents of keys, the tile's
        rows and columns are exchanged, and nothing is read by pairs.

        Args:
            name: "bias" or "mask".
            dtype: The short dtype of the bias or mask.
        """
        row, column = ("column", "row") if self.is_transposed else ("row", "column")
        stored = "u16" if dtype in HALF_PRECISION else dtype
        of_row = f"{name}_at = {name}_base + row * {name}_{row}"
        value = f"{name}[{name}_at + place * {name}_{column}]"
        before, of_pair = list[str](), list[str]()
        if name in self.form.paired and not self.is_transposed:
            value = f"{name}_pair[side]"
            before = [f"{name}_pair = registers_{stored}(2)"]
            of_pair = [
                f"place = {name}_at + min_i64(column, {self.columns} - 2)",
                f"load_{stored}x2({name}, place, {name}_pair, 0)",
            ]
        if dtype in HALF_PRECISION:
            value = f"convert_{dtype}_f32({value})"
        return _Term(value, before, of_row, of_pair)

    def hide_outside(
        self, before: str, after: str, row_end: str, column_end: str
    ) -> str:
        """Set ``logits`` outside of the window and of the sequences to -inf.

        Nothing is set if all of the tile is ``inside``. Row r attends to columns from
        ``r - before`` to ``r + after``, below ``column_end``. Rows from ``row_end`` on
        attend to none. All arguments are expressions.
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
            at = {self.accumulator(columns)}
            column = start + {COLUMN}
            beyond = (column < row - {before}) | (column >= last)
            logits[at] = select_f32(beyond, F32_NEG_INF, logits[at])
"""

    def round_to_tile(self, sums: str, factor: str, tile: str) -> str:
        """Round the accumulators ``sums`` times ``factor``, and store them in a tile.

        ``tile`` is in shared memory; ``factor`` is an expression.
        """
        form = self.form
        return f"""
for lane_row in range({self.lane_rows}):
    line = warp * {self.tiles.warp_rows} + lane_row * 8 + quotient(lane, 4)
    for i in range({form.padded // 8}):
        place = {self.accumulator(form.padded, pair=True)}
        first = {sums}[place] * {factor}
        pack_{form.dtype}(first, {sums}[place + 1] * {factor}, left_part, 0)
        at = line * {form.line} + i * 8 + remainder(lane, 4) * 2
        {tile}[at] = left_part[0]
        {tile}[at + 1] = left_part[1]
"""

    def store_rows(self, array: str, tile: str) -> str:
        """Store the rows of the shared array ``tile`` in the result ``array``.

        For heads of 40 elements, as pieces of 8:

            for at in range(thread, 320, 128):
                row = quotient(at, 5)
                column = remainder(at, 5) * 8
                if first_row + row < queries:
                    load_u16x8(q_tile, row * 56 + column, right_part, 0)
                    place = out_base + (first_row + row) * out_step + column
                    store_u16x8(out, place, right_part, 0)

        ``out_base`` is the index of row 0 of the head in the result, ``out_step`` the
        distance from row to row.
        """
        form, tiles = self.form, self.tiles
        pieces, p = form.head // form.piece, form.piece
        target = "out_base + (first_row + row) * out_step + column"
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
