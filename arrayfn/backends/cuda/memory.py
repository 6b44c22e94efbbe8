"""GPU memory: the driver's pool of it, the sizes of blocks, and statistics."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

from arrayfn.records import frozen

LARGEST_IDLE: Final = 32 << 20
"""Bytes of the largest block that stays in a free list for the next array (32 MiB)."""
_MIN_BLOCK: Final = 512
"""Bytes of the smallest block, except those for single numbers."""
_NUMBER: Final = 16
"""Bytes of a single number, at most: a complex128."""
_NUMBERS_BLOCK: Final = 256
"""Bytes of a block for a single number; no other array has blocks of this size."""

# Numbers of cuda.h: attributes of a pool (CUmemPool_attribute).
_RELEASE_THRESHOLD: Final = 4
_RESERVED, _RESERVED_HIGH, _USED, _USED_HIGH = 5, 6, 7, 8
_PINNED_ON_DEVICE: Final = (1, 0, 1)
"""The first fields of CUmemPoolProps: pinned memory; no handles; on a device."""


def block_size(nbytes: int) -> int:
    """Round ``nbytes`` up to the size of a block of the allocator.

    There are eight sizes from one power of two to the next, but all are multiples of
    512 bytes. Arrays above ``LARGEST_IDLE`` get exactly their size. Single numbers have
    blocks of a size that no other array has. So a program that keeps many numbers, such
    as a list of losses, does not change the addresses of its other arrays.

    >>> [block_size(n) for n in (4, 100, 513, 9000, 33 << 20)]
    [256, 512, 1024, 9216, 34603008]
    """
    if nbytes <= _NUMBER:
        return _NUMBERS_BLOCK
    if nbytes <= _MIN_BLOCK:
        return _MIN_BLOCK
    if nbytes > LARGEST_IDLE:
        return nbytes
    # An eighth of the power of two below ``nbytes``, but at least 512.
    step = 1 << max(9, (nbytes - 1).bit_length() - 4)
    return -(-nbytes // step) * step


class _Properties(ctypes.Structure):
    """The driver's CUmemPoolProps."""

    _fields_ = (
        ("allocation", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", ctypes.c_int),
        ("device", ctypes.c_int),
        ("security", ctypes.c_void_p),
        ("most", ctypes.c_size_t),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    )


@frozen(slots=True)
class MemoryStats:
    """Statistics of GPU memory, all in bytes.

    ``in_use`` bytes are held by live arrays, and ``reserved`` bytes by the driver's
    pool; ``peak_in_use`` and ``peak_reserved`` are their maxima so far. ``free`` and
    ``total`` are those of the whole card, which other processes use too.
    """

    in_use: int
    peak_in_use: int
    reserved: int
    peak_reserved: int
    free: int
    total: int


class Pool:
    """A memory pool of the CUDA driver on one GPU, which shrinks only by ``trim``.

    ``handle`` is its CUmemoryPool.
    """

    def __init__(self, library: Any, check: Callable[[int], None], number: int) -> None:
        """Create a pool on GPU ``number``.

        ``library`` has the driver's functions; ``check`` raises for an error status.
        """
        self._library, self._check = library, check
        properties = _Properties(*_PINNED_ON_DEVICE, number)
        pool = ctypes.c_void_p()
        check(library.cuMemPoolCreate(ctypes.byref(pool), ctypes.byref(properties)))
        # Freed memory stays in the pool, for the next array: the pool returns it to the
        # GPU only above this number of bytes.
        keep = ctypes.c_uint64(2**64 - 1)
        check(
            library.cuMemPoolSetAttribute(pool, _RELEASE_THRESHOLD, ctypes.byref(keep))
        )
        self.handle = int(pool.value or 0)

    def trim(self) -> None:
        """Return the pool's unused memory to the GPU."""
        pool = ctypes.c_void_p(self.handle)
        self._check(self._library.cuMemPoolTrimTo(pool, ctypes.c_size_t(0)))

    def stats(self, idle: int, free: int, total: int) -> MemoryStats:
        """Return the statistics of the GPU's memory, all in bytes.

        ``idle`` bytes in free lists are allocated from the pool but hold no array, so
        they do not count as in use. ``free`` and ``total`` are the whole GPU's.
        """
        used, used_high, reserved, reserved_high = map(
            self._bytes, (_USED, _USED_HIGH, _RESERVED, _RESERVED_HIGH)
        )
        return MemoryStats(used - idle, used_high, reserved, reserved_high, free, total)

    def _bytes(self, attribute: int) -> int:
        """Return the value of a CUmemPool_attribute that is a number of bytes."""
        value = ctypes.c_uint64()
        pool = ctypes.c_void_p(self.handle)
        status = self._library.cuMemPoolGetAttribute(
            pool, attribute, ctypes.byref(value)
        )
        self._check(status)
        return value.value
