"""Common-subexpression elimination: equal equations are computed once.

After it: no two equations have the same primitive, inputs and params.
"""

from __future__ import annotations

from typing import Any

from arrayfn.ir import Atom, Equation, Literal, Program, Var
from arrayfn.ir.builder import current_builder, rewritten
from arrayfn.primitives.base import has_effect


def cse(program: Program) -> Program:
    """``program`` without equations that repeat an earlier one."""
    seen: dict[Any, tuple[Atom, ...]] = {}

    def computed_once(equation: Equation, operands: list[Atom]) -> tuple[Atom, ...]:
        """The outputs of the first equation that computes the same."""
        key = (
            equation.primitive.name,
            tuple(map(_key, operands)),
            repr(sorted(equation.params.items()))  # tells -0.0 from 0.0
            if not equation.subprograms() and not has_effect(equation)
            else id(equation),
        )
        if key not in seen:
            seen[key] = current_builder().keep(equation, operands)
        return seen[key]

    return rewritten(program, computed_once)


def _key(atom: Atom) -> Any:
    """A key that is equal for equal atoms."""
    if isinstance(atom, Literal):
        return atom.key()
    assert isinstance(atom, Var)
    return id(atom)
