"""Ordinary differential equations."""

from __future__ import annotations

from arrayfn.ode.solve import METHODS, Solution, solve

__all__ = ["METHODS", "Solution", "solve"]
