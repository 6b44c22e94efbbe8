"""Attention as one kernel: a block has a tile of queries, and loops over tiles of keys.

The softmax is computed online (Milakov and Gimelshein, Online normalizer calculation
for softmax, 2018): results of earlier keys are rescaled when a larger logit is met.
Tensor cores compute the products (Dao, FlashAttention-2, 2023). While a block
multiplies by keys, the values are copied; while it multiplies by the values, the next
keys are.
"""

from __future__ import annotations

from typing import Final

from arrayfn.lowering.cuda.attention.blocks import (
    block_row,
    kept_columns,
    next_columns,
)
from arrayfn.lowering.cuda.attention.text import Text
from arrayfn.lowering.cuda.attention.tiles import LOG2_E, Form, Tiles
from arrayfn.lowering.cuda.handwritten import indented

_FEW_QUERIES: Final = 1024


def tiles_of(form: Form, queries: int, keys: int) -> Tiles:
    """Return the tiles for logits of ``queries`` by ``keys`` that were fastest.

    The accumulators of a tile fit into registers.
    """
    if form.padded <= 64 and queries <= _FEW_QUERIES:
        largest = Tiles(m_fragments=1, columns=64, blocks_per_multiprocessor=4)
    elif form.padded <= 128:
        # What is read for each logit takes registers too.
        columns = 32 if form.bias else 64
        largest = Tiles(m_fragments=2, columns=columns, blocks_per_multiprocessor=2)
    elif form.padded <= 192:
        largest = Tiles(
            m_fragments=1, columns=128, blocks_per_multiprocessor=1, warps=8
        )
    else:
        largest = Tiles(m_fragments=1, columns=64, blocks_per_multiprocessor=2)
    return Tiles.fitting(queries, keys, largest)


def shared_bytes(form: Form, tiles: Tiles) -> int:
    """Return the bytes of a block's tiles of queries, keys and values.

    Elements have 2 bytes.
    """
    return 2 * form.line * (tiles.rows + 2 * tiles.columns)


_TEXT: Final = """
thread = thread_index()
lane = remainder(thread, 32)
warp = quotient(thread, 32)
blocks = quotient(queries + {last_row}, {rows})
head = quotient(block_index(), blocks)
first_row = (blocks - 1 - remainder(block_index(), blocks)) * {rows}
batch = quotient(head, heads)
member = remainder(head, heads)
q_base = batch * q_batch + member * q_head
k_base = batch * k_batch + quotient(member, group) * k_head
v_base = batch * v_batch + quotient(member, group) * v_head
{sequence_ends}
{bias_and_mask_bases}
# The keys that some query of the tile may attend to.
start = quotient(max_i64(first_row - left, 0), 16) * 16
end = min_i64(first_row + {rows} + right, key_end)
if first_row >= query_end:
    end = start
{block_row}
{kept_columns}
q_tile = dynamic_shared_u16(0, {q_size})
k_tile = dynamic_shared_u16({k_offset}, {k_size})
v_tile = dynamic_shared_u16({v_offset}, {k_size})
{clear}
{copy_q}
if start < end:
    {copy_k}
cp_async_commit()
# Of each of a lane's rows: the largest logit, and the sum of the weights, so far.
row_max = registers_f32({lane_rows})
row_sum = registers_f32({lane_rows})
for lane_row in range({lane_rows}):
    row_max[lane_row] = F32_NEG_INF
    row_sum[lane_row] = f32(0)
output = registers_f32({output_size})
{zero_output}
{fragment_offsets}
factor = {factor}
{score_constants}
logits = registers_f32({logits_size})
left_part = registers_u16({left_size})
right_part = registers_u16(8)
while start < end:
    # The keys are there. Their values are copied while they are multiplied by.
    cp_async_wait(0)
    barrier()
    {copy_v}
    cp_async_commit()
    {zero_logits}
    # Logits: products of queries and keys.
    {by_keys}
    {scale_and_mask}
    {hide_outside}
    # The values are there, and the next keys are copied meanwhile.
    cp_async_wait(0)
    barrier()
    start = start + {columns}
    {next_kept}
    if start < end:
        {copy_k}
    cp_async_commit()
    for lane_row in range({lane_rows}):
        most = row_max[lane_row]
        for i in range({row_logits}):
            at = {logit_at}
            most = accumulate_max_f32(most, logits[at])
        most = accumulate_max_f32(most, shuffle_xor_f32(most, 1))
        most = accumulate_max_f32(most, shuffle_xor_f32(most, 2))
        base = select_f32(most != F32_NEG_INF, {base}, f32(0))
        rescale = approximate_exp2_f32({rescale})
        row_max[lane_row] = most
        part = row_sum[lane_row] * rescale
        for i in range({row_logits}):
            at = {logit_at}
            logits[at] = approximate_exp2_f32({weight})
            part = part + logits[at]
        row_sum[lane_row] = part
        for i in range({row_output}):
            at = {output_at}
            output[at] = output[at] * rescale
    # The values by their weights.
    {over_values}
cp_async_wait(0)
barrier()
for lane_row in range({lane_rows}):
    part = row_sum[lane_row]
    part = part + shuffle_xor_f32(part, 1)
    part = part + shuffle_xor_f32(part, 2)
    row_sum[lane_row] = select_f32(part > f32(0), f32(1) / part, part)
    row = first_row + warp * {warp_rows} + lane_row * 8 + quotient(lane, 4)
    if remainder(lane, 4) == 0 and row < queries:
        most = select_f32(part != f32(0), row_max[lane_row], f32(0))
        part = {in_logarithm} * most + log_f32(part)
        logarithms_out[head * queries + row] = part
{round_output}
barrier()
out_step = heads * {H}
out_base = batch * queries * out_step + member * {H}
{store_results}
"""


