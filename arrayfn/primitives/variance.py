"""Removes from Programs what their types say of values that vary over a mesh."""

from __future__ import annotations

from arrayfn.ir import Atom, Equation, Program, Var, with_programs
from arrayfn.ir.builder import rename
from arrayfn.ir.sharding import UNVARYING
from arrayfn.primitives.collectives import pvary


def without_variance(program: Program) -> Program:
    """Return ``program`` without variance: no type varies along a mesh axis.

    Removes ``varying`` from all types and the ``pvary`` equations, also in Programs
    among params, whose shard_maps become untyped.
    """
    environment: dict[Var, Atom] = {}

    def plain(var: Var) -> Var:
        """Make a copy of ``var`` that does not vary, and add it to ``environment``."""
        unvarying = Var(var.type.plain().with_varying(UNVARYING), var.hint)
        environment[var] = unvarying
        return unvarying

    inputs = tuple([plain(v) for v in program.inputs])
    constants = tuple([plain(v) for v in program.constants])
    equations: list[Equation] = []
    for equation in program.equations:
        operands = tuple([rename(a, environment) for a in equation.inputs])
        if equation.primitive is pvary:
            environment[equation.outputs[0]] = operands[0]
            continue
        params = with_programs(equation.params, without_variance)
        if "typed" in params:  # a shard_map
            params = {**params, "typed": False}
        outputs = tuple([plain(v) for v in equation.outputs])
        equations.append(
            Equation(equation.primitive, operands, params, outputs, equation.source)
        )
    return Program(
        program.name,
        inputs,
        tuple(equations),
        tuple([rename(a, environment) for a in program.outputs]),
        constants,
        program.constant_values,
    )
