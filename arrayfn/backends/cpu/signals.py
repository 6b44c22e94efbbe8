"""Whether the run is to end because a signal's handler raised: native routines.

Signals are handled by Python, in its main thread, and a plan runs without returning
there. So the thread that runs it looks from time to time: it takes the GIL and lets the
handlers of signals run that have come. Where one raises, as SIGINT's does, the plan is
left at its next step, iteration or turn of a loop. The words are the process's:
``interrupts`` makes them.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.native import CFunction, address_of, cycles, load, native, store

# Byte offsets into the words.
MAIN: Final = 0  # the main thread
LOOKED: Final = 8  # when it last looked, by the counter of cycles
STOPPED: Final = 16  # 1 from the error on, until its plan is left
POOL_OF: Final = 24  # the thread whose plan uses the pool
WORDS_BYTES: Final = 64

PERIOD: Final = 1 << 27  # cycles between two looks: 30 to 130 ms

arrayfn_signal_words = CFunction("arrayfn_signal_words", 0)
pthread_self = CFunction("pthread_self", 0)
PyGILState_GetThisThreadState = CFunction("PyGILState_GetThisThreadState", 0)
PyGILState_Ensure = CFunction("PyGILState_Ensure", 0, "i32")
PyGILState_Release = CFunction("PyGILState_Release", 1, "void")
PyErr_CheckSignals = CFunction("PyErr_CheckSignals", 0, "i32")


@native
def look() -> int:
    """1 if the running plan is to end; handlers of signals may run first."""
    words = address_of(arrayfn_signal_words)
    if pthread_self() != load(words + MAIN):
        # A worker ends with the plan that it works for; another's goes on.
        if load(words + STOPPED) == 0 or load(words + POOL_OF) != load(words + MAIN):
            return 0
        return PyGILState_GetThisThreadState() == 0
    if load(words + STOPPED):
        return 1
    now = cycles()
    if now - load(words + LOOKED) < PERIOD:
        return 0
    store(words + LOOKED, now)
    state = PyGILState_Ensure()
    raised = PyErr_CheckSignals()
    PyGILState_Release(state)
    if raised:
        store(words + STOPPED, 1)
        return 1
    return 0


@native
def use_pool() -> int:
    """Say that this thread's plan uses the pool."""
    store(address_of(arrayfn_signal_words) + POOL_OF, pthread_self())
    return 0


@native
def leave_stopped() -> int:
    """Whether this thread's plan was ended; the next one runs."""
    words = address_of(arrayfn_signal_words)
    if load(words + STOPPED) == 0 or pthread_self() != load(words + MAIN):
        return 0
    store(words + STOPPED, 0)
    return 1
