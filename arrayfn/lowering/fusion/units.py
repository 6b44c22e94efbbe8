"""The units that fusion returns: groups of equations, and single equations."""

from __future__ import annotations

from arrayfn.ir import Equation, Var
from arrayfn.lowering.fusion.groups import AxisIds
from arrayfn.records import frozen


@frozen
class FusedGroup:
    """Equations that become one kernel.

    Attributes:
        equations: in the order of the Program.
        extents: the extents of the domain's axes.
        reduced: the domain axes that its reductions run over.
        domain_axes: the domain axes of each value that the group computes.
        operands: the domain axes of what each reduction reduces, by its result.
        outputs: the values that something outside of the group reads.
        reason: a sentence about the fusion, for people.
    """

    equations: tuple[Equation, ...]
    extents: tuple[int, ...]
    reduced: frozenset[int]
    domain_axes: dict[Var, AxisIds]
    operands: dict[Var, AxisIds]
    outputs: tuple[Var, ...]
    reason: str


@frozen
class SingleUnit:
    """An equation that is lowered by itself: a template, library call or view."""

    equation: Equation


Unit = FusedGroup | SingleUnit
