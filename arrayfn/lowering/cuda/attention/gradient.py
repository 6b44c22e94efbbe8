"""The cotangents of attention: the weights are computed again, nothing is added twice.

A first kernel takes the mean of each query's cotangent. Then a block has rows of
queries, goes along the keys and adds up the cotangent of its queries; another has rows
of keys, goes along the queries, of all heads that share them, and adds up those of keys
and values. So each sum has one order. Algorithm 2 of Dao, FlashAttention-2, 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from arrayfn.lowering.cuda.attention.text import COLUMN, Text
from arrayfn.lowering.cuda.attention.tiles import LOG2_E, Form, Tiles
from arrayfn.lowering.cuda.handwritten import filled

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
    bound = logarithms[at] * f32({log2_e})
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
    return filled(
        _MEANS,
        warps=MEANS_WARPS,
        piece=p,
        pieces=form.head // p,
        T=form.dtype,
        load=load,
        log2_e=repr(LOG2_E),
    )


def queries_tiles(form: Form, queries: int, keys: int) -> Tiles:
    """Tiles for the cotangent of the queries."""
    if form.padded <= 64:
        return Tiles.fitting(
            queries, keys, strips=2, most=64, blocks_per_multiprocessor=2
        )
    if form.padded <= 128 and form.bias:
        return Tiles.fitting(
            queries, keys, strips=1, most=64, blocks_per_multiprocessor=2
        )
    if form.padded <= 128:
        return Tiles.fitting(
            queries, keys, strips=2, most=32, blocks_per_multiprocessor=2
        )
    return _tiles_of_long_heads(form, queries, keys)


def keys_tiles(form: Form, queries: int, keys: int) -> Tiles:
    """Tiles for the cotangents of keys and values."""
    if form.padded <= 64:
        return Tiles.fitting(
            keys, queries, strips=2, most=32, blocks_per_multiprocessor=2
        )
    if form.padded <= 128:
        return Tiles.fitting(
            keys, queries, strips=1, most=64, blocks_per_multiprocessor=2
        )
    return _tiles_of_long_heads(form, keys, queries)


def _tiles_of_long_heads(form: Form, rows: int, columns: int) -> Tiles:
    """Tiles of which one block fits on a multiprocessor."""
    most = 64 if form.padded <= 192 else 32
    return Tiles.fitting(
        rows, columns, strips=1, most=most, blocks_per_multiprocessor=1, warps=8
    )


def shared_bytes(form: Form, tiles: Tiles, with_slopes: bool = True) -> int:
    """Bytes of the tiles, of which those of columns are there twice."""
    arrays = 2 if with_slopes else 1
    lane_rows = form.line * (arrays * tiles.rows + 4 * tiles.columns)
    return 2 * lane_rows + 4 * 4 * tiles.columns


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
{tiles}
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
    cp_async_commit()
    cp_async_wait(1)
    barrier()
    if visit > 0:
        start = begin + remainder(visit - 1, visits) * {columns}
        member = {member_before}
        stage = remainder(visit - 1, 2) * {stage}
        column_terms = remainder(visit - 1, 2) * {columns}
        {terms_of_head}
        # Logits, and slopes: products of cotangents and values.
        {zero_logits}
        {products}
        {terms}
        {limits}
        # Weights, and the cotangents of logits.
        for lane_row in range({lane_rows}):
            for i in range({row_logits}):
                at = {logit_at}
                column = {column_term}
                weight = approximate_exp2_f32({weight})
                logits[at] = weight
                {slope}
        {add}
cp_async_wait(0)
barrier()
out_step = {row_heads} * {H}
out_base = batch * {rows_are} * out_step + row_head * {H}
{give}
"""


