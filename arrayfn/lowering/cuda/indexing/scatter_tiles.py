"""Scatters of single elements into many targets, by tiles of targets.

One pass of a radix sort puts the updates in the order of the highest digit of their
keys. Then each block holds a tile of targets in shared memory. It reads all updates
with the digit of its tile, some of which belong to other tiles, and collects its own.
So each target is read and written once, and the operand need not be copied first.

Each warp collects updates in their order. Of 32 at a time, updates of the same target
are combined by the lanes that hold them; then one warp after the other combines its
results with the tile. The order of combination follows only from the updates' keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from arrayfn import dtypes
from arrayfn.dtypes import DType, short_name
from arrayfn.ir import Var
from arrayfn.lowering.cuda.config import GpuConfig
from arrayfn.lowering.cuda.handwritten import Handwritten, HandwrittenCall, indented
from arrayfn.lowering.cuda.sorting.keys import Keys
from arrayfn.lowering.cuda.sorting.sorts import SortedRows, sort_by_digit
from arrayfn.lowering.cuda.sorting.tiles import (
    DIGIT_BITS,
    DIGIT_VALUES,
    THREAD_NUMBERS,
    SharedArrays,
    SortData,
    sum_up_warp,
)
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.libraries.calls import Pointer, new_array
from arrayfn.records import frozen

MIN_TARGETS: Final = 1 << 16  # with fewer targets, blocks would have few each
_THREADS: Final = DIGIT_VALUES  # of a block: each finds where one digit begins
_ITEMS: Final = 6  # updates that a thread loads at a time
_TILE_BYTES: Final = 1 << 15  # the most bytes of a tile of targets


@frozen
class Tiles:
    """The parameters of a scatter by tiles: ``count`` updates for ``limit`` targets.

    ``function`` combines two numbers of ``dtype`` (``"add"``, say). A thread copies
    ``lanes`` neighbouring targets at a time.
    """

    function: str
    dtype: DType
    count: int
    limit: int
    lanes: int

    @property
    def shift(self) -> int:
        """The lowest bit of the highest digit of a key."""
        return max(0, (self.limit - 1).bit_length() - DIGIT_BITS)

    @property
    def size(self) -> int:
        """Targets of a tile: as many as fit, but all keys of a tile have one digit."""
        return min(1 << self.shift, _TILE_BYTES // self.dtype.itemsize)


def scatter_in_tiles(
    tiles: Tiles,
    keys: Pointer,
    updates: Pointer,
    target: Var,
    result: Var,
    gpu: GpuConfig,
) -> Iterator[HandwrittenCall]:
    """Yield the calls that combine ``updates`` with ``target`` into ``result``.

    Args:
        tiles: The scatter's parameters.
        keys: The number of each update's target as u32, or ``limit`` for an update that
            is left out.
        updates: The updates, in the order of ``keys``.
        target: The array of targets.
        result: The result, which may have the memory of ``target``.
        gpu: The GPU, which the sort depends on.
    """
    name = short_name(tiles.dtype)
    data = SortData(
        Keys(dtypes.uint32), reads_values=True, output_values=name, value_dtype=name
    )
    sorted_arrays = [
        new_array(dtype, tiles.count) for dtype in (dtypes.uint32, tiles.dtype)
    ]
    totals = new_array(dtypes.int32, DIGIT_VALUES)
    # An update that is left out may have any digit: blocks compare whole keys.
    rows = SortedRows(count=1, n=tiles.count, keep=tiles.count)
    arrays = [keys, updates]
    yield from sort_by_digit(
        rows, data, arrays, arrays, sorted_arrays, tiles.shift, gpu, totals
    )
    blocks = -(-tiles.limit // tiles.size)
    moved_in = dict(zip(("keys_in", "updates_in"), sorted_arrays, strict=True))
    yield HandwrittenCall(
        tile_kernel(tiles),
        {**moved_in, "totals_in": totals, "target_in": Pointer(target)},
        {"target_out": Pointer(result)},
        # ``targets`` have the same highest digit.
        {"limit": tiles.limit, "targets": 1 << tiles.shift},
        blocks,
        over=((result, target),),
    )


def tile_kernel(tiles: Tiles) -> Handwritten:
    """Write the kernel that combines sorted updates with targets, one tile a block.

    Its steps share these arrays in shared memory: ``tile``, the targets from ``begin``
    on; ``bounds``, the first update with the tile's digit, and the end of these; for
    each warp the ``places`` in the tile and the ``values`` of the updates that it has
    collected, and their number in ``counts``. ``below`` and ``beyond`` are the masks of
    the lanes before and after a thread's own.
    """
    name, lanes = short_name(tiles.dtype), tiles.lanes
    warps, warp_items = _THREADS // WARP, _ITEMS * WARP
    shared = SharedArrays()
    shared.array("tile", name, max(tiles.size, lanes))
    shared.array("places", "i32", warps * warp_items)
    shared.array("values", name, warps * warp_items)
    shared.array("counts", "i32", warps)
    shared.array("sums", "i64", warps)
    shared.array("bounds", "i64", 2)
    vectors = max(1, tiles.size // (_THREADS * lanes))
    body = f"""
{THREAD_NUMBERS}
beyond = convert_i64_i32(0 - (2 << lane))
{shared.text}
begin = block_index() * {tiles.size}
size = min_i64(limit - begin, {tiles.size})
for vector in range({vectors}):
    first = (vector * {_THREADS} + thread) * {lanes}
    if first < size:
        cp_async_{name}x{lanes}(target_in, begin + first, tile, first, 1)