def forward(form: Form, tiles: Tiles) -> str:
    """Return the body of the kernel that computes ``out`` and ``logarithms_out``.

    ``logarithms_out`` are the logarithms of each query's sum of weights (logsumexp),
    which the gradient needs. Logits that have no bias are scaled after their maximum is
    taken, by the FMA that subtracts it.
    """
    text = Text(form, tiles)
    line, columns = form.line, tiles.columns
    reach = ("left", "right", "query_end", "key_end")
    copies = {x: text.copy_rows(x, f"{x}_base", "end", columns) for x in ("k", "v")}
    # With a block mask, the loop jumps to the next kept block.
    next_kept: list[str] = []
    if form.blocks:
        jump = indented(next_columns(text).strip("\n"), 1)
        next_kept = ["if start < end:", jump, "    start = next_start"]
    copy_q = text.copy_rows("q", "q_base", "queries", tiles.rows, "first_row")
    # The maximum of the logits is ``most``; weights are exp2 of the scaled logit less
    # ``base``, the scaled maximum.
    if form.scales_first:
        base, rescale, weight = "most", "row_max[lane_row] - base", "logits[at] - base"
        in_logarithm = 1 / LOG2_E
    else:
        base = "most * factor"
        rescale = "fma_f32(row_max[lane_row], factor, -base)"
        weight = "fma_f32(logits[at], factor, -base)"
        in_logarithm = form.scale
    zero_padding = (("q_tile", tiles.rows), ("k_tile", columns), ("v_tile", columns))
    # Sizes are in elements, offsets in bytes.
    return text.fill(
        _TEXT,
        H=form.head,
        q_size=tiles.rows * line,
        k_size=columns * line,
        k_offset=2 * tiles.rows * line,
        v_offset=2 * (tiles.rows + columns) * line,
        clear=text.zero_padding(zero_padding),
        block_row=block_row(text),
        kept_columns=kept_columns(text, "start"),
        next_kept=next_kept,
        copy_q=copy_q,
        copy_k=copies["k"],
        copy_v=copies["v"],
        output_size=tiles.m_fragments * form.padded // 2,
        zero_output=text.zeros("output", width=form.padded),
        zero_logits=text.zeros("logits", width=columns),
        by_keys=text.multiply_transposed("logits", "q_tile", "k_tile"),
        hide_outside=text.hide_outside(*reach),
        row_output=form.padded // 4,
        output_at=text.accumulator(form.padded),
        base=base,
        rescale=rescale,
        weight=weight,
        over_values=text.multiply("output", "logits", "v_tile"),
        in_logarithm=f"f32({in_logarithm!r})",
        round_output=text.round_to_tile("output", "row_sum[lane_row]", "q_tile"),
        store_results=text.store_rows("out", "q_tile"),
    )
