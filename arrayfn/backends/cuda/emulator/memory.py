"""The emulator's memory of threads, blocks and the grid, with checks for races.

An access *races* with an earlier one of another thread if one of the two writes, and no
barrier that both threads reach is between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
from typing_extensions import override

from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.scalars.numpy_arithmetic import DTYPES
from arrayfn.records import frozen, record

Array = np.ndarray[Any, Any]


class EmulationError(Exception):
    """Raised if a kernel does something that is undefined on a GPU."""


class WrittenTwiceError(EmulationError):
    """Raised if two threads write the same element with no barrier between."""


@frozen(slots=True)
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
        """View the memory as an array of ``dtype`` and ``shape``.

        Its first element is where this points, and ``steps`` are the strides in
        elements. Raises EmulationError, which calls the array ``name``, if elements lie
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
    """Allocate ``count`` elements of ``dtype`` that count as unwritten.

    All bits are 1: floats are NaN. Bools are True.
    """
    kind = DTYPES[dtype]
    if dtype == "bool":
        return np.ones(count, kind)
    return np.full(count * kind.itemsize, 0xFF, np.uint8).view(kind)


class Memory:
    """A flat array with checked indices, which stands for a pointer in a kernel.

    Index 0 is element ``start`` of ``array``. Errors call it ``name``.
    """

    def __init__(self, array: Array, name: str, start: int = 0) -> None:
        self.array, self.name, self.start = array, name, start

    def offset(self, index: int) -> int:
        """Return the position of element ``index`` in ``array``.

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

    A block of -1 stands for several blocks, a thread of -1 for several threads.
    """

    block: int
    thread: int
    barriers: int

    @property
    def thread_id(self) -> tuple[int, int]:
        """The thread's number in the grid: (block, number in the block)."""
        return self.block, self.thread


_SEVERAL_BLOCKS: Final = Accessor(-1, -1, -1)
"""The reader of an element that several blocks read."""

_ADDING_THREADS: Final = Accessor(-1, -1, -1)
"""The writer of an element to which threads add."""


@record
class Accesses:
    """Records which threads wrote and read each element of the grid's memory.

    Keys are positions of elements. The records are cleared at grid barriers.
    """

    writers: dict[int, Accessor] = field(default_factory=dict[int, Accessor])
    """The last writer of each element."""
    readers: dict[int, int] | None = None
    """The block that read each element, -1 for several; None without grid barriers."""
    last_readers: dict[int, Accessor] | None = None
    """The last reader of each element, if several arguments have the same memory."""

    def clear(self) -> None:
        """Forget writers and readers: all blocks have reached a barrier."""
        self.writers.clear()
        if self.readers is not None:
            self.readers.clear()


class GlobalMemory(Memory):
    """Memory of the grid: an element is written by one thread, or added to by many.

    In a cooperative launch, no block may read an element that another has written, or
    write one that another has read, since the last grid barrier.
    """

    running: Any = None  # the thread that runs, of any kernel

    def __init__(self, pointer: Pointer, name: str, accesses: Accesses) -> None:
        """Begin at ``pointer``; ``accesses`` records who wrote and read elements.

        Arguments with the same memory share ``accesses``.
        """
        super().__init__(pointer.array, name, pointer.start)
        self.accesses = accesses

    def subarray(self, at: int) -> GlobalMemory:
        """Return this memory from element ``at`` on."""
        pointer = Pointer(self.array, self.start + int(at))
        return GlobalMemory(pointer, f"{self.name}[{at}:]", self.accesses)

    @override
    def __getitem__(self, index: int) -> Any:
        """Read an element for the running thread; EmulationError if it races."""
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
        """Record a read of an element that may also be written through an argument.

        The running thread becomes the element's reader in ``last_readers``, or several
        threads do. Raises EmulationError if the read races with a write.
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
        """Raise EmulationError if a reader and a writer race for element ``index``.

        They do if they are different threads with no barrier between their accesses. If
        ``one`` is None, there is no earlier access.
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
        """Write an element for the running thread; EmulationError if it races."""
        assert GlobalMemory.running is not None
        block = GlobalMemory.running.block
        writer = Accessor(block.index, GlobalMemory.running.index, block.epoch)
        self._written_by(int(index), writer)
        super().__setitem__(index, value)

    def add(self, index: int, value: Any) -> None:
        """Add ``value`` to element ``index``; other threads may add to it as well."""
        # No thread is the writer: only a plain write by any thread conflicts.
        self._written_by(index, _ADDING_THREADS)
        self.array[self.offset(index)] += value

    def _written_by(self, index: int, writer: Accessor) -> None:
        """Record that ``writer`` writes element ``index``, or adds to it.

        Raises WrittenTwiceError if another thread wrote the element, and EmulationError
        if the write races with other accesses.
        """
        at = self.offset(index)
        known = self.accesses.writers.get(at, writer)
        # This and an earlier write. Threads of a block may write one after the other,
        # with a barrier between.
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
        # This write and a read, through another argument of the same memory.
        if self.accesses.last_readers is not None:
            self._check_ordered(index, self.accesses.last_readers.get(at), writer)
        # This write and a read by another block.
        if self.accesses.readers is not None:
            reader = self.accesses.readers.get(at)
            if reader is not None and reader != writer.block:
                raise self._race(index, reader, writer.block)

    def _race(self, index: int, one: int, other: int) -> EmulationError:
        """Make the error of blocks ``one`` and ``other`` that race for an element.

        If ``one`` is -1, it stands for several blocks.
        """
        blocks = f"{other} and others" if one < 0 else f"{one} and {other}"
        return EmulationError(
            f"blocks {blocks} race for {self.name}[{index}]: no grid_barrier stands "
            "between"
        )


