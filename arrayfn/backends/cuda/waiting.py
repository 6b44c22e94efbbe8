"""Makes the builtin function that waits for a stream: see ``entry.wait``."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

from arrayfn.backends.cuda import entry
from arrayfn.backends.native.objects import METH_NOARGS, builtin_of, immortal

_SPINS: Final = 32
"""Queries of the stream, of some 0.3 us each, before the wait releases the GIL."""


_CYCLES: Final = 1 << 27
"""Clock cycles (30 to 130 ms) after which a wait returns, for signals to be handled."""


def waiter(stream: int, query: int, cycles: int = _CYCLES) -> Callable[[], int]:
    """Make a builtin function that waits for ``stream`` and returns its status.

    ``query`` is the address of cuStreamQuery. After ``cycles`` clock cycles the builtin
    returns NOT_READY, so that Python can handle signals; the caller then calls it
    again.
    """
    state = immortal(entry.Wait)
    state.set(stream=stream, query=query, spins=_SPINS, cycles=cycles)
    return builtin_of(entry.wait, METH_NOARGS, ctypes.addressof(state))
