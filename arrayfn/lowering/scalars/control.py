"""What a kernel asks while it runs."""

from __future__ import annotations

ITERATIONS_BETWEEN_LOOKS = 1 << 12


def interrupted(iteration: int) -> bool:
    """Whether the run is to end, as somebody pressed Ctrl-C: a loop breaks then.

    Compiled, it looks in every 4,096th iteration, from iteration 0 on. Called, it is
    False: Python sees to its signals itself.
    """
    return False
