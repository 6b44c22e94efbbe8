"""References of complex functions for which NumPy is inaccurate near 0."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np


def expm1(x: Any) -> Any:
    """Return e**x - 1; for complex ``x``, compute it with SciPy."""
    if x.dtype.kind != "c":
        return np.expm1(x)
    value: Any = np.asarray(importlib.import_module("scipy.special").expm1(x))
    # On the real axis the result is real, with the sign of zero that x.imag has.
    value.imag = np.where(x.imag == 0, x.imag, value.imag)
    return value


def log1p(x: Any) -> Any:
    """Return log(1 + x); for complex ``x``, compute it with SciPy."""
    if x.dtype.kind != "c":
        return np.log1p(x)
    value: Any = np.asarray(importlib.import_module("scipy.special").log1p(x))
    # The imaginary part is the angle of 1 + x. arctan2 keeps the signs of zeros.
    value.imag = np.arctan2(x.imag, x.real + 1)
    return value
