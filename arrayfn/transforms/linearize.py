"""Linearization: a Program split into what is known at a point and what is linear.

known:  inputs -> outputs, residuals
linear: residuals, tangents -> output tangents
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from arrayfn.ir import Equation, Program, Var
from arrayfn.transforms.jvp import jvp


@dataclass(frozen=True)
class Linearization:
    """``known`` and ``linear`` as above; ``residuals`` counts the values between."""

    known: Program
    linear: Program
    residuals: int


def linearize(program: Program, wrt: Sequence[bool]) -> Linearization:
    """Split the jvp of ``program`` by what depends on the tangents."""
    forward = jvp(program, wrt)
    primals = forward.inputs[: len(program.inputs)]
    tangents = forward.inputs[len(program.inputs) :]
    varying: set[Var] = set(tangents)
    known: list[Equation] = []
    linear: list[Equation] = []
    for equation in forward.equations:
        if any(a in varying for a in equation.inputs):
            varying.update(equation.outputs)
            linear.append(equation)
        else:
            known.append(equation)
    count = len(program.outputs)
    outputs, output_tangents = forward.outputs[:count], forward.outputs[count:]
    used = [a for equation in linear for a in equation.inputs] + list(output_tangents)
    residuals = list(
        dict.fromkeys(a for a in used if isinstance(a, Var) and a not in varying)
    )
    return Linearization(
        Program(
            program.name,
            primals,
            tuple(known),
            (*outputs, *residuals),
            forward.constants,
            forward.constant_values,
        ),
        Program(
            f"linear_{program.name}",
            (*residuals, *tangents),
            tuple(linear),
            output_tangents,
        ),
        len(residuals),
    )
