"""``checkpoint``: a call of a Program whose values are recomputed, not kept.

Its linear part reads the operands of the call, and recomputes what it needs from them.
Between the forward and the backward pass only the operands are kept, and the values
marked by ``saveable``. When it is transposed, it reads its operands through
``optimization_barrier``, which is opaque to the compiler: otherwise CSE would merge the
recomputed values with those of the forward pass, and keep them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Atom, Equation, Program, Var
from arrayfn.ir.builder import ProgramBuilder, current_builder
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import factors, families, special, views
from arrayfn.primitives.base import (
    OWN_VARIANCE,
    Atoms,
    Batched,
    Dims,
    Linear,
    Operands,
    OverPrograms,
    Primitive,
    Sample,
    Tangents,
    View,
    WithTangents,
)
from arrayfn.primitives.calls import call_primitive
from arrayfn.primitives.control_flow import (
    Batch,
    Jvp,
    Split,
    Transpose,
    equation,
    selected,
    unselected,
)
from arrayfn.primitives.emitters import Emitter, move_axis
from arrayfn.primitives.rules import (
    as_list,
    batched_along,
    jvp_alone,
    jvp_of_first,
    mapped_axes_first,
    not_linear,
    not_none,
    transposed_first,
    with_nones,
)

# checkpoint


def _jvp(
    jvp: Jvp,
    primals: Atoms,
    tangents: Tangents,
    *,
    body: Program,
    name: str,
    prevent_cse: bool,
) -> WithTangents:
    """The jvp rule: a checkpoint of the body's jvp on primals and tangents."""
    count = len(body.outputs)
    wrt = [t is not None for t in tangents]
    program, varies = jvp(body, wrt, [False] * count)
    results = as_list(
        checkpoint(
            *primals,
            *not_none(tangents),
            body=program,
            name=name,
            prevent_cse=prevent_cse,
        )
    )
    return results[:count], with_nones(results[count:], varies)


def _batch(
    batch: Batch,
    axis_size: int,
    inputs: Atoms,
    dims: Dims,
    *,
    body: Program,
    name: str,
    prevent_cse: bool,
) -> Batched:
    """The batching rule: a checkpoint of the mapped body.

    ``name`` and ``prevent_cse`` are passed on.
    """
    operands = mapped_axes_first(inputs, dims)
    mapped = [dim is not None for dim in dims]
    program, varies = batch(body, axis_size, mapped, [False] * len(body.outputs))
    results = checkpoint(*operands, body=program, name=name, prevent_cse=prevent_cse)
    return as_list(results), [0 if v else None for v in varies]


def _split(
    split: Split, whole: Equation, unknown: Sequence[bool]
) -> tuple[list[Equation], list[Equation]]:
    """Split a checkpoint into a known and a linear checkpoint, by ``unknown`` operands.

    The known one returns the known outputs and the values that ``saveable`` marks. It
    is left out if it would return nothing. The linear one takes the operands and the
    marked values, and recomputes all other values that it needs.
    """
    body: Program = whole.params["body"]
    parts = split(body, unknown, [False] * len(body.outputs))
    varies = parts.unknown
    marked = _marked(parts.known)
    recomputed, saved, live = _recomputed(body, selected(body.outputs, varies), marked)
    known_inputs = unselected(body.inputs, unknown)
    results = [*unselected(body.outputs, varies), *saved]
    saved_outputs = [Var(v.type) for v in saved]
    known: list[Equation] = []
    if results:
        known_body = Program(
            body.name, tuple(known_inputs), parts.known.equations, tuple(results)
        )
        known.append(
            equation(
                checkpoint,
                unselected(whole.inputs, unknown),
                {**whole.params, "body": known_body},
                [*unselected(whole.outputs, varies), *saved_outputs],
                whole,
            )
        )
    pairs = zip(known_inputs, unselected(whole.inputs, unknown), strict=True)
    needed = [(v, x) for v, x in pairs if v in live]
    linear_body = Program(
        body.name,
        (*(v for v, _ in needed), *saved, *selected(body.inputs, unknown)),
        recomputed,
        tuple(selected(body.outputs, varies)),
    )
    linear = equation(
        checkpoint,
        [*(x for _, x in needed), *saved_outputs, *selected(whole.inputs, unknown)],
        {**whole.params, "body": linear_body},
        selected(whole.outputs, varies),
        whole,
    )
    return known, [linear]


def _marked(known: Program) -> set[Var]:
    """Return the values of ``known`` that ``saveable`` marks, except inputs.

    ``saveable`` and ``checkpoint_name`` return copies of their operand. A mark on such
    a copy counts for the original.
    """
    source: dict[Atom, Atom] = {}
    marked: set[Var] = set()
    for definition in known.equations:
        if definition.primitive in (saveable, checkpoint_name):
            (operand,) = definition.inputs
            root = source[definition.outputs[0]] = source.get(operand, operand)
            if definition.primitive is saveable and isinstance(root, Var):
                marked.add(root)
    return marked.difference(known.inputs)


def _recomputed(
    body: Program, outputs: Atoms, marked: set[Var]
) -> tuple[tuple[Equation, ...], list[Var], set[Atom]]:
    """Find the equations that compute ``outputs`` of ``body`` from its inputs.

    The values in ``marked`` are not computed, but saved. Returns the equations, the
    marked values that are needed, and all Vars that the equations read.
    """
    live: set[Atom] = set(outputs)
    equations: list[Equation] = []
    saved: list[Var] = []
    for definition in reversed(body.equations):
        live_outputs = [v for v in definition.outputs if v in live]
        if not live_outputs:
            continue
        if marked.issuperset(live_outputs):
            saved += live_outputs
        else:
            equations.append(definition)
            live.update(definition.inputs)
    return tuple(reversed(equations)), saved[::-1], live


