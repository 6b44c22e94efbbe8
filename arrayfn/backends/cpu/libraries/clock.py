"""The clock that timed plans read (``lowering.clocks``)."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from typing import Any, Final

from arrayfn.backends.addresses import function_address
from arrayfn.backends.cpu.libraries.foreign import Array, c_function, stack_integers
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.lowering.clocks import FIRST, LAST, READING

SECOND: Final = 1_000_000_000  # in nanoseconds


def read_clock(
    clock_gettime: int,
    monotonic: int,
    state: Array[int],
    step: int,
    begin: int,
    end: int,
) -> None:
    """Add the time since the last reading to the total of ``step``, and count its run.

    A step of -1 only sets the time of the last reading. ``clock_gettime`` is the
    address of the C function, ``monotonic`` the clock's number. ``state`` holds
    nanoseconds and counts, as ``lowering.clocks`` says: the time of the last reading,
    the time that readings themselves took, and for each step its total and its number
    of runs. The kernel has one item, so ``begin`` and ``end`` are not used.
    """
    moment = stack_integers(2)  # a timespec: seconds and nanoseconds
    c_function(clock_gettime, monotonic, moment)
    now = moment[0] * SECOND + moment[1]
    if step >= 0:
        place = FIRST + 2 * step
        state[place] = state[place] + now - state[LAST]
        state[place + 1] = state[place + 1] + 1
    # Read again, so that the work of this kernel is not counted in the next step.
    c_function(clock_gettime, monotonic, moment)
    state[LAST] = moment[0] * SECOND + moment[1]
    state[READING] = state[READING] + state[LAST] - now


def leading_arguments(dtype: str) -> tuple[int, ...]:
    """Return the first arguments of ``read_clock``: ``clock_gettime``, ``monotonic``.

    ``dtype`` is that of the times, "i64"; any other raises KeyError.
    """
    if dtype != "i64":
        raise KeyError(dtype)
    return function_address(ctypes.CDLL(None).clock_gettime), time.CLOCK_MONOTONIC


def unjitted(arguments: Mapping[str, Any], items: int) -> None:
    """Do what ``read_clock`` does in Python; ``arguments`` are by name."""
    now = time.monotonic_ns()
    state, step = arguments["state"], int(arguments["step"])
    if step >= 0:
        state[FIRST + 2 * step] += now - state[LAST]
        state[FIRST + 2 * step + 1] += 1
    state[LAST] = now


PROVIDERS: Final = {"clock": Provider(read_clock, leading_arguments, unjitted)}
