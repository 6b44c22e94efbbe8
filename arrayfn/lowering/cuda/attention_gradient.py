"""The cotangents of attention: the weights are computed again, nothing is added twice.

A first kernel takes the mean of each query's cotangent. Then a block has rows of
queries, goes along the keys and adds up the cotangent of its queries; another has rows
of keys, goes along the queries, of all heads that share them, and adds up those of keys
and values. So each sum has one order. Algorithm 2 of Dao, FlashAttention-2, 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from arrayfn.lowering.cuda.attention_text import COLUMN, Text, indented
from arrayfn.lowering.cuda.attention_tiles import LOG2_E, Form, Tiles

MEANS_WARPS: Final = 4

_MEANS: Final = """
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
        bound = logarithms[at] * f32({log2_e!r})
        means_out[at] = mean
        bounds_out[at] = select_f32(bound == F32_NEG_INF, F32_INF, bound)
"""


def means(form: Form) -> str:
    """The body of the first kernel: a warp has a query.

    ``bounds`` are the logarithms as powers of two; inf where there is no weight.
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
    return _MEANS.format(
        warps=MEANS_WARPS,
        piece=p,
        pieces=form.head // p,
        T=form.dtype,
        load=indented(load, 2),
        log2_e=LOG2_E,
    )


def queries_tiles(form: Form, queries: int, keys: int) -> Tiles:
    """Tiles for the cotangent of the queries."""
    if form.padded <= 128:
        return Tiles.fitting(queries, keys, strips=2, most=32, together=2)
    return Tiles.fitting(queries, keys, strips=1, most=32, together=1, warps=8)


def keys_tiles(form: Form, queries: int, keys: int) -> Tiles:
    """Tiles for the cotangents of keys and values."""
    if form.padded <= 64:
        return Tiles.fitting(keys, queries, strips=2, most=32, together=2)
    if form.padded <= 128:
        return Tiles.fitting(keys, queries, strips=1, most=64, together=2)
    return Tiles.fitting(keys, queries, strips=1, most=32, together=1, warps=8)


def shared_bytes(form: Form, tiles: Tiles, with_slopes: bool = True) -> int:
    """Bytes of the tiles, of which those of columns are there twice."""
    arrays = 2 if with_slopes else 1
    halves = form.line * (arrays * tiles.rows + 4 * tiles.columns)
    return 2 * halves + 4 * 4 * tiles.columns


_TEXT: Final = """
    thread = thread_index()
    lane = remainder(thread, 32)
    warp = quotient(thread, 32)
    key_heads = quotient(heads, group)
    blocks = quotient({rows_are} + {last_row}, {rows})
    row_head = quotient(block_index(), blocks)
    first_row = {first_row} * {rows}
    batch = quotient(row_head, {row_heads})
    row_head = remainder(row_head, {row_heads})
{row_bases}
{ends}
    # The columns that some row of the tile meets, and how many tiles they are.
    begin = quotient(max_i64(first_row - {before}, 0), 16) * 16
    end = min_i64(first_row + {rows} + {after}, {column_end})
    visits = quotient(max_i64(end - begin, 0) + {last_column}, {columns})
    if first_row >= {row_end}:
        visits = i64(0)
    count = visits * {members}
{arenas}
{clear}
{copy_rows}
{row_terms}
{places}
{sums}
    factor = {factor}
    logits = registers_f32({logits_size})
    slopes = registers_f32({logits_size})
    left_part = registers_u16({left_size})
    right_part = registers_u16(8)
    for visit in range(count + 1):
        # All are done with the tiles that are copied to now, while others are used.
        barrier()
        if visit < count:
            start = begin + remainder(visit, visits) * {columns}
            member = {member_of}
            stage = remainder(visit, 2) * {stage}
{column_bases}
{copy_columns}
        close_copies()
        await_copies(1)
        barrier()
        if visit > 0:
            start = begin + remainder(visit - 1, visits) * {columns}
            member = {member_before}
            stage = remainder(visit - 1, 2) * {stage}
            column_terms = remainder(visit - 1, 2) * {columns}
{terms_of_head}
            # Logits, and slopes: products of cotangents and values.
{zero_logits}
{logits}
{slopes}
{terms}
{limits}
            # Weights, and the cotangents of logits.
            for half in range({halves}):
                for i in range({row_logits}):
                    at = {logit_at}
                    column = {column_term}
                    weight = approximate_exp2_f32({weight})
                    logits[at] = weight
{slope}
{add}
    await_copies(0)
    barrier()
{round}
    barrier()
    out_step = {row_heads} * {H}
    out_base = batch * {rows_are} * out_step + row_head * {H}
{give}
"""