def _transpose(
    transpose: Transpose,
    cotangents: Tangents,
    inputs: Operands,
    *,
    body: Program,
    name: str,
    prevent_cse: bool,
) -> Tangents:
    """Transpose rule: a checkpoint of the transposed body on the cotangents.

    With ``prevent_cse`` the new body reads the known operands behind barriers, so that
    CSE does not merge the recomputed values with those of the forward pass.
    """
    linear = [isinstance(x, Linear) for x in inputs]
    has_output_cotangent = [ct is not None for ct in cotangents]
    dense = [False] * sum(linear)  # cotangents that are zero may be left out
    program, has_cotangent = transpose(body, linear, has_output_cotangent, dense)
    known = not_linear(inputs)
    if prevent_cse:
        program = _behind_barriers(program, len(known))
    results: list[Atom] = []
    if any(has_cotangent):
        params = {"body": program, "name": name, "prevent_cse": prevent_cse}
        results = as_list(checkpoint(*known, *not_none(cotangents), **params))
    return with_nones(with_nones(results, has_cotangent), linear)


def _behind_barriers(program: Program, count: int) -> Program:
    """Put an ``optimization_barrier`` after each of the first ``count`` inputs.

    They are read only when the next input, the first cotangent, has been computed.
    """
    builder = ProgramBuilder(program.name)
    with builder:
        inputs = builder.inputs_of(program)
        token = inputs[count]
        guarded = [optimization_barrier(x, token) for x in inputs[:count]]
        return builder.build(
            current_builder().inline(program, [*guarded, *inputs[count:]])
        )


def _samples() -> Iterable[Sample]:
    """Yield a checkpoint without marked values, and one with, for the table tests."""
    vector = ArrayType((3, 4), dtypes.float32)
    for seed, marks in ((91, False), (92, True)):
        builder = ProgramBuilder("block")
        with builder:
            x, y = builder.input(vector), builder.input(vector)
            product = e.mul(special.sin(x), y)
            if marks:
                product = saveable(checkpoint_name(product, name="product"))
            body = builder.build([e.mul(special.sin(product), x), e.square(y)])
        arrays = [
            families.random_array(dtypes.float32, (3, 4), seed + k, -2.0, 2.0)
            for k in (0, 10)
        ]
        params = {"name": "block", "body": body, "prevent_cse": not marks}
        yield Sample(tuple(arrays), params)


checkpoint = call_primitive(
    name="checkpoint",
    jvp=OverPrograms(_jvp),
    transpose=OverPrograms(_transpose),
    batch=OverPrograms(_batch),
    split=OverPrograms(_split),
    samples=_samples,
    doc="A call whose values are recomputed for its derivative, not kept.",
)

# Marks, and the barrier: identities that transformations treat specially.


def _mark(name: str, params: dict[str, Any], doc: str) -> Primitive:
    """Make an identity Primitive, which transformations treat specially.

    ``params`` are the params of the primitive's samples.
    """
    return Primitive(
        name=name,
        family="view",
        types=lambda x, **_: x.plain(),
        reference=lambda x, **_: np.array(x),
        kernel=View(lambda x, **_: views.unchanged(x)),
        jvp=jvp_alone(lambda x, y, t, **_: t),
        transpose=transposed_first(lambda ct, type, **_: ct),
        batch=batched_along(Emitter(name)),
        samples=lambda: [
            Sample((families.random_array(d, (3, 4), 95),), params)
            for d in (dtypes.float32, dtypes.int32)
        ],
        doc=doc,
        factors=factors.elementwise,
    )


checkpoint_name = _mark(
    "checkpoint_name",
    {"name": "activation"},
    "The operand, under a name that policies of checkpoint refer to.",
)
saveable = _mark("saveable", {}, "The operand, which checkpoint may keep.")


def _barrier_batch(axis_size: int, inputs: Atoms, dims: Dims) -> Batched:
    """Batching rule: the barrier of a mapped operand; the ``token`` stays as it is."""
    x, token = inputs
    if dims[0] is None:
        return [optimization_barrier(x, token)], [None]
    return [optimization_barrier(move_axis(x, dims[0], 0), token)], [0]


def _barrier_samples() -> Iterable[Sample]:
    """Yield arrays behind a token of two floats, for the table tests."""
    for seed, dtype in enumerate((dtypes.float32, dtypes.int32)):
        x = families.random_array(dtype, (3, 4), 97 + seed)
        yield Sample((x, np.ones(2, np.float32)), {})


optimization_barrier = Primitive(
    name="optimization_barrier",
    family="view",
    types=lambda x, token: x.plain(),
    variance=OWN_VARIANCE,  # the token has no part in the value
    reference=lambda x, token: np.array(x),
    # Never affine: its readers must not read the operand directly.
    kernel=View(lambda x: None),
    jvp=jvp_of_first(lambda t, token: t),
    transpose=transposed_first(lambda ct, type, *token: ct),
    batch=_barrier_batch,
    samples=_barrier_samples,
    doc="The operand, which is read only after the second operand is computed.",
)
