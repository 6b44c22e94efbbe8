"""What operations of the native vocabulary write into: a routine's instructions."""

from __future__ import annotations

from typing import Protocol


class Emitter(Protocol):
    """The routine that is compiled. Values are texts of i64 operands."""

    architecture: str
    terminated: bool

    def emit(self, instruction: str) -> None:
        """Append an instruction."""

    def value_of(self, instruction: str) -> str:
        """Append an instruction with a result; its operand."""
        ...

    def pointer(self, address: str) -> str:
        """An address as a pointer."""
        ...

    def fresh(self) -> str:
        """A new operand's name."""
        ...

    def label(self) -> str:
        """A new block's label."""
        ...

    def begin(self, label: str) -> None:
        """Start a block, falling into it where the last one is open."""
