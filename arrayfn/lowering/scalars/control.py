"""Functions that control a running kernel."""

from __future__ import annotations

ITERATIONS_BETWEEN_CHECKS = 1 << 12  # iterations of a loop between checks for Ctrl-C


def interrupted(iteration: int) -> bool:
    """Return whether a kernel's loop must break, because the user pressed Ctrl-C.

    In compiled code, only every ``ITERATIONS_BETWEEN_CHECKS``-th iteration checks, from
    iteration 0 on. Called from Python the result is False: Python handles signals
    itself.
    """
    return False
