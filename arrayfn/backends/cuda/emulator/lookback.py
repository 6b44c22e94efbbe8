"""Emulated look-back flags and work queues.

Words of a flag buffer are as on a GPU (``arrayfn.backends.cuda.lookback``). The
emulator runs blocks one after the other: a value that is waited for is already
published, or never will be.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from arrayfn.backends.cuda.emulator.actions import emulates
from arrayfn.backends.cuda.emulator.memory import EmulationError
from arrayfn.lowering.cuda.vocabulary import DeviceFunction
from arrayfn.lowering.scalars.numpy_arithmetic import DTYPES

_HALF: Final = 32
_LOW: Final = 2**_HALF - 1


@emulates("dynamic_block_id")
def _dynamic_block_id(thread: Any, f: DeviceFunction, flags: Any, blocks: int) -> int:
    """The block's number in the order in which blocks begin.

    The first word of ``flags`` counts the launch (upper half) and its blocks (lower).
    """
    block = thread.block
    if block.dynamic_block_id is None:
        word = int(flags.array[flags.offset(0)])
        block.dynamic_block_id, launch = word & _LOW, word >> _HALF
        block.launch = launch + 1
        following = word + 1
        if block.dynamic_block_id == int(blocks) - 1:
            following = (launch + 1) << _HALF
        flags.array[flags.offset(0)] = following
    return block.dynamic_block_id


@emulates("begin_work_queue")
def _begin_work_queue(thread: Any, f: DeviceFunction, flags: Any) -> None:
    thread.block.launch = (int(flags.array[flags.offset(0)]) >> _HALF) + 1


@emulates("next_work_item")
def _next_work_item(
    thread: Any, f: DeviceFunction, flags: Any, at: int, count: int
) -> int:
    """The first of the next ``count`` work items of the queue at ``flags[at]``."""
    number = int(flags.array[flags.offset(at)])
    flags.array[flags.offset(at)] = number + int(count)
    return number


@emulates("end_work_queue")
def _end_work_queue(
    thread: Any, f: DeviceFunction, flags: Any, at: int, blocks: int
) -> None:
    """Count a block as done; the last of ``blocks`` resets the queue."""
    word = int(flags.array[flags.offset(0)]) + 1
    if word & _LOW == int(blocks):
        word = ((word >> _HALF) + 1) << _HALF
        flags.array[flags.offset(at)] = 0
    flags.array[flags.offset(0)] = word


def _words(function: DeviceFunction) -> int:
    return max(1, np.dtype(DTYPES[function.dtype]).itemsize // 4)


def _launch(block: Any, function: DeviceFunction) -> int:
    """The number of the launch that ``block`` runs in.

    Raises EmulationError if the block has not yet asked for it.
    """
    if not block.launch:
        raise EmulationError(
            f"{function.name} is called before dynamic_block_id or begin_work_queue "
            "says which launch it is"
        )
    return block.launch


@emulates("publish")
def _publish(thread: Any, f: DeviceFunction, flags: Any, at: int, value: Any) -> None:
    """Write ``value`` and the launch's number to slot ``at``, 32 bits a word."""
    launch, count = _launch(thread.block, f), _words(f)
    bits = np.array([value], DTYPES[f.dtype]).tobytes().ljust(4, b"\0")
    for k, word in enumerate(np.frombuffer(bits, np.uint32)):
        offset = flags.offset(1 + int(at) * count + k)
        if int(flags.array[offset]) >> _HALF == launch:
            raise EmulationError(f"slot {at} of {flags.name} is published twice")
        flags.array[offset] = launch << _HALF | int(word)


def wait_for(block: Any, function: DeviceFunction, arguments: Any) -> Any:
    """The value in a slot; None if this launch has not published one yet.

    ``arguments`` are those of the device function: the flags and the slot's number.
    """
    flag_buffer, at = arguments
    launch, count = _launch(block, function), _words(function)
    words: list[int] = []
    for k in range(count):
        word = int(flag_buffer.array[flag_buffer.offset(1 + int(at) * count + k)])
        if word >> _HALF != launch:
            return None
        words.append(word & _LOW)
    return np.array(words, np.uint32).view(DTYPES[function.dtype])[0]


def wait_for_many(block: Any, function: DeviceFunction, arguments: Any) -> bool | None:
    """Load published values into registers; None if one is not published yet.

    ``arguments`` are those of the device function: flags, first slot, step, end,
    registers.
    """
    flag_buffer, *_, tile = arguments
    slots = _slots(function, arguments)
    values = [wait_for(block, function, (flag_buffer, at)) for at in slots]
    if any(value is None for value in values):
        return None
    for k, value in enumerate(values):
        tile[k] = value
    return True


def _slots(function: DeviceFunction, arguments: Any) -> range:
    """The slots that a call waits for."""
    if function.kind == "wait_for":
        return range(arguments[1], arguments[1] + 1)
    first, step, end = map(int, arguments[1:4])
    return range(first, min(end, first + function.lanes * step), step)


def never_published(
    block: Any, function: DeviceFunction, arguments: Any
) -> EmulationError:
    """Make the error of ``block``, which waits for a slot that no block publishes.

    ``arguments`` are those of its call of ``function``.
    """
    flag_buffer, slots = arguments[0], _slots(function, arguments)
    at = next(
        at for at in slots if wait_for(block, function, (flag_buffer, at)) is None
    )
    return EmulationError(
        f"block {block.index} waits for slot {at} of {flag_buffer.name}, which no "
        "block before it has published"
    )
