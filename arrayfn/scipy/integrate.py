"""Integrals from values at points."""

from __future__ import annotations

from arrayfn.numpy import trapezoid

__all__ = ["trapezoid"]
