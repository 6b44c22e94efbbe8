"""Captures steps into a graph so that each depends only on those it has to wait for.

Steps that are captured from one stream would run one after the other.
``ConcurrentCapture`` sets the dependencies of each step instead: the step waits only
for earlier steps that access the same memory (``Hazards``), so small independent
kernels run concurrently.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Final

from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.plan_nodes import Access

MAX_STEPS: Final = 64
"""Most steps that are compared with each other."""
SET_DEPENDENCIES: Final = 1  # CU_STREAM_SET_CAPTURE_DEPENDENCIES


def capture_info(stream: int) -> tuple[int, list[int]]:
    """Return the graph that ``stream`` is captured into, and its current dependencies.

    The graph is a CUgraph. The dependencies are nodes of the graph (CUgraphNode), on
    which the node that is captured next will depend.
    """
    gpu = device()
    state, number = ctypes.c_int(), ctypes.c_uint64()
    graph, nodes = ctypes.c_void_p(), ctypes.POINTER(ctypes.c_void_p)()
    edges, count = ctypes.c_void_p(), ctypes.c_size_t()
    status = gpu.library.cuStreamGetCaptureInfo_v3(
        ctypes.c_void_p(stream),
        ctypes.byref(state),
        ctypes.byref(number),
        ctypes.byref(graph),
        ctypes.byref(nodes),
        ctypes.byref(edges),
        ctypes.byref(count),
    )
    gpu.check(status, "in a capture")
    return int(graph.value or 0), [int(nodes[k] or 0) for k in range(count.value)]


def set_dependencies(stream: int, nodes: Sequence[int]) -> None:
    """Let the node that ``stream`` captures next depend on ``nodes`` only."""
    gpu = device()
    status = gpu.library.cuStreamUpdateCaptureDependencies_v2(
        ctypes.c_void_p(stream),
        (ctypes.c_void_p * max(1, len(nodes)))(*nodes),
        None,  # edge data: ordinary dependencies
        ctypes.c_size_t(len(nodes)),
        SET_DEPENDENCIES,
    )
    gpu.check(status, "in a capture")


class Hazards:
    """Finds the earlier steps that each new step depends on, by their accesses."""

    def __init__(self) -> None:
        self._accesses: list[Sequence[Access]] = []
        # For each step, the earlier steps that end before it begins: bit k is step k.
        self._before: list[int] = []

    def __len__(self) -> int:
        return len(self._accesses)

    def add(self, accesses: Sequence[Access]) -> list[int]:
        """Add a step; return the numbers of the earlier steps that it depends on.

        Dependencies that follow from others are left out. ``accesses`` is the step's
        memory.

        >>> hazards = Hazards()
        >>> steps = [(0, 8, True)], [(8, 16, True)], [(4, 12, False)]
        >>> [hazards.add(accesses) for accesses in steps]
        [[], [], [1, 0]]
        """
        dependencies: list[int] = []
        before = 0
        for k in range(len(self._accesses) - 1, -1, -1):
            is_implied = before >> k & 1
            if not is_implied and conflict(self._accesses[k], accesses):
                dependencies.append(k)
                before |= 1 << k | self._before[k]
        self._accesses.append(accesses)
        self._before.append(before)
        return dependencies


def conflict(first: Sequence[Access], second: Sequence[Access]) -> bool:
    """Whether two steps access the same memory, and one of them writes it."""
    return any(
        (wrote or writes) and begin < stop and start < end
        for begin, end, wrote in first
        for start, stop, writes in second
    )


class ConcurrentCapture:
    """Captures steps of ``stream``, each after the steps that it depends on.

    ``join`` ends the concurrent steps: what is captured next waits for all of them.
    """

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self.restart()

    def restart(self) -> None:
        """Let all further steps depend on the stream's present dependencies.

        After ``join`` these are all steps captured so far.
        """
        _, self._begin = capture_info(self._stream)
        self._hazards = Hazards()
        self._ends: list[list[int]] = []  # for each step, its last nodes
        self._leaves = {*self._begin}  # the nodes that no node depends on yet

    def add(self, accesses: Sequence[Access], enqueue: Callable[[], None]) -> None:
        """Capture a step, which ``enqueue()`` enqueues on the stream.

        ``accesses`` is the memory that the step accesses. In the graph it waits for
        earlier steps that access the same memory, if one of the two writes the memory.
        A step that waits for none depends on what was captured before ``restart``.
        After ``MAX_STEPS`` steps, all further steps wait for these.
        """
        if len(self._hazards) == MAX_STEPS:
            self.join()
            self.restart()
        earlier = self._hazards.add(accesses)
        dependencies = [n for k in earlier for n in self._ends[k]] or self._begin
        set_dependencies(self._stream, dependencies)
        enqueue()
        _, ends = capture_info(self._stream)
        self._ends.append(ends)
        self._leaves.difference_update(dependencies)
        self._leaves.update(ends)

    def join(self) -> None:
        """Let the node that is captured next depend on all steps."""
        set_dependencies(self._stream, sorted(self._leaves))


def launch_kernel(
    stream: int, function: int, blocks: int, threads: int, parameters: int
) -> None:
    """Launch a kernel on ``stream``, which is being captured.

    ``function`` is a CUfunction. The grid has ``blocks`` blocks of ``threads`` threads,
    without dynamic shared memory. ``parameters`` is the address of an array of
    pointers, one to each argument.
    """
    gpu = device()
    status = gpu.library.cuLaunchKernel(
        ctypes.c_void_p(function),
        *(blocks, 1, 1, threads, 1, 1, 0),
        ctypes.c_void_p(stream),
        ctypes.c_void_p(parameters),
        None,
    )
    gpu.check(status, "in a capture")
