"""``linear_solve``: the solution of a linear system, computed by a given Program.

The system is ``matvec(consts, x) = b``; x and b are several arrays. ``body(consts, b)``
returns x, followed by *auxiliary* results. Derivatives solve the system A dx = db - dA
x. They do not go through the solver's iterations, so it does not matter how ``body``
uses the consts. The transpose solves the transposed system by the Programs in
``transposed``: its ``matvec`` and ``body``, or nothing if only forward mode exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, DifferentiationError
from arrayfn.ir import ArrayType, Atom, Program
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import views
from arrayfn.primitives.base import (
    Atoms,
    Batched,
    Dims,
    Linear,
    Operands,
    OverPrograms,
    Sample,
    Tangents,
    WithTangents,
)
from arrayfn.primitives.calls import call_primitive
from arrayfn.primitives.control_flow import (
    Batch,
    Jvp,
    built,
    check_closed,
    check_types,
    emitted,
    mapped_with_constants,
    selected,
)
from arrayfn.primitives.families import random_array
from arrayfn.primitives.rules import (
    as_list,
    not_linear,
    not_none,
)

Transposed = tuple[Program, ...]


def _types(
    *operands: ArrayType,
    body: Program,
    matvec: Program,
    transposed: Transposed,
    consts: int,
) -> tuple[ArrayType, ...]:
    """Type rule: the body's output types.

    The operands are ``consts`` constants and the right-hand side b. Raises an error
    unless each Program takes these, and returns arrays like b (``body`` may return
    more).
    """
    check_closed("linear_solve", body, matvec, *transposed)
    if len(transposed) not in (0, 2):
        raise ArgumentError(
            f"linear_solve: transposed must have matvec and body, or nothing, not "
            f"{len(transposed)} Programs"
        )
    right_sides = operands[consts:]
    count = len(right_sides)
    for inner in (body, matvec, *transposed):
        what = f"linear_solve: operands of {inner.name}"
        check_types(what, operands, inner.input_types)
        what = f"linear_solve: results of {inner.name}"
        check_types(what, inner.output_types[:count], right_sides)
    return tuple(t.plain() for t in body.output_types)


def _jvp(jvp: Jvp, primals: Atoms, tangents: Tangents, **params: Any) -> WithTangents:
    """The jvp rule: dx solves A dx = db - dA x.

    ``dA x`` is the jvp of ``matvec`` by the constants. Auxiliary results have no
    tangents.
    """
    matvec, consts = params["matvec"], params["consts"]

    def solve(b: Atoms) -> list[Atom]:
        """Emit the linear_solve for another right-hand side."""
        return as_list(linear_solve(*primals[:consts], *b, **params))

    b, change = primals[consts:], list(tangents[consts:])
    outputs = solve(b)
    wrt = [t is not None for t in tangents[:consts]]
    if any(wrt):
        count = len(matvec.outputs)
        program, varies = jvp(matvec, [*wrt, *[False] * len(b)], [False] * count)
        const_tangents = not_none(tangents[:consts])
        operands = [*primals[:consts], *outputs[: len(b)], *const_tangents]
        applied = iter(emitted(program, operands)[count:])
        for number in selected(range(count), varies):
            db, term = change[number], next(applied)
            change[number] = e.neg(term) if db is None else e.sub(db, term)
    auxiliary: list[Atom | None] = [None] * (len(outputs) - len(b))
    if all(t is None for t in change):
        return outputs, [*[None] * len(b), *auxiliary]
    dense = views.dense(change, [x.type for x in b])
    return outputs, [*solve(dense)[: len(b)], *auxiliary]


def _transpose(
    cotangents: Tangents,
    inputs: Operands,
    *,
    body: Program,
    matvec: Program,
    transposed: Transposed,
    consts: int,
) -> Tangents:
    """The transpose rule: ct_b solves A^T ct_b = ct_x.

    The first ``consts`` operands are constants of all Programs, the others the
    right-hand side. Raises DifferentiationError if there is no solver of the transposed
    system, or if a constant is linear.
    """
    if not transposed:
        raise DifferentiationError(
            "the solution of a linear system was differentiated in reverse, but has "
            "no solver of the transposed system; give custom_linear_solve a "
            "transpose_solve, or symmetric=True"
        )
    fixed = not_linear(inputs[:consts])
    if len(fixed) != consts:
        raise DifferentiationError(
            "the transpose of a function that is not linear was asked for: the "
            "solution of a linear system is linear in its right-hand side alone"
        )
    transposed_matvec, transposed_body = transposed
    operands = inputs[consts:]
    # Cotangents and results after the first ``len(operands)`` are of auxiliary results.
    dense_cotangents = [
        views.zeros(x.type) if ct is None else ct
        for x, ct in zip(operands, cotangents, strict=False)
    ]
    solution = linear_solve(
        *fixed,
        *dense_cotangents,
        body=transposed_body,
        matvec=transposed_matvec,
        transposed=(matvec, body),
        consts=consts,
    )
    pairs = zip(operands, as_list(solution), strict=False)
    return [
        *[None] * consts,
        *(ct if isinstance(x, Linear) else None for x, ct in pairs),
    ]


def _batch(
    batch: Batch,
    axis_size: int,
    inputs: Atoms,
    dims: Dims,
    *,
    body: Program,
    matvec: Program,
    transposed: Transposed,
    consts: int,
) -> Batched:
    """The batching rule: each member solves its own system.

    The first ``consts`` operands are constants of all Programs, the others the
    right-hand side, which is mapped in any case, as are all results.
    """
    operands, mapped = mapped_with_constants(batch, axis_size, inputs, dims, consts)
    outputs = linear_solve(
        *operands,
        body=mapped(body),
        matvec=mapped(matvec),
        transposed=tuple(map(mapped, transposed)),
        consts=consts,
    )
    return as_list(outputs), [0] * len(body.outputs)


def _samples() -> Iterable[Sample]:
    """Yield the system c x = p, x + d y = q for x and y, for the table tests."""
    vector = ArrayType((3, 4), dtypes.float32)

    def program(name: str, emit: Callable[..., Atoms]) -> Program:
        """Build a Program of the constants c and d, and two more arrays."""
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
    arrays = [random_array(dtypes.float32, (3, 4), 171 + k, 0.5, 3.0) for k in range(4)]
    params = {"body": systems[0], "matvec": systems[1], "transposed": systems[2:]}
    yield Sample(tuple(arrays), {**params, "consts": 2})


linear_solve = call_primitive(
    name="linear_solve",
    types=_types,
    jvp=OverPrograms(_jvp),
    transpose=_transpose,
    batch=OverPrograms(_batch),
    samples=_samples,
    doc="The solution of a linear system, whose derivatives are solutions too.",
)
