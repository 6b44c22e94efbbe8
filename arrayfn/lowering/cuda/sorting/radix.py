"""Radix sort by digits of eight bits, least significant first: the kernels' texts.

Rows that fit into the shared memory of a block are sorted there by all their digits
(``row_sort``). Longer ones are cut into tiles, one for each block, and each digit takes
three kernels:

1. ``count_digits``: each tile counts its digits.
2. ``digit_offsets``: for each digit, a running sum over the tiles says where a tile's
   elements of that digit begin. If there are few tiles, the next kernel does that.
3. ``tile_sort``: each tile sorts its elements by the digit and writes them there.

Equal digits keep their order, and nothing depends on which block runs first. Merrill
and Grimshaw, High performance and scalable radix sorting, 2011; Adinets and Merrill,
Onesweep, 2022, whose look-back is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from arrayfn.lowering.cuda.handwritten import Handwritten, indented
from arrayfn.lowering.cuda.sorting.keys import Keys
from arrayfn.lowering.cuda.sorting.tiles import (
    DIGITS,
    MOVE_TO_SHARED,
    THREAD_NUMBERS,
    TILE_OF_BLOCK,
    SortData,
    Tile,
    call_of,
    digit_starts,
    phase_texts,
    sum_counts,
    tile_shared_arrays,
)
from arrayfn.lowering.cuda.vocabulary import WARP

_RESIDENT: Final = 1024  # threads of a multiprocessor that sort keys without values


def row_sort(data: SortData, tile: Tile, parts: Sequence[Keys] = ()) -> Handwritten:
    """The kernel in which a block sorts a tile of a row, and writes the first ``keep``.

    Elements beyond the row's end come last. The kernel's integers are ``n``, the length
    of a row, ``tiles`` of it, ``keep``, ``length`` (see ``SortData.store``) and
    ``bits``, the number of a key's low bits that differ.

    Args:
        data: What the kernel reads and writes.
        tile: The tile of a block.
        parts: If given, the tile is sorted by each of these keys, from the low bits to
            the high ones; it must be a whole row then, and have values.
    """
    shared = tile_shared_arrays(data, tile, bases=False)
    items = tile.items
    reload = "keys[item] = words[at]"
    store_value = load_values = ""
    if data.has_values:
        store_value = "\n    values[place] = value_registers[item]"
        reload += "\n    value_registers[item] = values[at]"
        value = "values_in[source + at]"
        if not data.reads_values:
            value = "convert_i64_i32(source + at - row * n)"
        load_values = f"""
value_registers = registers_{data.value_dtype}({items})
for item in range({items}):
    at = min_i64(begin + item * 32, count - 1)
    value_registers[item] = {value}"""
    sorts: list[str] = []
    for number, keys in enumerate(parts or (data.keys,)):
        part = replace(data, keys=keys)
        phases = phase_texts(part, tile)
        load = phases["load"]
        if number:
            source = "row * n + convert_i32_i64(value_registers[item])"
            load = phase_texts(part, tile, source)["load"]
        bits = f"min_i64(bits, {keys.bits})" if parts else "bits"
        move = MOVE_TO_SHARED.format(
            items=items, key=phases["key"], store_value=store_value
        )
        loop = f"""{phases["rank"]}{digit_starts(tile, whole=False)}{move}
for item in range({items}):
    at = begin + item * 32
    {reload}
shift = shift + 8"""
        sorts.append(
            f"{load}\nshift = i64(0)\nwhile shift < {bits}:\n{indented(loop, 1)}"
        )
    body = f"""{THREAD_NUMBERS}{shared.text}
keys = registers_{data.keys.word}({items})
places = registers_i32({items})
{TILE_OF_BLOCK.format(size=tile.size)}
begin = warp * {items * WARP} + lane{load_values}
{"".join(sorts)}
for at in range(thread, keep, {tile.threads}):
    target = block_index() * keep + at
{indented(data.store("length"), 1)}
"""
    return Handwritten(
        "sort_rows",
        body,
        tile.threads,
        "Sorts tiles in shared memory, digit by digit; the first ``keep`` are written.",
        f"rows of up to {tile.size} sorted by a block each",
        shared.size,
    )


def count_digits(data: SortData, tile: Tile, *, scanned: bool) -> Handwritten:
    """The kernel that counts how often each tile has each digit at ``shift``.

    The layout of ``counts_out`` is [row, digit, tile] if ``digit_offsets`` follows
    (``scanned``), else [row, tile, digit]. ``data`` says what is read.
    """
    keys = data.keys
    line = "(row * 256 + digit) * tiles + tile"
    if not scanned:
        line = "block_index() * 256 + digit"
    where = TILE_OF_BLOCK.format(size=tile.size)
    body = f"""
