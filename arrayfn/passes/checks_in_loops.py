"""Checks inside loops and branches: their Programs return a fault, and values, too.

A *checked* Program returns, after its own results, the values of the user's checks and
then a fault (see ``faults``). So ``scan(f, c, xs)`` with ``(c, y) = f(c, x)`` becomes
``scan(g, (c, values, fault), xs)``, where ``g`` keeps the values and the fault of the
first iteration that has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from arrayfn import dtypes
from arrayfn.ir import Atom, Equation, Literal, Program
from arrayfn.ir.builder import ProgramBuilder, current_builder
from arrayfn.passes.faults import NO_FAULT
from arrayfn.primitives import discrete, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import Primitive
from arrayfn.primitives.control_flow_cond import cond
from arrayfn.primitives.control_flow_scan import scan
from arrayfn.primitives.control_flow_while import while_loop
from arrayfn.primitives.rules import as_list

NO_FAULT_LITERAL: Final = Literal(NO_FAULT, dtypes.int64)


class Checker(Protocol):
    """An object that inserts checks into the Programs of loops and branches."""

    def checked(self, program: Program) -> Program | None:
        """Return the checked Program, or None if nothing in ``program`` is checked."""
        ...


Checked = tuple[Sequence[Atom], Sequence[Atom]]
"""The results of a loop or branch, and the values of its checks and then its fault."""


def _scan(checker: Checker, equation: Equation, operands: Sequence[Atom]) -> Checked:
    """Emit a scan whose body is checked; return its results and the first fault.

    The check values, at first zeros, and the fault become the last carries.
    """
    params: dict[str, Any] = dict(equation.params)
    xs_begin = params["consts"] + params["carry"]
    body = checker.checked(params["program"])
    if body is None:
        return as_list(scan(*operands, **params)), [NO_FAULT_LITERAL]
    carry, result_count = params["carry"], len(equation.outputs)
    start = [*_zeros(body.outputs[result_count:-1]), NO_FAULT_LITERAL]
    carry_end = carry + len(start)
    params |= {
        "program": _scan_body(body, xs_begin, carry, result_count),
        "carry": carry_end,
    }
    outputs = as_list(
        scan(*operands[:xs_begin], *start, *operands[xs_begin:], **params)
    )
    return [*outputs[:carry], *outputs[carry_end:]], outputs[carry:carry_end]


def _while_loop(
    checker: Checker, equation: Equation, operands: Sequence[Atom]
) -> Checked:
    """Emit a while_loop that ends at a fault; return its results and the fault.

    The body computes the condition once more, because only a body can return a fault.
    A fault of the condition comes before one of the body. After the loop, the condition
    that ended it is computed again, for its fault.
    """
    params: dict[str, Any] = dict(equation.params)
    checked_condition = checker.checked(params["cond_program"])
    checked_body = checker.checked(params["body_program"])
    if checked_condition is None and checked_body is None:
        return as_list(while_loop(*operands, **params)), [NO_FAULT_LITERAL]
    cond_end = params["cond_consts"]
    condition = checked_condition or _without_faults(params["cond_program"])
    body = checked_body or _without_faults(params["body_program"])
    count = len(equation.outputs)
    start = _zeros([*condition.outputs[1:-1], *body.outputs[count:-1]])
    params |= {
        "cond_program": _stopping_at_fault(condition, start),
        "body_program": _while_body(condition, body, cond_end, start),
        "body_consts": cond_end + params["body_consts"],
    }
    # The condition's constants are constants of the body, too.
    outputs = as_list(
        while_loop(*operands[:cond_end], *operands, *start, NO_FAULT_LITERAL, **params)
    )
    results, values, fault = outputs[:count], list(outputs[count:-1]), outputs[-1]
    if checked_condition is not None:
        arguments = [*operands[:cond_end], *results]
        _, *last_values, last_fault = current_builder().inline(condition, arguments)
        # The condition's values come first. They stay if the body has had a fault.
        pairs = zip(values, last_values, strict=False)
        values[: len(last_values)] = [_unless_fault(fault, y, x) for x, y in pairs]
        fault = _first_fault(fault, last_fault)
    return results, [*values, fault]


def _cond(checker: Checker, equation: Equation, operands: Sequence[Atom]) -> Checked:
    """Emit a cond whose branches are checked; return its results and the fault.

    Every branch returns the check values of all branches, with zeros for the others'.
    """
    branches: tuple[Program, ...] = equation.params["branches"]
    checked = [checker.checked(branch) for branch in branches]
    if not any(checked):
        return as_list(cond(*operands, branches=branches)), [NO_FAULT_LITERAL]
    count = len(equation.outputs)
    with_faults = [
        with_fault or _without_faults(branch)
        for with_fault, branch in zip(checked, branches, strict=True)
    ]
    values = [branch.outputs[count:-1] for branch in with_faults]
    if any(values):
        with_faults = [
            _with_values_of_all(branch, count, values, number)
            for number, branch in enumerate(with_faults)
        ]
    outputs = as_list(cond(*operands, branches=tuple(with_faults)))
    return outputs[:count], outputs[count:]


Rule = Callable[[Checker, Equation, Sequence[Atom]], Checked]

LOOPS: Final[dict[Primitive, Rule]] = {
    scan: _scan,
    while_loop: _while_loop,
    cond: _cond,
}
"""What emits a loop or branch with checks, on its operands in the new Program."""


def _scan_body(body: Program, xs_begin: int, carry: int, result_count: int) -> Program:
    """Extend a checked body of a scan to carry the first fault and check values.

    ``body``'s first ``result_count`` outputs are ``carry`` carries, then stacked
    results. Its inputs from number ``xs_begin`` on are slices. Once an iteration has a
    fault, the carried check values and fault stay as they are.
    """
    with ProgramBuilder(body.name) as builder:
        inputs = [builder.input(v.type, v.hint) for v in body.inputs[:xs_begin]]
        values = [builder.input(a.type.plain()) for a in body.outputs[result_count:-1]]
        carried_fault = builder.input(NO_FAULT_LITERAL.type, "fault")
        inputs += [builder.input(v.type, v.hint) for v in body.inputs[xs_begin:]]
        outputs = builder.inline(body, inputs)
        results, checks = outputs[:result_count], outputs[result_count:]
        pairs = zip([*values, carried_fault], checks, strict=True)
        first = [_unless_fault(carried_fault, new, old) for old, new in pairs]
        return builder.build([*results[:carry], *first, *results[carry:]])


def _with_values_of_all(
    branch: Program, count: int, values: Sequence[Sequence[Atom]], number: int
) -> Program:
    """Extend a branch of a cond to return the check values of all branches.

    ``branch`` is the one of index ``number``. It returns ``count`` results, its own
    check values and a fault. ``values`` has the check values of each branch; those of
    other branches are returned as zeros.
    """
    with ProgramBuilder(branch.name) as builder:
        outputs = builder.inline(branch, builder.inputs_of(branch))
        results, own_values, fault = outputs[:count], outputs[count:-1], outputs[-1]
        all_values = [
            x
            for k, values_of_branch in enumerate(values)
            for x in (own_values if k == number else _zeros(values_of_branch))
        ]
        return builder.build([*results, *all_values, fault])


def _zeros(values: Iterable[Atom]) -> list[Atom]:
    """Return zeros of the types of ``values``."""
    return [views.zeros(x.type.plain()) for x in values]


def _stopping_at_fault(condition: Program, values: Sequence[Atom]) -> Program:
    """Extend the condition of a loop to stop at a fault.

    The extended condition takes more carries: check values of the types of ``values``,
    and the fault.
    """
    with ProgramBuilder(condition.name) as builder:
        inputs = builder.inputs_of(condition)
        for x in values:
            builder.input(x.type.plain())
        fault = builder.input(NO_FAULT_LITERAL.type, "fault")
        goes_on, *_ = builder.inline(condition, inputs)
        has_no_fault = discrete.eq(fault, NO_FAULT_LITERAL)
        return builder.build([discrete.bitwise_and(goes_on, has_no_fault)])


def _while_body(
    condition: Program, body: Program, cond_consts: int, values: Sequence[Atom]
) -> Program:
    """Extend the body of a while_loop to carry check values and a fault.

    ``condition`` and ``body`` are checked; the condition has ``cond_consts`` constants,
    which become constants of the new body, in front of its own. ``values`` have the
    types of the values of both Programs' checks, which are carried before the fault.
    """
    with ProgramBuilder(body.name) as builder:
        consts = [builder.input(v.type, v.hint) for v in condition.inputs[:cond_consts]]
        inputs = builder.inputs_of(body)
        for x in values:
            builder.input(x.type.plain())
        builder.input(NO_FAULT_LITERAL.type, "fault")
        count = len(condition.inputs) - cond_consts
        carry = inputs[len(inputs) - count :]
        # The first output is the predicate, which only the loop's condition needs.
        _, *cond_values, cond_fault = builder.inline(condition, [*consts, *carry])
        outputs = builder.inline(body, inputs)
        results, body_values, body_fault = (
            outputs[:count],
            outputs[count:-1],
            outputs[-1],
        )
        fault = _first_fault(cond_fault, body_fault)
        return builder.build([*results, *cond_values, *body_values, fault])


def _without_faults(program: Program) -> Program:
    """Append the output ``NO_FAULT`` to ``program``, which has no checks."""
    outputs = (*program.outputs, NO_FAULT_LITERAL)
    return Program(program.name, program.inputs, program.equations, outputs)


def _unless_fault(fault: Atom, new: Atom, old: Atom) -> Atom:
    """Emit ``new`` if ``fault`` is ``NO_FAULT``, else ``old``."""
    return e.select(discrete.eq(fault, NO_FAULT_LITERAL), new, old)


def _first_fault(earlier: Atom, later: Atom) -> Atom:
    """Emit the fault ``earlier``, or ``later`` if ``earlier`` is ``NO_FAULT``."""
    return _unless_fault(earlier, later, earlier)
