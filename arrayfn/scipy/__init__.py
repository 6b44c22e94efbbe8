"""SciPy's functions for traced code."""

from __future__ import annotations

from arrayfn.scipy import special

__all__ = ["special"]
