"""Transposition of linear Programs, and reverse mode, which is made of it."""

from __future__ import annotations

from collections.abc import Sequence

from arrayfn.builder import ProgramBuilder, rename
from arrayfn.errors import DifferentiationError
from arrayfn.ir import Atom, Program, Var
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import views
from arrayfn.primitives.base import THROUGH_BODY, Linear, Marker, Operand, Primitive
from arrayfn.transforms.linearize import Linearization, linearize


def transpose(program: Program, residuals: int) -> Program:
    """The transpose of ``program``, linear in the inputs after the first ``residuals``.

    Takes the residuals and a cotangent for each output; gives a cotangent for each
    linear input.
    """
    builder = ProgramBuilder(f"transpose_{program.name}")
    with builder:
        saved = [builder.input(t) for t in program.input_types[:residuals]]
        cotangents = [builder.input(t) for t in program.output_types]
        results = pull_back(builder, program, saved, cotangents)
        return builder.build(_dense(results, program.inputs[residuals:]))


def pull_back(
    builder: ProgramBuilder,
    program: Program,
    saved: Sequence[Atom],
    cotangents: Sequence[Atom | None],
) -> list[Atom | None]:
    """Emit the cotangents of ``program``'s inputs after the ``saved`` ones."""
    known: dict[Var, Atom] = dict(zip(program.inputs, saved, strict=False))
    linear: set[Var] = set(program.inputs[len(saved) :])
    forward = []
    for equation in program.equations:
        if any(a in linear for a in equation.inputs):
            linear.update(equation.outputs)
            forward.append(equation)
        else:
            builder.replay(equation, known)
    gathered: dict[Var, Atom] = {}

    def gather(atom: Atom, cotangent: Atom | None) -> None:
        if cotangent is None or not isinstance(atom, Var) or atom not in linear:
            return
        have = gathered.get(atom)
        gathered[atom] = cotangent if have is None else e.add(have, cotangent)

    for atom, cotangent in zip(program.outputs, cotangents, strict=True):
        gather(atom, cotangent)
    for equation in reversed(forward):
        given = [gathered.pop(v, None) for v in equation.outputs]
        if all(ct is None for ct in given):
            continue
        builder.source = equation.source
        operands: list[Operand] = [
            Linear(a.type) if a in linear else rename(a, known) for a in equation.inputs
        ]
        row = equation.primitive
        assert isinstance(row, Primitive)
        if row.transpose == THROUGH_BODY:
            results = _through_body(builder, equation.params["body"], operands, given)
        elif isinstance(row.transpose, Marker):
            raise DifferentiationError(
                f"{row.name} is not linear, so it has no transpose", equation.source
            )
        else:
            results = row.transpose(given, operands, **equation.params)
        for atom, cotangent in zip(equation.inputs, results, strict=True):
            gather(atom, cotangent)
    return [gathered.get(v) for v in program.inputs[len(saved) :]]


def _through_body(
    builder: ProgramBuilder,
    body: Program,
    operands: Sequence[Operand],
    cotangents: Sequence[Atom | None],
) -> list[Atom | None]:
    # pull_back takes known inputs first; the cotangents go back to their places.
    known = [k for k, x in enumerate(operands) if not isinstance(x, Linear)]
    linear = [k for k, x in enumerate(operands) if isinstance(x, Linear)]
    order = [*known, *linear]
    ordered = Program(
        body.name, tuple(body.inputs[k] for k in order), body.equations, body.outputs
    )
    saved = [x for x in operands if not isinstance(x, Linear)]
    results = pull_back(builder, ordered, saved, cotangents)
    placed: list[Atom | None] = [None] * len(operands)
    for k, ct in zip(linear, results, strict=True):
        placed[k] = ct
    return placed


def vjp(program: Program, wrt: Sequence[bool]) -> Program:
    """The Program (inputs, output cotangents) -> (outputs, cotangents of ``wrt``)."""
    split = linearize(program, wrt)
    builder = _continuing(split.known, f"vjp_{program.name}")
    with builder:
        cotangents = [builder.input(t) for t in program.output_types]
        return _with_gradients(builder, split, cotangents)


def value_and_grad(program: Program, wrt: Sequence[bool]) -> Program:
    """The Program inputs -> (outputs, gradients of the first output, a scalar)."""
    split = linearize(program, wrt)
    builder = _continuing(split.known, f"grad_{program.name}")
    with builder:
        seed = views.broadcast_literal(1, program.output_types[0])
        others = [None] * (len(program.outputs) - 1)
        return _with_gradients(builder, split, [seed, *others])


def _continuing(program: Program, name: str) -> ProgramBuilder:
    """A builder that goes on where ``program`` ends."""
    builder = ProgramBuilder(name)
    builder.inputs += program.inputs
    builder.equations += program.equations
    for var, value in zip(program.constants, program.constant_values, strict=True):
        builder.adopt_constant(var, value)
    return builder


def _with_gradients(
    builder: ProgramBuilder, split: Linearization, cotangents: Sequence[Atom | None]
) -> Program:
    """``split.known`` in ``builder``, and then the cotangents of the linear inputs."""
    known, count = split.known, len(cotangents)
    outputs, residuals = known.outputs[:count], known.outputs[count:]
    gradients = pull_back(builder, split.linear, residuals, cotangents)
    wanted = split.linear.inputs[len(residuals) :]
    return builder.build([*outputs, *_dense(gradients, wanted)])


def _dense(cotangents: Sequence[Atom | None], like: Sequence[Var]) -> list[Atom]:
    """``cotangents`` with zeros for None."""
    return [
        views.broadcast_literal(0, v.type) if ct is None else ct
        for v, ct in zip(like, cotangents, strict=True)
    ]
