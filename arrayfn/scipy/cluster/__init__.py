"""Clusters of points."""

from __future__ import annotations

from arrayfn.scipy.cluster import vq

__all__ = ["vq"]
