"""The cotangent of attention's bias: that of the logits, summed as bias is broadcast.

A block has a tile of the bias. It recomputes the cotangents of logits from tiles of the
arrays, and adds up those of all heads, batches and queries that share the tile, one
after another: in a fixed order, and with no logits in memory.
"""

from __future__ import annotations

from typing import Final

from arrayfn.lowering.cuda.attention.gradient import row_statistics
from arrayfn.lowering.cuda.attention.text import COLUMN, Text
from arrayfn.lowering.cuda.attention.tiles import Form, Tiles
from arrayfn.lowering.cuda.handwritten import converted


def bias_tiles(form: Form, queries: int, keys: int) -> Tiles:
    """Return the tiles of the bias's kernel for logits of ``queries`` by ``keys``."""
    blocks = 3 if form.padded <= 128 else 1
    largest = Tiles(m_fragments=1, columns=64, blocks_per_multiprocessor=blocks)
    return Tiles.fitting(queries, keys, largest)


def shared_bytes(form: Form, tiles: Tiles) -> int:
    """Return the bytes of a block's tiles: of queries, cotangents, keys, values.

    Elements of all four have 2 bytes.
    """
    rows = 2 * tiles.rows + 2 * tiles.columns
    return 2 * form.line * rows


_TEXT: Final = """
thread = thread_index()
lane = remainder(thread, 32)
warp = quotient(thread, 32)
# The tile, and the first of the heads and batches that share it.
tile = block_index()
across = quotient(keys + {last_column}, {columns})
start = remainder(tile, across) * {columns}
tile = quotient(tile, across)
down = quotient(bias_rows + {last_row}, {rows})
tile_row = remainder(tile, down) * {rows}
tile = quotient(tile, down)
tile_head = remainder(tile, bias_heads)
tile_batch = quotient(tile, bias_heads)
q_tile = dynamic_shared_u16(0, {row_size})
cotangent_tile = dynamic_shared_u16({cotangent_offset}, {row_size})
k_tile = dynamic_shared_u16({k_offset}, {column_size})
v_tile = dynamic_shared_u16({v_offset}, {column_size})
{clear}
{fragment_offsets}
factor = {factor}
{score_constants}
sums = registers_f32({logits_size})
logits = registers_f32({logits_size})
dp = registers_f32({logits_size})
left_part = registers_u16({left_size})
right_part = registers_u16(8)
{zero_sums}
for iteration in range(batches_each * heads_each * rows_each):
    first_row = tile_row + remainder(iteration, rows_each) * {rows}
    row_head = tile_head + remainder(quotient(iteration, rows_each), heads_each)
    batch = tile_batch + quotient(iteration, rows_each * heads_each)
    member = row_head
    {sequence_ends}
    overlaps = (first_row < query_end) & (start < key_end)
    overlaps = overlaps & (start < first_row + {rows} + right)
    overlaps = overlaps & (start + {columns} > first_row - left)
    if overlaps:
        q_base = batch * q_batch + member * q_head
        cotangent_base = batch * cotangent_batch + member * cotangent_head
        k_base = batch * k_batch + quotient(member, group) * k_head
        v_base = batch * v_batch + quotient(member, group) * v_head
        {bias_and_mask_bases}
        # All are done with the tiles of the iteration before.
        barrier()
        {copies}
        cp_async_commit()
        {row_terms}
        cp_async_wait(0)
        barrier()
        # Logits, and dp: products of cotangents and values.
        {zero_logits}
        {logits}
        {dp}
        {scale_and_mask}
        {hide_outside}
        for lane_row in range({lane_rows}):
            for i in range({row_logits}):
                at = {logit_at}
                weight = approximate_exp2_f32(logits[at] - row_lse[lane_row])
                ds = {ds}
                sums[at] = sums[at] + ds
{store_results}
"""

_STORE_TILE: Final = """
out_base = (tile_batch * bias_heads + tile_head) * bias_rows
for lane_row in range({lane_rows}):
    row = tile_row + warp * {warp_rows} + lane_row * 8 + quotient(lane, 4)
    for i in range({row_logits}):
        at = {logit_at}
        column = start + {COLUMN}
        if row < bias_rows and column < keys:
            bias_out[(out_base + row) * keys + column] = {rounded}
"""

# All queries share one row of the bias. Each thread adds up its own rows, then the
# lanes of a warp add theirs by shuffles, and then the warps in shared memory.
_STORE_ROW: Final = """
rows_tile = dynamic_shared_f32(0, {all_columns})
barrier()
for i in range({row_logits}):
    part = f32(0)
    for lane_row in range({lane_rows}):
        at = {logit_at}
        part = part + sums[at]
    for step in range(3):
        part = part + shuffle_xor_f32(part, 4 << step)
    if lane < 4:
        rows_tile[warp * {columns} + {COLUMN}] = part
barrier()
out_base = (tile_batch * bias_heads + tile_head) * keys
for column in range(thread, {columns}, {threads}):
    part = f32(0)
    for other in range({warps}):
        part = part + rows_tile[other * {columns} + column]
    if start + column < keys:
        bias_out[out_base + start + column] = {rounded}
"""


def bias_gradient(form: Form, tiles: Tiles, *, one_row: bool) -> str:
    """Return the body of the kernel that computes the bias's cotangent.

    Parameters of the kernel are the arrays of ``calls`` and their strides. Each block
    adds up its tile of ``bias_out`` in ``sums``. ``one_row`` says that all queries
    share one row of the bias: then a block also adds up its rows.
    """
    mean = "row_delta[lane_row]"
    text = Text(form, tiles, mean=mean)
    columns, line = tiles.columns, form.line
    # Of each array with a tile: the end of all rows, the number and first of a tile.
    of_queries = "queries", tiles.rows, "first_row"
    of_keys = "key_end", columns, "start"
    arrays = {"q": of_queries, "cotangent": of_queries, "k": of_keys, "v": of_keys}
    copies = "".join(
        text.copy_rows(x, f"{x}_base", *rows) for x, rows in arrays.items()
    )
    sizes = [(f"{x}_tile", count) for x, (_, count, _) in arrays.items()]
    # ``part`` is the sum of a column over the block's rows.
    value = "part" if one_row else "sums[at]"
    store_results = text.fill(
        _STORE_ROW if one_row else _STORE_TILE,
        COLUMN=COLUMN,
        all_columns=tiles.warps * columns,
        warps=tiles.warps,
        threads=tiles.threads,
        rounded=converted(value, "f32", form.bias),
    )
    # Sizes are in elements, offsets in bytes.
    return text.fill(
        _TEXT,
        row_size=tiles.rows * line,
        column_size=columns * line,
        cotangent_offset=2 * tiles.rows * line,
        k_offset=4 * tiles.rows * line,
        v_offset=2 * (2 * tiles.rows + columns) * line,
        clear=text.zero_padding(sizes),
        zero_sums=text.zeros("sums", width=columns),
        copies=copies,
        row_terms=row_statistics(text),
        zero_logits=text.zeros("logits", "dp", width=columns),
        logits=text.multiply_transposed("logits", "q_tile", "k_tile"),
        dp=text.multiply_transposed("dp", "cotangent_tile", "v_tile"),
        ds=text.logit_cotangent(mean),
        hide_outside=text.hide_outside("left", "right", "query_end", "key_end"),
        store_results=store_results,
    )
