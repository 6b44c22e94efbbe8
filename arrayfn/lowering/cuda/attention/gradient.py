"""The cotangents of attention, with recomputed weights: FlashAttention-2's backward.

A first kernel computes ``delta``, the product of each result with its cotangent, and
``lse``, the logsumexp of each query's logits in base 2. Then one kernel computes dq: a
block has a tile of queries and loops over tiles of keys. Another computes dk and dv: a
block has a tile of keys and loops over tiles of the queries of all heads that share
them. Without atomic additions, each sum has a fixed order. Algorithm 2 of Dao,
FlashAttention-2, 2023.

Both have one text: *rows* of a tile of logits are what a block keeps, *columns* what it
loops over (see ``_Side``). While it multiplies one tile of columns, the next is copied.
In the texts ``dp`` are the cotangents of weights and, later, of logits (``ds``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from arrayfn.lowering.cuda.attention.blocks import (
    block_row,
    kept_columns,
    next_columns,
)
from arrayfn.lowering.cuda.attention.text import COLUMN, Text
from arrayfn.lowering.cuda.attention.tiles import LOG2_E, Form, Tiles
from arrayfn.lowering.cuda.handwritten import fill_template, indented
from arrayfn.records import frozen

STATISTICS_WARPS: Final = 4
"""Warps of a block of the kernel of ``query_statistics``; each has one query."""

_STATISTICS: Final = """
lane = remainder(thread_index(), 32)
row = block_index() * {warps} + quotient(thread_index(), 32)
live = row < rows
row = min_i64(row, rows - 1)
token = row // heads
head = row - token * heads
batch = token // queries
token = token - batch * queries
result_at = batch * result_batch + token * result_token + head * result_head
cotangent_at = batch * cotangent_batch + token * cotangent_token
cotangent_at = cotangent_at + head * cotangent_head
mean = f32(0)
first = registers_u16({piece})
second = registers_u16({piece})
for at in range(lane, {pieces}, 32):
    {load}
    for i in range({piece}):
        x = convert_{T}_f32(first[i])
        mean = mean + x * convert_{T}_f32(second[i])
for step in range(5):
    mean = mean + shuffle_xor_f32(mean, 16 >> step)
if live and lane == 0:
    at = (batch * heads + head) * queries + token
    bound = logarithms[at] * f32({log2_e})
    delta_out[at] = mean
    lse_out[at] = select_f32(bound == F32_NEG_INF, F32_INF, bound)
"""


def query_statistics(form: Form) -> str:
    """Return the body of the first kernel, which computes ``delta`` and ``lse``.

    A warp has a query. It stores ``delta_out`` and ``lse_out``, which is inf for a
    query that attends to no key. ``delta`` is the sum of the products of the result and
    its cotangent, ``lse`` the query's logsumexp, times log2(e). ``first`` and
    ``second`` hold pieces of the result and of its cotangent.
    """
    p = form.piece
    if p > 1:
        load = f"""
load_u16x{p}(result, result_at + at * {p}, first, 0)
load_u16x{p}(cotangent, cotangent_at + at * {p}, second, 0)
"""
    else:
        load = """
