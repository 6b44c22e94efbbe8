"""The emulator's memory: of a thread, a block, the grid; and what it finds wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class EmulationError(Exception):
    """A kernel did what is undefined on a GPU."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """An argument that points to element ``start`` of a flat array."""

    array: Array
    start: int = 0


class Memory:
    """A flat array with checked indices: what a kernel sees as a pointer."""

    def __init__(self, array: Array, name: str, start: int = 0) -> None:
        self.array, self.name, self.start = array, name, start

    def place(self, index: int) -> int:
        place = self.start + int(index)
        if not 0 <= place < self.array.size:
            raise EmulationError(
                f"{self.name}[{index}] lies outside the {self.array.size} elements of "
                f"its array, of which it begins at {self.start}"
            )
        return place

    def __getitem__(self, index: int) -> Any:
        return self.array[self.place(index)]

    def __setitem__(self, index: int, value: Any) -> None:
        self.array[self.place(index)] = value


class GlobalMemory(Memory):
    """Memory of the whole grid: written by one thread at most."""

    running: Any = None

    def __init__(self, pointer: Pointer, name: str) -> None:
        super().__init__(pointer.array, name, pointer.start)
        self.writers: dict[int, tuple[int, int]] = {}

    def __setitem__(self, index: int, value: Any) -> None:
        assert GlobalMemory.running is not None
        writer = (GlobalMemory.running.block.index, GlobalMemory.running.index)
        if self.writers.setdefault(int(index), writer) != writer:
            raise EmulationError(
                f"threads {self.writers[int(index)]} and {writer} (block, thread) both "
                f"write {self.name}[{index}]"
            )
        super().__setitem__(index, value)


class SharedMemory(Memory):
    """Memory of a block. Between two barriers an element has one writer or readers."""

    def __init__(self, array: Array, name: str, block: Any) -> None:
        super().__init__(array, name)
        self.block = block
        self.written: dict[int, tuple[int, int]] = {}
        self.read: dict[int, tuple[int, int]] = {}

    def __getitem__(self, index: int) -> Any:
        thread = self._thread()
        epoch, writer = self.written.get(int(index), (-1, -1))
        if epoch == self.block.epoch and writer != thread:
            raise self._race(index, writer, thread)
        self.read[int(index)] = (self.block.epoch, thread)
        return super().__getitem__(index)

    def __setitem__(self, index: int, value: Any) -> None:
        self.write(int(index), value, self._thread())

    def write(self, index: int, value: Any, thread: int) -> None:
        """Write as the thread of a number."""
        for accesses in (self.written, self.read):
            epoch, other = accesses.get(int(index), (-1, -1))
            if epoch == self.block.epoch and other != thread:
                raise self._race(index, other, thread)
        self.written[int(index)] = (self.block.epoch, thread)
        super().__setitem__(index, value)

    def _thread(self) -> int:
        assert GlobalMemory.running is not None
        return GlobalMemory.running.index

    def _race(self, index: int, one: int, other: int) -> EmulationError:
        return EmulationError(
            f"threads {one} and {other} of block {self.block.index} race for shared "
            f"{self.name}[{index}]: no barrier stands between"
        )


@dataclass
class Signal:
    """What is to arrive, and how often all of it did."""

    expected: int = 0
    turns: int = 0
    arriving: list[tuple[SharedMemory, int, list[Any]]] = field(
        default_factory=list["tuple[SharedMemory, int, list[Any]]"]
    )
