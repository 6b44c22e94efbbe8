"""What the kernels of skinny products share: how they are tiled, and how they end.

``c[m, n] = a[m, k] @ b`` with few rows of ``a`` takes as long as ``b`` takes to read.
Parts of ``a`` are copied to shared memory some steps before they are multiplied. The
blocks of a cluster have parts of what is summed over: each adds up what all of them
have for a share of the results.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from arrayfn.lowering.cuda.handwritten import Handwritten, indented
from arrayfn.lowering.cuda.vocabulary import WARP


@dataclass(frozen=True, slots=True)
class SkinnyTile(ABC):
    """The tile of a kernel for up to ``rows`` rows.

    A block has ``warps``, each with ``stages`` steps of copies under way. Blocks of a
    ``cluster`` have the same columns and split ``k``. Results are ``rounded`` to this
    dtype, if it is one. ``transposed`` says that the matrix is contiguous along ``k``.
    """

    itemsize: ClassVar[int]  # of what is multiplied

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
        """How much of ``k`` a warp takes at a time."""

    @property
    @abstractmethod
    def stage(self) -> int:
        """Elements of shared memory for one step of a warp."""

    @property
    def step(self) -> int:
        """How much of ``k`` all warps take at a time."""
        return self.warps * self.depth

    @property
    def stage_bytes(self) -> int:
        """Bytes of shared memory for one step of all warps."""
        return self.itemsize * self.warps * self.stage

    @property
    def ring(self) -> int:
        """Elements of shared memory for all steps under way."""
        return self.stages * self.warps * self.stage

    @property
    def accumulators(self) -> int:
        """Accumulators per tile: those of a warp, which all warps of a block add up."""
        return self.rows * self.columns

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * WARP

    @property
    def share(self) -> int:
        """The results of a block of a cluster."""
        return self.accumulators // self.cluster

    def part(self, k: int) -> int:
        """How much of ``k`` a block sums over."""
        return -(-k // (self.cluster * self.step)) * self.step

    def blocks(self, n: int) -> int:
        """For ``n`` columns."""
        return -(-n // self.columns) * self.cluster

    @property
    def begin(self) -> str:
        """Lines that say which part of the product a block has."""
        part = f"""
thread = thread_index()
lane = remainder(thread, {WARP})
warp = quotient(thread, {WARP})
rank = remainder(block_index(), {self.cluster})
strip = quotient(block_index(), {self.cluster}) * {self.columns}
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

    def pipelined(self, fetched: str, multiplied: str) -> str:
        """Lines for the software pipeline of a warp, in its own shared memory.

        ``fetched`` begins to copy what belongs to the step ``begin`` to ``place``, and
        ``multiplied`` finds it there some steps later.
        """
        stages, stage = self.stages, self.stage
        return f"""from_step = first + warp * {self.depth}
for slot in range({stages - 1}):
    place = (warp * {stages} + slot) * {stage}
    begin = from_step + slot * {self.step}
{indented(fetched, 1)}
slot = i64(0)
for now in range(from_step, end, {self.step}):
    cp_async_wait({stages - 2})
    warp_barrier()
    place = (warp * {stages} + remainder(slot + {stages - 1}, {stages})) * {stage}
    begin = now + {(stages - 1) * self.step}
{indented(fetched, 1)}
    place = (warp * {stages} + slot) * {stage}
{indented(multiplied, 1)}
    slot = remainder(slot + 1, {stages})
cp_async_wait(0)"""

    def added_up(self, held: str) -> str:
        """Adds up the sums of all warps, in their order, and those of the cluster."""
        joined = "cluster_wait()\n" if self.cluster > 1 else ""
        return f"""{joined}barrier()
for number in range(thread, {self.accumulators}, {self.threads}):
    sum = {held}[number]
    for other in range(1, {self.warps}):
        sum = sum + {held}[other * {self.accumulators} + number]
{indented(self._given, 1)}{self._end}"""

    @property
    def _given(self) -> str:
        """Gives ``sum``, the result ``number`` of the block's, to who adds it up."""
        if self.cluster == 1:
            return self._stored
        return f"""owner = quotient(number, {self.share})
target = rank * {self.share} + remainder(number, {self.share})
dsmem_store_f32(received, target, sum, owner, mbarriers, 0)"""

    @property
    def _end(self) -> str:
        """Adds up what the blocks have sent, and writes it."""
        if self.cluster == 1:
            return ""
        return f"""
mbarrier_wait(mbarriers, 0, 0)
for at in range(thread, {self.share}, {self.threads}):
    sum = received[at]
    for other in range(1, {self.cluster}):
        sum = sum + received[other * {self.share} + at]
    number = rank * {self.share} + at
{indented(self._stored, 1)}
"""

    @property
    def _stored(self) -> str:
        rounded = f"convert_f32_{self.rounded}(sum)" if self.rounded else "sum"
        return f"""m = quotient(number, {self.columns})
column = strip + remainder(number, {self.columns})
if m < rows and column < n:
    c_out[m * c_row + column * c_column] = {rounded}"""

    def written(self, body: str, shared: int) -> Handwritten:
        """The kernel of this text, for so many bytes of shared memory."""
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


def all_lanes(count: int) -> str:
    """Begins what the lanes of a warp do ``count`` times in all, each for an ``at``."""
    if count < WARP:
        return f"if lane < {count}:\n    at = lane"
    return (
        f"for iteration in unrolled({count // WARP}):\n"
        f"    at = iteration * {WARP} + lane"
    )
