"""Inserts checks of indices and numbers into a Program.

``with_checks`` returns a Program with one more result, a *fault* (see ``faults``), and
the sites that faults refer to. Conditions that the user asserts (``check``) are always
among them; the values for their messages are results before the fault. Numbers are
checked as by NumPy's ``errstate``: NaN is a fault if no operand is NaN, an infinity if
all operands are finite. NaN and infinities among arguments and constants are no faults.
Values that no result depends on are not checked.

Loops and branches return a fault too. A loop returns the fault of the first iteration
that has one, and a ``while_loop`` ends there. Calls are checked inside their bodies,
except for those that a registered kernel computes: their results are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, user_location
from arrayfn.ir import ArrayType, Atom, Equation, Literal, Program, Var
from arrayfn.ir.builder import ProgramBuilder, current_builder, rename
from arrayfn.passes.faults import (
    CHECK,
    DETAIL_BITS,
    DIVISION,
    INDEX,
    INF,
    KINDS,
    MAX_INDEX,
    NAN,
    NO_FAULT,
    Site,
)
from arrayfn.primitives import conversion, discrete, indexing, reductions, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.assertions import check, has_check
from arrayfn.primitives.base import Body, Composition, Primitive, primitive_of
from arrayfn.primitives.bounds import in_bounds
from arrayfn.primitives.control_flow_cond import cond
from arrayfn.primitives.control_flow_scan import scan
from arrayfn.primitives.control_flow_while import while_loop
from arrayfn.primitives.rules import all_of
from arrayfn.transforms.dce import dce

_NONE: Final = Literal(NO_FAULT, dtypes.int64)
_DIVISIONS: Final = frozenset(
    (e.div, e.reciprocal, e.floor_divide, e.remainder, e.fmod)
)
_BAD_RESULTS: Final = (
    (NAN, discrete.isnan, discrete.isnan),
    (INF, discrete.isinf, lambda x: discrete.bitwise_not(discrete.isfinite(x))),
)
"""(kind, test of results, test of operands that excuse the result)."""
_MOVES: Final = frozenset(("view", "structure", "sorting"))
"""Families whose results are copies of elements of their operands."""

IsWhole = Callable[[Equation], bool]
"""Whether a registered kernel computes a call as a whole."""


def kinds_of(checks: object) -> frozenset[str]:
    """The ``KINDS`` that ``checks``, an argument of ``jit``, asks for.

    True means ``"index"``, and ``"all"`` means all. Raises ArgumentError for others.
    """
    if isinstance(checks, bool):
        return frozenset((INDEX,) if checks else ())
    if checks == "all":
        return frozenset(KINDS)
    is_collection = isinstance(checks, (tuple, list, set, frozenset))
    requested = set[object](checks) if is_collection else {checks}
    kinds = frozenset(kind for kind in KINDS if kind in requested)
    if len(kinds) != len(requested):
        raise ArgumentError(
            f"jit has no checks {checks!r}; there are {', '.join(map(repr, KINDS))}, "
            "several of them in a tuple, 'all', and True, which is 'index'",
            user_location(),
        )
    return kinds


def with_checks(
    program: Program,
    kinds: AbstractSet[str],
    is_whole: IsWhole,
    *,
    asserted: bool = True,
) -> tuple[Program, tuple[Site, ...]]:
    """``program`` with a fault as a further result, and the sites, if there are any.

    Before the fault are the values of the user's checks, in the order of the sites.
    Calls that ``is_whole`` accepts are not entered. Unless ``asserted``, the user's
    checks are left where they are.
    """
    if not kinds and not (asserted and has_check(program)):
        return program, ()
    checker = _Checker(kinds, is_whole, asserted)
    checked = checker.program(dce(program))
    if checked is None:
        return program, ()
    return checked, tuple(checker.sites)


class _Checker:
    """Inserts checks into Programs, and numbers their sites."""

    def __init__(
        self, kinds: AbstractSet[str], is_whole: IsWhole, asserted: bool
    ) -> None:
        self.kinds = kinds
        self.is_whole = is_whole
        self.asserted = asserted
        self.sites: list[Site] = []

    def program(self, program: Program) -> Program | None:
        """``program`` with the values of checks and a fault as its last results.

        None if nothing is checked.
        """
        site_count = len(self.sites)
        builder = ProgramBuilder(program.name)
        with builder:
            inputs = builder.inputs_of(program)
            environment = builder.bind_inputs(program, inputs)
            found = self.walk(program, environment)
        if len(self.sites) == site_count:
            return None
        outputs = [rename(a, environment) for a in program.outputs]
        return builder.build([*outputs, *found])

    def walk(self, program: Program, environment: dict[Var, Atom]) -> list[Atom]:
        """Emits ``program`` and the checks of its equations.

        ``environment`` has the new Atom of each input; those of all Vars are added.
        Returns the values of the user's checks, then the first fault.
        """
        builder = current_builder()
        faults: list[Atom] = []
        kept: list[Atom] = []
        for equation in program.equations:
            builder.source = equation.source
            primitive = primitive_of(equation)
            operands = [rename(a, environment) for a in equation.inputs]
            if primitive is in_bounds:
                environment[equation.outputs[0]] = operands[0]
                faults += self._index(operands[0], equation)
            elif primitive is check and self.asserted:
                faults += self._condition(operands[0], equation)
                kept += operands[1:]
            elif primitive in _LOOPS:
                results, (*values, fault) = _LOOPS[primitive](self, equation, operands)
                environment.update(zip(equation.outputs, results, strict=True))
                kept += values
                faults.append(fault)
            elif (body := self._entered(equation)) is not None:
                environment.update(builder.bind_inputs(body, operands))
                *values, fault = self.walk(body, environment)
                kept += values
                faults.append(fault)
                results = [rename(a, environment) for a in body.outputs]
                environment.update(zip(equation.outputs, results, strict=True))
            else:
                builder.replay(equation, environment)
                results = [environment[v] for v in equation.outputs]
                faults += self._numbers(equation, primitive, operands, results)
        return [*kept, _smallest(faults)]

    def _entered(self, equation: Equation) -> Program | None:
        """The Program inside ``equation`` whose equations are checked, if any.

        It is the body of a call that no kernel computes as a whole, or the expansion of
        a Composition that holds Programs.
        """
        kernel = primitive_of(equation).kernel
        if isinstance(kernel, Body) and "body" in equation.params:
            if not self.is_whole(equation):
                return equation.params["body"]
        elif equation.subprograms() and isinstance(kernel, Composition):
            return self._expanded(equation)
        return None

    def _expanded(self, equation: Equation) -> Program:
        """The Program that a Composition with Programs expands to."""
        primitive = primitive_of(equation)
        assert isinstance(primitive.kernel, Composition)
        builder = ProgramBuilder(primitive.name)
        builder.source = equation.source
        with builder:
            inputs = [
                a if isinstance(a, Literal) else builder.input(a.type)
                for a in equation.inputs
            ]
            expanded = primitive.kernel.expand(*inputs, **equation.params)
            program = builder.build(
                expanded if isinstance(expanded, list) else [expanded]
            )
        return _with_literals(program, equation.inputs)

    def _condition(self, condition: Atom, equation: Equation) -> list[Atom]:
        """The fault of a ``condition`` that the user asserts by a ``check``."""
        params, type = equation.params, _plain(condition.type)
        site = Site(
            CHECK,
            params["message"],
            type,
            equation.source,
            names=params["names"],
            loops=params["loops"],
        )
        if 0 in type.shape:
            self.sites.append(site)
            return []
        bad = discrete.bitwise_not(condition)
        return [self._fault([(site, bad)], _positions(type))]

    def _index(self, index: Atom, equation: Equation) -> list[Atom]:
        """The faults of the ``index`` that an ``in_bounds`` equation passes on."""
        if INDEX not in self.kinds or 0 in index.type.shape:
            return []
        params: dict[str, Any] = dict(equation.params)
        extent, length = params["extent"], params["length"]
        low, high = (0, extent - length) if length else (-extent, extent - 1)
        value = _as_int64(index)
        is_outside = discrete.bitwise_or(
            discrete.lt(value, low), discrete.gt(value, high)
        )
        site = Site(INDEX, "index", index.type, equation.source, **params)
        clamped = e.minimum(e.maximum(value, -MAX_INDEX), MAX_INDEX)
        return [self._fault([(site, is_outside)], e.add(clamped, MAX_INDEX))]

    def _numbers(
        self,
        equation: Equation,
        primitive: Primitive,
        operands: Sequence[Atom],
        results: Sequence[Atom],
    ) -> list[Atom]:
        """The faults of an equation's divisor and results."""
        faults: list[Atom] = []
        if primitive in _DIVISIONS and DIVISION in self.kinds:
            faults += self._divisor(primitive, operands[-1], equation)
        if (
            primitive.family in _MOVES
            or primitive is indexing.gather
            or primitive.effect
        ):
            return faults
        inexact = [x for x in operands if x.type.dtype in dtypes.INEXACT]
        is_elementwise = primitive.family == "elementwise"
        for result in results:
            if result.type.dtype not in dtypes.INEXACT or 0 in result.type.shape:
                continue
            cases: list[tuple[Site, Atom]] = []
            for kind, is_bad, excuses in _BAD_RESULTS:
                if kind not in self.kinds:
                    continue
                is_fault = is_bad(result)
                for x in inexact:
                    excuse = excuses(x) if is_elementwise else _any(excuses(x))
                    is_fault = discrete.bitwise_and(
                        is_fault, discrete.bitwise_not(excuse)
                    )
                type, source = _plain(result.type), equation.source
                site = Site(
                    kind, primitive.name, type, source, is_elementwise=is_elementwise
                )
                cases.append((site, is_fault))
            if cases:
                faults.append(self._fault(cases, _positions(result.type)))
        return faults

    def _divisor(self, primitive: Primitive, y: Atom, equation: Equation) -> list[Atom]:
        """The fault of a divisor ``y`` that is 0, of an equation of ``primitive``."""
        if 0 in y.type.shape or (isinstance(y, Literal) and y.value != 0):
            return []
        site = Site(DIVISION, primitive.name, _plain(y.type), equation.source)
        is_zero = discrete.eq(y, conversion.literal(0, y.type.dtype))
        return [self._fault([(site, is_zero)], _positions(y.type))]

    def _fault(self, cases: Sequence[tuple[Site, Atom]], detail: Atom) -> Atom:
        """The fault of the first of ``cases`` that holds anywhere.

        Each case is a site and a mask. ``detail`` is that of each element; the smallest
        counts.
        """
        first = len(self.sites)
        self.sites += [site for site, _ in cases]
        fault: Atom = _NONE
        for number, (_, is_fault) in reversed(list(enumerate(cases, first))):
            fault = e.select(is_fault, e.add(detail, number << DETAIL_BITS), fault)
        axes = tuple(range(len(fault.type.shape)))
        return reductions.reduce_min(fault, axes=axes) if axes else fault


