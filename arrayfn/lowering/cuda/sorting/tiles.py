"""The phases of a kernel that sorts a tile of elements by a digit of their keys.

* *Load*: each thread has ``items`` keys in registers; those of a warp are neighbours.
* *Rank*: for 32 elements of a warp at a time, the lanes with equal digits find each
  other by votes (``match_any_byte``), and number themselves after the elements that the
  warp has counted before. Each warp has a counter for each digit.
* *Digit starts*: running sums of the counters over warps and digits.
* *Move*: each key goes to the start of its digit and warp plus its rank, in shared
  memory.

Equal digits keep their order. The functions below give the phases' lines. These share
the following variables:

* ``thread``, ``warp``, ``lane``, and ``below``, the mask of lower lanes;
* ``row``, ``tile``; ``source``, the index of the tile's first element; ``count``, the
  number of its elements;
* ``begin``, the index in the tile of the lane's first element; its others follow at
  distances of 32;
* ``keys`` and ``places``, registers for a thread's keys and their ranks;
* ``shift``, the digit's lowest bit;
* the arrays of ``tile_shared_arrays``. The elements of a digit that a warp has begin in
  the tile at ``starts[digit] + counters[warp * 256 + digit]``. ``bases[digit]`` is
  where the tile's elements of the digit begin in the row, less where they begin in the
  tile.
"""

from __future__ import annotations

from typing import Final, Literal

from arrayfn.lowering.cuda.handwritten import indented
from arrayfn.lowering.cuda.sorting.keys import Keys
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.records import frozen

DIGIT_BITS: Final = 8
DIGIT_VALUES: Final = 1 << DIGIT_BITS
_IN_FLIGHT: Final = 8
"""Counts that a thread loads before it waits for the first."""


@frozen
class Tile:
    """The elements that a block of ``threads`` sorts: each thread has ``items``."""

    threads: int
    items: int

    @property
    def size(self) -> int:
        """Elements of the tile."""
        return self.threads * self.items

    @property
    def warps(self) -> int:
        """Warps of the block."""
        return self.threads // WARP


