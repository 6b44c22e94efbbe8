"""Calls of Python functions, as library calls that the calling thread runs.

The provider's name ends in the number of the call site, by which the runtime finds the
function, and the shapes and dtypes of the arrays behind the pointers.
"""

from __future__ import annotations

from collections.abc import Iterable

from arrayfn.ir import Atom, Equation
from arrayfn.lowering.libraries.calls import LibraryCall, numbered_call
from arrayfn.passes.reads import Reads
from arrayfn.primitives.callbacks import SITES, CallSite, Form
from arrayfn.primitives.named_functions import FUNCTIONS


def callback(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """Yield the library call of a Python function on operands and results.

    ``reads`` has the array behind each operand.
    """
    params = equation.params
    site = CallSite(
        callback=FUNCTIONS.find(params["callback"]),
        operands=tuple(_shape_and_dtype(atom) for atom in equation.inputs),
        results=tuple(_shape_and_dtype(var) for var in equation.outputs),
        loops=params["loops"],
        location=equation.source,
    )
    text = f"the Python function {params['callback']}"
    yield numbered_call("callback", SITES.add(site), equation, reads, text)


def _shape_and_dtype(atom: Atom) -> Form:
    """Return the shape and dtype of an operand or result."""
    return atom.type.shape, atom.type.dtype
