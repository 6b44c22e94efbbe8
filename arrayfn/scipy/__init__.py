"""SciPy's functions for traced code."""

from __future__ import annotations

from arrayfn.scipy import integrate, linalg, ndimage, optimize, signal, special

__all__ = ["integrate", "linalg", "ndimage", "optimize", "signal", "special"]
