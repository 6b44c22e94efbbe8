"""The clock that timed plans read (``lowering.clocks``)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.native import CFunction, local, native
from arrayfn.backends.native.structures import Array, Struct, i32
from arrayfn.lowering.clocks import FIRST, LAST, READING

MONOTONIC: Final = 1  # CLOCK_MONOTONIC
SECOND: Final = 1_000_000_000  # in nanoseconds

clock_gettime = CFunction[[i32, Array[int]], i32]("clock_gettime")


class Clock(Struct):
    """The arguments of a reading."""

    state: Array[int]
    step: int


@native
def nanoseconds() -> int:
    """The time now, from some moment on."""
    moment = local(int, 2)  # a timespec: seconds and nanoseconds
    clock_gettime(MONOTONIC, moment)
    return moment[0] * SECOND + moment[1]


@native
def read_clock(a: Clock, begin: int, end: int) -> None:
    """Add the time since the last reading to that of a step; -1 is none."""
    now = nanoseconds()
    state = a.state
    if a.step >= 0:
        place = FIRST + 2 * a.step
        state[place] += now - state[LAST]
        state[place + 1] += 1
    state[LAST] = nanoseconds()
    state[READING] += state[LAST] - now


def words(dtype: str) -> tuple[int, ...]:
    """None; the clock is in nanoseconds, of 64 bits."""
    if dtype != "i64":
        raise KeyError(dtype)
    return ()


def unjitted(given: Mapping[str, Any], items: int) -> None:
    """A reading, by Python."""
    now = time.monotonic_ns()
    state, step = given["state"], int(given["step"])
    if step >= 0:
        state[FIRST + 2 * step] += now - state[LAST]
        state[FIRST + 2 * step + 1] += 1
    state[LAST] = now


PROVIDERS: Final = {"clock": Provider(read_clock, words, unjitted)}