@frozen
class SortData:
    """What a sort kernel reads and writes: keys and, if there are any, their values.

    Values are the elements' positions in their rows, or numbers of another dtype.

    Args:
        keys: How elements become keys.
        key_source: Keys are computed from ``elements`` in their order, or from the
            elements at the positions that are values (``gathered``), or are read as
            they are (``words``).
        reads_values: Whether values are read. Otherwise they are the elements'
            positions, counted from 0.
        key_output: Keys are written as ``words`` or as ``elements``; or the elements at
            the sorted positions are written (``gathered``), or ``nothing``.
        output_values: The dtype in which values are written; empty if they are not.
        value_dtype: The dtype of values in the kernel.
    """

    keys: Keys
    key_source: Literal["elements", "gathered", "words"] = "elements"
    reads_values: bool = False
    key_output: Literal["words", "elements", "gathered", "nothing"] = "words"
    output_values: str = ""
    value_dtype: str = "i32"

    @property
    def has_values(self) -> bool:
        """Whether values move with the keys."""
        return bool(self.output_values) or self.key_output == "gathered"

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the array parameters that keys are computed from.

        Gathered keys need ``values_in``, which has the elements' positions.
        """
        return (
            ("keys_in", "values_in") if self.key_source == "gathered" else ("keys_in",)
        )

    @property
    def arrays_in(self) -> tuple[str, ...]:
        """The names of the array parameters that are read."""
        names = ("keys_in", "values_in") if self.reads_values else ("keys_in",)
        return (*names, "elements_in") if self.key_output == "gathered" else names

    @property
    def arrays_out(self) -> tuple[str, ...]:
        """The names of the array parameters that are written."""
        names = ("keys_out",) if self.key_output != "nothing" else ()
        return (*names, "values_out") if self.output_values else names

    def load(self, at: str = "source + at") -> str:
        """Return lines that compute ``key`` of the tile's element at ``at``.

        ``at`` is an index of ``keys_in`` or, if keys are gathered, of ``values_in``,
        which has the position in the row.
        """
        if self.key_source == "words":
            return f"key = {call_of(self.keys.from_word, f'keys_in[{at}]')}"
        if self.key_source == "gathered":
            at = f"row * n + convert_i32_i64(values_in[{at}])"
        return f"x = keys_in[{at}]\n{self.keys.encode()}"

    def store(self, length: str = "n") -> str:
        """Return lines that write the tile's element ``at`` to index ``target``.

        They read ``words`` and ``values`` in shared memory. ``length`` is the
        expression of the length of the rows that elements are gathered from.
        """
        lines: list[str] = []
        if self.key_output == "words":
            lines.append("keys_out[target] = words[at]")
        elif self.key_output == "elements":
            key = call_of(self.keys.from_word, "words[at]")
            lines += [f"key = {key}", self.keys.decode(), "keys_out[target] = x"]
        elif self.key_output == "gathered":
            position = f"row * {length} + convert_i32_i64(values[at])"
            lines.append(f"keys_out[target] = elements_in[{position}]")
        if self.output_values:
            convert = ""
            if self.output_values != self.value_dtype:
                convert = f"convert_{self.value_dtype}_{self.output_values}"
            lines.append(f"values_out[target] = {call_of(convert, 'values[at]')}")
        return "\n".join(lines)


def call_of(function: str, argument: str) -> str:
    """Return the expression ``function(argument)``, or ``argument`` if no function."""
    return f"{function}({argument})" if function else argument


class SharedArrays:
    """Lays out arrays in dynamic shared memory, at multiples of 16 bytes.

    ``lines`` declare the arrays, and ``size`` is their size in bytes.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.size = 0

    def array(self, name: str, dtype: str, count: int) -> None:
        """Add the array ``name`` of ``count`` elements of ``dtype``, a short name."""
        self.lines.append(f"{name} = dynamic_shared_{dtype}({self.size}, {count})")
        nbytes = count * (8 if dtype.endswith("64") else 4)  # none are smaller
        self.size += -(-nbytes // 16) * 16

    @property
    def text(self) -> str:
        """Lines that declare the arrays."""
        return "\n".join(self.lines)


def tile_shared_arrays(data: SortData, tile: Tile, *, bases: bool) -> SharedArrays:
    """Lay out the shared memory of a block that sorts a tile.

    ``counters`` has a counter for each warp and digit, ``starts`` a number for each
    digit, ``sums`` sums of warps, ``bases`` (with ``bases=True``) a number for each
    digit. ``digit_starts`` says what these become. ``words`` and ``values`` are the
    sorted tile.
    """
    shared = SharedArrays()
    shared.array("counters", "i32", tile.warps * DIGIT_VALUES)
    shared.array("starts", "i32", DIGIT_VALUES)
    shared.array("sums", "i64", 2 * tile.warps)
    if bases:
        shared.array("bases", "i32", DIGIT_VALUES)
    shared.array("words", data.keys.word, tile.size)
    if data.has_values:
        shared.array("values", data.value_dtype, tile.size)
    return shared


THREAD_NUMBERS: Final = """
thread = thread_index()
warp = quotient(thread, 32)
lane = remainder(thread, 32)
below = convert_i64_i32((1 << lane) - 1)
"""


def sum_up_warp(own: str) -> str:
    """Return lines that set ``before`` to the sum of ``own`` over a warp's lanes.

    The sum is over the lanes up to this one. ``own`` is a variable of each thread. The
    warps' totals go to the shared array ``sums``; a barrier of the block follows.
    """
    return f"""
before = {own}
for step in range(5):
    other = shuffle_up_i64(before, 1 << step)
    if lane >= (1 << step):
        before = before + other
if lane == 31:
    sums[warp] = before
barrier()
"""


def tile_of_block(tile: Tile) -> str:
    """Return lines that compute which tile of which row a block sorts.

    They also define where the tile begins (``source``), and its length (``count``).
    """
    return f"""
row = quotient(block_index(), tiles)
tile = remainder(block_index(), tiles)
source = row * n + tile * {tile.size}
count = min_i64(n - tile * {tile.size}, {tile.size})
"""


def load_keys(data: SortData, tile: Tile, source: str = "source + at") -> str:
    """Return lines of the phase *load*, which fill ``keys``.

    Beyond the tile's last element, keys are the largest key. ``source`` is the
    expression of the index in ``keys_in`` of the tile's element ``at``.
    """
    keys = data.keys
    return f"""
for item in range({tile.items}):
    place = begin + item * 32
    at = min_i64(place, count - 1)
{indented(data.load(source), 1)}
    if place >= count:
        key = i64({keys.max_key})
    keys[item] = {call_of(keys.to_word, "key")}
"""


def rank_digits(keys: Keys, tile: Tile) -> str:
    """Return lines of the phase *rank*, which set ``places`` to ranks.

    Each of ``keys`` is ranked among the warp's keys with the same digit, and
    ``counters`` become the number of each digit in each warp. ``below`` is the mask of
    the lanes before a thread's own.
    """
    return f"""
for at in range(thread, {tile.warps * DIGIT_VALUES}, {tile.threads}):
    counters[at] = i32(0)
barrier()
for item in range({tile.items}):
    digit = byte_{keys.word}(keys[item], shift)
    same = match_any_byte(digit)
    counter = warp * 256 + digit
    counted = counters[counter]
    rank = popcount_i32(same & below)
    warp_barrier()
    if rank == 0:
        counters[counter] = counted + popcount_i32(same)
    warp_barrier()
    places[item] = counted + rank
barrier()
"""


def digit_starts_in_row(tile: Tile, *, scanned: bool) -> str:
    """Return lines of the phase *digit starts*, for a tile of a longer row.

    They fill ``starts`` and ``bases`` and change ``counters``, as ``digit_starts``
    says. With ``scanned`` another kernel has computed running sums of the counts of all
    tiles. Without it the lines of ``sum_counts`` must come first, which define
    ``in_row`` and ``in_tiles``.
    """
    if scanned:
        in_row = "totals_in[row * 256 + digit]"
        in_earlier_tiles = "counts_in[(row * 256 + digit) * tiles + tile]"
    else:
        in_row, in_earlier_tiles = "in_row[part]", "in_tiles[part]"
    return digit_starts(tile, in_row, in_earlier_tiles)


def digit_starts(tile: Tile, in_row: str = "", in_earlier_tiles: str = "") -> str:
    """Return lines of the phase *digit starts*: in the tile, and perhaps in its row.

    Afterwards, the element of rank r among those of ``digit`` in warp w has the place
    ``starts[digit] + counters[w * 256 + digit] + r`` in the tile. That place plus
    ``bases[digit]`` is its place in the row.

    Each thread has ``each`` consecutive digits, from ``first`` on.
    ``starts[digit]`` is the number of elements of the tile whose digits belong to
    earlier threads, so it is the same for all digits of a thread. Each of ``counters``
    was the count of a digit in a warp. It becomes the number of the tile's elements
    that have an earlier digit of the same thread, or the same digit in an earlier warp.

    ``mine`` and ``whole`` count the elements of the thread's digits, in the tile and in
    the row. ``before`` and ``whole_before`` count those of earlier threads' digits; in
    the last loop, ``whole_before`` also counts those of the thread's earlier digits.

    Args:
        tile: The tile.
        in_row: The expression that counts ``digit`` in the row; empty to compute no
            starts in the row.
        in_earlier_tiles: The expression that counts ``digit`` in the tiles before.
    """
    each, warps = max(1, DIGIT_VALUES // tile.threads), tile.warps

    def of_row(line: str) -> str:
        """Return ``line`` if starts in the row are computed, else an empty line."""
        return line if in_row else ""

    return f"""
first = thread * {each}
mine = i64(0)
{of_row("whole = i64(0)")}
if first < 256:
    for part in range({each}):
        digit = first + part
        for k in range({warps}):
            have = counters[k * 256 + digit]
            counters[k * 256 + digit] = convert_i64_i32(mine)
            mine = mine + convert_i32_i64(have)
        {of_row(f"whole = whole + convert_i32_i64({in_row})")}
before = mine
{of_row("whole_before = whole")}
for step in range(5):
    other = shuffle_up_i64(before, 1 << step)
    {of_row("whole_other = shuffle_up_i64(whole_before, 1 << step)")}
    if lane >= (1 << step):
        before = before + other
        {of_row("whole_before = whole_before + whole_other")}
if lane == 31:
    sums[warp] = before
    {of_row(f"sums[{warps} + warp] = whole_before")}
barrier()
before = before - mine
{of_row("whole_before = whole_before - whole")}
for k in range({min(warps, DIGIT_VALUES // WARP)}):
    if k < warp:
        before = before + sums[k]
        {of_row(f"whole_before = whole_before + sums[{warps} + k]")}
if first < 256:
    for part in range({each}):
        digit = first + part
        starts[digit] = convert_i64_i32(before)
        {of_row(f"there = whole_before + convert_i32_i64({in_earlier_tiles})")}
        {of_row("here = before + convert_i32_i64(counters[digit])")}
        {of_row("bases[digit] = convert_i64_i32(there - here)")}
        {of_row(f"whole_before = whole_before + convert_i32_i64({in_row})")}
barrier()
"""


def sum_counts(tile: Tile) -> str:
    """Return lines that sum the counts of the row's tiles, for ``digit_starts_in_row``.

    For each digit of a thread of ``tile`` they set two registers: ``in_row``, the sum
    over all tiles, and ``in_tiles``, the sum over the tiles before. They need no
    barrier. In the kernel, ``row`` and ``tile`` are the numbers of the block's row and
    of its tile in the row, and ``counts_in`` is [row, tile, digit].
    """
    each = max(1, DIGIT_VALUES // tile.threads)
    return f"""
in_row = registers_i32({each})
in_tiles = registers_i32({each})
for part in range({each}):
    digit = min_i64(thread * {each} + part, 255)
    total = i64(0)
    earlier = i64(0)
    for start in range(0, tiles, {_IN_FLIGHT}):
        for k in unrolled({_IN_FLIGHT}):
            other = start + k
            line = row * tiles + min_i64(other, tiles - 1)
            have = counts_in[line * 256 + digit]
            if other < tiles:
                total = total + have
            if other < tile:
                earlier = earlier + have
    in_row[part] = total
    in_tiles[part] = earlier
"""


def move_to_shared(keys: Keys, tile: Tile, value: str = "") -> str:
    """Return lines of the phase *move*, which sort the keys into ``words``.

    Each key goes to its sorted index: its rank in ``places``, plus the number of the
    tile's elements with smaller digits, or with the same digit in earlier warps
    (``starts`` and ``counters``). ``value`` is the expression of the key's value,
    which goes to ``values``; empty if there are none. It may depend on ``at``, the
    key's index in the tile.
    """
    store_value = ""
    if value:
        # ``at`` is computed only if the value depends on it.
        at = "at = min_i64(begin + item * 32, count - 1)\n" if "at" in value else ""
        store_value = indented(f"{at}values[place] = {value}", 1)
    return f"""
for item in range({tile.items}):
    digit = byte_{keys.word}(keys[item], shift)
    place = convert_i32_i64(
        places[item] + starts[digit] + counters[warp * 256 + digit]
    )
    words[place] = keys[item]
{store_value}
barrier()
"""
