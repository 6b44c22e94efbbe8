"""Chooses the schedule of a nest (blocks, threads and vectors) for a ``GpuConfig``.

The choice depends only on the nest's shapes, strides and dtypes, never on a
measurement at run time. So results have the same bits on all machines with the same
configuration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from arrayfn.lowering.cuda.config import GPU, GpuConfig
from arrayfn.lowering.cuda.scan_schedules import is_scan, scan
from arrayfn.lowering.cuda.schedule import (
    CP_ASYNC_BYTES,
    Columns,
    Elementwise,
    Rows,
    Schedule,
    Transpose,
    can_copy,
    divisor_lanes,
    is_aligned,
    is_vector,
    power_of_two,
    transposed_operands,
    widest_lanes,
)
from arrayfn.lowering.cuda.shared_rows import clustered, pipeline, row_merges
from arrayfn.lowering.cuda.stage_plan import (
    can_split_row,
    has_single_stage_loads,
    keeps_one_word,
    kept_words,
    late_broadcast_loads,
    plan_stages,
)
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import Load, Nest, Store

IDLE_SHARE: Final = 8
"""Limit for giving rows to clusters where the registers of a large block hold a row.

Clusters take longer to start than blocks. So they are chosen only if there are fewer
rows than one for every ``IDLE_SHARE`` multiprocessors.
"""
_LONG_AXIS_VECTORS: Final = 16
"""The fewest full vectors of an axis after which single elements may remain."""
_SHORTEST_TRANSPOSED: Final = 8
"""The smallest extent of an axis along which tiles are transposed."""
_RESIDENT_BLOCKS: Final = 2
"""Blocks of the largest size that a multiprocessor runs at once."""


def choose(nest: Nest, gpu: GpuConfig = GPU) -> Schedule:
    """Choose the schedule of ``nest`` for the GPU ``gpu``."""
    has_reduced_axes = any(a.reduced for a in nest.axes)
    # Scans and scatters: their reduced axes run in order.
    in_order = nest.is_in_order and has_reduced_axes
    if not in_order and not nest.reductions:
        return elementwise(nest, gpu)
    if is_scan(nest):
        return scan(nest, gpu)
    has_columns = has_reduced_axes and not nest.axes[-1].reduced
    if in_order:  # one thread goes through a row, or a column
        if has_columns:
            return Columns(threads_per_row=1, tiles=1, register_resident=False)
        return Rows(
            threads=4 * WARP,
            threads_per_row=1,
            lanes=1,
            tiles=1,
            register_resident=False,
        )
    return columns(nest, gpu) if has_columns else rows(nest, gpu)


def rows(nest: Nest, gpu: GpuConfig) -> Rows:
    """Choose the schedule of a nest whose innermost axis is reduced.

    In large row groups stages are merged, because there each stage costs an exchange
    between warps.
    """
    schedule = _unmerged_rows(nest, gpu)
    is_large = schedule.threads_per_row >= gpu.merged_threads
    merged = schedule.register_resident and is_large
    return replace(schedule, merged=merged and bool(row_merges(nest, schedule)))


def _unmerged_rows(nest: Nest, gpu: GpuConfig) -> Rows:
    """Choose how many threads share a row, before stages are merged.

    A row is shared by threads of one block if these can keep it in registers. Otherwise
    a pipeline of copies, or else a cluster, computes it. A cluster is also chosen where
    there are fewer rows than multiprocessors.
    """
    schedule = block_rows(nest, gpu)
    count = nest.rows
    is_few = count < gpu.multiprocessors
    if schedule.register_resident and schedule.threads >= gpu.cluster_threads:
        # Large blocks are as fast as clusters, which take longer to begin.
        is_few = IDLE_SHARE * count < gpu.multiprocessors
    if is_few or nest.stages == 1:
        return clustered(nest, gpu) or schedule
    if schedule.register_resident:
        return schedule
    return pipeline(nest, gpu) or clustered(nest, gpu) or schedule


def elementwise(nest: Nest, gpu: GpuConfig) -> Elementwise | Transpose:
    """Choose the schedule of a nest without reductions.

    A thread computes a vector of ``lanes`` elements along the innermost axis. If
    operands are contiguous along another axis, blocks transpose tiles in shared memory
    instead.
    """
    if not nest.axes:
        return Elementwise(threads=WARP, lanes=1, full_vectors=True)
    axis = transposed_axis(nest)
    if axis is not None:
        return Transpose(axis, elements_per_word(nest, axis))
    extent = nest.axes[-1].extent
    widest = min(widest_lanes(nest, gpu), store_lanes(nest, gpu))
    lanes = divisor_lanes(extent, widest)
    # One long axis that the widest vectors do not divide: the elements after the last
    # full vector are computed one by one.
    if len(nest.axes) == 1 and lanes < widest and extent >= _LONG_AXIS_VECTORS * widest:
        return Elementwise(gpu.threads, widest, full_vectors=False)
    # A thread that gathers rows waits for an index before each load: it has several
    # vectors at a time, if that leaves vectors for all threads of the GPU.
    vectors = math.prod(a.extent for a in nest.axes) // lanes
    all_threads = threads_of_gpu(gpu)
    tiles = gpu.gather_tiles if lanes > 1 and gathers_rows(nest) else 1
    while tiles > 1 and vectors < tiles * all_threads:
        tiles //= 2
    return Elementwise(gpu.threads, lanes, full_vectors=True, tiles=tiles)


def threads_of_gpu(gpu: GpuConfig) -> int:
    """Return how many threads ``gpu`` runs at once, in blocks of the largest size."""
    return gpu.multiprocessors * _RESIDENT_BLOCKS * gpu.max_threads


def store_lanes(nest: Nest, gpu: GpuConfig) -> int:
    """Return the elements of the longest vector that one store writes to any result.

    With longer vectors, each store of a warp would write every other 16 bytes. A step
    of Adam with bfloat16 gradients and float32 parameters then takes 6 % longer, and a
    conversion of bfloat16 to float32 takes 8 % longer (H200, 16 Mi elements).
    """
    sizes = [o.dtype.itemsize for o in nest.operands if o.written]
    return max(1, gpu.vector_bytes // max(sizes, default=1))


def gathers_rows(nest: Nest) -> bool:
    """Whether ``nest`` loads at computed indices, and stores in order."""
    stores = [s for s in nest.statements if isinstance(s, Store)]
    has_gather = any(isinstance(s, Load) and s.indices for s in nest.statements)
    in_order = all(not s.indices and s.where is None for s in stores)
    return len(nest.axes) > 1 and has_gather and in_order


def transposed_axis(nest: Nest) -> int | None:
    """Return the axis along which some loads are contiguous, if it is not the last.

    None if there is no such axis, or several, or if tiles of it would be too small.
    """
    if nest.has_computed_indices:
        return None
    last = len(nest.axes) - 1
    axes = {
        axis
        for operand in nest.operands
        if not operand.written and abs(operand.strides[last]) > 1
        for axis in range(last)
        if operand.strides[axis] == 1
    }
    if len(axes) != 1 or nest.axes[last].extent < _SHORTEST_TRANSPOSED:
        return None
    (axis,) = axes
    return axis if nest.axes[axis].extent >= _SHORTEST_TRANSPOSED else None


def elements_per_word(nest: Nest, axis: int) -> int:
    """How many elements of a transposed tile move as one 32-bit word: 1, 2 or 4.

    The tile lies along ``axis`` and the last axis of ``nest``. It is more than 1 only
    for 8-bit and 16-bit elements, and only if all accesses are aligned for such
    vectors.
    """
    last = len(nest.axes) - 1
    accesses = [s for s in nest.statements if isinstance(s, (Load, Store))]
    transposed = transposed_operands(nest, axis)
    size = max(nest.operands[k].dtype.itemsize for k in transposed)
    lanes = 4 // size if size < 4 else 1
    for s in accesses:
        operand = nest.operands[s.operand]
        if s.operand in transposed:
            # A transposed operand is loaded in vectors along ``axis``.
            fits = is_aligned(operand, lanes, axis)
        elif operand.written:
            stores = isinstance(s, Store) and s.where is None
            fits = stores and is_vector(operand, lanes)
        else:
            # A stride of 0: one element, which all elements of a vector share.
            fits = not operand.strides[last] or is_vector(operand, lanes)
        if not fits or s.level != "element":
            return 1
    extents = [nest.axes[k].extent for k in (axis, last)]
    divides = all(n % lanes == 0 and n >= WARP * lanes for n in extents)
    return lanes if divides else 1


def block_rows(nest: Nest, gpu: GpuConfig) -> Rows:
    """Choose the schedule in which at most one block computes a row.

    The row group has the threads whose registers can hold the row. Where there are few
    rows, groups are larger and blocks smaller, so that every multiprocessor gets one.
    """
    reduced = [a.extent for a in nest.axes if a.reduced]
    lanes = divisor_lanes(reduced[-1], widest_lanes(nest, gpu)) if reduced else 1
    vectors = max(1, -(-math.prod(reduced) // lanes))
    words = kept_words(nest, lanes)
    threads_per_row, tiles, register_resident = _row_group(nest, vectors, words, gpu)
    # Rows of a warp or less: a block has several row groups.
    threads = threads_per_row if threads_per_row > WARP else 4 * WARP
    rows = nest.rows
    # Few rows: more threads for each, up to a warp, and one warp in each block.
    while (
        register_resident
        and threads_per_row < WARP
        and tiles > 1
        and rows * threads_per_row < gpu.multiprocessors * WARP
    ):
        threads_per_row, tiles = 2 * threads_per_row, tiles // 2
    is_few = rows * threads_per_row < gpu.multiprocessors * threads
    if threads_per_row <= WARP and is_few:
        threads = WARP
    schedule = Rows(threads, threads_per_row, lanes, tiles, register_resident)
    # A block that keeps one large operand's row: with a limit for its registers,
    # another block fits beside it.
    limits = register_resident and threads_per_row > WARP and keeps_one_word(nest)
    if not limits or 2 * words * tiles < gpu.row_words:
        return schedule
    blocks = gpu.resident_threads // threads_per_row
    if not blocks:
        return schedule
    limited = replace(schedule, blocks_per_multiprocessor=blocks)
    return with_shared_memory(nest, limited, words, gpu)


class _RowGroup(NamedTuple):
    """The threads that share a row."""

    threads_per_row: int
    tiles: int
    """Vectors of the row that each thread has."""
    register_resident: bool
    """Whether the threads keep the whole row in registers between stages."""


def _row_group(nest: Nest, vectors: int, words: int, gpu: GpuConfig) -> _RowGroup:
    """Choose the threads that share a row.

    Their number is a power of two, at most that of a block: first as many as have
    ``gpu.tiles`` vectors each, then as many as can keep the row. Above a warp, a block
    has at least four warps.

    Args:
        nest: The nest.
        vectors: Vectors of a row.
        words: 32-bit registers that a vector takes up between stages.
        gpu: The numbers of the GPU.
    """
    threads_per_row = power_of_two(-(-vectors // gpu.tiles))
    warp_tiles = -(-vectors // WARP)
    if WARP < threads_per_row <= 2 * WARP and fits_in_registers(
        nest, words, warp_tiles, WARP, gpu
    ):
        threads_per_row = WARP  # only shuffles, without exchange between warps
    if threads_per_row > WARP:
        threads_per_row = max(4 * WARP, threads_per_row)
    threads_per_row = min(threads_per_row, gpu.max_threads)
    tiles = power_of_two(-(-vectors // threads_per_row))
    while threads_per_row < gpu.max_threads and not fits_in_registers(
        nest, words, tiles, threads_per_row, gpu
    ):
        threads_per_row = max(4 * WARP, 2 * threads_per_row)
        tiles = power_of_two(-(-vectors // threads_per_row))
    register_resident = fits_in_registers(nest, words, tiles, threads_per_row, gpu)
    limit = gpu.max_threads // 2 if has_single_stage_loads(nest) else gpu.threads
    while threads_per_row > limit and 2 * words * tiles <= gpu.row_words:
        # Smaller blocks: several fit on a multiprocessor, and one computes while
        # another waits.
        threads_per_row, tiles = threads_per_row // 2, 2 * tiles
    if register_resident:
        return _RowGroup(threads_per_row, tiles, register_resident=True)
    itemsize = max((o.dtype.itemsize for o in nest.operands), default=1)
    row_bytes = nest.row_length * itemsize
    if nest.stages > 1 and gpu.multiprocessors * row_bytes <= gpu.cache_bytes:
        # A row for each multiprocessor: later stages find it in the cache.
        return _RowGroup(gpu.max_threads, gpu.tiles // 2, register_resident=False)
    threads_per_row = min(threads_per_row, gpu.max_threads // 2)
    return _RowGroup(threads_per_row, gpu.tiles, register_resident=False)


def with_shared_memory(nest: Nest, schedule: Rows, words: int, gpu: GpuConfig) -> Rows:
    """Use shared memory to let a multiprocessor load one row while it computes another.

    If only one block fits on a multiprocessor, it loads, computes and stores one after
    the other. One of these changes of ``schedule`` lets two rows overlap:

    * Small fp16 or bf16 rows: limit registers so that more blocks fit.
    * Operands that all rows share and only the last stage reads (weights): prefetch
      them to shared memory.
    * Other rows: put most of each row in shared memory, so that two blocks of half the
      threads fit.

    ``words`` is the number of registers that a vector of the row takes up.
    """
    half = gpu.max_threads // 2
    weights = late_broadcast_loads(nest, plan_stages(nest, keep=True), nest.stages - 1)
    if 2 * words * schedule.tiles <= gpu.row_words:  # a small row
        is_half_precision = words < schedule.lanes
        if weights and is_half_precision and schedule.threads_per_row >= half:
            blocks = gpu.resident_half_threads // schedule.threads_per_row
            return replace(schedule, blocks_per_multiprocessor=blocks)
        return schedule
    if not gpu.max_cluster or half <= WARP:  # cards before Hopper were not measured
        return schedule
    if weights:
        operands = {s.operand for s in weights}
        return _with_prefetched_weights(nest, schedule, sorted(operands), gpu)
    return _with_split_row(nest, schedule, words, gpu)


def _with_prefetched_weights(
    nest: Nest, schedule: Rows, operands: Sequence[int], gpu: GpuConfig
) -> Rows:
    """Add to ``schedule`` a prefetch distance for the operands numbered ``operands``.

    The distance is as far as shared memory allows, up to ``gpu.prefetch_distance``.
    Returns ``schedule`` as it is if the operands cannot be copied by ``cp.async``.
    """
    copies = all(can_copy(nest.operands[k], schedule.lanes) for k in operands)
    if not copies or sum(a.reduced for a in nest.axes) != 1:
        return schedule
    threads = schedule.blocks_per_multiprocessor * schedule.threads_per_row
    room = gpu.shared_bytes // (threads * CP_ASYNC_BYTES * len(operands))
    distance = min(gpu.prefetch_distance, schedule.tiles, room)
    return replace(schedule, prefetch_distance=distance)


def _with_split_row(nest: Nest, schedule: Rows, words: int, gpu: GpuConfig) -> Rows:
    """Keep most of each row in shared memory, to fit two blocks of half the threads.

    Returns ``schedule`` itself if two rows do not fit there. ``words`` is the number of
    32-bit registers that a vector of the row takes up.
    """
    half = gpu.max_threads // 2
    length = nest.row_length
    tiles = -(-length // (schedule.lanes * half))
    shared_tiles = tiles - max(1, gpu.split_row_words // words)
    fits = 0 < 2 * half * CP_ASYNC_BYTES * shared_tiles <= gpu.shared_bytes
    is_large = schedule.threads_per_row > half
    if not is_large or not fits or not can_split_row(nest, schedule.lanes):
        return schedule
    return Rows(
        threads=half,
        threads_per_row=half,
        lanes=schedule.lanes,
        tiles=tiles,
        register_resident=True,
        blocks_per_multiprocessor=2,
        shared_tiles=shared_tiles,
    )


def fits_in_registers(
    nest: Nest, words: int, tiles: int, threads_per_row: int, gpu: GpuConfig
) -> bool:
    """Whether the threads of a row group have enough registers to keep a whole row.

    In larger row groups each thread has fewer registers.

    Args:
        nest: The nest.
        words: 32-bit registers that a vector takes up between stages.
        tiles: Vectors of a thread.
        threads_per_row: Threads of the row group.
        gpu: The GPU.
    """
    if nest.stages == 1:
        return tiles <= 2 * gpu.tiles
    room = 2 * gpu.row_words
    if threads_per_row > gpu.max_threads // 2:
        # Operands that only one stage loads need registers besides the row's.
        room //= 4 if has_single_stage_loads(nest) else 2
    return words * tiles <= room


def columns(nest: Nest, gpu: GpuConfig) -> Columns:
    """Choose the schedule of a nest whose innermost axis is not reduced.

    Each block reduces 32 neighbouring columns. Up to 8 warps share them, or up to 16 if
    only then the threads can keep whole columns in registers between stages. If they
    cannot, as many warps share them as it takes to keep the memory busy.
    """
    height = nest.row_length
    words = kept_words(nest, 1)
    threads_per_row = min(8, power_of_two(-(-height // gpu.tiles)))
    tiles = power_of_two(-(-height // threads_per_row))
    if nest.stages > 1 and not fits_in_registers(
        nest, words, tiles, threads_per_row * WARP, gpu
    ):
        threads_per_row = min(16, power_of_two(-(-height // gpu.tiles)))
        tiles = power_of_two(-(-height // threads_per_row))
    if fits_in_registers(nest, words, tiles, threads_per_row * WARP, gpu):
        return Columns(threads_per_row, tiles, register_resident=True)
    # Few blocks need many warps each to keep the memory busy.
    blocks = nest.rows // WARP
    warps = threads_of_gpu(gpu) // (WARP * max(1, blocks))
    threads_per_row = min(
        gpu.max_threads // WARP, max(threads_per_row, power_of_two(warps))
    )
    itemsizes = [o.dtype.itemsize for o in nest.operands if not o.written]
    is_wide = max(itemsizes, default=1) > 4
    tiles = gpu.tiles * (1 if is_wide else 2)
    return Columns(threads_per_row, tiles, register_resident=False)
