"""Programs without what belongs to one process: rules, checks, Python functions."""

from __future__ import annotations

from arrayfn.errors import ArgumentError
from arrayfn.ir import Program, walk
from arrayfn.lowering.operator_kernels import KERNELS
from arrayfn.passes.inline_calls import inline_calls


def self_contained(program: Program, backend: str) -> Program:
    """Inline calls in ``program`` whose derivative rules are functions of this process.

    Calls stay that ``backend`` has a kernel for. Raises ArgumentError for a Program
    that calls Python functions.
    """
    inlined = inline_calls(program, KERNELS.has_for(backend))
    for equation in walk(inlined.equations):
        if "callback" in equation.params:
            raise ArgumentError(
                f"save: the function calls the Python function "
                f"{equation.params['callback']}, which is not part of a Program",
                equation.source,
            )
    return inlined