@frozen(slots=True)
class _Access:
    """A thread's access to an element of shared memory, and the barriers before it.

    ``epoch`` counts the block's barriers, ``warp_epoch`` those of the thread's warp.
    """

    thread: int
    epoch: int
    warp_epoch: int

    def races_with(self, other: _Access) -> bool:
        """Whether no barrier is between this and an earlier access of another thread.

        A barrier of a warp counts for threads of the same warp.
        """
        if self.epoch != other.epoch or self.thread == other.thread:
            return False
        in_one_warp = min(self.thread, other.thread) >= 0 and (
            self.thread // WARP == other.thread // WARP
        )
        return not in_one_warp or self.warp_epoch == other.warp_epoch


class SharedMemory(Memory):
    """Shared memory of a block, whose accesses are checked for races.

    Between two barriers, an element may have one writer, or any readers, or threads
    that add to it. A barrier of a warp counts for threads of that warp.
    """

    def __init__(self, array: Array, name: str, block: Any) -> None:
        super().__init__(array, name)
        self.block = block
        # The last access of each kind to each element, by its index.
        self.written: dict[int, _Access] = {}
        self.read: dict[int, _Access] = {}
        self.added: dict[int, _Access] = {}

    @override
    def __getitem__(self, index: int) -> Any:
        """Read an element for the running thread; EmulationError if it races."""
        access = self._access(self._thread())
        self._check(int(index), access, self.written, self.added)
        self.read[int(index)] = access
        return super().__getitem__(index)

    @override
    def __setitem__(self, index: int, value: Any) -> None:
        """Write an element for the running thread; EmulationError if it races."""
        self.write(int(index), value, self._thread())

    def write(self, index: int, value: Any, thread: int) -> None:
        """Write ``value`` to element ``index`` for the thread of number ``thread``.

        Raises EmulationError if the write races with an earlier access.
        """
        access = self._access(thread)
        self._check(index, access, self.written, self.read, self.added)
        self.written[index] = access
        super().__setitem__(index, value)

    def add(self, index: int, value: Any) -> None:
        """Add ``value`` to element ``index``; other threads may add to it as well."""
        access = self._access(self._thread())
        self._check(index, access, self.written, self.read)
        self.added[index] = access
        self.array[self.offset(index)] += value

    def reader(self, index: int) -> int | None:
        """Return the number of another thread that may still read element ``index``.

        None if there is no such thread.
        """
        other = self.read.get(index)
        races = other and self._access(self._thread()).races_with(other)
        return other.thread if other and races else None

    def _access(self, thread: int) -> _Access:
        """Return the record of an access by ``thread`` at this time."""
        warp_epoch = self.block.warps.get(thread // WARP, 0)
        return _Access(thread, self.block.epoch, warp_epoch)

    def _check(self, index: int, access: _Access, *earlier: dict[int, _Access]) -> None:
        """Raise EmulationError if ``access`` races with an earlier access.

        Each of ``earlier`` has the last accesses of some kind, by element.
        """
        for accesses in earlier:
            other = accesses.get(index)
            if other is not None and access.races_with(other):
                raise EmulationError(
                    f"threads {other.thread} and {access.thread} of block "
                    f"{self.block.index} race for shared {self.name}[{index}]: no "
                    "barrier stands between"
                )

    def _thread(self) -> int:
        """Return the number of the running thread in its block."""
        assert GlobalMemory.running is not None
        return GlobalMemory.running.index


@record
class Mbarrier:
    """An mbarrier: the bytes it expects, the copies in flight, the phases completed.

    ``arriving`` has the copies in flight as (shared array, first element, values).
    """

    expected: int = 0
    phases: int = 0
    arriving: list[tuple[SharedMemory, int, list[Any]]] = field(
        default_factory=list["tuple[SharedMemory, int, list[Any]]"]
    )

    @property
    def bytes(self) -> int:
        """Bytes of all copies that this mbarrier counts, arrived or not."""
        return sum(len(v) * s.array.itemsize for s, _, v in self.arriving)