thread = thread_index(){where}counters = dynamic_shared_i32(0, 256)
keys = registers_{keys.word}({tile.items})
for item in range({tile.items}):
    at = min_i64(item * {tile.threads} + thread, count - 1)
{indented(data.load(), 1)}
    keys[item] = {call_of(keys.to_word, "key")}
for digit in range(thread, 256, {tile.threads}):
    counters[digit] = i32(0)
barrier()
for item in range({tile.items}):
    if item * {tile.threads} + thread < count:
        atomic_add_i32(counters, byte_{keys.word}(keys[item], shift), i32(1))
barrier()
for digit in range(thread, 256, {tile.threads}):
    counts_out[{line}] = counters[digit]
"""
    return Handwritten(
        "count_digits",
        body,
        tile.threads,
        "Counts the digits at ``shift`` in each tile of each row.",
        "how often each tile has each digit",
        4 * DIGITS,
    )


def digit_offsets(threads: int) -> Handwritten:
    """The kernel that replaces a digit's counts by their exclusive sums over tiles.

    A block of ``threads`` threads has one digit of a row; it also writes their total.
    """
    warps = threads // WARP
    body = f"""
thread = thread_index()
warp = quotient(thread, 32)
lane = remainder(thread, 32)
line = block_index() * tiles
sums = shared_i64({warps})
upto = i64(0)
for begin in range(0, tiles, {threads}):
    mine = i64(0)
    if begin + thread < tiles:
        mine = convert_i32_i64(counts_out[line + begin + thread])
    before = mine
    for step in range(5):
        other = shuffle_up_i64(before, 1 << step)
        if lane >= (1 << step):
            before = before + other
    if lane == 31:
        sums[warp] = before
    barrier()
    before = before - mine + upto
    for k in range({warps}):
        if k < warp:
            before = before + sums[k]
        upto = upto + sums[k]
    if begin + thread < tiles:
        counts_out[line + begin + thread] = convert_i64_i32(before)
    barrier()
if thread == 0:
    totals_out[block_index()] = convert_i64_i32(upto)
"""
    return Handwritten(
        "digit_offsets",
        body,
        threads,
        "Where each tile's elements of a digit begin: sums of the counts before.",
        "where each tile's elements of a digit go",
    )


def tile_sort(data: SortData, tile: Tile, *, scanned: bool) -> Handwritten:
    """The kernel that sorts each tile by a digit and writes it to its row's order.

    ``counts_in`` are the results of ``digit_offsets`` (``scanned``), or the counts of
    all tiles. Only the first ``keep`` elements of a row are written. ``data`` says what
    is read and written.
    """
    narrow = data.keys.word == "u32" and not data.has_values
    phases = phase_texts(data, tile)
    shared = tile_shared_arrays(data, tile, bases=True)
    # What waits for memory comes first.
    begin = "" if scanned else sum_counts(tile).lstrip()
    store_value = ""
    if data.has_values:
        value = "values_in[source + at]"
        if not data.reads_values:
            value = f"convert_i64_i32(tile * {tile.size} + at)"
        store_value = f"""
    at = min_i64(begin + item * 32, count - 1)
    values[place] = {value}"""
    move = MOVE_TO_SHARED.format(
        items=tile.items, key=phases["key"], store_value=store_value
    )
    body = f"""{THREAD_NUMBERS}{shared.text}
keys = registers_{data.keys.word}({tile.items})
places = registers_i32({tile.items})
{TILE_OF_BLOCK.format(size=tile.size).strip()}
begin = warp * {tile.items * WARP} + lane
{begin}{phases["load"].strip()}
{phases["rank"].strip()}
{digit_starts(tile, whole=True, scanned=scanned).strip()}
{move.strip()}
for item in range({tile.items}):
    at = item * {tile.threads} + thread
    digit = byte_{data.keys.word}(words[at], shift)
    place = convert_i32_i64(bases[digit]) + at
    if at < count and place < keep:
        target = row * keep + place
{indented(data.store(), 2)}
"""
    return Handwritten(
        "sort_digits",
        body,
        tile.threads,
        "Sorts tiles by the digit at ``shift``, and writes its runs to their places.",
        "tiles sorted by a digit, and put in order",
        shared.size,
        _RESIDENT // tile.threads if narrow else 0,
    )
