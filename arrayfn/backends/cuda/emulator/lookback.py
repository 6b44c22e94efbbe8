"""Emulates look-back flags and work queues.

The words of a flag buffer are as on a GPU (``arrayfn.backends.cuda.lookback``): 32 bits
of a value, and above them the number of the launch. The emulator runs blocks one after
the other, so a value that a block waits for is already published, or never will be.
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
    """Return the block's number in the order in which blocks begin.

    The first word of ``flags`` counts launches (upper half), and the blocks of this
    launch that have begun (lower half). The last block resets the lower half.
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
    """Set the block's launch number from the first word of ``flags``."""
    thread.block.launch = (int(flags.array[flags.offset(0)]) >> _HALF) + 1


@emulates("next_work_item")
def _next_work_item(
    thread: Any, f: DeviceFunction, flags: Any, at: int, count: int
) -> int:
    """Claim ``count`` work items of the queue ``flags[at]``; return the first item."""
    number = int(flags.array[flags.offset(at)])
    flags.array[flags.offset(at)] = number + int(count)
    return number


@emulates("end_work_queue")
def _end_work_queue(
    thread: Any, f: DeviceFunction, flags: Any, at: int, blocks: int
) -> None:
    """Count a block as done in the first word of ``flags``.

    The last of ``blocks`` resets the queue's counter ``flags[at]``, and counts the
    launch.
    """
    word = int(flags.array[flags.offset(0)]) + 1
    if word & _LOW == int(blocks):
        word = ((word >> _HALF) + 1) << _HALF
        flags.array[flags.offset(at)] = 0
    flags.array[flags.offset(0)] = word


def _words(function: DeviceFunction) -> int:
    """Return how many words a slot of the function's dtype has: one for 32 bits."""
    return max(1, np.dtype(DTYPES[function.dtype]).itemsize // 4)


def _launch(block: Any, function: DeviceFunction) -> int:
    """Return the number of the launch that ``block`` runs in, from 1.

    Raises EmulationError if the block has not yet asked for it. ``function`` is the
    device function that needs it.
    """
    if not block.launch:
        raise EmulationError(
            f"{function.name} is called before dynamic_block_id or begin_work_queue "
            "says which launch it is"
        )
    return block.launch


@emulates("publish")
def _publish(thread: Any, f: DeviceFunction, flags: Any, at: int, value: Any) -> None:
    """Publish ``value`` in slot ``at``: 32 bits in each word, with the launch's number.

    Raises EmulationError if this launch has published the slot already.
    """
    launch, count = _launch(thread.block, f), _words(f)
    bits = np.array([value], DTYPES[f.dtype]).tobytes().ljust(4, b"\0")
    for k, word in enumerate(np.frombuffer(bits, np.uint32)):
        offset = flags.offset(1 + int(at) * count + k)
        if int(flags.array[offset]) >> _HALF == launch:
            raise EmulationError(f"slot {at} of {flags.name} is published twice")
        flags.array[offset] = launch << _HALF | int(word)


def wait_for(block: Any, function: DeviceFunction, arguments: Any) -> Any:
    """Return the value in a slot; None if this launch has not published the slot yet.

    ``arguments`` are those of the device function: the flag buffer, and the slot's
    number.
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
    """Load the values of several slots into registers, and return True.

    Returns None, and loads nothing, if a slot is not published yet. ``arguments`` are
    those of the device function: flag buffer, first slot, step, end, registers.
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
    """Return the numbers of the slots that a call of ``function`` waits for."""
    if function.kind == "wait_for":
        return range(arguments[1], arguments[1] + 1)
    first, step, end = map(int, arguments[1:4])
    return range(first, min(end, first + function.lanes * step), step)


def never_published(
    block: Any, function: DeviceFunction, arguments: Any
) -> EmulationError:
    """Make the error for a block that waits for a slot that no block publishes.

    ``arguments`` are those of the call of ``function`` at which it waits. The error
    names the first such slot.
    """
    flag_buffer, slots = arguments[0], _slots(function, arguments)
    at = next(
        at for at in slots if wait_for(block, function, (flag_buffer, at)) is None
    )
    return EmulationError(
        f"block {block.index} waits for slot {at} of {flag_buffer.name}, which no "
        "block before it has published"
    )
