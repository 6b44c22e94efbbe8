"""Gradients of extrema of windows: elements look for their windows.

A scatter would sort where all windows put their values. Where windows are short, each
element asks the few that it is in.
"""

from __future__ import annotations

from arrayfn.ir import Atom, Equation, Program
from arrayfn.ir.builder import rewritten
from arrayfn.lowering.cuda.windows.pools import is_pool
from arrayfn.primitives.window_elements import put_in_phases, window_put


def phased(program: Program) -> Program:
    """``program`` with values put into short windows as sums; others are scattered."""
    if all(equation.primitive is not window_put for equation in program.equations):
        return program
    return rewritten(program, _in_phases)


def _in_phases(equation: Equation, operands: list[Atom]) -> list[Atom] | None:
    if equation.primitive is not window_put or is_pool(equation):
        return None
    made = put_in_phases(*operands, **equation.params)
    return None if made is None else [made]
