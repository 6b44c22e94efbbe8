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

from arrayfn.backends.cuda.emulator.boards import BOARDS
from arrayfn.backends.cuda.emulator.copies import COPIES, unread
from arrayfn.backends.cuda.emulator.memory import (
    EmulationError,
    GlobalMemory,
    Memory,
    SharedMemory,
    Signal,
    unwritten,
)
from arrayfn.lowering.cuda import vocabulary
from arrayfn.lowering.cuda.vocabulary import (
    LEAST_DIVIDEND,
    LEAST_DIVISOR,
    DeviceFunction,
)


@dataclass(frozen=True, slots=True)
class Meeting:
    """What a generator yields: where it stands, and what it brings."""

    function: str
    line: int
    arguments: tuple[Any, ...]


Signals = dict[int, Signal]
"""The signals of an array, by number: those that have been made."""


@dataclass
class Block:
    """A block of threads: what they share, and the blocks of its cluster."""

    index: int
    epoch: int = 0
    warps: dict[int, int] = field(default_factory=dict[int, int])
    shared: dict[tuple[str, int], SharedMemory] = field(default_factory=dict)
    signals: dict[int, Signals] = field(default_factory=dict)
    cluster: list[Block] = field(default_factory=list)
    met: bool = False  # whether the cluster is known to run
    ticket: int | None = None
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
    body: Generator[Meeting, Any, None] | None = None
    waiting: Meeting | None = None
    copies: list[list[tuple[SharedMemory, int, list[Any]]]] = field(
        default_factory=lambda: [[]]
    )

    def call(self, function: DeviceFunction, arguments: tuple[Any, ...]) -> Any:
        """Do what a word of the vocabulary says."""
        return _ACTIONS[function.kind](self, function, arguments)

    def resume(self, value: Any) -> None:
        """Go on, with ``value``, to the next meeting or the end."""
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


def _signals(thread: Thread, function: DeviceFunction, arguments: Any) -> Signals:
    line = sys._getframe(_FRAMES_TO_KERNEL).f_lineno
    return thread.block.signals.setdefault(line, {})


def _registers(thread: Thread, function: DeviceFunction, arguments: Any) -> Memory:
    array = unwritten(arguments[0], function.dtype)
    return Memory(array, function.name)


def _send(thread: Thread, function: DeviceFunction, arguments: Any) -> None:
    array, at, value, rank, signals, k = arguments
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
    (line,) = (line for line, own in block.signals.items() if own is signals)
    signal_of((peer.signals[line], k)).arriving.append((target, int(at), [value]))


def _atomic_add(thread: Thread, function: DeviceFunction, arguments: Any) -> None:
    array, at, value = arguments
    array.add(int(at), value)


def _arena(thread: Thread, function: DeviceFunction, arguments: Any) -> SharedMemory:
    offset, count = arguments
    key = (function.name, -1 - int(offset))
    block = thread.block
    if key not in block.shared:
        array = unwritten(int(count), function.dtype)
        block.shared[key] = SharedMemory(array, f"{function.name} at {offset}", block)
    return block.shared[key]


def _signal_init(thread: Thread, function: DeviceFunction, arguments: Any) -> None:
    signals, count = arguments
    signals.update((k, Signal()) for k in range(int(count)))


def signal_of(arguments: Any) -> Signal:
    """The signal of these, and its number."""
    signals, k = arguments
    if int(k) not in signals:
        raise EmulationError(f"signal {k} is used before it is made")
    return signals[int(k)]


def _expect(thread: Thread, function: DeviceFunction, arguments: Any) -> None:
    signal = signal_of(arguments[:2])
    if signal.expected:
        raise EmulationError(f"signal {arguments[1]} expects something already")
    signal.expected = int(arguments[2])
    if not signal.expected:
        signal.turns += 1  # nothing is to come


def _fetch(thread: Thread, function: DeviceFunction, arguments: Any) -> None:
    array, at, shared, place, count, *signal = arguments
    size = array.array.itemsize
    for what, start in ((array, at), (shared, place)):
        address = what.array.ctypes.data + what.place(start) * size
        if (what is array and address % 16) or int(start) * size % 16:
            raise EmulationError(f"a fetch at {what.name}[{start}] is not aligned")
    if int(count) * size % 16:
        raise EmulationError(f"a fetch of {count} elements is not of whole pieces")
    values = [array[int(at) + k] for k in range(int(count))]
    unread(thread, shared, int(place), int(count), "is fetched")
    signal_of(signal).arriving.append((shared, int(place), values))


def _divides(thread: Thread, function: DeviceFunction, arguments: Any) -> bool:
    least, greatest, y = arguments
    small, large = LEAST_DIVIDEND, 1 / LEAST_DIVIDEND
    divisors = LEAST_DIVISOR <= abs(y) <= 1 / LEAST_DIVISOR
    return bool(least >= small and greatest <= large and divisors)


def _fused(thread: Thread, function: DeviceFunction, arguments: Any) -> Any:
    x, y, z = map(np.float64, arguments)
    return np.float32(x * y + z)


def has_come(thread: Thread) -> bool:
    """Whether the signal that ``thread`` waits for has come, and all that it counts."""
    assert thread.waiting is not None
    signals, k, parity = thread.waiting.arguments
    signal = signal_of((signals, k))
    if signal.turns % 2 != int(parity):
        return True
    if not signal.expected or signal.bytes < signal.expected:
        return False
    if signal.bytes > signal.expected:
        raise EmulationError(
            f"signal {k} counts {signal.bytes} bytes where {signal.expected} are "
            "expected: some are of its next turn"
        )
    for shared, place, values in signal.arriving:
        for n, value in enumerate(values):
            shared.array[place + n] = value
    signal.arriving, signal.expected = [], 0
    signal.turns += 1
    return True


_ACTIONS: dict[str, Callable[[Thread, DeviceFunction, Any], Any]] = {
    "block_index": lambda thread, function, arguments: thread.block.index,
    "thread_index": lambda thread, function, arguments: thread.index,
    "quotient": lambda thread, function, arguments: arguments[0] // arguments[1],
    "remainder": lambda thread, function, arguments: arguments[0] % arguments[1],
    "byte": lambda thread, function, arguments: int(arguments[0]) >> arguments[1] & 255,
    "shared": _shared,
    "registers": _registers,
    "send": _send,
    "atomic_add": _atomic_add,
    "inverse": lambda thread, function, arguments: np.float32(1) / arguments[0],
    "divide": lambda thread, function, arguments: arguments[0] / arguments[1],
    "divides": _divides,
    "fused": _fused,
    "cluster_arrive": lambda thread, function, arguments: None,
    "arena": _arena,
    "signals": _signals,
    "signal_init": _signal_init,
    "show_signals": lambda thread, function, arguments: None,
    "expect": _expect,
    "fetch": _fetch,
    "await_kernels": lambda thread, function, arguments: None,
    "release_kernels": lambda thread, function, arguments: None,
    **COPIES,
    **BOARDS,
    "window": lambda thread, function, arguments: arguments[0].window(arguments[1]),
}
