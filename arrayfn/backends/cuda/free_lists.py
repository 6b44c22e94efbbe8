"""Free lists of GPU memory, from which arrays are allocated: native routines.

A *free list* holds the idle blocks of one size, lowest address first (a binary heap);
all lists of a device belong to its caching allocator. A block's object is a capsule
around its address whose context is the free list; its destructor returns the block to
the list. All work is enqueued on one stream, so work that still uses the block runs
before work that reuses it. The routines run under the GIL.

Free lists and the allocator are never freed: arrays may die after everything else.
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
# The lowest bit of a capsule's context, which is an even address: another library has
# seen the block's memory.
SHARED: Final = 1


class DeviceMemory(Struct):
    """A device's memory: the bytes in free lists, driver handles and functions."""

    idle_bytes: int  # in all free lists
    max_idle: int  # from so many idle bytes on, freed blocks go back to the driver
    context: int
    stream: int
    pool: int
    set_current: Callable[[int], i32]
    allocate: Callable[[Array[int], int, int, int], i32]
    free: Callable[[int, int], i32]
    synchronize: Callable[[], i32]


class FreeList(Struct):
    """The idle blocks of one size."""

    size: int  # bytes of each block
    keeps: int  # whether freed blocks stay in the list; else the driver gets them
    count: int  # of idle blocks
    capacity: int  # of ``blocks``
    blocks: Array[int]  # addresses, as a binary min-heap
    memory: DeviceMemory


realloc = CFunction[[Array[int], int], Array[int] | None]("realloc")


@native
def free_list_pop(free_list: FreeList) -> int:
    """Remove the block at the lowest address from a free list, and return its address.

    If the list is empty, the block is allocated from the driver; 0 if that fails.
    """
    # The list is a binary min-heap: its last block sinks from the root to its place.
    last = free_list.count - 1
    if last < 0:
        return free_list_new_block(free_list)
    blocks = free_list.blocks
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
    free_list.count = last
    free_list.memory.idle_bytes -= free_list.size
    return lowest


@native
def free_list_new_block(free_list: FreeList) -> int:
    """Allocate a block from the driver; return its address, or 0 without memory."""
    memory = free_list.memory
    result = local(int, 1)
    if memory.set_current(memory.context):
        return 0
    if memory.allocate(result, free_list.size, memory.pool, memory.stream):
        return 0
    return result[0]


@native
def free_list_push(free_list: FreeList, block: int) -> None:
    """Put the block at the address ``block`` on its free list, or free it.

    The driver gets it back if the list keeps no blocks, if all lists together hold
    enough, or if the list cannot grow.
    """
    memory = free_list.memory
    if free_list.keeps == 0 or memory.idle_bytes >= memory.max_idle:
        block_free(memory, block)
        return
    index = free_list.count
    if index == free_list.capacity:
        grown = 2 * index + FIRST_CAPACITY
        larger = realloc(free_list.blocks, size_of(int) * grown)
        if larger is None:
            block_free(memory, block)
            return
        free_list.blocks = larger
        free_list.capacity = grown
    free_list.count = index + 1
    memory.idle_bytes += free_list.size
    # The block rises from the end of the heap to its place.
    blocks = free_list.blocks
    while index > 0:
        parent = (index - 1) >> 1
        if blocks[parent] <= block:
            break
        blocks[index] = blocks[parent]
        index = parent
    blocks[index] = block


@native
def free_list_clear(free_list: FreeList) -> None:
    """Return all blocks of a free list to the driver."""
    for k in range(free_list.count):
        block_free(free_list.memory, free_list.blocks[k])
    free_list.memory.idle_bytes -= free_list.count * free_list.size
    free_list.count = 0


@native
def block_free(memory: DeviceMemory, block: int) -> None:
    """Return the memory at the address ``block`` to the driver, in stream order."""
    memory.set_current(memory.context)
    memory.free(block, memory.stream)


@native
def block_object(free_list: FreeList, block: int) -> PyObject | None:
    """Make a capsule that owns ``block``; its destructor frees the block.

    The capsule's context is the address of the free list. Without memory the result is
    None, with a Python exception set.
    """
    capsule = PyCapsule_New(block, None, block_destroyed)
    if capsule is not None:
        PyCapsule_SetContext(capsule, cast(int, free_list))
    return capsule


@native
def block_destroyed(capsule: PyObject) -> None:
    """Put the block of a dying capsule on its free list; the capsule's destructor.

    If another library has seen the memory, wait for the GPU first.
    """
    context = PyCapsule_GetContext(capsule)
    free_list = cast(FreeList, context & ~SHARED)
    if context & SHARED:
        # Work of that library on another stream may not have run yet.
        free_list.memory.set_current(free_list.memory.context)
        free_list.memory.synchronize()
    free_list_push(free_list, PyCapsule_GetPointer(capsule, None))


@native
def mark_shared(capsule: PyObject) -> None:
    """Record in a block's capsule that another library has seen the memory.

    The capsule's destructor then waits for the GPU.
    """
    PyCapsule_SetContext(capsule, PyCapsule_GetContext(capsule) | SHARED)
