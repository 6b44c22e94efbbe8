"""Attention as one kernel: a block has a tile of queries, and goes along the keys.

The softmax is taken online (Milakov and Gimelshein, Online normalizer calculation for
softmax, 2018), with the results of earlier keys scaled as a greater logit is met, and
the products are of fragments (Dao, FlashAttention-2, 2023). While a block multiplies by
keys, their values are copied; while by these, the next keys.
"""

from __future__ import annotations

from typing import Final

from arrayfn.lowering.cuda.attention_tiles import (
    LOG2_E,
    Form,
    Tiles,
    copied,
    indented,
    padding_cleared,
)


def tiles_of(form: Form, queries: int) -> Tiles:
    """Tiles whose sums fit into the registers of a block, and no more than is there."""
    strips = 2 if form.padded <= 128 and queries > 64 else 1
    warps = min(4, -(-queries // (16 * strips)))
    return Tiles(warps, strips, columns=64, together=2)


def shared_bytes(form: Form, tiles: Tiles) -> int:
    """Bytes of the tiles of queries, keys and values."""
    return 2 * form.line * (tiles.rows + 2 * tiles.columns)


_TEXT: Final = """
def {name}({parameters}):
    {doc}thread = thread_index()
    lane = remainder(thread, 32)
    warp = quotient(thread, 32)
    blocks = quotient(queries + {last_row}, {rows})
    head = quotient(block_index(), blocks)
    first_row = (blocks - 1 - remainder(block_index(), blocks)) * {rows}
    batch = quotient(head, heads)
    member = remainder(head, heads)
    key_heads = quotient(heads, group)
    q_step = heads * {H}
    q_base = batch * queries * q_step + member * {H}
    k_step = key_heads * {H}
    k_base = batch * keys * k_step + quotient(member, group) * {H}
    {limits}
    begin = max_i64(first_row - left, 0)
    end = min_i64(first_row + {rows} + right, key_end)
    if first_row >= query_end:
        end = begin
    q_tile = arena_u16(0, {q_size})
    k_tile = arena_u16({k_offset}, {k_size})
    v_tile = arena_u16({v_offset}, {k_size})
{clear}
    start = first_row
{copy_q}
    start = begin
    if begin < end:
{copy_first_k}
    close_copies()
    low = registers_i64({halves})
    high = registers_i64({halves})
    peak = registers_f32({halves})
    total = registers_f32({halves})
    for half in range({halves}):
        row = first_row + warp * {warp_rows} + half * 8 + quotient(lane, 4)
        low[half] = row - left
        last = min_i64(row + right + 1, key_end)
        high[half] = select_i64(row < query_end, last, i64(0))
        peak[half] = F32_NEG_INF
        total[half] = f32(0)
    mixed = registers_f32({mixed_size})
    for i in range({mixed_size}):
        mixed[i] = f32(0)
    q_at = (warp * {warp_rows} + remainder(lane, 16)) * {line} + quotient(lane, 16) * 8
    k_at = (remainder(lane, 8) + quotient(lane, 16) * 8) * {line}
    k_at = k_at + remainder(quotient(lane, 8), 2) * 8
    v_at = remainder(lane, 16) * {line} + quotient(lane, 16) * 8
    logits = registers_f32({logits_size})
    left_part = registers_u16({left_size})
    right_part = registers_u16(8)
    while start < end:
        await_copies(0)
        barrier()
{copy_v}
        close_copies()
        for i in range({logits_size}):
            logits[i] = f32(0)
        for step in range({head_steps}):
            for strip in range({strips}):
                at = q_at + strip * {strip_line} + step * 16
                load_matrix_u16(q_tile, at, left_part, strip * 8)
            for pair in range({column_pairs}):
                at = k_at + pair * {strip_line} + step * 16
                load_matrix_u16(k_tile, at, right_part, 0)
                for strip in range({strips}):
                    for side in range(2):
                        multiply_{T}(
                            logits, (strip * {column_tiles} + pair * 2 + side) * 4,
                            left_part, strip * 8, right_part, side * 4,
                        )
{scale_logits}
        inside = (start + {columns} <= key_end) & (first_row + {rows} <= query_end)
        inside = inside & (start + {columns} <= first_row + right + 1)
        inside = inside & (start >= first_row + {last_row} - left)
        if not inside:
            for half in range({halves}):
                for i in range({row_logits}):
                    at = {logit_at}
                    column = start + {logit_column}
                    beyond = (column < low[half]) | (column >= high[half])
                    logits[at] = select_f32(beyond, F32_NEG_INF, logits[at])
        await_copies(0)
        barrier()
        start = start + {columns}
        if start < end:
{copy_k}
        close_copies()
        for half in range({halves}):
            most = peak[half]
            for i in range({row_logits}):
                most = accumulate_max_f32(most, logits[{logit_at}])
            most = accumulate_max_f32(most, shuffle_xor_f32(most, 1))
            most = accumulate_max_f32(most, shuffle_xor_f32(most, 2))
            base = {base}
            shrunk = approximate_exp2_f32({shrunk})
            peak[half] = most
            part = total[half] * shrunk
            for i in range({row_logits}):
                weight = approximate_exp2_f32({weight})
                logits[{logit_at}] = weight
                part = part + weight
            total[half] = part
            for i in range({row_mixed}):
                at = {mixed_at}
                mixed[at] = mixed[at] * shrunk
        for step in range({key_steps}):
            for strip in range({strips}):
                for pair in range(4):
                    at = (strip * {column_tiles} + step * 2) * 4 + pair * 2
                    place = strip * 8 + pair * 2
                    pack_{T}(logits[at], logits[at + 1], left_part, place)
            for pair in range({head_steps}):
                at = v_at + step * {strip_line} + pair * 16
                load_transposed_u16(v_tile, at, right_part, 0)
                for strip in range({strips}):
                    for side in range(2):
                        multiply_{T}(
                            mixed, (strip * {head_tiles} + pair * 2 + side) * 4,
                            left_part, strip * 8, right_part, side * 4,
                        )
    await_copies(0)
    barrier()
    for half in range({halves}):
        part = total[half]
        part = part + shuffle_xor_f32(part, 1)
        part = part + shuffle_xor_f32(part, 2)
        inverse = select_f32(part > f32(0), f32(1) / part, part)
        line = warp * {warp_rows} + half * 8 + quotient(lane, 4)
        if remainder(lane, 4) == 0 and first_row + line < queries:
            most = select_f32(part != f32(0), peak[half], f32(0))
            logarithms_out[head * queries + first_row + line] = {logarithm}
        at = line * {line} + remainder(lane, 4) * 2
        for i in range({row_pairs}):
            place = {mixed_pair}
            pack_{T}(mixed[place] * inverse, mixed[place + 1] * inverse, left_part, 0)
            q_tile[at + i * 8] = left_part[0]
            q_tile[at + i * 8 + 1] = left_part[1]
    barrier()
{give}
"""


def forward(name: str, form: Form, tiles: Tiles, parameters: str, doc: str) -> str:
    """The text of the kernel."""
    line, columns, strips = form.line, tiles.columns, tiles.strips
    column_tiles, head_tiles = columns // 8, form.padded // 8
    halves = 2 * strips
    factor = f"f32({form.scale * LOG2_E!r})"
    logit_at = f"((half // 2) * {column_tiles} + i // 2) * 4 + (half % 2) * 2 + i % 2"
    step = "k_step"
    copies = {
        name: copied(form, tiles.threads, columns, name, "k_base", step, "end")
        for name in ("k", "v")
    }
    if form.ready:
        base = "select_f32(most != F32_NEG_INF, most, f32(0))"
        shrunk = "peak[half] - base"
        weight = f"logits[{logit_at}] - base"
        logarithm = f"most * f32({1 / LOG2_E!r}) + log_f32(part)"
    else:
        base = f"select_f32(most != F32_NEG_INF, most * {factor}, f32(0))"
        shrunk = f"fma_f32(peak[half], {factor}, -base)"
        weight = f"fma_f32(logits[{logit_at}], {factor}, -base)"
        logarithm = f"most * f32({form.scale!r}) + log_f32(part)"
    return _TEXT.format(
        name=name,
        parameters=parameters,
        doc=doc,
        H=form.head,
        T=form.dtype,
        rows=tiles.rows,
        last_row=tiles.rows - 1,
        limits=limits(form),
        q_size=tiles.rows * line,
        k_size=columns * line,
        k_offset=2 * tiles.rows * line,
        v_offset=2 * (tiles.rows + columns) * line,
        clear=indented(
            padding_cleared(
                form,
                tiles.threads,
                (("q_tile", tiles.rows), ("k_tile", columns), ("v_tile", columns)),
            ),
            1,
        ),
        copy_q=indented(
            copied(form, tiles.threads, tiles.rows, "q", "q_base", "q_step", "queries"),
            1,
        ),
        copy_first_k=indented(copies["k"], 2),
        copy_k=indented(copies["k"], 3),
        copy_v=indented(copies["v"], 2),
        halves=halves,
        warp_rows=16 * strips,
        mixed_size=strips * head_tiles * 4,
        logits_size=strips * column_tiles * 4,
        left_size=8 * strips,
        line=line,
        strips=strips,
        strip_line=16 * line,
        head_steps=form.padded // 16,
        key_steps=columns // 16,
        column_pairs=columns // 16,
        column_tiles=column_tiles,
        head_tiles=head_tiles,
        columns=columns,
        row_logits=2 * column_tiles,
        row_mixed=2 * head_tiles,
        row_pairs=head_tiles,
        logit_at=logit_at,
        logit_column="(i // 2) * 8 + i % 2 + remainder(lane, 4) * 2",
        mixed_at=f"((half // 2) * {head_tiles} + i // 2) * 4 + (half % 2) * 2 + i % 2",
        mixed_pair=f"((half // 2) * {head_tiles} + i) * 4 + (half % 2) * 2",
        base=base,
        shrunk=shrunk,
        weight=weight,
        logarithm=logarithm,
        scale_logits=indented(terms(form, tiles, factor, logit_at), 2),
        give=indented(given(form, tiles), 1),
    )


def limits(form: Form) -> str:
    """Where the queries and keys of a batch end."""
    queries = "min_i64(queries, i64(query_lengths[batch]))"
    keys = "min_i64(keys, i64(key_lengths[batch]))"
    lines = [
        f"query_end = {queries if form.query_lengths else 'queries'}",
        f"key_end = {keys if form.key_lengths else 'keys'}",
    ]
    lines += [
        f"{x}_base = batch * {x}_batch + member * {x}_head"
        for x, is_there in (("bias", form.bias), ("mask", form.mask))
        if is_there
    ]
    return "\n    ".join(lines)


def terms(form: Form, tiles: Tiles, factor: str, logit_at: str) -> str:
    """What is done to the logits of a block before the limits of its rows."""
    if not (form.ready or form.mask):
        return ""
    lines = [
        f"row = warp * {16 * tiles.strips} + half * 8 + quotient(lane, 4)",
        "row = min_i64(first_row + row, queries - 1)",
    ]
    body = [f"at = {logit_at}"]
    if form.bias or form.mask:
        body += [
            "column = start + (i // 2) * 8 + i % 2 + remainder(lane, 4) * 2",
            "column = min_i64(column, keys - 1)",
        ]
    if form.bias:
        lines.append("bias_at = bias_base + row * bias_row")
        value = "bias[bias_at + column * bias_column]"
        if form.bias != "f32":
            value = f"convert_{form.bias}_f32({value})"
        body.append(
            f"logits[at] = fma_f32(logits[at], {factor}, {value} * f32({LOG2_E!r}))"
        )
    elif form.ready:
        body.append(f"logits[at] = logits[at] * {factor}")
    if form.mask:
        lines.append("mask_at = mask_base + row * mask_row")
        body += [
            "hidden = mask[mask_at + column * mask_column] == 0",
            "logits[at] = select_f32(hidden, F32_NEG_INF, logits[at])",
        ]
    head = f"for half in range({2 * tiles.strips}):"
    inner = f"for i in range({tiles.columns // 4}):"
    return "\n".join([head, indented(lines, 1), indented(inner, 1), indented(body, 2)])


def given(form: Form, tiles: Tiles) -> str:
    """The rows of ``q_tile`` into the result."""
    pieces = form.head // form.piece
    place = "q_base + (first_row + row) * q_step + column"
    tile = f"row * {form.line} + column"
    if form.piece > 1:
        p = form.piece
        move = f"load_u16x{p}(q_tile, {tile}, right_part, 0)\n"
        move += f"        store_u16x{p}(out, {place}, right_part, 0)"
    else:
        move = f"out[{place}] = q_tile[{tile}]"
    return f"""
for at in range(thread, {tiles.rows * pieces}, {tiles.threads}):
    row = quotient(at, {pieces})
    column = remainder(at, {pieces}) * {form.piece}
    if first_row + row < queries:
        {move}
"""
