"""Hazards between blocks since the last grid barrier: who has to wait for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from arrayfn.ir import Var

SEVERAL: Final = -1
"""Stands for more than one block, in place of a block's number."""


@dataclass
class HazardsSinceBarrier:
    """The accesses of blocks since the last grid barrier."""

    read: set[Var] = field(default_factory=set[Var])
    written: set[Var] = field(default_factory=set[Var])
    sharing: set[str] = field(default_factory=set[str])
    """Parts that have used shared memory."""
    busy: int = 0
    """Blocks that have something to do."""
    owners: dict[Var, int] = field(default_factory=dict[Var, int])
    """The block that alone has touched an array, or ``SEVERAL``."""

    def clashes(self, read: Sequence[Var], written: Sequence[Var]) -> set[Var]:
        """The arrays with a hazard: read after write, or write after either."""
        touched = self.read | self.written
        return self.written.intersection(read) | touched.intersection(written)

    def note(self, read: Sequence[Var], written: Sequence[Var], block: int) -> None:
        """Note accesses of ``block``, or of ``SEVERAL``."""
        self.read.update(read)
        self.written.update(written)
        for var in (*read, *written):
            if self.owners.setdefault(var, block) != block:
                self.owners[var] = SEVERAL

    def copy(self) -> HazardsSinceBarrier:
        """A copy to go on from."""
        read, written, sharing = set(self.read), set(self.written), set(self.sharing)
        return HazardsSinceBarrier(read, written, sharing, self.busy, dict(self.owners))

    def add(self, other: HazardsSinceBarrier) -> None:
        """Merge the accesses of another path of control flow."""
        self.sharing |= other.sharing
        for var, block in other.owners.items():
            read = [var] if var in other.read else []
            self.note(read, [var] if var in other.written else [], block)
