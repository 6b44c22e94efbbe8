"""Radix sort by digits of eight bits, least significant first: the kernels' texts.

Rows that fit into the shared memory of a block are sorted there by all their digits.
Longer ones are cut into tiles, a block's each, and each digit takes three kernels: the
tiles count their digits; for each digit a running sum over the tiles says where each
tile's elements of that digit begin; and each tile sorts its elements by the digit and
writes them there, in runs. Of few tiles each adds up the counts itself. The order of
equal digits is kept from digit to digit, and nothing depends on which block runs first.
Merrill and Grimshaw, High performance and scalable radix sorting, 2011; Adinets and
Merrill, Onesweep, 2022, whose look-back is not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from arrayfn.lowering.cuda.handwritten import Handwritten, indented
from arrayfn.lowering.cuda.sorting.keys import Keys
from arrayfn.lowering.cuda.sorting.tiles import (
    DIGITS,
    LANES,
    MOVE,
    WHERE,
    Moved,
    Tile,
    add_up,
    call_of,
    pieces_of,
    scan,
    tile_shared_arrays,
)
from arrayfn.lowering.cuda.vocabulary import WARP

_RESIDENT: Final = 1024  # threads of a multiprocessor that sort keys without values


def row_sort(moved: Moved, tile: Tile, parts: Sequence[Keys] = ()) -> Handwritten:
    """A block sorts a tile of a row, of which the first ``keep`` are written.

    By several ``parts`` of the elements, least significant first, if they are given (of
    whole rows, whose positions count). What is behind the end of a row comes last.
    """
    shared = tile_shared_arrays(moved, tile, bases=False)
    items = tile.items
    again = "keys[item] = words[at]"
    position = hold = ""
    if moved.has_positions:
        position = "\n    positions[place] = held[item]"
        again += "\n    held[item] = positions[at]"
        given = "order_in[source + at]"
        if not moved.positions:
            given = "convert_i64_i32(source + at - row * n)"
        hold = f"""
held = registers_{moved.carried}({items})
for item in range({items}):
    at = min_i64(begin + item * 32, count - 1)
    held[item] = {given}"""
    sorts: list[str] = []
    for number, keys in enumerate(parts or (moved.keys,)):
        part = replace(moved, keys=keys)
        pieces = pieces_of(part, tile)
        load = pieces["load"]
        if number:
            source = "row * n + convert_i32_i64(held[item])"
            load = pieces_of(part, tile, source)["load"]
        bits = f"min_i64(bits, {keys.bits})" if parts else "bits"
        move = MOVE.format(items=items, key=pieces["key"], position=position)
        loop = f"""{pieces["rank"]}{scan(tile, whole=False)}{move}
for item in range({items}):
    at = begin + item * 32
    {again}
shift = shift + 8"""
        sorts.append(
            f"{load}\nshift = i64(0)\nwhile shift < {bits}:\n{indented(loop, 1)}"
        )
    body = f"""{LANES}{shared.text}
keys = registers_{moved.keys.word}({items})
places = registers_i32({items})
{WHERE.format(size=tile.size)}
begin = warp * {items * WARP} + lane{hold}
{"".join(sorts)}
for at in range(thread, keep, {tile.threads}):
    target = block_index() * keep + at
{indented(moved.store("length"), 1)}
"""
    return Handwritten(
        "sort_rows",
        body,
        tile.threads,
        "Sorts tiles in shared memory, digit by digit; the first ``keep`` are written.",
        f"rows of up to {tile.size} sorted by a block each",
        shared.size,
    )


def count_digits(moved: Moved, tile: Tile, *, summed: bool) -> Handwritten:
    """How often each tile has each digit.

    Counts of a digit lie side by side if they are to be ``summed``; else a tile's do.
    """
    keys = moved.keys
    line = "(row * 256 + digit) * tiles + tile"
    if not summed:
        line = "block_index() * 256 + digit"
    where = WHERE.format(size=tile.size)
    body = f"""
thread = thread_index(){where}counters = dynamic_shared_i32(0, 256)
keys = registers_{keys.word}({tile.items})
for item in range({tile.items}):
    at = min_i64(item * {tile.threads} + thread, count - 1)
{indented(moved.load(), 1)}
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


def digit_places(threads: int) -> Handwritten:
    """Running sums of a digit's counts over the tiles, in place, and their total."""
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
        "digit_places",
        body,
        threads,
        "Where each tile's elements of a digit begin: sums of the counts before.",
        "where each tile's elements of a digit go",
    )


def tile_sort(moved: Moved, tile: Tile, *, summed: bool) -> Handwritten:
    """Sorts each tile by a digit and writes it in runs to where they belong.

    Where that is say counts that are ``summed`` up, or those of all tiles.
    """
    narrow = moved.keys.word == "u32" and not moved.has_positions
    pieces = pieces_of(moved, tile)
    shared = tile_shared_arrays(moved, tile, bases=True)
    # What waits for memory comes first.
    begin = "" if summed else add_up(tile).lstrip()
    position = ""
    if moved.has_positions:
        given = "order_in[source + at]"
        if not moved.positions:
            given = f"convert_i64_i32(tile * {tile.size} + at)"
        position = f"""
    at = min_i64(begin + item * 32, count - 1)
    positions[place] = {given}"""
    move = MOVE.format(items=tile.items, key=pieces["key"], position=position)
    body = f"""{LANES}{shared.text}
keys = registers_{moved.keys.word}({tile.items})
places = registers_i32({tile.items})
{WHERE.format(size=tile.size).strip()}
begin = warp * {tile.items * WARP} + lane
{begin}{pieces["load"].strip()}
{pieces["rank"].strip()}
{scan(tile, whole=True, summed=summed).strip()}
{move.strip()}
for item in range({tile.items}):
    at = item * {tile.threads} + thread
    digit = byte_{moved.keys.word}(words[at], shift)
    place = convert_i32_i64(bases[digit]) + at
    if at < count and place < keep:
        target = row * keep + place
{indented(moved.store(), 2)}
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
