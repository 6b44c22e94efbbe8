"""Computes the mask of a rectified value from the result, not from the operand.

After ``y = select(x <= 0, 0, x)``, ``y <= 0`` equals ``x <= 0``. If a derivative uses
``y <= 0``, x need not be kept, and a matrix product that makes x can apply the
rectification in its epilogue.
"""

from __future__ import annotations

from arrayfn.ir import Atom, Equation, Literal, Program, Var
from arrayfn.ir.builder import ProgramBuilder, rename
from arrayfn.primitives import discrete


def masks_of_results(program: Program) -> Program:
    """Compute masks ``x <= 0`` as ``y <= 0`` if y is x rectified.

    Then x need not be stored for the backward pass.
    """
    builder = ProgramBuilder(program.name)
    definitions = program.definitions()
    last: dict[Atom, int] = {}  # the position of the last use
    for position, equation in enumerate(program.equations):
        last.update(dict.fromkeys(equation.inputs, position))
    last.update(dict.fromkeys(program.outputs, len(program.equations)))
    with builder:
        environment = builder.bind_inputs(program, builder.inputs_of(program))
        for position, equation in enumerate(program.equations):
            builder.source = equation.source
            builder.replay(equation, environment)
            mask = _mask_of(equation, definitions)
            # Later uses of the mask read the one that is computed from the result.
            if mask is not None and last[mask] > position:
                result = rename(equation.outputs[0], environment)
                zero = definitions[mask].inputs[1]
                environment[mask] = discrete.le(result, zero)
    return builder.build([rename(a, environment) for a in program.outputs])


def _mask_of(equation: Equation, definitions: dict[Var, Equation]) -> Var | None:
    """Return the mask ``x <= 0`` of an equation that rectifies x; None for others."""
    if equation.primitive.name != "select":
        return None
    mask, low_value, x = equation.inputs
    if not isinstance(mask, Var) or not _is_zero(low_value) or not isinstance(x, Var):
        return None
    comparison = definitions.get(mask)
    if comparison is None or comparison.primitive.name != "le":
        return None
    left, right = comparison.inputs
    return mask if left is x and _is_zero(right) else None


def _is_zero(atom: Atom) -> bool:
    """Whether ``atom`` is the literal 0 or -0."""
    return isinstance(atom, Literal) and atom.value == 0
