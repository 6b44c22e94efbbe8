"""The caches of a process, and ``clear_caches``, which empties them.

A module with a cache registers the function that empties it with ``forgets``.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

Forget = Callable[[], object]

_forgetting: list[Forget] = []  # called first
_freeing: list[Forget] = []  # called after the garbage collection


def forgets(forget: Forget) -> Forget:
    """Have ``clear_caches`` call ``forget``; usable as a decorator."""
    _forgetting.append(forget)
    return forget


def frees(free: Forget) -> Forget:
    """Have ``clear_caches`` call ``free`` at its end, after a garbage collection."""
    _freeing.append(free)
    return free


def clear_caches() -> None:
    """Drop all traced and compiled functions of this process, and free their memory.

    Functions can still be called. Their next call compiles them again, from the kernels
    in the disk cache. The disk cache is not cleared (see ``ARRAYFN_CACHE_DIR``). Arrays
    and the results of ``lower`` and ``compile`` stay while they are referred to.
    You need not call this to free the code of a function: deleting the function frees
    it, except for the kernels used last. On a GPU, the function waits for the enqueued
    work, and then unloads the kernels.

    >>> import numpy as np
    >>> import arrayfn as af
    >>> double = af.jit(lambda x: 2 * x)
    >>> double(np.ones(2))
    array([2., 2.])
    >>> af.clear_caches()
    >>> double(np.ones(2))
    array([2., 2.])
    """
    for forget in _forgetting:
        forget()
    gc.collect()
    for free in _freeing:
        free()
