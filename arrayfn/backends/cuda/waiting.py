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
    """What waits for ``stream`` by the driver's ``query``, and returns its status.

    After some ``cycles`` it returns NOT_READY, so that Python handles the signals that
    have come, and is to be called again.
    """
    made = immortal(entry.Wait)
    made.set(stream=stream, query=query, spins=_SPINS, cycles=cycles)
    return builtin_of(entry.wait, METH_NOARGS, ctypes.addressof(made))
