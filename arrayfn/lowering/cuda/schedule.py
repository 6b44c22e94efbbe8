"""Schedules: how a nest becomes blocks, threads and vector accesses.

There are seven, each with a printer of its own:

* ``Elementwise``: a thread computes neighbouring elements of the innermost axis, which
  it loads and stores as vectors.
* ``Rows``: the innermost axis is reduced. A row group (part of a warp, a warp, a block
  or a cluster) shares a row, and keeps it in registers between stages if it fits.
* ``Pipeline``: as ``Rows``, for long rows. Persistent blocks, or clusters, loop over
  rows while bulk copies prefetch the next ones to shared memory.
* ``Columns``: an axis is reduced, but not the innermost. A block has 32 neighbouring
  columns; its warps stride over the rows.
* ``Scan``: a scan along the innermost axis. A row group shares a row, or loops along
  it.
* ``ScanPipeline``: as ``Scan``, for long rows. Persistent blocks claim parts of rows,
  which bulk copies prefetch.
* ``Transpose``: elementwise, but some operands are contiguous along another axis. A
  block transposes tiles of 32 by 32 words in shared memory.

These words are common to all: ``threads`` is the block size. A *vector* is ``lanes``
neighbouring elements, the most that one access of a thread can move. ``tiles`` is how
many vectors a thread has in registers at a time. ``stem`` begins the kernels' names.

The threads of a row group combine their values in a fixed tree, so the order of sums
depends only on shapes.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY
from typing import ClassVar, Final

from arrayfn import dtypes
from arrayfn.lowering.cuda.config import GpuConfig
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import ArrayOperand, Load, Nest
from arrayfn.records import frozen

CP_ASYNC_BYTES: Final = 16  # bytes of a vector that a thread copies by one ``cp.async``


@frozen(slots=True)
class Elementwise:
    """Each thread computes ``tiles`` vectors of ``lanes`` elements, a block apart.

    All of a thread's loads are issued before it waits for the first. Vectors are
    ``full_vectors`` if ``lanes`` divides the innermost axis; otherwise the last one is
    computed element by element.
    """

    stem: ClassVar[str] = "elementwise"

    threads: int
    lanes: int
    full_vectors: bool
    tiles: int = 1


@frozen(slots=True)
class Rows:
    """``threads_per_row`` threads share a row, each with ``tiles`` vectors at a time.

    Args:
        threads: Threads of a block.
        threads_per_row: Threads of a row group: a part of a warp, a warp, a block or a
            cluster.
        lanes: Elements of a vector.
        tiles: Vectors that a thread has at a time.
        register_resident: The threads have the whole row at once and keep it in
            registers from stage to stage. Otherwise a loop goes along the row, and
            later stages read it from memory again.
        cluster: Blocks that share a row.
        blocks_per_multiprocessor: Blocks that a multiprocessor must have room for,
            which limits registers, as in CUDA's ``__launch_bounds__``; 0 for no limit.
        merged: Two stages share one exchange between warps: see ``merges``.
        shared_tiles: How many of a thread's vectors, its last ones, are in shared
            memory instead of registers between stages.
        prefetch_distance: How many vectors ahead a thread copies operands that all rows
            share (weights) to shared memory; 0 if it loads them when it needs them.
    """

    stem: ClassVar[str] = "rows"

    threads: int
    threads_per_row: int
    lanes: int
    tiles: int
    register_resident: bool
    cluster: int = 1
    blocks_per_multiprocessor: int = 0
    merged: bool = False
    shared_tiles: int = 0
    prefetch_distance: int = 0


@frozen(slots=True)
class Pipeline(Rows):
    """Persistent clusters of blocks, which prefetch rows while they compute one.

    A row is cut into slices of one vector for each thread of a block. The blocks of a
    cluster get the slices round-robin.

    Args:
        clusters: How many run at once. Each claims one row after the other.
        row_operands: Numbers of the operands that have different values for each row.
            Bulk copies bring their rows to shared memory; from there they are loaded to
            registers.
        broadcast_operands: Numbers of the operands that are the same for all rows, such
            as weights. They are copied to shared memory once and stay there.
        prefetch_rows: Rows that shared memory has room for.
        broadcast_register_tiles: How many vectors of the first broadcast operand each
            thread keeps in registers instead, where shared memory is full.
        keeps_float32: fp16 and bf16 rows that are read twice are converted to float32
            once and stay so in registers. Otherwise each read converts them.
        shared: Bytes of shared memory of a block.
    """

    _: KW_ONLY
    clusters: int
    row_operands: tuple[int, ...]
    broadcast_operands: tuple[int, ...]
    prefetch_rows: int
    broadcast_register_tiles: int
    keeps_float32: bool
    shared: int

    @property
    def slice(self) -> int:
        """Elements of a slice: one vector for each thread of a block."""
        return self.threads * self.lanes

    def is_full(self, length: int) -> bool:
        """Whether every thread has ``tiles`` full vectors of a row of this length."""
        return length == self.cluster * self.tiles * self.slice


@frozen(slots=True)
class Columns:
    """The warps of a block stride over the rows of its 32 columns, one in each lane.

    ``threads_per_row``, the number of warps, is how many threads share a column; each
    has ``tiles`` of its elements at a time. ``register_resident`` is as in ``Rows``.
    Other fields of ``Rows`` that printers read are constants here.
    """

    stem: ClassVar[str] = "columns"
    lanes: ClassVar[int] = 1
    shared_tiles: ClassVar[int] = 0
    prefetch_distance: ClassVar[int] = 0

    threads_per_row: int
    tiles: int
    register_resident: bool

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.threads_per_row * WARP


@frozen(slots=True)
class Transpose:
    """A block transposes a tile of ``axis`` and the innermost axis in shared memory.

    A tile is 32 by 32 elements. If ``pack`` is 2 or 4, elements of 16 or 8 bits move as
    words of 32 bits, and a tile has 32 times ``pack`` elements along either axis. A
    block has ``threads`` threads.
    """

    stem: ClassVar[str] = "transpose"

    axis: int
    pack: int = 1
    threads: int = 256

    @property
    def side(self) -> int:
        """Elements along each side of a tile."""
        return WARP * self.pack


@frozen(slots=True)
class Scan:
    """``threads_per_row`` threads share a row, or loop along it, by ``tiles`` vectors.

    The vectors of a warp are neighbours. A row group may be all threads of a
    ``cluster`` of blocks. If ``parts`` is above 1, a row has so many parts: a block
    reduces one and scans the one ``lag`` parts before it (see ``scan_parts``).
    """

    stem: ClassVar[str] = "scan"

    threads: int
    threads_per_row: int
    lanes: int
    tiles: int
    cluster: int = 1
    parts: int = 1
    lag: int = 0


@frozen(slots=True)
class ScanPipeline(Scan):
    """Parts of long rows, which persistent ``blocks`` claim from a work queue.

    A bulk copy brings the ``row_operands`` of a part to one of ``slots`` buffers in
    shared memory. The part is reduced, and scanned two iterations later. ``shared`` and
    ``blocks_per_multiprocessor`` are as in ``Rows`` and ``Pipeline``.
    """

    _: KW_ONLY
    blocks: int
    slots: int
    row_operands: tuple[int, ...]
    shared: int
    blocks_per_multiprocessor: int


Schedule = Elementwise | Rows | Pipeline | Columns | Transpose | Scan | ScanPipeline


def widest_lanes(nest: Nest, gpu: GpuConfig) -> int:
    """Return the elements of the longest vector access that ``nest`` allows.

    At least one operand must allow it. Vectors lie along the last axis and have up to
    ``gpu.vector_bytes`` bytes and ``gpu.max_lanes`` elements. 1 if no operand is
    contiguous and aligned.
    """
    sizes = [o.dtype.itemsize for o in nest.operands if o.strides[-1] == 1]
    if not sizes:
        return 1
    lanes = min(gpu.max_lanes, max(1, gpu.vector_bytes // min(sizes)))
    while lanes > 1 and not any(is_vector(o, lanes) for o in nest.operands):
        lanes //= 2
    return lanes


def divisor_lanes(extent: int, lanes: int) -> int:
    """Return the largest power of two up to ``lanes`` that divides ``extent``.

    ``lanes`` is a power of two.
    """
    return math.gcd(extent, lanes)


def is_vector(operand: ArrayOperand, lanes: int) -> bool:
    """Return whether ``lanes`` elements along the operand's last axis are a vector.

    They must be contiguous and aligned. A single element is no vector.
    """
    last = len(operand.strides) - 1
    return lanes > 1 and operand.strides[last] == 1 and is_aligned(operand, lanes, last)


def is_aligned(operand: ArrayOperand, lanes: int, axis: int) -> bool:
    """Return whether vectors of ``lanes`` elements along ``axis`` are aligned.

    The first element's offset, the strides of all other axes and the distance between
    the slices of a loop (``operand.moves``) must be multiples of ``lanes``. The memory
    of an array begins aligned; with negative strides its first element is not at the
    beginning.
    """
    lowest, _ = operand.array.type.span()
    steps = (*operand.strides[:axis], *operand.strides[axis + 1 :])
    distances = (operand.offset - lowest, operand.moves, *steps)
    return all(distance % lanes == 0 for distance in distances)


def can_copy(operand: ArrayOperand, lanes: int) -> bool:
    """Whether ``cp.async`` can copy vectors of ``lanes`` elements of ``operand``.

    They must be aligned and have 16 bytes; the dtype is fp16, bf16, or of 4 or 8 bytes.
    """
    dtype = operand.dtype
    known = dtype in dtypes.HALF_PRECISION or (
        dtype.itemsize >= 4 and dtype.kind in "fiu"
    )
    return (
        known and is_vector(operand, lanes) and dtype.itemsize * lanes == CP_ASYNC_BYTES
    )


def transposed_operands(nest: Nest, axis: int) -> list[int]:
    """Return the loaded operands of ``nest`` that are contiguous along ``axis``.

    Operands are given by number. ``axis`` is not the last. Operands that are also
    written are left out.
    """
    last = len(nest.axes) - 1
    return list(
        dict.fromkeys(
            s.operand
            for s in nest.statements
            if isinstance(s, Load)
            and not nest.operands[s.operand].written
            and nest.operands[s.operand].strides[axis] == 1
            and abs(nest.operands[s.operand].strides[last]) > 1
        )
    )


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is not below ``n``."""
    return 1 << max(0, n - 1).bit_length()
