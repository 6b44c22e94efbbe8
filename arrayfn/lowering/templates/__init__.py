"""The nests of primitives that move elements: a function for each ``Template`` form.

Each function takes an equation, the array and index map behind its operands (``reads``)
and the names of its values (``names``). It returns the nests that compute the output,
in order; none if the output has no elements. Views are read in place, and extents are
arguments. ``iota`` has no nest: fusion computes it where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from arrayfn.ir import Equation
from arrayfn.lowering.kernel_ir import Nest
from arrayfn.lowering.templates import indexing, scans, structure, windowed
from arrayfn.lowering.templates.nest_builder import Names
from arrayfn.passes.reads import Reads

TEMPLATES: Final[dict[str, Callable[[Equation, Reads, Names], Iterable[Nest]]]] = {
    "concatenate": structure.concatenate,
    "pad": structure.pad,
    **dict.fromkeys(scans.SCANS, scans.scan),
    "sliding_windows": windowed.sliding_windows,
    "gather": indexing.gather,
    "dynamic_slice": indexing.dynamic_slice,
    "dynamic_update_slice": indexing.dynamic_update_slice,
    "scatter": partial(indexing.scatter, function=None),
    "scatter_add": partial(indexing.scatter, function="add"),
    "scatter_mul": partial(indexing.scatter, function="mul"),
    "scatter_min": partial(indexing.scatter, function="min"),
    "scatter_max": partial(indexing.scatter, function="max"),
}
