"""Blocks of GPU memory that died, kept for the next array: native routines.

A *shelf* has the idle blocks of one size, lowest address first (a binary heap); all
shelves belong to a *stock*. A *block* object is a capsule around an address, whose
context is its shelf: when it dies, the memory goes back there. Work is in the order of
one stream, so what was enqueued before has done with it. All of this holds the GIL.

Shelves and the stock are never freed: blocks may die when nothing else is left.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.native import (
    CFunction,
    address_of,
    call,
    load,
    native,
    stack,
    store,
)

# Byte offsets into the stock.
IDLE_BYTES: Final = 0  # on all shelves
MOST_IDLE: Final = 8  # from here on, dead blocks go back to the driver
CONTEXT: Final = 16
STREAM: Final = 24
POOL: Final = 32
SET_CURRENT: Final = 40  # addresses of the driver's functions, from here on
ALLOCATE: Final = 48
FREE: Final = 56
SYNCHRONIZE: Final = 64
STOCK_BYTES: Final = 72

# Byte offsets into a shelf.
SIZE: Final = 0  # of its blocks
KEEPS: Final = 8  # whether it keeps any
COUNT: Final = 16
CAPACITY: Final = 24
BLOCKS: Final = 32  # the address of their addresses
STOCK: Final = 40
SHELF_BYTES: Final = 48

FIRST_CAPACITY: Final = 16
SHARED: Final = 1  # added to a block's shelf: another library has seen the memory
I32: Final = 0xFFFFFFFF

realloc = CFunction("realloc", 2)
PyCapsule_New = CFunction("PyCapsule_New", 3)
PyCapsule_GetPointer = CFunction("PyCapsule_GetPointer", 2)
PyCapsule_GetContext = CFunction("PyCapsule_GetContext", 1)
PyCapsule_SetContext = CFunction("PyCapsule_SetContext", 2, "i32")


@native
def shelf_take(shelf: int) -> int:
    """The lowest block of a shelf, or else a new one; 0 if there is no memory."""
    last = load(shelf + COUNT) - 1
    if last < 0:
        return shelf_new_block(shelf)
    blocks = load(shelf + BLOCKS)
    lowest = load(blocks)
    moved = load(blocks + 8 * last)
    place = 0
    child = 1
    while child < last:
        beside = blocks + 8 * child + 8
        if child + 1 < last and load(beside) < load(beside - 8):
            child += 1
        if load(blocks + 8 * child) >= moved:
            break
        store(blocks + 8 * place, load(blocks + 8 * child))
        place = child
        child = 2 * place + 1
    store(blocks + 8 * place, moved)
    store(shelf + COUNT, last)
    stock = load(shelf + STOCK)
    store(stock + IDLE_BYTES, load(stock + IDLE_BYTES) - load(shelf + SIZE))
    return lowest


@native
def shelf_new_block(shelf: int) -> int:
    """A block from the driver; 0 if it has none."""
    stock = load(shelf + STOCK)
    result = stack(1)
    if call(load(stock + SET_CURRENT), load(stock + CONTEXT)) & I32:
        return 0
    pool = load(stock + POOL)
    size = load(shelf + SIZE)
    if call(load(stock + ALLOCATE), result, size, pool, load(stock + STREAM)) & I32:
        return 0
    return load(result)


@native
def shelf_give(shelf: int, block: int) -> int:
    """Put a block that died on its shelf, or give it back to the driver."""
    stock = load(shelf + STOCK)
    if load(shelf + KEEPS) == 0 or load(stock + IDLE_BYTES) >= load(stock + MOST_IDLE):
        return block_free(stock, block)
    place = load(shelf + COUNT)
    if place == load(shelf + CAPACITY):
        grown = 2 * place + FIRST_CAPACITY
        blocks = realloc(load(shelf + BLOCKS), 8 * grown)
        if blocks == 0:
            return block_free(stock, block)
        store(shelf + BLOCKS, blocks)
        store(shelf + CAPACITY, grown)
    store(shelf + COUNT, place + 1)
    store(stock + IDLE_BYTES, load(stock + IDLE_BYTES) + load(shelf + SIZE))
    blocks = load(shelf + BLOCKS)
    while place > 0:
        parent = (place - 1) >> 1
        if load(blocks + 8 * parent) <= block:
            break
        store(blocks + 8 * place, load(blocks + 8 * parent))
        place = parent
    store(blocks + 8 * place, block)
    return 0


@native
def shelf_clear(shelf: int) -> int:
    """Give all blocks of a shelf back to the driver."""
    stock = load(shelf + STOCK)
    count = load(shelf + COUNT)
    for k in range(count):
        block_free(stock, load(load(shelf + BLOCKS) + 8 * k))
    store(shelf + COUNT, 0)
    store(stock + IDLE_BYTES, load(stock + IDLE_BYTES) - count * load(shelf + SIZE))
    return 0


@native
def block_free(stock: int, block: int) -> int:
    """Give memory back to the driver, once what is enqueued has run."""
    call(load(stock + SET_CURRENT), load(stock + CONTEXT))
    call(load(stock + FREE), block, load(stock + STREAM))
    return 0


@native
def block_object(shelf: int, block: int) -> int:
    """The object that a block dies with; 0 with an exception set if there is none."""
    made = PyCapsule_New(block, 0, address_of(block_die))
    if made != 0:
        PyCapsule_SetContext(made, shelf)
    return made


@native
def block_die(made: int) -> int:
    """The destructor of a block's object."""
    shelf = PyCapsule_GetContext(made)
    if shelf & SHARED:
        shelf -= SHARED
        # Another library's work on it may not have run yet.
        stock = load(shelf + STOCK)
        call(load(stock + SET_CURRENT), load(stock + CONTEXT))
        call(load(stock + SYNCHRONIZE))
    shelf_give(shelf, PyCapsule_GetPointer(made, 0))
    return 0


@native
def block_share(made: int) -> int:
    """Note that another library has seen a block."""
    PyCapsule_SetContext(made, PyCapsule_GetContext(made) | SHARED)
    return 0
