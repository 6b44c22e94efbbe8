"""Stencils over images with channels last: texts for kernels that read windows.

Arrays are [image, line, column, channel]. A thread computes a vector of channels at
``COLUMNS`` neighbouring outputs of a row. It loads each line of their windows into
registers once. The threads of a block have ``BAND`` neighbouring rows, whose windows
share lines in the L1 cache. Elements beyond the border are a constant, not read from
memory.

Functions return lines of a kernel. The lines share these names: ``channel``,
``column``, ``row`` and ``image``, the thread's first output; ``channels``, ``rows`` and
``columns``, the extents of outputs; ``height`` and ``width``, those of the array that
windows move over. No barriers are needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from arrayfn.dtypes import HALF_PRECISION, DType, compute_dtype, short_name
from arrayfn.lowering.cuda.handwritten import indented
from arrayfn.lowering.cuda.vocabulary import vector_lanes
from arrayfn.records import frozen

THREADS: Final = 128  # of a block
COLUMNS: Final = 4  # neighbouring outputs of a thread
BAND: Final = 8  # neighbouring rows of a block
_LARGEST: Final = 2**31  # indices are below it


@frozen
class Lanes:
    """The vector of channels that a thread computes: its dtypes, loads and stores.

    An *element* has the dtype of memory, a *value* the compute dtype.
    """

    dtype: DType

    @property
    def count(self) -> int:
        """Channels of a thread: as many as fit into 16 bytes."""
        return vector_lanes(self.dtype)

    @property
    def word(self) -> str:
        """The dtype's name in functions that access memory."""
        return "u16" if self.is_half_precision else self.short

    @property
    def short(self) -> str:
        """The dtype's short name."""
        return short_name(self.dtype)

    @property
    def compute(self) -> str:
        """The short name of the compute dtype."""
        return short_name(compute_dtype(self.dtype))

    @property
    def is_half_precision(self) -> bool:
        """Whether elements are fp16 or bf16, and values float32."""
        return self.dtype in HALF_PRECISION

    @property
    def zero(self) -> str:
        """The expression of the value 0."""
        return f"{self.compute}(0)"

    @property
    def fill(self) -> str:
        """The expression of the element 0."""
        return "u16(0)" if self.is_half_precision else self.zero

    def tile(self, name: str) -> str:
        """Return the line that declares registers ``name`` for a vector of elements."""
        return f"{name} = registers_{self.word}({self.count})"

    def load(self, array: str, at: str, tile: str) -> str:
        """Return the line that loads a vector of ``array`` into ``tile``.

        ``at`` is the index of its first element.
        """
        return f"load_{self.word}x{self.count}({array}, {at}, {tile}, 0)"

    def load_if(
        self, condition: str, array: str, at: str, tile: str, fill: str
    ) -> list[str]:
        """Return lines that load a vector into ``tile`` if ``condition`` holds.

        Otherwise its elements are ``fill``, an expression. The vector is at index
        ``at`` of ``array``.
        """
        return [
            f"for lane in range({self.count}):",
            f"    {tile}[lane] = {fill}",
            f"if {condition}:",
            "    " + self.load(array, at, tile),
        ]

    def sums(self, names: Sequence[str]) -> str:
        """Return lines that declare registers ``names`` for values, all 0."""
        return filled_registers(names, self.compute, self.count, self.zero)

    def store(self, array: str, at: str, tile: str) -> str:
        """Return the line that stores the vector ``tile`` at ``at`` of ``array``."""
        return f"store_{self.word}x{self.count}({array}, {at}, {tile}, 0)"

    def value(self, element: str) -> str:
        """Return the expression of the value that ``element`` is converted to."""
        if not self.is_half_precision:
            return element
        return f"convert_{self.short}_{self.compute}({element})"

    def element(self, value: str) -> str:
        """Return the expression of the element that ``value`` is rounded to."""
        if not self.is_half_precision:
            return value
        return f"convert_{self.compute}_{self.short}({value})"


