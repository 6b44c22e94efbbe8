"""Which operands an equation writes over, and which loops carry a value in place.

Some primitives change their operand rather than make an array of their own: an in-place
template or library row, and a loop whose body does so with a value that it carries.
"""

from __future__ import annotations

import functools

from arrayfn.ir import Atom, Equation, Program, Var
from arrayfn.primitives.base import Control, Library, Primitive, Template


def overwritten(equation: Equation) -> tuple[int, ...]:
    """The numbers of the operands of ``equation`` that it writes over."""
    row = equation.primitive
    assert isinstance(row, Primitive)
    if isinstance(row.kernel, (Template, Library)):
        return (0,) if row.kernel.in_place else ()
    if isinstance(row.kernel, Control):
        begin = carry_begin(equation)
        return tuple(begin + k for k in carried_in_place(equation))
    return ()


def carry_begin(equation: Equation) -> int:
    """The number of the operand of a loop at which its carry begins."""
    params = equation.params
    if equation.primitive.name == "scan":
        return params["consts"]
    return params.get("cond_consts", 0) + params.get("body_consts", 0)


@functools.lru_cache(maxsize=1024)  # asked for each value of every loop around
def carried_in_place(equation: Equation) -> tuple[int, ...]:
    """The values that the body of a loop changes in place; none in a branch.

    Value k is changed in place if output k of the body comes from the input that is
    value k by equations that write over their operand.
    """
    params = equation.params
    if equation.primitive.name == "scan":
        program: Program = params["program"]
        first, count = params["consts"], params["carry"]
    elif equation.primitive.name == "while_loop":
        program = params["body_program"]
        first, count = params["body_consts"], len(program.outputs)
    else:
        return ()
    makers = {var: eq for eq in program.equations for var in eq.outputs}
    found: list[int] = []
    for number in range(count):
        value = program.inputs[first + number]
        atom: Atom | None = program.outputs[number]
        changed = atom is not value
        while isinstance(atom, Var) and atom is not value and atom in makers:
            atom = _written_over(makers[atom], atom)
        if atom is value and changed:
            found.append(number)
    return tuple(found)


def _written_over(equation: Equation, output: Var) -> Var | None:
    """The operand of ``equation`` whose memory becomes that of ``output``."""
    operands = overwritten(equation)
    if not operands:
        return None
    row = equation.primitive
    assert isinstance(row, Primitive)
    number = next(k for k, var in enumerate(equation.outputs) if var is output)
    if isinstance(row.kernel, Control):
        number += carry_begin(equation)
    if number not in operands:
        return None
    operand = equation.inputs[number]
    return operand if isinstance(operand, Var) else None
