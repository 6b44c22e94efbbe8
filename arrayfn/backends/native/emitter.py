"""Collects the LLVM IR of a routine, as text, while it is compiled."""

from __future__ import annotations

import collections.abc
import typing
from dataclasses import dataclass
from typing import Any

from arrayfn.backends.native.structures import Array, is_struct


@dataclass(frozen=True, slots=True)
class Value:
    """An LLVM operand and its type: int, float, None, or a pointer's."""

    operand: str
    type: Any = int

    @property
    def llvm(self) -> str:
        """LLVM's type of it."""
        return llvm_type(self.type)


def llvm_type(kind: Any) -> str:
    """LLVM's type of values of ``kind``: int, float, or a pointer."""
    if kind is int:
        return "i64"
    return "double" if kind is float else "ptr"


def is_pointer(kind: Any) -> bool:
    """Whether values of the type ``kind`` are pointers."""
    origin = typing.get_origin(kind)
    return (
        is_struct(kind) or Array in (kind, origin) or origin is collections.abc.Callable
    )


class Emitter:
    """Collects the LLVM IR of a routine: variables at its entry, then blocks."""

    def __init__(self, architecture: str) -> None:
        self.architecture = architecture
        self.entry: list[str] = []
        self.body: list[str] = []
        self.count = 0
        self.terminated = False

    def emit(self, instruction: str) -> None:
        """Append an instruction to the current block, unless it has ended."""
        if not self.terminated:
            self.body.append(f"  {instruction}")

    def fresh(self) -> str:
        """Make a new operand name."""
        self.count += 1
        return f"%.v{self.count}"

    def value_of(self, instruction: str) -> str:
        """Append an instruction with a result; return its operand."""
        result = self.fresh()
        self.emit(f"{result} = {instruction}")
        return result

    def pointer(self, address: str) -> str:
        """Emit the conversion of an address to a pointer."""
        return self.value_of(f"inttoptr i64 {address} to ptr")

    def label(self) -> str:
        """Make a new block label."""
        self.count += 1
        return f".b{self.count}"

    def branch(self, label: str) -> None:
        """End the block with a jump to the block ``label``."""
        self.emit(f"br label %{label}")
        self.terminated = True

    def branch_if(self, condition: str, yes: str, no: str) -> None:
        """End the block with a jump: to ``yes`` if ``condition``, else to ``no``."""
        self.emit(f"br i1 {condition}, label %{yes}, label %{no}")
        self.terminated = True

    def begin(self, label: str) -> None:
        """Start the basic block ``label``.

        If the block before it has no terminator yet, that block gets a branch to
        ``label``.
        """
        if not self.terminated:
            self.branch(label)
        self.terminated = False
        self.body.append(f"{label}:")
