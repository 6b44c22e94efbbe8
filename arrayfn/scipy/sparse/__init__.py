"""Linear systems whose matrix is known by its products."""

from __future__ import annotations

from arrayfn.scipy.sparse import linalg

__all__ = ["linalg"]
