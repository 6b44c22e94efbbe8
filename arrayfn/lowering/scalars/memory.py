"""Functions of kernels that are about where data is, not what it is.

They take pointers of a kernel and places in elements. Called, they do what a compiled
kernel does as far as it can be seen: ``prefetch_row`` nothing, ``store_row`` a copy.
"""

from __future__ import annotations

from typing import Any, Final

LINE_BYTES: Final = 64  # of a cache line: what one prefetch brings


def prefetch_row(pointer: Any, begin: int, count: int) -> None:
    """Bring ``count`` elements from ``pointer[begin]`` near; they may not exist.

    A hint: kernels that would wait for a row ask for it while they compute another.
    """


def store_row(target: Any, begin: int, source: Any, count: int, far: int) -> None:
    """``target[begin + k] = source[k]`` for ``count`` elements.

    With ``far`` they go past the caches: what is larger than these would otherwise be
    read before it is overwritten. Both pointers are of one dtype.
    """
    for k in range(count):
        target[begin + k] = source[k]


MEMORY: Final = {"prefetch_row": prefetch_row, "store_row": store_row}
"""All functions, by name."""
