"""Scatters of single numbers into many targets: tiles of targets, a block's each.

The updates are put in the order of the highest digit of their keys, stably, by one pass
of a radix sort. A block has a tile of the targets in shared memory while it looks
through the updates of that digit, which it shares with some other tiles, for its own.
Targets are so read and written once, as by a copy, and need no copy before.

Each warp collects what it finds. Of 32 updates at a time those of one target are
combined by the lanes that have them, in pairs, and the warps take turns to combine that
with the tile: the order follows from the updates' keys alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from arrayfn import dtypes
from arrayfn.dtypes import DType, short_name
from arrayfn.ir import ArrayType, Var
from arrayfn.lowering.cuda.config import GpuConfig
from arrayfn.lowering.cuda.handwritten import Handwritten, HandwrittenCall, indented
from arrayfn.lowering.cuda.sorting.keys import Keys
from arrayfn.lowering.cuda.sorting.sorts import Rows, sort_by_digit
from arrayfn.lowering.cuda.sorting.tiles import (
    DIGIT,
    DIGITS,
    LANES,
    Moved,
    SharedArrays,
)
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.libraries.calls import Pointer

MIN_TARGETS: Final = 1 << 16  # targets: of fewer a block would have few
_THREADS: Final = DIGITS  # of a block: each finds where a digit begins
_ITEMS: Final = 6  # updates that a thread looks at at a time
_TILE_BYTES: Final = 1 << 15


@dataclass(frozen=True)
class Tiles:
    """``count`` updates of a dtype, combined by ``function`` with ``limit`` targets.

    A thread copies ``lanes`` neighbouring targets at a time.
    """

    function: str
    dtype: DType
    count: int
    limit: int
    lanes: int

    @property
    def shift(self) -> int:
        """The lowest bit of the highest digit of a key."""
        return max(0, (self.limit - 1).bit_length() - DIGIT)

    @property
    def size(self) -> int:
        """Targets of a tile."""
        return min(1 << self.shift, _TILE_BYTES // self.dtype.itemsize)


def scatter_in_tiles(
    tiles: Tiles,
    keys: Pointer,
    updates: Pointer,
    target: Var,
    result: Var,
    gpu: GpuConfig,
) -> Iterator[HandwrittenCall]:
    """The steps that combine ``updates`` with ``target``, which may lie where it does.

    A key is a target's number, or ``limit`` for what is left out, as u32.
    """
    name = short_name(tiles.dtype)
    moved = Moved(Keys(dtypes.uint32), positions=True, order=name, carried=name)
    own = [
        Pointer(Var(ArrayType((tiles.count,), dtype)))
        for dtype in (dtypes.uint32, tiles.dtype)
    ]
    totals = Pointer(Var(ArrayType((DIGITS,), dtypes.int32)))
    # What is left out may have any digit.
    rows, given = Rows(1, tiles.count, tiles.count), [keys, updates]
    yield from sort_by_digit(rows, moved, given, given, own, tiles.shift, gpu, totals)
    blocks = -(-tiles.limit // tiles.size)
    moved_in = dict(zip(("keys_in", "updates_in"), own, strict=True))
    yield HandwrittenCall(
        kernel_of(tiles),
        {**moved_in, "totals_in": totals, "target_in": Pointer(target)},
        {"target_out": Pointer(result)},
        {"limit": tiles.limit, "targets": 1 << tiles.shift},
        blocks,
        over=((result, target),),
    )


def kernel_of(tiles: Tiles) -> Handwritten:
    """The kernel of a tile of targets."""
    name, lanes = short_name(tiles.dtype), tiles.lanes
    warps, mine = _THREADS // WARP, _ITEMS * WARP
    shared = SharedArrays()
    shared.array("tile", name, max(tiles.size, lanes))
    shared.array("places", "i32", warps * mine)
    shared.array("values", name, warps * mine)
    shared.array("counts", "i32", warps)
    shared.array("sums", "i64", warps)
    shared.array("bounds", "i64", 2)
    vectors = max(1, tiles.size // (_THREADS * lanes))
    body = f"""{LANES.rstrip()}
beyond = convert_i64_i32(0 - (2 << lane))
{shared.text}
begin = block_index() * {tiles.size}
size = min_i64(limit - begin, {tiles.size})
for vector in range({vectors}):
    first = (vector * {_THREADS} + thread) * {lanes}
    if first < size:
        cp_async_{name}x{lanes}(target_in, begin + first, tile, first, 1)
