"""The threads and blocks of an emulated kernel, and the actions that need them.

An *action* emulates a kind of device functions for one thread (``actions``).
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from dataclasses import field
from typing import Any, Final

from arrayfn.backends.cuda.emulator import lookback
from arrayfn.backends.cuda.emulator.actions import ACTIONS, PLAIN, emulates
from arrayfn.backends.cuda.emulator.copies import check_unread
from arrayfn.backends.cuda.emulator.memory import (
    EmulationError,
    GlobalMemory,
    Mbarrier,
    Memory,
    SharedMemory,
    unwritten,
)
from arrayfn.lowering.cuda import vocabulary
from arrayfn.lowering.cuda.vocabulary import DeviceFunction
from arrayfn.records import frozen, record


@frozen(slots=True)
class Wait:
    """The function at which a thread waits for others, its line and its arguments."""

    function: str
    line: int
    arguments: tuple[Any, ...]


REGISTERED: Final = (lookback,)
"""Other modules that register actions when they are imported."""

Mbarriers = dict[int, Mbarrier]
"""An array of mbarriers: those that are initialized, by index."""


@record
class Block:
    """A block: the memory that its threads share, and the blocks of its cluster.

    ``index`` is its number in the grid. ``epoch`` counts the barriers that the block
    has passed, and ``warps`` the warp barriers of each warp. ``mbarriers`` has arrays
    by the line that declares them. ``cluster`` are all blocks of its cluster.
    ``dynamic_block_id`` is the number in the order in which blocks begin, and
    ``launch`` the launch's number from 1, once the block has asked for them.
    """

    index: int
    epoch: int = 0
    warps: dict[int, int] = field(default_factory=dict[int, int])
    shared: dict[tuple[str, int], SharedMemory] = field(default_factory=dict)
    mbarriers: dict[int, Mbarriers] = field(default_factory=dict)
    cluster: list[Block] = field(default_factory=list)
    cluster_runs: bool = False  # whether the cluster is known to run
    dynamic_block_id: int | None = None
    launch: int = 0

    def shared_array(
        self, key: tuple[str, int], function: DeviceFunction, name: str, count: int
    ) -> SharedMemory:
        """Return the shared array of ``key``, which the first call makes.

        ``key`` is the device function's name, and the line that declares the array or,
        for dynamic shared memory, -1 minus the array's byte offset. The array has
        ``count`` elements of the dtype of ``function``; errors call it ``name``.
        """
        if key not in self.shared:
            memory = unwritten(count, function.dtype)
            self.shared[key] = SharedMemory(memory, name, self)
        return self.shared[key]


@record
class Thread:
    """A thread of a block, which runs as a generator.

    ``body`` is the generator, None once the thread has ended. ``waiting`` is the
    function at which it waits. ``copies`` has its asynchronous copies as (shared array,
    first element, values), in commit groups; the last group is not committed yet.
    """

    block: Block
    index: int
    body: Generator[Wait, Any, None] | None = None
    waiting: Wait | None = None
    copies: list[list[tuple[SharedMemory, int, list[Any]]]] = field(
        default_factory=lambda: [[]]
    )

    def call(self, function: DeviceFunction, arguments: tuple[Any, ...]) -> Any:
        """Execute a device function for this thread; return its value, if any."""
        plain = PLAIN.get(function.kind)
        if plain is not None:
            return plain(*arguments)
        return ACTIONS[function.kind](self, function, *arguments)

    def resume(self, value: Any) -> None:
        """Run the thread to its next wait or its end.

        ``value`` is the result of the function at which it waited.
        """
        vocabulary.set_current(self)
        GlobalMemory.running = self
        try:
            assert self.body is not None
            self.waiting = self.body.send(value)
        except StopIteration:
            self.body, self.waiting = None, None
        finally:
            vocabulary.set_current(None)
            GlobalMemory.running = None


# Python frames from an action to the kernel: the action's own, ``Thread.call``'s, and
# the device function's.
_FRAMES_TO_KERNEL: Final = 3


@emulates("shared")
def _shared(thread: Thread, f: DeviceFunction, count: int) -> SharedMemory:
    """Return the static shared array that the kernel's current line declares.

    Each line of the text has one array, even if a helper with that line is called more
    than once.
    """
    line = sys._getframe(_FRAMES_TO_KERNEL).f_lineno
    return thread.block.shared_array((f.name, line), f, f.name, count)


@emulates("dynamic_shared")
def _dynamic_shared(
    thread: Thread, f: DeviceFunction, offset: int, count: int
) -> SharedMemory:
    """Return ``count`` elements of dynamic shared memory, from byte ``offset`` on."""
    key = f.name, -1 - int(offset)
    return thread.block.shared_array(key, f, f"{f.name} at {offset}", int(count))


@emulates("mbarriers")
def _mbarriers(thread: Thread, f: DeviceFunction, count: int) -> Mbarriers:
    """Return the array of mbarriers that the kernel's current line declares."""
    line = sys._getframe(_FRAMES_TO_KERNEL).f_lineno
    return thread.block.mbarriers.setdefault(line, {})


@emulates("registers")
def _registers(thread: Thread, f: DeviceFunction, count: int) -> Memory:
    """Make an array of ``count`` registers, which count as unwritten."""
    return Memory(unwritten(count, f.dtype), f.name)


