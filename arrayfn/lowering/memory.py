"""The memory plan: temporaries laid into one arena by their lifetimes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Lifetime:
    """``nbytes`` needed from step ``first`` to step ``last``, both included."""

    nbytes: int
    first: int
    last: int


def lay_out(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """An offset for each lifetime, and the size of the arena.

    Greedy by size: the largest first, each at the lowest offset where nothing that
    lives at the same time lies (Pisarchyk and Lee, Efficient Memory Management for
    Deep Neural Net Inference, 2020, section 5.2).

    >>> lay_out([Lifetime(64, 0, 1), Lifetime(64, 1, 2), Lifetime(64, 2, 3)])
    ([0, 64, 0], 128)
    """
    order = sorted(range(len(lifetimes)), key=lambda k: (-lifetimes[k].nbytes, k))
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    size = 0
    for k in order:
        own = lifetimes[k]
        need = -(-own.nbytes // ALIGNMENT) * ALIGNMENT
        taken = sorted(
            (offsets[j], offsets[j] + -(-lifetimes[j].nbytes // ALIGNMENT) * ALIGNMENT)
            for j in placed
            if lifetimes[j].first <= own.last and own.first <= lifetimes[j].last
        )
        offset = 0
        for begin, end in taken:
            if offset + need <= begin:
                break
            offset = max(offset, end)
        offsets[k] = offset
        placed.append(k)
        size = max(size, offset + need)
    return offsets, size
