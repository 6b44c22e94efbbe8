"""Emulates loads and stores of vectors, and asynchronous copies to shared memory.

Here are also other functions of vectors in registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from arrayfn.backends.cuda.emulator.actions import emulates
from arrayfn.backends.cuda.emulator.matrices import rounded, widened
from arrayfn.backends.cuda.emulator.memory import EmulationError, Memory, SharedMemory
from arrayfn.lowering.cuda.vocabulary import DeviceFunction
from arrayfn.lowering.scalars.arithmetic import HALF_PRECISION


def _check_aligned(memory: Memory, at: int, lanes: int) -> None:
    """Raise EmulationError unless a vector of ``lanes`` elements is aligned.

    The vector begins at element ``at`` of ``memory``.
    """
    address = memory.array.ctypes.data + memory.offset(at) * memory.array.itemsize
    if address % min(16, lanes * memory.array.itemsize):
        raise EmulationError(
            f"a vector of {lanes} elements at {memory.name}[{at}] is not aligned"
        )


def check_unread(
    thread: Any, shared: SharedMemory, at: int, count: int, what: str
) -> None:
    """Raise EmulationError if another thread read elements after the last barrier.

    These are ``count`` elements of ``shared`` from ``at`` on. ``what`` is the verb of
    the message: what ``thread`` does to the elements.
    """
    for k in range(at, at + count):
        other = shared.reader(k)
        if other is not None:
            raise EmulationError(
                f"{shared.name}[{k}] {what} while thread {other} of block "
                f"{thread.block.index} reads it: no barrier stands between"
            )


def _read(memory: Any, at: int, count: int) -> list[Any]:
    """Return ``count`` elements from ``memory[at]`` on."""
    return [memory[at + k] for k in range(count)]


def _write(memory: Any, at: int, values: Any) -> None:
    """Write ``values`` to ``memory[at]`` and the next elements."""
    for k, value in enumerate(values):
        memory[at + k] = value


@emulates("load")
def _load(
    thread: Any, f: DeviceFunction, array: Any, at: int, tile: Any, to: int
) -> None:
    """Load a vector from ``array[at]`` to ``tile[to]``."""
    _check_aligned(array, at, f.lanes)
    _write(tile, to, _read(array, at, f.lanes))


@emulates("store")
def _store(
    thread: Any, f: DeviceFunction, array: Any, at: int, tile: Any, source: int
) -> None:
    """Store the vector at ``tile[source]`` to ``array[at]``.

    Values for fp16 and bf16 are float32, and are rounded.
    """
    _check_aligned(array, at, f.lanes)
    values: Any = _read(tile, source, f.lanes)
    _write(
        array, at, rounded(f.dtype, *values) if f.dtype in HALF_PRECISION else values
    )


@emulates("cp_async")
def _cp_async(
    thread: Any, f: DeviceFunction, array: Any, at: int, shared: Any, to: int, live: Any
) -> None:
    """Begin an asynchronous copy of a vector from ``array[at]`` to ``shared[to]``.

    It copies zeros if it is not ``live``. ``cp_async_wait`` writes the values.
    """
    if live:
        _check_aligned(array, at, f.lanes)
    _check_aligned(shared, to, f.lanes)
    values = _read(array, at, f.lanes) if live else [0] * f.lanes
    check_unread(thread, shared, int(to), f.lanes, "is copied to")
    # The last commit group is the one that further copies belong to.
    thread.copies[-1].append((shared, int(to), values))


@emulates("cp_async_commit")
def _cp_async_commit(thread: Any, f: DeviceFunction) -> None:
    """End the thread's commit group; later copies belong to a new group."""
    thread.copies.append([])


@emulates("cp_async_wait")
def _cp_async_wait(thread: Any, f: DeviceFunction, pending: int) -> None:
    """Complete all of the thread's commit groups but the last ``pending``.

    On a GPU the last ones may still be in flight, so their values are not written yet.
    """
    # The last element of ``copies`` is not a commit group yet.
    done = max(0, len(thread.copies) - 1 - int(pending))
    for group in thread.copies[:done]:
        for copied in group:
            _write(*copied)
    del thread.copies[:done]


@emulates("pack")
def _pack(thread: Any, f: DeviceFunction, x: Any, y: Any, tile: Any, at: int) -> None:
    """Round x and y to fp16 or bf16 in ``tile[at]`` and the next register."""
    _write(tile, at, rounded(f.dtype, x, y))


@emulates("widen")
def _widen(
    thread: Any, f: DeviceFunction, tile: Any, at: int, wide: Any, to: int
) -> None:
    """Convert a vector of fp16 or bf16 at ``tile[at]`` to floats at ``wide[to]``."""
    _write(wide, to, widened(f.dtype, *_read(tile, at, f.lanes)))


@emulates("transpose")
def _transpose(thread: Any, f: DeviceFunction, tile: Any, at: int) -> None:
    """Transpose the square matrix of ``f.lanes`` rows at ``tile[at]`` in place."""
    n = f.lanes
    values = _read(tile, at, n * n)
    # Element k of the result is in row k // n and column k % n.
    _write(tile, at, (values[k % n * n + k // n] for k in range(n * n)))


@emulates("max", "min")
def _extreme(thread: Any, f: DeviceFunction, tile: Any, at: int, x: Any) -> Any:
    """Return the maximum or minimum of x and the half-precision vector at ``tile[at]``.

    The result is NaN if one of them is.
    """
    values = np.append(widened(f.dtype, *_read(tile, at, f.lanes)), np.float32(x))
    return values.max() if f.kind == "max" else values.min()
