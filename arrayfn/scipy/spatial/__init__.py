"""Rotations in space."""

from __future__ import annotations

from arrayfn.scipy.spatial import transform

__all__ = ["transform"]
