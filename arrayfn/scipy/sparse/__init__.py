"""Linear systems with matrices given by their products."""

from __future__ import annotations

from arrayfn.scipy.sparse import linalg

__all__ = ["linalg"]
