"""Dead-code elimination: removes equations whose outputs nothing uses.

After it: every equation has an output that is used, or an effect; every constant is
used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from arrayfn.ir import Atom, Equation, Program
from arrayfn.primitives.base import has_effect


def dce(program: Program) -> Program:
    """``program`` without equations that its outputs do not need. Inputs stay."""
    kept = needed(program.equations, program.outputs)
    live = {a for equation in kept for a in equation.inputs} | {*program.outputs}
    constants = [
        (var, value)
        for var, value in zip(program.constants, program.constant_values, strict=True)
        if var in live
    ]
    return Program(
        program.name,
        program.inputs,
        tuple(kept),
        program.outputs,
        tuple(var for var, _ in constants),
        tuple(value for _, value in constants),
    )


def needed(equations: Sequence[Equation], outputs: Iterable[Atom]) -> list[Equation]:
    """The ``equations`` that have an effect, or that ``outputs`` depend on."""
    live: set[Atom] = set(outputs)
    kept: list[Equation] = []
    for equation in reversed(equations):
        if any(v in live for v in equation.outputs) or has_effect(equation):
            kept.append(equation)
            live.update(equation.inputs)
    return kept[::-1]
