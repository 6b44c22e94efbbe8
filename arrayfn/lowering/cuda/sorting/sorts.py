"""Lowers ``sort``, ``argsort`` and ``top_k`` to calls of the radix sort's kernels.

How many kernels a sort takes follows from its shape. Rows that fit into a block's
shared memory are sorted by one kernel; longer ones take two for each digit, or three.
The largest ``k`` of a long row are chosen among the largest ``k`` of each of its tiles,
as long as ``k`` is at most half of a tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.ir import Equation
from arrayfn.lowering.cuda.config import GpuConfig
from arrayfn.lowering.cuda.handwritten import HandwrittenCall
from arrayfn.lowering.cuda.schedule import power_of_two
from arrayfn.lowering.cuda.sorting.keys import COMPONENTS, Keys
from arrayfn.lowering.cuda.sorting.radix import (
    count_digits,
    digit_offsets,
    row_sort,
    tile_sort,
)
from arrayfn.lowering.cuda.sorting.tiles import DIGIT_BITS, DIGIT_VALUES, SortData, Tile
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.libraries.calls import Pointer, new_array, pointer_of
from arrayfn.passes.reads import Reads
from arrayfn.records import frozen

SORTS: Final = frozenset(("sort", "argsort", "top_k"))
MAX_ROW_LENGTH: Final = 2**31 - 1
"""Elements of the longest row that is sorted: positions have 32 bits."""

_FEW_TILES: Final = 32
"""Tiles of a row, up to which each tile sums the counts of all tiles by itself."""


@frozen
class SortedRows:
    """``count`` rows of ``n`` elements; the first ``keep`` of each are the result."""

    count: int
    n: int
    keep: int


def can_sort(equation: Equation) -> bool:
    """Whether ``equation`` is a sort, of rows short enough for 32-bit positions."""
    if equation.primitive.name not in SORTS:
        return False
    return equation.inputs[0].type.shape[-1] <= MAX_ROW_LENGTH


def sort(equation: Equation, reads: Reads, gpu: GpuConfig) -> Iterator[HandwrittenCall]:
    """Yield the calls for a sort, an argsort or a top_k along the last axis.

    ``reads`` says where operands lie; ``gpu`` how large tiles are. An empty result
    needs no calls.
    """
    x = equation.inputs[0]
    source = pointer_of(x, reads)
    *lead, n = x.type.shape
    keep = equation.outputs[0].type.shape[-1]
    rows = SortedRows(count=math.prod(lead), n=n, keep=keep)
    if not rows.count * rows.keep:
        return
    outputs = [Pointer(v) for v in equation.outputs]
    dtype, name = x.type.dtype, equation.primitive.name
    if name == "top_k":
        keys = Keys(dtype, for_positions=True, descending=True)
        data = SortData(keys, key_output="gathered", output_values="i32")
        yield from _top_k(rows, data, source, outputs, gpu)
        return
    if dtype in dtypes.COMPLEX:
        yield from _sort_complex(rows, dtype, source, outputs[0], name, gpu)
        return
    if name == "argsort":
        data = SortData(
            Keys(dtype, for_positions=True), key_output="nothing", output_values="i64"
        )
    else:
        data = SortData(Keys(dtype), key_output="elements")
    yield from sort_rows(rows, data, [source], outputs, gpu)


def sort_rows(
    rows: SortedRows,
    data: SortData,
    arrays: list[Pointer],
    outputs: list[Pointer],
    gpu: GpuConfig,
    bits: int | None = None,
) -> Iterator[HandwrittenCall]:
    """Yield the calls that sort ``arrays``, keys and perhaps values, into ``outputs``.

    Rows that fit into a block's shared memory take one call. ``data`` describes the
    arrays. If ``bits`` is given, keys differ only in that many low bits. ``gpu`` says
    how large tiles are.
    """
    keys = arrays[0]
    if rows.n <= _max_tile(gpu):
        tile = _tile_of(rows.n, gpu)
        yield _row_sort(rows, data, tile, arrays, keys, outputs, bits=bits)
        return
    yield from sort_digits(rows, data, arrays, keys, outputs, gpu, bits)


def _sort_complex(
    rows: SortedRows,
    dtype: DType,
    elements: Pointer,
    output: Pointer,
    name: str,
    gpu: GpuConfig,
) -> Iterator[HandwrittenCall]:
    """Yield the calls that sort complex ``elements``, or their positions.

    They are sorted by one component after the other. ``name`` is ``"sort"`` or
    ``"argsort"``. ``output`` receives the elements or the positions.
    """
    parts = [
        Keys(dtype, for_positions=True, component=component) for component in COMPONENTS
    ]
    if rows.n <= _max_tile(gpu):
        # One kernel sorts by all of ``parts``.
        data = SortData(parts[0], key_output="gathered")
        if name == "argsort":
            data = SortData(parts[0], key_output="nothing", output_values="i64")
        tile = _tile_of(rows.n, gpu)
        yield _row_sort(rows, data, tile, [elements], elements, [output], parts=parts)
        return
    # Each component sorts positions, in the order of the components before.
    arrays = [elements]
    for keys in parts:
        data = SortData(keys, key_output="nothing", output_values="i32")
        if len(arrays) > 1:
            data = replace(data, key_source="gathered", reads_values=True)
        if keys is not parts[-1]:
            order = new_array(dtypes.int32, rows.count * rows.n)
            yield from sort_digits(rows, data, arrays, elements, [order], gpu)
            arrays = [elements, order]
            continue
        if name == "argsort":
            data = replace(data, output_values="i64")
        else:
            data = replace(data, key_output="gathered", output_values="")
        yield from sort_digits(rows, data, arrays, elements, [output], gpu)


def sort_digits(
    rows: SortedRows,
    data: SortData,
    arrays: list[Pointer],
    elements: Pointer,
    outputs: list[Pointer],
    gpu: GpuConfig,
    bits: int | None = None,
) -> Iterator[HandwrittenCall]:
    """Yield the calls that sort rows of any length, digit by digit.

    Args:
        rows: The rows.
        data: What the first kernel reads and the last one writes; between them keys are
            words.
        arrays: The keys, and perhaps values, to begin with.
        elements: The elements, of which ``data`` may gather some in the end.
        outputs: The sorted keys, values or both.
        gpu: Says how large tiles are.
        bits: The number of low bits in which keys differ, if not all.
    """
    keys, size = data.keys, rows.count * rows.n
    shifts = range(0, keys.bits if bits is None else max(bits, 1), DIGIT_BITS)
    # Between the first and the last digit, keys and values are in memory as they are
    # sorted.
    between = replace(
        data,
        key_source="words",
        reads_values=data.has_values,
        key_output="words",
        output_values=data.value_dtype if data.has_values else "",
    )
    for shift in shifts:
        step = between
        if not shift:
            step = replace(
                step, key_source=data.key_source, reads_values=data.reads_values
            )
        if shift == shifts[-1]:
            step = replace(
                step, key_output=data.key_output, output_values=data.output_values
            )
            written, keep = outputs, rows.keep
        else:
            written, keep = [new_array(keys.word_dtype, size)], rows.n
            if data.has_values:
                value_dtype = dtypes.BY_SHORT_NAME[data.value_dtype]
                written.append(new_array(value_dtype, size))
        gathered = [elements] if step.key_output == "gathered" else []
        read = [*arrays[: 2 if step.reads_values else 1], *gathered]
        step_rows = replace(rows, keep=keep)
        yield from sort_by_digit(step_rows, step, arrays, read, written, shift, gpu)
        arrays = written


def sort_by_digit(
    rows: SortedRows,
    data: SortData,
    counted_arrays: Sequence[Pointer],
    read: Sequence[Pointer],
    outputs: Sequence[Pointer],
    shift: int,
    gpu: GpuConfig,
    totals: Pointer | None = None,
) -> Iterator[HandwrittenCall]:
    """Yield the calls that sort rows by the digit that begins at bit ``shift``.

    Offsets of tiles are computed by a kernel of their own if there are many tiles, or
    if ``totals`` are asked for.

    Args:
        rows: The rows.
        data: What the kernels read and write.
        counted_arrays: The keys, and perhaps values, in which digits are counted.
        read: The arrays that are sorted.
        outputs: The results.
        shift: The lowest bit of the digit.
        gpu: Says how large tiles are.
        totals: If given, it receives how often each digit occurs in each row.
    """
    items = gpu.sort_items if data.keys.word == "u32" else gpu.sort_items // 2
    tile = Tile(gpu.sort_threads, items)
    tiles = -(-rows.n // tile.size)
    blocks = rows.count * tiles
    scanned = totals is not None or tiles > _FEW_TILES
    counts = new_array(dtypes.int32, blocks * DIGIT_VALUES)
    offsets = {"counts_in": counts}
    integers = {"n": rows.n, "tiles": tiles, "shift": shift}
    # Values are counted only if keys are computed from them.
    counted = dict(zip(data.sources, counted_arrays, strict=False))
    yield HandwrittenCall(
        count_digits(data, tile, scanned=scanned),
        reads=counted,
        writes={"counts_out": counts},
        integers=integers,
        blocks=blocks,
    )
    if scanned:
        totals = totals or new_array(dtypes.int32, rows.count * DIGIT_VALUES)
        offsets["totals_in"] = totals
        threads = min(gpu.threads, max(WARP, power_of_two(tiles)))
        yield HandwrittenCall(
            digit_offsets(threads),
            reads={},
            writes={"counts_out": counts, "totals_out": totals},
            integers={"tiles": tiles},
            blocks=rows.count * DIGIT_VALUES,
        )
    yield HandwrittenCall(
        tile_sort(data, tile, scanned=scanned),
        reads={**dict(zip(data.arrays_in, read, strict=True)), **offsets},
        writes=dict(zip(data.arrays_out, outputs, strict=True)),
        integers={**integers, "keep": rows.keep},
        blocks=blocks,
    )


def _top_k(
    rows: SortedRows,
    data: SortData,
    elements: Pointer,
    outputs: list[Pointer],
    gpu: GpuConfig,
) -> Iterator[HandwrittenCall]:
    """Yield the calls for the first ``keep`` elements of each row.

    First each tile of a row is sorted, and its first ``keep`` elements are candidates.
    This is repeated with the candidates until a block holds all candidates of a row. If
    ``keep`` is more than half of a tile, rows are sorted as a whole. ``outputs`` are
    the elements and their positions.
    """
    max_tile = _max_tile(gpu)
    arrays, n = [elements], rows.n
    while n > max_tile and 2 * rows.keep <= max_tile:
        tiles = -(-n // max_tile)
        step = replace(data, key_output="words", output_values="i32")
        if len(arrays) > 1:
            step = replace(step, key_source="words", reads_values=True)
        size = rows.count * tiles * rows.keep
        kinds = data.keys.word_dtype, dtypes.int32
        written = [new_array(dtype, size) for dtype in kinds]
        part = SortedRows(rows.count, n=n, keep=rows.keep)
        yield _row_sort(part, step, _tile_of(max_tile, gpu), arrays, elements, written)
        arrays, n = written, tiles * rows.keep
    if len(arrays) > 1:
        data = replace(data, key_source="words", reads_values=True)
    if n <= max_tile:
        part = SortedRows(rows.count, n=n, keep=rows.keep)
        tile = _tile_of(n, gpu)
        yield _row_sort(part, data, tile, arrays, elements, outputs, length=rows.n)
    else:
        yield from sort_digits(rows, data, arrays, elements, outputs, gpu)


def _row_sort(
    rows: SortedRows,
    data: SortData,
    tile: Tile,
    arrays: list[Pointer],
    elements: Pointer,
    outputs: list[Pointer],
    length: int = 0,
    bits: int | None = None,
    parts: Sequence[Keys] = (),
) -> HandwrittenCall:
    """Return the call that sorts each tile of rows in one kernel.

    A block sorts one ``tile``. ``length`` is the length of the rows of ``elements``; 0
    if it is ``rows.n``. ``parts`` are the keys to sort by, if there are several. The
    other arguments are those of ``sort_digits``.
    """
    tiles = -(-rows.n // tile.size)
    read = [*arrays, *([elements] if data.key_output == "gathered" else [])]
    bits = data.keys.bits if bits is None else bits
    return HandwrittenCall(
        row_sort(data, tile, parts),
        reads=dict(zip(data.arrays_in, read, strict=True)),
        writes=dict(zip(data.arrays_out, outputs, strict=True)),
        integers={
            "n": rows.n,
            "tiles": tiles,
            "keep": rows.keep,
            "length": length or rows.n,
            "bits": bits,
        },
        blocks=rows.count * tiles,
    )


def _max_tile(gpu: GpuConfig) -> int:
    """Return the most elements that a block sorts in shared memory."""
    return gpu.sort_row_threads * gpu.sort_items


def _tile_of(n: int, gpu: GpuConfig) -> Tile:
    """Choose the smallest tile for ``n`` elements: more items, then more threads."""
    threads, items = WARP, 1
    while threads * items < n:
        if items < gpu.sort_items // 2 or threads == gpu.sort_row_threads:
            items *= 2
        else:
            threads *= 2
    return Tile(threads, items)
