"""Functions that control a running kernel."""

from __future__ import annotations

ITERATIONS_BETWEEN_CHECKS = 1 << 12  # of a loop, for an interrupt


def interrupted(iteration: int) -> bool:
    """Whether the run should end because of Ctrl-C; the loop then breaks.

    Compiled, it checks in every 4,096th iteration, from iteration 0 on. Called from
    Python it is False: Python handles signals itself.
    """
    return False
