"""SciPy's functions for traced code."""

from __future__ import annotations

from arrayfn.scipy import linalg, special

__all__ = ["linalg", "special"]
