"""``linear_call``: a linear function, with a Program of its transpose.

``body(consts, x)`` is linear in x, which is several arrays; ``transposed(consts, ct)``
returns the cotangents of x, given those of the results. Both derivatives by x are calls
again. The derivative by the consts is that of ``body``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from arrayfn import dtypes
from arrayfn.errors import DifferentiationError
from arrayfn.ir import ArrayType, Atom, Program
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import reductions, views
from arrayfn.primitives.base import (
    Atoms,
    Batched,
    Body,
    Dims,
    Linear,
    Operands,
    OverPrograms,
    Primitive,
    Sample,
    Tangents,
    WithTangents,
)
from arrayfn.primitives.calls import body_reference
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


def _types(
    *operands: ArrayType, body: Program, transposed: Program, consts: int
) -> tuple[ArrayType, ...]:
    """Type rule: the body's output types.

    ``body`` maps (constants, x) to results. Raises an error unless ``transposed`` maps
    (constants, cotangents of the results) to cotangents of x. ``consts`` is the number
    of operands that are constants.
    """
    check_closed("linear_call", body, transposed)
    check_types("linear_call: operands", operands, body.input_types)
    results = body.output_types
    what = "linear_call: operands of the transpose"
    check_types(what, [*operands[:consts], *results], transposed.input_types)
    what = "linear_call: results of the transpose"
    check_types(what, transposed.output_types, operands[consts:])
    return tuple(t.plain() for t in results)


def _jvp(
    jvp: Jvp,
    primals: Atoms,
    tangents: Tangents,
    *,
    body: Program,
    transposed: Program,
    consts: int,
) -> WithTangents:
    """The jvp rule: ``d f(c, x) = f(c, dx) + (df/dc)(c, x) dc``.

    The first term is a linear_call of ``dx``, the second the body's jvp by the
    constants c.
    """

    def called(x: Sequence[Atom]) -> list[Atom]:
        """Emit the linear_call on ``x``, with the same constants."""
        params = {"body": body, "transposed": transposed, "consts": consts}
        return as_list(linear_call(*primals[:consts], *x, **params))

    x, changes = primals[consts:], tangents[consts:]
    outputs = called(x)
    tangents_out: list[Atom | None] = [None] * len(outputs)
    if any(t is not None for t in changes):
        tangents_out = [*called(views.dense(changes, [a.type for a in x]))]
    wrt = [t is not None for t in tangents[:consts]]
    if any(wrt):
        fixed = [False] * len(x)
        program, varies = jvp(body, [*wrt, *fixed], [False] * len(outputs))
        const_tangents = not_none(tangents[:consts])
        terms = iter(emitted(program, [*primals, *const_tangents])[len(outputs) :])
        for number in selected(range(len(outputs)), varies):
            tangent_out, term = tangents_out[number], next(terms)
            tangents_out[number] = (
                term if tangent_out is None else e.add(tangent_out, term)
            )
    return outputs, tangents_out


def _transpose(
    cotangents: Tangents,
    inputs: Operands,
    *,
    body: Program,
    transposed: Program,
    consts: int,
) -> Tangents:
    """The transpose rule: a call with ``body`` and ``transposed`` exchanged.

    The first ``consts`` operands are constants of both; the call is linear in the
    others.
    """
    fixed = not_linear(inputs[:consts])
    if len(fixed) != consts:
        raise DifferentiationError(
            "the transpose of a function that is not linear was asked for: linear_call "
            "is linear in its second argument alone"
        )
    dense_cotangents = views.dense(cotangents, [t.plain() for t in body.output_types])
    params = {"body": transposed, "transposed": body, "consts": consts}
    input_cotangents = as_list(linear_call(*fixed, *dense_cotangents, **params))
    pairs = zip(inputs[consts:], input_cotangents, strict=True)
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
    transposed: Program,
    consts: int,
) -> Batched:
    """Batching rule: a call of mapped Programs.

    The linear operands are mapped in any case, by repetition if they were not, and so
    are all results. The first ``consts`` operands are constants of both Programs.
    """
    operands, mapped = mapped_with_constants(batch, axis_size, inputs, dims, consts)
    outputs = linear_call(
        *operands, body=mapped(body), transposed=mapped(transposed), consts=consts
    )
    return as_list(outputs), [0] * len(body.outputs)


def _samples() -> Iterable[Sample]:
    """Yield a call that returns c x + y and the sum of y's rows, for table tests."""
    whole, row = ArrayType((3, 4), dtypes.float32), ArrayType((4,), dtypes.float32)

    def spread(x: Atom) -> Atom:
        """Repeat the row ``x``."""
        return views.broadcast_in_dim(x, shape=(3, 4), axes=(1,))

    forward = built(
        "forward",
        lambda c, x, y: [e.add(e.mul(c, x), y), reductions.reduce_sum(y, axes=(0,))],
        [whole] * 3,
    )
    backward = built(
        "backward",
        lambda c, p, q: [e.mul(c, p), e.add(p, spread(q))],
        [whole, whole, row],
    )
    arrays = [random_array(dtypes.float32, (3, 4), 181 + k, 0.5, 3.0) for k in range(3)]
    params = {"body": forward, "transposed": backward, "consts": 1}
    yield Sample(tuple(arrays), params)


linear_call = Primitive(
    name="linear_call",
    family="call",
    types=_types,
    reference=body_reference,
    kernel=Body(),
    jvp=OverPrograms(_jvp),
    transpose=_transpose,
    batch=OverPrograms(_batch),
    samples=_samples,
    doc="A function that is linear in its last operands, with its transpose.",
)

ROWS = (linear_call,)
