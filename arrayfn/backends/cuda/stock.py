"""GPU memory for arrays: blocks that died are given again. See ``blocks``.

``Stock.block`` gives memory as an address and an object that it dies with; ``take`` and
``give`` are for memory that someone frees by hand.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from arrayfn.backends.cuda import blocks
from arrayfn.backends.cuda.blocks import DeviceMemory, Shelf
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
"""What the native routines call, by the fields that hold the addresses."""


class Stock:
    """The shelves of one device, which no other thread uses: the GIL is held."""

    def __init__(
        self,
        addresses: Mapping[str, int],
        context: int,
        stream: int,
        pool: int,
        most_idle: int,
    ) -> None:
        self._memory = immortal(DeviceMemory)
        self._memory.set(
            most_idle=most_idle,
            context=context,
            stream=stream,
            pool=pool,
            **{field: addresses[name] for field, name in FUNCTIONS.items()},
        )
        self._shelves: dict[int, int] = {}
        self._given: dict[int, int] = {}
        self._take = _function(blocks.shelf_take)
        self._give = _function(blocks.shelf_give)
        self._clear = _function(blocks.shelf_clear)
        self._object = _function(blocks.block_object)
        self._share = _function(blocks.block_share)

    @property
    def idle_bytes(self) -> int:
        """How much is on the shelves."""
        return self._memory.idle_bytes

    def shelf(self, nbytes: int) -> int:
        """The address of the shelf that has blocks for ``nbytes``."""
        size = block_size(nbytes)
        known = self._shelves.get(size)
        if known is not None:
            return known
        shelf = immortal(Shelf)
        memory = ctypes.addressof(self._memory)
        shelf.set(size=size, keeps=size <= LARGEST_IDLE, memory=memory)
        self._shelves[size] = made = ctypes.addressof(shelf)
        return made

    def block(self, nbytes: int) -> tuple[int, object] | None:
        """Memory and the object that it dies with; None if there is none."""
        shelf = self.shelf(nbytes)
        pointer = self._take(shelf)
        return (pointer, self._object(shelf, pointer)) if pointer else None

    def take(self, nbytes: int) -> int:
        """Memory that is given back by hand; 0 if there is none."""
        shelf = self.shelf(nbytes)
        pointer: int = self._take(shelf)
        if pointer:
            self._given[pointer] = shelf
        return pointer

    def give(self, pointer: int) -> None:
        """Give back what was taken."""
        self._give(self._given.pop(pointer), pointer)

    def share(self, owner: object) -> None:
        """Note that another library has seen the memory of a block's object."""
        self._share(id(owner))

    def clear(self) -> None:
        """Give what is on the shelves back to the driver."""
        for shelf in self._shelves.values():
            self._clear(shelf)


@cache
def _function(routine: Routine[..., Any]) -> Callable[..., Any]:
    """A native routine as a function of integers; the GIL stays held."""
    result = ctypes.py_object if routine is blocks.block_object else ctypes.c_int64
    words = [ctypes.c_int64] * routine.arity
    return ctypes.PYFUNCTYPE(result, *words)(native_address(routine))
