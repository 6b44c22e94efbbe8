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
        wanted = _costly_invariants(equation)
        return _hoisted(equation, operands, wanted) if wanted else None

    return rewritten(program, hoisted)


def _loop(equation: Equation) -> tuple[str, int, int] | None:
    """The param that holds a loop's body, and the range of its constants."""
    params = equation.params
    if equation.primitive.name == "scan" and params["length"] > 1:
        return "program", 0, params["consts"]
    if equation.primitive.name == "while_loop":
        first = params["cond_consts"]
        return "body_program", first, first + params["body_consts"]
    return None


def _costly_invariants(equation: Equation) -> list[Equation]:
    """The costly equations in a loop's body that depend on its constants alone."""
    loop = _loop(equation)
    if loop is None:
        return []
    key, first, second = loop
    body: Program = equation.params[key]
    known = set(body.inputs[: second - first])
    found: list[Equation] = []
    for inner in body.equations:
        given = [a for a in inner.inputs if isinstance(a, Var)]
        if not has_effect(inner) and all(a in known for a in given):
            known.update(inner.outputs)
            if given and is_costly(inner):
                found.append(inner)
    return found


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
    equation: Equation, operands: Sequence[Atom], wanted: Sequence[Equation]
) -> tuple[Var, ...]:
    """Emit ``wanted``, then the loop with their outputs among its constants."""
    builder = current_builder()
    loop = _loop(equation)
    assert loop is not None
    key, first, second = loop
    body: Program = equation.params[key]
    count = second - first
    taken = [v for inner in wanted for v in inner.outputs]
    alone = Program(
        body.name,
        body.inputs[:count],
        tuple(needed(body.equations, taken)),
        tuple(taken),
    )
    results = builder.inline(alone, operands[first:second])
    out = set(wanted)
    left = needed([q for q in body.equations if q not in out], body.outputs)
    read = {a for q in left for a in q.inputs} | {*body.outputs}
    pairs = [
        *zip(body.inputs[:count], operands[first:second], strict=True),
        *zip(taken, results, strict=True),
    ]
    consts = [(v, x) for v, x in pairs if v in read]
    program = Program(
        body.name,
        (*(v for v, _ in consts), *body.inputs[count:]),
        tuple(left),
        body.outputs,
    )
    name = "consts" if key == "program" else "body_consts"
    params: dict[str, Any] = {**equation.params, key: program, name: len(consts)}
    inputs = [*operands[:first], *(x for _, x in consts), *operands[second:]]
    return builder.emit(equation.primitive, inputs, params)
