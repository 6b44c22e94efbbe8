"""Schedules of long rows: a cluster of blocks shares them, or a pipeline prefetches.

Also which stages of rows merge (``row_merges``), which both kinds ask.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
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
from arrayfn.lowering.cuda.stage_plan import keeps_one_word, kept_words
from arrayfn.lowering.cuda.vocabulary import DSMEM_BYTES, SHARED_LINE, WARP
from arrayfn.lowering.kernel_ir import Load, Nest, Reduce

_FIXED_LINES: Final = 4
"""Lines of shared memory for a pipeline's mbarriers (three arrays) and row numbers."""


def clustered(nest: Nest, gpu: GpuConfig) -> Rows | None:
    """A cluster of blocks for each long row; None if one block is enough, or too few.

    Rows of several stages stay in registers. Rows of one stage are accumulated in a
    loop: see ``_clustered_single_stage``.
    """
    reduced = [a.extent for a in nest.axes if a.reduced]
    if gpu.max_cluster < 2 or not reduced or not _can_exchange(nest):
        return None
    length, rows = math.prod(reduced), math.prod(_kept_extents(nest))
    lanes = divisor_lanes(reduced[-1], widest_lanes(nest, gpu))
    vectors = -(-length // lanes)
    if nest.stages == 1:
        return _clustered_single_stage(nest, gpu, lanes)
    words = kept_words(nest, lanes)
    is_few = rows < gpu.multiprocessors
    tiles = max(1, gpu.cluster_words // words // (2 if is_few else 1))
    cluster, threads = 1, power_of_two(-(-vectors // tiles))
    while threads > gpu.cluster_threads and cluster < gpu.max_cluster:
        cluster, threads = 2 * cluster, threads // 2
    while is_few and cluster < gpu.max_cluster and threads > gpu.threads:
        cluster, threads = 2 * cluster, threads // 2
        is_few = rows * cluster < 2 * gpu.multiprocessors
    if cluster == 1 or threads > gpu.max_threads:
        return None
    blocks_per_multiprocessor = (
        gpu.resident_threads // threads if keeps_one_word(nest) else 0
    )
    return Rows(
        threads,
        cluster * threads,
        lanes,
        tiles,
        True,
        cluster,
        blocks_per_multiprocessor,
    )


def _clustered_single_stage(nest: Nest, gpu: GpuConfig, lanes: int) -> Rows | None:
    """Clusters for rows of one stage that are fewer than the multiprocessors.

    Vectors have ``lanes`` elements. None if clusters do not fill the GPU and a row is
    too long for one cluster: a split reduction is faster then.
    """
    length = math.prod(a.extent for a in nest.axes if a.reduced)
    rows = math.prod(_kept_extents(nest))
    size = max((o.dtype.itemsize for o in nest.operands), default=1)
    if rows >= gpu.multiprocessors or length < 2 * gpu.chunk:
        return None
    cluster = 2
    while cluster < gpu.max_cluster and rows * cluster < 2 * gpu.multiprocessors:
        cluster *= 2
    is_small = length * size <= cluster * gpu.cluster_bytes
    if rows * cluster < gpu.multiprocessors and not is_small:
        return None
    threads = gpu.max_threads
    return Rows(threads, threads * cluster, lanes, gpu.tiles, False, cluster)


def _kept_extents(nest: Nest) -> list[int]:
    """The extents of the axes that are not reduced: how many rows there are."""
    return [a.extent for a in nest.axes if not a.reduced]


def _can_exchange(nest: Nest) -> bool:
    """Whether ``dsmem_store`` has the dtypes of all reductions' results."""
    reduces = [s for s in nest.statements if isinstance(s, Reduce)]
    return all(s.result.dtype.itemsize in DSMEM_BYTES for s in reduces)


def row_merges(nest: Nest, schedule: Rows) -> tuple[Merge, ...]:
    """The pairs of stages of ``nest`` that share an exchange under ``schedule``.

    Sums of squares do so only in a pipeline whose threads all have as many elements:
    elsewhere rescaling them takes longer than an exchange.
    """
    length = math.prod(a.extent for a in nest.axes if a.reduced)
    squares = isinstance(schedule, Pipeline) and schedule.is_full(length)
    return merges_of(nest, squares)


def pipeline(nest: Nest, gpu: GpuConfig) -> Pipeline | None:
    """A pipeline for long rows; None if rows are short, or cannot be prefetched.

    It takes the smallest cluster whose blocks' parts of a row fit into registers and
    shared memory.
    """
    operands = _classified_loads(nest)
    reduced = [a.extent for a in nest.axes if a.reduced]
    if operands is None or len(reduced) != 1 or nest.stages == 1:
        return None
    (length,), (row_operands, broadcast_operands) = reduced, operands
    lanes = divisor_lanes(length, widest_lanes(nest, gpu))
    words = kept_words(nest, lanes, keep_half_exp=True)
    if words < lanes and not broadcast_operands and not merges_of(nest):
        # 16-bit rows alone are bound by their arithmetic: more threads are better.
        return None
    loaded = [nest.operands[k] for k in (*row_operands, *broadcast_operands)]
    itemsizes = [o.dtype.itemsize for o in loaded]
    can_copy = all(is_vector(o, lanes) for o in loaded) and min(itemsizes) * lanes >= 16
    is_long = length * words > gpu.pipeline_from * lanes
    if not can_copy or not is_long or not _can_exchange(nest):
        return None
    # With weights, 16-bit rows are converted to float32 registers.
    tile_words = max(words, lanes) if broadcast_operands else words
    rows = math.prod(_kept_extents(nest))
    row_bytes = sum(itemsizes[: len(row_operands)])
    broadcast_bytes = itemsizes[len(row_operands) :]
    # One large block a multiprocessor. Each of several would hold the weights, and
    # some would have claimed further rows when others have none left.
    cluster, threads = 1, gpu.pipeline_threads
    room = gpu.pipeline_shared - _exchange_bytes(nest, threads)
    while cluster <= gpu.max_cluster:
        tiles = -(-length // (cluster * threads * lanes))
        part = tiles * threads * lanes
        is_full = length == cluster * part
        tile = (
            threads * lanes if is_full and tiles > gpu.broadcast_register_tiles else 0
        )
        shared = _shared_memory(part, tile, row_bytes, broadcast_bytes, room, gpu)
        # With small parts, blocks finish their last rows at about the same time.
        is_small = part * row_bytes <= gpu.pipeline_bytes
        fits = shared and tile_words * tiles <= gpu.pipeline_words
        if shared and fits and (is_small or cluster == gpu.max_cluster):
            return Pipeline(
                threads,
                threads_per_row=threads * cluster,
                lanes=lanes,
                tiles=tiles,
                register_resident=True,
                cluster=cluster,
                blocks_per_multiprocessor=1,
                clusters=min(rows, _resident_clusters(cluster, gpu)),
                row_operands=row_operands,
                broadcast_operands=broadcast_operands,
                prefetch_rows=shared.prefetch_rows,
                broadcast_register_tiles=shared.register_tiles,
                keeps_float32=lanes * tiles * len(row_operands) <= gpu.pipeline_words,
                # All of the carve-out: with less shared memory, and more L1 cache, a
                # multiprocessor's iterations took longer.
                shared=max(shared.nbytes, gpu.shared_bytes),
            )
        cluster *= 2
    return None


@dataclass(frozen=True, slots=True)
class _SharedMemory:
    """What a pipeline's block has in its ``nbytes`` of shared memory.

    There are ``prefetch_rows`` rows, and the broadcast operands, less
    ``register_tiles`` vectors of each thread of the first of these.
    """

    prefetch_rows: int
    register_tiles: int
    nbytes: int


def _shared_memory(
    part: int,
    tile: int,
    row_bytes: int,
    broadcast_bytes: Sequence[int],
    room: int,
    gpu: GpuConfig,
) -> _SharedMemory | None:
    """The most rows that fit, with the fewest vectors in registers.

    Args:
        part: Elements of a row that a block has.
        tile: Elements of one vector of each thread, or 0 if some threads have fewer.
        row_bytes: Bytes of an element of all row operands.
        broadcast_bytes: Bytes of an element of each broadcast operand.
        room: Bytes of shared memory.
        gpu: Says how many rows and vectors there may be at most.

    Returns:
        None if there is no room for a single row.
    """
    max_tiles = gpu.broadcast_register_tiles if broadcast_bytes and tile else 0
    for prefetch_rows in range(gpu.prefetch_rows, 0, -1):
        for register_tiles in range(max_tiles + 1):
            nbytes = part * (prefetch_rows * row_bytes + sum(broadcast_bytes))
            if register_tiles:
                nbytes -= register_tiles * tile * broadcast_bytes[0]
            if nbytes <= room:
                return _SharedMemory(prefetch_rows, register_tiles, nbytes)
    return None


def _exchange_bytes(nest: Nest, threads: int) -> int:
    """Bytes of shared memory of a pipeline's block for mbarriers and exchanges.

    The block has ``threads`` threads. Each reduction has an array for its warps and one
    for the blocks of the cluster, both double-buffered at most, in lines of their own.
    """
    lines = _FIXED_LINES
    for s in nest.statements:
        if isinstance(s, Reduce):
            size = 2 * s.result.dtype.itemsize * (threads // WARP)
            lines += 2 * -(-size // SHARED_LINE)
    return SHARED_LINE * lines


def _resident_clusters(cluster: int, gpu: GpuConfig) -> int:
    """How many clusters of ``cluster`` blocks run at once: they do not span GPCs."""
    usable = gpu.multiprocessors if cluster <= 2 else gpu.clustered_multiprocessors
    return max(1, usable // cluster)


def _classified_loads(nest: Nest) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The numbers of row operands and of broadcast operands of ``nest``.

    None if a loaded operand is neither, or there is no row operand.
    """
    if not nest.axes:
        return None
    kept = [k for k, a in enumerate(nest.axes) if not a.reduced and a.extent > 1]
    row_operands: dict[int, None] = {}
    broadcast_operands: dict[int, None] = {}
    for s in nest.statements:
        if not isinstance(s, Load) or s.level != "element":
            continue
        strides = [nest.operands[s.operand].strides[k] for k in kept]
        if s.indices or nest.operands[s.operand].strides[-1] != 1:
            return None
        if all(strides):
            row_operands[s.operand] = None
        elif not any(strides) and not nest.operands[s.operand].written:
            broadcast_operands[s.operand] = None
        else:
            return None
    return (tuple(row_operands), tuple(broadcast_operands)) if row_operands else None
