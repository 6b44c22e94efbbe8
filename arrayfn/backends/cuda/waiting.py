"""Waiting for a stream, as a builtin function: see ``entry.wait``."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

from arrayfn.backends.cuda import entry
from arrayfn.backends.native.objects import METH_NOARGS, builtin_of, immortal

_SPINS: Final = 32  # queries, of some 0.3 us each, before other threads may go on


_CYCLES: Final = 1 << 27  # 30 to 130 ms


def waiter(stream: int, query: int, cycles: int = _CYCLES) -> Callable[[], int]:
    """Return a builtin function that waits for ``stream`` and returns its status.

    ``query`` is the address of cuStreamQuery. After ``cycles`` clock cycles it returns
    NOT_READY, so that Python can handle signals; the caller then calls it again.
    """
    made = immortal(entry.Wait)
    made.set(stream=stream, query=query, spins=_SPINS, cycles=cycles)
    return builtin_of(entry.wait, METH_NOARGS, ctypes.addressof(made))
