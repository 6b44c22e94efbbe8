"""scan: runs a Program for each slice of arrays, with a carry between iterations.

The operands are constants, the initial carry, and arrays that are sliced along axis 0.
The Program takes constants, carry and slices. It returns the carry and a slice of each
result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Atom, Equation, Program
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import special, views
from arrayfn.primitives.base import (
    OWN_VARIANCE,
    Atoms,
    Batched,
    Control,
    Dims,
    Linear,
    Operands,
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
    Transpose,
    arranged,
    equation,
    fixed_point,
    scan_reference,
    scan_types,
    selected,
    split_by_counts,
    unselected,
)
from arrayfn.primitives.control_flow_residuals import Residuals
from arrayfn.primitives.emitters import move_axis
from arrayfn.primitives.families import random_array
from arrayfn.primitives.rules import (
    as_list,
    not_linear,
    not_none,
    repeated,
    with_nones,
)


def _jvp(
    jvp: Jvp,
    primals: Atoms,
    tangents: Tangents,
    *,
    program: Program,
    consts: int,
    carry: int,
    **params: Any,
) -> WithTangents:
    """The jvp rule: a scan of the body's jvp, which also carries tangents.

    For a body ``(c, x) -> (c', y)``, the new body maps ``(c, dc, x, dx)`` to
    ``(c', dc', y, dy)``. An array of the carry has a tangent if its initial value has
    one, or if the body makes it vary, so the set of these arrays is a fixed point. The
    first ``consts`` operands are constants of the loop, the next ``carry`` the carry,
    the others arrays that are sliced.
    """
    has_tangent = [t is not None for t in tangents]
    of_consts, varies, of_xs = split_by_counts(has_tangent, consts, carry)
    ys = len(program.outputs) - carry
    body, results = fixed_point(
        lambda v: jvp(program, [*of_consts, *v, *of_xs], [*v, *[False] * ys]), varies
    )
    varies = results[:carry]
    values, state, xs = split_by_counts(primals, consts, carry)
    to_consts, to_state, to_xs = split_by_counts(tangents, consts, carry)
    initial_tangents = views.dense(
        selected(to_state, varies), [x.type for x in selected(state, varies)]
    )
    # The jvp has all primals first, then all tangents. A scan's body needs the
    # constants first, then the carry, then the slices, each with its tangents.
    in_consts, in_carry, in_xs, in_dconsts, in_dcarry, in_dxs = split_by_counts(
        body.inputs, consts, carry, len(xs), sum(of_consts), sum(varies)
    )
    out_carry, out_ys, out_dcarry, out_dys = split_by_counts(
        body.outputs, carry, ys, sum(varies)
    )
    results_flat = as_list(
        scan(
            *values,
            *not_none(to_consts),
            *state,
            *initial_tangents,
            *xs,
            *not_none(to_xs),
            program=arranged(
                body,
                [*in_consts, *in_dconsts, *in_carry, *in_dcarry, *in_xs, *in_dxs],
                [*out_carry, *out_dcarry, *out_ys, *out_dys],
            ),
            consts=consts + sum(of_consts),
            carry=carry + sum(varies),
            **params,
        )
    )
    last, last_tangents, stacked, stacked_tangents = split_by_counts(
        results_flat, carry, sum(varies), ys
    )
    return [*last, *stacked], with_nones([*last_tangents, *stacked_tangents], results)


# Batching.


def _batch(
    batch: Batch,
    axis_size: int,
    inputs: Atoms,
    dims: Dims,
    *,
    program: Program,
    consts: int,
    carry: int,
    **params: Any,
) -> Batched:
    """The batching rule: a scan of the mapped body.

    An array of the carry is mapped if its initial value is, or if the body returns a
    mapped array for it, so the set of mapped ones is a fixed point. The first
    ``consts`` operands are constants of the loop, the next ``carry`` the carry, the
    others arrays that are sliced.
    """
    mapped = [dim is not None for dim in dims]
    of_consts, varies, of_xs = split_by_counts(mapped, consts, carry)
    ys = len(program.outputs) - carry
    body, results = fixed_point(
        lambda v: batch(
            program, axis_size, [*of_consts, *v, *of_xs], [*v, *[False] * ys]
        ),
        varies,
    )
    varies = results[:carry]
    operands: list[Atom] = []
    for k, (x, dim) in enumerate(zip(inputs, dims, strict=True)):
        if k >= consts + carry:  # sliced along axis 0, so the mapped axis comes second
            operands.append(x if dim is None else move_axis(x, dim, 1))
        elif dim is not None or (k >= consts and varies[k - consts]):
            operands.append(repeated(axis_size, x, dim))
        else:
            operands.append(x)
    outputs = as_list(
        scan(*operands, program=body, consts=consts, carry=carry, **params)
    )
    axes_of_outputs = [0] * carry + [1] * ys
    return outputs, [
        d if m else None for d, m in zip(axes_of_outputs, results, strict=True)
    ]


# Reverse mode.


def _split(
    split: Split, whole: Equation, unknown: Sequence[bool]
) -> tuple[list[Equation], list[Equation]]:
    """Split a scan into known equations and a linear scan, by ``unknown`` operands.

    The known equations are those that ``Residuals`` moves out of the loops, and a scan
    of the body's known part, which also stacks residuals. That scan is left out if it
    would return nothing. Returns the two parts as lists.
    """
    params = dict(whole.params)
    program: Program = params["program"]
    consts, carry = params["consts"], params["carry"]
    of_consts, varies, of_xs = split_by_counts(unknown, consts, carry)
    ys = len(program.outputs) - carry

    def split_body(varies: list[bool]) -> tuple[Parts, list[bool]]:
        """Split the body for carries ``varies`` that are unknown.

        Returns the parts, and which outputs are unknown.
        """
        linear_outputs = [*varies, *[False] * ys]
        parts = split(program, [*of_consts, *varies, *of_xs], linear_outputs)
        return parts, parts.unknown

    parts, results = fixed_point(split_body, varies)
    varies = results[:carry]
    unknown_inputs = [*of_consts, *varies, *of_xs]
    kept_residuals = Residuals(whole, parts, unknown_inputs)
    known_outputs = unselected(whole.outputs, parts.unknown)
    known: list[Equation] = []
    if known_outputs or kept_residuals.stacked:
        body = parts.known
        outputs = body.outputs[: len(known_outputs)]
        known.append(
            equation(
                scan,
                unselected(whole.inputs, unknown_inputs),
                {
                    **params,
                    "program": arranged(
                        body, body.inputs, [*outputs, *kept_residuals.stacked]
                    ),
                    "consts": of_consts.count(False),
                    "carry": varies.count(False),
                },
                [*known_outputs, *kept_residuals.stacked.values()],
                whole,
            )
        )
    unknown_operands = split_by_counts(
        selected(whole.inputs, unknown_inputs), sum(of_consts), sum(varies)
    )
    linear = _linear_scan(whole, parts, kept_residuals, unknown_operands)
    return [*kept_residuals.hoisted, *known], [linear]


def _linear_scan(
    whole: Equation, parts: Parts, kept: Residuals, unknown: Sequence[Atoms]
) -> Equation:
    """Return the scan of the linear part of the body, which reads the residuals.

    ``whole`` is the scan that is split, ``parts`` its split body. ``kept`` says where
    the linear step gets each residual from. ``unknown`` has three lists of operands:
    the unknown constants, carries and slices of ``whole``.
    """
    step = parts.linear
    consts, carry, slices = unknown
    in_consts, in_carry, in_slices = split_by_counts(
        step.inputs[parts.residuals :], len(consts), len(carry)
    )
    program = Program(
        step.name,
        (*kept.fixed, *in_consts, *in_carry, *kept.sliced, *in_slices),
        (
            *kept.recomputed,
            *(q for q in step.equations if q not in kept.recomputed),
        ),
        step.outputs,
    )
    return equation(
        scan,
        [*kept.fixed.values(), *consts, *carry, *kept.sliced.values(), *slices],
        {
            **whole.params,
            "program": program,
            "consts": len(kept.fixed) + len(consts),
            "carry": len(carry),
        },
        selected(whole.outputs, parts.unknown),
        whole,
    )


def _transpose(
    transpose: Transpose,
    cotangents: Tangents,
    inputs: Operands,
    *,
    program: Program,
    consts: int,
    carry: int,
    reverse: bool,
    **params: Any,
) -> Tangents:
    """The transpose rule: a scan of the transposed body in the opposite direction.

    Its carry has the summed cotangents of linear constants, and the cotangents of the
    carry. It slices the known slices and the cotangents of the stacked results, and
    stacks the cotangents of the linear slices: for a step ``c' = A c + B x + D w``,
    ``ct_c = A.T ct_c'``, ``ct_x = B.T ct_c'`` and ``ct_w += D.T ct_c'``.

    ``consts`` and ``carry`` are the numbers of constants and of arrays of the carry.
    """
    is_linear = [isinstance(x, Linear) for x in inputs]
    consts_linear, _, xs_linear = split_by_counts(is_linear, consts, carry)
    ct_carry, ct_ys = split_by_counts(cotangents, carry)
    body, has_cotangent = _transposed_body(
        transpose, program, consts_linear, xs_linear, ct_carry, ct_ys
    )
    linear_consts = sum(consts_linear)
    sums_exist, carry_exists, _ = split_by_counts(has_cotangent, linear_consts, carry)
    known_consts = not_linear(inputs[:consts])
    known_xs = not_linear(inputs[consts + carry :])
    step = _backward_step(
        body,
        known=len(known_consts) + len(known_xs),
        consts=len(known_consts),
        sums_exist=sums_exist,
        state=sum(carry_exists),
    )
    summed = selected(selected(inputs[:consts], consts_linear), sums_exist)
    sums = [views.zeros(x.type) for x in summed]
    carry_types = program.output_types[:carry]
    state = views.dense(
        selected(ct_carry, carry_exists), selected(carry_types, carry_exists)
    )
    results = as_list(
        scan(
            *known_consts,
            *sums,
            *state,
            *known_xs,
            *not_none(ct_ys),
            program=step,
            consts=len(known_consts),
            carry=len(sums) + len(state),
            reverse=not reverse,
            **params,
        )
    )
    to_consts, to_carry, to_xs = split_by_counts(
        with_nones(results, has_cotangent), linear_consts, carry
    )
    return [
        *with_nones(to_consts, consts_linear),
        *[
            ct if isinstance(x, Linear) else None
            for ct, x in zip(to_carry, inputs[consts : consts + carry], strict=True)
        ],
        *with_nones(to_xs, xs_linear),
    ]


def _transposed_body(
    transpose: Transpose,
    program: Program,
    consts_linear: Sequence[bool],
    xs_linear: Sequence[bool],
    ct_carry: Tangents,
    ct_ys: Tangents,
) -> tuple[Program, list[bool]]:
    """Transpose a scan's body, and find which cotangents can be nonzero.

    An iteration may give a cotangent to a carry or a constant that had none, so the
    body is transposed again until these flags do not change.

    Args:
        transpose: transposes Programs.
        program: the body.
        consts_linear: which constants are linear.
        xs_linear: which slices are linear.
        ct_carry: the cotangents of the scan's final carry; None is a zero.
        ct_ys: the cotangents of the scan's stacked results; None is a zero.

    Returns:
        The transposed body, and a flag for each linear constant, each array of the
        carry and each linear slice: whether the body returns a cotangent of it.
    """
    # Every carry counts as linear: the cotangent of a known one is zero.
    linear = [*consts_linear, *[True] * len(ct_carry), *xs_linear]
    linear_consts = sum(consts_linear)
    ys_exist = [ct is not None for ct in ct_ys]
    no_xs = [False] * sum(xs_linear)
    # ``exists`` says which linear constants, then which carries, have a cotangent. Only
    # carries and ys are outputs of the body. Cotangents that exist are returned also if
    # this iteration contributes nothing to them.
    return fixed_point(
        lambda exists: transpose(
            program, linear, [*exists[linear_consts:], *ys_exist], [*exists, *no_xs]
        ),
        [*[False] * linear_consts, *(ct is not None for ct in ct_carry)],
    )


def _backward_step(
    body: Program, known: int, consts: int, sums_exist: Sequence[bool], state: int
) -> Program:
    """Build the body of a transposed scan, which sums the cotangents of constants.

    Args:
        body: the transposed step. It takes known constants, known slices, cotangents of
            the carry and cotangents of the results; it returns cotangents of constants,
            carry and slices.
        known: the number of known constants and slices.
        consts: the number of known constants.
        sums_exist: for each linear constant, whether ``body`` returns a cotangent of
            it.
        state: the number of cotangents of the carry.

    The result takes known constants, the sums so far, cotangents of the carry, known
    slices and cotangents of results. It returns the new sums, then the cotangents of
    the carry and of the slices.
    """
    builder = ProgramBuilder(body.name)
    of_consts, of_xs, ct_state, ct_ys = split_by_counts(
        body.inputs, consts, known - consts, state
    )
    with builder:
        fixed = [builder.input(v.type) for v in of_consts]
        count = sum(sums_exist)
        sums = [builder.input(a.type) for a in body.outputs[:count]]
        carried = [builder.input(v.type) for v in ct_state]
        slices = [builder.input(v.type) for v in of_xs]
        results = [builder.input(v.type) for v in ct_ys]
        outputs = builder.inline(body, [*fixed, *slices, *carried, *results])
        totals = [e.add(s, x) for s, x in zip(sums, outputs, strict=False)]
        return builder.build([*totals, *outputs[count:]])


# Samples.


def _sample_program() -> Program:
    """Build the body of the sample scans.

    Its inputs are a constant vector, a carry of a counter and a vector, and a slice.
    """
    builder = ProgramBuilder("step")
    vector = ArrayType((2,), dtypes.float32)
    with builder:
        w, count, state, x = (
            builder.input(vector),
            builder.input(ArrayType((), dtypes.int32)),
            builder.input(vector),
            builder.input(vector),
        )
        turned = special.sin(e.add(e.mul(w, state), x))
        return builder.build([e.add(count, 1), turned, e.mul(turned, x)])


def _samples() -> Iterable[Sample]:
    """Yield scans forwards, backwards, and of no iterations, for the table tests."""
    w = random_array(dtypes.float32, (2,), 71, -1.0, 1.0)
    state = random_array(dtypes.float32, (2,), 72, -1.0, 1.0)
    xs = random_array(dtypes.float32, (4, 2), 73, -1.0, 1.0)
    for reverse, length in ((False, 4), (True, 3), (False, 0)):
        params = {
            "program": _sample_program(),
            "length": length,
            "reverse": reverse,
            "consts": 1,
            "carry": 2,
            "unroll": 1,
        }
        yield Sample((w, np.asarray(0, np.int32), state, xs[:length]), params)


scan = Primitive(
    name="scan",
    family="control",
    types=scan_types,
    variance=OWN_VARIANCE,
    reference=scan_reference,
    kernel=Control(),
    jvp=OverPrograms(_jvp),
    transpose=OverPrograms(_transpose),
    batch=OverPrograms(_batch),
    split=OverPrograms(_split),
    samples=_samples,
    doc="Runs a Program for each slice of arrays, with a carry between iterations.",
)
