"""Pieces of kernels that sort a tile of elements by a digit of their keys.

A warp goes over neighbouring elements, 32 at a time. Lanes with equal digits find each
other by votes (``match_any_byte``), number themselves, and count on from what the warp
has counted before. Running sums over the warps, and over the digits, then say where
each element goes. Equal digits keep their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from arrayfn.lowering.cuda.handwritten import indented
from arrayfn.lowering.cuda.sorting.keys import Keys
from arrayfn.lowering.cuda.vocabulary import WARP

DIGIT: Final = 8
DIGITS: Final = 1 << DIGIT


@dataclass(frozen=True)
class Tile:
    """Elements of a block: each thread has ``items``."""

    threads: int
    items: int

    @property
    def size(self) -> int:
        """How many elements."""
        return self.threads * self.items

    @property
    def warps(self) -> int:
        """How many warps."""
        return self.threads // WARP


@dataclass(frozen=True)
class Moved:
    """What a kernel moves: keys, positions in the row, or both.

    Keys are made of ``elements`` in their order, of those at the ``positions``, or they
    are read as ``words``. Positions are read, or count from 0. Written are keys as
    words, as elements, those elements that are at the positions (``taken``), or none;
    and the positions, as i32 or i64, if ``order`` names their dtype. In their place
    values of another dtype can be ``carried``, if they are read.
    """

    keys: Keys
    reads: Literal["elements", "positions", "words"] = "elements"
    positions: bool = False
    gives: Literal["words", "elements", "taken", "nothing"] = "words"
    order: str = ""
    carried: str = "i32"

    @property
    def has_positions(self) -> bool:
        """Whether positions move with the keys."""
        return bool(self.order) or self.gives == "taken"

    @property
    def sources(self) -> tuple[str, ...]:
        """The arrays that keys are made of."""
        return ("keys_in", "order_in") if self.reads == "positions" else ("keys_in",)

    @property
    def arrays_in(self) -> tuple[str, ...]:
        """The arrays that are read."""
        names = ("keys_in", "order_in") if self.positions else ("keys_in",)
        return (*names, "taken_in") if self.gives == "taken" else names

    @property
    def arrays_out(self) -> tuple[str, ...]:
        """The arrays that are written."""
        names = ("keys_out",) if self.gives != "nothing" else ()
        return (*names, "order_out") if self.order else names

    def load(self, at: str = "source + at") -> str:
        """Lines that make ``key`` of the element that lies at ``at``."""
        if self.reads == "words":
            return f"key = {call_of(self.keys.from_word, f'keys_in[{at}]')}"
        if self.reads == "positions":
            at = f"row * n + convert_i32_i64(order_in[{at}])"
        return f"x = keys_in[{at}]\n{self.keys.encode()}"

    def store(self, length: str = "n") -> str:
        """Lines that write what is at ``at`` of the tile to ``target``.

        The rows that elements are taken from are ``length`` long.
        """
        lines: list[str] = []
        if self.gives == "words":
            lines.append("keys_out[target] = words[at]")
        elif self.gives == "elements":
            key = call_of(self.keys.from_word, "words[at]")
            lines += [f"key = {key}", self.keys.decode(), "keys_out[target] = x"]
        elif self.gives == "taken":
            place = f"row * {length} + convert_i32_i64(positions[at])"
            lines.append(f"keys_out[target] = taken_in[{place}]")
        if self.order:
            convert = ""
            if self.order != self.carried:
                convert = f"convert_{self.carried}_{self.order}"
            lines.append(f"order_out[target] = {call_of(convert, 'positions[at]')}")
        return "\n".join(lines)


def call_of(function: str, argument: str) -> str:
    """A call of ``function``, or the argument itself if there is none."""
    return f"{function}({argument})" if function else argument


class SharedArrays:
    """Shared memory of a block, laid out array by array."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.size = 0

    def array(self, name: str, dtype: str, count: int) -> None:
        self.lines.append(f"{name} = dynamic_shared_{dtype}({self.size}, {count})")
        nbytes = count * (8 if dtype.endswith("64") else 4)
        self.size += -(-nbytes // 16) * 16

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def tile_shared_arrays(moved: Moved, tile: Tile, *, bases: bool) -> SharedArrays:
    """What a block has in shared memory to sort a tile."""
    shared = SharedArrays()
    shared.array("counters", "i32", tile.warps * DIGITS)
    shared.array("starts", "i32", DIGITS)
    shared.array("sums", "i64", 2 * tile.warps)
    if bases:
        shared.array("bases", "i32", DIGITS)
    shared.array("words", moved.keys.word, tile.size)
    if moved.has_positions:
        shared.array("positions", moved.carried, tile.size)
    return shared


LANES: Final = """
thread = thread_index()
warp = quotient(thread, 32)
lane = remainder(thread, 32)
below = convert_i64_i32((1 << lane) - 1)
"""

_LOAD: Final = """
for item in range({items}):
    place = begin + item * 32
    at = min_i64(place, count - 1)
{load}
    if place >= count:
        key = i64({max_key})
    keys[item] = {word}
"""

_RANK: Final = """
for at in range(thread, {counters}, {threads}):
    counters[at] = i32(0)
barrier()
for item in range({items}):
    digit = byte_{key}(keys[item], shift)
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

_SCAN: Final = """
first = thread * {each}
mine = i64(0){whole_0}
if first < 256:
    for part in range({each}):
        digit = first + part
        for k in range({warps}):
            have = counters[k * 256 + digit]
            counters[k * 256 + digit] = convert_i64_i32(mine)
            mine = mine + convert_i32_i64(have){whole_add}
before = mine{whole_before}
for step in range(5):
    other = shuffle_up_i64(before, 1 << step){whole_shuffle}
    if lane >= (1 << step):
        before = before + other{whole_more}
if lane == 31:
    sums[warp] = before{whole_sums}
barrier()
before = before - mine{whole_exclusive}
for k in range({summed}):
    if k < warp:
        before = before + sums[k]{whole_sum}
if first < 256:
    for part in range({each}):
        digit = first + part
        starts[digit] = convert_i64_i32(before){whole_bases}
barrier()
"""

_WHOLE: Final = {  # of the row, beside the sums of the tile
    "whole_0": "\nwhole = i64(0)",
    "whole_add": "\n        whole = whole + convert_i32_i64({in_row})",
    "whole_before": "\nwhole_before = whole",
    "whole_shuffle": "\n    whole_other = shuffle_up_i64(whole_before, 1 << step)",
    "whole_more": "\n        whole_before = whole_before + whole_other",
    "whole_sums": "\n    sums[{warps} + warp] = whole_before",
    "whole_exclusive": "\nwhole_before = whole_before - whole",
    "whole_sum": "\n        whole_before = whole_before + sums[{warps} + k]",
    "whole_bases": """
        there = whole_before + convert_i32_i64({in_tiles})
        here = before + convert_i32_i64(counters[digit])
        bases[digit] = convert_i64_i32(there - here)
        whole_before = whole_before + convert_i32_i64({in_row})""",
}

_SUMMED: Final = {  # how often there is a digit in the row, and in the tiles before
    "in_row": "totals_in[row * 256 + digit]",
    "in_tiles": "counts_in[(row * 256 + digit) * tiles + tile]",
}
_ADDED_UP: Final = {"in_row": "in_row[part]", "in_tiles": "in_tiles[part]"}
_ADD_UP: Final = """
in_row = registers_i32({each})
in_tiles = registers_i32({each})
for part in range({each}):
    digit = min_i64(thread * {each} + part, 255)
    total = i64(0)
    earlier = i64(0)
    for start in range(0, tiles, {in_flight}):
        for k in unrolled({in_flight}):
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
_IN_FLIGHT: Final = 8  # counts that a thread loads before it waits for the first

MOVE: Final = """
for item in range({items}):
    digit = byte_{key}(keys[item], shift)
    place = convert_i32_i64(
        places[item] + starts[digit] + counters[warp * 256 + digit]
    )
    words[place] = keys[item]{position}
barrier()
"""


def add_up(tile: Tile) -> str:
    """Adds up the counts of all tiles, and of those before: what ``scan`` takes."""
    each = max(1, DIGITS // tile.threads)
    return _ADD_UP.format(each=each, in_flight=_IN_FLIGHT)


def scan(tile: Tile, *, whole: bool, summed: bool = True) -> str:
    """Where digits begin in the tile; and in the ``whole`` row, less that.

    The counts of its tiles are ``summed`` in memory, or have been added up.
    """
    each = max(1, DIGITS // tile.threads)
    before = min(tile.warps, DIGITS // WARP)
    texts = {k: (v if whole else "") for k, v in _WHOLE.items()}
    text = _SCAN.format(each=each, warps=tile.warps, summed=before, **texts)
    places = {"warps": str(tile.warps), **(_SUMMED if summed else _ADDED_UP)}
    for name, place in places.items():
        text = text.replace(f"{{{name}}}", place)
    return text


def pieces_of(moved: Moved, tile: Tile, source: str = "source + at") -> dict[str, str]:
    """The texts that both ways of sorting a tile are made of."""
    keys = moved.keys
    load = moved.load(source)
    sizes = {"items": tile.items, "threads": tile.threads}
    return {
        "load": _LOAD.format(
            max_key=keys.max_key,
            load=indented(load, 1),
            word=call_of(keys.to_word, "key"),
            **sizes,
        ),
        "rank": _RANK.format(key=keys.word, counters=tile.warps * DIGITS, **sizes),
        "key": keys.word,
    }


WHERE: Final = """
row = quotient(block_index(), tiles)
tile = remainder(block_index(), tiles)
source = row * n + tile * {size}
count = min_i64(n - tile * {size}, {size})
"""
