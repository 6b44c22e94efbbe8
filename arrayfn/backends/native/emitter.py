"""Collects the LLVM IR of a routine, as text, while it is compiled."""

from __future__ import annotations

import collections.abc
import typing
from typing import Any

from arrayfn.backends.native.structures import Array, is_struct
from arrayfn.records import frozen


@frozen(slots=True)
class Value:
    """An LLVM operand, such as "%7" or "12", and its type.

    ``type`` is int, float, None (a null pointer), or a pointer's: a structure, an
    ``Array[...]`` or a ``Callable[...]``.
    """

    operand: str
    type: Any = int

    @property
    def llvm(self) -> str:
        """LLVM's name of the value's type: "i64", "double" or "ptr"."""
        return llvm_type(self.type)


def llvm_type(kind: Any) -> str:
    """Return LLVM's name of the type ``kind``: "i64", "double", or "ptr" for others."""
    if kind is int:
        return "i64"
    return "double" if kind is float else "ptr"


def is_pointer(kind: Any) -> bool:
    """Return whether ``kind`` is a pointer: a structure, an array or a function."""
    origin = typing.get_origin(kind)
    return (
        is_struct(kind) or Array in (kind, origin) or origin is collections.abc.Callable
    )


class Emitter:
    """Collects the LLVM IR of a routine as lines of text.

    ``entry`` has the lines of the entry block, which allocates variables; ``body`` has
    all later blocks. ``terminated`` says that the current block has ended with a jump
    or return: instructions are dropped until the next block begins. ``count`` numbers
    operands and labels. ``architecture`` is the processor's, such as "x86_64".
    """

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
        """Return an operand name that is not used yet, such as "%.v7"."""
        self.count += 1
        return f"%.v{self.count}"

    def value_of(self, instruction: str) -> str:
        """Append an instruction with a result; return the result's name."""
        result = self.fresh()
        self.emit(f"{result} = {instruction}")
        return result

    def pointer(self, address: str) -> str:
        """Emit the conversion of an integer address to a pointer; return its name."""
        return self.value_of(f"inttoptr i64 {address} to ptr")

    def label(self) -> str:
        """Return a block label that is not used yet, such as ".b7"."""
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

        If the current block has not ended yet, it gets a branch to ``label``.
        """
        if not self.terminated:
            self.branch(label)
        self.terminated = False
        self.body.append(f"{label}:")
