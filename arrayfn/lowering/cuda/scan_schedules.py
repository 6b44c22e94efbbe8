"""Chooses schedules of scans: by a row group, by a pipeline of parts, or by parts."""

from __future__ import annotations

import math

from arrayfn.lowering.cuda.config import SCAN_FROM, GpuConfig
from arrayfn.lowering.cuda.schedule import (
    Scan,
    ScanPipeline,
    divisor_lanes,
    is_vector,
    power_of_two,
    widest_lanes,
)
from arrayfn.lowering.cuda.vocabulary import DSMEM_BYTES, WARP
from arrayfn.lowering.kernel_ir import Load, Nest, Store, is_outer
from arrayfn.records import frozen


def is_scan(nest: Nest) -> bool:
    """Whether ``nest`` only stores one running value along its innermost axis."""
    reductions = nest.reductions
    stores = [s for s in nest.statements if isinstance(s, Store)]
    return (
        nest.reduced_axes == [len(nest.axes) - 1]
        and not nest.has_computed_indices
        and len(reductions) == len(stores) == 1
        and stores[0].value == reductions[0].result
        and stores[0].where is None
        and not any(map(is_outer, nest.statements))
        and nest.axes[-1].extent >= SCAN_FROM
    )


def scan(nest: Nest, gpu: GpuConfig) -> Scan:
    """Choose the schedule of a scan along the innermost axis, of any length.

    A row has as many threads as it has work for: a warp, a block, or a cluster. Rows
    that are too long for the registers of a cluster are cut into parts. So are rows of
    several blocks where there are too few of them to occupy all multiprocessors.
    """
    row = _ScannedRow.of(nest, gpu)
    # Vectors of a thread whose running values fit into its registers.
    room = gpu.scan_words // row.vector_words
    if row.vectors > gpu.scan_threads * room:  # a long row: more for each thread
        room *= 2
    tiles = max(1, min(8, room, power_of_two(-(-row.vectors // WARP))))
    threads_per_row = max(WARP, power_of_two(-(-row.vectors // tiles)))
    # Larger clusters wait until so many blocks are free: parts are faster than that.
    can_send = row.itemsize in DSMEM_BYTES
    max_cluster = min(4, gpu.max_cluster) if can_send else 1
    blocks = -(-threads_per_row // gpu.scan_threads)
    is_idle = blocks > 1 and row.count * blocks < gpu.multiprocessors
    if blocks > max(1, max_cluster) or is_idle:
        return scan_pipeline(nest, gpu, row.lanes) or _scan_in_parts(row, gpu)
    cluster, threads = 1, threads_per_row
    # More blocks in a cluster make smaller blocks: where a block is too large, or where
    # there are few rows.
    while cluster < max_cluster and (
        threads > gpu.scan_threads
        or (threads > gpu.threads and row.count * cluster < 2 * gpu.multiprocessors)
    ):
        cluster, threads = 2 * cluster, threads // 2
    threads = min(threads, gpu.max_threads)
    threads_per_row = cluster * threads
    if threads_per_row == WARP:
        threads = 4 * WARP  # of a block, for four rows
    return Scan(threads, threads_per_row, row.lanes, tiles, cluster=cluster)


@frozen(slots=True)
class _ScannedRow:
    """The sizes of a scan's rows.

    Args:
        count: How many rows there are.
        lanes: Elements of a vector.
        vectors: Vectors of a row.
        itemsize: Bytes of a running value.
        vector_words: 32-bit registers for the running values of a vector.
    """

    count: int
    lanes: int
    vectors: int
    itemsize: int
    vector_words: int

    @classmethod
    def of(cls, nest: Nest, gpu: GpuConfig) -> _ScannedRow:
        """Compute the sizes of the rows of the scan ``nest``."""
        length = nest.axes[-1].extent
        lanes = divisor_lanes(length, widest_lanes(nest, gpu))
        (reduce,) = nest.reductions
        itemsize = reduce.result.dtype.itemsize
        count = math.prod(a.extent for a in nest.axes[:-1])
        return cls(
            count=count,
            lanes=lanes,
            vectors=-(-length // lanes),
            itemsize=itemsize,
            vector_words=lanes * -(-itemsize // 4),
        )


def _scan_in_parts(row: _ScannedRow, gpu: GpuConfig) -> Scan:
    """Return the schedule in which a block reduces a part and scans an earlier one.

    The scanned part is ``lag`` parts before the reduced one: its predecessors have been
    reduced by then.
    """
    threads, tiles = gpu.part_threads, max(1, 2 * gpu.scan_words // row.vector_words)
    parts = -(-row.vectors // (threads * tiles))
    part_bytes = threads * tiles * row.lanes * max(row.itemsize, 1)
    lag = max(1, min(gpu.scan_lag_bytes // part_bytes, row.count * parts // 2))
    return Scan(
        threads=threads,
        threads_per_row=threads,
        lanes=row.lanes,
        tiles=tiles,
        parts=parts,
        lag=lag,
    )


def scan_pipeline(nest: Nest, gpu: GpuConfig, lanes: int) -> ScanPipeline | None:
    """Choose a scan that prefetches parts of rows, as vectors of ``lanes`` elements.

    None where there are too few parts to gain by it, or no operand can be prefetched.
    """
    loaded = {
        s.operand: nest.operands[s.operand]
        for s in nest.statements
        if isinstance(s, Load) and s.level == "element" and not s.indices
    }
    # Bulk copies move whole vectors of 16 bytes or more.
    itemsizes = {
        k: o.dtype.itemsize
        for k, o in loaded.items()
        if is_vector(o, lanes) and o.dtype.itemsize * lanes >= 16
    }
    threads, vectors = gpu.part_threads, -(-nest.axes[-1].extent // lanes)
    # Shared memory for one vector of each thread, in all slots.
    vector_bytes = threads * lanes * sum(itemsizes.values()) * gpu.part_slots
    tiles = gpu.shared_bytes // (gpu.part_blocks * max(1, vector_bytes))
    if not itemsizes or not tiles or not gpu.max_cluster:
        return None
    # The largest power of two up to ``tiles``.
    tiles = min(gpu.part_tiles, power_of_two(tiles + 1) // 2)
    parts = -(-vectors // (threads * tiles))
    rows = math.prod(a.extent for a in nest.axes[:-1])
    blocks = gpu.multiprocessors * gpu.part_blocks
    # Prefetching pays only if each block has several parts.
    if rows * parts < gpu.part_iterations * blocks:
        return None
    return ScanPipeline(
        threads=threads,
        threads_per_row=threads,
        lanes=lanes,
        tiles=tiles,
        parts=parts,
        blocks=min(rows * parts, blocks),
        slots=gpu.part_slots,
        row_operands=tuple(itemsizes),
        shared=vector_bytes * tiles,
        blocks_per_multiprocessor=gpu.part_blocks,
    )
