"""Ordinary differential equations: adaptive methods, dense output, adjoints."""

from __future__ import annotations

from arrayfn import documentation as _documentation
from arrayfn.ode.dense import Dense
from arrayfn.ode.odeint import odeint
from arrayfn.ode.solve import METHODS, Solution, solve

__all__ = ["METHODS", "Dense", "Solution", "odeint", "solve"]

_documentation.attach(__name__)
