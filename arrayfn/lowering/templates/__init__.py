"""The nests of primitives that move elements: a function for each ``Template`` form.

Each function takes an equation, the array and index map behind its operands, and the
names of its values. It returns the nests that compute the output, in order. Views are
read in place, and extents are arguments. ``iota`` has no nest: fusion computes it where
it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from arrayfn.ir import Equation, Var
from arrayfn.lowering.kernel_ir import Nest
from arrayfn.lowering.templates import indexing, scans, structure, windowed
from arrayfn.passes.reads import Reads

Names = Mapping[Var, str]

TEMPLATES: Final[dict[str, Callable[[Equation, Reads, Names], Iterable[Nest]]]] = {
    "concatenate": structure.concatenate,
    "pad": structure.pad,
    **dict.fromkeys(scans.SCANS, scans.scan),
    "sliding_windows": windowed.sliding_windows,
    "gather": indexing.gather,
    "dynamic_slice": indexing.dynamic_slice,
    "dynamic_update_slice": indexing.dynamic_update_slice,
    "scatter": indexing.scatter(None),
    "scatter_add": indexing.scatter("add"),
    "scatter_mul": indexing.scatter("mul"),
    "scatter_min": indexing.scatter("min"),
    "scatter_max": indexing.scatter("max"),
}


def nests(name: str, equation: Equation, reads: Reads, names: Names) -> Iterable[Nest]:
    """Return the nests of the template ``name`` for ``equation``, in order.

    There are none if the output has no elements. ``reads`` says in which array and at
    which index the elements of each operand are, ``names`` how values are called.
    """
    return TEMPLATES[name](equation, reads, names)
