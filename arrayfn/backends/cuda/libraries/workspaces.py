"""Workspaces of libraries' calls: memory that they share, as runs of graphs need it.

A graph keeps the addresses that it was captured with, so what its calls write to must
not be given to others between its runs.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cuda.driver import device, per_device

_MIN_BYTES: Final = 4 << 20  # bytes


class Workspace:
    """Memory that runs share, one after the other: all are on one stream."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._gpu = device()
        self.pointer = self._gpu.allocate(max(1, nbytes))

    def __del__(self) -> None:
        self._gpu.free(self.pointer)


class _Shared:
    """The workspace that calls are given; those that need more get a larger one."""

    def __init__(self) -> None:
        self.largest: Workspace | None = None

    def of(self, nbytes: int) -> Workspace:
        """The shared workspace, of ``nbytes`` at least."""
        if self.largest is None or self.largest.nbytes < nbytes:
            self.largest = Workspace(max(nbytes, _MIN_BYTES))
        return self.largest


@per_device
def _shared() -> _Shared:
    return _Shared()


def workspace(nbytes: int) -> Workspace:
    """A workspace of ``nbytes`` or more, which lives as long as somebody holds it."""
    return _shared().of(nbytes)
