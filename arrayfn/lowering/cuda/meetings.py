"""What blocks of a kernel did since they all met: which have to wait, and for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from arrayfn.ir import Var

SEVERAL: Final = -1
"""Instead of the number of a block: not one alone."""


@dataclass
class Since:
    """What was done since all blocks met last."""

    read: set[Var] = field(default_factory=set[Var])
    written: set[Var] = field(default_factory=set[Var])
    sharing: set[str] = field(default_factory=set[str])
    """Parts that have used shared memory."""
    busy: int = 0
    """Blocks that have something to do."""
    owners: dict[Var, int] = field(default_factory=dict[Var, int])
    """The block that alone has touched an array, or ``SEVERAL``."""

    def clashes(self, read: Sequence[Var], written: Sequence[Var]) -> set[Var]:
        """What others have to have done with before these are read and written."""
        touched = self.read | self.written
        return self.written.intersection(read) | touched.intersection(written)

    def note(self, read: Sequence[Var], written: Sequence[Var], block: int) -> None:
        """That a block, or several, read and write these."""
        self.read.update(read)
        self.written.update(written)
        for var in (*read, *written):
            if self.owners.setdefault(var, block) != block:
                self.owners[var] = SEVERAL

    def copy(self) -> Since:
        """The same, to go on from."""
        read, written, sharing = set(self.read), set(self.written), set(self.sharing)
        return Since(read, written, sharing, self.busy, dict(self.owners))

    def add(self, other: Since) -> None:
        """That this or the ``other`` was done."""
        self.sharing |= other.sharing
        for var, block in other.owners.items():
            read = [var] if var in other.read else []
            self.note(read, [var] if var in other.written else [], block)
