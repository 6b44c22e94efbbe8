"""Inserts checks of indices and numbers into a Program.

``with_checks`` returns a Program with one more result, a *fault* (see ``faults``), and
the sites that faults refer to. Numbers are checked as by NumPy's ``errstate``: NaN is a
fault if no operand is NaN, an infinity if all operands are finite. NaN and infinities
among arguments and constants are no faults. Values that no result depends on are not
checked.

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
    """The ``KINDS`` that ``jit``'s ``checks`` asks for.

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
    program: Program, kinds: AbstractSet[str], is_whole: IsWhole
) -> tuple[Program, tuple[Site, ...]]:
    """``program`` with a fault as a further result, and the sites, if there are any.

    Calls that ``is_whole`` accepts are not entered.
    """
    checker = _Checker(kinds, is_whole)
    checked = checker.program(dce(program))
    if checked is None:
        return program, ()
    return checked, tuple(checker.sites)


class _Checker:
    """Inserts checks into Programs, and numbers their sites."""

    def __init__(self, kinds: AbstractSet[str], is_whole: IsWhole) -> None:
        self.kinds = kinds
        self.is_whole = is_whole
        self.sites: list[Site] = []

    def program(self, program: Program) -> Program | None:
        """``program`` with a fault as its last result; None if nothing is checked."""
        site_count = len(self.sites)
        builder = ProgramBuilder(program.name)
        with builder:
            inputs = builder.inputs_of(program)
            environment = builder.bind_inputs(program, inputs)
            fault = self.walk(program, environment)
        if len(self.sites) == site_count:
            return None
        outputs = [rename(a, environment) for a in program.outputs]
        return builder.build([*outputs, fault])

    def walk(self, program: Program, environment: dict[Var, Atom]) -> Atom:
        """Emit ``program`` and the checks of its equations; return the first fault."""
        builder = current_builder()
        faults: list[Atom] = []
        for equation in program.equations:
            builder.source = equation.source
            primitive = primitive_of(equation)
            operands = [rename(a, environment) for a in equation.inputs]
            body = (
                equation.params.get("body")
                if isinstance(primitive.kernel, Body)
                else None
            )
            if primitive is in_bounds:
                environment[equation.outputs[0]] = operands[0]
                faults += self._index(operands[0], equation)
            elif primitive in _LOOPS:
                results, fault = _LOOPS[primitive](self, equation, operands)
                environment.update(zip(equation.outputs, results, strict=True))
                faults.append(fault)
            elif body is not None and not self.is_whole(equation):
                environment.update(builder.bind_inputs(body, operands))
                faults.append(self.walk(body, environment))
                results = [rename(a, environment) for a in body.outputs]
                environment.update(zip(equation.outputs, results, strict=True))
            elif equation.subprograms() and isinstance(primitive.kernel, Composition):
                expansion = self._expanded(equation)
                environment.update(builder.bind_inputs(expansion, operands))
                faults.append(self.walk(expansion, environment))
                results = [rename(a, environment) for a in expansion.outputs]
                environment.update(zip(equation.outputs, results, strict=True))
            else:
                builder.replay(equation, environment)
                results = [environment[v] for v in equation.outputs]
                faults += self._numbers(equation, primitive, operands, results)
        return _first(faults)

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

    def _index(self, index: Atom, equation: Equation) -> list[Atom]:
        """The faults of the indices that an ``in_bounds`` equation passes on."""
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
        """The fault of a divisor ``y`` that is 0."""
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


def _scan(
    checker: _Checker, equation: Equation, operands: Sequence[Atom]
) -> tuple[Sequence[Atom], Atom]:
    """Emit a scan whose body is checked; return its results and the first fault."""
    params: dict[str, Any] = dict(equation.params)
    first_slice = params["consts"] + params["carry"]
    body = checker.program(params["program"])
    if body is None:
        return all_of(scan(*operands, **params)), _NONE
    carry = params["carry"]
    params |= {"program": _carrying(body, first_slice, carry), "carry": carry + 1}
    results = all_of(
        scan(*operands[:first_slice], _NONE, *operands[first_slice:], **params)
    )
    return [*results[:carry], *results[carry + 1 :]], results[carry]


