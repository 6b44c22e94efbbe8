"""The state of ``signals``, made when the first code is loaded."""

from __future__ import annotations

import ctypes
import os
import threading

from arrayfn.backends.cpu.signals import SYMBOL, Signals
from arrayfn.backends.native.engine import ENGINE
from arrayfn.backends.native.objects import immortal


def _make_signals() -> int:
    """Allocate the process's ``Signals``; return the address. A fork resets it."""
    signals = immortal(Signals)
    signals.main = threading.main_thread().ident or 0

    def begin_child() -> None:
        signals.main = threading.get_ident()
        signals.stopped = 0

    os.register_at_fork(after_in_child=begin_child)
    return ctypes.addressof(signals)


ENGINE.define(SYMBOL, _make_signals)
