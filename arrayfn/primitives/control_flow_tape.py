"""Reverse mode of while_loop, with a tape of bounded size.

The trip count is not known in advance, so residuals cannot be stacked in an array with
an entry per iteration. Instead the loop writes its carry to a tape every ``stride``
iterations: at first in each one. When the tape is half full, every other entry is
dropped and the stride doubles. Backwards, an iteration whose carry is on the tape is
differentiated from there. For others, iterations run again from the last entry before
them, and are written to the part of the tape that is free by then. Memory does not grow
with the trip count. If the trip count is at most half the number of entries, each
iteration runs again only to be differentiated.

The linear part of a loop is the primitive ``while_linear``: the iterations of the carry
and of its tangents, run ``trips`` times. Forwards it is a while_loop, backwards it
works as described.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from arrayfn.ir import ArrayType, Atom, Equation, Program
from arrayfn.primitives import control_flow_while_linear, discrete, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.control_flow import (
    Parts,
    arranged,
    building,
    elementwise_or,
    emitted,
    equation,
    fixed_point,
    pruned,
    selected,
    split_by_counts,
    unselected,
)
from arrayfn.primitives.control_flow_repeat import (
    Values,
    count_of,
    read,
    repeat,
    write,
)

_MAX_ENTRIES, _MIN_ENTRIES = 1024, 16
_TAPE_BYTES = 2**24  # 16 MiB


def entries_of(carry: Sequence[ArrayType]) -> int:
    """Return how many copies of a carry of these types a tape holds.

    The number is 1024, halved until the copies take at most 16 MiB, but at least 16.
    """
    entry_bytes = max(1, sum(t.nbytes for t in carry))
    entries = _MAX_ENTRIES
    while entries > _MIN_ENTRIES and entries * entry_bytes > _TAPE_BYTES:
        entries //= 2
    return entries


# Forwards, in two parts.


def split_while(
    whole: Equation, parts: Parts, condition: Program, unknown: Sequence[bool]
) -> tuple[list[Equation], list[Equation]]:
    """Split a while_loop into a loop that fills a tape, and a ``while_linear``.

    Args:
        whole: the equation of the while_loop.
        parts: the loop's body, split into known and linear part.
        condition: the loop's condition, a Program of the known inputs.
        unknown: for each constant and carry of the body, whether it is unknown.

    Returns the known equations and the linear ones, as two lists.
    """
    first = whole.params["cond_consts"]
    for_cond, operands = whole.inputs[:first], whole.inputs[first:]
    count = whole.params["body_consts"]
    of_consts, varies = split_by_counts(unknown, count)
    consts = unselected(operands[:count], of_consts)
    state = unselected(operands[count:], varies)
    step, is_taped = _replayed(parts.known, len(consts))
    builder = building(whole)
    with builder:
        recording = _Recording(
            parts.known, condition, len(for_cond), len(consts), is_taped
        )
        trips, stride, *results = recording.emit([*for_cond, *consts], state)
    tape, last = results[: sum(is_taped)], results[sum(is_taped) :]
    # The loop defines the known outputs of ``whole`` in place of its own Vars.
    finals = dict(zip(last, unselected(whole.outputs, varies), strict=True))
    loop = builder.equations[-1]
    loop = replace(loop, outputs=tuple(finals.get(v, v) for v in loop.outputs))
    linear = equation(
        control_flow_while_linear.while_linear,
        [
            trips,
            stride,
            *tape,
            *consts,
            *selected(operands[:count], of_consts),
            *selected(operands[count:], varies),
        ],
        {
            "known_program": step,
            "linear_program": parts.linear,
            "tape": len(tape),
            "consts": len(consts),
            "linear_consts": sum(of_consts),
        },
        selected(whole.outputs, varies),
        whole,
    )
    return [*builder.equations[:-1], loop], [linear]


def _replayed(body: Program, consts: int) -> tuple[Program, list[bool]]:
    """Reduce the known step to what the backward pass needs to repeat iterations.

    ``body`` is the known step: it takes ``consts`` constants and the carry, and returns
    the carry and residuals. An array of the carry must be on the tape if a residual, or
    another taped array, depends on it.

    Returns a Program and, for each array of the carry, whether it is on the tape. The
    Program takes the constants and the taped arrays, and returns the next values of
    these arrays and the residuals.
    """
    state = body.inputs[consts:]
    results, residuals = split_by_counts(body.outputs, len(state))

    def pruned_body(is_taped: list[bool]) -> tuple[Program, list[bool]]:
        """Prune the body; also tape the arrays of the carry that it still reads."""
        program, live = pruned(body, [*selected(results, is_taped), *residuals])
        return program, elementwise_or(is_taped, (v in live for v in state))

    program, is_taped = fixed_point(pruned_body, [False] * len(state))
    inputs = [*program.inputs[:consts], *selected(state, is_taped)]
    return arranged(program, inputs, program.outputs), is_taped


class _Recording:
    """Emits the known loop, which writes the ``kept`` part of its carry to a tape.

    ``body`` is the known step, ``condition`` the loop's condition. Their constants are
    given together: first ``for_cond`` of the condition, then ``consts`` of the body.
    ``kept`` has a flag for each array of the carry.

    Attributes:
        advance: the body without residuals, which returns the next carry.
        taped: the number of arrays of the carry that are written to the tape.
        entries: the number of entries of the tape.
        half: the number of entries that the loop fills; the backward pass needs the
            other half.
    """

    def __init__(
        self,
        body: Program,
        condition: Program,
        for_cond: int,
        consts: int,
        kept: Sequence[bool],
    ) -> None:
        """Split off the step that only advances the carry, and size the tape."""
        self.advance, _ = pruned(body, body.outputs[: len(kept)], effects=True)
        self.condition = condition
        self.for_cond = for_cond
        self.kept = kept
        self.taped = sum(kept)
        state = body.inputs[consts:]
        self.entries = entries_of([v.type for v in selected(state, kept)])
        self.half = self.entries // 2

    def emit(self, fixed: Values, state: Values) -> list[Atom]:
        """Emit the loop from constants ``fixed`` and the initial carry ``state``.

        Returns its trip count, the tape's stride, the tape and the final carry.
        """
        goes_on = self.going(fixed, state)
        if not self.taped:  # the backward pass only needs the trip count
            zero = count_of(0)
            trips, *rest = self.advanced(fixed, [zero, *state, goes_on], None)
            return [trips, count_of(1), *rest[:-1]]
        tape = [
            views.zeros(ArrayType((self.entries, *x.type.shape), x.type.dtype))
            for x in selected(state, self.kept)
        ]
        # The carry of fill_and_drop, with slot 0, stride 1 and trip count 0.
        carry = [count_of(0), count_of(1), count_of(0), *tape, *state, goes_on]
        _, stride, trips, *rest = repeat(
            lambda _, v: v[-1], self.fill_and_drop, fixed, carry
        )
        return [trips, stride, *rest[:-1]]

    def going(self, fixed: Values, state: Values) -> Atom:
        """Emit the loop's condition for the carry ``state``, a bool scalar."""
        return emitted(self.condition, [*fixed[: self.for_cond], *state])[0]

    def fill_and_drop(self, fixed: Values, carry: Values) -> list[Atom]:
        """Emit a step of the outer loop: thin a full tape, then write until it is full.

        ``carry`` has the next free slot, the stride, the trip count, the tape, the
        loop's carry and whether the loop goes on. The tape counts as full when half of
        its entries are written. Thinning drops every other entry and doubles the
        stride. Returns the next carry.
        """
        slot, stride, trips, *rest = carry
        tape, state = rest[: self.taped], rest[self.taped :]
        # Move entry 2 k to slot k, in place. A tape that is not full makes 0 moves.
        is_full = discrete.eq(slot, self.half)
        moves = e.select(is_full, count_of(self.half // 2), count_of(0))
        _, *tape = repeat(
            lambda consts, v: discrete.lt(v[0], consts[0]),
            lambda _, v: [
                e.add(v[0], 1),
                *(write(t, read(t, e.mul(v[0], 2)), v[0]) for t in v[1:]),
            ],
            [moves],
            [count_of(0), *tape],
        )
        slot = e.select(is_full, moves, slot)
        stride = e.select(is_full, e.mul(stride, 2), stride)
        results = repeat(
            lambda _, v: discrete.bitwise_and(discrete.lt(v[0], self.half), v[-1]),
            self.entry,
            [*fixed, stride],
            [slot, trips, *tape, *state],
        )
        return [results[0], stride, *results[1:]]

    def entry(self, fixed: Values, carry: Values) -> list[Atom]:
        """Write the loop's carry to the tape, then run at most ``stride`` iterations.

        ``fixed`` ends with the stride. ``carry`` has the slot, the trip count, the
        tape, the loop's carry and whether the loop goes on. Returns the next ``carry``.
        """
        slot, trips, *rest = carry
        tape, state = rest[: self.taped], rest[self.taped :]
        saved = selected(state[:-1], self.kept)
        tape = [write(t, x, slot) for t, x in zip(tape, saved, strict=True)]
        steps, *state = self.advanced(fixed[:-1], [count_of(0), *state], fixed[-1])
        return [e.add(slot, 1), e.add(trips, steps), *tape, *state]

    def advanced(self, fixed: Values, carry: Values, limit: Atom | None) -> list[Atom]:
        """Emit iterations until the loop ends, or ``limit`` of them if it is not None.

        ``carry`` has a count of iterations, the loop's carry, and whether the loop goes
        on. ``fixed`` has the constants of the condition (``for_cond`` many), then those
        of the body. Returns the final ``carry``.
        """

        def goes_on(consts: Values, values: Values) -> Atom:
            """Whether the last iteration said so, and the limit is not reached."""
            if limit is None:
                return values[-1]
            return discrete.bitwise_and(discrete.lt(values[0], consts[-1]), values[-1])

        def step(consts: Values, values: Values) -> list[Atom]:
            """Count an iteration, advance the carry, and evaluate the condition."""
            fixed = consts if limit is None else consts[:-1]
            after = emitted(self.advance, [*fixed[self.for_cond :], *values[1:-1]])
            return [e.add(values[0], 1), *after, self.going(fixed, after)]

        bounds = [] if limit is None else [limit]
        return repeat(goes_on, step, [*fixed, *bounds], carry)