# Loops and branches.


Checked = tuple[Sequence[Atom], Sequence[Atom]]
"""The results of a loop or branch; the values of its checks and its fault."""


def _scan(checker: _Checker, equation: Equation, operands: Sequence[Atom]) -> Checked:
    """Emit a scan whose body is checked; return its results and the first fault."""
    params: dict[str, Any] = dict(equation.params)
    first_slice = params["consts"] + params["carry"]
    body = checker.program(params["program"])
    if body is None:
        return all_of(scan(*operands, **params)), [_NONE]
    carry, results = params["carry"], len(equation.outputs)
    inner = _carrying(body, first_slice, carry, results)
    own = len(body.outputs) - results
    params |= {"program": inner, "carry": carry + own}
    start = [*_zeros(body.outputs[results:-1]), _NONE]
    outputs = all_of(
        scan(*operands[:first_slice], *start, *operands[first_slice:], **params)
    )
    return [*outputs[:carry], *outputs[carry + own :]], outputs[carry : carry + own]


def _while_loop(
    checker: _Checker, equation: Equation, operands: Sequence[Atom]
) -> Checked:
    """Emit a while_loop that ends at a fault; return its results and the fault."""
    params: dict[str, Any] = dict(equation.params)
    condition = checker.program(params["cond_program"])
    body = checker.program(params["body_program"])
    if condition is None and body is None:
        return all_of(while_loop(*operands, **params)), [_NONE]
    cond_end = params["cond_consts"]
    body_end = cond_end + params["body_consts"]
    checked_condition = condition or _with_none(params["cond_program"])
    step = body or _with_none(params["body_program"])
    # The body also takes the condition's operands, to report the condition's fault.
    count = len(equation.outputs)
    asked_values, step_values = checked_condition.outputs[1:-1], step.outputs[count:-1]
    start = _zeros([*asked_values, *step_values])
    params |= {
        "cond_program": _while_none(checked_condition, start),
        "body_program": _step(checked_condition, step, cond_end, start),
        "body_consts": body_end,
    }
    outputs = all_of(
        while_loop(*operands[:cond_end], *operands, *start, _NONE, **params)
    )
    results, values, fault = outputs[:count], list(outputs[count:-1]), outputs[-1]
    if condition is not None:
        arguments = [*operands[:cond_end], *results]
        _, *condition_values, at_end = current_builder().inline(condition, arguments)
        pairs = zip(values, condition_values, strict=False)
        values[: len(condition_values)] = [_keeping(fault, x, y) for x, y in pairs]
        fault = _first_fault(fault, at_end)
    return results, [*values, fault]


