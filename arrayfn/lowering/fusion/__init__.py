"""Fusion: which equations are computed together, in one pass over one domain.

A group iterates over a *domain* of axes. A member's value varies either over the whole
domain, or (after a reduction) over the axes that are kept. Producers join their
consumers, reductions over the same axes share a group, and so do siblings that read the
same arrays; views are read through. Library calls and templates are units of their own.

``m = max(x, 1); e = exp(x - m[:, None]); s = sum(e, 1); y = e / s[:, None]`` is one
group: its domain is that of ``x``, axis 1 is reduced, and ``m`` and ``s`` vary over
axis 0 only.

The fuser is one object, built in layers, a module each: ``groups`` (the groups and
their order), ``recomputation`` (values that are computed again where they are read),
``axes`` (which axes of the domain a value varies over), ``merging`` (two groups become
one) and ``fuser`` (where each equation goes).
"""

from __future__ import annotations

from arrayfn.lowering.fusion.fuser import fuse, unfused_units
from arrayfn.lowering.fusion.groups import AxisIds, reads_in_place
from arrayfn.lowering.fusion.units import FusedGroup, SingleUnit, Unit

__all__ = [
    "AxisIds",
    "FusedGroup",
    "SingleUnit",
    "Unit",
    "fuse",
    "reads_in_place",
    "unfused_units",
]