cp_async_commit()
{_digit_range(warps)}
lowest = convert_i64_u32(begin)
above = convert_i64_u32(size)
keys = registers_u32({_ITEMS})
updates = registers_{name}({_ITEMS})
last = convert_i64_i32(max_i64(bounds[1] - 1, 0))
start = bounds[0]
{_load_updates(warp_items, "start")}
for start in range(bounds[0], bounds[1], {warps * warp_items}):
{indented(_collect_updates(warp_items), 1)}
{indented(_load_updates(warp_items, f"start + {warps * warp_items}"), 1)}
    cp_async_wait(0)
    barrier()
{indented(_combine(name, tiles.function, warps, warp_items), 1)}
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
        shared=shared.size,
    )


def _digit_range(warps: int) -> str:
    """Return lines that fill ``bounds`` with the range of the tile's digit.

    These are the number of the first update with that digit, and the number after the
    last. Each thread has the count of one digit, and sums up those of lower digits. The
    tile's digit is ``begin / targets``, as so many targets share a digit.
    ``warps`` is the number of a block's warps. A barrier of the block ends the lines.
    """
    return f"""
own = convert_i32_i64(totals_in[thread])
{sum_up_warp("own")}
before = before - own
for k in range({warps}):
    if k < warp:
        before = before + sums[k]
if thread == quotient(begin, targets):
    bounds[0] = before
    bounds[1] = before + own
barrier()
"""


def _load_updates(warp_items: int, start: str) -> str:
    """Return lines that load the warp's share of the updates from ``start`` on.

    A warp has ``warp_items`` of these updates. They go to the registers ``keys`` and
    ``updates``. Beyond the end, update ``last`` is loaded again, the last one of the
    tile's digit. ``start`` is an expression.
    """
    return f"""
first_at = convert_i64_i32({start} + warp * {warp_items} + lane)
for item in range({_ITEMS}):
    at = convert_i32_i64(min_i32(add_i32(first_at, convert_i64_i32(item * 32)), last))
    keys[item] = keys_in[at]
    updates[item] = updates_in[at]
"""


def _collect_updates(warp_items: int) -> str:
    """Return lines by which each warp collects the loaded updates of the tile.

    A warp has loaded ``warp_items`` updates. For those of the tile, it writes the
    target's index in the tile and the value to its sections of the shared arrays
    ``places`` and ``values``, in order, and their number to ``counts``.

    ``keys`` and ``updates`` are the registers with the loaded updates, from number
    ``start`` on. The tile has the targets ``lowest`` to ``lowest + above - 1``.
    ``left`` is how many updates of the tile's digit there are from the lane's first one
    on.
    """
    return f"""
slots = warp * {warp_items}
left = convert_i64_i32(bounds[1] - start - slots - lane)
count = i32(0)
for item in range({_ITEMS}):
    word = sub_u32(keys[item], lowest)
    here = lt_u32(word, above) and lt_i32(convert_i64_i32(item * 32), left)
    found = ballot(here)
    if here:
        slot = slots + convert_i32_i64(add_i32(count, popcount_i32(found & below)))
        places[slot] = convert_u32_i32(word)
        values[slot] = updates[item]
    count = add_i32(count, popcount_i32(found))
if lane == 0:
    counts[warp] = count
"""


def _combine(name: str, function: str, warps: int, warp_items: int) -> str:
    """Return lines that combine the collected updates with the tile.

    A warp combines 32 updates at a time. Of the lanes whose updates have the same
    target, each knows the next one (``following``): the number of the lowest bit of the
    mask ``later``, or -1. Values are combined along these lists by pointer jumping: in
    each step a lane takes the value of the lane that it follows, and then follows the
    lane that this one follows. The first lane ends with the value for the target. Lanes
    without an update have targets of their own, below 0. The lines need a barrier
    before, and end with one. ``tile_kernel`` describes the arrays and masks.

    Args:
        name: The short name of the targets' dtype.
        function: Combines two targets: ``"add"``, say.
        warps: Warps of a block.
        warp_items: Updates that a warp has room for in shared memory.
    """
    return f"""
collected = convert_i32_i64(count)
most_collected = i64(0)
for k in range({warps}):
    most_collected = max_i64(most_collected, convert_i32_i64(counts[k]))
for iteration in range(0, most_collected, 32):
    at = iteration + lane
    place = -1 - lane
    value = {name}(0)
    if at < collected:
        place = convert_i32_i64(places[warp * {warp_items} + at])
        value = values[warp * {warp_items} + at]
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
"""


def _store(name: str, lanes: int) -> str:
    """Return lines that store ``lanes`` targets of the tile of dtype ``name``."""
    if lanes == 1:
        return "target_out[begin + first] = tile[first]"
    return f"""
results = registers_{name}({lanes})
load_{name}x{lanes}(tile, first, results, 0)
store_{name}x{lanes}(target_out, begin + first, results, 0)
"""