def _cond(checker: _Checker, equation: Equation, operands: Sequence[Atom]) -> Checked:
    """Emit a cond whose branches are checked; return its results and the fault."""
    branches: tuple[Program, ...] = equation.params["branches"]
    checked = [checker.program(branch) for branch in branches]
    if not any(checked):
        return all_of(cond(*operands, branches=branches)), [_NONE]
    count = len(equation.outputs)
    values = [[] if x is None else x.outputs[count:-1] for x in checked]
    outputs = all_of(
        cond(
            *operands,
            branches=tuple(
                _with_values_of_all(
                    checked_branch or _with_none(branch), count, values, number
                )
                for number, (checked_branch, branch) in enumerate(
                    zip(checked, branches, strict=True)
                )
            ),
        )
    )
    return outputs[:count], outputs[count:]


_LOOPS: Final = {scan: _scan, while_loop: _while_loop, cond: _cond}


def _carrying(body: Program, before: int, carry: int, count: int) -> Program:
    """A scan's body that carries the first fault and the values of its check.

    ``body`` returns ``count`` results, then values, the fault last. Its inputs before
    number ``before`` are constants and carries; there are ``carry`` carries.
    """
    builder = ProgramBuilder(body.name)
    with builder:
        inputs = [builder.input(v.type, v.hint) for v in body.inputs[:before]]
        values = [builder.input(a.type.plain()) for a in body.outputs[count:-1]]
        carried_fault = builder.input(_NONE.type, "fault")
        inputs += [builder.input(v.type, v.hint) for v in body.inputs[before:]]
        outputs = builder.inline(body, inputs)
        results, of_step = outputs[:count], outputs[count:]
        pairs = zip([*values, carried_fault], of_step, strict=True)
        first = [_keeping(carried_fault, x, y) for x, y in pairs]
    return builder.build([*results[:carry], *first, *results[carry:]])


