"""Linearization: splits a jvp into a known part and a part linear in the tangents.

known:  inputs -> outputs, residuals
linear: residuals, tangents -> output tangents

For sin(x), the known Program is ``x -> (sin(x), c)`` with the residual ``c = cos(x)``,
and the linear one is ``(c, dx) -> c * dx``.

Each equation belongs to one side, except for those that hold Programs: a loop over
values and tangents becomes a loop over the values, which also returns the residuals of
each iteration, and a linear loop over the tangents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from arrayfn.ir import Atom, Equation, Program, Var
from arrayfn.primitives.base import OverPrograms, View, needed, primitive_of
from arrayfn.primitives.control_flow import Parts, selected, unselected
from arrayfn.records import frozen
from arrayfn.transforms.forward_mode import jvp


@frozen
class Linearization:
    """A linearized Program: its known part, its linear part, the residual count."""

    known: Program
    linear: Program
    residuals: int


def linearize(program: Program, wrt: Sequence[bool]) -> Linearization:
    """Split the jvp of ``program`` by whether equations depend on the tangents.

    ``wrt`` says which inputs have a tangent.
    """
    forward = jvp(program, wrt)
    count = len(program.outputs)
    tangents = len(forward.inputs) - len(program.inputs)
    # Tangents follow the inputs and the outputs. All tangents of outputs are linear.
    parts = split(
        forward,
        [False] * len(program.inputs) + [True] * tangents,
        [False] * count + [True] * count,
    )
    return Linearization(
        replace(parts.known, name=program.name),
        replace(parts.linear, name=f"linear_{program.name}"),
        parts.residuals,
    )


def split(
    program: Program, unknown: Sequence[bool], linear_outputs: Sequence[bool]
) -> Parts:
    """Split ``program`` by whether equations depend on its ``unknown`` inputs.

    Outputs marked in ``linear_outputs`` always count as unknown. ``program`` is linear
    in the unknown inputs. Returns the known Program, which also returns residuals; the
    linear Program of residuals and unknown inputs, which returns the unknown outputs;
    which outputs are unknown; and the number of residuals.
    """
    varying = {v for v, u in zip(program.inputs, unknown, strict=True) if u}
    known: list[Equation] = []
    linear: list[Equation] = []
    for equation in program.equations:
        operands_vary = [a in varying for a in equation.inputs]
        if not any(operands_vary):
            known.append(equation)
            continue
        primitive = primitive_of(equation)
        if isinstance(primitive.split, OverPrograms):
            # A loop or call becomes equations on both sides.
            before, after = primitive.split.rule(split, equation, operands_vary)
            known += before
        else:
            after = [equation]
        linear += after
        varying.update(v for emitted in after for v in emitted.outputs)
    # The known Program returns its outputs and what the linear one reads of it.
    is_unknown = [
        is_linear or atom in varying
        for atom, is_linear in zip(program.outputs, linear_outputs, strict=True)
    ]
    outputs = selected(program.outputs, is_unknown)
    after, residuals = _needed(linear, outputs, varying, _free(known))
    return Parts(
        Program(
            program.name,
            tuple(unselected(program.inputs, unknown)),
            tuple(known),
            (*unselected(program.outputs, is_unknown), *residuals),
            program.constants,
            program.constant_values,
        ),
        Program(
            program.name,
            (*residuals, *selected(program.inputs, unknown)),
            after,
            tuple(outputs),
        ),
        is_unknown,
        len(residuals),
    )


def _free(known: Sequence[Equation]) -> dict[Var, Equation]:
    """Map Vars that are views of literals to the equations that make them.

    They are recomputed in the linear part, instead of being residuals.
    """
    free: dict[Var, Equation] = {}
    for equation in known:
        is_view = isinstance(primitive_of(equation).kernel, View)
        if is_view and all(
            not isinstance(a, Var) or a in free for a in equation.inputs
        ):
            free.update(dict.fromkeys(equation.outputs, equation))
    return free


def _needed(
    linear: Sequence[Equation],
    outputs: Sequence[Atom],
    varying: set[Var],
    free: dict[Var, Equation],
) -> tuple[tuple[Equation, ...], list[Var]]:
    """Return the equations of a linear Program, and the residuals that they read.

    The equations are those of ``linear`` that ``outputs`` need, after those of ``free``
    that these read. ``varying`` are the Vars that depend on unknown inputs. ``free``
    has the equations of Vars that are recomputed; these read only literals and each
    other (see ``_free``).
    """
    needed_equations = needed(linear, outputs, effects=False)
    read: dict[Var, None] = {}
    for atom in (
        *(a for equation in needed_equations for a in equation.inputs),
        *outputs,
    ):
        if isinstance(atom, Var) and atom not in varying:
            read[atom] = None
    recomputed: dict[Equation, None] = {}

    def make(var: Var) -> None:
        """Add the equation of ``var`` after those that it depends on."""
        equation = free[var]
        for atom in equation.inputs:
            if isinstance(atom, Var):
                make(atom)
        recomputed[equation] = None

    for var in read:
        if var in free:
            make(var)
    residuals = [var for var in read if var not in free]
    return (*recomputed, *needed_equations), residuals
