"""Finds the operands that an equation overwrites, and the carries updated in place.

Some equations update an operand instead of allocating a result: a template or library
primitive that is in place, a loop whose body updates a carry, and a branch in which
some Programs update the operand and the others return it unchanged.
"""

from __future__ import annotations

import functools

from arrayfn.caches import forgets
from arrayfn.ir import Atom, Equation, Program, Var
from arrayfn.primitives.base import Control, Library, Template, primitive_of


def overwritten(equation: Equation) -> tuple[int, ...]:
    """Return the indices of the operands whose memory ``equation`` writes over."""
    primitive = primitive_of(equation)
    if isinstance(primitive.kernel, (Template, Library)):
        return (0,) if primitive.kernel.in_place else ()
    if equation.primitive.name == "cond":
        # Operand 0 is the index of the branch.
        return tuple(1 + k for k in branched_in_place(equation).values())
    if isinstance(primitive.kernel, Control):
        begin = carry_begin(equation)
        return tuple(begin + k for k in carried_in_place(equation))
    return ()


def carry_begin(equation: Equation) -> int:
    """Return the index of a loop's first carry among its operands."""
    params = equation.params
    if equation.primitive.name == "scan":
        return params["consts"]
    return params.get("cond_consts", 0) + params.get("body_consts", 0)


@functools.lru_cache(maxsize=1024)  # called for each value of every enclosing loop
def carried_in_place(equation: Equation) -> tuple[int, ...]:
    """Return the indices of the carries that the body of a loop updates in place.

    Carry k is updated in place if output k of the body comes from input k by equations
    that overwrite their operand. A branch has none.
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
    sources = memory_sources(program)
    return tuple(
        number
        for number in range(count)
        if sources[number] is program.inputs[first + number]
        and sources[number] is not program.outputs[number]
    )


@functools.lru_cache(maxsize=1024)
def branched_in_place(equation: Equation) -> dict[int, int]:
    """Map indices of results of a ``cond`` to the operands whose memory they share.

    Operands are counted without the index of the branch. One branch updates the operand
    in place, and every other branch does so too or returns it unchanged.
    """
    branches: tuple[Program, ...] = equation.params["branches"]
    sources = [memory_sources(program) for program in branches]
    in_place: dict[int, int] = {}
    for number in range(len(equation.outputs)):
        operands = set[int]()
        for program, origin in zip(branches, sources, strict=True):
            matches = (k for k, v in enumerate(program.inputs) if v is origin[number])
            operands.add(next(matches, -1))  # -1 also for None, which is no input
        is_updated = any(
            origin[number] is not program.outputs[number]
            for program, origin in zip(branches, sources, strict=True)
        )
        operand = operands.pop()  # the only one, if all branches share the same
        if (
            is_updated
            and not operands
            and operand >= 0
            and operand not in in_place.values()
        ):
            in_place[number] = operand
    return in_place


def memory_sources(program: Program) -> list[Atom | None]:
    """Return for each output the input or constant whose memory it shares, or None.

    An output shares memory with an input that it is itself, or from which it comes by
    updates in place. None means that an equation allocates the output's memory. A
    Literal stands for itself.
    """
    definitions = program.definitions()
    sources: list[Atom | None] = []
    for output in program.outputs:
        atom: Atom | None = output
        while isinstance(atom, Var) and atom in definitions:
            atom = _written_over(definitions[atom], atom)
        sources.append(atom)
    return sources


def _written_over(equation: Equation, output: Var) -> Var | None:
    """Return the operand whose memory ``equation`` reuses for ``output``, or None."""
    operands = overwritten(equation)
    if not operands:
        return None
    primitive = primitive_of(equation)
    number = next(k for k, var in enumerate(equation.outputs) if var is output)
    if equation.primitive.name == "cond":
        # Operand 0 is the index, which is never overwritten.
        number = 1 + branched_in_place(equation).get(number, -1)
    elif isinstance(primitive.kernel, Control):
        number += carry_begin(equation)
    if number not in operands:
        return None
    operand = equation.inputs[number]
    return operand if isinstance(operand, Var) else None


forgets(carried_in_place.cache_clear)
forgets(branched_in_place.cache_clear)
