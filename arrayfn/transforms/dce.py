"""Dead-code elimination: removes equations whose outputs nothing uses.

After it: every equation has an output that is used, or an effect; every constant is
used.
"""

from __future__ import annotations

from arrayfn.ir import Program
from arrayfn.primitives.base import needed


def dce(program: Program) -> Program:
    """Remove equations and constants that the outputs of ``program`` do not need.

    Inputs stay, and so do equations with effects.
    """
    needed_equations = needed(program.equations, program.outputs)
    live = {a for equation in needed_equations for a in equation.inputs} | {
        *program.outputs
    }
    constants = [pair for pair in program.constant_pairs() if pair[0] in live]
    return Program(
        program.name,
        program.inputs,
        tuple(needed_equations),
        program.outputs,
        tuple(var for var, _ in constants),
        tuple(value for _, value in constants),
    )
