"""Sorts, orders and the largest few of rows: calls of the kernels of ``radix``.

How many kernels a sort takes follows from its shape. Rows that a block holds are sorted
in one; longer ones take two for each digit, or three. The largest few of a long row
are found among those of its tiles, as long as that leaves fewer by half.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.ir import ArrayType, Equation, Var
from arrayfn.lowering.cuda.config import GpuConfig
from arrayfn.lowering.cuda.handwritten import HandwrittenCall
from arrayfn.lowering.cuda.schedule import power_of_two
from arrayfn.lowering.cuda.sorting.keys import PARTS, Keys
from arrayfn.lowering.cuda.sorting.radix import (
    count_digits,
    digit_places,
    row_sort,
    tile_sort,
)
from arrayfn.lowering.cuda.sorting.tiles import DIGIT, DIGITS, Moved, Tile
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.libraries.calls import Pointer, pointer_of
from arrayfn.passes.reads import Reads

SORTS: Final = frozenset(("sort", "argsort", "top_k"))
LONGEST: Final = 2**31 - 1  # elements of a row: positions are of 32 bits

_FEW_TILES: Final = 32  # of a row: each adds up the counts of all


@dataclass(frozen=True)
class Rows:
    """Rows of ``n`` elements, of which the first ``keep`` of each are wanted sorted."""

    count: int
    n: int
    keep: int


def can_sort(equation: Equation) -> bool:
    """Whether ``equation`` sorts, and rows are short enough."""
    if equation.primitive.name not in SORTS:
        return False
    return equation.inputs[0].type.shape[-1] <= LONGEST


def sort(equation: Equation, reads: Reads, gpu: GpuConfig) -> Iterator[HandwrittenCall]:
    """The calls for a sort, an argsort or a top_k along the last axis."""
    x = equation.inputs[0]
    place = pointer_of(x, reads)
    *lead, n = x.type.shape
    rows = Rows(math.prod(lead), n, equation.outputs[0].type.shape[-1])
    if not rows.count * rows.keep:
        return
    outputs = [Pointer(v) for v in equation.outputs]
    dtype, name = x.type.dtype, equation.primitive.name
    if name == "top_k":
        keys = Keys(dtype, by_order=True, down=True)
        moved = Moved(keys, gives="taken", order="i32")
        yield from _first(rows, moved, place, outputs, gpu)
        return
    if dtype in dtypes.COMPLEX:
        yield from _sort_complex(rows, dtype, place, outputs[0], name, gpu)
        return
    if name == "argsort":
        moved = Moved(Keys(dtype, by_order=True), gives="nothing", order="i64")
    else:
        moved = Moved(Keys(dtype), gives="elements")
    yield from sort_rows(rows, moved, [place], outputs, gpu)


def sort_rows(
    rows: Rows,
    moved: Moved,
    given: list[Pointer],
    outputs: list[Pointer],
    gpu: GpuConfig,
    bits: int | None = None,
) -> Iterator[HandwrittenCall]:
    """Keys, and what is carried with them, sorted: ``given`` into ``outputs``.

    Only the lowest ``bits`` of keys differ.
    """
    x = given[0]
    if rows.n <= gpu.sort_row_threads * gpu.sort_items:
        tile = _tile_of(rows.n, gpu)
        yield _row_sort(rows, moved, tile, given, x, outputs, bits=bits)
        return
    yield from sort_digits(rows, moved, given, x, outputs, gpu, bits)


def _sort_complex(
    rows: Rows, dtype: DType, x: Pointer, output: Pointer, name: str, gpu: GpuConfig
) -> Iterator[HandwrittenCall]:
    """Sort by imaginary parts, by real parts, and by which of them are NaN."""
    parts = [Keys(dtype, by_order=True, part=part) for part in PARTS]
    if rows.n <= gpu.sort_row_threads * gpu.sort_items:
        moved = Moved(parts[0], gives="taken")
        if name == "argsort":
            moved = Moved(parts[0], gives="nothing", order="i64")
        tile = _tile_of(rows.n, gpu)
        yield _row_sort(rows, moved, tile, [x], x, [output], parts=parts)
        return
    given = [x]
    for keys in parts:
        moved = Moved(keys, gives="nothing", order="i32")
        if len(given) > 1:
            moved = replace(moved, reads="positions", positions=True)
        if keys is not parts[-1]:
            order = Pointer(_temporary(rows.count * rows.n, dtypes.int32))
            yield from sort_digits(rows, moved, given, x, [order], gpu)
            given = [x, order]
            continue
        if name == "argsort":
            moved = replace(moved, order="i64")
        else:
            moved = replace(moved, gives="taken", order="")
        yield from sort_digits(rows, moved, given, x, [output], gpu)


def sort_digits(
    rows: Rows,
    moved: Moved,
    given: list[Pointer],
    x: Pointer,
    outputs: list[Pointer],
    gpu: GpuConfig,
    bits: int | None = None,
) -> Iterator[HandwrittenCall]:
    """Rows of any length, digit by digit; only the lowest ``bits`` of keys differ.

    ``given`` are the keys and perhaps positions to begin with. ``moved`` says what is
    read first and what is written last.
    """
    keys, size = moved.keys, rows.count * rows.n
    shifts = range(0, keys.bits if bits is None else max(bits, 1), DIGIT)
    between = replace(
        moved,
        reads="words",
        positions=moved.has_positions,
        gives="words",
        order=moved.carried if moved.has_positions else "",
    )
    for shift in shifts:
        last = shift == shifts[-1]
        step = between
        if not shift:
            step = replace(between, reads=moved.reads, positions=moved.positions)
        if last:
            step = replace(step, gives=moved.gives, order=moved.order)
        written = outputs
        if not last:
            written = [Pointer(_temporary(size, keys.word_dtype))]
            if moved.has_positions:
                carried = dtypes.BY_SHORT_NAME[moved.carried]
                written.append(Pointer(_temporary(size, carried)))
        taken = [x] if step.gives == "taken" else []
        read = [*given[: 2 if step.positions else 1], *taken]
        part = Rows(rows.count, rows.n, rows.keep if last else rows.n)
        yield from sort_by_digit(part, step, given, read, written, shift, gpu)
        given = written


def sort_by_digit(
    rows: Rows,
    moved: Moved,
    given: Sequence[Pointer],
    read: Sequence[Pointer],
    outputs: Sequence[Pointer],
    shift: int,
    gpu: GpuConfig,
    totals: Pointer | None = None,
) -> Iterator[HandwrittenCall]:
    """Rows by the digit at ``shift``: keys are made of ``given``, ``read`` is moved.

    ``totals``, if they are wanted, receive how often each row has each digit.
    """
    items = gpu.sort_items if moved.keys.word == "u32" else gpu.sort_items // 2
    tile = Tile(gpu.sort_threads, items)
    tiles = -(-rows.n // tile.size)
    blocks = rows.count * tiles
    summed = totals is not None or tiles > _FEW_TILES
    counts = Pointer(_temporary(blocks * DIGITS, dtypes.int32))
    counted = {"counts_in": counts}
    integers = {"n": rows.n, "tiles": tiles, "shift": shift}
    sources = dict(zip(moved.sources, given, strict=False))
    text = count_digits(moved, tile, summed=summed)
    yield HandwrittenCall(text, sources, {"counts_out": counts}, integers, blocks)
    if summed:
        totals = totals or Pointer(_temporary(rows.count * DIGITS, dtypes.int32))
        counted["totals_in"] = totals
        threads = min(gpu.threads, max(WARP, power_of_two(tiles)))
        yield HandwrittenCall(
            digit_places(threads),
            {},
            {"counts_out": counts, "totals_out": totals},
            {"tiles": tiles},
            rows.count * DIGITS,
        )
    yield HandwrittenCall(
        tile_sort(moved, tile, summed=summed),
        {**dict(zip(moved.arrays_in, read, strict=True)), **counted},
        dict(zip(moved.arrays_out, outputs, strict=True)),
        {**integers, "keep": rows.keep},
        blocks,
    )


def _first(
    rows: Rows, moved: Moved, x: Pointer, outputs: list[Pointer], gpu: GpuConfig
) -> Iterator[HandwrittenCall]:
    """The first of each tile, then of these, until a block holds them all."""
    most = gpu.sort_row_threads * gpu.sort_items
    given, n = [x], rows.n
    while n > most and 2 * rows.keep <= most:
        tiles = -(-n // most)
        step = replace(moved, gives="words", order="i32")
        if len(given) > 1:
            step = replace(step, reads="words", positions=True)
        size = rows.count * tiles * rows.keep
        kinds = moved.keys.word_dtype, dtypes.int32
        written = [Pointer(_temporary(size, dtype)) for dtype in kinds]
        part = Rows(rows.count, n, rows.keep)
        yield _row_sort(part, step, _tile_of(most, gpu), given, x, written)
        given, n = written, tiles * rows.keep
    if len(given) > 1:
        moved = replace(moved, reads="words", positions=True)
    if n <= most:
        part = Rows(rows.count, n, rows.keep)
        tile = _tile_of(n, gpu)
        yield _row_sort(part, moved, tile, given, x, outputs, rows.n)
    else:
        yield from sort_digits(rows, moved, given, x, outputs, gpu)


def _row_sort(
    rows: Rows,
    moved: Moved,
    tile: Tile,
    given: list[Pointer],
    x: Pointer,
    outputs: list[Pointer],
    length: int = 0,
    bits: int | None = None,
    parts: Sequence[Keys] = (),
) -> HandwrittenCall:
    """Rows, of which a block has a tile; elements are from rows of ``length``."""
    tiles = -(-rows.n // tile.size)
    read = [*given, *([x] if moved.gives == "taken" else [])]
    bits = moved.keys.bits if bits is None else bits
    return HandwrittenCall(
        row_sort(moved, tile, parts),
        dict(zip(moved.arrays_in, read, strict=True)),
        dict(zip(moved.arrays_out, outputs, strict=True)),
        {
            "n": rows.n,
            "tiles": tiles,
            "keep": rows.keep,
            "length": length or rows.n,
            "bits": bits,
        },
        rows.count * tiles,
    )


def _tile_of(n: int, gpu: GpuConfig) -> Tile:
    """The smallest tile for ``n`` elements: first more items, then more threads."""
    threads, items = WARP, 1
    while threads * items < n:
        if items < gpu.sort_items // 2 or threads == gpu.sort_row_threads:
            items *= 2
        else:
            threads *= 2
    return Tile(threads, items)


def _temporary(size: int, dtype: DType) -> Var:
    return Var(ArrayType((size,), dtype))
