"""Large blocks of memory, kept for reuse: native routines.

Fresh pages cost more than most kernels: the system clears each on first touch. Blocks
of big outputs and workspaces therefore go to a list when they die, up to a limit of
bytes, and are handed out again for the same size. The list is guarded by the GIL.
Blocks reach NumPy arrays through a memory handler (NEP 49), so an output owns its data
as any array.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.native import CFunction, load, native, stack, store

# Byte offsets into the heap.
COUNT: Final = 0
BYTES: Final = 8  # in all kept blocks
LIMIT: Final = 16
HUGE_ADVICE: Final = 24  # madvise's advice for big blocks, or 0
BLOCKS: Final = 64  # pairs (address, bytes), oldest first
MAX_BLOCKS: Final = 64
HEAP_BYTES: Final = BLOCKS + 16 * MAX_BLOCKS

PAGE: Final = 4096
HUGE_PAGE: Final = 1 << 21
HUGE_FROM: Final = 1 << 22

posix_memalign = CFunction("posix_memalign", 3, "i32")
free = CFunction("free", 1, "void")
realloc = CFunction("realloc", 2)
memset = CFunction("memset", 3)
madvise = CFunction("madvise", 3, "i32")


@native
def heap_round(size: int) -> int:
    """The bytes of the block that holds ``size`` bytes."""
    unit = PAGE
    if size >= HUGE_FROM:
        unit = HUGE_PAGE
    return (size + unit - 1) & ~(unit - 1)


@native
def heap_take(heap: int, size: int) -> int:
    """A block of at least ``size`` bytes, aligned to a page; 0 if memory is out."""
    size = heap_round(size)
    i = load(heap + COUNT) - 1
    while i >= 0:
        if load(heap + BLOCKS + 16 * i + 8) == size:
            return heap_remove(heap, i)
        i -= 1
    alignment = PAGE
    if size >= HUGE_FROM:
        alignment = HUGE_PAGE
    result = stack(1)
    if posix_memalign(result, alignment, size) != 0:
        heap_shrink(heap, 0, 0)
        if posix_memalign(result, alignment, size) != 0:
            return 0
    if size >= HUGE_FROM and load(heap + HUGE_ADVICE) != 0:
        madvise(load(result), size, load(heap + HUGE_ADVICE))
    return load(result)


@native
def heap_remove(heap: int, index: int) -> int:
    """Take block number ``index`` off the list; its address."""
    address = load(heap + BLOCKS + 16 * index)
    store(heap + BYTES, load(heap + BYTES) - load(heap + BLOCKS + 16 * index + 8))
    count = load(heap + COUNT) - 1
    for i in range(index, count):
        store(heap + BLOCKS + 16 * i, load(heap + BLOCKS + 16 * i + 16))
        store(heap + BLOCKS + 16 * i + 8, load(heap + BLOCKS + 16 * i + 24))
    store(heap + COUNT, count)
    return address


@native
def heap_shrink(heap: int, count: int, limit: int) -> int:
    """Free the oldest blocks until at most ``count`` and ``limit`` bytes are kept."""
    while load(heap + COUNT) > count or load(heap + BYTES) > limit:
        free(heap_remove(heap, 0))
    return 0


@native
def heap_give(heap: int, address: int, size: int) -> int:
    """Keep a dead block that ``heap_take`` gave for ``size``, or free it."""
    size = heap_round(size)
    limit = load(heap + LIMIT)
    if size > limit:
        free(address)
        return 0
    heap_shrink(heap, MAX_BLOCKS - 1, limit - size)
    count = load(heap + COUNT)
    store(heap + BLOCKS + 16 * count, address)
    store(heap + BLOCKS + 16 * count + 8, size)
    store(heap + COUNT, count + 1)
    store(heap + BYTES, load(heap + BYTES) + size)
    return 0


@native
def handler_malloc(heap: int, size: int) -> int:
    """``malloc`` of the memory handler."""
    return heap_take(heap, size)


@native
def handler_calloc(heap: int, count: int, size: int) -> int:
    """``calloc`` of the memory handler."""
    address = heap_take(heap, count * size)
    if address != 0:
        memset(address, 0, count * size)
    return address


@native
def handler_realloc(heap: int, address: int, size: int) -> int:
    """``realloc`` of the memory handler; ``ndarray.resize`` in place uses it."""
    return realloc(address, heap_round(size))


@native
def handler_free(heap: int, address: int, size: int) -> int:
    """``free`` of the memory handler."""
    return heap_give(heap, address, size)
