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
    """The signal state that all threads which run plans share.

    Threads are given by their pthread_t.
    """

    main: int  # the main thread
    checked: int  # cycle count when the main thread last checked for signals
    stopped: int  # 1 after a handler raised, until the main thread has left its plan
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
    """Return 1 if this thread's plan must end because a signal handler has raised.

    Only the main thread's plan can end so. In the main thread, Python runs the handlers
    of pending signals first, at most once per ``PERIOD``. A worker of the pool ends if
    it works for the main thread's plan.
    """
    if pthread_self() != SIGNALS.main:
        if SIGNALS.stopped == 0 or SIGNALS.pool_user != SIGNALS.main:
            return 0
        # Workers have no Python thread state. A Python thread runs its own plan.
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
    """Return whether a signal ended this thread's plan, and clear ``stopped``."""
    if SIGNALS.stopped == 0 or pthread_self() != SIGNALS.main:
        return False
    SIGNALS.stopped = 0
    return True


def _make_signals() -> int:
    """Allocate the process's ``Signals`` and return its address.

    In a forked child, the thread that forked becomes the main thread.
    """
    signals = immortal(Signals)
    signals.main = threading.main_thread().ident or 0

    def begin_child() -> None:
        """Make this thread, the only one of a forked child, the main thread."""
        signals.main = threading.get_ident()
        signals.stopped = 0

    os.register_at_fork(after_in_child=begin_child)
    return ctypes.addressof(signals)


ENGINE.define(SYMBOL, _make_signals)
