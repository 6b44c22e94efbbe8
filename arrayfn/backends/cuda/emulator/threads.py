"""What a thread of an emulated kernel is, and what it does without the others.

Each word of the vocabulary at which threads do not meet is a function of the thread,
the word, and its arguments.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from arrayfn.backends.cuda.emulator.copies import COPIES, unread
from arrayfn.backends.cuda.emulator.lookback import LOOKBACK
from arrayfn.backends.cuda.emulator.memory import (
    EmulationError,
    GlobalMemory,
    Mbarrier,
    Memory,
    SharedMemory,
    unwritten,
)
from arrayfn.lowering.cuda import vocabulary
from arrayfn.lowering.cuda.vocabulary import (
    MIN_DIVIDEND,
    MIN_DIVISOR,
    DeviceFunction,
)


@dataclass(frozen=True, slots=True)
class Wait:
    """What a generator yields: where it stands, and what it brings."""

    function: str
    line: int
    arguments: tuple[Any, ...]


Mbarriers = dict[int, Mbarrier]
"""The initialized mbarriers of an array, by number."""


@dataclass
class Block:
    """A block of threads: what they share, and the blocks of its cluster."""

    index: int
    epoch: int = 0
    warps: dict[int, int] = field(default_factory=dict[int, int])
    shared: dict[tuple[str, int], SharedMemory] = field(default_factory=dict)
    mbarriers: dict[int, Mbarriers] = field(default_factory=dict)
    cluster: list[Block] = field(default_factory=list)
    met: bool = False  # whether the cluster is known to run
    dynamic_block_id: int | None = None
    launch: int = 0

    @property
    def rank(self) -> int:
        """Its number in the cluster."""
        return self.cluster.index(self)


@dataclass
class Thread:
    """One thread: its generator, and what it waits at."""

    block: Block
    index: int
    body: Generator[Wait, Any, None] | None = None
    waiting: Wait | None = None
    copies: list[list[tuple[SharedMemory, int, list[Any]]]] = field(
        default_factory=lambda: [[]]
    )

    def call(self, function: DeviceFunction, arguments: tuple[Any, ...]) -> Any:
        """Do what a word of the vocabulary says."""
        return _ACTIONS[function.kind](self, function, arguments)

    def resume(self, value: Any) -> None:
        """Go on, with ``value``, to the next wait or the end."""
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


_FRAMES_TO_KERNEL: Final = 3  # an action's, the thread's, the device function's


def _shared(thread: Thread, function: DeviceFunction, arguments: Any) -> SharedMemory:
    # Each place of the text has its array, also where a part comes to it again.
    line = sys._getframe(_FRAMES_TO_KERNEL).f_lineno
    key = (function.name, line)
    block = thread.block
    if key not in block.shared:
        array = unwritten(arguments[0], function.dtype)
        block.shared[key] = SharedMemory(array, function.name, block)
    return block.shared[key]


def _mbarriers(thread: Thread, function: DeviceFunction, arguments: Any) -> Mbarriers:
    line = sys._getframe(_FRAMES_TO_KERNEL).f_lineno
    return thread.block.mbarriers.setdefault(line, {})


def _registers(thread: Thread, function: DeviceFunction, arguments: Any) -> Memory:
    array = unwritten(arguments[0], function.dtype)
    return Memory(array, function.name)


def _dsmem_store(thread: Thread, function: DeviceFunction, arguments: Any) -> None:
    array, at, value, rank, mbarriers, k = arguments
    block = thread.block
    if not block.met:
        raise EmulationError(
            f"block {block.index} sends to block {rank} of its cluster, which may not "
            "have begun to run: no cluster_wait stands before"
        )
    (key,) = (key for key, memory in block.shared.items() if memory is array)
    peer = block.cluster[int(rank)]
    if key not in peer.shared:
        own = unwritten(array.array.size, function.dtype)
        peer.shared[key] = SharedMemory(own, function.name, peer)
    # What another block sends may be there at once: who still reads reads it.
    target = peer.shared[key]
    target.array[target.place(at)] = value
    (line,) = (line for line, own in block.mbarriers.items() if own is mbarriers)
    mbarrier_of((peer.mbarriers[line], k)).arriving.append((target, int(at), [value]))


def _atomic_add(thread: Thread, function: DeviceFunction, arguments: Any) -> None:
    array, at, value = arguments
    array.add(int(at), value)


def _dynamic_shared(
    thread: Thread, function: DeviceFunction, arguments: Any
) -> SharedMemory:
    offset, count = arguments
    key = (function.name, -1 - int(offset))
    block = thread.block
    if key not in block.shared:
        array = unwritten(int(count), function.dtype)
        block.shared[key] = SharedMemory(array, f"{function.name} at {offset}", block)
    return block.shared[key]


def _mbarrier_init(thread: Thread, function: DeviceFunction, arguments: Any) -> None:
    mbarriers, count = arguments
    mbarriers.update((k, Mbarrier()) for k in range(int(count)))


def mbarrier_of(arguments: Any) -> Mbarrier:
    """The mbarrier of these, and its number."""
    mbarriers, k = arguments
    if int(k) not in mbarriers:
        raise EmulationError(f"mbarrier {k} is used before it is initialized")
    return mbarriers[int(k)]


def _mbarrier_expect_tx(
    thread: Thread, function: DeviceFunction, arguments: Any
) -> None:
    mbarrier = mbarrier_of(arguments[:2])
    if mbarrier.expected:
        raise EmulationError(f"mbarrier {arguments[1]} expects something already")
    mbarrier.expected = int(arguments[2])
    if not mbarrier.expected:
        mbarrier.phases += 1  # nothing is to come


def _bulk_copy(thread: Thread, function: DeviceFunction, arguments: Any) -> None:
    array, at, shared, place, count, *mbarrier = arguments
    size = array.array.itemsize
    for what, start in ((array, at), (shared, place)):
        address = what.array.ctypes.data + what.place(start) * size
        if (what is array and address % 16) or int(start) * size % 16:
            raise EmulationError(f"a bulk copy at {what.name}[{start}] is not aligned")
    if int(count) * size % 16:
        raise EmulationError(
            f"a bulk copy of {count} elements is not a multiple of 16 bytes"
        )
    values = [array[int(at) + k] for k in range(int(count))]
    unread(thread, shared, int(place), int(count), "is copied")
    mbarrier_of(mbarrier).arriving.append((shared, int(place), values))


def _divides(thread: Thread, function: DeviceFunction, arguments: Any) -> bool:
    least, greatest, y = arguments
    small, large = MIN_DIVIDEND, 1 / MIN_DIVIDEND
    divisors = MIN_DIVISOR <= abs(y) <= 1 / MIN_DIVISOR
    return bool(least >= small and greatest <= large and divisors)


def _fma_rn(thread: Thread, function: DeviceFunction, arguments: Any) -> Any:
    x, y, z = map(np.float64, arguments)
    return np.float32(x * y + z)


def has_come(thread: Thread) -> bool:
    """Whether the phase of the mbarrier that ``thread`` waits for is complete."""
    assert thread.waiting is not None
    mbarriers, k, parity = thread.waiting.arguments
    mbarrier = mbarrier_of((mbarriers, k))
    if mbarrier.phases % 2 != int(parity):
        return True
    if not mbarrier.expected or mbarrier.bytes < mbarrier.expected:
        return False
    if mbarrier.bytes > mbarrier.expected:
        raise EmulationError(
            f"mbarrier {k} counts {mbarrier.bytes} bytes where {mbarrier.expected} are "
            "expected: some are of its next phase"
        )
    for shared, place, values in mbarrier.arriving:
        for n, value in enumerate(values):
            shared.array[place + n] = value
    mbarrier.arriving, mbarrier.expected = [], 0
    mbarrier.phases += 1
    return True


_ACTIONS: dict[str, Callable[[Thread, DeviceFunction, Any], Any]] = {
    "block_index": lambda thread, function, arguments: thread.block.index,
    "thread_index": lambda thread, function, arguments: thread.index,
    "quotient": lambda thread, function, arguments: arguments[0] // arguments[1],
    "remainder": lambda thread, function, arguments: arguments[0] % arguments[1],
    "byte": lambda thread, function, arguments: int(arguments[0]) >> arguments[1] & 255,
    "shared": _shared,
    "registers": _registers,
    "dsmem_store": _dsmem_store,
    "atomic_add": _atomic_add,
    "inverse": lambda thread, function, arguments: np.float32(1) / arguments[0],
    "divide": lambda thread, function, arguments: arguments[0] / arguments[1],
    "divides": _divides,
    "fma_rn": _fma_rn,
    "cluster_arrive": lambda thread, function, arguments: None,
    "dynamic_shared": _dynamic_shared,
    "mbarriers": _mbarriers,
    "mbarrier_init": _mbarrier_init,
    "fence_mbarrier_init": lambda thread, function, arguments: None,
    "mbarrier_expect_tx": _mbarrier_expect_tx,
    "bulk_copy": _bulk_copy,
    "griddepcontrol_wait": lambda thread, function, arguments: None,
    "griddepcontrol_launch_dependents": lambda thread, function, arguments: None,
    **COPIES,
    **LOOKBACK,
    "subarray": lambda thread, function, arguments: arguments[0].window(arguments[1]),
}