first[0] = result[result_at + at]
second[0] = cotangent[cotangent_at + at]
"""
    return fill_template(
        _STATISTICS,
        warps=STATISTICS_WARPS,
        piece=p,
        pieces=form.head // p,
        T=form.dtype,
        load=load,
        log2_e=repr(LOG2_E),
    )


def queries_tiles(form: Form, queries: int, keys: int) -> Tiles:
    """Return the tiles for the queries' cotangent: rows of tiles are queries.

    The logits are of ``queries`` by ``keys``.
    """
    if form.padded > 128:
        largest = _long_head_tiles(form)
    elif form.padded > 64 and form.bias:
        largest = Tiles(m_fragments=1, columns=64, blocks_per_multiprocessor=2)
    else:
        columns = 64 if form.padded <= 64 else 32
        largest = Tiles(m_fragments=2, columns=columns, blocks_per_multiprocessor=2)
    return Tiles.fitting(queries, keys, largest)


def keys_tiles(form: Form, queries: int, keys: int) -> Tiles:
    """Return the tiles for the cotangents of keys and values: rows are keys.

    The logits are of ``queries`` by ``keys``.
    """
    if form.padded > 128:
        largest = _long_head_tiles(form)
    elif form.padded > 64:
        largest = Tiles(m_fragments=1, columns=64, blocks_per_multiprocessor=2)
    else:
        largest = Tiles(m_fragments=2, columns=32, blocks_per_multiprocessor=2)
    return Tiles.fitting(keys, queries, largest)


def _long_head_tiles(form: Form) -> Tiles:
    """Return the tiles for heads above 128 elements: one block a multiprocessor."""
    columns = 64 if form.padded <= 192 else 32
    return Tiles(m_fragments=1, columns=columns, blocks_per_multiprocessor=1, warps=8)


def shared_bytes(form: Form, tiles: Tiles, with_dp: bool = True) -> int:
    """Return the bytes of a block's tiles of rows, and of double-buffered columns.

    ``with_dp`` says that the kernel computes cotangents of weights. A kernel that
    computes only dv does not, and has no tile of values. Elements of tiles have 2
    bytes; ``lse`` and ``delta`` of two tiles of columns have 4.
    """
    arrays = 2 if with_dp else 1
    # Two arrays of columns, with two buffers each.
    elements = form.line * (arrays * tiles.rows + 4 * tiles.columns)
    return 2 * elements + 4 * 4 * tiles.columns


_TEXT: Final = """
thread = thread_index()
lane = remainder(thread, 32)
warp = quotient(thread, 32)
key_heads = quotient(heads, group)
blocks = quotient({row_extent} + {last_row}, {rows})
row_head = quotient(block_index(), blocks)
first_row = {first_row} * {rows}
batch = quotient(row_head, {row_heads})
row_head = remainder(row_head, {row_heads})
{row_bases}
{sequence_ends}
# The columns that some row of the tile overlaps, and how many tiles they are.
begin = quotient(max_i64(first_row - {before}, 0), 16) * 16
end = min_i64(first_row + {rows} + {after}, {column_end})
{block_row}
{kept_columns}
tile_count = quotient(max_i64(end - begin, 0) + {last_column}, {columns})
if first_row >= {row_end}:
    tile_count = i64(0)
count = tile_count * {members}
{tiles}
{row_terms}
{fragment_offsets}
{sums}
factor = {factor}
{score_constants}
logits = registers_f32({logits_size})
dp = registers_f32({logits_size})
left_part = registers_u16({left_size})
right_part = registers_u16(8)
{before_tiles}
for number in range(count + 1):
    # All are done with the tiles that are copied to now, while others are used.
    barrier()
    {find_tile}
    if {is_copied}:
        start = begin + remainder(number, tile_count) * {columns}
        member = {member_of}
        stage = remainder(number, 2) * {stage}
        {column_bases}
        {copy_columns}
    cp_async_commit()
    cp_async_wait(1)
    barrier()
    if {is_there}:
        start = begin + remainder(number - 1, tile_count) * {columns}
        member = {member_before}
        stage = remainder(number - 1, 2) * {stage}
        column_terms = remainder(number - 1, 2) * {columns}
        {bias_and_mask_bases}
        # Logits, and dp: products of cotangents and values.
        {zero_logits}
        {products}
        {scale_and_mask}
        {hide_outside}
        # Weights, and the cotangents of logits.
        for lane_row in range({lane_rows}):
            for i in range({row_logits}):
                at = {logit_at}
                column = {column_term}
                weight = approximate_exp2_f32({weight})
                logits[at] = weight
                {ds}
        {multiply_columns}
    {after_tile}
