"""Memory functions of kernels: prefetching, and stores that bypass the caches.

They take a kernel's pointers and offsets in elements. Called from Python,
``prefetch_row`` does nothing, and ``store_row`` copies.
"""

from __future__ import annotations

from typing import Any, Final

LINE_BYTES: Final = 64  # of a cache line, which one prefetch loads


def prefetch_row(pointer: Any, begin: int, count: int) -> None:
    """Prefetch ``count`` elements from ``pointer[begin]`` on into the caches.

    This is a hint, so the elements need not exist. A kernel prefetches the next row
    while it computes the current one. Called from Python it does nothing.
    """


def store_row(target: Any, begin: int, source: Any, count: int, far: int) -> None:
    """Copy ``count`` elements: ``target[begin + k] = source[k]``.

    If ``far`` is not 0, compiled code writes past the caches: stores to an array that
    is larger than the caches would otherwise read its cache lines first. Both pointers
    have the same dtype.
    """
    for k in range(count):
        target[begin + k] = source[k]


MEMORY: Final = {"prefetch_row": prefetch_row, "store_row": store_row}
"""All functions, by name."""
