"""CUDA's dispatch strategy: the schedule of a nest, by the numbers of ``GpuConfig``.

What is chosen depends on the nest alone: its shapes, its strides, its dtypes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from arrayfn.lowering.cuda.config import GPU, SCAN_FROM, GpuConfig
from arrayfn.lowering.cuda.schedule import (
    COPIED,
    Columns,
    Elementwise,
    Rows,
    Scan,
    ScanPipeline,
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
    keeps_one_row,
    kept_words,
    late_loads,
    lies_aside,
    loads_beside,
    plan_stages,
)
from arrayfn.lowering.cuda.vocabulary import SENT_BYTES, WARP
from arrayfn.lowering.kernel_ir import Load, Nest, Reduce, Store

SHARE: Final = 8  # blocks share no row if one in so many multiprocessors has one


def choose(nest: Nest, gpu: GpuConfig = GPU) -> Schedule:
    """The schedule of ``nest``."""
    # Without such axes there is nothing to be done in order.
    in_order = nest.is_in_order and any(a.reduced for a in nest.axes)
    if any(isinstance(s, Reduce) for s in nest.statements) or in_order:
        has_columns = any(a.reduced for a in nest.axes) and not nest.axes[-1].reduced
        if is_scan(nest):
            return scan(nest, gpu)
        if in_order:
            # One thread goes through a row, or a column.
            return (
                Columns(1, 1, False) if has_columns else Rows(4 * WARP, 1, 1, 1, False)
            )
        if has_columns:
            return columns(nest, gpu)
        return merged_rows(nest, gpu)
    return elementwise(nest, gpu)


def merged_rows(nest: Nest, gpu: GpuConfig) -> Rows:
    """Rows, whose stages are merged where exchanges are expensive."""
    made = shared_or_rows(nest, gpu)
    dear = made.whole and made.threads_per_row >= gpu.merged_threads
    return replace(made, merged=dear and bool(row_merges(nest, made)))


def shared_or_rows(nest: Nest, gpu: GpuConfig) -> Rows:
    """Rows that blocks keep in registers; longer ones are shared by a cluster."""
    made = rows(nest, gpu)
    count = math.prod(a.extent for a in nest.axes if not a.reduced)
    few = count < gpu.multiprocessors
    if made.whole and made.threads >= gpu.cluster_threads:
        # Large blocks are as fast as clusters, which take longer to begin.
        few = SHARE * count < gpu.multiprocessors
    if few or nest.stages == 1:
        return clustered(nest, gpu) or made
    if made.whole:
        return made
    return pipeline(nest, gpu) or clustered(nest, gpu) or made


def is_scan(nest: Nest) -> bool:
    """Whether ``nest`` only stores one running value along its innermost axis."""
    reduced = [k for k, a in enumerate(nest.axes) if a.reduced]
    reduces = [s for s in nest.statements if isinstance(s, Reduce)]
    stores = [s for s in nest.statements if isinstance(s, Store)]
    return (
        reduced == [len(nest.axes) - 1]
        and not nest.has_computed_indices
        and len(reduces) == len(stores) == 1
        and stores[0].value == reduces[0].result
        and stores[0].where is None
        and all(isinstance(s, Reduce) or s.level == "element" for s in nest.statements)
        and nest.axes[-1].extent >= SCAN_FROM
    )


def scan(nest: Nest, gpu: GpuConfig) -> Scan:
    """A scan, with as many threads as a row has work for; long rows are in parts."""
    length = nest.axes[-1].extent
    rows = math.prod(a.extent for a in nest.axes[:-1])
    lanes = divisor_lanes(length, widest_lanes(nest, gpu))
    (reduce,) = (s for s in nest.statements if isinstance(s, Reduce))
    size = reduce.result.dtype.itemsize
    words = -(-size // 4)
    vectors, room = -(-length // lanes), gpu.scan_words // (lanes * words)
    if vectors > gpu.scan_threads * room:
        room *= 2
    tiles = max(1, min(8, room, power_of_two(-(-vectors // WARP))))
    threads_per_row = max(WARP, power_of_two(-(-vectors // tiles)))
    # The blocks of larger clusters find room at once more rarely than parts are fast.
    most = min(4, gpu.max_cluster) if size in SENT_BYTES else 1
    blocks = -(-threads_per_row // gpu.scan_threads)
    if blocks > max(1, most) or (blocks > 1 and rows * blocks < gpu.multiprocessors):
        if (made := scan_pipeline(nest, gpu, lanes)) is not None:
            return made
        threads, tiles = gpu.part_threads, max(1, 2 * gpu.scan_words // (lanes * words))
        parts = -(-vectors // (threads * tiles))
        part_bytes = threads * tiles * lanes * max(size, 1)
        lag = max(1, min(gpu.ahead_bytes // part_bytes, rows * parts // 2))
        return Scan(threads, threads, lanes, tiles, parts=parts, lag=lag)
    cluster, threads = 1, threads_per_row
    while cluster < most and (
        threads > gpu.scan_threads
        or (threads > gpu.threads and rows * cluster < 2 * gpu.multiprocessors)
    ):
        cluster, threads = 2 * cluster, threads // 2
    threads = min(threads, gpu.max_threads)
    threads_per_row = cluster * threads
    return Scan(
        4 * WARP if threads_per_row == WARP else threads,
        threads_per_row,
        lanes,
        tiles,
        cluster,
    )


def scan_pipeline(nest: Nest, gpu: GpuConfig, lanes: int) -> ScanPipeline | None:
    """Parts of long rows, fetched ahead; None where there are few, or none can be."""
    loaded = {
        s.operand: nest.operands[s.operand]
        for s in nest.statements
        if isinstance(s, Load) and s.level == "element" and not s.indices
    }
    fetched = {
        k: o.dtype.itemsize
        for k, o in loaded.items()
        if is_vector(o, lanes) and o.dtype.itemsize * lanes >= 16
    }
    threads, vectors = gpu.part_threads, -(-nest.axes[-1].extent // lanes)
    vector_bytes = threads * lanes * sum(fetched.values()) * gpu.part_slots
    tiles = gpu.shared_bytes // (gpu.part_blocks * max(1, vector_bytes))
    if not fetched or not tiles or not gpu.max_cluster:
        return None
    tiles = min(gpu.part_tiles, power_of_two(tiles + 1) // 2)
    parts = -(-vectors // (threads * tiles))
    rows = math.prod(a.extent for a in nest.axes[:-1])
    blocks = gpu.multiprocessors * gpu.part_blocks
    if rows * parts < gpu.part_iterations * blocks:
        return None
    return ScanPipeline(
        threads,
        threads,
        lanes,
        tiles,
        parts=parts,
        blocks=min(rows * parts, blocks),
        slots=gpu.part_slots,
        fetched=tuple(fetched),
        shared=vector_bytes * tiles,
        together=gpu.part_blocks,
    )


def elementwise(nest: Nest, gpu: GpuConfig) -> Elementwise | Transpose:
    """Vectors along the innermost axis, or tiles if operands run along another."""
    if not nest.axes:
        return Elementwise(32, 1, True)
    axis = transposed_axis(nest)
    if axis is not None:
        return Transpose(axis, pack(nest, axis))
    extent = nest.axes[-1].extent
    widest = widest_lanes(nest, gpu)
    lanes = divisor_lanes(extent, widest)
    if len(nest.axes) == 1 and lanes < widest and extent >= 16 * widest:
        return Elementwise(gpu.threads, widest, whole=False)
    # Where an index is waited for first, a thread waits for several at a time.
    vectors = math.prod(a.extent for a in nest.axes) // lanes
    busy = gpu.multiprocessors * 2 * gpu.max_threads
    tiles = gpu.far_tiles if lanes > 1 and looks_up(nest) else 1
    while tiles > 1 and vectors < tiles * busy:
        tiles //= 2
    return Elementwise(gpu.threads, lanes, whole=True, tiles=tiles)


def looks_up(nest: Nest) -> bool:
    """Whether rows are loaded at computed offsets, and stored in order."""
    stores = [s for s in nest.statements if isinstance(s, Store)]
    by_place = any(isinstance(s, Load) and s.indices for s in nest.statements)
    in_order = all(not s.indices and s.where is None for s in stores)
    return len(nest.axes) > 1 and by_place and in_order


def transposed_axis(nest: Nest) -> int | None:
    """The axis along which some loads run, if it is not the last and is worth tiles."""
    if nest.has_computed_indices:
        return None
    last = len(nest.axes) - 1
    found = {
        axis
        for operand in nest.operands
        if not operand.written and abs(operand.strides[last]) > 1
        for axis in range(last)
        if operand.strides[axis] == 1
    }
    if len(found) != 1 or nest.axes[last].extent < 8:
        return None
    (axis,) = found
    return axis if nest.axes[axis].extent >= 8 else None


def pack(nest: Nest, axis: int) -> int:
    """How many elements of a transposed tile move as one 32-bit word: 1, 2 or 4."""
    last = len(nest.axes) - 1
    accesses = [s for s in nest.statements if isinstance(s, (Load, Store))]
    transposed = transposed_operands(nest, axis)
    size = max(nest.operands[k].dtype.itemsize for k in transposed)
    lanes = 4 // size if size < 4 else 1
    for s in accesses:
        operand = nest.operands[s.operand]
        if s.operand in transposed:
            fits = is_aligned(operand, lanes, axis)
        elif operand.written:
            stores = isinstance(s, Store) and s.where is None
            fits = stores and is_vector(operand, lanes)
        else:
            fits = not operand.strides[last] or is_vector(operand, lanes)
        if not fits or s.level != "element":
            return 1
    extents = [nest.axes[k].extent for k in (axis, last)]
    whole = all(n % lanes == 0 and n >= WARP * lanes for n in extents)
    return lanes if whole else 1


def rows(nest: Nest, gpu: GpuConfig) -> Rows:
    """A row group for each row, as large as its tiles need.

    Few rows have larger groups and smaller blocks: each multiprocessor gets one.
    """
    few = gpu.multiprocessors
    reduced = [a.extent for a in nest.axes if a.reduced]
    length = math.prod(reduced)
    lanes = divisor_lanes(reduced[-1], widest_lanes(nest, gpu)) if reduced else 1
    vectors = max(1, -(-length // lanes))
    words = kept_words(nest, lanes)
    size = max((o.dtype.itemsize for o in nest.operands), default=1)
    threads_per_row = power_of_two(-(-vectors // gpu.tiles))
    if WARP < threads_per_row <= 2 * WARP and fits(
        nest, words, -(-vectors // WARP), WARP, gpu
    ):
        threads_per_row = WARP
    threads_per_row = min(
        threads_per_row if threads_per_row <= WARP else max(4 * WARP, threads_per_row),
        gpu.max_threads,
    )
    tiles = power_of_two(-(-vectors // threads_per_row))
    while threads_per_row < gpu.max_threads and not fits(
        nest, words, tiles, threads_per_row, gpu
    ):
        threads_per_row = max(4 * WARP, 2 * threads_per_row)
        tiles = power_of_two(-(-vectors // threads_per_row))
    whole = fits(nest, words, tiles, threads_per_row, gpu)
    most = gpu.max_threads // 2 if loads_beside(nest) else gpu.threads
    while threads_per_row > most and 2 * words * tiles <= gpu.row_words:
        # Of several smaller blocks one computes while another waits.
        threads_per_row, tiles = threads_per_row // 2, 2 * tiles
    if not whole:
        threads_per_row, tiles = min(threads_per_row, gpu.max_threads // 2), gpu.tiles
        together = gpu.multiprocessors * length * size
        if nest.stages > 1 and together <= gpu.cache_bytes:
            # A row for each multiprocessor: later stages find it in the cache.
            threads_per_row, tiles = gpu.max_threads, gpu.tiles // 2
    threads = threads_per_row if threads_per_row > WARP else 4 * WARP
    count = math.prod(a.extent for a in nest.axes if not a.reduced)
    while (
        whole
        and threads_per_row < WARP
        and tiles > 1
        and count * threads_per_row < few * WARP
    ):
        threads_per_row, tiles = 2 * threads_per_row, tiles // 2
    if threads_per_row <= WARP and count * threads_per_row < few * threads:
        threads = WARP
    # One operand's row leaves room for another block where registers are spared.
    alone = whole and threads_per_row > WARP and keeps_one_row(nest)
    large = 2 * words * tiles >= gpu.row_words
    together = gpu.resident // threads_per_row if alone and large else 0
    made = Rows(threads, threads_per_row, lanes, tiles, whole, 1, together)
    return in_shared_memory(nest, made, words, gpu) if together else made


def in_shared_memory(nest: Nest, made: Rows, words: int, gpu: GpuConfig) -> Rows:
    """``made``, with what its registers have no room for in shared memory.

    A block that has a multiprocessor for itself loads, computes and stores one after
    the other. Two have most of their rows in shared memory. What all rows share is
    copied there ahead of its use, or waited for by more blocks, where those have room.
    """
    lanes, threads_per_row, half = (
        made.lanes,
        made.threads_per_row,
        gpu.max_threads // 2,
    )
    late = late_loads(nest, plan_stages(nest, keep=True), nest.stages - 1)
    if 2 * words * made.tiles <= gpu.row_words:
        waits = late and words < lanes and threads_per_row >= half
        return (
            replace(made, together=gpu.resident_half // threads_per_row)
            if waits
            else made
        )
    if not gpu.max_cluster or half <= WARP:  # no card that was measured
        return made
    if late:
        operands = {s.operand for s in late}
        room = gpu.shared_bytes // (
            made.together * threads_per_row * COPIED * len(operands)
        )
        copied = all(can_copy(nest.operands[k], lanes) for k in operands)
        one = sum(a.reduced for a in nest.axes) == 1
        early = min(gpu.early, made.tiles, room) if copied and one else 0
        return replace(made, early=early)
    length = math.prod(a.extent for a in nest.axes if a.reduced)
    tiles = -(-length // (lanes * half))
    aside = tiles - max(1, gpu.aside_words // words)
    fits = 0 < 2 * half * COPIED * aside <= gpu.shared_bytes
    if threads_per_row <= half or not fits or not lies_aside(nest, lanes):
        return made
    return Rows(half, half, lanes, tiles, True, 1, 2, aside=aside)


def fits(
    nest: Nest, words: int, tiles: int, threads_per_row: int, gpu: GpuConfig
) -> bool:
    """Whether ``tiles`` vectors of ``words`` fit into each thread's registers."""
    if nest.stages == 1:
        return tiles <= 2 * gpu.tiles
    room = 2 * gpu.row_words
    if threads_per_row > gpu.max_threads // 2:
        # What is loaded beside the row needs registers too.
        room //= 4 if loads_beside(nest) else 2
    return words * tiles <= room