def _with_values_of_all(
    branch: Program, count: int, values: Sequence[Sequence[Atom]], number: int
) -> Program:
    """A branch of a cond that returns values for the checks of all branches.

    ``branch`` is number ``number`` and has ``count`` results; then come its own values
    and its fault. ``values`` has those of each branch: zeros stand for the others'.
    """
    if not any(values):
        return branch
    builder = ProgramBuilder(branch.name)
    with builder:
        outputs = builder.inline(branch, builder.inputs_of(branch))
        branch_values, fault = outputs[count:-1], outputs[-1]
        all_values = [
            branch_values if k == number else _zeros(v) for k, v in enumerate(values)
        ]
        every = [x for several in all_values for x in several]
    return builder.build([*outputs[:count], *every, fault])


def _zeros(values: Iterable[Atom]) -> list[Atom]:
    """Zeros of the types of ``values``."""
    return [views.zeros(x.type.plain()) for x in values]


def _while_none(condition: Program, values: Sequence[Atom]) -> Program:
    """A loop's condition that also stops at a fault.

    It takes more carries than ``condition``, which is checked: ``values``, and the
    fault.
    """
    builder = ProgramBuilder(condition.name)
    with builder:
        inputs = builder.inputs_of(condition)
        for x in values:
            builder.input(x.type.plain())
        fault = builder.input(_NONE.type, "fault")
        goes_on, *_ = builder.inline(condition, inputs)
        condition_holds = discrete.bitwise_and(goes_on, discrete.eq(fault, _NONE))
    return builder.build([condition_holds])


