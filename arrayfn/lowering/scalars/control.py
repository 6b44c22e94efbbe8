"""What a kernel asks while it runs."""

from __future__ import annotations

TURNS_BETWEEN_LOOKS = 1 << 12


def interrupted(turn: int) -> bool:
    """Whether the run is to end, as somebody pressed Ctrl-C: a loop breaks then.

    Compiled, it looks in every 4,096th turn, from turn 0 on. Called, it is False:
    Python sees to its signals itself.
    """
    return False
