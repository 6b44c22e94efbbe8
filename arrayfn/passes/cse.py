"""Common-subexpression elimination: equal equations are computed once.

After it: no two equations have the same primitive, inputs and params.
"""

from __future__ import annotations

from typing import Any

from arrayfn.ir import Atom, Literal, Program, Var
from arrayfn.ir.builder import ProgramBuilder, rename
from arrayfn.primitives.base import has_effect


def cse(program: Program) -> Program:
    """``program`` without equations that repeat an earlier one."""
    builder = ProgramBuilder(program.name)
    inputs = builder.inputs_of(program)
    environment = builder.bind_inputs(program, inputs)
    seen: dict[Any, tuple[Atom, ...]] = {}
    for equation in program.equations:
        atoms = [rename(a, environment) for a in equation.inputs]
        key = (
            equation.primitive.name,
            tuple(_key(a) for a in atoms),
            repr(sorted(equation.params.items()))  # tells -0.0 from 0.0
            if not equation.subprograms() and not has_effect(equation)
            else id(equation),
        )
        outputs = seen.get(key)
        if outputs is None:
            builder.replay(equation, environment)
            seen[key] = tuple(environment[v] for v in equation.outputs)
        else:
            environment.update(zip(equation.outputs, outputs, strict=True))
    return builder.build([rename(a, environment) for a in program.outputs])


def _key(atom: Atom) -> Any:
    if isinstance(atom, Literal):
        return atom.key()
    assert isinstance(atom, Var)
    return id(atom)
