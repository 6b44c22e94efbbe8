"""while_linear: the iterations of a loop's carry and its tangents, run ``trips`` times.

The operands are ``trips``, the tape's ``stride``, the tape (see ``control_flow_tape``),
the constants of the known step, those of the linear step, and the linear carry. The
known step takes its constants and the carry, and returns the carry and residuals. The
linear step takes residuals, its constants and its carry, and returns the next carry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Atom, Program
from arrayfn.primitives import (
    discrete,
    special,
    views,
)
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import (
    OWN_VARIANCE,
    Array,
    Batched,
    Composition,
    Dims,
    Linear,
    Operands,
    OverPrograms,
    Primitive,
    Sample,
    Tangents,
    WithTangents,
)
from arrayfn.primitives.calls import evaluate
from arrayfn.primitives.control_flow import (
    Batch,
    Jvp,
    Transpose,
    built,
    check_types,
    emitted,
    fixed_point,
    pruned,
    selected,
    split_by_counts,
)
from arrayfn.primitives.control_flow_repeat import Values, count_of, read, repeat, write
from arrayfn.primitives.families import random_array
from arrayfn.primitives.rules import (
    mapped_axes_first,
    not_linear,
    not_none,
    with_nones,
)


def _types(
    trips: ArrayType,
    stride: ArrayType,
    *operands: ArrayType,
    known_program: Program,
    linear_program: Program,
    tape: int,
    consts: int,
    linear_consts: int,
) -> tuple[ArrayType, ...]:
    """Type rule: the types of the linear carry.

    ``operands`` are the tape, the constants of the known step, the constants of the
    linear step, and the linear carry. The params ``tape``, ``consts`` and
    ``linear_consts`` are the numbers of the first three.
    """
    count = (ArrayType((), dtypes.int64),) * 2
    check_types("while_linear: trips and stride", (trips, stride), count)
    tapes, known, rest = split_by_counts(operands, tape, consts)
    entries = [t.with_shape(t.shape[1:]) for t in tapes]
    inputs = [*known, *entries]
    check_types("while_linear: known operands", inputs, known_program.input_types)
    results, residuals = split_by_counts(known_program.output_types, tape)
    check_types("while_linear: results of the known step", results, entries)
    inputs = [*residuals, *rest]
    check_types("while_linear: linear operands", inputs, linear_program.input_types)
    carry = linear_program.output_types
    check_types("while_linear: the carry", carry, rest[linear_consts:])
    return tuple(
        t.plain().with_varying(t.varying | c.varying | trips.varying)
        for t, c in zip(carry, rest[linear_consts:], strict=True)
    )


def _expand(
    *operands: Atom,
    known_program: Program,
    linear_program: Program,
    tape: int,
    consts: int,
    linear_consts: int,
) -> list[Atom]:
    """Emit the forward loop, which runs the known and the linear step ``trips`` times.

    The first tape entry is the initial carry. Returns the final linear carry. Operands
    and params are those of the type rule.
    """
    trips, _, *rest = operands
    tapes, fixed, tail = split_by_counts(rest, tape, consts + linear_consts)
    begin = [read(t, count_of(0)) for t in tapes]

    def step(values: Values, carry: Values) -> list[Atom]:
        """Emit one iteration: the known step, then the linear step on its residuals.

        ``values`` are ``trips``, the known constants and the linear constants.
        ``carry`` has the iteration's number, the known carry and the linear carry.
        """
        known, linear = list(values[1 : consts + 1]), values[consts + 1 :]
        count, *state = carry
        next_known, residuals = split_by_counts(
            emitted(known_program, [*known, *state[:tape]]), tape
        )
        next_linear = emitted(linear_program, [*residuals, *linear, *state[tape:]])
        return [e.add(count, 1), *next_known, *next_linear]

    results = repeat(
        lambda values, carry: discrete.lt(carry[0], values[0]),
        step,
        [trips, *fixed],
        [count_of(0), *begin, *tail],
    )
    return results[1 + tape :]


def _expansion(types: Sequence[ArrayType], params: Any) -> Program:
    """Build the Program that a while_linear expands to, for operands of ``types``.

    ``params`` are the params of the equation.
    """
    return built("while_linear", lambda *v: _expand(*v, **params), types)


def _reference(*operands: Array, **params: Any) -> tuple[Any, ...]:
    """Interpret the expansion of while_linear on arrays."""
    types = [ArrayType(np.shape(x), np.asarray(x).dtype) for x in operands]
    return tuple(evaluate(_expansion(types, params), operands))


def _jvp(jvp: Jvp, primals: Values, tangents: Tangents, **params: Any) -> WithTangents:
    """The jvp rule: emit the jvp of the expansion, a while_loop."""
    program = _expansion([x.type for x in primals], params)
    count = len(program.outputs)
    wrt = [t is not None for t in tangents]
    jvp_program, varies = jvp(program, wrt, [False] * count)
    results = emitted(jvp_program, [*primals, *not_none(tangents)])
    return results[:count], with_nones(results[count:], varies)


def _batch(
    batch: Batch, axis_size: int, inputs: Values, dims: Dims, **params: Any
) -> Batched:
    """The batching rule: emit the mapped expansion, a while_loop."""
    operands = mapped_axes_first(inputs, dims)
    types = [
        x.type if dim is None else x.type.with_shape(x.type.shape[1:])
        for x, dim in zip(operands, dims, strict=True)
    ]
    program = _expansion(types, params)
    mapped, varies = batch(
        program,
        axis_size,
        [dim is not None for dim in dims],
        [False] * len(program.outputs),  # outputs that must be mapped in any case
    )
    return emitted(mapped, operands), [0 if v else None for v in varies]


# Backwards.


def _transpose(
    transpose: Transpose,
    cotangents: Tangents,
    inputs: Operands,
    *,
    known_program: Program,
    linear_program: Program,
    tape: int,
    consts: int,
    linear_consts: int,
) -> Tangents:
    """Transpose rule: run the transposed linear step, from the last iteration back.

    Each iteration passes the cotangents of the carry on, and adds to the cotangents of
    the linear constants. A cotangent may become nonzero in some iteration, so the set
    of nonzero ones is a fixed point, which is found first. ``tape``, ``consts`` and
    ``linear_consts`` are as in the type rule.
    """
    known_operands = not_linear(inputs[: 2 + tape + consts])
    trips, stride, *rest = known_operands
    residuals = len(known_program.outputs) - tape
    linear = [False] * residuals + [True] * (len(linear_program.inputs) - residuals)
    # The sums and cotangents that are nonzero in some iteration.
    backward, has_cotangent = fixed_point(
        lambda v: transpose(linear_program, linear, v[linear_consts:], v),
        [*[False] * linear_consts, *(ct is not None for ct in cotangents)],
    )
    sums_exist, varies = split_by_counts(has_cotangent, linear_consts)
    operands = inputs[2 + tape + consts :]
    sums = [views.zeros(x.type) for x in selected(operands[:linear_consts], sums_exist)]
    types = [x.type for x in selected(operands[linear_consts:], varies)]
    state = views.dense(selected(cotangents, varies), types)
    loop = _Backwards(known_program, backward, tape, consts, len(sums))
    flat = with_nones(loop.emit(trips, stride, rest, [*sums, *state]), has_cotangent)
    return [
        *[None] * len(known_operands),
        *(
            ct if isinstance(x, Linear) else None
            for ct, x in zip(flat, operands, strict=True)
        ),
    ]


class _Backwards:
    """Emits the backward loop, over the iterations from the last to the first.

    A backward iteration needs the carry before the forward iteration. The tape is a
    stack of such carries: entry k has the carry before iteration ``iterations[k]``, and
    its first ``top`` entries are in use. If the last entry is of an earlier iteration,
    iterations run again from there, and write further entries.

    Args:
        known: the known step. It takes constants and the carry; it returns carry and
            residuals.
        backward: the transposed linear step. It takes residuals and cotangents; it
            returns cotangents of the constants, then of the carry.
        taped_count: the number of arrays of the carry, each of which has a tape.
        consts: the number of constants of the known step.
        sums: the number of constants whose cotangents are summed.
    """

    def __init__(
        self,
        known: Program,
        backward: Program,
        taped_count: int,
        consts: int,
        sums: int,
    ) -> None:
        """Store the steps and counts, and derive the known step without residuals."""
        self.known = known
        self.advance, _ = pruned(known, known.outputs[:taped_count])
        self.backward = backward
        self.taped_count = taped_count
        self.consts = consts
        self.sums = sums

    def emit(
        self, trips: Atom, stride: Atom, known: Values, cotangents: Values
    ) -> list[Atom]:
        """Emit the backward loop; return the sums, and the initial carry's cotangents.

        ``trips`` is the number of iterations and ``stride`` the number of iterations
        between entries, both int64 scalars. ``known`` are the tapes and the known
        step's constants. ``cotangents`` are the initial sums, and the cotangents of the
        final carry.
        """
        tapes, fixed = split_by_counts(known, self.taped_count)
        if not tapes:
            results = repeat(
                lambda _, v: discrete.gt(v[0], 0),
                lambda consts, v: [
                    e.sub(v[0], 1),
                    *self.pulled_back(consts, [], v[1:]),
                ],
                fixed,
                [trips, *cotangents],
            )
            return results[1:]
        entries = tapes[0].type.shape[0]
        numbers = views.iota(shape=(entries,), axis=0, dtype=dtypes.int64)
        # The number of entries that the forward loop wrote: ceil(trips / stride).
        top = e.floor_divide(e.sub(e.add(trips, stride), 1), stride)
        iterations = e.mul(numbers, stride)
        carry = [trips, top, iterations, *tapes, *cotangents]
        results = repeat(lambda _, v: discrete.gt(v[0], 0), self.step, fixed, carry)
        # Without ``trips``, ``top``, ``iterations`` and the tapes.
        return results[3 + self.taped_count :]

    def step(self, fixed: Values, carry: Values) -> list[Atom]:
        """Emit one backward iteration: find the carry before it, pull cotangents back.

        ``fixed`` are the known step's constants. ``carry`` has the number of iterations
        left, ``top``, ``iterations``, the tapes, and the sums and cotangents. The first
        ``top`` entries of the tapes are in use; entry k has the carry before iteration
        ``iterations[k]``.
        """
        iterations_left, top, iterations, *rest = carry
        tapes, cotangents = split_by_counts(rest, self.taped_count)
        # Run again while iterations[top - 1] < iterations_left - 1.
        top, iterations, *tapes = repeat(
            lambda consts, v: discrete.lt(
                read(v[1], e.sub(v[0], 1)), e.sub(consts[-1], 1)
            ),
            self.run_again,
            [*fixed, iterations_left],
            [top, iterations, *tapes],
        )
        top, iterations_left = e.sub(top, 1), e.sub(iterations_left, 1)
        state = [read(t, top) for t in tapes]
        new_cotangents = self.pulled_back(fixed, state, cotangents)
        return [iterations_left, top, iterations, *tapes, *new_cotangents]

    def run_again(self, fixed: Values, carry: Values) -> list[Atom]:
        """Run iterations again from the last entry on, and write one further entry.

        The target is the carry before iteration ``iterations_left - 1``. Its distance
        from the last entry is cut into ``free_entries // 2 + 1`` pieces, and the
        further entry is at the end of the first piece. Half of the free entries remain
        for later calls, which come closer to the target.

        ``fixed`` are the known step's constants and the number of iterations left;
        ``carry`` has ``top``, ``iterations`` and the tapes. Returns the next ``carry``.
        """
        *consts, iterations_left = fixed
        top, iterations, *tapes = carry
        last = e.sub(top, 1)
        iteration = read(iterations, last)
        distance = e.sub(e.sub(iterations_left, 1), iteration)
        free_entries = e.sub(count_of(tapes[0].type.shape[0]), top)
        pieces = e.add(e.floor_divide(free_entries, 2), 1)
        # The length of a piece: ceil(distance / pieces).
        steps = e.floor_divide(e.sub(e.add(distance, pieces), 1), pieces)
        _, *state = repeat(
            lambda consts, v: discrete.lt(v[0], consts[-1]),
            lambda consts, v: [
                e.add(v[0], 1),
                *emitted(self.advance, [*consts[:-1], *v[1:]]),
            ],
            [*consts, steps],
            [count_of(0), *(read(t, last) for t in tapes)],
        )
        return [
            e.add(top, 1),
            write(iterations, e.add(iteration, steps), top),
            *(write(t, x, top) for t, x in zip(tapes, state, strict=True)),
        ]

    def pulled_back(
        self, fixed: Values, state: Values, cotangents: Values
    ) -> list[Atom]:
        """Pull ``cotangents`` back through one iteration, and add to the sums.

        ``fixed`` are the known step's constants, ``state`` the carry before the
        iteration. ``cotangents`` are the sums, then the cotangents of the carry after
        the iteration. Returns the new sums, then the cotangents of ``state``.
        """
        residuals = emitted(self.known, [*fixed, *state])[self.taped_count :]
        sums, carried = split_by_counts(cotangents, self.sums)
        results = emitted(self.backward, [*residuals, *carried])
        totals = [e.add(s, x) for s, x in zip(sums, results, strict=False)]
        return [*totals, *results[self.sums :]]


# Samples.


def _samples() -> Iterable[Sample]:
    """Yield two iterations of x -> sin(w * x) and its tangent, for the table tests."""
    vector = ArrayType((2,), dtypes.float32)

    def known(w: Atom, x: Atom) -> list[Atom]:
        """Return the next carry sin(w x), and its derivative as residual."""
        return [special.sin(e.mul(w, x)), e.mul(w, special.cos(e.mul(w, x)))]

    def linear(slope: Atom, dx: Atom) -> list[Atom]:
        """Return the next tangent: the residual times the tangent."""
        return [e.mul(slope, dx)]

    w = random_array(dtypes.float32, (2,), 78, 0.5, 1.5)
    x = random_array(dtypes.float32, (2,), 79, 0.5, 1.5)
    tape = np.zeros((4, 2), np.float32)
    tape[0], tape[1] = x, np.sin(w * x)
    yield Sample(
        (
            np.asarray(2, np.int64),  # the number of iterations
            np.asarray(2, np.int64),  # the tape's stride
            tape,
            w,
            random_array(dtypes.float32, (2,), 80, -1.0, 1.0),
        ),
        {
            "known_program": built("known", known, [vector, vector]),
            "linear_program": built("linear", linear, [vector, vector]),
            "tape": 1,
            "consts": 1,
            "linear_consts": 0,
        },
        differentiate=(4,),  # the last input, the tangent of x
    )


while_linear = Primitive(
    name="while_linear",
    family="control",
    types=_types,
    variance=OWN_VARIANCE,
    reference=_reference,
    kernel=Composition(_expand),
    jvp=OverPrograms(_jvp),
    transpose=OverPrograms(_transpose),
    batch=OverPrograms(_batch),
    samples=_samples,
    doc="The linear part of a while_loop: iterates its tangents beside its carry, "
    "which a tape provides.",
)
