"""Rewrites gradients of window maxima and minima as sums over an element's windows.

A scatter would have to sort the targets of all windows. Where windows are short, each
element instead tests the few windows that contain it.
"""

from __future__ import annotations

from arrayfn.ir import Atom, Equation, Program
from arrayfn.ir.builder import rewritten
from arrayfn.lowering.cuda.windows.pools import is_pool
from arrayfn.primitives.window_elements import put_in_phases, window_put


def windows_as_sums(program: Program) -> Program:
    """Rewrite each ``window_put`` into short windows as sums; others stay scatters."""
    if all(equation.primitive is not window_put for equation in program.equations):
        return program
    return rewritten(program, _as_sum)


def _as_sum(equation: Equation, operands: list[Atom]) -> list[Atom] | None:
    """Return the sum that replaces ``equation``; None to keep it.

    Only a ``window_put`` into short windows is replaced, and only if no pooling kernel
    computes it. ``operands`` are its operands in the new Program.
    """
    if equation.primitive is not window_put or is_pool(equation):
        return None
    result = put_in_phases(*operands, **equation.params)
    return None if result is None else [result]
