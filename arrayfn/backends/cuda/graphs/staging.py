"""Staging buffers: one graph for calls whose arrays are at other addresses each time.

A graph has fixed addresses. If a call's arrays are small, compared with the work of the
graph, one graph is captured on staging buffers of its own. Its first kernel copies the
arguments there, and its last one copies the results to the call's arrays. Only the
parameters of these two kernel nodes are updated before each launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from arrayfn.backends.cuda import runner
from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.graphs.kernels import COPY_UNIT, copy_parts_ptx, loaded
from arrayfn.backends.cuda.graphs.replay import CapturedGraph, KernelNodeParams
from arrayfn.backends.cuda.runner import Plan, StepKind
from arrayfn.ir import ArrayType
from arrayfn.lowering.plan import BufferAllocation
from arrayfn.records import frozen

_MAX_BYTES: Final = 16 << 20
"""Most bytes of arguments and results together."""
_MAX_BYTES_OF_MEMBERS: Final = 64 << 20
"""Most bytes of arguments and results of a plan with collectives.

Threads take some 100 us to launch such a plan directly, three times as long as copies
of so many bytes take.
"""
_MAX_TEMPORARY: Final = 32 << 20
"""Most bytes of temporaries, which the graph keeps allocated."""
_MAX_BUFFERS: Final = 64
"""Most arguments, and most results."""
_THREADS: Final = 256  # of a block of the copying kernel
_BLOCK_BYTES: Final = 4 * COPY_UNIT * _THREADS  # that a block copies
_MAX_BLOCKS: Final = 264
"""Most blocks that copy one buffer."""


@frozen
class StagedBuffer:
    """An argument or a result of a plan, which has a staging buffer.

    ``buffer`` is the number of its buffer in the plan. ``root`` is the number of the
    buffer whose staging buffer it uses: its own, or that of the donated argument that
    the result overwrites.
    """

    buffer: int
    nbytes: int
    root: int


def staged_buffers(
    types: Sequence[ArrayType],
    inputs: Sequence[int],
    outputs: Sequence[int],
    buffers: Sequence[BufferAllocation],
    arena: int,
    *,
    has_collectives: bool = False,
) -> tuple[list[StagedBuffer], list[StagedBuffer]] | None:
    """Return a plan's (arguments, results) for staging; None if it does not pay.

    It does not if too much would be copied, or if the first element of an argument is
    not at its lowest address. ``inputs`` and ``outputs`` are numbers of ``buffers``,
    ``types`` are the inputs' types, and ``arena`` is the bytes of temporaries. A plan
    that ``has_collectives`` may copy more.
    """
    arguments = [StagedBuffer(b, buffers[b].nbytes, root=b) for b in inputs]
    results = []
    for number in outputs:
        donor = buffers[number].donor
        root = number if donor is None else inputs[donor]
        results.append(StagedBuffer(number, buffers[number].nbytes, root))
    max_bytes = _MAX_BYTES_OF_MEMBERS if has_collectives else _MAX_BYTES
    nbytes = sum(staged.nbytes for staged in (*arguments, *results))
    fits = (
        nbytes <= max_bytes
        and arena <= _MAX_TEMPORARY
        and max(len(arguments), len(results)) <= _MAX_BUFFERS
        and all(type.span()[0] == 0 for type in types)
    )
    return (arguments, results) if fits else None


class Staging:
    """Captures a plan as a graph on staging buffers, and owns these buffers."""

    def __init__(
        self,
        arguments: Sequence[StagedBuffer],
        results: Sequence[StagedBuffer],
        arena: int,
    ) -> None:
        """Prepare without allocating; ``arena`` is the size of temporaries in bytes."""
        self._arguments = arguments
        self._results = results
        self._arena = arena
        self._kept: list[object] = []  # memory that captured graphs point to

    def capture(
        self, addresses: Any, plan: Plan, enqueue: Callable[[Any, int], None]
    ) -> Plan:
        """Make a variant of ``plan`` that launches a graph on staging buffers.

        ``enqueue(addresses, stream)`` enqueues the plan's work on a stream. The graph
        copies the call's arguments to staging buffers, does this work, and copies the
        results from staging buffers. Before each launch, the variant updates the
        parameters of the two copying kernels.
        """
        staged = self._allocate(addresses)
        slots: list[tuple[int, int, int]] = []
        copy_in = self._copy(self._arguments, staged, slots, to_staging=True)
        copy_out = self._copy(self._results, staged, slots, to_staging=False)
        nodes: list[int] = []

        def enqueue_all(stream: int) -> None:
            """Enqueue copies to staging, the plan on it, and copies from it."""
            nodes.append(copy_in.capture(stream))
            enqueue(staged, stream)
            nodes.append(copy_out.capture(stream))

        graph = CapturedGraph(device().capture(enqueue_all), plan.code)
        self._kept += [graph, copy_in, copy_out]
        updates = list(zip(nodes, (copy_in, copy_out), strict=True))
        return plan.variant(graph.launch(updates), slots, kept=self)

    def _allocate(self, addresses: Any) -> Any:
        """Allocate staging buffers and memory for temporaries.

        Returns a copy of ``addresses`` that has their addresses. The temporaries' is
        the last one. Buffers with the same ``root`` share a staging buffer.
        """
        gpu = device()
        buffers = *self._arguments, *self._results
        staged = type(addresses)(*addresses)
        for root, nbytes in {b.root: b.nbytes for b in buffers}.items():
            staged[root], owner = gpu.block(nbytes)
            self._kept.append(owner)
        for b in buffers:
            staged[b.buffer] = staged[b.root]
        if self._arena:
            staged[len(staged) - 1], owner = gpu.block(self._arena)
            self._kept.append(owner)
        return staged

    def _copy(
        self,
        buffers: Sequence[StagedBuffer],
        staged: Any,
        slots: list[tuple[int, int, int]],
        *,
        to_staging: bool,
    ) -> KernelNodeParams:
        """Make the node of the kernel that copies ``buffers`` to or from staging.

        ``staged`` has the addresses of the staging buffers, by buffer number. The
        kernel's argument is a table of (target, source, bytes). The addresses of a
        call's own buffers in it are written before each launch: their slots, as
        (address, buffer, offset), are appended to ``slots``.
        """
        # An empty row, if there are no buffers: the kernel then copies nothing.
        table = np.zeros((max(1, len(buffers)), 3), np.int64)
        target, source, nbytes = range(3)  # columns of the table
        staging, own = (target, source) if to_staging else (source, target)
        for row, b in zip(table, buffers, strict=False):
            row[nbytes] = b.nbytes
            row[staging] = staged[b.buffer]
            own_address = row[own:].ctypes.data  # where in the table it is written
            slots.append((own_address, b.buffer, 0))
        largest = max((b.nbytes for b in buffers), default=0)
        blocks_per_buffer = np.array(
            [min(_MAX_BLOCKS, max(1, largest // _BLOCK_BYTES))], np.int32
        )
        parameters = np.array(
            [table.ctypes.data, blocks_per_buffer.ctypes.data], np.int64
        )
        self._kept += [table, blocks_per_buffer, parameters]
        blocks = len(table) * int(blocks_per_buffer[0])
        kernel = loaded(copy_parts_ptx(len(table)), "copy_parts").function
        shape = blocks, _THREADS, parameters.ctypes.data
        return KernelNodeParams.of(runner.Kernel(StepKind.KERNEL, kernel, *shape))
