"""The words that ``signals`` keeps: made with the engine, by its first code."""

from __future__ import annotations

import ctypes
import os
import threading

from arrayfn.backends.cpu import signals
from arrayfn.backends.native.engine import ENGINE
from arrayfn.backends.native.objects import immortal


def _make_words() -> int:
    words = immortal(signals.WORDS_BYTES)
    main = ctypes.c_int64.from_address(words + signals.MAIN)
    stopped = ctypes.c_int64.from_address(words + signals.STOPPED)
    main.value = threading.main_thread().ident or 0

    def begin_child() -> None:
        main.value = threading.get_ident()
        stopped.value = 0

    os.register_at_fork(after_in_child=begin_child)
    return words


ENGINE.define(signals.arrayfn_signal_words.symbol, _make_words)
