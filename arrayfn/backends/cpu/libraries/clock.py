"""The clock that timed plans read (``lowering.clocks``)."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from typing import Any, Final

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
    """Add the time since the last reading to the total of ``step``.

    A step of -1 only sets the time. ``clock_gettime`` is the C function's address,
    ``monotonic`` the clock's number. ``state`` holds nanoseconds (``lowering.clocks``).
    ``begin`` and ``end`` bound the items, of which there is one.
    """
    moment = stack_integers(2)  # a timespec: seconds and nanoseconds
    c_function(clock_gettime, monotonic, moment)
    now = moment[0] * SECOND + moment[1]
    if step >= 0:
        place = FIRST + 2 * step
        state[place] = state[place] + now - state[LAST]
        state[place + 1] = state[place + 1] + 1
    c_function(clock_gettime, monotonic, moment)
    state[LAST] = moment[0] * SECOND + moment[1]
    state[READING] = state[READING] + state[LAST] - now


def leading_arguments(dtype: str) -> tuple[int, ...]:
    """The address of clock_gettime, and the clock's number.

    ``dtype`` is that of times, i64; KeyError for others.
    """
    if dtype != "i64":
        raise KeyError(dtype)
    function = ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value
    return int(function or 0), time.CLOCK_MONOTONIC


def unjitted(arguments: Mapping[str, Any], items: int) -> None:
    """Read the clock in Python; ``arguments`` are by name, ``items`` is 1."""
    now = time.monotonic_ns()
    state, step = arguments["state"], int(arguments["step"])
    if step >= 0:
        state[FIRST + 2 * step] += now - state[LAST]
        state[FIRST + 2 * step + 1] += 1
    state[LAST] = now


PROVIDERS: Final = {"clock": Provider(read_clock, leading_arguments, unjitted)}
