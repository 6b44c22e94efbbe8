"""Helpers with which rules emit loops: counts, entries along axis 0, while_loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from arrayfn import dtypes
from arrayfn.ir import Atom, Literal
from arrayfn.primitives import dynamic_slices, emitters, views
from arrayfn.primitives.control_flow import built
from arrayfn.primitives.rules import as_list

Values = Sequence[Atom]


def count_of(value: int) -> Literal:
    """Return ``value`` as an int64 Literal, the dtype of loop counters."""
    return Literal(value, dtypes.int64)


def starts_of(x: Atom, index: Atom) -> list[Atom]:
    """Return the start indices ``(index, 0, 0, ...)`` of a dynamic slice of ``x``."""
    return [index, *[count_of(0)] * (x.type.ndim - 1)]


def read(tape: Atom, index: Atom) -> Atom:
    """Emit ``tape[index]``, the entry at ``index`` along axis 0."""
    shape = tape.type.shape[1:]
    entry = dynamic_slices.dynamic_slice(
        tape, *starts_of(tape, index), sizes=(1, *shape)
    )
    return views.reshape(entry, shape=shape)


def write(tape: Atom, value: Atom, index: Atom) -> Atom:
    """Emit ``tape`` with its entry ``index`` along axis 0 replaced by ``value``."""
    entry = views.reshape(value, shape=(1, *value.type.shape))
    return dynamic_slices.dynamic_update_slice(tape, entry, *starts_of(tape, index))


def repeat(
    goes_on: Callable[[Values, Values], Atom],
    step: Callable[[Values, Values], Values],
    consts: Values,
    carry: Values,
) -> list[Atom]:
    """Emit a while_loop whose condition and body are Python functions of Atoms.

    ``goes_on(consts, carry)`` returns a bool scalar, ``step(consts, carry)`` the next
    carry. Returns the final carry.
    """
    n = len(consts)
    types = [x.type for x in (*consts, *carry)]
    while True:
        body = built("step", lambda *v: step(v[:n], v[n:]), types)
        pairs = zip(types[n:], body.output_types, strict=True)
        wider = [t.with_varying(t.varying | result.varying) for t, result in pairs]
        if wider == types[n:]:
            break
        types[n:] = wider  # an initial value of zeros does not vary, but its sums do
    return as_list(
        emitters.while_loop(
            *consts,  # of the condition
            *consts,  # of the body
            *carry,
            cond_program=built("goes_on", lambda *v: [goes_on(v[:n], v[n:])], types),
            body_program=body,
            cond_consts=n,
            body_consts=n,
        )
    )