def gradient(form: Form, tiles: Tiles, wanted: tuple[str, ...]) -> str:
    """The body of a kernel that gives ``wanted``: ("dq",), or of ("dk", "dv")."""
    of_queries = wanted == ("dq",)
    sides = ("queries", "keys") if of_queries else ("keys", "queries")
    text = Text(form, tiles, *sides)
    slopes = wanted != ("dv",)
    line, columns, strips = form.line, tiles.columns, tiles.strips
    # Arrays of rows, then those of columns that they are multiplied by.
    by_query, by_key = ("q", "cotangent"), ("k", "v")
    row_arrays, column_arrays = (by_query, by_key) if of_queries else (by_key, by_query)
    row_arrays = row_arrays if slopes else row_arrays[:1]
    before, after, row_end, column_end = (
        ("left", "right", "query_end", "key_end")
        if of_queries
        else ("right", "left", "key_end", "query_end")
    )
    stage = columns * line
    arenas, offset = [], 0
    for array in (*row_arrays, *column_arrays):
        size = tiles.rows * line if array in row_arrays else 2 * stage
        arenas.append(f"{array}_tile = arena_u16({offset}, {size})")
        offset += 2 * size
    cleared = [(f"{x}_tile", tiles.rows) for x in row_arrays]
    cleared += [(f"{x}_tile", 2 * columns) for x in column_arrays]
    copy_rows = [
        text.copied(x, f"{x}_base", sides[0], tiles.rows, "first_row")
        for x in row_arrays
    ]
    copy_columns = [
        text.copied(x, f"{x}_base", column_end, columns, first="stage + ")
        for x in column_arrays
    ]
    if of_queries:
        row_terms = _of_rows(text)
        bound, mean, column_term = "bounds_of[half]", "means_of[half]", "0"
        column_head = "quotient(member, group)"
        first_row = "(blocks - 1 - remainder(block_index(), blocks))"
        member = "row_head"
    else:
        arenas.append(f"bounds_tile = arena_f32({offset}, {2 * columns})")
        arenas.append(f"means_tile = arena_f32({offset + 8 * columns}, {2 * columns})")
        copy_columns.append(_of_columns(tiles, slopes))
        row_terms = ""
        bound, mean = "bounds_tile[column]", "means_tile[column]"
        column_term = f"column_terms + {COLUMN}"
        column_head = "member"
        first_row = "remainder(block_index(), blocks)"
        member = "row_head * group + quotient({visit}, visits)"
    at = text.place(columns)
    weight = f"logits[at] - {bound}"
    if not form.ready:
        weight = f"fma_f32(logits[at], factor, -{bound})"
    tile_of = {"dq": column_arrays[0], "dk": column_arrays[0], "dv": column_arrays[1]}
    sums_of = {"dq": "slopes", "dk": "slopes", "dv": "logits"}
    out_tiles = dict(zip(wanted, row_arrays, strict=False))
    scale = f"f32({form.scale!r})"
    limits = (before, after, row_end, column_end)
    slope = f"slopes[at] = weight * (slopes[at] - {mean})"
    return _TEXT.format(
        H=form.head,
        rows=tiles.rows,
        last_row=tiles.rows - 1,
        columns=columns,
        last_column=columns - 1,
        halves=text.halves,
        rows_are=sides[0],
        row_bases=indented(_bases(row_arrays, "row_head"), 1),
        row_heads="heads" if of_queries else "key_heads",
        row_end=row_end,
        column_end=column_end,
        first_row=first_row,
        before=before,
        after=after,
        members="1" if of_queries else "group",
        ends=indented(text.ends(), 1),
        arenas=indented(arenas, 1),
        clear=indented(text.cleared(cleared), 1),
        copy_rows=indented("".join(copy_rows), 1),
        row_terms=indented(row_terms, 1),
        places=indented(text.places(), 1),
        sums=indented(
            [f"{x} = registers_f32({strips * form.padded // 2})" for x in wanted]
            + [text.zeros(*wanted, width=form.padded)],
            1,
        ),
        logits_size=strips * columns // 2,
        left_size=8 * strips,
        member_of=member.format(visit="visit"),
        member_before=member.format(visit="visit - 1"),
        stage=stage,
        column_bases=indented(_bases(column_arrays, column_head), 3),
        copy_columns=indented("".join(copy_columns), 3),
        terms_of_head=indented(text.terms_of_head(), 3),
        zero_logits=indented(text.zeros("logits", "slopes", width=columns), 3),
        logits=_by_columns(text, "logits", row_arrays[0], column_arrays[0]),
        slopes=_by_columns(text, "slopes", row_arrays[-1], column_arrays[1])
        if slopes
        else "",
        terms=indented(text.terms(), 3),
        limits=indented(text.limits(*limits), 3),
        row_logits=columns // 4,
        logit_at=at,
        column_term=column_term,
        factor=form.factor,
        weight=weight,
        slope=indented(slope if slopes else "", 5),
        add="\n".join(
            indented(
                text.over_columns(x, sums_of[x], f"{tile_of[x]}_tile", "stage + "), 3
            )
            for x in wanted
        ),
        round="\n".join(
            indented(
                text.rounded(x, "f32(1)" if x == "dv" else scale, f"{tile}_tile"), 1
            )
            for x, tile in out_tiles.items()
        ),
        give="\n".join(
            indented(text.given(f"{x}_out", f"{tile}_tile", "out_base", "out_step"), 1)
            for x, tile in out_tiles.items()
        ),
    )


