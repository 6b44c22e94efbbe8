"""References of complex functions for which NumPy is inaccurate near 0."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np


def expm1(x: Any) -> Any:
    """e**x - 1; for complex x SciPy's, with a real result on the real axis."""
    if x.dtype.kind != "c":
        return np.expm1(x)
    value: Any = np.asarray(importlib.import_module("scipy.special").expm1(x))
    value.imag = np.where(x.imag == 0, x.imag, value.imag)
    return value


def log1p(x: Any) -> Any:
    """log(1 + x); for complex x SciPy's, with the sign of the angle at zero parts."""
    if x.dtype.kind != "c":
        return np.log1p(x)
    value: Any = np.asarray(importlib.import_module("scipy.special").log1p(x))
    value.imag = np.arctan2(x.imag, x.real + 1)
    return value