@dataclass(frozen=True)
class _Side:
    """What a kernel's rows are, and its columns, and how it names what belongs to them.

    Rows are multiplied by columns, array by array. A row meets columns from ``before``
    it to ``after`` it.
    """

    rows: str
    columns: str
    row_arrays: tuple[str, str]
    column_arrays: tuple[str, str]
    before: str
    after: str
    row_end: str
    column_end: str
    row_heads: str
    first_row: str
    members: str  # how many heads of columns a head of rows meets
    member: str  # the head of queries in a visit
    column_head: str
    column_term: str  # where bounds and means of a column are
    bound: str
    mean: str


_OF_QUERIES: Final = _Side(
    rows="queries",
    columns="keys",
    row_arrays=("q", "cotangent"),
    column_arrays=("k", "v"),
    before="left",
    after="right",
    row_end="query_end",
    column_end="key_end",
    row_heads="heads",
    first_row="(blocks - 1 - remainder(block_index(), blocks))",
    members="1",
    member="row_head",
    column_head="quotient(member, group)",
    column_term="0",
    bound="bounds_of[lane_row]",
    mean="means_of[lane_row]",
)
_OF_KEYS: Final = _Side(
    rows="keys",
    columns="queries",
    row_arrays=("k", "v"),
    column_arrays=("q", "cotangent"),
    before="right",
    after="left",
    row_end="key_end",
    column_end="query_end",
    row_heads="key_heads",
    first_row="remainder(block_index(), blocks)",
    members="group",
    member="row_head * group + quotient({visit}, visits)",
    column_head="member",
    column_term=f"column_terms + {COLUMN}",
    bound="bounds_tile[column]",
    mean="means_tile[column]",
)


def gradient(form: Form, tiles: Tiles, wanted: tuple[str, ...]) -> str:
    """The body of a kernel that gives ``wanted``: ("dq",), or of ("dk", "dv")."""
    side = _OF_QUERIES if wanted == ("dq",) else _OF_KEYS
    text = Text(form, tiles, side.rows, side.columns)
    strips, columns = tiles.strips, tiles.columns
    slopes = wanted != ("dv",)
    row_arrays: Sequence[str] = side.row_arrays[: 1 + slopes]
    limits = (side.before, side.after, side.row_end, side.column_end)
    weight = f"logits[at] - {side.bound}"
    if not form.ready:
        weight = f"fma_f32(logits[at], factor, -{side.bound})"
    slope = f"slopes[at] = weight * (slopes[at] - {side.mean})" if slopes else ""
    products = [
        text.by_columns(sums, f"{row}_tile", f"{column}_tile", "stage + ").strip("\n")
        for sums, row, column in zip(
            ("logits", "slopes"), row_arrays, side.column_arrays, strict=False
        )
    ]
    return filled(
        _TEXT,
        H=form.head,
        rows=tiles.rows,
        last_row=tiles.rows - 1,
        columns=columns,
        last_column=columns - 1,
        lane_rows=text.lane_rows,
        rows_are=side.rows,
        row_bases=_bases(row_arrays, "row_head"),
        row_heads=side.row_heads,
        row_end=side.row_end,
        column_end=side.column_end,
        first_row=side.first_row,
        before=side.before,
        after=side.after,
        members=side.members,
        ends=text.ends(),
        tiles=_tiles(text, side, row_arrays),
        row_terms=of_rows(text) if side is _OF_QUERIES else "",
        places=text.places(),
        sums=_sums(text, wanted),
        logits_size=strips * columns // 2,
        left_size=8 * strips,
        member_of=side.member.format(visit="visit"),
        member_before=side.member.format(visit="visit - 1"),
        stage=columns * form.line,
        column_bases=_bases(side.column_arrays, side.column_head),
        copy_columns=_copied(text, side, slopes),
        terms_of_head=text.terms_of_head(),
        zero_logits=text.zeros("logits", "slopes", width=columns),
        products=products,
        terms=text.terms(),
        limits=text.limits(*limits),
        row_logits=columns // 4,
        logit_at=text.place(columns),
        column_term=side.column_term,
        factor=form.factor,
        weight=weight,
        slope=slope,
        add=_added(text, side, wanted),
        give=_given(text, row_arrays, wanted),
    )


