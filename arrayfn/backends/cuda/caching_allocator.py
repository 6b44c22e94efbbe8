"""The caching allocator of GPU memory: freed blocks are reused (``free_lists``).

``CachingAllocator.block`` allocates an address and an object whose destructor frees it;
``allocate`` and ``free`` are for memory that is freed explicitly.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, Final

from arrayfn.backends.cuda import free_lists
from arrayfn.backends.cuda.free_lists import DeviceMemory, FreeList
from arrayfn.backends.cuda.memory import LARGEST_IDLE, block_size
from arrayfn.backends.native import Routine
from arrayfn.backends.native.code import native_address
from arrayfn.backends.native.objects import immortal

FUNCTIONS: Final = {
    "set_current": "cuCtxSetCurrent",
    "allocate": "cuMemAllocFromPoolAsync",
    "free": "cuMemFreeAsync",
    "synchronize": "cuCtxSynchronize",
}
"""The driver's functions that native routines call, by fields of ``DeviceMemory``."""


class CachingAllocator:
    """Allocates a device's memory from free lists; the GIL serializes its users.

    ``_allocated`` maps addresses that ``allocate`` returned to their free lists, for
    all devices: they share one address space, so any device's ``free`` accepts any.
    """

    _allocated: ClassVar[dict[int, int]] = {}

    def __init__(
        self,
        addresses: Mapping[str, int],
        context: int,
        stream: int,
        pool: int,
        max_idle: int,
    ) -> None:
        """Make an allocator without blocks.

        ``addresses`` has the address of each driver function in ``FUNCTIONS``;
        ``context``, ``stream`` and ``pool`` are the driver's handles. While free lists
        hold ``max_idle`` bytes or more, freed blocks go back to the driver.
        """
        self._memory = immortal(DeviceMemory)
        self._memory.set(
            max_idle=max_idle,
            context=context,
            stream=stream,
            pool=pool,
            **{field: addresses[name] for field, name in FUNCTIONS.items()},
        )
        # The address of each native free list, by the size of its blocks.
        self._free_lists: dict[int, int] = {}
        # The native routines.
        self._pop_block = _function(free_lists.free_list_pop)
        self._push_block = _function(free_lists.free_list_push)
        self._clear = _function(free_lists.free_list_clear)
        self._object = _function(free_lists.block_object)
        self._mark_shared = _function(free_lists.mark_shared)

    @property
    def idle_bytes(self) -> int:
        """Bytes in all free lists."""
        return self._memory.idle_bytes

    def free_list(self, nbytes: int) -> int:
        """Return the address of the native free list of blocks that hold ``nbytes``.

        The first call for a size makes the list, which lives forever. Blocks larger
        than ``LARGEST_IDLE`` are not kept in their list.
        """
        size = block_size(nbytes)
        known = self._free_lists.get(size)
        if known is not None:
            return known
        free_list = immortal(FreeList)
        memory = ctypes.addressof(self._memory)
        free_list.set(size=size, keeps=size <= LARGEST_IDLE, memory=memory)
        self._free_lists[size] = address = ctypes.addressof(free_list)
        return address

    def block(self, nbytes: int) -> tuple[int, object] | None:
        """Allocate ``nbytes``; return the address and an object that owns them.

        The owner's destructor frees the memory. The result is None if memory is
        exhausted.
        """
        free_list = self.free_list(nbytes)
        pointer = self._pop_block(free_list)
        return (pointer, self._object(free_list, pointer)) if pointer else None

    def allocate(self, nbytes: int) -> int:
        """Allocate ``nbytes``, to be freed by ``free``; 0 if memory is exhausted."""
        free_list = self.free_list(nbytes)
        pointer: int = self._pop_block(free_list)
        if pointer:
            self._allocated[pointer] = free_list
        return pointer

    def free(self, pointer: int) -> None:
        """Free what ``allocate`` returned."""
        self._push_block(self._allocated.pop(pointer), pointer)

    def share(self, owner: object) -> None:
        """Record that another library has seen the memory that ``owner`` owns.

        ``owner`` is an object of ``block``. Its destructor then waits for the GPU
        before it frees the memory.
        """
        self._mark_shared(id(owner))  # the capsule's address

    def clear(self) -> None:
        """Return all idle blocks to the driver."""
        for free_list in self._free_lists.values():
            self._clear(free_list)


@cache
def _function(routine: Routine[..., Any]) -> Callable[..., Any]:
    """Make a Python function of a native routine, which runs with the GIL held.

    Arguments and result are integers, but ``block_object`` returns an object.
    """
    result = ctypes.py_object if routine is free_lists.block_object else ctypes.c_int64
    words = [ctypes.c_int64] * routine.arity
    return ctypes.PYFUNCTYPE(result, *words)(native_address(routine))
