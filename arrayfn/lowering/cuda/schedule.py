"""How a nest becomes blocks, threads and vector accesses: seven shapes of kernel.

* ``Elementwise``: a thread computes ``lanes`` neighbouring elements of the innermost
  axis, which it loads and stores as vectors;
* ``Rows``: the innermost axis is reduced; a group of threads (part of a warp, a
  warp, or a block) shares a row, and keeps it in registers between stages if it fits;
* ``Pipeline``: the same for long rows: persistent blocks, or clusters, loop over rows
  while bulk copies prefetch the next ones to shared memory;
* ``Scan``: a scan along the innermost axis; a group as of ``Rows`` shares a row, or
  loops along it. In ``ScanPipeline`` blocks claim parts of rows, which are prefetched;
* ``Columns``: the innermost axis is kept; a block has 32 neighbouring columns, its
  warps stride over the rows, and keep them likewise;
* ``Transpose``: elementwise, but some operands run along another axis: a block moves
  tiles of 32 by 32 words through shared memory.

Threads of a group combine their values in a fixed tree, so the result depends on the
shapes alone. ``stem`` is what the names of such kernels begin with.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Final

from arrayfn import dtypes
from arrayfn.lowering.cuda.config import GpuConfig
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import ArrayOperand, Load, Nest

COPIED: Final = 16  # bytes of a vector that a thread copies to shared memory


@dataclass(frozen=True, slots=True)
class Elementwise:
    """``threads`` of a block, each with ``lanes`` elements of the innermost axis.

    Or with ``tiles`` such vectors, a block's width apart, all of which are loaded
    before the first is waited for.
    """

    stem: ClassVar[str] = "elementwise"

    threads: int
    lanes: int
    whole: bool  # every thread's elements exist, or none of them
    tiles: int = 1

    @property
    def is_vector(self) -> bool:
        """Whether a thread has more than one element."""
        return self.lanes > 1


@dataclass(frozen=True, slots=True)
class Rows:
    """Each of ``threads_per_row`` threads has ``tiles`` vectors of ``lanes`` at a time.

    These are the ``whole`` row, which stays in registers from stage to stage, or else a
    loop goes along the row, and later stages read it again. A row group may be all
    threads of a ``cluster`` of blocks. Where stages are ``merged``, two exchange once.

    A thread's last ``aside`` tiles are in shared memory. Vectors of operands that all
    rows share are copied there, too, ``early`` vectors ahead of their use.
    """

    stem: ClassVar[str] = "rows"

    threads: int
    threads_per_row: int
    lanes: int
    tiles: int
    whole: bool
    cluster: int = 1
    together: int = 0  # blocks of a multiprocessor that there must be room for
    merged: bool = False
    aside: int = 0
    early: int = 0


@dataclass(frozen=True, slots=True)
class Pipeline(Rows):
    """Persistent blocks, which prefetch the next rows while they compute one.

    ``clusters`` claim rows, and the blocks of a cluster share each. A row is cut into
    slices, of one vector for each thread of a block, which the blocks get round-robin.
    Bulk copies bring the operands ``fetched`` to shared memory, where there is room for
    ``ahead`` rows; from there they go to registers. The operands ``held`` are the same
    for all rows and stay in shared memory. Of the first of them, ``spared`` vectors of
    each thread are in registers instead. fp16 and bf16 rows are ``widened`` to float32
    once, or else each time that they are read.
    """

    _: KW_ONLY
    clusters: int
    fetched: tuple[int, ...]
    held: tuple[int, ...]
    ahead: int
    spared: int
    widened: bool
    shared: int  # bytes of a block

    @property
    def slice(self) -> int:
        """How many elements are a vector of each thread of a block."""
        return self.threads * self.lanes

    def is_full(self, length: int) -> bool:
        """Whether all threads have as many vectors of a row of so many elements."""
        return length == self.cluster * self.tiles * self.slice


@dataclass(frozen=True, slots=True)
class Columns:
    """The warps of a block stride over the rows of its 32 columns, a lane for each.

    ``threads_per_row`` is the number of warps: so many threads share a column.
    ``tiles`` and ``whole`` are as in ``Rows``.
    """

    stem: ClassVar[str] = "columns"

    threads_per_row: int
    tiles: int
    whole: bool
    lanes: int = 1
    aside: int = 0
    early: int = 0

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.threads_per_row * WARP


@dataclass(frozen=True, slots=True)
class Transpose:
    """A block transposes a tile of ``axis`` and the innermost axis in shared memory.

    A tile is 32 by 32 elements. If ``pack`` is 2 or 4, elements of 16 or 8 bits move as
    words of 32 bits, and a tile has 32 times ``pack`` elements along either axis.
    """

    stem: ClassVar[str] = "transpose"

    axis: int
    pack: int = 1
    threads: int = 256

    @property
    def side(self) -> int:
        """Elements along a tile."""
        return WARP * self.pack


@dataclass(frozen=True, slots=True)
class Scan:
    """``threads_per_row`` threads share a row, or loop along it, by ``tiles`` vectors.

    A vector is ``lanes`` elements; a warp has neighbouring ones. A group may be all
    threads of a ``cluster`` of blocks. Or a row is of ``parts``: a block sums up one,
    and scans the one that lies ``lag`` parts before.
    """

    stem: ClassVar[str] = "scan"

    threads: int
    threads_per_row: int
    lanes: int
    tiles: int
    cluster: int = 1
    parts: int = 1
    lag: int = 0


@dataclass(frozen=True, slots=True)
class ScanPipeline(Scan):
    """Parts of long rows, which persistent ``blocks`` claim from a work queue.

    A part is copied to one of ``slots`` slots in shared memory (operands ``fetched``),
    reduced, and scanned two iterations later.
    """

    _: KW_ONLY
    blocks: int
    slots: int
    fetched: tuple[int, ...]
    shared: int  # bytes of a block
    together: int  # blocks of a multiprocessor


Schedule = Elementwise | Rows | Pipeline | Columns | Transpose | Scan | ScanPipeline


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
    """The largest power of two up to ``lanes`` that divides ``extent``."""
    while lanes > 1 and extent % lanes:
        lanes //= 2
    return lanes


def is_vector(operand: ArrayOperand, lanes: int) -> bool:
    """Whether ``lanes`` elements along the last axis are an aligned vector."""
    last = len(operand.strides) - 1
    return lanes > 1 and operand.strides[last] == 1 and is_aligned(operand, lanes, last)


def is_aligned(operand: ArrayOperand, lanes: int, axis: int) -> bool:
    """Whether vectors of ``lanes`` elements along ``axis`` are aligned.

    Memory begins aligned. With negative strides the first element is not where memory
    begins, and a loop's slice begins elsewhere in each iteration.
    """
    lowest, _ = operand.array.type.span()
    steps = (*operand.strides[:axis], *operand.strides[axis + 1 :])
    distances = (operand.offset - lowest, operand.moves, *steps)
    return all(distance % lanes == 0 for distance in distances)


def can_copy(operand: ArrayOperand, lanes: int) -> bool:
    """Whether a thread can copy a vector to shared memory: one of 16 bytes."""
    dtype = operand.dtype
    known = dtype in dtypes.HALF_PRECISION or (
        dtype.itemsize >= 4 and dtype.kind in "fiu"
    )
    return known and is_vector(operand, lanes) and dtype.itemsize * lanes == COPIED


def transposed_operands(nest: Nest, axis: int) -> list[int]:
    """The operands that are only read, and lie along ``axis``, not the last one."""
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
    """The smallest power of two that is not below ``n``."""
    return 1 << max(0, n - 1).bit_length()
