"""Ends a run when a signal's handler has raised: native routines.

Signals are handled by Python, in its main thread, and a plan runs without returning
there. So the thread that runs it checks from time to time: it takes the GIL, and has
Python run the handlers of signals that have come. If one raises, as SIGINT's does, the
plan ends at its next step or iteration. The state is one for the process, made before
code that uses it is loaded.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Final

from arrayfn.backends.native import CFunction, cycles, native
from arrayfn.backends.native.engine import ENGINE
from arrayfn.backends.native.objects import immortal
from arrayfn.backends.native.structures import Struct, external, i32


class Signals(Struct):
    """The signal state that all threads which run plans share."""

    main: int  # the main thread
    checked: int  # when it last checked for signals, by the counter of cycles
    stopped: int  # 1 from the error on, until its plan is left
    pool_user: int  # the thread that runs the plan that uses the pool


SYMBOL: Final = "arrayfn_signals"
SIGNALS: Final = external(Signals, SYMBOL)
PERIOD: Final = 1 << 27  # cycles between two checks: 30 to 130 ms

pthread_self = CFunction[[], int]("pthread_self")
PyGILState_GetThisThreadState = CFunction[[], int]("PyGILState_GetThisThreadState")
PyGILState_Ensure = CFunction[[], i32]("PyGILState_Ensure")
PyGILState_Release = CFunction[[i32], None]("PyGILState_Release")
PyErr_CheckSignals = CFunction[[], i32]("PyErr_CheckSignals")


@native
def check_signals() -> int:
    """Whether this thread's plan must end, since a signal's handler has raised.

    In the main thread, Python runs pending handlers first, at most once per ``PERIOD``.
    """
    if pthread_self() != SIGNALS.main:
        # A worker ends with the plan that it works for; another's goes on.
        if SIGNALS.stopped == 0 or SIGNALS.pool_user != SIGNALS.main:
            return 0
        return PyGILState_GetThisThreadState() == 0
    if SIGNALS.stopped:
        return 1
    now = cycles()
    if now - SIGNALS.checked < PERIOD:
        return 0
    SIGNALS.checked = now
    state = PyGILState_Ensure()
    raised = PyErr_CheckSignals()
    PyGILState_Release(state)
    if raised:
        SIGNALS.stopped = 1
        return 1
    return 0


@native
def use_pool() -> None:
    """Record that this thread's plan uses the pool."""
    SIGNALS.pool_user = pthread_self()


@native
def reset_stopped() -> bool:
    """Whether a signal ended this thread's plan; resets that for the next one."""
    if SIGNALS.stopped == 0 or pthread_self() != SIGNALS.main:
        return False
    SIGNALS.stopped = 0
    return True


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
