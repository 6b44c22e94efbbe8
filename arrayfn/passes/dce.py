"""Dead code: equations whose outputs nothing uses.

After it: every equation has an output that is used, or an effect; every constant is
used.
"""

from __future__ import annotations

from arrayfn.ir import Equation, Program, Var
from arrayfn.primitives.base import has_effect


def dce(program: Program) -> Program:
    """``program`` without what its outputs do not need. Inputs stay."""
    live: set[Var] = {a for a in program.outputs if isinstance(a, Var)}
    kept: list[Equation] = []
    for equation in reversed(program.equations):
        if any(v in live for v in equation.outputs) or has_effect(equation):
            kept.append(equation)
            live.update(a for a in equation.inputs if isinstance(a, Var))
    constants = [
        (var, value)
        for var, value in zip(program.constants, program.constant_values, strict=True)
        if var in live
    ]
    return Program(
        program.name,
        program.inputs,
        tuple(reversed(kept)),
        program.outputs,
        tuple(var for var, _ in constants),
        tuple(value for _, value in constants),
    )
