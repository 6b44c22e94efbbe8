"""Radix sort by digits of eight bits, least significant first: the kernels' texts.

Rows that fit into the shared memory of a block are sorted there by all their digits
(``row_sort``). Longer ones are cut into tiles, one for each block, and each digit takes
three kernels:

1. ``count_digits``: each tile counts its digits.
2. ``digit_offsets``: for each digit, a running sum over the tiles says where a tile's
   elements of that digit begin. If there are few tiles, the next kernel does that.
3. ``tile_sort``: each tile sorts its elements by the digit and writes them to these
   offsets.

Equal digits keep their order, and nothing depends on which block runs first. Merrill
and Grimshaw, "High performance and scalable radix sorting", 2011; Adinets and Merrill,
"Onesweep", 2022, whose look-back is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from arrayfn.lowering.cuda.handwritten import Handwritten, indented
from arrayfn.lowering.cuda.sorting.keys import Keys
from arrayfn.lowering.cuda.sorting.tiles import (
    DIGIT_VALUES,
    THREAD_NUMBERS,
    SortData,
    Tile,
    call_of,
    digit_starts,
    digit_starts_in_row,
    load_keys,
    move_to_shared,
    rank_digits,
    sum_counts,
    sum_up_warp,
    tile_of_block,
    tile_shared_arrays,
)
from arrayfn.lowering.cuda.vocabulary import WARP

_RESIDENT: Final = 1024
"""Threads of a multiprocessor that sort 32-bit keys without values at once."""


def row_sort(data: SortData, tile: Tile, parts: Sequence[Keys]) -> Handwritten:
    """Return the kernel whose blocks each sort a tile of a row in shared memory.

    The first ``keep`` elements of the tile are written. Elements beyond the row's end
    come last. The kernel's integers are ``n``, the length of a row, ``tiles``, the
    tiles of a row, ``keep``, ``length`` (see ``SortData.store``) and ``bits``, the
    number of a key's low bits that differ.

    Args:
        data: What the kernel reads and writes.
        tile: The tile of a block.
        parts: If there are some, the tile is sorted by each of these keys, the decisive
            one last. The tile must be a whole row then, and have values.
    """
    shared = tile_shared_arrays(data, tile, bases=False)
    if parts:
        # The elements of later parts are read in the order of the parts before.
        sorted_at = "row * n + convert_i32_i64(value_registers[item])"
        sorts = [
            _sort_in_shared(
                replace(data, keys=keys),
                tile,
                f"min_i64(bits, {keys.bits})",
                sorted_at if number else "source + at",
            )
            for number, keys in enumerate(parts)
        ]
    else:
        sorts = [_sort_in_shared(data, tile, "bits", "source + at")]
    body = f"""
{THREAD_NUMBERS}
{shared.text}
{_declare_keys(data, tile)}
{tile_of_block(tile)}
begin = warp * {tile.items * WARP} + lane
{_load_values(data, tile) if data.has_values else ""}
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
        shared=shared.size,
    )


def _declare_keys(data: SortData, tile: Tile) -> str:
    """Return lines that declare the registers for a thread's keys and their ranks."""
    return f"""
keys = registers_{data.keys.word}({tile.items})
places = registers_i32({tile.items})
"""


def _load_values(data: SortData, tile: Tile) -> str:
    """Return lines that fill ``value_registers`` with a thread's values.

    Values that are not read are the elements' positions in their row. The kernel's
    ``begin`` is the thread's first element in the tile; the next ones are 32 apart.
    """
    value = "values_in[source + at]"
    if not data.reads_values:
        value = "convert_i64_i32(source + at - row * n)"
    return f"""
value_registers = registers_{data.value_dtype}({tile.items})
for item in range({tile.items}):
    at = min_i64(begin + item * 32, count - 1)
    value_registers[item] = {value}
"""


def _sort_in_shared(data: SortData, tile: Tile, bits: str, source: str) -> str:
    """Return lines that sort a tile by all digits of its keys, in shared memory.

    After each digit the keys, and values, return to registers in their new order.
    ``bits`` is the expression of the number of bits to sort by, ``source`` the
    expression of the index in ``keys_in`` of element ``at`` of the tile.
    """
    value = "value_registers[item]" if data.has_values else ""
    return f"""
{load_keys(data, tile, source)}
shift = i64(0)
while shift < {bits}:
{indented(rank_digits(data.keys, tile), 1)}
{indented(digit_starts(tile), 1)}
{indented(move_to_shared(data.keys, tile, value), 1)}
    for item in range({tile.items}):
        at = begin + item * 32
        keys[item] = words[at]
        {f"{value} = values[at]" if value else ""}
    shift = shift + 8
"""


def count_digits(data: SortData, tile: Tile, *, scanned: bool) -> Handwritten:
    """Return the kernel that counts the digits at ``shift`` in each tile.

    The layout of ``counts_out`` is [row, digit, tile] if ``digit_offsets`` follows
    (``scanned``), else [row, tile, digit]. ``data`` says what is read.
    """
    keys = data.keys
    index = "block_index() * 256 + digit"
    if scanned:
        index = "(row * 256 + digit) * tiles + tile"
    body = f"""
thread = thread_index()
{tile_of_block(tile)}
counters = dynamic_shared_i32(0, 256)
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
    counts_out[{index}] = counters[digit]
"""
    return Handwritten(
        "count_digits",
        body,
        tile.threads,
        "Counts the digits at ``shift`` in each tile of each row.",
        "how often each tile has each digit",
        shared=4 * DIGIT_VALUES,
    )


def digit_offsets(threads: int) -> Handwritten:
    """Return the kernel that sums up a digit's counts over the tiles of a row.

    A count becomes the sum of the counts of the tiles before (an exclusive sum). A
    block of ``threads`` threads computes one digit of a row; it also writes the total.
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
{indented(sum_up_warp("mine"), 1)}
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
    """Return the kernel that sorts tiles by a digit, and writes them to their rows.

    Each digit's elements go to their offset in the row. ``counts_in`` are the results
    of ``digit_offsets`` (``scanned``), or the counts of all tiles. Only the first
    ``keep`` elements of a row are written. ``data`` says what is read and written.
    """
    is_narrow = data.keys.word == "u32" and not data.has_values
    shared = tile_shared_arrays(data, tile, bases=True)
    value = ""
    if data.reads_values:
        value = "values_in[source + at]"
    elif data.has_values:
        value = f"convert_i64_i32(tile * {tile.size} + at)"
    # The loads from memory come first.
    body = f"""
{THREAD_NUMBERS}
{shared.text}
{_declare_keys(data, tile)}
{tile_of_block(tile)}
begin = warp * {tile.items * WARP} + lane
{"" if scanned else sum_counts(tile)}
{load_keys(data, tile)}
{rank_digits(data.keys, tile)}
{digit_starts_in_row(tile, scanned=scanned)}
{move_to_shared(data.keys, tile, value)}
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
        shared=shared.size,
        blocks_per_multiprocessor=_RESIDENT // tile.threads if is_narrow else 0,
    )