def _tiles(text: Text, side: _Side, row_arrays: Sequence[str]) -> str:
    """The tiles in shared memory; those of rows are copied, once."""
    form, tiles = text.form, text.tiles
    lines: list[str] = []
    cleared: list[tuple[str, int]] = []
    offset = 0
    sizes = dict.fromkeys(row_arrays, tiles.rows)
    sizes |= dict.fromkeys(side.column_arrays, 2 * tiles.columns)
    for array, rows in sizes.items():
        lines.append(f"{array}_tile = dynamic_shared_u16({offset}, {rows * form.line})")
        cleared.append((f"{array}_tile", rows))
        offset += 2 * rows * form.line
    if side is _OF_KEYS:
        for name in ("bounds", "means"):
            lines.append(
                f"{name}_tile = dynamic_shared_f32({offset}, {2 * tiles.columns})"
            )
            offset += 8 * tiles.columns
    lines.append(text.cleared(cleared))
    lines += [
        text.copied(x, f"{x}_base", side.rows, tiles.rows, "first_row").strip("\n")
        for x in row_arrays
    ]
    return "\n".join(lines)


def _sums(text: Text, wanted: Sequence[str]) -> list[str]:
    """The registers of the sums, zero."""
    count = text.tiles.strips * text.form.padded // 2
    lines = [f"{x} = registers_f32({count})" for x in wanted]
    return [*lines, text.zeros(*wanted, width=text.form.padded)]


def _copied(text: Text, side: _Side, slopes: bool) -> str:
    """Copies the next tile of columns, and what belongs to queries."""
    columns = text.tiles.columns
    lines = [
        text.copied(x, f"{x}_base", side.column_end, columns, first="stage + ")
        for x in side.column_arrays
    ]
    if side is _OF_KEYS:
        lines.append("\n" + _of_columns(text.tiles, slopes))
    return "".join(lines)


def _added(text: Text, side: _Side, wanted: Sequence[str]) -> str:
    """Adds the columns by the cotangents of logits, or by the weights."""
    by_logits, by_weights = side.column_arrays
    return "\n".join(
        text.over_columns("dv", "logits", f"{by_weights}_tile", "stage + ")
        if x == "dv"
        else text.over_columns(x, "slopes", f"{by_logits}_tile", "stage + ")
        for x in wanted
    )


def _given(text: Text, row_arrays: Sequence[str], wanted: Sequence[str]) -> str:
    """Rounds the sums into the tiles of rows, and gives these out."""
    scale = f"f32({text.form.scale!r})"
    places = [*zip(wanted, (f"{x}_tile" for x in row_arrays), strict=False)]
    lines = [
        text.rounded(x, "f32(1)" if x == "dv" else scale, tile) for x, tile in places
    ]
    lines.append("barrier()")
    lines += [
        text.given(f"{x}_out", tile, "out_base", "out_step") for x, tile in places
    ]
    return "\n".join(lines)


def _bases(arrays: Sequence[str], head: str) -> list[str]:
    """Where the heads of arrays begin."""
    return [f"{x}_base = batch * {x}_batch + {head} * {x}_head" for x in arrays]


def of_rows(text: Text) -> str:
    """Bounds and means of a lane's queries."""
    return f"""
bounds_of = registers_f32({text.lane_rows})
means_of = registers_f32({text.lane_rows})
for lane_row in range({text.lane_rows}):
    row = first_row + warp * {16 * text.tiles.strips} + lane_row * 8 + quotient(lane, 4)
    at = (batch * heads + row_head) * queries + min_i64(row, queries - 1)
    bounds_of[lane_row] = bounds[at]
    means_of[lane_row] = means[at]
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
        "    cp_async_f32x1(bounds, at, bounds_tile, place, 1)",
    ]
    if slopes:
        lines.append("    cp_async_f32x1(means, at, means_tile, place, 1)")
    return "\n".join(lines)
