"""What the tests on kernels of rows share: a function lowered, and what it comes to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.common_functions import random

Array = np.ndarray[Any, Any]


def odd_rows(count: int, n: int) -> Array:
    """So many rows, some with infinities and NaN, of -inf alone, or far from 0."""
    x = random(count, n)
    x[0] = -np.inf
    x[1] = -np.inf
    x[1, 5] = -1000
    x[2, 7] = np.nan
    x[3, n - 2] = np.inf
    x[4] -= 1000
    x[5, : n // 2] = -np.inf
    return x


def wanted(function: Callable[..., Any], x: Array) -> tuple[Any, ...]:
    """The results of ``function`` in double precision, with infinities and NaN."""
    with np.errstate(all="ignore"):
        made = function(x.astype(np.float64))
    return made if isinstance(made, tuple) else (made,)