@frozen
class WindowAxis:
    """The windows along one axis: ``size`` taps, and the ``padding`` before the first.

    Tap t of output i reads element ``i * stride + t * dilation - padding``.
    """

    size: int
    stride: int
    dilation: int
    padding: int

    def at(self, output: str, tap: str = "") -> str:
        """Return the index of the element that ``tap`` of ``output`` reads.

        All are expressions: ``row * 2 + i - 1`` for stride 2 and a padding of 1.
        Without ``tap`` it is the index for the first tap.
        """
        text = output if self.stride == 1 else f"{output} * {self.stride}"
        if tap:
            text += f" + {tap}" if self.dilation == 1 else f" + {tap} * {self.dilation}"
        if not self.padding:
            return text
        sign = "-" if self.padding > 0 else "+"
        return f"{text} {sign} {abs(self.padding)}"

    def offsets(self) -> dict[int, list[tuple[int, int]]]:
        """Return the elements that a thread's ``COLUMNS`` outputs read.

        They are numbered from the first one on. Each is mapped to the pairs of an
        output that reads it, and the tap that does. For windows of 2 with stride 1,
        element 1 has the pairs (0, 1) and (1, 0).
        """
        readers: dict[int, list[tuple[int, int]]] = {}
        for output in range(COLUMNS):
            for tap in range(self.size):
                element = output * self.stride + tap * self.dilation
                readers.setdefault(element, []).append((output, tap))
        return dict(sorted(readers.items()))


