"""The base of skinny products' kernels: tiling, software pipeline and reduction.

``c[m, n] = a[m, k] @ b[k, n]`` with few rows of ``a`` takes as long as reading ``b``. A
block computes some columns of c in a loop along k; its warps split k. Each warp copies
tiles of a and b to shared memory some stages before it multiplies them. The blocks of a
cluster split k, too (split-K): at the end each block adds the sums of all blocks for
its share of the results.

A kernel is assembled of these texts:

    (prologue: which columns and which part of k the block has)
    (pipelined: loop along k, copies of later tiles, products of the current ones)
    (reduction: sums of warps, then of blocks; stores)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from arrayfn.lowering.cuda.handwritten import Handwritten, indented
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.records import frozen


@frozen(slots=True)
class SkinnyTile(ABC):
    """The tile of a skinny product's kernel, and the lines that all such kernels share.

    The lines use these names: ``thread``, ``lane``, ``warp``; ``rank``, the block's
    number in its cluster; ``first_column`` of the block; ``first`` and ``end``, the
    block's part of k; ``begin``, where a tile begins in k, and ``place``, where it
    begins in shared memory. Parameters of the kernel are ``a_in``, ``b_in``, ``c_out``
    and integers.

    Args:
        rows: The most rows of ``a``.
        warps: Warps of a block, which split k.
        stages: Stages of the software pipeline: tiles of a warp in shared memory.
        cluster: Blocks that have the same columns and split k.
        rounded: The dtype that results are rounded to, or empty for float32.
        transposed: Whether the matrix b is contiguous along k.
    """

    itemsize: ClassVar[int]
    """Bytes of an element that is multiplied."""

    rows: int
    warps: int = 8
    stages: int = 4
    cluster: int = 1
    rounded: str = ""
    transposed: bool = False

    @property
    @abstractmethod
    def columns(self) -> int:
        """Columns of a block."""

    @property
    @abstractmethod
    def depth(self) -> int:
        """The extent along k of a warp's tile."""

    @property
    @abstractmethod
    def stage_elements(self) -> int:
        """Elements of shared memory for one stage of a warp: tiles of a and b."""

    @property
    def k_step(self) -> int:
        """The extent along k of the tiles of all warps of a block."""
        return self.warps * self.depth

    @property
    def stage_bytes(self) -> int:
        """Bytes of shared memory for one stage of all warps."""
        return self.itemsize * self.warps * self.stage_elements

    @property
    def ring_elements(self) -> int:
        """Elements of shared memory for all stages of all warps."""
        return self.stages * self.warps * self.stage_elements

    @property
    def accumulators(self) -> int:
        """Results of a block. Each warp has a partial sum of every one."""
        return self.rows * self.columns

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * WARP

    @property
    def results_per_block(self) -> int:
        """Results that a block of a cluster adds up and stores."""
        return self.accumulators // self.cluster

    def k_per_block(self, k: int) -> int:
        """Return the extent along k of a block's part, a multiple of ``k_step``.

        ``k`` is the whole extent, which the blocks of a cluster split.
        """
        return -(-k // (self.cluster * self.k_step)) * self.k_step

    def blocks(self, n: int) -> int:
        """Return the number of blocks of a launch for ``n`` columns."""
        return -(-n // self.columns) * self.cluster

    @property
    def prologue(self) -> str:
        """Lines that define the block's part of the product.

        In a cluster they also initialize the mbarrier of the exchange between blocks,
        declare ``received``, the array of the sums that a block gets, and arrive at the
        cluster's barrier, which ``reduction`` waits for.
        """
        part = f"""
thread = thread_index()
lane = remainder(thread, {WARP})
warp = quotient(thread, {WARP})
rank = remainder(block_index(), {self.cluster})
first_column = quotient(block_index(), {self.cluster}) * {self.columns}
first = rank * part
end = min_i64(first + part, k)"""
        if self.cluster == 1:
            return part
        return f"""{part}
mbarriers = mbarriers_i64(1)
if thread == 0:
    mbarrier_init(mbarriers, 1)
    fence_mbarrier_init()
    mbarrier_expect_tx(mbarriers, 0, {self.accumulators * 4})
cluster_arrive()
received = shared_f32({self.accumulators})"""

    def pipelined(self, copies: str, multiply: str) -> str:
        """Return lines of a warp's software pipeline over its tiles along k.

        Args:
            copies: Lines that begin to copy the tiles from ``begin`` along k to
                ``place``, as one commit group.
            multiply: Lines that multiply the tiles at ``place``.
        """
        stages, stage = self.stages, self.stage_elements
        ahead = stages - 1  # stages that are under way while one is multiplied
        return f"""from_step = first + warp * {self.depth}
for slot in range({ahead}):
    place = (warp * {stages} + slot) * {stage}
    begin = from_step + slot * {self.k_step}
{indented(copies, 1)}
slot = i64(0)
for now in range(from_step, end, {self.k_step}):
    cp_async_wait({ahead - 1})
    warp_barrier()
    place = (warp * {stages} + remainder(slot + {ahead}, {stages})) * {stage}
    begin = now + {ahead * self.k_step}
{indented(copies, 1)}
    place = (warp * {stages} + slot) * {stage}
{indented(multiply, 1)}
    slot = remainder(slot + 1, {stages})
cp_async_wait(0)"""

    def reduction(self, sums: str) -> str:
        """Return lines that add up the sums of warps and blocks, and store results.

        The warps' sums are added in order, and then the sums of the cluster's blocks.
        ``sums`` names the shared array of the warps' sums, [warp, row, column].
        """
        wait = "cluster_wait()\n" if self.cluster > 1 else ""
        return f"""{wait}barrier()
for number in range(thread, {self.accumulators}, {self.threads}):
    sum = {sums}[number]
    for other in range(1, {self.warps}):
        sum = sum + {sums}[other * {self.accumulators} + number]
{indented(self._send_or_store, 1)}{self._cluster_sum}"""

    @property
    def _send_or_store(self) -> str:
        """Lines that store ``sum``, result ``number`` of the block, or send it.

        In a cluster it goes to the block that adds up this result, the ``owner``.
        """
        if self.cluster == 1:
            return self._store
        return f"""owner = quotient(number, {self.results_per_block})
target = rank * {self.results_per_block} + remainder(number, {self.results_per_block})
dsmem_store_f32(received, target, sum, owner, mbarriers, 0)"""

    @property
    def _cluster_sum(self) -> str:
        """Lines that add and store the sums that the cluster's blocks have sent."""
        if self.cluster == 1:
            return ""
        return f"""
mbarrier_wait(mbarriers, 0, 0)
for at in range(thread, {self.results_per_block}, {self.threads}):
    sum = received[at]
    for other in range(1, {self.cluster}):
        sum = sum + received[other * {self.results_per_block} + at]
    number = rank * {self.results_per_block} + at
{indented(self._store, 1)}
"""

    @property
    def _store(self) -> str:
        """Lines that store ``sum``, result ``number`` of the block, if it is in c."""
        rounded = f"convert_f32_{self.rounded}(sum)" if self.rounded else "sum"
        return f"""m = quotient(number, {self.columns})
column = first_column + remainder(number, {self.columns})
if m < rows and column < n:
    c_out[m * c_row + column * c_column] = {rounded}"""

    def kernel(self, body: str, shared: int) -> Handwritten:
        """Make the kernel with the lines ``body``.

        ``shared`` is the number of bytes of dynamic shared memory of a block.
        """
        what = "c = a @ b.T" if self.transposed else "c = a @ b"
        return Handwritten(
            "skinny",
            body,
            self.threads,
            f"{what}, where a has up to {self.rows} rows: b is read once.",
            "a product of few rows, which takes as long as its matrix takes to read",
            shared=shared,
            blocks_per_multiprocessor=1,
            cluster=self.cluster,
        )


def lane_loop(count: int) -> str:
    """Return lines that open a warp's loop over ``at`` from 0 to ``count - 1``.

    A lane has every 32nd index. ``count`` is a multiple of 32, or below 32. The loop's
    body has to be indented once.
    """
    if count < WARP:
        return f"if lane < {count}:\n    at = lane"
    return (
        f"for iteration in unrolled({count // WARP}):\n"
        f"    at = iteration * {WARP} + lane"
    )
