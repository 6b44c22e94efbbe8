"""Scratch memory that calls of libraries share, so that captured graphs can use it.

A graph keeps the addresses that it was captured with. So the scratch memory of its
calls must not become the memory of an array between its runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from arrayfn.backends.cuda.driver import device, per_device

_MIN_BYTES: Final = 4 << 20
"""Bytes of the smallest shared workspace. Most calls need less, and so share one."""


class Workspace:
    """Scratch memory on a GPU, which is freed with this object.

    Several calls may use it, because all run one after the other on one stream.
    """

    def __init__(self, nbytes: int) -> None:
        """Allocate ``nbytes`` on this thread's GPU."""
        self.nbytes = nbytes
        self._gpu = device()
        self.pointer = self._gpu.allocate(max(1, nbytes))

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            self._gpu.free(self.pointer)


class _SharedWorkspace:
    """The largest workspace so far, which the next calls share.

    It is replaced by a larger one when a call needs more; earlier calls keep theirs.
    """

    def __init__(self) -> None:
        self.largest: Workspace | None = None  # None before the first call

    def of(self, nbytes: int) -> Workspace:
        """Return the shared workspace, replaced if it has less than ``nbytes``."""
        if self.largest is None or self.largest.nbytes < nbytes:
            self.largest = Workspace(max(nbytes, _MIN_BYTES))
        return self.largest


@per_device
def _shared() -> _SharedWorkspace:
    """Return the shared workspace of this thread's GPU."""
    return _SharedWorkspace()


def workspace(nbytes: int) -> Workspace:
    """Return a shared workspace of ``nbytes`` or more on this thread's GPU.

    The caller keeps it as long as its calls may run.
    """
    return _shared().of(nbytes)
