"""Scratch memory that calls of libraries share, such that captured graphs can use it.

A graph keeps the addresses that it was captured with, so what its calls write to must
not be given to others between its runs.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cuda.driver import device, per_device

_MIN_BYTES: Final = 4 << 20
"""Bytes of the smallest shared workspace: most calls need less, and so share one."""


class Workspace:
    """GPU memory that calls use one after the other: all are on one stream."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._gpu = device()
        self.pointer = self._gpu.allocate(max(1, nbytes))

    def __del__(self) -> None:
        self._gpu.free(self.pointer)


class _SharedWorkspace:
    """The workspace that calls are given; one that needs more has it replaced."""

    def __init__(self) -> None:
        self.largest: Workspace | None = None

    def of(self, nbytes: int) -> Workspace:
        """The shared workspace, replaced if it has less than ``nbytes``."""
        if self.largest is None or self.largest.nbytes < nbytes:
            self.largest = Workspace(max(nbytes, _MIN_BYTES))
        return self.largest


@per_device
def _shared() -> _SharedWorkspace:
    return _SharedWorkspace()


def workspace(nbytes: int) -> Workspace:
    """A workspace of ``nbytes`` or more on this thread's GPU, until it is dropped."""
    return _shared().of(nbytes)
