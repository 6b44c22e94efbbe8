"""while_loop: runs a Program while another one returns True.

The operands are the condition's constants, the body's constants, and the initial carry.
The condition takes its constants and the carry. The body takes its constants and the
carry, and returns the next carry. For reverse mode see ``control_flow_tape``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import DifferentiationError
from arrayfn.ir import ArrayType, Atom, Equation, Program, Var
from arrayfn.primitives import control_flow_tape, discrete, reductions, special, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.assertions import has_check, only_if
from arrayfn.primitives.base import (
    NOT_LINEAR,
    OWN_VARIANCE,
    Atoms,
    Batched,
    Control,
    Dims,
    OverPrograms,
    Primitive,
    Sample,
    Tangents,
    WithTangents,
)
from arrayfn.primitives.control_flow import (
    Batch,
    Jvp,
    Parts,
    Split,
    arranged,
    built,
    emitted,
    fixed_point,
    selected,
    split_by_counts,
    while_reference,
    while_types,
)
from arrayfn.primitives.families import random_array
from arrayfn.primitives.rules import (
    as_list,
    not_none,
    repeated,
    with_nones,
)


def _jvp(
    jvp: Jvp,
    primals: Atoms,
    tangents: Tangents,
    *,
    cond_program: Program,
    body_program: Program,
    cond_consts: int,
    body_consts: int,
) -> WithTangents:
    """The jvp rule: a while_loop that also carries tangents.

    For a body ``c -> c'``, the new body maps ``(c, dc)`` to ``(c', dc')``. The
    condition ignores tangents. An array of the carry has a tangent if its initial value
    has one, or if the body makes it vary, so the set of these arrays is a fixed point.
    The first ``cond_consts`` operands are constants of the condition, the next
    ``body_consts`` constants of the body, the others the carry.
    """
    has_tangent = [t is not None for t in tangents]
    _, of_consts, varies = split_by_counts(has_tangent, cond_consts, body_consts)
    body, varies = fixed_point(lambda v: jvp(body_program, [*of_consts, *v], v), varies)
    for_cond, for_body, state = split_by_counts(primals, cond_consts, body_consts)
    _, body_tangents, state_tangents = split_by_counts(
        tangents, cond_consts, body_consts
    )
    types = [x.type for x in selected(state, varies)]
    initial_tangents = views.dense(selected(state_tangents, varies), types)
    # The jvp has all primals first; a loop's body needs all constants first.
    in_consts, in_carry, in_dconsts, in_dcarry = split_by_counts(
        body.inputs, body_consts, len(state), sum(of_consts)
    )
    unused = [Var(x.type) for x in initial_tangents]
    outputs = as_list(
        while_loop(
            *for_cond,
            *for_body,
            *not_none(body_tangents),
            *state,
            *initial_tangents,
            cond_program=arranged(
                cond_program, [*cond_program.inputs, *unused], cond_program.outputs
            ),
            body_program=arranged(
                body, [*in_consts, *in_dconsts, *in_carry, *in_dcarry], body.outputs
            ),
            cond_consts=cond_consts,
            body_consts=body_consts + sum(of_consts),
        )
    )
    return outputs[: len(state)], with_nones(outputs[len(state) :], varies)


# Batching.


def _batch(
    batch: Batch,
    axis_size: int,
    inputs: Atoms,
    dims: Dims,
    *,
    cond_program: Program,
    body_program: Program,
    cond_consts: int,
    body_consts: int,
) -> Batched:
    """Batching rule: a loop that runs until no member goes on.

    An array of the carry is mapped if its initial value is, or if the body returns a
    mapped array for it. If the condition is mapped, members stop at different times,
    and each array that the body changes is mapped too. As these depend on each other,
    the set of mapped arrays is a fixed point. The first ``cond_consts`` operands are
    constants of the condition, the next ``body_consts`` constants of the body, the
    others the carry.
    """
    mapped = [dim is not None for dim in dims]
    of_cond, of_body, varies = split_by_counts(mapped, cond_consts, body_consts)
    carry_inputs = body_program.inputs[body_consts:]
    changes = [
        x is not y for x, y in zip(body_program.outputs, carry_inputs, strict=True)
    ]
    while True:
        # The last argument of ``batch`` marks outputs that must be mapped in any case.
        condition, (is_condition_mapped,) = batch(
            cond_program, axis_size, [*of_cond, *varies], [False]
        )
        # Members then stop at different times, so carries that change are mapped.
        if is_condition_mapped:
            varies = [v or c for v, c in zip(varies, changes, strict=True)]
        body, results = batch(body_program, axis_size, [*of_body, *varies], varies)
        if results == varies:
            break
        varies = results
    if is_condition_mapped:
        condition, _ = batch(cond_program, axis_size, [*of_cond, *varies], [True])
        # The checks of stopped members do not count.
        if has_check(body_program):
            flags = [True, *of_body, *varies]
            body, _ = batch(only_if(body_program), axis_size, flags, varies)
    # Numbers k of constants are negative, and carry k has number k.
    operands = [
        x if dim is None and not (k >= 0 and varies[k]) else repeated(axis_size, x, dim)
        for k, (x, dim) in enumerate(
            zip(inputs, dims, strict=True), -cond_consts - body_consts
        )
    ]
    for_cond, for_body, state = split_by_counts(operands, cond_consts, body_consts)
    if is_condition_mapped:
        outputs = _until_all_stop(condition, body, for_cond, for_body, state, varies)
    else:
        outputs = as_list(
            while_loop(
                *operands,
                cond_program=condition,
                body_program=body,
                cond_consts=cond_consts,
                body_consts=body_consts,
            )
        )
    return outputs, [0 if v else None for v in varies]


def _until_all_stop(
    condition: Program,
    body: Program,
    for_cond: Sequence[Atom],
    for_body: Sequence[Atom],
    state: Sequence[Atom],
    mapped: Sequence[bool],
) -> list[Atom]:
    """Emit a loop that runs while any member goes on; the rest keep their values.

    Args:
        condition: the batched condition. It returns a bool for each member.
        body: the batched body. If it has checks, its first input says which members
            run.
        for_cond: the constants of the condition.
        for_body: the constants of the body.
        state: the initial carry.
        mapped: whether each array of the carry has the mapped axis in front. Arrays
            without it do not change in the loop.

    Returns the final carry.
    """
    going = emitted(condition, [*for_cond, *state])[0]
    conds, bodies = len(for_cond), len(for_body)

    def any_goes_on(*values: Atom) -> list[Atom]:
        """The loop's condition: whether a flag, the last array of the carry, is set."""
        return [reductions.reduce_or(values[-1], axes=(0,))]

    def step(*values: Atom) -> list[Atom]:
        """The loop's body: new values for members that go on, old ones for the rest.

        The last array of the carry has a flag for each member: whether it goes on.
        """
        fixed, inner, (*before, goes_on) = split_by_counts(values, conds, bodies)
        # The body's results for stopped members must not contribute derivatives.
        guarded = [
            e.select(_along(goes_on, x.type), x, views.stop_gradient(x))
            if varies and x.type.dtype in dtypes.DIFFERENTIABLE
            else x
            for x, varies in zip(before, mapped, strict=True)
        ]
        takes_flags = len(body.inputs) > len(inner) + len(guarded)
        flags = [goes_on] if takes_flags else []
        after = emitted(body, [*flags, *inner, *guarded])
        next_values = [
            e.select(_along(goes_on, x.type), x, old) if varies else old
            for x, old, varies in zip(after, before, mapped, strict=True)
        ]
        holds = emitted(condition, [*fixed, *next_values])[0]
        return [*next_values, discrete.bitwise_and(goes_on, holds)]

    carry = [*state, going]
    types = [x.type for x in carry]
    consts = [*for_cond, *for_body]
    outputs = as_list(
        while_loop(
            *consts,
            *carry,
            cond_program=built("any_goes_on", any_goes_on, types),
            body_program=built("step", step, [*(x.type for x in consts), *types]),
            cond_consts=0,
            body_consts=len(consts),
        )
    )
    return outputs[:-1]


