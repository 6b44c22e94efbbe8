"""The emulator's boards: values that blocks post for those that begin later.

The words are those of a GPU (``arrayfn.backends.cuda.boards``). Where blocks run one
after the other, what is waited for is there, or never comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from arrayfn.backends.cuda.emulator.memory import EmulationError
from arrayfn.lowering.cuda.vocabulary import DeviceFunction
from arrayfn.lowering.scalars.numpy_arithmetic import DTYPES

_HALF: Final = 32
_LOW: Final = 2**_HALF - 1


def _ticket(thread: Any, function: DeviceFunction, arguments: Any) -> int:
    board, blocks = arguments
    block = thread.block
    if block.ticket is None:
        word = int(board.array[board.place(0)])
        block.ticket, launch = word & _LOW, word >> _HALF
        block.launch = launch + 1
        following = word + 1
        if block.ticket == int(blocks) - 1:
            following = (launch + 1) << _HALF
        board.array[board.place(0)] = following
    return block.ticket


def _open(thread: Any, function: DeviceFunction, arguments: Any) -> None:
    (board,) = arguments
    thread.block.launch = (int(board.array[board.place(0)]) >> _HALF) + 1


def _take(thread: Any, function: DeviceFunction, arguments: Any) -> int:
    board, at, count = arguments
    number = int(board.array[board.place(at)])
    board.array[board.place(at)] = number + int(count)
    return number


def _close(thread: Any, function: DeviceFunction, arguments: Any) -> None:
    board, at, blocks = arguments
    word = int(board.array[board.place(0)]) + 1
    if word & _LOW == int(blocks):
        word = ((word >> _HALF) + 1) << _HALF
        board.array[board.place(at)] = 0
    board.array[board.place(0)] = word


def _words(function: DeviceFunction) -> int:
    return max(1, np.dtype(DTYPES[function.dtype]).itemsize // 4)


def _launch(block: Any, function: DeviceFunction) -> int:
    if not block.launch:
        raise EmulationError(
            f"{function.name} is called before a ticket, or open_board, says which "
            "launch it is"
        )
    return block.launch


def _post(thread: Any, function: DeviceFunction, arguments: Any) -> None:
    board, at, value = arguments
    launch, count = _launch(thread.block, function), _words(function)
    bits = np.array([value], DTYPES[function.dtype]).tobytes().ljust(4, b"\0")
    for k, word in enumerate(np.frombuffer(bits, np.uint32)):
        place = board.place(1 + int(at) * count + k)
        if int(board.array[place]) >> _HALF == launch:
            raise EmulationError(f"place {at} of {board.name} is posted to twice")
        board.array[place] = launch << _HALF | int(word)


def posted(block: Any, function: DeviceFunction, arguments: Any) -> Any:
    """The value at a place of a board; None if this launch has not posted one yet."""
    board, at = arguments
    launch, count = _launch(block, function), _words(function)
    words: list[int] = []
    for k in range(count):
        word = int(board.array[board.place(1 + int(at) * count + k)])
        if word >> _HALF != launch:
            return None
        words.append(word & _LOW)
    return np.array(words, np.uint32).view(DTYPES[function.dtype])[0]


def postings(block: Any, function: DeviceFunction, arguments: Any) -> bool | None:
    """Put values that have been posted in registers; None if one has not been yet."""
    board, *_, tile = arguments
    places = _places(function, arguments)
    values = [posted(block, function, (board, at)) for at in places]
    if any(value is None for value in values):
        return None
    for k, value in enumerate(values):
        tile[k] = value
    return True


def _places(function: DeviceFunction, arguments: Any) -> range:
    if function.kind == "posted":
        return range(arguments[1], arguments[1] + 1)
    first, step, end = map(int, arguments[1:4])
    return range(first, min(end, first + function.lanes * step), step)


def never_posted(
    block: Any, function: DeviceFunction, arguments: Any
) -> EmulationError:
    """The error of a block that waits for what no block is going to post."""
    board, places = arguments[0], _places(function, arguments)
    at = next(at for at in places if posted(block, function, (board, at)) is None)
    return EmulationError(
        f"block {block.index} waits for place {at} of {board.name}, which no block "
        "before it has posted to"
    )


BOARDS: Final[dict[str, Callable[[Any, DeviceFunction, Any], Any]]] = {
    "ticket": _ticket,
    "open_board": _open,
    "take": _take,
    "close_board": _close,
    "post": _post,
    "fence": lambda thread, function, arguments: None,
}
