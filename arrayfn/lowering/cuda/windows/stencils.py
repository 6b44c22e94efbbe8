"""Shared pieces of kernels whose threads read windows, with channels last.

A thread has a vector of channels at ``COLUMNS`` neighbouring outputs. Of each line of
the windows it reads what its outputs need once, into registers; the threads of a block
have ``BAND`` neighbouring lines, so that the cache of a multiprocessor has what they
share. What lies beyond the border is not in memory: a value stands for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from arrayfn.dtypes import DType, short_name

THREADS: Final = 128
COLUMNS: Final = 4
BAND: Final = 8
_WORDS: Final = {"f16": "u16", "bf16": "u16", "f32": "f32", "f64": "f64"}
_LARGEST: Final = 2**31


@dataclass(frozen=True)
class Lanes:
    """The vector of a thread, in memory and in arithmetic."""

    dtype: DType

    @property
    def count(self) -> int:
        """The channels of a thread: 128 bits."""
        return 16 // self.dtype.itemsize

    @property
    def word(self) -> str:
        """The vocabulary's name of an element in memory."""
        return _WORDS[self.short]

    @property
    def short(self) -> str:
        """The dtype's short name."""
        return short_name(self.dtype)

    @property
    def wide(self) -> str:
        """The vocabulary's name of a value."""
        return "f64" if self.word == "f64" else "f32"

    @property
    def is_narrow(self) -> bool:
        """Whether values are wider than elements."""
        return self.word != self.wide

    @property
    def zero(self) -> str:
        """The value 0."""
        return f"{self.wide}(0)"

    @property
    def fill(self) -> str:
        """The element 0."""
        return "u16(0)" if self.is_narrow else self.zero

    def tile(self, name: str) -> str:
        """A thread's vector in registers."""
        return f"{name} = registers_{self.word}({self.count})"

    def load(self, array: str, at: str, tile: str) -> str:
        """A vector from memory."""
        return f"load_{self.word}x{self.count}({array}, {at}, {tile}, 0)"

    def store(self, array: str, at: str, tile: str) -> str:
        """A vector to memory."""
        return f"store_{self.word}x{self.count}({array}, {at}, {tile}, 0)"

    def value(self, element: str) -> str:
        """The value of an element."""
        if not self.is_narrow:
            return element
        return f"convert_{self.short}_{self.wide}({element})"

    def element(self, value: str) -> str:
        """The element of a value, rounded."""
        if not self.is_narrow:
            return value
        return f"convert_{self.wide}_{self.short}({value})"


@dataclass(frozen=True)
class Along:
    """Windows along one axis: output i begins ``before`` before ``i * stride``."""

    size: int
    stride: int
    step: int
    before: int

    def at(self, place: str, tap: str = "") -> str:
        """Where the output at ``place`` has its element ``tap``, or its first."""
        text = place if self.stride == 1 else f"{place} * {self.stride}"
        if tap:
            text += f" + {tap}" if self.step == 1 else f" + {tap} * {self.step}"
        if not self.before:
            return text
        sign = "-" if self.before > 0 else "+"
        return f"{text} {sign} {abs(self.before)}"

    def offsets(self) -> dict[int, list[tuple[int, int]]]:
        """What a thread's ``COLUMNS`` outputs read, from the first one on.

        For each place: which output reads it, as which element of its window.
        """
        found: dict[int, list[tuple[int, int]]] = {}
        for output in range(COLUMNS):
            for tap in range(self.size):
                at = output * self.stride + tap * self.step
                found.setdefault(at, []).append((output, tap))
        return dict(sorted(found.items()))


