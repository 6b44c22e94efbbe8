"""Which operands an equation writes over, and which loops carry a value in place.

Some primitives change their operand rather than make an array of their own: an in-place
template or library row, a loop whose body does so with a value that it carries, and a
branch where some of its Programs do and the others leave the operand as it is.
"""

from __future__ import annotations

import functools

from arrayfn.caches import forgets
from arrayfn.ir import Atom, Equation, Program, Var
from arrayfn.primitives.base import Control, Library, Primitive, Template


def overwritten(equation: Equation) -> tuple[int, ...]:
    """The numbers of the operands of ``equation`` that it writes over."""
    row = equation.primitive
    assert isinstance(row, Primitive)
    if isinstance(row.kernel, (Template, Library)):
        return (0,) if row.kernel.in_place else ()
    if equation.primitive.name == "cond":
        return tuple(1 + k for k in branched_in_place(equation).values())
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
    found = origins(program)
    return tuple(
        number
        for number in range(count)
        if found[number] is program.inputs[first + number]
        and found[number] is not program.outputs[number]
    )


@functools.lru_cache(maxsize=1024)
def branched_in_place(equation: Equation) -> dict[int, int]:
    """The results of a ``cond`` that lie where an operand of its branches lay.

    By number. That is where one branch changes the operand in place, and every other
    does too, or returns it as it came.
    """
    branches: tuple[Program, ...] = equation.params["branches"]
    sources = [origins(program) for program in branches]
    found: dict[int, int] = {}
    for number in range(len(equation.outputs)):
        places = set[int]()
        for program, origin in zip(branches, sources, strict=True):
            at = (k for k, v in enumerate(program.inputs) if v is origin[number])
            places.add(next(at, -1))
        changes = any(
            origin[number] is not program.outputs[number]
            for program, origin in zip(branches, sources, strict=True)
        )
        place = places.pop()
        if changes and not places and place >= 0 and place not in found.values():
            found[number] = place
    return found


def origins(program: Program) -> list[Atom | None]:
    """What each output lies in the memory of, as far as equations write over it."""
    makers = {var: eq for eq in program.equations for var in eq.outputs}
    found: list[Atom | None] = []
    for output in program.outputs:
        atom: Atom | None = output
        while isinstance(atom, Var) and atom in makers:
            atom = _written_over(makers[atom], atom)
        found.append(atom)
    return found


def _written_over(equation: Equation, output: Var) -> Var | None:
    """The operand of ``equation`` whose memory becomes that of ``output``."""
    operands = overwritten(equation)
    if not operands:
        return None
    row = equation.primitive
    assert isinstance(row, Primitive)
    number = next(k for k, var in enumerate(equation.outputs) if var is output)
    if equation.primitive.name == "cond":
        number = 1 + branched_in_place(equation).get(number, -1)
    elif isinstance(row.kernel, Control):
        number += carry_begin(equation)
    if number not in operands:
        return None
    operand = equation.inputs[number]
    return operand if isinstance(operand, Var) else None


forgets(carried_in_place.cache_clear)
forgets(branched_in_place.cache_clear)
