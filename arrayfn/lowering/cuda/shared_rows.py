"""Schedules of long rows that a cluster shares, and that are prefetched."""

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
from arrayfn.lowering.cuda.stage_plan import keeps_one_row, kept_words
from arrayfn.lowering.cuda.vocabulary import SENT_BYTES, SHARED_LINE, WARP
from arrayfn.lowering.kernel_ir import Load, Nest, Reduce

_MBARRIERS: Final = 4  # lines: of mbarriers of rows, exchanges, numbers; of numbers


def clustered(nest: Nest, gpu: GpuConfig) -> Rows | None:
    """A cluster of blocks for each long row; None where one block will do, or many.

    Rows of several stages stay in registers. Those of one stage are summed up as they
    come: in a cluster if that makes them enough blocks, or the whole is small.
    """
    reduced = [a.extent for a in nest.axes if a.reduced]
    if gpu.max_cluster < 2 or not reduced or not _can_send(nest):
        return None
    length, rows = math.prod(reduced), math.prod(_kept_extents(nest))
    lanes = divisor_lanes(reduced[-1], widest_lanes(nest, gpu))
    vectors = -(-length // lanes)
    if nest.stages == 1:
        return _summed_by_clusters(nest, gpu, lanes)
    words = kept_words(nest, lanes)
    few = rows < gpu.multiprocessors
    tiles = max(1, gpu.cluster_words // words // (2 if few else 1))
    cluster, threads = 1, power_of_two(-(-vectors // tiles))
    while threads > gpu.cluster_threads and cluster < gpu.max_cluster:
        cluster, threads = 2 * cluster, threads // 2
    while few and cluster < gpu.max_cluster and threads > gpu.threads:
        cluster, threads = 2 * cluster, threads // 2
        few = rows * cluster < 2 * gpu.multiprocessors
    if cluster == 1 or threads > gpu.max_threads:
        return None
    together = gpu.resident // threads if keeps_one_row(nest) else 0
    return Rows(threads, cluster * threads, lanes, tiles, True, cluster, together)


def _summed_by_clusters(nest: Nest, gpu: GpuConfig, lanes: int) -> Rows | None:
    """Single-stage rows that are too few to be a block each."""
    length = math.prod(a.extent for a in nest.axes if a.reduced)
    rows = math.prod(_kept_extents(nest))
    size = max((o.dtype.itemsize for o in nest.operands), default=1)
    if rows >= gpu.multiprocessors or length < 2 * gpu.chunk:
        return None
    cluster = 2
    while cluster < gpu.max_cluster and rows * cluster < 2 * gpu.multiprocessors:
        cluster *= 2
    small = length * size <= cluster * gpu.cluster_bytes
    if rows * cluster < gpu.multiprocessors and not small:
        return None
    threads = gpu.max_threads
    return Rows(threads, threads * cluster, lanes, gpu.tiles, False, cluster)


def _kept_extents(nest: Nest) -> list[int]:
    return [a.extent for a in nest.axes if not a.reduced]


def _can_send(nest: Nest) -> bool:
    """Whether blocks of a cluster can send each other the reductions' results."""
    reduces = [s for s in nest.statements if isinstance(s, Reduce)]
    return all(s.result.dtype.itemsize in SENT_BYTES for s in reduces)


def row_merges(nest: Nest, schedule: Rows) -> tuple[Merge, ...]:
    """The stages of rows that can share an exchange.

    Those of squares do in a pipeline whose warps all have as much of a row: elsewhere
    moving them takes longer than an exchange.
    """
    length = math.prod(a.extent for a in nest.axes if a.reduced)
    squares = isinstance(schedule, Pipeline) and schedule.is_full(length)
    return merges_of(nest, squares)


def pipeline(nest: Nest, gpu: GpuConfig) -> Pipeline | None:
    """A pipeline for long rows; None if rows are short, or cannot be prefetched."""
    operands = _rows_and_held(nest)
    reduced = [a.extent for a in nest.axes if a.reduced]
    if operands is None or len(reduced) != 1 or nest.stages == 1:
        return None
    (length,), (fetched, held) = reduced, operands
    lanes = divisor_lanes(length, widest_lanes(nest, gpu))
    words = kept_words(nest, lanes, keep_half_exp=True)
    if words < lanes and not held and not merges_of(nest):
        # 16-bit rows alone are bound by their arithmetic: more threads are better.
        return None
    used = [nest.operands[k] for k in (*fetched, *held)]
    whole = all(is_vector(o, lanes) and o.dtype.itemsize * lanes >= 16 for o in used)
    rows = math.prod(_kept_extents(nest))
    if not whole or length * words <= gpu.pipeline_from * lanes or not _can_send(nest):
        return None
    wide = (
        max(words, lanes) if held else words
    )  # 16-bit rows are widened beside weights
    # One large block a multiprocessor: of more, each would hold what all rows share,
    # and have taken rows when others have none left.
    cluster, threads = 1, gpu.pipeline_threads
    # Small parts leave less to be done by some at the end, when others are done.
    fetched_bytes = sum(nest.operands[k].dtype.itemsize for k in fetched)
    held_bytes = [nest.operands[k].dtype.itemsize for k in held]
    room = gpu.pipeline_shared - _beside(nest, threads)
    while cluster <= gpu.max_cluster:
        tiles = -(-length // (cluster * threads * lanes))
        part = tiles * threads * lanes
        is_full = length == cluster * part
        spare = threads * lanes if is_full and tiles > gpu.spared else 0
        places = _places(part, spare, fetched_bytes, held_bytes, room, gpu)
        small = part * fetched_bytes <= gpu.pipeline_bytes
        fits = places and wide * tiles <= gpu.pipeline_words
        if places and fits and (small or cluster == gpu.max_cluster):
            return Pipeline(
                threads,
                threads * cluster,
                lanes,
                tiles,
                True,
                cluster,
                1,
                clusters=min(rows, _clusters(cluster, gpu)),
                fetched=fetched,
                held=held,
                ahead=places.ahead,
                spared=places.spared,
                widened=lanes * tiles * len(fetched) <= gpu.pipeline_words,
                # The whole share: with a larger cache of its own, and less of
                # this, a multiprocessor's iterations took longer.
                shared=max(places.used, gpu.shared_bytes),
            )
        cluster *= 2
    return None


@dataclass(frozen=True, slots=True)
class _Places:
    """What a pipeline's block has in shared memory: rows, and ``used`` bytes in all.

    ``spared`` vectors of what it would hold there are in registers instead.
    """

    ahead: int
    spared: int
    used: int


def _places(
    part: int,
    spare: int,
    fetched: int,
    held: Sequence[int],
    room: int,
    gpu: GpuConfig,
) -> _Places | None:
    """As many rows as there is room for, with as few vectors in registers as possible.

    A block has ``part`` elements of a row. ``fetched`` and ``held`` are the bytes of an
    element, ``spare`` the elements of one vector of each thread, or 0 if some threads
    have fewer. None if there is no room for a single row.
    """
    most = gpu.spared if held and spare else 0
    for ahead in range(gpu.rows_ahead, 0, -1):
        for spared in range(most + 1):
            used = part * (ahead * fetched + sum(held))
            used -= spared * spare * held[0] if spared else 0
            if used <= room:
                return _Places(ahead, spared, used)
    return None


def _beside(nest: Nest, threads: int) -> int:
    """Bytes of a block's other arrays: of mbarriers, of what warps, blocks exchange."""
    arrays = _MBARRIERS
    for s in nest.statements:
        if isinstance(s, Reduce):
            # Alternately, at most: twice as much.
            size = 2 * s.result.dtype.itemsize * (threads // WARP)
            arrays += 2 * -(-size // SHARED_LINE)
    return SHARED_LINE * arrays


def _clusters(cluster: int, gpu: GpuConfig) -> int:
    """Clusters that run at once: they do not span the groups of multiprocessors."""
    usable = gpu.multiprocessors if cluster <= 2 else gpu.grouped
    return max(1, usable // cluster)


def _rows_and_held(nest: Nest) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Loaded operands that are another row each time, and those that stay the same.

    None if some are neither, or none is a row.
    """
    if not nest.axes:
        return None
    kept = [k for k, a in enumerate(nest.axes) if not a.reduced and a.extent > 1]
    fetched: dict[int, None] = {}
    held: dict[int, None] = {}
    for s in nest.statements:
        if not isinstance(s, Load) or s.level != "element":
            continue
        strides = [nest.operands[s.operand].strides[k] for k in kept]
        if s.indices or nest.operands[s.operand].strides[-1] != 1:
            return None
        if all(strides):
            fetched[s.operand] = None
        elif not any(strides) and not nest.operands[s.operand].written:
            held[s.operand] = None
        else:
            return None
    return (tuple(fetched), tuple(held)) if fetched else None
