"""Split reductions: a nest for partial results of chunks, and a nest to combine them.

They serve few rows, or long rows. Chunks depend only on the shapes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Var
from arrayfn.ir.layout import RowMajor
from arrayfn.lowering.build import drop_unit_axes, merge_axes, order_axes
from arrayfn.lowering.cuda.choose import IDLE_SHARE, choose
from arrayfn.lowering.cuda.config import GpuConfig
from arrayfn.lowering.cuda.schedule import Columns, Rows, power_of_two
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import (
    Argument,
    ArrayOperand,
    Axis,
    Compute,
    Count,
    Nest,
    Reduce,
    Statement,
    Store,
    Value,
    is_element_store,
    is_outer,
)
from arrayfn.lowering.split import (
    chunk_sums,
    combination,
    restrict,
    with_dependencies,
)
from arrayfn.lowering.titles import computed
from arrayfn.records import frozen

_MIN_CHUNKS: Final = 4
"""Chunks that are worth a second launch."""
_MAX_TERMS: Final = 512
"""Terms of a chain of additions, about. More of them lose precision."""
_COLUMN_SUMS: Final = 4
"""Partial sums that a thread has of a column at most."""


def block_count(nest: Nest, schedule: Rows | Columns) -> int:
    """Return the number of blocks of ``nest`` with ``schedule``."""
    kept = [a.extent for a in nest.axes if not a.reduced]
    if isinstance(schedule, Rows):
        return math.prod(kept) * schedule.threads_per_row // schedule.threads
    return math.prod(kept[:-1]) * -(-kept[-1] // WARP)


def min_chunks(nest: Nest, schedule: Rows | Columns) -> int:
    """Return the fewest chunks of a row with no too long chain of additions.

    A chain is what one accumulator of a thread adds up. 1 if ``schedule`` keeps rows in
    registers.
    """
    if schedule.register_resident:
        return 1
    accumulators = schedule.lanes * schedule.tiles
    if isinstance(schedule, Columns):
        accumulators = min(accumulators, _COLUMN_SUMS)
    chains = schedule.threads_per_row * accumulators  # in each chunk
    return -(-nest.row_length // (_MAX_TERMS * chains))


def fills_gpu(nest: Nest, schedule: Rows | Columns, gpu: GpuConfig) -> bool:
    """Return whether ``nest`` has so many blocks that a split would not be faster.

    Rows of several stages that stay in registers are read only once, so they may leave
    most of the GPU idle. A nest with too long chains of additions is split in any case.
    """
    if min_chunks(nest, schedule) > 1:
        return False
    kept = isinstance(schedule, Rows) and schedule.register_resident and nest.stages > 1
    enough = gpu.multiprocessors
    return (IDLE_SHARE if kept else 1) * block_count(nest, schedule) >= enough


def split(nest: Nest, gpu: GpuConfig) -> list[Nest]:
    """Split a single-stage nest along its longest reduced axis; ``[nest]`` if small.

    Returns nests of partial results, then the nest that combines them.
    """
    reduced, length = nest.reduced_axes, nest.row_length
    schedule = choose(nest, gpu)
    assert isinstance(schedule, (Rows, Columns))
    # Elements that a block reduces at least: a row, or 32 neighbouring columns.
    per_block = length * (WARP if isinstance(schedule, Columns) else 1)
    blocks = max(1, block_count(nest, schedule))
    # Chunks for all multiprocessors, but none smaller than what is worth a block.
    target = min(
        -(-gpu.multiprocessors * gpu.split_blocks // blocks),
        per_block // gpu.split_chunk,
    )
    fewest = min_chunks(nest, schedule)
    target = max(target, fewest)
    # Few chunks do not pay for a second launch, unless precision asks for chunks.
    if target < (_MIN_CHUNKS if fewest == 1 else 2):
        return [nest]
    axis = max(reduced, key=lambda k: nest.axes[k].extent)
    extent = nest.axes[axis].extent
    cut = even_chunks(extent, target)
    if has_narrow_rows(nest, axis):
        # Chunks become columns: a block of these for each multiprocessor.
        columns = gpu.multiprocessors * WARP // nest.axes[-1].extent
        # The largest power of two up to ``columns``.
        chunks = min(1 << columns.bit_length() - 1, extent // gpu.tiles)
        chunks = max(chunks, min(power_of_two(fewest), extent // gpu.tiles))
        size, rest = divmod(extent, max(1, chunks))
        cut = ChunkSizes(size, chunks, rest)
    if cut.chunks < 2:
        return [nest]
    parts = part_arrays(nest, cut.all_chunks)
    sums = chunk_sums([part.reduce for part in parts])
    pieces = partial_nests(nest, nest, axis, cut, parts)
    return [*pieces, combine_parts(nest, parts, cut.all_chunks, sums)]


def has_narrow_rows(nest: Nest, axis: int) -> bool:
    """Return whether a warp should compute columns of several rows together.

    It should where rows are so short that they would fill a warp badly. ``axis`` is the
    reduced axis that is cut. Chunk c then has its indices c, c + chunks, and so on, so
    that the chunks of neighbouring rows become neighbouring columns.
    """
    width = nest.axes[-1].extent
    if nest.axes[-1].reduced or width >= 4 * WARP or width % WARP == 0:
        return False
    loaded = [o for o in nest.operands if o.strides[axis]]
    return all(o.strides[-1] == 1 and o.strides[axis] == width for o in loaded)


class ChunkSizes(NamedTuple):
    """How elements are cut into ``chunks`` of ``size`` elements, and a rest."""

    size: int
    chunks: int
    rest: int
    """Elements of the last, shorter chunk, which ``chunks`` leaves out; 0 for none."""

    @property
    def all_chunks(self) -> int:
        """How many chunks there are, with the rest."""
        return self.chunks + 1 if self.rest else self.chunks


def even_chunks(extent: int, count: int) -> ChunkSizes:
    """Cut ``extent`` elements into up to ``count`` equal chunks, and perhaps a rest.

    There is no rest if ``extent`` has a divisor near ``count``.
    """
    for chunks in range(count, count // 2, -1):
        if extent % chunks == 0:
            return ChunkSizes(extent // chunks, chunks, rest=0)
    return uneven_chunks(extent, count)


def uneven_chunks(extent: int, count: int) -> ChunkSizes:
    """Cut ``extent`` elements into ``count`` or more equal chunks, and a rest."""
    size = -(-extent // count)
    # Chunks begin at multiples of 16, so that vectors are aligned.
    size = max(1, size // 16 * 16) if size >= 64 else size
    return ChunkSizes(size, extent // size, extent % size)


@frozen
class PartialResults:
    """The array of partial results of one reduction: [kept axes, chunks].

    If neighbouring columns are contiguous, it is [outer kept axes, chunks, last axis].

    Args:
        reduce: The reduction.
        array: The array.
        strides: The array's strides along the nest's axes; 0 along reduced axes.
        stride: The array's stride from chunk to chunk.
    """

    reduce: Reduce
    array: Var
    strides: tuple[int, ...]
    stride: int


def part_arrays(
    nest: Nest, chunks: int, chunks_innermost: bool = False
) -> list[PartialResults]:
    """Make arrays for partial results, one for each reduction of ``nest``.

    Each array has ``chunks`` partial results of each result. These are contiguous with
    ``chunks_innermost``; otherwise, if the nest has columns, neighbouring columns are.
    """
    reduces = nest.reductions
    columns = not nest.axes[-1].reduced and not chunks_innermost
    kept = nest.kept_axes
    inner = kept[-1:] if columns else []
    outer = kept[: len(kept) - len(inner)]
    shape = [nest.axes[k].extent for k in outer]
    shape += [chunks, *(nest.axes[k].extent for k in inner)]
    array_strides = RowMajor().strides(tuple(shape))
    strides = [0] * len(nest.axes)
    # None stands for the axis of chunks, which is no axis of the nest.
    for k, stride in zip([*outer, None, *inner], array_strides, strict=True):
        if k is not None:
            strides[k] = stride
    return [
        PartialResults(
            reduce=s,
            array=Var(ArrayType(tuple(shape), s.result.dtype)),
            strides=tuple(strides),
            stride=array_strides[len(outer)],
        )
        for s in reduces
    ]


def partial_nests(
    nest: Nest,
    rest_nest: Nest,
    axis: int,
    cut: ChunkSizes,
    parts: Sequence[PartialResults],
) -> list[Nest]:
    """Build the nest of the equal chunks' partial results, then that of the rest's.

    The second is left out if there is no rest.

    Args:
        nest: The nest to split, for the equal chunks.
        rest_nest: The nest to split for the rest.
        axis: The reduced axis that is cut into chunks.
        cut: The chunks.
        parts: The arrays of partial results.
    """
    size, chunks, rest = cut
    strided = has_narrow_rows(nest, axis)
    build = partial(_partial_nest, axis=axis, parts=parts)
    nests = [build(nest, first_chunk=0, size=size, chunks=chunks, strided=strided)]
    if rest:
        start = size * chunks
        last = build(rest_nest, first_chunk=chunks, size=rest, chunks=1, start=start)
        nests.append(last)
    return nests


def _partial_nest(
    nest: Nest,
    *,
    axis: int,
    parts: Sequence[PartialResults],
    first_chunk: int,
    size: int,
    chunks: int,
    start: int = 0,
    strided: bool = False,
) -> Nest:
    """Build the nest that computes the partial results of some chunks.

    Axis ``axis`` becomes two: the chunk, which is kept, and the index within it.

    Args:
        nest: The nest to split.
        axis: The reduced axis that is cut into chunks.
        parts: The arrays of partial results.
        first_chunk: The number of the first chunk in these arrays.
        size: Elements of a chunk.
        chunks: How many chunks the nest has.
        start: The index along ``axis`` at which the first chunk begins.
        strided: A chunk has every ``chunks``-th index, not neighbouring ones.
    """
    # Distances along ``axis``: from chunk to chunk, and within a chunk.
    steps = (1, chunks) if strided else (size, 1)
    cut = Axis(chunks, reduced=False), Axis(size, reduced=True)
    axes = (*nest.axes[:axis], *cut, *nest.axes[axis + 1 :])

    def widen(strides: Sequence[int], chunk: int, within: int = 0) -> tuple[int, ...]:
        """Return ``strides`` with two strides in place of the one along ``axis``."""
        return (*strides[:axis], chunk, within, *strides[axis + 1 :])

    # Keep the reductions, the stores of elements, and what these need.
    roots = [s for s in nest.statements if isinstance(s, Reduce) or is_element_store(s)]
    needed = with_dependencies(nest.statements, roots, through_reductions=True)
    computing = restrict(nest, needed)
    operands = [
        replace(
            o,
            strides=widen(o.strides, *(step * o.strides[axis] for step in steps)),
            offset=o.offset + start * o.strides[axis],
        )
        for o in computing.operands
    ]
    statements: list[Statement] = []
    for s in computing.statements:
        if isinstance(s, Count) and s.axis is not None:
            statements += _count(s, axis, steps, start)
        else:
            statements.append(s)
    for part in parts:
        result = ArrayOperand(
            part.array,
            part.array.type.dtype,
            widen(part.strides, part.stride),
            offset=first_chunk * part.stride,
            written=True,
        )
        stage = part.reduce.stage + 1
        statements.append(Store(len(operands), part.reduce.result, "outer", stage))
        operands.append(result)
    split_nest = replace(
        nest,
        axes=axes,
        operands=tuple(operands),
        statements=tuple(statements),
        primitives=computed(nest.primitives, statements),
        reason=f"partial results of chunks of {size}; {nest.reason}",
    )
    ordered = order_axes(drop_unit_axes(split_nest))
    return merge_axes(ordered) if strided else ordered


def _count(s: Count, axis: int, steps: tuple[int, int], start: int) -> list[Statement]:
    """Return the statements that compute index ``s`` in the nest with two new axes.

    ``s`` is the index along an axis of the nest that is split. If that axis is
    ``axis``, its index is ``chunk * steps[0] + start + within * steps[1]``; otherwise
    the axis may have another number. ``steps`` are the distances along ``axis`` of
    neighbouring chunks, and of a chunk's neighbouring indices; chunk 0 begins at index
    ``start``.
    """
    assert s.axis is not None
    if s.axis != axis:
        # Axes after ``axis`` move on by one.
        return [replace(s, axis=s.axis + 1 if s.axis > axis else s.axis)]
    chunk, within, begin, first, inside = (
        Value(f"{s.result.name}_{part}", dtypes.int64)
        for part in ("chunk", "within", "begin", "first", "inside")
    )

    def compute(result: Value, function: str, x: Value, y: Value | Argument) -> Compute:
        """Return ``result = function(x, y)``, of the same stage and level as ``s``."""
        return Compute(
            result, function, (x, y), s.level, s.stage, cost=1, source=s.source
        )

    return [
        replace(s, result=chunk, axis=axis),
        replace(s, result=within, axis=axis + 1),
        compute(begin, "mul_i64", chunk, Argument("index_size", steps[0])),
        compute(first, "add_i64", begin, Argument("index_start", start)),
        compute(inside, "mul_i64", within, Argument("index_step", steps[1])),
        compute(s.result, "add_i64", first, inside),
    ]


def combine_parts(
    nest: Nest,
    parts: Sequence[PartialResults],
    chunks: int,
    combined: Sequence[Statement],
) -> Nest:
    """Build the nest that combines ``parts``, and runs statements once a row.

    These are the statements of ``nest`` that use results of reductions. ``parts`` are
    the first operands. Each result has ``chunks`` partial results, and ``combined`` are
    the statements that combine them.
    """
    kept = nest.kept_axes
    operands = [
        ArrayOperand(
            part.array,
            part.array.type.dtype,
            strides=(part.stride, *(part.strides[k] for k in kept)),
            offset=0,
            written=False,
        )
        for part in parts
    ]
    once = [s for s in nest.statements if is_outer(s)]
    # The axes of ``nest`` that remain. The first one, None, is that of the chunks.
    axes = [None, *kept]
    return order_axes(combination(nest, operands, axes, chunks, combined, once))