def _step(
    condition: Program,
    body: Program,
    condition_constants: int,
    values: Sequence[Atom],
) -> Program:
    """A loop's ``body`` that also carries the values and faults of both Programs.

    ``condition`` and ``body`` return a fault last; the condition has
    ``condition_constants`` constants. ``values`` are examples of the values of both
    Programs' checks, which are carried in front of the fault. The condition is computed
    again, for its values and its fault, which comes before the body's.
    """
    builder = ProgramBuilder(body.name)
    with builder:
        consts = [
            builder.input(v.type, v.hint)
            for v in condition.inputs[:condition_constants]
        ]
        inputs = builder.inputs_of(body)
        for x in values:
            builder.input(x.type.plain())
        builder.input(_NONE.type, "fault")
        carry = inputs[_first_carry(condition, body, condition_constants) :]
        _, *of_condition, condition_fault = builder.inline(condition, [*consts, *carry])
        outputs = builder.inline(body, inputs)
        count = len(carry)
        results, of_body, fault = outputs[:count], outputs[count:-1], outputs[-1]
        found = _first_fault(condition_fault, fault)
    return builder.build([*results, *of_condition, *of_body, found])


def _first_carry(condition: Program, body: Program, condition_constants: int) -> int:
    """How many inputs of a loop's ``body`` are constants.

    ``condition_constants`` is their number in its ``condition``, which takes the same
    carries.
    """
    return len(body.inputs) - (len(condition.inputs) - condition_constants)


def _with_none(program: Program) -> Program:
    """``program`` with ``NO_FAULT`` as a further result."""
    return Program(
        program.name, program.inputs, program.equations, (*program.outputs, _NONE)
    )


# Small Programs.


def _keeping(fault: Atom, old: Atom, new: Atom) -> Atom:
    """``old``, or ``new`` if ``fault`` is ``NO_FAULT``."""
    return e.select(discrete.eq(fault, _NONE), new, old)


def _first_fault(earlier: Atom, later: Atom) -> Atom:
    """``earlier``, or ``later`` if that is ``NO_FAULT``."""
    return _keeping(earlier, earlier, later)


def _smallest(faults: Iterable[Atom]) -> Atom:
    """The fault with the smallest number; NO_FAULT if there are none."""
    first: Atom = _NONE
    for fault in faults:
        if fault is not _NONE:
            first = fault if first is _NONE else e.minimum(first, fault)
    return first


def _positions(type: ArrayType) -> Atom:
    """The row-major index of each element, as int64."""
    if not type.shape:
        return Literal(0, dtypes.int64)
    flat = views.iota(shape=(type.size,), axis=0, dtype=dtypes.int64)
    return views.reshape(flat, shape=type.shape)


def _any(mask: Atom) -> Atom:
    """Whether any element of ``mask`` is true."""
    axes = tuple(range(len(mask.type.shape)))
    return reductions.reduce_or(mask, axes=axes) if axes else mask


def _as_int64(index: Atom) -> Atom:
    """``index`` as int64; larger numbers become the largest int64."""
    if isinstance(index, Literal):
        return Literal(index.value, dtypes.int64)
    if index.type.dtype == dtypes.uint64:
        index = e.minimum(index, NO_FAULT)
    if index.type.dtype == dtypes.int64:
        return index
    return conversion.convert(index, dtypes.int64)


def _plain(type: ArrayType) -> ArrayType:
    """``type`` without a layout, weakness or sharding."""
    return ArrayType(type.shape, type.dtype)


def _with_literals(program: Program, operands: Sequence[Atom]) -> Program:
    """``program`` with an unused input for each of ``operands`` that is a Literal.

    So its inputs correspond to all operands of the equation that it was expanded from.
    """
    inputs = iter(program.inputs)
    all_inputs = tuple(
        Var(a.type) if isinstance(a, Literal) else next(inputs) for a in operands
    )
    return Program(program.name, all_inputs, program.equations, program.outputs)
