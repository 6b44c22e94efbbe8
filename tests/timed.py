"""How long something takes the processor, whatever ran in the process before."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def timed(function: Callable[[], T]) -> tuple[T, float]:
    """What ``function`` returns, and the least seconds of three calls.

    No garbage is collected meanwhile: that takes as long as all that is alive is large,
    and longer calls have more of it.
    """
    best = float("inf")
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            start = time.process_time()
            made = function()
            best = min(best, time.process_time() - start)
    finally:
        gc.enable()
    return made, best