cp_async_commit()
{_bounds(warps).strip()}
lowest = convert_i64_u32(begin)
above = convert_i64_u32(size)
keys = registers_u32({_ITEMS})
given = registers_{name}({_ITEMS})
last = convert_i64_i32(max_i64(bounds[1] - 1, 0))
start = bounds[0]
{_look(mine, "start")}
for start in range(bounds[0], bounds[1], {warps * mine}):
{indented(_find(mine), 1)}
{indented(_look(mine, f"start + {warps * mine}"), 1)}
    cp_async_wait(0)
    barrier()
{indented(_combine(name, tiles.function, warps, mine), 1)}
cp_async_wait(0)
barrier()
for vector in range({vectors}):
    first = (vector * {_THREADS} + thread) * {lanes}
    if first < size:
{indented(_store(name, lanes), 2)}
"""
    return Handwritten(
        "scatter_tiles",
        body,
        _THREADS,
        "Combines a tile of targets with the updates of their digit.",
        "updates combined with tiles of targets",
        shared.size,
    )


def _bounds(warps: int) -> str:
    """Which updates have the digit of the tile."""
    return f"""
own = convert_i32_i64(totals_in[thread])
before = own
for step in range(5):
    other = shuffle_up_i64(before, 1 << step)
    if lane >= (1 << step):
        before = before + other
if lane == 31:
    sums[warp] = before
barrier()
before = before - own
for k in range({warps}):
    if k < warp:
        before = before + sums[k]
if thread == quotient(begin, targets):
    bounds[0] = before
    bounds[1] = before + own
barrier()
"""


def _look(mine: int, start: str) -> str:
    """The warp's updates, ``mine`` of those from ``start`` on."""
    return f"""
nearest = convert_i64_i32({start} + warp * {mine} + lane)
for item in range({_ITEMS}):
    at = convert_i32_i64(min_i32(add_i32(nearest, convert_i64_i32(item * 32)), last))
    keys[item] = keys_in[at]
    given[item] = updates_in[at]
""".strip()


def _find(mine: int) -> str:
    """Each warp collects the updates of the tile among its own, in their order."""
    return f"""
slots = warp * {mine}
left = convert_i64_i32(bounds[1] - start - slots - lane)
count = i32(0)
for item in range({_ITEMS}):
    word = sub_u32(keys[item], lowest)
    here = lt_u32(word, above) and lt_i32(convert_i64_i32(item * 32), left)
    found = ballot(here)
    if here:
        slot = slots + convert_i32_i64(add_i32(count, popcount_i32(found & below)))
        places[slot] = convert_u32_i32(word)
        values[slot] = given[item]
    count = add_i32(count, popcount_i32(found))
if lane == 0:
    counts[warp] = count
""".strip()


def _combine(name: str, function: str, warps: int, mine: int) -> str:
    """Combine what the warps have found with the tile, 32 of each at a time."""
    return f"""
mine = convert_i32_i64(count)
most = i64(0)
for k in range({warps}):
    most = max_i64(most, convert_i32_i64(counts[k]))
for iteration in range(0, most, 32):
    at = iteration + lane
    place = -1 - lane
    value = {name}(0)
    if at < mine:
        place = convert_i32_i64(places[warp * {mine} + at])
        value = values[warp * {mine} + at]
    same = match_any_u32(place)
    later = same & beyond
    following = i64(-1)
    if later != 0:
        following = convert_i32_i64(popcount_i32((later & (0 - later)) - 1))
    while popcount_i32(ballot(following >= 0)) > 0:
        source = max_i64(following, 0)
        further_value = shuffle_from_{name}(value, source)
        further = shuffle_from_i64(following, source)
        if following >= 0:
            value = {function}_{name}(value, further_value)
            following = further
    is_first = place >= 0 and (same & below) == 0
    for k in range({warps}):
        if k == warp and is_first:
            tile[place] = {function}_{name}(tile[place], value)
        barrier()
barrier()
""".strip()


def _store(name: str, lanes: int) -> str:
    if lanes == 1:
        return "target_out[begin + first] = tile[first]"
    return f"""
results = registers_{name}({lanes})
load_{name}x{lanes}(tile, first, results, 0)
store_{name}x{lanes}(target_out, begin + first, results, 0)
""".strip()
