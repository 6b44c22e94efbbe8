"""CUDA's dispatch strategy: how a nest becomes blocks, threads and vector accesses.

Six shapes of kernel, chosen from the nest and the numbers of ``GpuConfig``:

* ``Elementwise``: a thread computes ``lanes`` neighbouring elements of the innermost
  axis, which it loads and stores as vectors;
* ``Rows``: the innermost axis is reduced; a team of threads (part of a warp, a warp, or
  a block) has one row, and keeps it in registers between the stages if it fits;
* ``Pipeline``: the same for long rows, where a block or a cluster of blocks goes from
  row to row, and the next ones are on their way to shared memory meanwhile;
* ``Scan``: a running value along the innermost axis; a block goes along a row;
* ``Columns``: the innermost axis is kept; a block has 32 neighbouring columns, its
  warps take the rows in turns, and keep them likewise;
* ``Transpose``: elementwise, but some operands run along another axis: a block moves
  tiles of 32 by 32 through shared memory.

Threads of a team combine what they have in a fixed tree, so the result depends on the
shapes alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from arrayfn.lowering.cuda.config import GPU, SCAN_FROM, GpuConfig
from arrayfn.lowering.cuda.stage_plan import kept_words, plan_stages
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import (
    ArrayOperand,
    Load,
    Nest,
    Reduce,
    Store,
)


@dataclass(frozen=True, slots=True)
class Elementwise:
    """``threads`` of a block, each with ``lanes`` elements of the innermost axis."""

    threads: int
    lanes: int
    whole: bool  # every thread's elements exist, or none of them

    @property
    def is_vector(self) -> bool:
        """Whether a thread has more than one element."""
        return self.lanes > 1


@dataclass(frozen=True, slots=True)
class Rows:
    """``team`` threads have a row, each ``tiles`` vectors of ``lanes`` at a time.

    That is the ``whole`` row, kept in registers from stage to stage, or a loop goes on
    along the row, and later stages read it again.
    """

    threads: int
    team: int
    lanes: int
    tiles: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Pipeline(Rows):
    """Blocks that stay, and have the next rows fetched while they compute one.

    ``cluster`` blocks share a row: each has ``part`` elements of it, which pass through
    ``slots`` places in shared memory to its registers. ``clusters`` take the rows in
    turns. Operands ``fetched`` are rows; those ``held`` are the same for all of them.
    """

    cluster: int
    clusters: int
    part: int
    slots: int
    fetched: tuple[int, ...]
    held: tuple[int, ...]
    shared: int  # bytes of a block
    together: int  # blocks of a multiprocessor


@dataclass(frozen=True, slots=True)
class Columns:
    """``team`` warps of a block take the rows of its 32 columns in turns.

    ``tiles`` and ``whole`` are as in ``Rows``.
    """

    team: int
    tiles: int
    whole: bool
    lanes: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.team * WARP


@dataclass(frozen=True, slots=True)
class Transpose:
    """Tiles of 32 by 32 elements of ``axis`` and the innermost one; 8 rows a warp."""

    axis: int
    threads: int = 256


@dataclass(frozen=True, slots=True)
class Scan:
    """A block goes along each row; each of its ``threads`` has ``each`` elements.

    They are loaded and stored as vectors of ``lanes``.
    """

    threads: int
    lanes: int
    each: int = 8


Schedule = Elementwise | Rows | Pipeline | Columns | Transpose | Scan


def choose(nest: Nest, gpu: GpuConfig = GPU) -> Schedule:
    """The schedule of ``nest``."""
    if any(isinstance(s, Reduce) for s in nest.statements) or nest.is_in_order:
        has_columns = any(a.reduced for a in nest.axes) and not nest.axes[-1].reduced
        if is_scan(nest):
            return scan(nest, gpu)
        if nest.is_in_order:
            # One thread goes through a row, or a column.
            return (
                Columns(1, 1, False) if has_columns else Rows(4 * WARP, 1, 1, 1, False)
            )
        if has_columns:
            return columns(nest, gpu)
        return pipeline(nest, gpu) or rows(nest, gpu)
    return elementwise(nest, gpu)


def is_scan(nest: Nest) -> bool:
    """Whether ``nest`` only stores one running value along its innermost axis."""
    reduced = [k for k, a in enumerate(nest.axes) if a.reduced]
    reduces = [s for s in nest.statements if isinstance(s, Reduce)]
    stores = [s for s in nest.statements if isinstance(s, Store)]
    return (
        reduced == [len(nest.axes) - 1]
        and not nest.has_computed_places
        and len(reduces) == len(stores) == 1
        and stores[0].value == reduces[0].result
        and stores[0].where is None
        and all(isinstance(s, Reduce) or s.level == "element" for s in nest.statements)
        and nest.axes[-1].extent >= SCAN_FROM
    )


def scan(nest: Nest, gpu: GpuConfig) -> Scan:
    """As many threads as a row has work for."""
    length = nest.axes[-1].extent
    lanes = divisor_lanes(length, widest_lanes(nest, gpu))
    if not all(is_vector(o, lanes) for o in nest.operands):
        lanes = 1
    threads = power_of_two(-(-length // 8))
    return Scan(min(gpu.max_threads // 2, max(WARP, threads)), lanes)


def elementwise(nest: Nest, gpu: GpuConfig) -> Elementwise | Transpose:
    """Vectors along the innermost axis, or tiles if operands run along another."""
    if not nest.axes:
        return Elementwise(32, 1, True)
    axis = transposed_axis(nest)
    if axis is not None:
        return Transpose(axis)
    extent = nest.axes[-1].extent
    widest = widest_lanes(nest, gpu)
    lanes = divisor_lanes(extent, widest)
    long = len(nest.axes) == 1 and lanes < widest and extent >= 16 * widest
    if long and not gpu.moving:
        return Elementwise(gpu.threads, widest, whole=False)
    return Elementwise(gpu.threads, lanes, whole=True)


def widest_lanes(nest: Nest, gpu: GpuConfig) -> int:
    """Elements in the widest access that some operand allows along the last axis."""
    sizes = [o.dtype.itemsize for o in nest.operands if o.strides[-1] == 1]
    if not sizes:
        return 1
    lanes = min(gpu.max_lanes, max(1, gpu.vector_bytes // min(sizes)))
    while lanes > 1 and not any(is_vector(o, lanes) for o in nest.operands):
        lanes //= 2
    return lanes


def divisor_lanes(extent: int, lanes: int) -> int:
    """The greatest power of two up to ``lanes`` that divides ``extent``."""
    while lanes > 1 and extent % lanes:
        lanes //= 2
    return lanes


def is_vector(operand: ArrayOperand, lanes: int) -> bool:
    """Whether ``lanes`` elements along the last axis are an aligned vector."""
    return (
        lanes > 1
        and operand.strides[-1] == 1
        and all(s % lanes == 0 for s in (*operand.strides[:-1], operand.offset))
    )


def transposed_axis(nest: Nest) -> int | None:
    """The axis along which some loads run, if it is not the last and is worth tiles."""
    if nest.has_computed_places:
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


def rows(nest: Nest, gpu: GpuConfig) -> Rows:
    """A team for each row, as large as its tiles need."""
    reduced = [a.extent for a in nest.axes if a.reduced]
    length = math.prod(reduced)
    lanes = divisor_lanes(reduced[-1], widest_lanes(nest, gpu)) if reduced else 1
    vectors = max(1, -(-length // lanes))
    words = kept_words(nest) * lanes
    size = max((o.dtype.itemsize for o in nest.operands), default=1)
    team = power_of_two(-(-vectors // gpu.tiles))
    if WARP < team <= 2 * WARP and fits(nest, words, -(-vectors // WARP), WARP, gpu):
        team = WARP
    team = min(team if team <= WARP else max(4 * WARP, team), gpu.max_threads)
    tiles = power_of_two(-(-vectors // team))
    while team < gpu.max_threads and not fits(nest, words, tiles, team, gpu):
        team = max(4 * WARP, 2 * team)
        tiles = power_of_two(-(-vectors // team))
    whole = fits(nest, words, tiles, team, gpu)
    while team > gpu.threads and 2 * words * tiles <= gpu.row_words:
        # Smaller blocks take turns where a large one waits for itself.
        team, tiles = team // 2, 2 * tiles
    if not whole:
        team, tiles = min(team, gpu.max_threads // 2), gpu.tiles
        together = gpu.multiprocessors * length * size
        if nest.stages > 1 and together <= gpu.cache_bytes:
            # A row for each multiprocessor: later stages find it in the cache.
            team, tiles = gpu.max_threads, gpu.tiles // 2
    threads = team if team > WARP else 4 * WARP
    return Rows(threads, team, lanes, tiles, whole)


def fits(nest: Nest, words: int, tiles: int, team: int, gpu: GpuConfig) -> bool:
    """Whether a thread of ``team`` can have ``tiles`` vectors of ``words`` at once."""
    if nest.stages == 1:
        return tiles <= 2 * gpu.tiles
    room = 2 * gpu.row_words
    if team > gpu.max_threads // 2:
        # What is loaded beside the row needs registers too.
        room //= 4 if loads_beside(nest) else 2
    return words * tiles <= room


def loads_beside(nest: Nest) -> bool:
    """Whether a stage loads elements that no other stage needs."""
    kept = plan_stages(nest, keep=True).kept
    return any(
        isinstance(s, Load) and s.level == "element" and s.result.name not in kept
        for s in nest.statements
    )


def pipeline(nest: Nest, gpu: GpuConfig) -> Pipeline | None:
    """Long rows fetched ahead; None where they are short, or cannot be fetched so."""
    operands = _rows_and_held(nest)
    reduced = [a.extent for a in nest.axes if a.reduced]
    if operands is None or len(reduced) != 1 or nest.stages == 1:
        return None
    (length,), (fetched, held) = reduced, operands
    lanes = divisor_lanes(length, widest_lanes(nest, gpu))
    words = kept_words(nest)
    used = [nest.operands[k] for k in (*fetched, *held)]
    whole = all(is_vector(o, lanes) and o.dtype.itemsize * lanes >= 16 for o in used)
    rows = math.prod(a.extent for a in nest.axes if not a.reduced)
    few = 2 * rows <= gpu.multiprocessors
    if not whole or length * words <= gpu.pipeline_from:
        return None
    if length * words > gpu.pipeline_to and not few:
        # Blocks of a cluster wait for each other longer than a second reading takes.
        return None
    row_bytes = sum(nest.operands[k].dtype.itemsize for k in fetched)
    held_bytes = sum(nest.operands[k].dtype.itemsize for k in held)
    cluster = 1
    while cluster <= gpu.most_cluster:
        part = -(-length // (lanes * cluster)) * lanes
        for together in gpu.pipelines:
            threads = gpu.pipeline_threads // together
            tiles = power_of_two(-(-part // (lanes * threads)))
            room = gpu.shared_bytes // together - held_bytes * part
            slots = min(room // (row_bytes * part), 4) if room > 0 else 0
            if slots and words * lanes * tiles <= gpu.pipeline_words:
                return Pipeline(
                    threads,
                    threads * cluster,
                    lanes,
                    tiles,
                    True,
                    cluster,
                    min(rows, _clusters(cluster, together, gpu)),
                    part,
                    slots,
                    fetched,
                    held,
                    (row_bytes * slots + held_bytes) * part,
                    together,
                )
        cluster *= 2
    return None


def _clusters(cluster: int, together: int, gpu: GpuConfig) -> int:
    """Clusters that run at once: they do not span the groups of multiprocessors."""
    usable = gpu.multiprocessors
    if cluster > 2:
        usable = max(cluster, usable // 16 * 16)
    return max(1, usable * together // cluster)


def _rows_and_held(nest: Nest) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Loaded operands that are another row each time, and those that stay the same.

    None if some are neither, or none is a row.
    """
    kept = [k for k, a in enumerate(nest.axes) if not a.reduced and a.extent > 1]
    fetched: dict[int, None] = {}
    held: dict[int, None] = {}
    for s in nest.statements:
        if not isinstance(s, Load) or s.level != "element":
            continue
        strides = [nest.operands[s.operand].strides[k] for k in kept]
        if s.at or nest.operands[s.operand].strides[-1] != 1:
            return None
        if all(strides):
            fetched[s.operand] = None
        elif not any(strides) and not nest.operands[s.operand].written:
            held[s.operand] = None
        else:
            return None
    return (tuple(fetched), tuple(held)) if fetched else None


def columns(nest: Nest, gpu: GpuConfig) -> Columns:
    """Up to 16 warps for the rows of 32 columns."""
    height = math.prod(a.extent for a in nest.axes if a.reduced)
    team = min(8, power_of_two(-(-height // gpu.tiles)))
    tiles = power_of_two(-(-height // team))
    if nest.stages > 1 and not fits(nest, kept_words(nest), tiles, team * WARP, gpu):
        team = min(16, power_of_two(-(-height // gpu.tiles)))
        tiles = power_of_two(-(-height // team))
    if fits(nest, kept_words(nest), tiles, team * WARP, gpu):
        return Columns(team, tiles, True)
    # Few blocks need many warps each to keep the memory busy.
    blocks = math.prod(a.extent for a in nest.axes if not a.reduced) // WARP
    wanted = gpu.multiprocessors * 2 * gpu.max_threads // (WARP * max(1, blocks))
    team = min(gpu.max_threads // WARP, max(team, power_of_two(wanted)))
    return Columns(team, 2 * gpu.tiles, False)


def power_of_two(n: int) -> int:
    """The least power of two that is not below ``n``."""
    return 1 << max(0, n - 1).bit_length()
