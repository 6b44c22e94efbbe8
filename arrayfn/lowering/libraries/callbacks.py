"""Calls of Python functions: a library of one work item, done by the calling thread.

The provider's name ends in the number of the call's site, by which the runtime finds
the function, and the forms of the arrays that the pointers stand for.
"""

from __future__ import annotations

from collections.abc import Iterable

from arrayfn.ir import Atom, Equation
from arrayfn.lowering.libraries.calls import LibraryCall, Pointer, pointer_of
from arrayfn.passes.reads import Reads
from arrayfn.primitives.callbacks import SITES, CallSite, Form
from arrayfn.primitives.named_functions import FUNCTIONS


def callback(equation: Equation, reads: Reads) -> Iterable[LibraryCall]:
    """The call: the operands' arrays, then those of the results."""
    params = equation.params
    site = CallSite(
        callback=FUNCTIONS.find(params["callback"]),
        operands=tuple(_form(atom) for atom in equation.inputs),
        results=tuple(_form(var) for var in equation.outputs),
        loops=params["loops"],
        location=equation.source,
    )
    number = SITES.add(site)
    yield LibraryCall(
        provider=f"callback_{number}",
        reads={f"x{k}": pointer_of(a, reads) for k, a in enumerate(equation.inputs)},
        writes={f"y{k}": Pointer(v) for k, v in enumerate(equation.outputs)},
        integers={"number": number},
        items=1,
        library=f"the Python function {params['callback']}",
    )


def _form(atom: Atom) -> Form:
    return atom.type.shape, atom.type.dtype
