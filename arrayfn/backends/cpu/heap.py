"""Large blocks of memory, kept for reuse: native routines.

Fresh pages cost more than most kernels: the system clears each on first touch. Blocks
of big outputs and workspaces therefore go to a list when they die, up to a limit of
bytes, and are handed out again for the same size. The list is guarded by the GIL.
Blocks reach NumPy arrays through a memory handler (NEP 49), so an output owns its data
as any array. Blocks are addresses, 0 where memory is out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

from arrayfn.backends.native import CFunction, local, native
from arrayfn.backends.native.structures import Array, Struct, i32, u8

MAX_BLOCKS: Final = 64  # on the free list
PAGE: Final = 4096  # bytes
HUGE_PAGE: Final = 1 << 21  # bytes, 2 MiB
HUGE_FROM: Final = 1 << 22  # bytes of a block from which huge pages are asked for


class Block(Struct):
    """A free block of memory."""

    address: int
    size: int


class Heap(Struct):
    """The free list of memory blocks, oldest first."""

    count: int  # free blocks
    size: int  # bytes of all free blocks
    limit: int  # of ``size``
    huge_advice: int  # madvise's advice for big blocks, or 0
    blocks: Annotated[Array[Block], MAX_BLOCKS]


class MemoryHandler(Struct):
    """NumPy's ``PyDataMem_Handler``, version 1 (NEP 49).

    ``malloc`` and ``free`` are ``heap_allocate`` and ``heap_free``.
    """

    name: Annotated[Array[u8], 127]
    version: u8
    context: Heap
    malloc: Callable[[Heap, int], int]
    calloc: Callable[[Heap, int, int], int]
    realloc: Callable[[Heap, int, int], int]
    free: Callable[[Heap, int, int], None]


posix_memalign = CFunction[[Array[int], int, int], i32]("posix_memalign")
free = CFunction[[int], None]("free")
realloc = CFunction[[int, int], int]("realloc")
memset = CFunction[[int, i32, int], int]("memset")
madvise = CFunction[[int, int, i32], i32]("madvise")


@native
def heap_round(size: int) -> int:
    """Round ``size`` up to whole pages, or to whole huge pages for a large block."""
    unit = HUGE_PAGE if size >= HUGE_FROM else PAGE
    return (size + unit - 1) & ~(unit - 1)


@native
def heap_allocate(heap: Heap, size: int) -> int:
    """Return the address of a block of at least ``size`` bytes, aligned to a page.

    The youngest free block of the same rounded size is used again; without one, a block
    is allocated. If memory is out, all free blocks are freed and the allocation is
    tried again. Returns 0 if that fails too.
    """
    size = heap_round(size)
    i = heap.count - 1
    while i >= 0:
        if heap.blocks[i].size == size:
            return heap_remove(heap, i)
        i -= 1
    alignment = HUGE_PAGE if size >= HUGE_FROM else PAGE
    result = local(int, 1)
    if posix_memalign(result, alignment, size) != 0:
        heap_shrink(heap, 0, 0)
        if posix_memalign(result, alignment, size) != 0:
            return 0
    if size >= HUGE_FROM and heap.huge_advice != 0:
        madvise(result[0], size, heap.huge_advice)
    return result[0]


@native
def heap_remove(heap: Heap, index: int) -> int:
    """Remove block number ``index`` from the free list; return its address.

    The blocks after it move up, so the list stays ordered by age.
    """
    blocks = heap.blocks
    address = blocks[index].address
    heap.size -= blocks[index].size
    heap.count -= 1
    for i in range(index, heap.count):
        blocks[i].address = blocks[i + 1].address
        blocks[i].size = blocks[i + 1].size
    return address


@native
def heap_shrink(heap: Heap, count: int, limit: int) -> None:
    """Free the oldest blocks of the free list until it is short enough.

    At most ``count`` blocks, with at most ``limit`` bytes in all, are left.
    """
    while heap.count > count or heap.size > limit:
        free(heap_remove(heap, 0))


@native
def heap_free(heap: Heap, address: int, size: int) -> None:
    """Put the block at ``address`` on the free list, in place of the oldest blocks.

    A block that is larger than the list's limit is freed. ``size`` is the one that was
    passed to ``heap_allocate``.
    """
    size = heap_round(size)
    if size > heap.limit:
        free(address)
        return
    heap_shrink(heap, MAX_BLOCKS - 1, heap.limit - size)
    block = heap.blocks[heap.count]
    block.address = address
    block.size = size
    heap.count += 1
    heap.size += size


@native
def handler_calloc(heap: Heap, count: int, size: int) -> int:
    """Implement ``calloc`` of NumPy's memory handler.

    Allocates ``count`` elements of ``size`` bytes, all zero.
    """
    address = heap_allocate(heap, count * size)
    if address != 0:
        memset(address, 0, count * size)
    return address


@native
def handler_realloc(heap: Heap, address: int, size: int) -> int:
    """Implement ``realloc`` of NumPy's memory handler, for ``ndarray.resize``.

    The result is rounded like a block, so it can go to the free list.
    """
    return realloc(address, heap_round(size))
