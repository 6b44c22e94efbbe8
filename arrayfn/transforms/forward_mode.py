"""Forward mode: turns a Program into the Program of its values and tangents."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from arrayfn.errors import ArrayfnError, DifferentiationError, located
from arrayfn.ir import Atom, Equation, Program, Var, entry_of
from arrayfn.ir.builder import ProgramBuilder, rename
from arrayfn.primitives import views
from arrayfn.primitives.base import (
    LINEAR,
    THROUGH_BODY,
    ZERO_TANGENT,
    JvpWithOutputs,
    Marker,
    OverPrograms,
    Primitive,
    primitive_of,
)
from arrayfn.primitives.dropped_kernels import DIFFERENTIATION, warn_dropped

Emit = Callable[[Equation, dict[Var, Atom]], None]


def jvp(program: Program, wrt: Sequence[bool]) -> Program:
    """Differentiate ``program`` in forward mode: return a Program with tangents.

    It takes the inputs, then tangents of the inputs marked in ``wrt``. It returns the
    outputs, then their tangents. An output that depends on no such input has zeros.
    ``f(x) -> sin(x)`` becomes ``jvp_f(x, dx) -> (sin(x), cos(x) * dx)``.
    """
    return jvp_varying(program, wrt, [True] * len(program.outputs))[0]


def jvp_varying(
    program: Program, wrt: Sequence[bool], dense: Sequence[bool]
) -> tuple[Program, list[bool]]:
    """Do what ``jvp`` does, without tangents of outputs that do not vary.

    Also return which outputs have a tangent.

    Outputs marked in ``dense`` always have a tangent, zeros if they do not vary.
    """
    builder = ProgramBuilder(f"jvp_{program.name}")
    with builder:
        # ``take`` puts the Equation objects of ``program`` into the new Program, so its
        # Vars stay the same.
        primals = program.inputs
        builder.inputs += primals
        tangents = [
            builder.input(v.type) if wanted else None
            for v, wanted in zip(primals, wrt, strict=True)
        ]
        outputs, output_tangents = push_forward(
            builder, program, primals, tangents, builder.take
        )
        directions = [
            views.zeros(y.type) if t is None and wanted else t
            for y, t, wanted in zip(outputs, output_tangents, dense, strict=True)
        ]
    varies = [t is not None for t in directions]
    return builder.build([*outputs, *(t for t in directions if t is not None)]), varies


def push_forward(
    builder: ProgramBuilder,
    program: Program,
    primals: Sequence[Atom],
    tangents: Sequence[Atom | None],
    emit: Emit | None = None,
) -> tuple[list[Atom], list[Atom | None]]:
    """Emit ``program`` and its tangents; return the outputs and their tangents.

    ``primals`` are the inputs' new values and ``tangents`` their tangents. A tangent of
    None is zero. ``emit`` emits an equation that computes values: the builder's
    ``replay`` (by default) or ``take``.
    """
    emit = emit or builder.replay
    values = builder.bind_inputs(program, primals)
    varies: dict[Var, Atom] = {
        var: tangent
        for var, tangent in zip(program.inputs, tangents, strict=True)
        if tangent is not None
    }
    for equation in program.equations:
        builder.source = equation.source
        operand_tangents = [entry_of(a, varies) for a in equation.inputs]
        if all(t is None for t in operand_tangents):
            emit(equation, values)
            continue
        try:
            outputs, results = _differentiated(
                builder, equation, values, operand_tangents, emit
            )
        except ArrayfnError as error:
            raise located(error, equation.source) from None
        values.update(zip(equation.outputs, outputs, strict=True))
        pairs = zip(equation.outputs, results, strict=True)
        varies.update((var, t) for var, t in pairs if t is not None)
    outputs = [rename(a, values) for a in program.outputs]
    return outputs, [entry_of(a, varies) for a in program.outputs]


def _differentiated(
    builder: ProgramBuilder,
    equation: Equation,
    values: dict[Var, Atom],
    tangents: Sequence[Atom | None],
    emit: Emit,
) -> tuple[Sequence[Atom], Sequence[Atom | None]]:
    """Emit ``equation`` and its tangents; return the outputs and the tangents.

    ``values`` has the new values of Vars; ``tangents`` are those of the operands, None
    for zeros. ``emit`` appends the equation itself.
    """
    primitive = primitive_of(equation)
    operands = [rename(a, values) for a in equation.inputs]
    # These three kinds of rules emit the outputs themselves.
    if primitive.jvp == THROUGH_BODY:
        warn_dropped(equation, DIFFERENTIATION)
        return push_forward(builder, equation.params["body"], operands, tangents)
    if isinstance(primitive.jvp, JvpWithOutputs):
        return primitive.jvp.rule(operands, tangents, **equation.params)
    if isinstance(primitive.jvp, OverPrograms):
        # The rule transforms the Programs that the primitive holds by jvp_varying.
        return primitive.jvp.rule(jvp_varying, operands, tangents, **equation.params)
    emit(equation, values)
    outputs = [rename(v, values) for v in equation.outputs]
    return outputs, _apply_rule(equation, primitive, operands, outputs, tangents)


def _apply_rule(
    equation: Equation,
    primitive: Primitive,
    primals: Sequence[Atom],
    outputs: Sequence[Atom],
    tangents: Sequence[Atom | None],
) -> Sequence[Atom | None]:
    """Emit the tangents of an equation's ``outputs``, by its primitive's jvp rule.

    None stands for a tangent of zeros. Raises DifferentiationError if there is no rule.
    """
    if primitive.jvp == ZERO_TANGENT:
        return [None] * len(equation.outputs)
    if primitive.jvp == LINEAR:
        return [primitive(*[t for t in tangents if t is not None], **equation.params)]
    if isinstance(primitive.jvp, Marker):
        raise DifferentiationError(
            f"{primitive.name} has no derivative: {primitive.jvp.reason}",
            equation.source,
        )
    assert not isinstance(primitive.jvp, (JvpWithOutputs, OverPrograms))
    return primitive.jvp(primals, outputs, tangents, **equation.params)
