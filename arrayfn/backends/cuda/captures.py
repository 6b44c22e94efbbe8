"""What a stream captures, as a graph: which nodes it goes on from, and from which next.

Steps captured one after the other would run one after the other. ``Order`` says which
earlier steps a step has to wait for: those that write what it reads or writes, or read
what it writes. ``SideBySide`` captures steps in that order and no other, so that small
kernels that do not need each other share the GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Final

from arrayfn.backends.cuda.driver import device

SET_DEPENDENCIES: Final = 1  # CU_STREAM_SET_CAPTURE_DEPENDENCIES
MOST_STEPS: Final = 64  # that are compared with each other

Access = tuple[int, int, bool]
"""Memory that a step touches: from an address to another, and whether it writes it."""


class Order:
    """Which of the steps so far a new one has to wait for."""

    def __init__(self) -> None:
        self._accesses: list[Sequence[Access]] = []
        self._before: list[int] = []  # bit sets of the steps that end before each

    def __len__(self) -> int:
        return len(self._accesses)

    def add(self, accesses: Sequence[Access]) -> list[int]:
        """Add a step: the numbers of those that it waits for, without any that they do.

        >>> order = Order()
        >>> [order.add(a) for a in ([(0, 8, True)], [(8, 16, True)], [(4, 12, False)])]
        [[], [], [1, 0]]
        """
        found: list[int] = []
        before = 0
        for k in range(len(self._accesses) - 1, -1, -1):
            if not before >> k & 1 and _meet(self._accesses[k], accesses):
                found.append(k)
                before |= 1 << k | self._before[k]
        self._accesses.append(accesses)
        self._before.append(before)
        return found


def _meet(first: Sequence[Access], second: Sequence[Access]) -> bool:
    """Whether two steps touch the same memory, and one of them writes there."""
    return any(
        (wrote or writes) and begin < stop and start < end
        for begin, end, wrote in first
        for start, stop, writes in second
    )


class SideBySide:
    """Captures the steps of one ``stream``, each after those that it needs."""

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self.restart()

    def restart(self) -> None:
        """Have all further steps come after what was captured so far."""
        _, self._begin = captured(self._stream)
        self._order = Order()
        self._ends: list[list[int]] = []
        self._last = {*self._begin}  # the nodes that no step comes after yet

    def add(self, accesses: Sequence[Access], step: Callable[[], None]) -> None:
        """Capture what ``step`` enqueues, which touches this memory."""
        if len(self._order) == MOST_STEPS:
            self.join()
            self.restart()
        needed = [node for k in self._order.add(accesses) for node in self._ends[k]]
        after = needed or self._begin
        go_on_from(self._stream, after)
        step()
        _, ends = captured(self._stream)
        self._ends.append(ends)
        self._last.difference_update(after)
        self._last.update(ends)

    def join(self) -> None:
        """Have what is captured next come after all steps."""
        go_on_from(self._stream, sorted(self._last))


def captured(stream: int) -> tuple[int, list[int]]:
    """The graph that ``stream`` is captured into; the nodes that it goes on from."""
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


def go_on_from(stream: int, nodes: Sequence[int]) -> None:
    """Have what ``stream`` captures next come after ``nodes``, and nothing else."""
    gpu = device()
    status = gpu.library.cuStreamUpdateCaptureDependencies_v2(
        ctypes.c_void_p(stream),
        (ctypes.c_void_p * max(1, len(nodes)))(*nodes),
        None,
        ctypes.c_size_t(len(nodes)),
        SET_DEPENDENCIES,
    )
    gpu.check(status, "in a capture")
