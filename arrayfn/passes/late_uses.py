"""Moves equations that use sums over members to the end of a Program.

Other steps can run while a sum is on its way. In a training step, the backward pass
gives the gradients one after the other, and each is summed. The global norm and the
optimizer use the sums. If these equations came right after the sums, each sum would be
waited for. The other equations and the collectives keep their order.
"""

from __future__ import annotations

from dataclasses import replace

from arrayfn.ir import Equation, Program, Var, walk
from arrayfn.primitives.base import has_effect, primitive_of
from arrayfn.primitives.collectives import all_reduce


def with_late_uses(program: Program) -> Program:
    """Move equations that use sums over devices as late as possible.

    ``program`` is that of one device of a mesh. After it, an equation that needs the
    result of an ``all_reduce`` comes right before the first collective or equation with
    an effect that needs its result, or at the end: ``s = all_reduce(g); u = s * 2; t =
    all_reduce(h)`` becomes ``s = all_reduce(g); t = all_reduce(h); u = s * 2``.
    """
    if not any(e.primitive is all_reduce for e in program.equations):
        return program
    order: list[Equation] = []
    delayed: dict[int, Equation] = {}  # by their positions in the Program
    made_by: dict[Var, int] = {}  # position of the delayed equation that makes a Var
    sums: set[Var] = set()  # results of all_reduce
    for position, equation in enumerate(program.equations):
        needed = {made_by[a] for a in equation.inputs if a in made_by}
        if _is_movable(equation) and (needed or sums.intersection(equation.inputs)):
            delayed[position] = equation
            made_by.update(dict.fromkeys(equation.outputs, position))
            continue
        order += _taken_out(needed, delayed, made_by)
        order.append(equation)
        if equation.primitive is all_reduce:
            sums.update(equation.outputs)
    order += delayed.values()
    return replace(program, equations=tuple(order))


def _is_movable(equation: Equation) -> bool:
    """Whether ``equation`` may come later: it has no effect and no collective."""
    return not has_effect(equation) and not _has_collective(equation)


def _has_collective(equation: Equation) -> bool:
    """Whether ``equation`` is a collective, or has one in its subprograms."""
    return any(primitive_of(inner).is_collective for inner in walk([equation]))


def _taken_out(
    needed: set[int], delayed: dict[int, Equation], made_by: dict[Var, int]
) -> list[Equation]:
    """Remove the equations at positions ``needed``, and those they need, from a delay.

    Returns the equations in their order. ``delayed`` and ``made_by`` are those of
    ``with_late_uses``; the equations and their outputs are removed from both.
    """
    positions: set[int] = set()
    unvisited = list(needed)
    while unvisited:
        position = unvisited.pop()
        if position not in positions:
            positions.add(position)
            inputs = delayed[position].inputs
            unvisited += [made_by[a] for a in inputs if a in made_by]
    taken = [delayed.pop(position) for position in sorted(positions)]
    for equation in taken:
        for output in equation.outputs:
            del made_by[output]
    return taken