@dataclass(frozen=True)
class Extents:
    """The extents of a kernel's outputs, and of what it reads."""

    batch: int
    rows: int
    columns: int
    height: int
    width: int
    channels: int
    across: int = COLUMNS  # of a thread

    def integers(self, lanes: int) -> dict[str, int]:
        """The kernel's integers, by name."""
        parts = -(-self.columns // self.across)
        bands = -(-self.rows // BAND)
        vectors = self.channels // lanes
        return {
            "items": self.batch * bands * parts * BAND * vectors,
            "vectors": vectors,
            "parts": parts,
            "bands": bands,
            "rows": self.rows,
            "columns": self.columns,
            "height": self.height,
            "width": self.width,
        }

    def fits(self) -> bool:
        """Whether numbers are below 2**31, and vectors are where vectors begin.

        A part of the only channels there are may begin anywhere.
        """
        inner = self.batch * self.channels
        rows, columns = self.rows + BAND, self.columns + self.across
        many = max(self.height * self.width, rows * columns) * inner < _LARGEST
        return many and self.batch * self.height * self.width > 1


def blocks_of(integers: dict[str, int]) -> int:
    """How many blocks have the items."""
    return -(-integers["items"] // THREADS)


def places(lanes: Lanes, body: Sequence[str], across: int = COLUMNS) -> list[str]:
    """``body`` for each thread: at ``channel``, ``column``, ``row`` and ``image``."""
    return [
        f"item = block_index() * {THREADS} + thread_index()",
        "if item < items:",
        *inside(
            [
                f"channel = remainder(item, vectors) * {lanes.count}",
                "rest = quotient(item, vectors)",
                f"own = remainder(rest, {BAND})",
                f"rest = quotient(rest, {BAND})",
                f"column = remainder(rest, parts) * {across}",
                "rest = quotient(rest, parts)",
                f"row = remainder(rest, bands) * {BAND} + own",
                "image = quotient(rest, bands)",
                f"channels = vectors * {lanes.count}",
                "if row < rows:",
                *inside(body),
            ]
        ),
    ]


def windows(
    lanes: Lanes,
    axes: tuple[Along, Along],
    array: str,
    fill: str,
    before: Sequence[str],
    each: Iterable[str],
) -> list[str]:
    """A walk along the lines ``i`` of windows, each line's elements in registers.

    ``before`` are statements of a line; ``each`` those of a ``lane``, where the values
    are ``x0``, ``x1`` and so on, numbered as ``offsets`` numbers places.
    """
    down, right = axes
    taken = right.offsets()
    lines = [f"first = {right.at('column')}"]
    for at in taken:
        lines += [
            f"inside{at} = (first + {at} >= 0) and (first + {at} < width)",
            lanes.tile(f"x{at}_tile"),
        ]
    body = ["at = ((image * height + line) * width + first) * channels + channel"]
    body += before
    for at in taken:
        body += [
            f"for lane in range({lanes.count}):",
            f"    x{at}_tile[lane] = {fill}",
            f"if inside{at}:",
            "    " + lanes.load(array, f"at + {at} * channels", f"x{at}_tile"),
        ]
    body.append(f"for lane in range({lanes.count}):")
    body += [f"    x{at} = {lanes.value(f'x{at}_tile[lane]')}" for at in taken]
    body += inside(each)
    return [
        *lines,
        f"for i in range({down.size}):",
        f"    line = {down.at('row', 'i')}",
        "    if (line >= 0) and (line < height):",
        *inside(body, 2),
    ]


PLACE: Final = "at = ((image * rows + row) * columns + column) * channels + channel"
"""Where a thread's first output lies."""


def store(lanes: Lanes, array: str, at: str, tile: str, where: str) -> list[str]:
    """A tile of values to memory, ``where`` a condition holds."""
    if not lanes.is_narrow:
        return [f"if {where}:", "    " + lanes.store(array, at, tile)]
    return [
        f"if {where}:",
        "    " + lanes.tile("rounded"),
        f"    for lane in range({lanes.count}):",
        f"        rounded[lane] = {lanes.element(f'{tile}[lane]')}",
        "    " + lanes.store(array, at, "rounded"),
    ]


def stores(lanes: Lanes, array: str, results: Sequence[str]) -> list[str]:
    """``results``, a tile of values for each column, to the thread's outputs."""
    lines = [PLACE]
    for k, tile in enumerate(results):
        place = f"at + {k} * channels"
        lines += store(lanes, array, place, tile, f"column + {k} < columns")
    return lines


def inside(lines: Iterable[str], levels: int = 1) -> list[str]:
    """``lines`` further to the right."""
    return ["    " * levels + line for line in lines]
