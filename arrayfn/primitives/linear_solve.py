"""``linear_solve``: the solution of a linear system, computed by a given Program.

The system is ``matvec(consts, x) = b``; x and b are several arrays. ``body(consts, b)``
returns x, followed by *auxiliary* results. Derivatives solve the system
A dx = db - dA x. They do not go through the solver's iterations, so it does not matter
how ``body`` uses the consts. The transpose solves the transposed system by the Programs
in ``transposed``: its ``matvec`` and ``body``, or nothing if only forward mode exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, DifferentiationError
from arrayfn.ir import ArrayType, Atom, Program
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import views
from arrayfn.primitives.base import (
    OWN_VARIANCE,
    Body,
    Dim,
    Linear,
    Operand,
    OverPrograms,
    Primitive,
    Sample,
)
from arrayfn.primitives.calls import body_reference
from arrayfn.primitives.control_flow import (
    Batch,
    Jvp,
    all_of,
    built,
    check_closed,
    check_types,
    emitted,
    plain,
    where,
    zeros,
)
from arrayfn.primitives.families import random_array

Transposed = tuple[Program, ...]


def _types(
    *operands: ArrayType,
    body: Program,
    matvec: Program,
    transposed: Transposed,
    consts: int,
) -> tuple[ArrayType, ...]:
    check_closed("linear_solve", body, matvec, *transposed)
    if len(transposed) not in (0, 2):
        raise ArgumentError(
            f"linear_solve: transposed has matvec and body, or nothing, and not "
            f"{len(transposed)} Programs"
        )
    given = operands[consts:]
    count = len(given)
    for inner in (body, matvec, *transposed):
        what = f"linear_solve: operands of {inner.name}"
        check_types(what, operands, inner.input_types)
        what = f"linear_solve: results of {inner.name}"
        check_types(what, inner.output_types[:count], given)
    return tuple(plain(t) for t in body.output_types)


def _jvp(
    jvp: Jvp,
    primals: Sequence[Atom],
    tangents: Sequence[Atom | None],
    *,
    body: Program,
    matvec: Program,
    transposed: Transposed,
    consts: int,
) -> tuple[list[Atom], list[Atom | None]]:
    def solve(b: Sequence[Atom]) -> list[Atom]:
        found = linear_solve(
            *primals[:consts],
            *b,
            body=body,
            matvec=matvec,
            transposed=transposed,
            consts=consts,
        )
        return all_of(found)

    b, change = primals[consts:], list(tangents[consts:])
    outputs = solve(b)
    wrt = [t is not None for t in tangents[:consts]]
    if any(wrt):
        count = len(matvec.outputs)
        program, varies = jvp(matvec, [*wrt, *[False] * len(b)], [False] * count)
        moving = [t for t in tangents[:consts] if t is not None]
        operands = [*primals[:consts], *outputs[: len(b)], *moving]
        applied = iter(emitted(program, operands)[count:])
        for number in where(range(count), varies):
            there, term = change[number], next(applied)
            change[number] = e.neg(term) if there is None else e.sub(there, term)
    auxiliary: list[Atom | None] = [None] * (len(outputs) - len(b))
    if all(t is None for t in change):
        return outputs, [*[None] * len(b), *auxiliary]
    dense = [zeros(x.type) if t is None else t for x, t in zip(b, change, strict=True)]
    return outputs, [*solve(dense)[: len(b)], *auxiliary]


def _transpose(
    cotangents: Sequence[Atom | None],
    inputs: Sequence[Operand],
    *,
    body: Program,
    matvec: Program,
    transposed: Transposed,
    consts: int,
) -> list[Atom | None]:
    if not transposed:
        raise DifferentiationError(
            "the solution of a linear system was differentiated in reverse, and says "
            "nothing of the transposed system; give custom_linear_solve a "
            "transpose_solve, or symmetric=True"
        )
    fixed = [x for x in inputs[:consts] if not isinstance(x, Linear)]
    if len(fixed) != consts:
        raise DifferentiationError(
            "the transpose of a function that is not linear was asked for: the "
            "solution of a linear system is linear in its right-hand side alone"
        )
    operands = inputs[consts:]
    given = [
        zeros(x.type) if ct is None else ct
        for x, ct in zip(operands, cotangents, strict=False)
    ]
    found = linear_solve(
        *fixed,
        *given,
        body=transposed[1],
        matvec=transposed[0],
        transposed=(matvec, body),
        consts=consts,
    )
    pairs = zip(operands, all_of(found), strict=False)
    return [
        *[None] * consts,
        *(ct if isinstance(x, Linear) else None for x, ct in pairs),
    ]


def _batch(
    batch: Batch,
    size: int,
    inputs: Sequence[Atom],
    dims: Sequence[Dim],
    *,
    body: Program,
    matvec: Program,
    transposed: Transposed,
    consts: int,
) -> tuple[list[Atom], list[Dim]]:
    fixed = [
        x if dim is None else views.move_axis(x, dim, 0)
        for x, dim in zip(inputs[:consts], dims[:consts], strict=True)
    ]
    # Each member has a system of its own.
    mapped = [dim is not None for dim in dims[:consts]]
    own = [
        views.batched(size, x, dim)
        for x, dim in zip(inputs[consts:], dims[consts:], strict=True)
    ]

    def of_members(program: Program) -> Program:
        every = [True] * len(program.outputs)
        return batch(program, size, [*mapped, *[True] * len(own)], every)[0]

    found = linear_solve(
        *fixed,
        *own,
        body=of_members(body),
        matvec=of_members(matvec),
        transposed=tuple(map(of_members, transposed)),
        consts=consts,
    )
    return all_of(found), [0] * len(body.outputs)


def _samples() -> Iterable[Sample]:
    # c x = p and x + d y = q, for x and y.
    vector = ArrayType((3, 4), dtypes.float32)

    def program(name: str, emit: Callable[..., Sequence[Atom]]) -> Program:
        return built(name, emit, [vector] * 4)

    systems = (
        program(
            "solve", lambda c, d, p, q: [e.div(p, c), e.div(e.sub(q, e.div(p, c)), d)]
        ),
        program("matvec", lambda c, d, x, y: [e.mul(c, x), e.add(x, e.mul(d, y))]),
        program(
            "transposed_matvec",
            lambda c, d, x, y: [e.add(e.mul(c, x), y), e.mul(d, y)],
        ),
        program(
            "transposed_solve",
            lambda c, d, p, q: [e.div(e.sub(p, e.div(q, d)), c), e.div(q, d)],
        ),
    )
    given = [random_array(dtypes.float32, (3, 4), 171 + k, 0.5, 3.0) for k in range(4)]
    params = {"body": systems[0], "matvec": systems[1], "transposed": systems[2:]}
    yield Sample(tuple(given), {**params, "consts": 2})


linear_solve = Primitive(
    name="linear_solve",
    family="call",
    types=_types,
    variance=OWN_VARIANCE,
    reference=body_reference,
    kernel=Body(),
    jvp=OverPrograms(_jvp),
    transpose=_transpose,
    batch=OverPrograms(_batch),
    samples=_samples,
    doc="The solution of a linear system, whose derivatives are solutions too.",
)

ROWS = (linear_solve,)