def _along(flags: Atom, type: ArrayType) -> Atom:
    """Broadcast ``flags``, one for each slice along axis 0, to the shape of a type."""
    if type.ndim == 1:
        return flags
    return views.broadcast_in_dim(flags, shape=type.shape, axes=(0,))


# Reverse mode.


def _split(
    split: Split, whole: Equation, unknown: Sequence[bool]
) -> tuple[list[Equation], list[Equation]]:
    """Split a while_loop into known equations and a ``while_linear`` equation.

    ``unknown`` has a flag for each operand of ``whole``. Which carries are unknown is a
    fixed point. Raises DifferentiationError if the condition depends on an unknown
    value. See ``split_while``.
    """
    params = whole.params
    first = params["cond_consts"]
    body: Program = params["body_program"]
    of_cond, of_consts, varies = split_by_counts(unknown, first, params["body_consts"])

    def split_body(varies: list[bool]) -> tuple[Parts, list[bool]]:
        """Split the body; also return which results are unknown."""
        parts = split(body, [*of_consts, *varies], varies)
        return parts, parts.unknown

    parts, varies = fixed_point(split_body, varies)
    condition: Program = params["cond_program"]
    # The last argument says which outputs must be unknown in any case.
    stops = split(condition, [*of_cond, *varies], [False])
    if stops.unknown[0]:
        raise DifferentiationError(
            "the condition of a while_loop depends on the values in which it must be "
            "linear, so it has no transpose",
            whole.source,
        )
    unknown = [*of_consts, *varies]
    return control_flow_tape.split_while(whole, parts, stops.known, unknown)


# Samples.


def _samples() -> Iterable[Sample]:
    """Yield loops of three iterations and of none, for the table tests."""
    vector, count = ArrayType((2,), dtypes.float32), ArrayType((), dtypes.int32)

    def condition(limit: Atom, k: Atom, x: Atom) -> list[Atom]:
        """Whether the counter ``k`` is below ``limit``."""
        return [discrete.lt(k, limit)]

    def step(w: Atom, k: Atom, x: Atom) -> list[Atom]:
        """Return the next carry: ``k + 1`` and ``sin(w * x)``."""
        return [e.add(k, 1), special.sin(e.mul(w, x))]

    for limit in (3, 0):
        yield Sample(
            (
                np.asarray(limit, np.int32),
                random_array(dtypes.float32, (2,), 76, 0.5, 1.5),  # w
                np.asarray(0, np.int32),  # k
                random_array(dtypes.float32, (2,), 77, 0.5, 1.5),  # x
            ),
            {
                "cond_program": built("goes_on", condition, [count, count, vector]),
                "body_program": built("step", step, [vector, count, vector]),
                "cond_consts": 1,
                "body_consts": 1,
            },
        )


while_loop = Primitive(
    name="while_loop",
    family="control",
    types=while_types,
    variance=OWN_VARIANCE,
    reference=while_reference,
    kernel=Control(),
    jvp=OverPrograms(_jvp),
    transpose=NOT_LINEAR,
    batch=OverPrograms(_batch),
    split=OverPrograms(_split),
    samples=_samples,
    doc="Runs a Program on a carry while another Program returns True.",
)
