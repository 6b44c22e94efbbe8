"""Gradients of window maxima and minima as sums over the windows of an element.

A scatter would have to sort the targets of all windows. Where windows are short, each
element instead tests the few windows that it is in.
"""

from __future__ import annotations

from arrayfn.ir import Atom, Equation, Program
from arrayfn.ir.builder import rewritten
from arrayfn.lowering.cuda.windows.pools import is_pool
from arrayfn.primitives.window_elements import put_in_phases, window_put


def windows_as_sums(program: Program) -> Program:
    """``program`` with ``window_put`` into short windows as sums; others scatter."""
    if all(equation.primitive is not window_put for equation in program.equations):
        return program
    return rewritten(program, _as_sum)


def _as_sum(equation: Equation, operands: list[Atom]) -> list[Atom] | None:
    """The sum that replaces ``equation``; None for what is no short ``window_put``.

    ``operands`` are its operands in the new Program.
    """
    if equation.primitive is not window_put or is_pool(equation):
        return None
    result = put_in_phases(*operands, **equation.params)
    return None if result is None else [result]
