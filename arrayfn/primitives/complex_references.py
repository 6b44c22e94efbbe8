"""NumPy references of complex functions where NumPy's own are inaccurate near 0."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np


def expm1(x: Any) -> Any:
    """e**x - 1; SciPy's of complex x, and real on the real axis."""
    if x.dtype.kind != "c":
        return np.expm1(x)
    value: Any = np.asarray(importlib.import_module("scipy.special").expm1(x))
    value.imag = np.where(x.imag == 0, x.imag, value.imag)
    return value


def log1p(x: Any) -> Any:
    """log(1 + x); SciPy's of complex x, with the angle's sign on both sides of 0."""
    if x.dtype.kind != "c":
        return np.log1p(x)
    value: Any = np.asarray(importlib.import_module("scipy.special").log1p(x))
    value.imag = np.arctan2(x.imag, x.real + 1)
    return value