cp_async_wait(0)
barrier()
out_step = {row_heads} * {H}
out_base = batch * {row_extent} * out_step + row_head * {H}
{store_results}
"""


@frozen
class _Side:
    """Which operands are rows of a kernel's tiles, and which are columns.

    All fields are names or expressions of the kernel.

    Args:
        row_extent: The number of rows.
        column_extent: The number of columns.
        row_arrays: The arrays whose tiles a block keeps.
        column_arrays: The arrays over whose tiles a block loops. The first is
            multiplied by the first of ``row_arrays``, the second by the second.
        before: How far before a row the columns begin that it attends to.
        after: How far after a row the columns end that it attends to.
        row_end: The end of a batch's rows.
        column_end: The end of a batch's columns.
        row_heads: The number of heads of rows.
        first_row: The number of the block's tile in its head.
        members: How many heads of columns share a head of rows.
        first_member: The first head of queries of the block.
        member: The head of queries of the tile of columns ``number``.
        column_head: The head of columns.
        column_term: The index of a column's ``lse`` and ``delta`` in shared memory.
        bound: The ``lse`` of a query.
        mean: The ``delta`` of a query.
        pair_mean: The ``delta`` of the query of the logit in column ``column + side``.
    """

    row_extent: str
    column_extent: str
    row_arrays: tuple[str, str]
    column_arrays: tuple[str, str]
    before: str
    after: str
    row_end: str
    column_end: str
    row_heads: str
    first_row: str
    members: str
    first_member: str
    member: str
    column_head: str
    column_term: str
    bound: str
    mean: str
    pair_mean: str


_OF_QUERIES: Final = _Side(
    row_extent="queries",
    column_extent="keys",
    row_arrays=("q", "cotangent"),
    column_arrays=("k", "v"),
    before="left",
    after="right",
    row_end="query_end",
    column_end="key_end",
    row_heads="heads",
    first_row="(blocks - 1 - remainder(block_index(), blocks))",
    members="1",
    first_member="row_head",
    member="row_head",
    column_head="quotient(member, group)",
    column_term="0",
    bound="row_lse[lane_row]",
    mean="row_delta[lane_row]",
    pair_mean="row_delta[lane_row]",
)
_OF_KEYS: Final = _Side(
    row_extent="keys",
    column_extent="queries",
    row_arrays=("k", "v"),
    column_arrays=("q", "cotangent"),
    before="right",
    after="left",
    row_end="key_end",
    column_end="query_end",
    row_heads="key_heads",
    first_row="remainder(block_index(), blocks)",
    members="group",
    first_member="row_head * group",
    member="row_head * group + quotient({number}, tile_count)",
    column_head="member",
    column_term=f"column_terms + {COLUMN}",
    bound="lse_tile[column]",
    mean="delta_tile[column]",
    pair_mean="delta_tile[column_terms + column + side - start]",
)


def gradient(form: Form, tiles: Tiles, results: tuple[str, ...]) -> str:
    """Return the body of the kernel that computes the cotangents ``results``.

    ``results`` are ``("dq",)``, or one or both of ``"dk"`` and ``"dv"``.
    """
    side = _OF_QUERIES if results == ("dq",) else _OF_KEYS
    dp = results != ("dv",)  # whether cotangents of weights are computed
    mean = side.pair_mean if dp else ""
    text = Text(form, tiles, side.row_extent, side.column_extent, mean)
    columns = tiles.columns
    # Without ``dp``, only the first product is computed: the logits.
    row_arrays: Sequence[str] = side.row_arrays[: 2 if dp else 1]
    reach = (side.before, side.after, side.row_end, side.column_end)
    weight = f"logits[at] - {side.bound}"
    if not form.scales_first:
        weight = f"fma_f32(logits[at], factor, -{side.bound})"
    ds = f"dp[at] = {text.logit_cotangent(side.mean)}" if dp else ""
    products = [
        text.multiply_transposed(
            sums, f"{row}_tile", f"{column}_tile", "stage + "
        ).strip("\n")
        for sums, row, column in zip(
            ("logits", "dp"), row_arrays, side.column_arrays, strict=False
        )
    ]
    return text.fill(
        _TEXT,
        **asdict(side),  # its fields are names in the template
        H=form.head,
        row_bases=_bases(row_arrays, "row_head"),
        tiles=_declare_tiles(text, side, row_arrays),
        row_terms=row_statistics(text) if side is _OF_QUERIES else "",
        sums=_declare_sums(text, results),
        block_row=block_row(text),
        kept_columns=_kept_columns(text, side),
        **_tile_conditions(text, side),
        member_of=side.member.format(number="number"),
        member_before=side.member.format(number="number - 1"),
        stage=columns * form.line,
        column_bases=_bases(side.column_arrays, side.column_head),
        copy_columns=_copy_columns(text, side, dp),
        zero_logits=text.zeros("logits", "dp", width=columns),
        products=products,
        hide_outside=text.hide_outside(*reach),
        weight=weight,
        ds=ds,
        multiply_columns=_multiply_columns(text, side, results),
        store_results=_store_results(text, row_arrays, results),
    )


def _kept_columns(text: Text, side: _Side) -> list[str]:
    """Return lines that narrow ``begin`` and ``end`` to kept blocks.

    They are ``kept_columns`` for all heads of columns, from the first head of queries
    on. Empty if there is no block mask.
    """
    lines = kept_columns(text, "begin", side.members)
    return [f"member = {side.first_member}", lines.strip("\n")] if lines else []


def _tile_conditions(text: Text, side: _Side) -> dict[str, str | list[str]]:
    """Return the text by which an iteration knows which tiles it copies and uses.

    It is given as parts of ``_TEXT`` by name. Each iteration begins to copy its tile of
    columns (``is_copied``), and uses the tile that the iteration before has copied
    (``is_there``). So the first iteration has no tile to use, and the last none to
    copy. The kernel's ``number`` counts iterations, and ``count`` is the number of
    tiles: ``tile_count`` for each head. Where a block mask leaves tiles out, an
    iteration finds out whether its tile is kept:

        is_kept = number < count
        if is_kept:
            (start and member)
            (next_columns)
            is_kept = next_start < start + 64
    """
    if not text.form.blocks:
        return {
            "before_tiles": "",
            "find_tile": "",
            "is_copied": "number < count",
            "is_there": "number > 0",
            "after_tile": "",
        }
    columns = text.tiles.columns
    find = [
        f"start = begin + remainder(number, tile_count) * {columns}",
        f"member = {side.member.format(number='number')}",
        next_columns(text).strip("\n"),
        f"is_kept = next_start < start + {columns}",
    ]
    return {
        "before_tiles": "was_kept = False",
        "find_tile": [
            "is_kept = number < count",
            "if is_kept:",
            indented("\n".join(find), 1),
        ],
        "is_copied": "is_kept",
        "is_there": "was_kept",
        "after_tile": "was_kept = is_kept",
    }


def _declare_tiles(text: Text, side: _Side, row_arrays: Sequence[str]) -> str:
    """Return lines that declare all tiles in shared memory, and copy tiles of rows.

    For the cotangents of keys, with 128 rows and 64 columns:

        k_tile = dynamic_shared_u16(0, 25600)
        q_tile = dynamic_shared_u16(51200, 25600)
        cotangent_tile = dynamic_shared_u16(102400, 25600)
        lse_tile = dynamic_shared_f32(153600, 128)
        delta_tile = dynamic_shared_f32(154112, 128)
        (zero_padding of the tiles, copy_rows of k)

    Tiles of columns are double-buffered. ``row_arrays`` are the arrays whose tiles a
    block keeps.
    """
    form, tiles = text.form, text.tiles
    lines: list[str] = []
    zero_padding: list[tuple[str, int]] = []
    offset = 0  # in bytes
    sizes = dict.fromkeys(row_arrays, tiles.rows)
    sizes |= dict.fromkeys(side.column_arrays, 2 * tiles.columns)
    for array, rows in sizes.items():
        lines.append(f"{array}_tile = dynamic_shared_u16({offset}, {rows * form.line})")
        zero_padding.append((f"{array}_tile", rows))
        offset += 2 * rows * form.line
    if side is _OF_KEYS:
        for name in ("lse", "delta"):
            lines.append(
                f"{name}_tile = dynamic_shared_f32({offset}, {2 * tiles.columns})"
            )
            offset += 8 * tiles.columns
    lines.append(text.zero_padding(zero_padding))
    lines += [
        text.copy_rows(x, f"{x}_base", side.row_extent, tiles.rows, "first_row").strip(
            "\n"
        )
        for x in row_arrays
    ]
    return "\n".join(lines)


def _declare_sums(text: Text, results: Sequence[str]) -> list[str]:
    """Return lines that declare accumulators of zeros for ``results``."""
    count = text.tiles.m_fragments * text.form.padded // 2
    lines = [f"{x} = registers_f32({count})" for x in results]
    return [*lines, text.zeros(*results, width=text.form.padded)]


def _copy_columns(text: Text, side: _Side, dp: bool) -> str:
    """Return lines that begin to copy the next tile of columns.

    They are ``copy_rows`` of each array of columns, into the buffer at ``stage``. If
    columns are queries, the statistics of these are copied, too. ``dp`` says that
    cotangents of weights are computed, which need ``delta``.
    """
    columns = text.tiles.columns
    lines = [
        text.copy_rows(x, f"{x}_base", side.column_end, columns, first="stage + ")
        for x in side.column_arrays
    ]
    if side is _OF_KEYS:
        lines.append("\n" + _copy_statistics(text.tiles, dp))
    return "".join(lines)


def _multiply_columns(text: Text, side: _Side, results: Sequence[str]) -> str:
    """Return lines that add the current tile's products to the accumulators.

    They are, for those of dv, dk and dq that are in ``results``: ``dv += weights @
    cotangent``, ``dk += dp @ q`` and ``dq += dp @ k``.
    """
    by_logits, by_weights = side.column_arrays
    return "\n".join(
        text.multiply("dv", "logits", f"{by_weights}_tile", "stage + ")
        if x == "dv"
        else text.multiply(x, "dp", f"{by_logits}_tile", "stage + ")
        for x in results
    )


def _store_results(
    text: Text, row_arrays: Sequence[str], results: Sequence[str]
) -> str:
    """Return lines that round the accumulators of ``results``, and store them.

    They are rounded into the tiles of ``row_arrays``, which are free by then. After a
    barrier, these tiles are stored to memory. ``dq`` and ``dk``, which are sums over
    cotangents of scaled logits, are multiplied by the scale. There may be fewer results
    than arrays.
    """
    scale = f"f32({text.form.scale!r})"
    outputs = [*zip(results, (f"{x}_tile" for x in row_arrays), strict=False)]
    lines = [
        text.round_to_tile(x, "f32(1)" if x == "dv" else scale, tile)
        for x, tile in outputs
    ]
    lines.append("barrier()")
    lines += [text.store_rows(f"{x}_out", tile) for x, tile in outputs]
    return "\n".join(lines)


def _bases(arrays: Sequence[str], head: str) -> list[str]:
    """Return lines that define where the current head of each of ``arrays`` begins.

    For q it is ``q_base = batch * q_batch + row_head * q_head``, if ``head``, the
    expression of the head's number, is ``row_head``.
    """
    return [f"{x}_base = batch * {x}_batch + {head} * {x}_head" for x in arrays]


def row_statistics(text: Text) -> str:
    """Return lines that load ``row_lse`` and ``row_delta`` of a lane's queries.

    The kernel has defined ``row_head``, the head of the queries.
    """
    return f"""
