"""SciPy's functions for traced code."""

from __future__ import annotations

from arrayfn.scipy import integrate, linalg, optimize, special

__all__ = ["integrate", "linalg", "optimize", "special"]