def _while_loop(
    checker: _Checker, equation: Equation, operands: Sequence[Atom]
) -> tuple[Sequence[Atom], Atom]:
    """Emit a while_loop that ends at a fault; return its results and the fault."""
    params: dict[str, Any] = dict(equation.params)
    condition = checker.program(params["cond_program"])
    body = checker.program(params["body_program"])
    if condition is None and body is None:
        return all_of(while_loop(*operands, **params)), _NONE
    cond_end = params["cond_consts"]
    body_end = cond_end + params["body_consts"]
    condition_fault_program = condition or _with_none(params["cond_program"])
    step = body or _with_none(params["body_program"])
    # The body also takes the condition's operands, to report the condition's fault.
    params |= {
        "cond_program": _while_none(params["cond_program"]),
        "body_program": _step(condition_fault_program, step, cond_end),
        "body_consts": body_end,
    }
    outputs = all_of(while_loop(*operands[:cond_end], *operands, _NONE, **params))
    results, fault = outputs[:-1], outputs[-1]
    if condition is not None:
        last_fault = current_builder().inline(
            condition, [*operands[:cond_end], *results]
        )[-1]
        fault = _keeping(fault, last_fault)
    return results, fault


def _cond(
    checker: _Checker, equation: Equation, operands: Sequence[Atom]
) -> tuple[Sequence[Atom], Atom]:
    """Emit a cond whose branches are checked; return its results and the fault."""
    branches: tuple[Program, ...] = equation.params["branches"]
    checked = [checker.program(branch) for branch in branches]
    if not any(checked):
        return all_of(cond(*operands, branches=branches)), _NONE
    outputs = all_of(
        cond(
            *operands,
            branches=tuple(
                checked_branch or _with_none(branch)
                for checked_branch, branch in zip(checked, branches, strict=True)
            ),
        )
    )
    return outputs[:-1], outputs[-1]


_LOOPS: Final = {scan: _scan, while_loop: _while_loop, cond: _cond}


def _carrying(body: Program, before: int, carry: int) -> Program:
    """The body of a scan that also carries the first fault.

    ``body`` returns its own fault last. Its inputs before number ``before`` are
    constants and carries; there are ``carry`` carries.
    """
    builder = ProgramBuilder(body.name)
    with builder:
        inputs = [builder.input(v.type, v.hint) for v in body.inputs[:before]]
        carried_fault = builder.input(_NONE.type, "fault")
        inputs += [builder.input(v.type, v.hint) for v in body.inputs[before:]]
        *results, fault = builder.inline(body, inputs)
        first = _keeping(carried_fault, fault)
    return builder.build([*results[:carry], first, *results[carry:]])


def _while_none(condition: Program) -> Program:
    """``condition`` with one more carry, a fault: the loop ends if there is one."""
    builder = ProgramBuilder(condition.name)
    with builder:
        inputs = builder.inputs_of(condition)
        fault = builder.input(_NONE.type, "fault")
        (goes_on,) = builder.inline(condition, inputs)
        condition_holds = discrete.bitwise_and(goes_on, discrete.eq(fault, _NONE))
    return builder.build([condition_holds])


def _step(condition: Program, body: Program, first: int) -> Program:
    """The body of a while_loop that also carries the first fault.

    Both Programs return a fault last; ``first`` is the number of the condition's
    constants.
    """
    builder = ProgramBuilder(body.name)
    with builder:
        consts = [builder.input(v.type, v.hint) for v in condition.inputs[:first]]
        inputs = builder.inputs_of(body)
        builder.input(_NONE.type, "fault")
        carry = inputs[len(inputs) - len(body.outputs) + 1 :]
        condition_fault = builder.inline(condition, [*consts, *carry])[-1]
        *results, fault = builder.inline(body, inputs)
        first_fault = _keeping(condition_fault, fault)
    return builder.build([*results, first_fault])


def _with_none(program: Program) -> Program:
    """``program`` with ``NO_FAULT`` as a further result."""
    return Program(
        program.name, program.inputs, program.equations, (*program.outputs, _NONE)
    )


# Small Programs.


def _keeping(earlier: Atom, later: Atom) -> Atom:
    """The fault ``earlier``, or ``later`` if that is ``NO_FAULT``."""
    return e.select(discrete.eq(earlier, _NONE), later, earlier)


def _first(faults: Iterable[Atom]) -> Atom:
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
    """``program`` with an unused input for each Literal of ``operands``."""
    inputs = iter(program.inputs)
    all_inputs = tuple(
        Var(a.type) if isinstance(a, Literal) else next(inputs) for a in operands
    )
    return Program(program.name, all_inputs, program.equations, program.outputs)
