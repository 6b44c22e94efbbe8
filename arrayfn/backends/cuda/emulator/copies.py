"""The emulator's copies: vectors, and copies to shared memory that run beside.

An action is given the running thread, the function and its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from arrayfn.backends.cuda.emulator.matrices import (
    exp,
    exp2,
    halves,
    rsqrt,
    widened,
)
from arrayfn.backends.cuda.emulator.memory import EmulationError, Memory, SharedMemory
from arrayfn.lowering.cuda.vocabulary import DeviceFunction
from arrayfn.lowering.scalars.arithmetic import HALF_PRECISION


def _aligned(memory: Memory, at: int, lanes: int) -> None:
    address = memory.array.ctypes.data + memory.place(at) * memory.array.itemsize
    if address % min(16, lanes * memory.array.itemsize):
        raise EmulationError(
            f"a vector of {lanes} elements at {memory.name}[{at}] is not aligned"
        )


def _load(thread: Any, function: DeviceFunction, arguments: Any) -> None:
    array, at, tile, place = arguments
    _aligned(array, at, function.lanes)
    for k in range(function.lanes):
        tile[place + k] = array[at + k]


def _store(thread: Any, function: DeviceFunction, arguments: Any) -> None:
    array, at, tile, place = arguments
    _aligned(array, at, function.lanes)
    values = [tile[place + k] for k in range(function.lanes)]
    if function.dtype in HALF_PRECISION:
        values = halves(function.dtype, *values)
    for k, value in enumerate(values):
        array[at + k] = value


def unread(
    thread: Any, shared: SharedMemory, place: int, count: int, what: str
) -> None:
    """EmulationError if another thread has read elements since the last barrier."""
    for k in range(place, place + count):
        other = shared.reader(k)
        if other is not None:
            raise EmulationError(
                f"{shared.name}[{k}] {what} while thread {other} of block "
                f"{thread.block.index} reads it: no barrier stands between"
            )


def _copy(thread: Any, function: DeviceFunction, arguments: Any) -> None:
    array, at, shared, place, live = arguments
    lanes = function.lanes
    if live:
        _aligned(array, at, lanes)
    _aligned(shared, place, lanes)
    values = [array[at + k] if live else 0 for k in range(lanes)]
    unread(thread, shared, int(place), lanes, "is copied to")
    thread.copies[-1].append((shared, int(place), values))


def _widen(thread: Any, function: DeviceFunction, arguments: Any) -> None:
    tile, place, wide, at = arguments
    bits = [tile[place + k] for k in range(function.lanes)]
    for k, value in enumerate(widened(function.dtype, *bits)):
        wide[at + k] = value


def _transpose(thread: Any, function: DeviceFunction, arguments: Any) -> None:
    tile, place = arguments
    n = function.lanes
    values = [tile[place + k] for k in range(n * n)]
    for k in range(n * n):
        tile[place + k] = values[k % n * n + k // n]


def _extreme(thread: Any, function: DeviceFunction, arguments: Any) -> Any:
    tile, place, x = arguments
    bits = [tile[place + k] for k in range(function.lanes)]
    values = np.append(widened(function.dtype, *bits), np.float32(x))
    return values.max() if function.kind == "max" else values.min()


def _cp_async_commit(thread: Any, function: DeviceFunction, arguments: Any) -> None:
    thread.copies.append([])


def _cp_async_wait(thread: Any, function: DeviceFunction, arguments: Any) -> None:
    """What has been copied is there now; groups that may be under way still are not."""
    done = len(thread.copies) - 1 - int(arguments[0])
    for group in thread.copies[: max(0, done)]:
        for shared, place, values in group:
            for k, value in enumerate(values):
                shared[place + k] = value
    del thread.copies[: max(0, done)]


def _pack(thread: Any, function: DeviceFunction, arguments: Any) -> None:
    x, y, tile, place = arguments
    tile[place], tile[place + 1] = halves(function.dtype, x, y)


COPIES: Final[dict[str, Callable[[Any, DeviceFunction, Any], Any]]] = {
    "load": _load,
    "store": _store,
    "cp_async": _copy,
    "cp_async_commit": _cp_async_commit,
    "cp_async_wait": _cp_async_wait,
    "pack": _pack,
    "widen": _widen,
    "transpose": _transpose,
    "max": _extreme,
    "min": _extreme,
    "opaque": lambda thread, function, arguments: arguments[0],
    "approximate_exp2": lambda thread, function, arguments: exp2(*arguments),
    "approximate_exp": lambda thread, function, arguments: exp(*arguments),
    "approximate_rsqrt": lambda thread, function, arguments: rsqrt(*arguments),
    "approximate_sqrt": lambda thread, function, arguments: np.sqrt(*arguments),
    "approximate_divide": lambda thread, function, arguments: np.divide(*arguments),
    "unrolled": lambda thread, function, arguments: range(*arguments),
}
"""By the kinds of functions."""
