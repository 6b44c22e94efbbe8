"""Layouts: which values are views, and where a copy must be made. Copies are equations.

After it: the operand of a reshape that is no view, and each output, is a row-major
array of its own, made by ``relayout`` where it was not one. Layout tags say what views
are.
"""

from __future__ import annotations

from arrayfn.builder import ProgramBuilder, rename
from arrayfn.ir import Atom, Program, Var
from arrayfn.primitives import views
from arrayfn.primitives.base import Primitive, View


def assign_layouts(program: Program) -> Program:
    """``program`` with every copy that a layout needs as a ``relayout`` equation."""
    builder = ProgramBuilder(program.name)
    with builder:
        inputs = [builder.input(t) for t in program.input_types]
        environment = builder.bind_inputs(program, inputs)
        borrowed: set[Atom] = {*inputs, *(environment[c] for c in program.constants)}
        viewed: set[Atom] = {x for x in borrowed if str(x.type.layout) != "C"}
        aliases: set[Atom] = set()
        for equation in program.equations:
            builder.source = equation.source
            if equation.primitive is views.reshape and not _is_affine(equation):
                (operand,) = (rename(a, environment) for a in equation.inputs)
                if operand in viewed:
                    environment[equation.inputs[0]] = views.relayout(  # type: ignore[index]
                        operand, layout="C"
                    )
            builder.replay(equation, environment)
            result = environment[equation.outputs[0]]
            if _is_view(equation.primitive):
                if equation.primitive is views.reshape and not _is_affine(equation):
                    aliases.add(result)
                else:
                    viewed.add(result)
        taken: set[Atom] = set()
        outputs: list[Atom] = []
        for atom in program.outputs:
            value = rename(atom, environment)
            owned = (
                isinstance(value, Var)
                and value not in borrowed
                and value not in viewed
                and value not in aliases
                and value not in taken
            )
            if not owned:
                value = views.relayout(value, layout="C")
            taken.add(value)
            outputs.append(value)
    return builder.build(outputs)


def _is_view(primitive: object) -> bool:
    return (
        isinstance(primitive, Primitive)
        and isinstance(primitive.kernel, View)
        and primitive is not views.relayout
    )


def _is_affine(equation: object) -> bool:
    row = equation.primitive  # type: ignore[attr-defined]
    return row.kernel.axes(equation.inputs[0].type, **equation.params) is not None  # type: ignore[attr-defined]