def columns(nest: Nest, gpu: GpuConfig) -> Columns:
    """Up to 16 warps for the rows of 32 columns."""
    height = math.prod(a.extent for a in nest.axes if a.reduced)
    threads_per_row = min(8, power_of_two(-(-height // gpu.tiles)))
    tiles = power_of_two(-(-height // threads_per_row))
    if nest.stages > 1 and not fits(
        nest, kept_words(nest, 1), tiles, threads_per_row * WARP, gpu
    ):
        threads_per_row = min(16, power_of_two(-(-height // gpu.tiles)))
        tiles = power_of_two(-(-height // threads_per_row))
    if fits(nest, kept_words(nest, 1), tiles, threads_per_row * WARP, gpu):
        return Columns(threads_per_row, tiles, True)
    # Few blocks need many warps each to keep the memory busy.
    blocks = math.prod(a.extent for a in nest.axes if not a.reduced) // WARP
    wanted = gpu.multiprocessors * 2 * gpu.max_threads // (WARP * max(1, blocks))
    threads_per_row = min(
        gpu.max_threads // WARP, max(threads_per_row, power_of_two(wanted))
    )
    read = [o.dtype.itemsize for o in nest.operands if not o.written]
    widest = max(read, default=1)
    # Twice as many words leave room for half as many.
    return Columns(threads_per_row, gpu.tiles * (1 if widest > 4 else 2), False)
