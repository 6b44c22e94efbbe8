"""The units that fusion returns: groups of equations, and single equations."""

from __future__ import annotations

from dataclasses import dataclass

from arrayfn.ir import Equation, Var
from arrayfn.lowering.fusion.groups import AxisIds


@dataclass(frozen=True)
class FusedGroup:
    """Equations computed together.

    ``extents`` are the extents of the domain's axes; ``reduced`` are the axes that its
    reductions run over. ``maps`` gives the domain axes of each member value, and
    ``operands``, by a reduction's result, those of the value that it reduces.
    ``outputs`` are the member values that something outside needs.
    """

    equations: tuple[Equation, ...]
    extents: tuple[int, ...]
    reduced: frozenset[int]
    maps: dict[Var, AxisIds]
    operands: dict[Var, AxisIds]
    outputs: tuple[Var, ...]
    reason: str


@dataclass(frozen=True)
class SingleUnit:
    """An equation that is lowered by itself: a template, a library call, an alias."""

    equation: Equation


Unit = FusedGroup | SingleUnit
