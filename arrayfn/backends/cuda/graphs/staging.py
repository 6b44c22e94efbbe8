"""Staging buffers: one graph for calls whose arrays are at other addresses each time.

A graph has fixed addresses. If a call's arrays are small, compared with the work of the
graph, one graph is captured on staging buffers of its own. Its first kernel copies the
arguments there, and its last one copies the results to the call's arrays. Only the
parameters of these two kernel nodes are updated before each launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from arrayfn.backends.cuda import runner
from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.graphs.kernels import COPY_UNIT, copy_parts_ptx, loaded
from arrayfn.backends.cuda.graphs.replay import CapturedGraph, KernelNodeParams
from arrayfn.backends.cuda.runner import Plan, StepKind
from arrayfn.ir import ArrayType
from arrayfn.lowering.plan import BufferAllocation

_MAX_BYTES: Final = 16 << 20
"""Bytes of arguments and results at most."""
_MAX_BYTES_OF_MEMBERS: Final = 64 << 20
"""The same for a plan with collectives.

Threads take some 100 us to launch it directly, three times as long as these copies.
"""
_MAX_TEMPORARY: Final = 32 << 20
"""Bytes of temporaries at most, which the graph keeps allocated."""
_MAX_BUFFERS: Final = 64
"""Arguments, or results, at most."""
_THREADS: Final = 256
_BLOCK_BYTES: Final = 4 * COPY_UNIT * _THREADS
_MAX_BLOCKS: Final = 264
"""Blocks that copy one buffer at most."""


@dataclass(frozen=True)
class StagedBuffer:
    """An argument or a result of a plan, which has a staging buffer.

    ``buffer`` is the number of its buffer in the plan. It shares the staging buffer of
    the buffer ``root``: itself, or the donated argument that the result overwrites.
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
    """The arguments and results of a plan that are staged; None if it should not be.

    That is so if too much would be copied, or if the first element of an argument is
    not at its lowest address. ``inputs`` and ``outputs`` are numbers of ``buffers``,
    ``types`` those of the inputs, and ``arena`` the bytes of temporaries.
    """
    arguments = [StagedBuffer(b, buffers[b].nbytes, b) for b in inputs]
    results = []
    for number in outputs:
        donor = buffers[number].donor
        root = number if donor is None else inputs[donor]
        results.append(StagedBuffer(number, buffers[number].nbytes, root))
    most = _MAX_BYTES_OF_MEMBERS if has_collectives else _MAX_BYTES
    nbytes = sum(staged.nbytes for staged in (*arguments, *results))
    fits = (
        nbytes <= most
        and arena <= _MAX_TEMPORARY
        and max(len(arguments), len(results)) <= _MAX_BUFFERS
        and all(type.span()[0] == 0 for type in types)
    )
    return (arguments, results) if fits else None


class Staging:
    """The staging buffers of a plan's graph, which ``capture`` allocates."""

    def __init__(
        self,
        arguments: Sequence[StagedBuffer],
        results: Sequence[StagedBuffer],
        arena: int,
    ) -> None:
        """``arena`` is the size of the temporaries in bytes."""
        self._arguments = arguments
        self._results = results
        self._arena = arena
        self._kept: list[object] = []

    def capture(
        self, addresses: Any, plan: Plan, enqueue: Callable[[Any, int], None]
    ) -> Plan:
        """Make a variant of ``plan`` that launches a graph on staging buffers.

        ``enqueue(addresses, stream)`` enqueues the plan's work. It is given
        ``addresses`` with those of arguments, results and temporaries replaced by
        staging buffers.
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
        return plan.variant(graph.launch(updates), slots, self)

    def _allocate(self, addresses: Any) -> Any:
        """Allocate the staging buffers; return the addresses of all buffers."""
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
        """Make the kernel that copies ``buffers`` to staging, or from it.

        ``staged`` has the addresses of their staging buffers, by number. The slots for
        a call's own addresses are appended to ``slots``.
        """
        table = np.zeros((max(1, len(buffers)), 3), np.int64)
        target, source, nbytes = range(3)
        here, there = (target, source) if to_staging else (source, target)
        for row, b in zip(table, buffers, strict=False):
            row[nbytes] = b.nbytes
            row[here] = staged[b.buffer]
            slots.append((row[there:].ctypes.data, b.buffer, 0))
        most = max((b.nbytes for b in buffers), default=0)
        each = np.array([min(_MAX_BLOCKS, max(1, most // _BLOCK_BYTES))], np.int32)
        parameters = np.array([table.ctypes.data, each.ctypes.data], np.int64)
        self._kept += [table, each, parameters]
        blocks = len(table) * int(each[0])
        kernel = loaded(copy_parts_ptx(len(table)), "copy_parts").function
        shape = blocks, _THREADS, parameters.ctypes.data
        return KernelNodeParams.of(runner.Kernel(StepKind.KERNEL, kernel, *shape))
