"""GPU memory as values: sizes of blocks, the pool's properties, what is in use."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Final

from arrayfn.errors import BackendError

LARGEST_IDLE: Final = 32 << 20  # bytes of a block that is kept for the next array
_LEAST_BLOCK: Final = 512
_NUMBER: Final = 16  # bytes of a single number, at most
_NUMBERS_BLOCK: Final = 256


def block_size(nbytes: int) -> int:
    """The size of the block for ``nbytes``: eight sizes to a power of two.

    Single numbers have blocks of their own, such that a list of losses that a program
    keeps does not change where its other arrays come to lie.
    """
    if nbytes <= _NUMBER:
        return _NUMBERS_BLOCK
    if nbytes <= _LEAST_BLOCK:
        return _LEAST_BLOCK
    if nbytes > LARGEST_IDLE:
        return nbytes
    step = 1 << max(9, (nbytes - 1).bit_length() - 4)
    return -(-nbytes // step) * step


class PoolProperties(ctypes.Structure):
    """CUmemPoolProps."""

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


class OutOfMemoryError(BackendError):
    """The GPU has no memory left for an array. The process can go on."""


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Bytes of GPU memory.

    ``in_use`` is what live arrays hold, ``reserved`` what the pool keeps, with their
    peaks; ``free`` and ``total`` are the whole card's, other processes counted in.
    """

    in_use: int
    peak_in_use: int
    reserved: int
    peak_reserved: int
    free: int
    total: int
