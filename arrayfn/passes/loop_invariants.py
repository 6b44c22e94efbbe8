"""Loop-invariant code motion: computes invariants once, before the loop.

After it: the body of a scan or while_loop has no costly equation that depends only on
constants of the loop. Cheap ones stay, since reading a value costs as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from arrayfn.ir import Atom, Equation, Program, Var
from arrayfn.ir.builder import current_builder, rewritten
from arrayfn.primitives import views
from arrayfn.primitives.base import (
    Contraction,
    Control,
    Library,
    Reduction,
    Scalar,
    Template,
    has_effect,
    needed,
    primitive_of,
)
from arrayfn.records import frozen

MIN_ELEMENTS: Final = 64
"""With fewer elements, recomputing is as fast as another kernel."""
MIN_COST: Final = 4
"""The cost of an elementwise operation, in additions, above which it is moved."""


def loop_invariants(program: Program) -> Program:
    """Move costly loop invariants of ``program`` before its loops.

    ``for x in xs: y = sin(w) * x`` becomes ``s = sin(w); for x in xs: y = s * x``.
    """
    if not any(_costly_invariants(q) for q in program.equations):
        return program

    def with_invariants_before(
        equation: Equation, operands: list[Atom]
    ) -> Sequence[Atom] | None:
        """Emit a loop's costly invariants before it; None if there are none."""
        invariants = _costly_invariants(equation)
        return _hoisted(equation, operands, invariants) if invariants else None

    return rewritten(program, with_invariants_before)


@frozen
class _Constants:
    """How a scan or while_loop stores its body and the body's constants.

    Attributes:
        program: the name of the param that is the body.
        count: the name of the param that is the number of constants.
        begin, end: the operands that are the constants; the body's inputs begin with
            them.
    """

    program: str
    count: str
    begin: int
    end: int


def _constants_of(equation: Equation) -> _Constants | None:
    """Return where a loop has its constants; None if it may not be changed.

    None for other equations, for a scan of one iteration, and for an ``unroll`` of 0.
    """
    params = equation.params
    if equation.primitive.name == "scan" and params["length"] > 1 and params["unroll"]:
        return _Constants("program", "consts", begin=0, end=params["consts"])
    if equation.primitive.name == "while_loop":
        begin = params["cond_consts"]
        end = begin + params["body_consts"]
        return _Constants("body_program", "body_consts", begin, end)
    return None


def _costly_invariants(equation: Equation) -> list[Equation]:
    """Return the costly equations of a loop's body that depend only on its constants.

    The list is empty for any other equation.
    """
    constants = _constants_of(equation)
    if constants is None:
        return []
    body: Program = equation.params[constants.program]
    invariant = set(body.inputs[: constants.end - constants.begin])
    costly: list[Equation] = []
    for inner in body.equations:
        read = [a for a in inner.inputs if isinstance(a, Var)]
        if not has_effect(inner) and all(a in invariant for a in read):
            invariant.update(inner.outputs)
            if read and is_costly(inner):
                costly.append(inner)
    return costly


def is_costly(equation: Equation) -> bool:
    """Whether ``equation`` is worth a kernel of its own that runs less often."""
    primitive = primitive_of(equation)
    kernel = primitive.kernel
    if isinstance(kernel, (Contraction, Control, Library)):
        return True
    size = max(a.type.size for a in (*equation.inputs, *equation.outputs))
    if size < MIN_ELEMENTS:
        return False
    if isinstance(kernel, Scalar):
        return kernel.cost > MIN_COST
    return isinstance(kernel, (Template, Reduction)) or primitive is views.relayout


def _hoisted(
    equation: Equation, operands: Sequence[Atom], invariants: Sequence[Equation]
) -> tuple[Var, ...]:
    """Emit ``invariants``, then the loop with their results among its constants.

    The equations that ``invariants`` need are emitted too. Constants that the body does
    not read any more are dropped. ``operands`` are those of ``equation`` in the new
    Program.
    """
    builder = current_builder()
    constants = _constants_of(equation)
    assert constants is not None
    body: Program = equation.params[constants.program]
    count = constants.end - constants.begin
    constant_operands = operands[constants.begin : constants.end]
    # Emit the invariants, and what they need, on the loop's constants.
    moved_results = [v for inner in invariants for v in inner.outputs]
    before_the_loop = Program(
        body.name,
        body.inputs[:count],
        tuple(needed(body.equations, moved_results)),
        tuple(moved_results),
    )
    results = builder.inline(before_the_loop, constant_operands)
    # The new body has the invariants' results among its constants.
    moved = set(invariants)
    remaining = needed([q for q in body.equations if q not in moved], body.outputs)
    read = {a for q in remaining for a in q.inputs} | {*body.outputs}
    pairs = [
        *zip(body.inputs[:count], constant_operands, strict=True),
        *zip(moved_results, results, strict=True),
    ]
    consts = [(v, x) for v, x in pairs if v in read]
    remaining_body = Program(
        body.name,
        (*(v for v, _ in consts), *body.inputs[count:]),
        tuple(remaining),
        body.outputs,
    )
    params: dict[str, Any] = {
        **equation.params,
        constants.program: remaining_body,
        constants.count: len(consts),
    }
    inputs = [
        *operands[: constants.begin],
        *(x for _, x in consts),
        *operands[constants.end :],
    ]
    return builder.emit(equation.primitive, inputs, params)
