"""Graphs of repeated runs, by the addresses of the buffers that they touch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from arrayfn.backends.cuda.driver import device

_MOST_GRAPHS: Final = 64
_MOST_SEEN: Final = 256


class Graphs:
    """Graphs of what ``enqueue`` puts into the stream that it is given.

    Memory that is freed is soon allocated again, so a program that repeats its calls
    repeats their addresses. Addresses seen twice are captured.
    """

    def __init__(self, enqueue: Callable[[int], None]) -> None:
        self._enqueue = enqueue
        self._known: dict[bytes, int] = {}
        self._seen: set[bytes] = set()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            for graph in self._known.values():
                device().forget(graph)

    def find(self, addresses: bytes) -> int:
        """The graph for ``addresses``, or 0: then steps are launched one by one."""
        graph = self._known.get(addresses)
        if graph is not None:
            return graph
        if addresses not in self._seen:
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            self._seen.add(addresses)
            return 0
        if len(self._known) >= _MOST_GRAPHS:
            return 0
        self._known[addresses] = graph = device().capture(self._enqueue)
        return graph
