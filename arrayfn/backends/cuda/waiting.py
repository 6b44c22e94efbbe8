"""Waiting for a stream, as a builtin function: see ``entry.wait``."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

from arrayfn.backends.cuda import entry
from arrayfn.backends.native.objects import METH_NOARGS, builtin_of, immortal_words

_SPINS: Final = 32  # queries, of some 0.3 us each, before other threads may go on


def waiter(stream: int, query: int, synchronize: int) -> Callable[[], int]:
    """What waits for ``stream``, by the driver's functions; it returns their status."""
    values = {
        entry.WAIT_STREAM: stream,
        entry.WAIT_QUERY: query,
        entry.WAIT_SYNCHRONIZE: synchronize,
        entry.WAIT_SPINS: _SPINS,
    }
    words = immortal_words(entry.WAIT_BYTES)
    for word, value in values.items():
        words[word // 8] = value
    return builtin_of(entry.wait, METH_NOARGS, ctypes.addressof(words))
