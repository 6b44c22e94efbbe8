"""Chooses the steps of a plan that are composed into one persistent kernel.

All kernels of such steps are scheduled for blocks of ``THREADS`` threads. A persistent
kernel ends before a library call, and before a step so large that a launch costs little
in comparison.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from arrayfn.lowering.cuda.schedule import (
    Columns,
    Elementwise,
    Pipeline,
    Rows,
    Scan,
    Schedule,
    Transpose,
    power_of_two,
)
from arrayfn.lowering.cuda.vocabulary import SHARED_LINE, WARP
from arrayfn.lowering.kernel_ir import Nest
from arrayfn.lowering.plan import Kernel, LibraryKernel
from arrayfn.lowering.steps import BranchStep, CallStep, LoopStep, NestStep, PlanStep

THREADS: Final = 256
"""Threads of a block, in persistent kernels and in those composed into them."""
MAX_BYTES: Final = 8 << 20
"""Bytes that a step may access. With more, its time exceeds a launch's by far."""
MAX_POINTERS: Final = 400
"""Most pointer parameters of a persistent kernel."""
MAX_SHARED: Final = 48 << 10
"""Bytes of static shared memory of all device functions of a persistent kernel."""
_MAX_TILES: Final = 16
"""Most vectors of a row that a thread may have."""
_SHARED: Final = re.compile(r"shared_([a-z]+)(\d*)\((\d+)\)")
"""A declaration such as ``shared_f32(8)``: kind, bits and count of the elements."""

Kernels = Mapping[str, Kernel | LibraryKernel]


def with_block_size(schedule: Schedule, nest: Nest) -> Schedule | None:
    """Change ``schedule`` to blocks of ``THREADS``; None if that is impossible.

    Pipelines cannot be changed, nor nests that run columns in order.
    """
    if isinstance(schedule, Elementwise):
        return replace(schedule, threads=THREADS)
    if isinstance(schedule, Scan):
        # A block has whole rows: there are no clusters, nor parts of rows.
        is_warp = schedule.threads_per_row <= WARP
        threads_per_row = schedule.threads_per_row if is_warp else THREADS
        return Scan(
            threads=THREADS,
            threads_per_row=threads_per_row,
            lanes=schedule.lanes,
            tiles=schedule.tiles,
        )
    if isinstance(schedule, (Rows, Columns)):
        if isinstance(schedule, Pipeline):
            return None
        if isinstance(schedule, Rows) and schedule.threads_per_row <= WARP:
            return replace(schedule, threads=THREADS)
        if isinstance(schedule, Columns) and nest.is_in_order:
            return None  # one thread goes through a column
        return _with_block_rows(schedule)
    assert isinstance(schedule, Transpose)
    return schedule if schedule.threads == THREADS else None


def _with_block_rows(schedule: Rows | Columns) -> Rows | Columns | None:
    """Give each block of ``THREADS`` threads one row, or 32 columns.

    A row in registers stays there: each thread has more or fewer vectors of it. Returns
    None if a thread would have too many.
    """
    is_columns = isinstance(schedule, Columns)
    threads_per_row = THREADS // WARP if is_columns else THREADS
    tiles = schedule.tiles
    if schedule.register_resident:
        tiles = power_of_two(-(-tiles * schedule.threads_per_row // threads_per_row))
    if tiles > (2 * _MAX_TILES if is_columns else _MAX_TILES):
        return None
    if isinstance(schedule, Columns):
        return replace(schedule, threads_per_row=threads_per_row, tiles=tiles)
    return Rows(
        threads=THREADS,
        threads_per_row=THREADS,
        lanes=schedule.lanes,
        tiles=tiles,
        register_resident=schedule.register_resident,
    )


def estimate_launches(steps: Iterable[PlanStep]) -> float:
    """Estimate how many launches ``steps`` take, with all iterations of their loops.

    A loop counts as two iterations at least, also if their number is unknown. So a loop
    of a single launch reaches the two launches from which on a persistent kernel is
    made.
    """
    total = 0.0
    for step in steps:
        if isinstance(step, CallStep):
            total += 1
        elif isinstance(step, LoopStep):
            total += max(2, step.count or 2) * estimate_launches(step.body)
        elif isinstance(step, BranchStep):
            total += 1 + max(map(estimate_launches, step.branches), default=0)
    return total


def can_join(step: PlanStep, kernels: Kernels) -> bool:
    """Return whether ``step`` can be part of a persistent kernel, and is small.

    A loop or branch can if all of its steps can. ``kernels`` has the kernels that the
    step calls, by name.
    """
    if isinstance(step, CallStep):
        nbytes = sum(var.type.nbytes for var in step.arrays())
        return nbytes <= MAX_BYTES and _can_be_device_function(kernels[step.kernel])
    inner = _inner_steps(step)
    return not isinstance(step, NestStep) and all(can_join(s, kernels) for s in inner)


def _inner_steps(step: PlanStep) -> list[PlanStep]:
    """Return the steps of a loop's body, or of all branches of a branch.

    A step of another kind has none.
    """
    if isinstance(step, LoopStep):
        return step.body
    branches = step.branches if isinstance(step, BranchStep) else ()
    return [inner for branch in branches for inner in branch]


def _can_be_device_function(kernel: Kernel | LibraryKernel) -> bool:
    """Return whether the text of ``kernel`` can be a device function of another.

    The kernel must have blocks of ``THREADS`` without clusters and dynamic shared
    memory, or one thread.
    """
    if not isinstance(kernel, Kernel):
        return False
    has_one_thread = kernel.threads == 1 and "block_index" not in kernel.source
    is_plain = kernel.threads == THREADS and kernel.cluster == 1 and not kernel.shared
    return has_one_thread or (is_plain and not kernel.cooperative)


def shared_bytes(kernel: Kernel) -> int:
    """Return the bytes of static shared memory that the text of ``kernel`` allocates.

    Each array takes up whole lines.
    """
    # Matches have the letters and the bits of the dtype, and the number of elements.
    # The dtype ``bool`` has no bits in its name: it takes a byte.
    sizes = (
        int(count) * (int(bits or 8) // 8)
        for _, bits, count in _SHARED.findall(kernel.key)
    )
    return sum(-(-size // SHARED_LINE) * SHARED_LINE for size in sizes)


def calls_of(steps: Iterable[PlanStep]) -> list[CallStep]:
    """Return the calls among ``steps``, and in their loops and branches."""
    calls: list[CallStep] = []
    for step in steps:
        calls += [step] if isinstance(step, CallStep) else calls_of(_inner_steps(step))
    return calls


def fits_limits(steps: Sequence[PlanStep], kernels: Kernels) -> bool:
    """Whether one kernel of ``steps`` keeps the limits for pointers and shared memory.

    ``kernels`` has the kernels that they call, by name.
    """
    calls = calls_of(steps)
    names = {call.kernel for call in calls}
    shared = sum(
        shared_bytes(k)
        for k in map(kernels.__getitem__, names)
        if isinstance(k, Kernel)
    )
    pointers = {pointer for call in calls for pointer in call.pointers}
    return shared <= MAX_SHARED and len(pointers) <= MAX_POINTERS