ACTIONS.update(
    {
        "block_index": lambda thread, f: thread.block.index,
        "thread_index": lambda thread, f: thread.index,
        "subarray": lambda thread, f, array, at: array.subarray(at),
        "atomic_add": lambda thread, f, array, at, value: array.add(int(at), value),
    }
)


@emulates("dsmem_store")
def _dsmem_store(
    thread: Thread,
    f: DeviceFunction,
    array: SharedMemory,
    at: int,
    value: Any,
    rank: int,
    mbarriers: Mbarriers,
    k: int,
) -> None:
    """Store ``value`` to ``array[at]`` in the block of number ``rank`` in the cluster.

    That block's ``mbarriers[k]`` counts the bytes. Raises EmulationError if the block
    may not have begun to run.
    """
    block = thread.block
    if not block.cluster_runs:
        raise EmulationError(
            f"block {block.index} sends to block {rank} of its cluster, which may not "
            "have begun to run: no cluster_wait stands before"
        )
    # All blocks declare the same arrays, so ``key`` finds the array in the other block,
    # and ``line`` its mbarriers.
    (key,) = (key for key, memory in block.shared.items() if memory is array)
    target = block.cluster[int(rank)].shared_array(key, f, f.name, array.array.size)
    # The value may arrive at once, so a thread there that still reads may see it. It is
    # written again when the mbarrier's phase completes.
    target.array[target.offset(at)] = value
    (line,) = (line for line, own in block.mbarriers.items() if own is mbarriers)
    peers = target.block.mbarriers[line]
    mbarrier_of(peers, k).arriving.append((target, int(at), [value]))


@emulates("mbarrier_init")
def _mbarrier_init(
    thread: Thread, f: DeviceFunction, mbarriers: Mbarriers, count: int
) -> None:
    """Initialize the first ``count`` mbarriers of an array."""
    mbarriers.update((k, Mbarrier()) for k in range(int(count)))


def mbarrier_of(mbarriers: Mbarriers, k: int) -> Mbarrier:
    """Return ``mbarriers[k]``; raises EmulationError if it is not initialized."""
    if int(k) not in mbarriers:
        raise EmulationError(f"mbarrier {k} is used before it is initialized")
    return mbarriers[int(k)]


@emulates("mbarrier_expect_tx")
def _mbarrier_expect_tx(
    thread: Thread, f: DeviceFunction, mbarriers: Mbarriers, k: int, nbytes: int
) -> None:
    """Arrive at ``mbarriers[k]``, whose phase completes after ``nbytes`` of copies.

    Raises EmulationError if the phase has an arrival already.
    """
    mbarrier = mbarrier_of(mbarriers, k)
    if mbarrier.expected:
        raise EmulationError(f"mbarrier {k} expects something already")
    mbarrier.expected = int(nbytes)
    if not mbarrier.expected:
        mbarrier.phases += 1  # no bytes will arrive: the phase is complete


@emulates("bulk_copy")
def _bulk_copy(
    thread: Thread,
    f: DeviceFunction,
    array: Memory,
    at: int,
    shared: SharedMemory,
    to: int,
    count: int,
    mbarriers: Mbarriers,
    k: int,
) -> None:
    """Begin a copy of ``count`` elements from ``array[at]`` to ``shared[to]``.

    It is written when the phase of ``mbarriers[k]`` completes. Raises EmulationError
    for addresses and sizes that are no multiples of 16 bytes, and if a thread may still
    read the target.
    """
    size = array.array.itemsize
    for what, start in ((array, at), (shared, to)):
        address = what.array.ctypes.data + what.offset(start) * size
        # The base of a shared array is aligned on a GPU, whatever its address is here.
        if (what is array and address % 16) or int(start) * size % 16:
            raise EmulationError(f"a bulk copy at {what.name}[{start}] is not aligned")
    if int(count) * size % 16:
        raise EmulationError(
            f"a bulk copy of {count} elements is not a multiple of 16 bytes"
        )
    values = [array[int(at) + n] for n in range(int(count))]
    check_unread(thread, shared, int(to), int(count), "is copied")
    mbarrier_of(mbarriers, k).arriving.append((shared, int(to), values))


def phase_is_complete(thread: Thread) -> bool:
    """Whether the mbarrier phase that ``thread`` waits for is complete.

    If all its bytes have arrived, this completes it: writes the copied values, and
    begins the next phase. Raises EmulationError if more bytes arrive than expected.
    """
    assert thread.waiting is not None
    mbarriers, k, parity = thread.waiting.arguments
    mbarrier = mbarrier_of(mbarriers, k)
    if mbarrier.phases % 2 != int(parity):  # a later phase has begun
        return True
    if not mbarrier.expected or mbarrier.bytes < mbarrier.expected:
        return False
    if mbarrier.bytes > mbarrier.expected:
        raise EmulationError(
            f"mbarrier {k} counts {mbarrier.bytes} bytes where {mbarrier.expected} are "
            "expected: some are of its next phase"
        )
    for shared, at, values in mbarrier.arriving:
        for n, value in enumerate(values):
            shared.array[at + n] = value
    mbarrier.arriving, mbarrier.expected = [], 0
    mbarrier.phases += 1
    return True
