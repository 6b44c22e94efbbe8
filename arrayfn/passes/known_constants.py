"""Splits off what depends on captured arrays alone, so that it is computed once.

After it: no costly equation of the second Program depends only on constants. The first
Program computes their values, which are constants of the second. Cheap equations stay
where they are read, since reading a value costs as much; so do values that would take
much more memory than the captured arrays.
"""

from __future__ import annotations

from typing import Any, Final

from arrayfn.ir import Equation, Program, Var
from arrayfn.passes.loop_invariants import is_costly
from arrayfn.primitives.base import has_effect, needed, primitive_of
from arrayfn.transforms.shape_struct import ShapeDtypeStruct

MAX_GROWTH: Final = 64 << 20
"""By how many bytes a kept value may exceed all captured arrays together."""


def split_known(program: Program) -> tuple[Program | None, Program]:
    """Split off what depends on captured arrays only: it is computed once.

    Returns the Program of these values, or None if there are none, and the rest of
    ``program``. In the rest the values are the last constants; ``ShapeDtypeStruct``s
    stand for them. With the constant ``w``, ``y = x @ inv(w)`` becomes
    ``v = inv(w)`` and ``y = x @ v``.
    """
    known: set[Var] = set()  # depend on captured arrays or literals only
    captured = set(program.constants)  # of these, what depends on captured arrays
    limit = MAX_GROWTH + sum(v.type.nbytes for v in program.constants)
    hoisted_values: list[Var] = []
    hoisted: set[Equation] = set()
    for equation in program.equations if captured else ():
        operands = [a for a in equation.inputs if isinstance(a, Var)]
        primitive = primitive_of(equation)
        if has_effect(equation) or primitive.is_collective:
            continue
        if not all(v in known or v in captured for v in operands):
            continue
        known.update(equation.outputs)
        size = max(v.type.nbytes for v in equation.outputs)
        if any(v in captured for v in operands):
            captured.update(equation.outputs)
            if is_costly(equation) and size <= limit:
                hoisted_values += equation.outputs
                hoisted.add(equation)
    if not hoisted_values:
        return None, program
    left = [equation for equation in program.equations if equation not in hoisted]
    rest = needed(left, program.outputs)
    read = {a for equation in rest for a in equation.inputs} | {*program.outputs}
    values = [var for var in hoisted_values if var in read]
    own = [pair for pair in program.constant_pairs() if pair[0] in read]
    first = Program(
        f"{program.name}_once",
        (),
        tuple(needed(program.equations, values)),
        tuple(values),
        program.constants,
        program.constant_values,
    )
    second = Program(
        program.name,
        program.inputs,
        tuple(rest),
        program.outputs,
        (*(var for var, _ in own), *values),
        (
            *(value for _, value in own),
            *map(_unknown, values),
        ),
    )
    return first, second


def _unknown(var: Var) -> Any:
    """Return a ShapeDtypeStruct that stands for the value of ``var``."""
    type = var.type
    return ShapeDtypeStruct(type.shape, type.dtype, weak_type=type.weak)
