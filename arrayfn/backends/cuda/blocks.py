"""Blocks of GPU memory that died, kept for the next array: native routines.

A *shelf* has the idle blocks of one size, lowest address first (a binary heap); all
shelves belong to a *stock*. A *block* object is a capsule around an address, whose
context is its shelf: when it dies, the memory goes back there. Work is in the order of
one stream, so what was enqueued before has done with it. All of this holds the GIL.

Shelves and the stock are never freed: blocks may die when nothing else is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from arrayfn.backends.native import CFunction, cast, local, native, size_of
from arrayfn.backends.native.python_objects import (
    PyCapsule_GetContext,
    PyCapsule_GetPointer,
    PyCapsule_New,
    PyCapsule_SetContext,
    PyObject,
)
from arrayfn.backends.native.structures import Array, Struct, i32

FIRST_CAPACITY: Final = 16
SHARED: Final = 1  # added to a block's shelf: another library has seen the memory


class DeviceMemory(Struct):
    """A device's memory: what is on the shelves, and the driver's functions."""

    idle_bytes: int  # on all shelves
    most_idle: int  # from here on, dead blocks go back to the driver
    context: int
    stream: int
    pool: int
    set_current: Callable[[int], i32]
    allocate: Callable[[Array[int], int, int, int], i32]
    free: Callable[[int, int], i32]
    synchronize: Callable[[], i32]


class Shelf(Struct):
    """The idle blocks of one size."""

    size: int  # of its blocks
    keeps: int  # whether it keeps any
    count: int
    capacity: int
    blocks: Array[int]
    memory: DeviceMemory


realloc = CFunction[[Array[int], int], Array[int] | None]("realloc")


@native
def shelf_take(shelf: Shelf) -> int:
    """The lowest block of a shelf, or else a new one; 0 if there is no memory."""
    last = shelf.count - 1
    if last < 0:
        return shelf_new_block(shelf)
    blocks = shelf.blocks
    lowest = blocks[0]
    moved = blocks[last]
    index = 0
    child = 1
    while child < last:
        if child + 1 < last and blocks[child + 1] < blocks[child]:
            child += 1
        if blocks[child] >= moved:
            break
        blocks[index] = blocks[child]
        index = child
        child = 2 * index + 1
    blocks[index] = moved
    shelf.count = last
    shelf.memory.idle_bytes -= shelf.size
    return lowest


@native
def shelf_new_block(shelf: Shelf) -> int:
    """A block from the driver; 0 if it has none."""
    memory = shelf.memory
    result = local(int, 1)
    if memory.set_current(memory.context):
        return 0
    if memory.allocate(result, shelf.size, memory.pool, memory.stream):
        return 0
    return result[0]


@native
def shelf_give(shelf: Shelf, block: int) -> None:
    """Put a block that died on its shelf, or give it back to the driver."""
    memory = shelf.memory
    if shelf.keeps == 0 or memory.idle_bytes >= memory.most_idle:
        block_free(memory, block)
        return
    index = shelf.count
    if index == shelf.capacity:
        grown = 2 * index + FIRST_CAPACITY
        larger = realloc(shelf.blocks, size_of(int) * grown)
        if larger is None:
            block_free(memory, block)
            return
        shelf.blocks = larger
        shelf.capacity = grown
    shelf.count = index + 1
    memory.idle_bytes += shelf.size
    blocks = shelf.blocks
    while index > 0:
        parent = (index - 1) >> 1
        if blocks[parent] <= block:
            break
        blocks[index] = blocks[parent]
        index = parent
    blocks[index] = block


@native
def shelf_clear(shelf: Shelf) -> None:
    """Give all blocks of a shelf back to the driver."""
    for k in range(shelf.count):
        block_free(shelf.memory, shelf.blocks[k])
    shelf.memory.idle_bytes -= shelf.count * shelf.size
    shelf.count = 0


@native
def block_free(memory: DeviceMemory, block: int) -> None:
    """Give memory back to the driver, once what is enqueued has run."""
    memory.set_current(memory.context)
    memory.free(block, memory.stream)


@native
def block_object(shelf: Shelf, block: int) -> PyObject | None:
    """The object that a block dies with; None with an exception set without memory."""
    made = PyCapsule_New(block, None, block_die)
    if made is not None:
        PyCapsule_SetContext(made, cast(int, shelf))
    return made


@native
def block_die(made: PyObject) -> None:
    """The destructor of a block's object."""
    context = PyCapsule_GetContext(made)
    shelf = cast(Shelf, context & ~SHARED)
    if context & SHARED:
        # Another library's work on it may not have run yet.
        shelf.memory.set_current(shelf.memory.context)
        shelf.memory.synchronize()
    shelf_give(shelf, PyCapsule_GetPointer(made, None))


@native
def block_share(made: PyObject) -> None:
    """Note that another library has seen a block."""
    PyCapsule_SetContext(made, PyCapsule_GetContext(made) | SHARED)
