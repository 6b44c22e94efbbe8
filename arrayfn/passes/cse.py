"""Common-subexpression elimination: equal equations are computed once.

After it: no two equations have the same primitive, inputs and params.
"""

from __future__ import annotations

from typing import Any

from arrayfn.ir import Atom, Equation, Literal, Program, Var
from arrayfn.ir.builder import current_builder, rewritten
from arrayfn.primitives.base import has_effect


def cse(program: Program) -> Program:
    """Drop the equations of ``program`` that repeat an earlier one.

    ``a = exp(x); b = exp(x); c = a + b`` becomes ``a = exp(x); c = a + a``.
    """
    outputs_by_key: dict[Any, tuple[Atom, ...]] = {}

    def computed_once(equation: Equation, operands: list[Atom]) -> tuple[Atom, ...]:
        """Emit ``equation``, or return the outputs of an earlier equal one."""
        key = _equation_key(equation, operands)
        if key not in outputs_by_key:
            outputs_by_key[key] = current_builder().keep(equation, operands)
        return outputs_by_key[key]

    return rewritten(program, computed_once)


def _equation_key(equation: Equation, operands: list[Atom]) -> Any:
    """Return a key that equations with the same primitive, operands and params share.

    An equation that has effects or holds Programs has a key of its own.
    """
    if equation.subprograms() or has_effect(equation):
        return id(equation)
    params = repr(sorted(equation.params.items()))  # the text tells -0.0 from 0.0
    return equation.primitive.name, tuple(map(_atom_key, operands)), params


def _atom_key(atom: Atom) -> Any:
    """Return a key that is equal for equal atoms."""
    if isinstance(atom, Literal):
        return atom.key()
    assert isinstance(atom, Var)
    return id(atom)
