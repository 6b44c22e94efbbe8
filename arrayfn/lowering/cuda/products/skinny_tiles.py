"""What the kernels of skinny products share: tiling, software pipeline and reduction.

``c[m, n] = a[m, k] @ b`` with few rows of ``a`` takes as long as ``b`` takes to read.
Tiles are copied to shared memory some stages before they are multiplied. The blocks of
a cluster split k (split-K): each adds the sums of all blocks for a share of the
results.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from arrayfn.lowering.cuda.handwritten import Handwritten, indented
from arrayfn.lowering.cuda.vocabulary import WARP


@dataclass(frozen=True, slots=True)
class SkinnyTile(ABC):
    """The tile of a skinny product's kernel, and the lines that all of them have.

    The lines share these names: ``thread``, ``lane``, ``warp``; ``rank``, the block's
    number in its cluster; ``first_column`` of the block; ``first`` and ``end``, the
    block's part of k; ``begin``, where a tile begins in k, and ``place`` in shared
    memory. Parameters are ``a_in``, ``b_in``, ``c_out`` and integers.

    Args:
        rows: The most rows of ``a``.
        warps: Warps of a block, which split k.
        stages: Copies of tiles that a warp has under way.
        cluster: Blocks that have the same columns and split k.
        rounded: The dtype that results are rounded to, or empty for float32.
        transposed: The matrix is contiguous along k.
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
    def stage(self) -> int:
        """Elements of shared memory for one stage of a warp."""

    @property
    def step(self) -> int:
        """The extent along k of the tiles of all warps."""
        return self.warps * self.depth

    @property
    def stage_bytes(self) -> int:
        """Bytes of shared memory for one stage of all warps."""
        return self.itemsize * self.warps * self.stage

    @property
    def ring(self) -> int:
        """Elements of shared memory for all stages of all warps."""
        return self.stages * self.warps * self.stage

    @property
    def accumulators(self) -> int:
        """Sums of a block; each warp has as many partial sums."""
        return self.rows * self.columns

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * WARP

    @property
    def share(self) -> int:
        """How many results a block of a cluster adds up and stores."""
        return self.accumulators // self.cluster

    def part(self, k: int) -> int:
        """The extent along k of a block's part, a multiple of ``step``.

        ``k`` is the whole extent.
        """
        return -(-k // (self.cluster * self.step)) * self.step

    def blocks(self, n: int) -> int:
        """Blocks of a launch for ``n`` columns."""
        return -(-n // self.columns) * self.cluster

    @property
    def begin(self) -> str:
        """Lines that define the block's part of the product.

        In a cluster they initialize the mbarrier of the blocks' exchange and arrive at
        the cluster's barrier, which ``reduction`` waits for.
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
        """Lines of a warp's software pipeline over tiles of k.

        The lines ``copies`` begin to copy the tiles from ``begin`` on to ``place``; the
        lines ``multiply`` find them there some stages later.
        """
        stages, stage = self.stages, self.stage
        return f"""from_step = first + warp * {self.depth}
for slot in range({stages - 1}):
    place = (warp * {stages} + slot) * {stage}
    begin = from_step + slot * {self.step}
{indented(copies, 1)}
slot = i64(0)
for now in range(from_step, end, {self.step}):
    cp_async_wait({stages - 2})
    warp_barrier()
    place = (warp * {stages} + remainder(slot + {stages - 1}, {stages})) * {stage}
    begin = now + {(stages - 1) * self.step}
{indented(copies, 1)}
    place = (warp * {stages} + slot) * {stage}
{indented(multiply, 1)}
    slot = remainder(slot + 1, {stages})
cp_async_wait(0)"""

    def reduction(self, sums: str) -> str:
        """Lines that add the warps' sums in order, then the cluster's, and store them.

        ``sums`` names the shared array of the sums, [warp, row, column].
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
        """Lines that send ``sum``, result ``number``, to its block, or store it."""
        if self.cluster == 1:
            return self._store
        return f"""owner = quotient(number, {self.share})
target = rank * {self.share} + remainder(number, {self.share})
dsmem_store_f32(received, target, sum, owner, mbarriers, 0)"""

    @property
    def _cluster_sum(self) -> str:
        """Lines that add and store the sums that the cluster's blocks have sent."""
        if self.cluster == 1:
            return ""
        return f"""
mbarrier_wait(mbarriers, 0, 0)
for at in range(thread, {self.share}, {self.threads}):
    sum = received[at]
    for other in range(1, {self.cluster}):
        sum = sum + received[other * {self.share} + at]
    number = rank * {self.share} + at
{indented(self._store, 1)}
"""

    @property
    def _store(self) -> str:
        """Lines that store ``sum`` as result ``number``, if there is such a one."""
        rounded = f"convert_f32_{self.rounded}(sum)" if self.rounded else "sum"
        return f"""m = quotient(number, {self.columns})
column = first_column + remainder(number, {self.columns})
if m < rows and column < n:
    c_out[m * c_row + column * c_column] = {rounded}"""

    def kernel(self, body: str, shared: int) -> Handwritten:
        """The kernel with the lines ``body``.

        ``shared`` are the bytes of dynamic shared memory of a block.
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
    """The line that opens a loop of a warp's lanes over ``at`` from 0 to ``count``.

    ``count`` is below 32 or a multiple of it; the loop's body is indented once.
    """
    if count < WARP:
        return f"if lane < {count}:\n    at = lane"
    return (
        f"for iteration in unrolled({count // WARP}):\n"
        f"    at = iteration * {WARP} + lane"
    )
