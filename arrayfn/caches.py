"""What a process keeps to be fast again, and how to let go of it.

A module that keeps something registers what forgets it with ``forgets``;
``clear_caches`` calls all of these.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

Forget = Callable[[], object]

_forgetting: list[Forget] = []


def forgets(forget: Forget) -> Forget:
    """Have ``clear_caches`` call ``forget``; usable as a decorator."""
    _forgetting.append(forget)
    return forget


def clear_caches() -> None:
    """Forget what was traced and compiled in this process, and free its memory.

    Functions stay as they are and are compiled again when they are next called, from
    the kernels on disk, which stay too (see ``ARRAYFN_CACHE_DIR``). What somebody
    holds is kept: what ``lower`` and ``compile`` gave, and arrays. A dropped function
    frees its code without this; kernels that were loaded on a GPU stay there.

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
