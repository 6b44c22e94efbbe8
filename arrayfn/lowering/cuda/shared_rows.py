"""Chooses schedules of long rows: clusters of blocks share them, or pipelines prefetch.

``row_merges`` chooses the stages of rows that merge.
"""

from __future__ import annotations

import math
from typing import Final

from arrayfn.lowering.cuda.config import GpuConfig
from arrayfn.lowering.cuda.merges import Merge, merges_of
from arrayfn.lowering.cuda.schedule import (
    Pipeline,
    Rows,
    divisor_lanes,
    is_vector,
    power_of_two,
    widest_lanes,
)
from arrayfn.lowering.cuda.stage_plan import (
    keeps_one_word,
    kept_words,
    row_strides,
)
from arrayfn.lowering.cuda.vocabulary import DSMEM_BYTES, SHARED_LINE, WARP
from arrayfn.lowering.kernel_ir import Load, Nest, Reduce
from arrayfn.records import frozen

_FIXED_LINES: Final = 4
"""Lines of shared memory for a pipeline's three arrays of mbarriers and row numbers."""


def clustered(nest: Nest, gpu: GpuConfig) -> Rows | None:
    """Choose clusters of blocks for long rows; None if a block should have a row.

    Rows of several stages stay in registers. A thread has up to ``gpu.cluster_words``
    of these, half as many if there are fewer rows than multiprocessors. Rows of one
    stage are accumulated in a loop: see ``_clustered_single_stage``. None also if there
    are no clusters, or if blocks cannot exchange the results.
    """
    reduced = [a.extent for a in nest.axes if a.reduced]
    if gpu.max_cluster < 2 or not reduced or not _can_exchange(nest):
        return None
    rows = nest.rows
    lanes = divisor_lanes(reduced[-1], widest_lanes(nest, gpu))
    vectors = -(-math.prod(reduced) // lanes)
    if nest.stages == 1:
        return _clustered_single_stage(nest, gpu, lanes)
    words = kept_words(nest, lanes)
    is_few = rows < gpu.multiprocessors
    tiles = max(1, gpu.cluster_words // words // (2 if is_few else 1))
    # Threads of all blocks of the cluster at first; more blocks then share them.
    cluster, threads = 1, power_of_two(-(-vectors // tiles))
    while threads > gpu.cluster_threads and cluster < gpu.max_cluster:
        cluster, threads = 2 * cluster, threads // 2
    # Few rows: larger clusters occupy more multiprocessors.
    while is_few and cluster < gpu.max_cluster and threads > gpu.threads:
        cluster, threads = 2 * cluster, threads // 2
        is_few = rows * cluster < 2 * gpu.multiprocessors
    if cluster == 1 or threads > gpu.max_threads:
        return None
    blocks = gpu.resident_threads // threads if keeps_one_word(nest) else 0
    return Rows(
        threads=threads,
        threads_per_row=cluster * threads,
        lanes=lanes,
        tiles=tiles,
        register_resident=True,
        cluster=cluster,
        blocks_per_multiprocessor=blocks,
    )


def _clustered_single_stage(nest: Nest, gpu: GpuConfig, lanes: int) -> Rows | None:
    """Choose clusters for rows of one stage that are fewer than the multiprocessors.

    Vectors have ``lanes`` elements. None if clusters do not fill the GPU and a row is
    too long for one cluster: a split reduction is faster then.
    """
    length = nest.row_length
    rows = nest.rows
    size = max((o.dtype.itemsize for o in nest.operands), default=1)
    if rows >= gpu.multiprocessors or length < 2 * gpu.split_chunk:
        return None
    cluster = 2
    while cluster < gpu.max_cluster and rows * cluster < 2 * gpu.multiprocessors:
        cluster *= 2
    is_small = length * size <= cluster * gpu.cluster_bytes
    if rows * cluster < gpu.multiprocessors and not is_small:
        return None
    return Rows(
        threads=gpu.max_threads,
        threads_per_row=gpu.max_threads * cluster,
        lanes=lanes,
        tiles=gpu.tiles,
        register_resident=False,
        cluster=cluster,
    )


def _can_exchange(nest: Nest) -> bool:
    """Whether ``dsmem_store`` supports the dtypes of all reductions' results."""
    return all(s.result.dtype.itemsize in DSMEM_BYTES for s in nest.reductions)


def row_merges(nest: Nest, schedule: Rows) -> tuple[Merge, ...]:
    """Find the pairs of stages of ``nest`` that share an exchange under ``schedule``.

    Sums of squares merge only in a pipeline whose threads all have as many elements:
    elsewhere rescaling them takes longer than an exchange.
    """
    squares = isinstance(schedule, Pipeline) and schedule.is_full(nest.row_length)
    return merges_of(nest, squares)


@frozen(slots=True)
class _PrefetchableRow:
    """A row whose operands bulk copies can bring to shared memory.

    Args:
        row_operands: Numbers of the operands with different values for each row.
        broadcast_operands: Numbers of the operands that are the same for all rows.
        row_bytes: Bytes of one element of each row operand, added up.
        broadcast_bytes: Bytes of one element of each broadcast operand, in order.
        length: Elements of the row.
        lanes: Elements of a vector.
    """

    row_operands: tuple[int, ...]
    broadcast_operands: tuple[int, ...]
    row_bytes: int
    broadcast_bytes: tuple[int, ...]
    length: int
    lanes: int


def _prefetchable_row(nest: Nest, gpu: GpuConfig) -> _PrefetchableRow | None:
    """Return the row of ``nest`` if bulk copies can prefetch it; else None.

    The row must lie along one axis, in vectors of at least 16 bytes: a bulk copy moves
    multiples of 16 bytes.
    """
    operands = _classified_loads(nest)
    reduced = [a.extent for a in nest.axes if a.reduced]
    if operands is None or len(reduced) != 1:
        return None
    lanes = divisor_lanes(reduced[0], widest_lanes(nest, gpu))
    loaded = [nest.operands[k] for kind in operands for k in kind]
    sizes = [o.dtype.itemsize for o in loaded]
    if not all(is_vector(o, lanes) for o in loaded) or min(sizes) * lanes < 16:
        return None
    row_operands, broadcast_operands = operands
    rows = len(row_operands)
    return _PrefetchableRow(
        row_operands=row_operands,
        broadcast_operands=broadcast_operands,
        row_bytes=sum(sizes[:rows]),
        broadcast_bytes=tuple(sizes[rows:]),
        length=reduced[0],
        lanes=lanes,
    )


def pipeline(nest: Nest, gpu: GpuConfig) -> Pipeline | None:
    """Choose a pipeline for long rows; None if rows are short, or cannot be prefetched.

    It has the smallest cluster whose blocks' shares of a row fit into registers and
    shared memory.
    """
    row = _prefetchable_row(nest, gpu)
    if row is None or nest.stages == 1 or not _can_exchange(nest):
        return None
    words = kept_words(nest, row.lanes, keep_half_exp=True)
    if words < row.lanes and not row.broadcast_operands and not merges_of(nest):
        # Without weights, 16-bit rows are bound by arithmetic, not by memory: they need
        # more threads than a pipeline has.
        return None
    if row.length * words <= gpu.pipeline_from * row.lanes:
        return None
    # With weights, 16-bit rows are converted to float32 registers.
    tile_words = max(words, row.lanes) if row.broadcast_operands else words
    room = gpu.pipeline_shared - _exchange_bytes(nest, gpu.pipeline_threads)
    rows = nest.rows
    cluster = 1
    while cluster <= gpu.max_cluster:
        schedule = _pipeline_of_clusters(row, cluster, rows, tile_words, room, gpu)
        if schedule is not None:
            return schedule
        cluster *= 2
    return None


def _pipeline_of_clusters(
    row: _PrefetchableRow,
    cluster: int,
    rows: int,
    tile_words: int,
    room: int,
    gpu: GpuConfig,
) -> Pipeline | None:
    """Return the pipeline with clusters of ``cluster`` blocks; None if it does not fit.

    Each block's share of a row must fit into its registers and shared memory. Shares
    should also be small, unless clusters cannot be larger: blocks then finish their
    last rows at about the same time. There is one large block a multiprocessor: each of
    several would hold the weights, and some would have claimed further rows when others
    have none left.

    Args:
        row: The row.
        cluster: Blocks of a cluster.
        rows: How many rows there are.
        tile_words: 32-bit registers that a vector of the row takes up.
        room: Bytes of shared memory for rows and broadcast operands.
        gpu: The GPU.
    """
    threads, lanes = gpu.pipeline_threads, row.lanes
    tiles = -(-row.length // (cluster * threads * lanes))
    part = tiles * threads * lanes
    is_full = row.length == cluster * part
    has_spare_tiles = is_full and tiles > gpu.broadcast_register_tiles
    # Weights can be in registers if all threads have as many vectors of them.
    tile = threads * lanes if has_spare_tiles else 0
    shared = _shared_memory(row, part, tile, room, gpu)
    is_small = part * row.row_bytes <= gpu.pipeline_bytes
    if shared is None or tile_words * tiles > gpu.pipeline_words:
        return None
    if not is_small and cluster < gpu.max_cluster:
        return None
    return Pipeline(
        threads=threads,
        threads_per_row=threads * cluster,
        lanes=lanes,
        tiles=tiles,
        register_resident=True,
        cluster=cluster,
        blocks_per_multiprocessor=1,
        clusters=min(rows, _resident_clusters(cluster, gpu)),
        row_operands=row.row_operands,
        broadcast_operands=row.broadcast_operands,
        prefetch_rows=shared.prefetch_rows,
        broadcast_register_tiles=shared.register_tiles,
        keeps_float32=lanes * tiles * len(row.row_operands) <= gpu.pipeline_words,
        # All that a multiprocessor can have. With less shared memory, and so with more
        # L1 cache, iterations took longer.
        shared=max(shared.nbytes, gpu.shared_bytes),
    )


@frozen(slots=True)
class _SharedMemory:
    """What a pipeline's block keeps in its ``nbytes`` of shared memory.

    Args:
        prefetch_rows: How many rows there is room for.
        register_tiles: How many vectors of the first broadcast operand each thread has
            in registers instead. All other broadcast operands are in shared memory.
        nbytes: Bytes of these rows and operands.
    """

    prefetch_rows: int
    register_tiles: int
    nbytes: int


def _shared_memory(
    row: _PrefetchableRow, part: int, tile: int, room: int, gpu: GpuConfig
) -> _SharedMemory | None:
    """Fit as many rows, then as many weights as possible, into shared memory.

    Args:
        row: The row.
        part: Elements of a block's share of a row.
        tile: Elements of one vector of each thread; 0 if some threads have fewer
            vectors, as then none can be in registers.
        room: Bytes of shared memory.
        gpu: Limits the numbers of rows and vectors.

    Returns:
        None if there is no room for a single row.
    """
    broadcast_bytes = row.broadcast_bytes
    max_tiles = gpu.broadcast_register_tiles if broadcast_bytes and tile else 0
    for prefetch_rows in range(gpu.prefetch_rows, 0, -1):
        for register_tiles in range(max_tiles + 1):
            nbytes = part * (prefetch_rows * row.row_bytes + sum(broadcast_bytes))
            if register_tiles:
                nbytes -= register_tiles * tile * broadcast_bytes[0]
            if nbytes <= room:
                return _SharedMemory(prefetch_rows, register_tiles, nbytes)
    return None


def _exchange_bytes(nest: Nest, threads: int) -> int:
    """Return the bytes of shared memory that a block needs for exchanges.

    These are a pipeline's mbarriers and exchanged values. The block has ``threads``
    threads. Each reduction has an array for its warps and one for the blocks of the
    cluster, both double-buffered at most, in lines of their own.
    """
    lines = _FIXED_LINES
    for s in nest.statements:
        if isinstance(s, Reduce):
            size = 2 * s.result.dtype.itemsize * (threads // WARP)
            lines += 2 * -(-size // SHARED_LINE)
    return SHARED_LINE * lines


def _resident_clusters(cluster: int, gpu: GpuConfig) -> int:
    """Return how many clusters of ``cluster`` blocks run at once.

    All blocks of a cluster must be in one part of the GPU (GPC), so large clusters
    cannot use all multiprocessors.
    """
    usable = gpu.multiprocessors if cluster <= 2 else gpu.clustered_multiprocessors
    return max(1, usable // cluster)


def _classified_loads(nest: Nest) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the numbers of row operands and of broadcast operands of ``nest``.

    Row operands have a stride along every axis of the rows, broadcast operands along
    none. None if a loaded operand is neither, or if there is no row operand.
    """
    if not nest.axes:
        return None
    row_operands: dict[int, None] = {}
    broadcast_operands: dict[int, None] = {}
    for s in nest.statements:
        if not isinstance(s, Load) or s.level != "element":
            continue
        strides = row_strides(nest, s.operand)
        if s.indices or nest.operands[s.operand].strides[-1] != 1:
            return None
        if all(strides):
            row_operands[s.operand] = None
        elif not any(strides) and not nest.operands[s.operand].written:
            broadcast_operands[s.operand] = None
        else:
            return None
    return (tuple(row_operands), tuple(broadcast_operands)) if row_operands else None
