"""Loop-invariant code motion: computes invariants once, before the loop.

After it: the body of a scan or while_loop has no costly equation that depends on
constants of the loop alone. Cheap ones stay, since reading a value costs as much.
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
    Convert,
    Library,
    Reduction,
    Scalar,
    Template,
    has_effect,
    needed,
    primitive_of,
)

MIN_ELEMENTS: Final = 64
"""With fewer elements, recomputing is as fast as another kernel."""
MIN_COST: Final = 4
"""The cost of an elementwise operation, in additions, above which it is moved."""


def loop_invariants(program: Program) -> Program:
    """``program`` with costly loop invariants computed before its loops."""
    if not any(_costly_invariants(q) for q in program.equations):
        return program

    def hoisted(equation: Equation, operands: list[Atom]) -> Sequence[Atom] | None:
        invariants = _costly_invariants(equation)
        return _hoisted(equation, operands, invariants) if invariants else None

    return rewritten(program, hoisted)


def _loop(equation: Equation) -> tuple[str, int, int] | None:
    """``(param with the body, first constant, end of constants)``; None for no loop."""
    params = equation.params
    if equation.primitive.name == "scan" and params["length"] > 1 and params["unroll"]:
        return "program", 0, params["consts"]
    if equation.primitive.name == "while_loop":
        first = params["cond_consts"]
        return "body_program", first, first + params["body_consts"]
    return None


def _costly_invariants(equation: Equation) -> list[Equation]:
    """The costly equations of a loop's body that depend on its constants alone."""
    loop = _loop(equation)
    if loop is None:
        return []
    key, first, second = loop
    body: Program = equation.params[key]
    invariant = set(body.inputs[: second - first])
    costly: list[Equation] = []
    for inner in body.equations:
        read = [a for a in inner.inputs if isinstance(a, Var)]
        if not has_effect(inner) and all(a in invariant for a in read):
            invariant.update(inner.outputs)
            if read and is_costly(inner):
                costly.append(inner)
    return costly


def is_costly(equation: Equation) -> bool:
    """Whether ``equation`` is worth a kernel of its own, that runs less often."""
    primitive = primitive_of(equation)
    kernel = primitive.kernel
    if isinstance(kernel, (Contraction, Control, Library)):
        return True
    size = max(a.type.size for a in (*equation.inputs, *equation.outputs))
    if size < MIN_ELEMENTS:
        return False
    if isinstance(kernel, (Scalar, Convert)):
        return isinstance(kernel, Scalar) and kernel.cost > MIN_COST
    if isinstance(kernel, Template):
        return True
    return isinstance(kernel, Reduction) or primitive is views.relayout


def _hoisted(
    equation: Equation, operands: Sequence[Atom], invariants: Sequence[Equation]
) -> tuple[Var, ...]:
    """Emit ``invariants``, then the loop with their results among its constants."""
    builder = current_builder()
    loop = _loop(equation)
    assert loop is not None
    key, first, second = loop
    body: Program = equation.params[key]
    count = second - first
    moved_results = [v for inner in invariants for v in inner.outputs]
    hoisted_program = Program(
        body.name,
        body.inputs[:count],
        tuple(needed(body.equations, moved_results)),
        tuple(moved_results),
    )
    results = builder.inline(hoisted_program, operands[first:second])
    moved = set(invariants)
    remaining = needed([q for q in body.equations if q not in moved], body.outputs)
    read = {a for q in remaining for a in q.inputs} | {*body.outputs}
    pairs = [
        *zip(body.inputs[:count], operands[first:second], strict=True),
        *zip(moved_results, results, strict=True),
    ]
    consts = [(v, x) for v, x in pairs if v in read]
    program = Program(
        body.name,
        (*(v for v, _ in consts), *body.inputs[count:]),
        tuple(remaining),
        body.outputs,
    )
    name = "consts" if key == "program" else "body_consts"
    params: dict[str, Any] = {**equation.params, key: program, name: len(consts)}
    inputs = [*operands[:first], *(x for _, x in consts), *operands[second:]]
    return builder.emit(equation.primitive, inputs, params)