def _bases(arrays: Sequence[str], head: str) -> list[str]:
    """Where the heads of arrays begin."""
    return [f"{x}_base = batch * {x}_batch + {head} * {x}_head" for x in arrays]


def _by_columns(text: Text, sums: str, left: str, right: str) -> str:
    made = text.by_columns(sums, f"{left}_tile", f"{right}_tile", "stage + ")
    return indented(made, 3)


def _of_rows(text: Text) -> str:
    """Bounds and means of a lane's queries."""
    return f"""
bounds_of = registers_f32({text.halves})
means_of = registers_f32({text.halves})
for half in range({text.halves}):
    row = first_row + warp * {16 * text.tiles.strips} + half * 8 + quotient(lane, 4)
    at = (batch * heads + row_head) * queries + min_i64(row, queries - 1)
    bounds_of[half] = bounds[at]
    means_of[half] = means[at]
"""


def _of_columns(tiles: Tiles, slopes: bool) -> str:
    """Copies bounds and means of a tile of queries."""
    head = f"if thread < {tiles.columns}:\n    column = thread"
    if tiles.columns > tiles.threads:
        head = f"for column in range(thread, {tiles.columns}, {tiles.threads}):"
    lines = [
        head,
        "    from_row = min_i64(start + column, queries - 1)",
        "    at = (batch * heads + member) * queries + from_row",
        f"    place = remainder(visit, 2) * {tiles.columns} + column",
        "    copy_f32x1(bounds, at, bounds_tile, place, 1)",
    ]
    if slopes:
        lines.append("    copy_f32x1(means, at, means_tile, place, 1)")
    return "\n".join(lines)
