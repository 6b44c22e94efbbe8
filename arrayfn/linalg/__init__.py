"""Linear algebra: the functions of ``arrayfn.numpy.linalg``."""

from __future__ import annotations

from arrayfn.numpy import linalg as _linalg
from arrayfn.numpy.linalg import *  # noqa: F403

__all__: list[str] = []  # type checkers understand this form
__all__ += _linalg.__all__
