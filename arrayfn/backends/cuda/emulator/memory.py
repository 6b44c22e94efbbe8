"""The emulator's memory (of threads, blocks and the grid) and its checks for races."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
from typing_extensions import override

from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.scalars.numpy_arithmetic import DTYPES

Array = np.ndarray[Any, Any]


class EmulationError(Exception):
    """Raised if a kernel does something that is undefined on a GPU."""


class WrittenTwiceError(EmulationError):
    """Raised if two threads write the same element with no barrier between."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """An argument that points to element ``start`` of a flat array."""

    array: Array
    start: int = 0

    def elements(
        self,
        name: str,
        dtype: np.dtype[Any],
        shape: Sequence[int],
        steps: Sequence[int],
    ) -> Array:
        """View an array of ``dtype`` that begins here, with elements ``steps`` apart.

        Raises EmulationError, which calls it ``name``, if elements of the ``shape`` lie
        outside of the memory.
        """
        flat = self.array.view(dtype)
        first = self.start * self.array.itemsize // dtype.itemsize
        ends = [(n - 1) * step for n, step in zip(shape, steps, strict=True)]
        low = first + sum(min(0, end) for end in ends)
        high = first + sum(max(0, end) for end in ends)
        if prod(shape) and not 0 <= low <= high < flat.size:
            raise EmulationError(
                f"{name} has {flat.size} elements, and {low} to {high} are accessed"
            )
        strides = [step * dtype.itemsize for step in steps]
        return np.lib.stride_tricks.as_strided(flat[first:], shape, strides)


def unwritten(count: int, dtype: str) -> Array:
    """Allocate ``count`` elements that count as unwritten.

    They hold NaNs, or numbers whose bits are all 1.
    """
    kind = DTYPES[dtype]
    if dtype == "bool":
        return np.ones(count, kind)
    return np.full(count * kind.itemsize, 0xFF, np.uint8).view(kind)


class Memory:
    """A flat array with checked indices: what a kernel sees as a pointer."""

    def __init__(self, array: Array, name: str, start: int = 0) -> None:
        self.array, self.name, self.start = array, name, start

    def offset(self, index: int) -> int:
        """The offset of element ``index`` in the array.

        Raises EmulationError if it lies outside.
        """
        offset = self.start + int(index)
        if not 0 <= offset < self.array.size:
            raise EmulationError(
                f"{self.name}[{index}] lies outside the {self.array.size} elements of "
                f"its array, of which it begins at {self.start}"
            )
        return offset

    def __getitem__(self, index: int) -> Any:
        return self.array[self.offset(index)]

    def __setitem__(self, index: int, value: Any) -> None:
        self.array[self.offset(index)] = value


class Accessor(NamedTuple):
    """A thread that accesses memory, and how many barriers its block has passed.

    -1 stands for several blocks, or for several threads of a block.
    """

    block: int
    thread: int
    barriers: int

    @property
    def thread_id(self) -> tuple[int, int]:
        """The thread among those of the grid: its block and its number there."""
        return self.block, self.thread


_SEVERAL_BLOCKS: Final = Accessor(-1, -1, -1)
"""The reader of an element that several blocks read."""

_ADDING_THREADS: Final = Accessor(-1, -1, -1)
"""The writer of an element to which threads add."""


@dataclass
class Accesses:
    """Who wrote elements of the grid's memory, and who read them.

    It is cleared at grid barriers. Reads are recorded if there can be grid barriers.
    """

    writers: dict[int, Accessor] = field(default_factory=dict[int, Accessor])
    readers: dict[int, int] | None = None
    last_readers: dict[int, Accessor] | None = None
    """The last reader of each element, if several arguments have the same memory."""

    def clear(self) -> None:
        """Forget all accesses: all blocks have reached a barrier."""
        self.writers.clear()
        if self.readers is not None:
            self.readers.clear()


class GlobalMemory(Memory):
    """Memory of the grid: an element is written by one thread, or added to by many.

    With grid barriers, no block may read what another has written, or write what
    another has read, since the last barrier.
    """

    running: Any = None

    def __init__(self, pointer: Pointer, name: str, accesses: Accesses) -> None:
        super().__init__(pointer.array, name, pointer.start)
        self.accesses = accesses

    def subarray(self, at: int) -> GlobalMemory:
        """This memory from element ``at`` on."""
        pointer = Pointer(self.array, self.start + int(at))
        return GlobalMemory(pointer, f"{self.name}[{at}:]", self.accesses)

    @override
    def __getitem__(self, index: int) -> Any:
        readers = self.accesses.readers
        if readers is not None:
            at, block = self.offset(index), GlobalMemory.running.block.index
            writer = self.accesses.writers.get(at)
            if writer is not None and writer.block != block:
                raise self._race(index, writer.block, block)
            if readers.setdefault(at, block) != block:
                readers[at] = -1
        if self.accesses.last_readers is not None:
            self._read_in_place(int(index), self.accesses.last_readers)
        return super().__getitem__(index)

    def _read_in_place(self, index: int, last_readers: dict[int, Accessor]) -> None:
        """Record a read of an element that other threads may write in this launch.

        It becomes the element's reader in ``last_readers``.
        """
        at, running = self.offset(index), GlobalMemory.running
        reader = Accessor(running.block.index, running.index, running.block.epoch)
        self._check_ordered(index, self.accesses.writers.get(at), reader)
        known = last_readers.get(at, reader)
        if known.block != reader.block:
            reader = _SEVERAL_BLOCKS
        elif known.thread != reader.thread and known.barriers == reader.barriers:
            reader = reader._replace(thread=-1)
        last_readers[at] = reader

    def _check_ordered(self, index: int, one: Accessor | None, other: Accessor) -> None:
        """Raise EmulationError if ``one`` and ``other`` race for an element.

        They do if they are different threads with no barrier between their accesses.
        """
        if one is None or one.thread_id == other.thread_id:
            return
        if one.block != other.block or one.barriers == other.barriers:
            raise EmulationError(
                f"{self.name}[{index}] is read by one thread and written by another "
                f"through another argument: {one.thread_id} and {other.thread_id} "
                "(block, thread)"
            )

    @override
    def __setitem__(self, index: int, value: Any) -> None:
        assert GlobalMemory.running is not None
        block = GlobalMemory.running.block
        writer = Accessor(block.index, GlobalMemory.running.index, block.epoch)
        self._written_by(int(index), writer)
        super().__setitem__(index, value)

    def add(self, index: int, value: Any) -> None:
        """Add ``value`` to element ``index``, as one of any number of threads."""
        self._written_by(index, _ADDING_THREADS)
        self.array[self.offset(index)] += value

    def _written_by(self, index: int, writer: Accessor) -> None:
        """Record that ``writer`` writes element ``index``, or adds to it.

        Raises EmulationError if it races with other accesses.
        """
        at = self.offset(index)
        known = self.accesses.writers.get(at, writer)
        # Two writes. Threads of a block may write one after the other, with a barrier
        # between.
        if known.thread_id != writer.thread_id:
            if _ADDING_THREADS in (known, writer):
                raise EmulationError(
                    f"{self.name}[{index}] is both written and added to"
                )
            if known.block != writer.block or known.barriers == writer.barriers:
                raise WrittenTwiceError(
                    f"threads {known.thread_id} and {writer.thread_id} (block, thread) "
                    f"both write {self.name}[{index}]"
                )
        self.accesses.writers[at] = writer
        # A read through another argument that is the same memory, and this write.
        if self.accesses.last_readers is not None:
            self._check_ordered(index, self.accesses.last_readers.get(at), writer)
        # A read by another block, and this write.
        if self.accesses.readers is not None:
            reader = self.accesses.readers.get(at)
            if reader is not None and reader != writer.block:
                raise self._race(index, reader, writer.block)

    def _race(self, index: int, one: int, other: int) -> EmulationError:
        """Make the error of two blocks that race for an element; -1 is several."""
        blocks = f"{other} and others" if one < 0 else f"{one} and {other}"
        return EmulationError(
            f"blocks {blocks} race for {self.name}[{index}]: no grid_barrier stands "
            "between"
        )


@dataclass(frozen=True, slots=True)
class _Access:
    """The thread that accessed an element, and the barriers passed before."""

    thread: int
    epoch: int
    warp_epoch: int

    def races_with(self, other: _Access) -> bool:
        """Whether no barrier stands between this and an earlier access."""
        if self.epoch != other.epoch or self.thread == other.thread:
            return False
        together = min(self.thread, other.thread) >= 0 and (
            self.thread // WARP == other.thread // WARP
        )
        return not together or self.warp_epoch == other.warp_epoch


class SharedMemory(Memory):
    """Memory of a block. Between two barriers an element has one writer, or readers.

    Or it has threads that add to it. A barrier of a warp counts for accesses of its
    threads.
    """

    def __init__(self, array: Array, name: str, block: Any) -> None:
        super().__init__(array, name)
        self.block = block
        self.written: dict[int, _Access] = {}
        self.read: dict[int, _Access] = {}
        self.added: dict[int, _Access] = {}

    @override
    def __getitem__(self, index: int) -> Any:
        access = self._access(self._thread())
        self._check(int(index), access, self.written, self.added)
        self.read[int(index)] = access
        return super().__getitem__(index)

    @override
    def __setitem__(self, index: int, value: Any) -> None:
        self.write(int(index), value, self._thread())

    def write(self, index: int, value: Any, thread: int) -> None:
        """Write ``value`` to element ``index``, as the thread number ``thread``."""
        access = self._access(thread)
        self._check(index, access, self.written, self.read, self.added)
        self.written[index] = access
        super().__setitem__(index, value)

    def add(self, index: int, value: Any) -> None:
        """Add ``value`` to element ``index``, as one of any number of threads."""
        access = self._access(self._thread())
        self._check(index, access, self.written, self.read)
        self.added[index] = access
        self.array[self.offset(index)] += value

    def reader(self, index: int) -> int | None:
        """The number of another thread that may be reading element ``index``."""
        other = self.read.get(index)
        races = other and self._access(self._thread()).races_with(other)
        return other.thread if other and races else None

    def _access(self, thread: int) -> _Access:
        warp_epoch = self.block.warps.get(thread // WARP, 0)
        return _Access(thread, self.block.epoch, warp_epoch)

    def _check(self, index: int, access: _Access, *earlier: dict[int, _Access]) -> None:
        """Raise EmulationError if ``access`` races with an earlier access."""
        for accesses in earlier:
            other = accesses.get(index)
            if other is not None and access.races_with(other):
                raise EmulationError(
                    f"threads {other.thread} and {access.thread} of block "
                    f"{self.block.index} race for shared {self.name}[{index}]: no "
                    "barrier stands between"
                )

    def _thread(self) -> int:
        assert GlobalMemory.running is not None
        return GlobalMemory.running.index


@dataclass
class Mbarrier:
    """An mbarrier: the bytes it expects, the copies in flight, the phases completed."""

    expected: int = 0
    phases: int = 0
    arriving: list[tuple[SharedMemory, int, list[Any]]] = field(
        default_factory=list["tuple[SharedMemory, int, list[Any]]"]
    )

    @property
    def bytes(self) -> int:
        """Bytes of all copies that this mbarrier counts, arrived or not."""
        return sum(len(v) * s.array.itemsize for s, _, v in self.arriving)