row_lse = registers_f32({text.lane_rows})
row_delta = registers_f32({text.lane_rows})
for lane_row in range({text.lane_rows}):
    row = first_row + warp * {text.tiles.warp_rows} + lane_row * 8 + quotient(lane, 4)
    at = (batch * heads + row_head) * queries + min_i64(row, queries - 1)
    row_lse[lane_row] = lse[at]
    row_delta[lane_row] = delta[at]
"""


def _copy_statistics(tiles: Tiles, dp: bool) -> str:
    """Return lines that begin to copy ``lse`` and ``delta`` of the next queries.

    ``delta`` is copied only if ``dp``: if cotangents of weights are computed. The
    kernel's ``number`` counts the tiles: two buffers alternate. The tile's first query
    is ``start``, and ``member`` its head.
    """
    head = f"if thread < {tiles.columns}:\n    column = thread"
    if tiles.columns > tiles.threads:
        head = f"for column in range(thread, {tiles.columns}, {tiles.threads}):"
    lines = [
        head,
        "    from_row = min_i64(start + column, queries - 1)",
        "    at = (batch * heads + member) * queries + from_row",
        f"    place = remainder(number, 2) * {tiles.columns} + column",
        "    cp_async_f32x1(lse, at, lse_tile, place, 1)",
    ]
    if dp:
        lines.append("    cp_async_f32x1(delta, at, delta_tile, place, 1)")
    return "\n".join(lines)
