"""Hazards between blocks since the last grid barrier: who has to wait for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from arrayfn.ir import Var

SEVERAL_BLOCKS: Final = -1
"""Stands for more than one block, in place of a block's number."""


@dataclass
class HazardsSinceBarrier:
    """What the steps since the last grid barrier of a persistent kernel have accessed.

    The grid barrier separates steps with a hazard. An array is the Var that names its
    memory; a *part* is the device function of a step's kernel.
    """

    read: set[Var] = field(default_factory=set[Var])
    written: set[Var] = field(default_factory=set[Var])
    sharing: set[str] = field(default_factory=set[str])
    """Parts that have used shared memory."""
    busy: int = 0
    """Blocks that have something to do."""
    owners: dict[Var, int] = field(default_factory=dict[Var, int])
    """The block that alone has touched an array, or ``SEVERAL_BLOCKS``."""

    def clashes(self, read: Sequence[Var], written: Sequence[Var]) -> set[Var]:
        """The arrays on which a step has a hazard with those since the last barrier.

        ``read`` and ``written`` are the arrays of the step. A hazard is a read after a
        write, or a write after a read or a write.
        """
        touched = self.read | self.written
        return self.written.intersection(read) | touched.intersection(written)

    def note(self, read: Sequence[Var], written: Sequence[Var], block: int) -> None:
        """Record accesses of ``block``, which may be ``SEVERAL_BLOCKS``."""
        self.read.update(read)
        self.written.update(written)
        for var in (*read, *written):
            if self.owners.setdefault(var, block) != block:
                self.owners[var] = SEVERAL_BLOCKS

    def copy(self) -> HazardsSinceBarrier:
        """An independent copy, to follow one branch of control flow with."""
        read, written, sharing = set(self.read), set(self.written), set(self.sharing)
        return HazardsSinceBarrier(read, written, sharing, self.busy, dict(self.owners))

    def add(self, other: HazardsSinceBarrier) -> None:
        """Merge in the accesses of another branch: either of the two may run."""
        self.sharing |= other.sharing
        for var, block in other.owners.items():
            read = [var] if var in other.read else []
            self.note(read, [var] if var in other.written else [], block)