@frozen
class Extents:
    """Extents of outputs (``rows``, ``columns``) and of the array under the windows.

    The array is [``batch``, ``height``, ``width``, ``channels``]. A thread computes
    ``thread_columns`` outputs of a row.
    """

    batch: int
    rows: int
    columns: int
    height: int
    width: int
    channels: int
    thread_columns: int = COLUMNS

    def integers(self, lanes: int) -> dict[str, int]:
        """Return the kernel's integer arguments, with ``lanes`` channels a thread.

        Rows are counted in bands of ``BAND``, and columns in parts of
        ``thread_columns``. So some threads may have no output.
        """
        parts = -(-self.columns // self.thread_columns)
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
        """Whether indices are below 2**31, and vectors are aligned.

        An array of a single pixel may be a slice that begins at any address.
        """
        inner = self.batch * self.channels
        rows, columns = self.rows + BAND, self.columns + self.thread_columns
        is_small = max(self.height * self.width, rows * columns) * inner < _LARGEST
        return is_small and self.batch * self.height * self.width > 1


def block_count(integers: dict[str, int]) -> int:
    """Return the number of blocks of a launch with these integer arguments.

    ``integers`` are the result of ``Extents.integers``.
    """
    return -(-integers["items"] // THREADS)


def thread_items(lanes: Lanes, body: str, thread_columns: int = COLUMNS) -> str:
    """Return lines that compute a thread's indices, then run ``body``.

    ``body`` runs if the thread has outputs: ``thread_columns`` neighbours of a row.
    ``items``, ``vectors`` (of channels), ``parts`` (of a row), ``bands`` (of rows) and
    ``rows`` are the integers of ``Extents.integers``.
    """
    return f"""
item = block_index() * {THREADS} + thread_index()
if item < items:
    channel = remainder(item, vectors) * {lanes.count}
    rest = quotient(item, vectors)
    own = remainder(rest, {BAND})
    rest = quotient(rest, {BAND})
    column = remainder(rest, parts) * {thread_columns}
    rest = quotient(rest, parts)
    row = remainder(rest, bands) * {BAND} + own
    image = quotient(rest, bands)
    channels = vectors * {lanes.count}
    if row < rows:
{indented(body, 2)}
"""


def windows(
    lanes: Lanes,
    axes: tuple[WindowAxis, WindowAxis],
    fill: str,
    before: Iterable[str],
    each: Iterable[str],
) -> str:
    """Return lines that loop over the lines of windows of ``x``, and load elements.

    ``i`` is the line's number in the window.
    Gives, for float32 windows of 3 by 3 without padding, whose threads read six
    elements of a line:

        first = column
        inside0 = (first + 0 >= 0) and (first + 0 < width)
        x0_tile = registers_f32(4)
        (and so on, to x5_tile)
        for i in range(3):
            line = row + i
            if (line >= 0) and (line < height):
                at = ((image * height + line) * width + first) * channels + channel
                (the lines ``before``)
                for lane in range(4):
                    x0_tile[lane] = f32(0)
                if inside0:
                    load_f32x4(x, at + 0 * channels, x0_tile, 0)
                (and so on, to x5_tile)
                for lane in range(4):
                    x0 = x0_tile[lane]
                    (and so on, to x5)
                    (the lines ``each``)

    Args:
        lanes: The vector of a thread.
        axes: The windows along lines and along columns.
        fill: The expression of an element beyond the border.
        before: Lines that precede the loads, once a line of the windows.
        each: Lines for each channel ``lane``. They read the values ``x0``, ``x1`` and
            so on, numbered as ``WindowAxis.offsets`` numbers elements.
    """
    down, right = axes
    declared: list[str] = []
    loads: list[str] = []
    values: list[str] = []
    for k in right.offsets():
        tile, is_inside = f"x{k}_tile", f"(first + {k} >= 0) and (first + {k} < width)"
        declared += [f"inside{k} = {is_inside}", lanes.tile(tile)]
        loads += lanes.load_if(f"inside{k}", "x", f"at + {k} * channels", tile, fill)
        values.append(f"x{k} = {lanes.value(f'{tile}[lane]')}")
    return f"""
first = {right.at("column")}
{indented(declared, 0)}
for i in range({down.size}):
    line = {down.at("row", "i")}
    if (line >= 0) and (line < height):
        at = ((image * height + line) * width + first) * channels + channel
{indented(before, 2)}
{indented(loads, 2)}
        for lane in range({lanes.count}):
{indented(values, 3)}
{indented(each, 3)}
"""


OUTPUT_INDEX: Final = (
    "at = ((image * rows + row) * columns + column) * channels + channel"
)
"""The line that defines ``at``, the index of a thread's first output."""


def store(lanes: Lanes, array: str, at: str, tile: str, where: str) -> list[str]:
    """Return lines that store the vector ``tile`` of values if ``where`` holds.

    The vector goes to index ``at`` of ``array``; ``where`` is a condition. Values are
    rounded first if elements have half precision.
    """
    if not lanes.is_half_precision:
        return [f"if {where}:", "    " + lanes.store(array, at, tile)]
    return [
        f"if {where}:",
        "    " + lanes.tile("rounded"),
        f"    for lane in range({lanes.count}):",
        f"        rounded[lane] = {lanes.element(f'{tile}[lane]')}",
        "    " + lanes.store(array, at, "rounded"),
    ]


def stores(lanes: Lanes, array: str, results: Sequence[str]) -> str:
    """Return lines that store the thread's outputs in ``array``.

    ``results`` are the registers of its outputs: vectors of values. Outputs beyond the
    last column are not stored.
    """
    lines = [OUTPUT_INDEX]
    for k, tile in enumerate(results):
        index = f"at + {k} * channels"
        lines += store(lanes, array, index, tile, f"column + {k} < columns")
    return "\n".join(lines)


def filled_registers(names: Sequence[str], dtype: str, count: int, value: str) -> str:
    """Return lines that declare the registers ``names`` and fill them with ``value``.

    Each has ``count`` elements of ``dtype``, a short name.
    """
    return "\n".join(
        (
            *(f"{name} = registers_{dtype}({count})" for name in names),
            f"for lane in range({count}):",
            *(f"    {name}[lane] = {value}" for name in names),
        )
    )
