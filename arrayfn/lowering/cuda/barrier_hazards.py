"""Hazards between blocks since the last grid barrier: who has to wait for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Final

from arrayfn.ir import Var
from arrayfn.records import record

SEVERAL_BLOCKS: Final = -1
"""Stands for more than one block, in place of a block's number."""


@record
class HazardsSinceBarrier:
    """What the steps since the last grid barrier of a persistent kernel have accessed.

    The grid barrier separates steps with a hazard. An array is the Var that names its
    memory; a *part* is the device function of a step's kernel.
    """

    written: set[Var] = field(default_factory=set[Var])
    """The arrays that these steps have written."""
    used_shared_memory: set[str] = field(default_factory=set[str])
    """Kernels whose device functions have used shared memory. A second call of one of
    them by the same block needs a barrier of the block first.
    """
    assigned_blocks: int = 0
    """Blocks ``0 .. assigned_blocks - 1`` of the grid have been given work since the
    barrier; the next small step goes to the blocks after them.
    """
    owners: dict[Var, int] = field(default_factory=dict[Var, int])
    """For each accessed array the one block that accessed it, or ``SEVERAL_BLOCKS``."""

    def conflicting_arrays(
        self, read: Sequence[Var], written: Sequence[Var]
    ) -> set[Var]:
        """Return the arrays on which a step has a hazard with earlier steps.

        These are the steps since the last barrier. ``read`` and ``written`` are the
        arrays of the step. A hazard is a read after a write, or a write after a read or
        a write.
        """
        return self.written.intersection(read) | self.owners.keys() & set(written)

    def record_accesses(
        self, read: Sequence[Var], written: Sequence[Var], block: int
    ) -> None:
        """Record that ``block`` reads and writes the given arrays.

        ``block`` is a number or ``SEVERAL_BLOCKS``. ``owners`` keeps for each array the
        one block that accesses it: a second block makes that ``SEVERAL_BLOCKS``.
        """
        self.written.update(written)
        for var in (*read, *written):
            if self.owners.setdefault(var, block) != block:
                self.owners[var] = SEVERAL_BLOCKS

    def copy(self) -> HazardsSinceBarrier:
        """Return an independent copy, to follow one branch of control flow with."""
        return HazardsSinceBarrier(
            set(self.written),
            set(self.used_shared_memory),
            self.assigned_blocks,
            dict(self.owners),
        )

    def add(self, other: HazardsSinceBarrier) -> None:
        """Add the accesses of another branch of control flow: either may run."""
        self.used_shared_memory |= other.used_shared_memory
        for var, block in other.owners.items():
            written = [var] if var in other.written else []
            self.record_accesses([var], written, block)
